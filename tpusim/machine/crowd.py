"""The flows of one large component, in arrays.

A :class:`Crowd` keeps what a solve needs in arrays between solves.  It re-solves only the flows at or above a level:
a flow that ends at rate s, or begins and reaches s, cannot move any flow below s, because nothing that fills before
s has it on board.  Of an all-to-all, where the fast flows end first, that leaves a small part of the work.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from tpusim.errors import InternalError
from tpusim.machine.waterfill import (
    NEVER,
    SAME_SHARE,
    SLACK,
    TINY_PS,
    check_delivered,
    differ,
    fill_many,
    loads_of,
    packed,
)
from tpusim.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpusim.machine.flows import Flow, Resource
    from tpusim.machine.waterfill import Floats, Ints


class _Numbering(dict["Resource", int]):
    """Numbers its keys from 1 in the order in which they are first asked for."""

    def __missing__(self, key: Resource) -> int:
        self[key] = number = len(self) + 1
        return number


class Crowd:
    """The flows of one large component, a row each, with rates in B/s and times in ps.

    ``add``, ``remove`` and ``limit`` collect the changes of an instant; ``retire`` and ``solve`` apply them.  A dead
    row stays until the fabric dissolves the crowd because it ``is_sparse``.  Resource 0 pads paths and never binds.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.flows: list[Flow | None] = []
        self.live = 0
        self.heads: list[Flow] = []
        self.numbers = _Numbering()
        self._urgent = 0
        self._gone: list[int] = []
        self._floor = np.inf
        self._new_from = 0
        self._capacity = np.full(1, np.inf)
        self._load = np.zeros(1)
        self._weight = np.zeros(1, dtype=np.intp)
        self._full = np.zeros(1, dtype=bool)
        self._crossings = np.zeros((1, 0), dtype=np.intp)
        self._pins = np.empty(0, dtype=np.intp)
        self._peaks = np.empty(0)
        self._sizes = np.empty(0)
        self._rates = np.empty(0)
        self._remaining = np.empty(0)
        self._since = np.empty(0, dtype=np.int64)
        self._ends = np.empty(0, dtype=np.int64)

    def is_sparse(self, few: int) -> bool:
        """Whether rebuilding pays: most rows are dead, or what lives is small enough for ``fill_few``."""
        return 2 * self.live < len(self.flows) or 2 * self.live <= few

    def add(self, flows: Sequence[Flow]) -> None:
        """Append flows; their ``remaining``, ``since``, ``rate`` and ``ends`` become rows."""
        self._add_crossings([flow.path.resources for flow in flows])
        for row, flow in enumerate(flows, len(self.flows)):
            flow.row = row
            flow.alarm = None
            self._urgent += flow.priority
        self.flows.extend(flows)
        self.live += len(flows)
        self._pins = np.append(self._pins, np.full(len(flows), -1, dtype=np.intp))
        self._peaks = np.append(self._peaks, [float(flow.path.peak) for flow in flows])
        self._sizes = np.append(self._sizes, [float(flow.wire_bytes) for flow in flows])
        self._rates = np.append(self._rates, [flow.rate for flow in flows])
        self._remaining = np.append(self._remaining, [flow.remaining for flow in flows])
        self._since = np.append(self._since, np.array([flow.since for flow in flows], dtype=np.int64))
        self._ends = np.append(self._ends, np.array([flow.ends for flow in flows], dtype=np.int64))
        rows = np.arange(self._new_from, len(self.flows))
        self._load += loads_of(self._crossings.take(rows, axis=1), self._rates[rows], len(self._load))

    def _add_crossings(self, paths: Sequence[tuple[Resource, ...]]) -> None:
        """Columns for these paths, numbers and limits for resources not yet met."""
        numbers, known = self.numbers, len(self.numbers)
        height, room = self._crossings.shape
        longest = max(map(len, paths))
        columns = [[numbers[r] for r in path] + [0] * (longest - len(path)) for path in paths]
        first, end = len(self.flows), len(self.flows) + len(paths)
        if end > room or longest > height:
            grown = np.zeros((max(height, longest), max(end + end // 2, room)), dtype=np.intp)
            grown[:height, :room] = self._crossings
            self._crossings = grown
        self._crossings[:longest, first:end] = np.array(columns, dtype=np.intp).T
        self._new_from = min(self._new_from, first)
        limits = [float(r.capacity) if r.is_tight else np.inf for r in islice(numbers, known, None)]
        self._capacity = np.append(self._capacity, limits)
        self._load = np.append(self._load, np.zeros(len(limits)))
        self._full = np.append(self._full, np.zeros(len(limits), dtype=bool))
        weight = np.append(self._weight, np.zeros(len(limits), dtype=np.intp))
        self._weight = weight + np.bincount(self._crossings[:, first:end].ravel(), minlength=len(weight))

    def remove(self, flow: Flow) -> None:
        """The flow ends now."""
        self.flows[flow.row] = None
        self._gone.append(flow.row)
        if flow.priority:
            self._urgent -= 1
            self._floor = 0.0  # what it left may go to flows far below its own rate

    def limit(self, resource: Resource, capacity: float) -> None:
        """The resource can bind from now on, or no more (infinite)."""
        number = self.numbers[resource]
        self._capacity[number] = capacity
        self._floor = min(self._floor, capacity / max(1, int(self._weight[number])))

    def retire(self, now: int) -> None:
        """Take the flows that ended off the books, checking that each has delivered its bytes."""
        if not self._gone:
            return
        rows = np.array(self._gone, dtype=np.intp)
        self._gone = []
        rates = self._rates[rows]
        left = self._remaining[rows] - rates * ((now - self._since[rows]) / PS_PER_S)
        for each in zip(left.tolist(), self._sizes[rows].tolist(), rates.tolist(), strict=True):
            check_delivered(*each)
        crossings = self._crossings.take(rows, axis=1)
        self._load -= loads_of(crossings, rates, len(self._load))
        self._weight -= np.bincount(crossings.ravel(), minlength=len(self._weight))
        self._floor = min(self._floor, float(rates.min()))
        self._rates[rows] = -1.0
        self._ends[rows] = NEVER
        self._pins[rows] = -1
        self.live -= len(rows)

    def solve(self, now: int) -> int:
        """Share anew after the changes of this instant; returns the first end from here on, in ps."""
        groups = self._groups()
        starts_anew = sum(map(len, groups)) == self.live
        load = np.zeros(len(self._capacity)) if starts_anew else self._load
        for rows in groups:
            old = self._rates[rows]
            rates, self._pins[rows], load = self._fill(rows, np.zeros(len(rows)) if starts_anew else old, load)
            self._set_rates(rows, rates, old, now)
        self._load = load
        self._full = load >= self._capacity * (1 - SLACK)
        self._check()
        self._floor = np.inf
        self._new_from = len(self.flows)
        return int(self._ends.min())

    def _fill(self, rows: Ints, old: Floats, load: Floats) -> tuple[Floats, Ints, Floats]:
        """Fair rates of these rows, what holds them back, and the load; ``load`` now has them at the rates ``old``.

        At first only what was full before binds, then also what that overfills: few resources ever do.
        """
        crossings = self._crossings.take(rows, axis=1)
        peaks = self._peaks[rows]
        size = len(load)
        binds = self._full
        while True:
            narrow = packed(crossings, binds)
            spare = self._capacity - load + loads_of(narrow, old, size)
            spare[spare < self._capacity * (SAME_SHARE - 1)] = 0.0
            rates, pins = fill_many(np.where(binds, spare, np.inf), narrow, peaks)
            changed = differ(rates, old)
            change = rates.take(changed) - old.take(changed)
            total = load + loads_of(crossings.take(changed, axis=1), change, size)
            over = (total > self._capacity * SAME_SHARE) & ~binds
            if not over.any():
                return rates, pins, total
            binds = binds | over

    def ending(self, due: int) -> list[Flow]:
        """The flows that end at ``due``."""
        rows = (self._ends == due).nonzero()[0].tolist()
        return [flow for row in rows if (flow := self.flows[row]) is not None]

    def dissolve(self) -> list[Flow]:
        """Write the rows back to their flows and return these."""
        columns = (self._rates, self._remaining, self._since, self._ends)
        alive = []
        for flow, rate, remaining, since, ends in zip(self.flows, *(c.tolist() for c in columns), strict=True):
            if flow is not None:
                flow.rate, flow.remaining, flow.since, flow.ends = rate, remaining, since, ends
                alive.append(flow)
        return alive

    def rate_of(self, flow: Flow) -> float:
        """The rate of one of its flows now, in B/s."""
        return float(self._rates[flow.row])

    def _groups(self) -> list[Ints]:
        """The rows to solve again, in the order in which they are served."""
        if self._urgent:
            rank = np.array([-1 if flow is None else flow.priority for flow in self.flows])
            return [(rank == 1).nonzero()[0], (rank == 0).nonzero()[0]]
        new = self._new_from
        if new < len(self.flows):
            shares = self._capacity / np.maximum(self._weight, 1)
            least = float(shares.take(self._crossings[:, new : len(self.flows)]).min())
            self._floor = min(self._floor, least, float(self._peaks[new:].min()))
        rising = self._rates >= max(self._floor * (1 - SLACK), 0.0)
        rising[new:] = self._rates[new:] >= 0.0
        return [rising.nonzero()[0]]

    def _set_rates(self, rows: Ints, rates: Floats, old: Floats, now: int) -> None:
        """Book what has moved so far and the new end, for the rows whose rate really changes."""
        changed = differ(rates, old)
        rows, rates, old = rows.take(changed), rates.take(changed), old.take(changed)
        left = self._remaining[rows] - old * ((now - self._since[rows]) / PS_PER_S)
        np.maximum(left, 0.0, out=left)
        wait = np.full(len(rows), float(NEVER))
        np.divide(left * PS_PER_S, rates, out=wait, where=rates > 0.0)
        self._remaining[rows] = left
        self._since[rows] = now
        self._rates[rows] = rates
        self._ends[rows] = np.minimum(now + np.ceil(np.maximum(wait - TINY_PS, 0.0)), float(NEVER)).astype(np.int64)

    def _check(self) -> None:
        """No resource above its capacity; every flow at its peak or held back by a full resource."""
        if (self._load > self._capacity * (1 + SLACK)).any():
            raise InternalError("a resource of the fabric is above its capacity")
        if not np.append(self._full, True).take(self._pins).all():
            raise InternalError("a flow could go faster than the fabric lets it")
