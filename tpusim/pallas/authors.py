"""Which kernel made an array, and as which of its arguments: for messages about results of a program."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tpusim.findings import Where

if TYPE_CHECKING:
    from tpusim.pallas.kernels import KernelInstance


class Author(NamedTuple):
    """A kernel call, defined at ``where``, and the argument it returned an array from."""

    kernel: str
    argument: str
    where: Where | None


class Authors:
    """The arrays that kernels returned and that are still somewhere; they are not kept alive."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Author]] = {}

    def keep(self, instance: KernelInstance, results: Sequence[Any]) -> None:
        """A call of a kernel returned these."""
        kernel = instance.kernel
        first = kernel.contents.num_prefetch + kernel.contents.num_inputs
        for position, result in enumerate(results, first):
            if isinstance(result, np.ndarray):
                argument = kernel.lowered.arguments[position][0]
                self._known[id(result)] = weakref.ref(result), Author(kernel.contents.name, argument, kernel.where)

    def of(self, array: Any) -> Author | None:
        """Who made an array, if a kernel did."""
        found = self._known.get(id(array))
        return found[1] if found is not None and found[0]() is array else None
