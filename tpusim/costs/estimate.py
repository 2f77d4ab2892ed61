"""From a mixture of operations to cycles: the slots of all of them together, and an interval.

Operations that the compiler schedules together share its bundles, so their slots add up unit by unit and the unit
that runs out first gives the least they can take; the latencies of the operations come on top as far as nothing is
there to hide them.  How well the compiler fills its bundles is not known, hence the interval.
"""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

import numpy as np

from tpusim.costs.table import CostTable, Shape


class Estimate(NamedTuple):
    """Cycles of one core: at least, most likely, at most."""

    low: int
    mid: int
    high: int


class Mixture:
    """Loads, operations and stores between two points at which others can see a core."""

    def __init__(self, costs: CostTable) -> None:
        self.costs = costs
        self.slots: dict[str, float] = {}
        self.products = 0

    def copy(self) -> Mixture:
        """Another one, so far the same."""
        other = Mixture(self.costs)
        other.slots, other.products = dict(self.slots), self.products
        return other

    def access(self, dtype: np.dtype[Any], shape: Shape, *, is_store: bool) -> None:
        """A vector load or store of VMEM."""
        unit = "VSTORE" if is_store else "VLOAD"
        self.slots[unit] = self.slots.get(unit, 0.0) + self.costs.vregs(dtype, shape)

    def operation(
        self,
        op: str,
        dtype: np.dtype[Any],
        shapes: tuple[Shape, ...],
        out_shape: Shape,
        *,
        out_dtype: np.dtype[Any] | None = None,
        axes: tuple[int, ...] | None = None,
        times: int = 1,
    ) -> None:
        """One JAX primitive, run ``times`` times; arguments as for :meth:`CostTable.cycles`."""
        for unit, count in self.costs.slots(op, dtype, shapes, out_shape, out_dtype=out_dtype, axes=axes).items():
            self.slots[unit] = self.slots.get(unit, 0.0) + count * times
        self.products += times * (op == "dot_general")

    def estimate(self) -> Estimate:
        """Cycles of all of it."""
        fill = self.products * self.costs.chip.core.mxu_fill.number
        cycles = ceil(self.costs.slot_cycles(self.slots) + fill)
        return Estimate(cycles, cycles, cycles)
