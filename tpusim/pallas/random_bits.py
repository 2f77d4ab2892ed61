"""The random generator of a simulated core, and the keys of Pallas.

``jax.random`` with JAX's own keys is ordinary array code and gives JAX's numbers.  The generator of the TPU is
another matter: its bits are not published, so these are Philox's, the same for the same seeds on every
machine.  A core that was never seeded has the generator of its device's number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

_MASK = (1 << 32) - 1


class CoreRandom:
    """The generator of one core."""

    def __init__(self, device: int) -> None:
        self.seed([device])

    def seed(self, seeds: Sequence[int]) -> None:
        """Begin anew."""
        words = np.random.SeedSequence([int(seed) & _MASK for seed in seeds])
        self._generator = np.random.Generator(np.random.Philox(words))

    def bits(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """32 random bits for each element."""
        return self._generator.integers(0, 1 << 32, shape, np.uint32).view(dtype)


def make_key(seed: Any) -> Any:
    """The data of a Pallas key: both words are the seed."""
    return np.full((1, 2), int(seed) & _MASK, np.uint32)


def fold_in(key: Any, data: Any) -> Any:
    """The mixing of Pallas: one round of threefry."""
    first, second = (int(word) for word in key.ravel())
    second = (second + int(data)) & _MASK
    first = (first + second) & _MASK
    second = (second << 13 | second >> 19) & _MASK
    return np.array([[first, second ^ first]], np.uint32)


def stack_keys(keys: Sequence[Any]) -> Any:
    """Typed keys of JAX as one array."""
    return jax.numpy.stack(keys)


def join_key(*words: int) -> Any:
    """A key from its words."""
    return np.array([words], np.uint32)


def wrap_key(data: Any, impl: str) -> Any:
    """A typed key of JAX from its words."""
    return jax.random.wrap_key_data(data, impl=impl)


RUNTIME: dict[str, Any] = {"make_key": make_key, "fold_in": fold_in, "join_key": join_key, "wrap_key": wrap_key}
"""Names that generated code may use."""
