"""From a mixture of operations to cycles: the slots of all of them together, their latencies, and an interval.

Operations that the compiler schedules together share its bundles, so their slots add up unit by unit, and the unit
that runs out first gives the least they can take (``low``).  Elementwise operations stream and hide behind anything.
A matrix product, a reduction over lanes or a transpose does not: what follows needs its first result, which takes
the unit's latency, and a chain of them runs one after the other.  So the middle is the longer of the slots with most
of the latencies, and of that chain; at most (``high``) nothing of the chain overlaps with the rest.

Measured against libtpu 0.0.50.1 in ``benchmarks/validate_compiler.py``.
"""

from __future__ import annotations

from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np

from tpusim.costs.ops import REDUCTIONS
from tpusim.costs.table import CostTable, Shape, Slots

EXPOSED = 0.8
"""Part of the latencies that nothing hides, where the slots bind.

The one constant here that no document and no dump gives: the value of the least mean error on the 144 pieces of work
of ``benchmarks/exposed.py`` (v5e, v5p, v6e), none of which is among the kernels accuracy is reported for.
"""


class Estimate(NamedTuple):
    """Cycles of one core: at least, most likely, at most."""

    low: int
    mid: int
    high: int


class Mixture:
    """Loads, operations and stores between two points at which others can see a core."""

    def __init__(self, costs: CostTable) -> None:
        self.costs = costs
        self.slots: Slots = {}
        self.streamed: Slots = {}
        """The part of the slots that hides behind anything."""
        self.chain = 0.0
        """Cycles of the operations that do not, one after the other, latencies included."""
        self.exposed = 0.0
        """Their latencies."""
        self.depth = 0.0
        """Latency of the longest streaming operation."""
        self.reduced: frozenset[Shape] = frozenset()
        """Shapes (without lanes) of reductions over lanes, whose results are in every lane already."""

    def copy(self) -> Mixture:
        """Another one, so far the same."""
        other = Mixture(self.costs)
        other.__dict__.update(self.__dict__)
        other.slots, other.streamed = dict(self.slots), dict(self.streamed)
        return other

    def access(self, dtype: np.dtype[Any], shape: Shape, *, is_store: bool) -> None:
        """A vector load or store of VMEM."""
        self._stream({"VSTORE" if is_store else "VLOAD": float(self.costs.vregs(dtype, shape))}, 1)

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
        if op == "broadcast_in_dim" and shapes and self._is_in_every_lane(shapes[0], out_shape):
            return
        all_slots = self.costs.slots(op, dtype, shapes, out_shape, out_dtype=out_dtype, axes=axes)
        slots = {unit: count for unit, count in all_slots.items() if count}
        latency = self._latency(op, slots)
        if op in REDUCTIONS and "XLU" in slots:
            self.reduced |= {_rows(out_shape if len(out_shape) < len(shapes[0]) else out_shape[:-1])}
            combining = {"VALU": slots.pop("VALU", 0.0)}
            self._stream(combining, times)
        if latency is None:
            self.depth = max(self.depth, self.costs.latency["transcendental" if "EUP" in slots else "vector"])
            self._stream(slots, times)
            return
        _add(self.slots, slots, times)
        self.exposed += latency * times
        self.chain += (self._cycles(slots) + latency) * times

    def estimate(self) -> Estimate:
        """Cycles of all of it."""
        slots, streamed = self._cycles(self.slots), self._cycles(self.streamed)
        low = slots
        mid = self.depth + max(slots + EXPOSED * self.exposed, self.chain)
        high = self.depth + max(1.1 * mid, streamed + self.chain, 1.15 * slots)
        return Estimate(max(1, ceil(low)), max(1, ceil(mid)), max(1, ceil(high)))

    def _stream(self, slots: Slots, times: int) -> None:
        _add(self.slots, slots, times)
        _add(self.streamed, slots, times)

    def _cycles(self, slots: Slots) -> float:
        return max([0.0, *(count / self.costs.capacity[unit] for unit, count in slots.items())])

    def _latency(self, op: str, slots: Slots) -> float | None:
        """Cycles until a first result of an operation that does not stream."""
        if op == "dot_general":
            return self.costs.chip.core.mxu_fill.number
        if op == "transpose" and slots:
            return self.costs.latency["transpose"]
        return self.costs.latency["lanes"] if "XLU" in slots else None

    def _is_in_every_lane(self, shape: Shape, out_shape: Shape) -> bool:
        """Whether an operand of one lane comes from a reduction here, so that spreading it costs nothing."""
        kept = shape[:-1] if shape[-1:] == (1,) else shape
        return bool(kept) and _rows(kept) in self.reduced and kept == out_shape[: len(kept)]


def _rows(shape: Shape) -> Shape:
    return (prod(shape),)


def _add(total: Slots, more: Slots, times: int) -> None:
    for unit, count in more.items():
        total[unit] = total.get(unit, 0.0) + count * times
