"""What array operations of a native kernel cost, one after the other.

Loads, operations and stores between two points at which others can see a core are one piece of work with one cost
(:mod:`tpusim.costs.estimate`), but a native kernel runs eagerly: each operation is charged what it adds to the piece
so far.  Kernels repeat themselves, so pieces are kept as a tree of what has come after what, and charging again costs
a dictionary look-up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tpusim.costs import CostTable
from tpusim.costs.estimate import Mixture
from tpusim.machine.timing import Timing

_LONGEST = 4096
"""Operations after which a piece of work ends, so that an endless loop does not fill the memory."""


class Piece:
    """A piece of work so far; ``owed_ps`` is what it costs beyond what was charged for it already.

    A load or store adds to what is owed; an operation pays it.
    """

    __slots__ = ("_charged", "_costs", "_mixture", "_next", "_ranges", "_timing", "length", "owed_ps")

    def __init__(
        self,
        timing: Timing,
        ranges: dict[int, tuple[int, int]],
        mixture: Mixture | None = None,
        charged: int = 0,
        length: int = 0,
    ) -> None:
        """``ranges`` gets what each charge may be at least and at most, see ``Machine.compute_ranges``."""
        self._timing = timing
        self._costs: CostTable = timing.costs
        self._mixture = mixture or Mixture(timing.costs)
        self._charged = charged
        self._ranges = ranges
        self._next: dict[Any, tuple[Piece, int]] = {}
        self.length = length
        owed = self._mixture.estimate().mid - charged if length else 0
        self.owed_ps = timing.cycles(owed) if owed > 0 else 0

    def access(self, dtype: np.dtype[Any], shape: tuple[int, ...], is_store: bool) -> Piece:
        """The piece after a vector load or store, whose issue (one cycle) the core has charged."""
        key = (is_store, dtype, shape)
        found = self._next.get(key)
        if found is None:
            mixture = self._mixture.copy()
            mixture.access(dtype, shape, is_store=is_store)
            found = self._next[key] = Piece(self._timing, self._ranges, mixture, self._charged + 1, self.length + 1), 0
        return found[0]

    def operation(self, op: str, dtype: np.dtype[Any], shapes: Any, out_shape: Any) -> tuple[Piece, int]:
        """The piece after an operation, and what that costs in picoseconds, at least a cycle."""
        key = (op, dtype, shapes, out_shape)
        found = self._next.get(key)
        if found is None:
            mixture = self._mixture.copy()
            mixture.operation(op, dtype, shapes, out_shape)
            low, mid, high = mixture.estimate()
            cycles = max(1, mid - self._charged)
            price = self._timing.cycles(cycles)
            self._ranges[price] = (round(price * low / mid), round(price * high / mid))
            after = Piece(self._timing, self._ranges, mixture, self._charged + cycles, self.length + 1)
            found = self._next[key] = after, price
        return found

    @property
    def is_long(self) -> bool:
        """Whether it should end here."""
        return self.length >= _LONGEST
