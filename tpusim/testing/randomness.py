"""Generators of random numbers that Hypothesis seeds and puts back, so that a failing example fails again."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpusim.errors import OptionError


class ManagedGenerator:
    """A NumPy generator with the three methods that Hypothesis wants of a source of randomness."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def seed(self, seed: int) -> None:
        """Start again from a seed."""
        self.setstate(type(self.generator.bit_generator)(seed).state)

    def getstate(self) -> Any:
        """Everything the next numbers depend on."""
        return self.generator.bit_generator.state

    def setstate(self, state: Any) -> None:
        """Go back to a state."""
        self.generator.bit_generator.state = state


def register_random(source: Any) -> Any:
    """Have Hypothesis seed ``source`` before each example and put it back after the test, as it does its own.

    ``source``: a ``random.Random``, a NumPy ``Generator``, or anything with ``seed``, ``getstate`` and ``setstate``
    that inputs of kernels are drawn from.  Returns what is registered: keep it, since Hypothesis does not.
    """
    from hypothesis import register_random as register

    managed = ManagedGenerator(source) if isinstance(source, np.random.Generator) else source
    if not all(callable(getattr(managed, name, None)) for name in ("seed", "getstate", "setstate")):
        raise OptionError(f"register_random takes a random.Random or a numpy.random.Generator, not {source!r}")
    register(managed)
    return managed
