"""Max-min fair rates by progressive filling: for a few flows in plain Python, for a crowd in numpy.

All flows rise together; a flow stops at its own peak or when a resource it crosses is full.  The numpy form does
not walk the levels one by one: a resource that offers *all* its flows the least of what they are offered anywhere
is full at exactly that share whatever happens elsewhere, so every such resource is closed in one round.  The number
of rounds is then the depth of "who waits for whom" (4 to 60 on meshes), not the number of levels (hundreds).

A :class:`Crowd` keeps what a solve needs in arrays between solves.  It re-solves only the flows at or above a level:
a flow that ends at rate s, or begins and reaches s, cannot move any flow below s, because nothing that fills before
s has it on board.  Of an all-to-all, where the fast flows end first, that leaves a small part of the work.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tpusim.errors import InternalError
from tpusim.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tpusim.machine.fabric import Flow, Resource

    Floats = NDArray[np.float64]
    Ints = NDArray[np.intp]

NEVER = 2**62
"""The end of a flow that does not move, in picoseconds."""
TINY_PS = 1e-6
"""An end this little after a whole picosecond is rounding, not time."""
SAME_SHARE = 1 + 1e-12
"""Shares within this factor are one level."""
SAME_RATE = 1e-13
"""A relative change of a rate below this is rounding: the flow keeps its end."""
SLACK = 1e-9
"""Relative tolerance of the laws checked after every solve."""

_Key = TypeVar("_Key")


def fill_few(
    crossings: Sequence[Sequence[_Key]], peaks: Sequence[int], spare: dict[_Key, float]
) -> list[float]:
    """Fair rates of flows that cross ``crossings[i]`` (a key twice weighs 2), at most ``peaks[i]`` each.

    ``spare`` is what each resource has to give, in the unit of the peaks; it is left holding the rest.
    Costs O(flows x levels).
    """
    rates = [0.0] * len(peaks)
    weight = dict.fromkeys(spare, 0)
    for keys in crossings:
        for key in keys:
            weight[key] += 1
    still_open = list(range(len(peaks)))
    while still_open:
        shares = [(spare[key] / count, key) for key, count in weight.items() if count]
        share = max(min([offer for offer, _ in shares], default=float("inf")), 0.0)
        closing = [i for i in still_open if peaks[i] <= share]
        if closing:
            for i in closing:
                rates[i] = float(peaks[i])
        else:
            full = {key for offer, key in shares if offer <= share * SAME_SHARE}
            closing = [i for i in still_open if not full.isdisjoint(crossings[i])]
            for i in closing:
                rates[i] = share
        if len(closing) == len(still_open):
            still_open = []
        else:
            gone = set(closing)
            still_open = [i for i in still_open if i not in gone]
        for i in closing:
            rate = rates[i]
            for key in crossings[i]:
                spare[key] -= rate
                weight[key] -= 1
    return rates


def fill_many(spare: Floats, entries: Ints, lengths: Ints, peaks: Floats) -> tuple[Floats, Ints]:
    """Fair rates of many flows, and the resource that holds each back (-1: its own peak).

    Flow i crosses the next ``lengths[i]`` (at least one) resources of ``entries``; ``spare`` is what each resource
    has to give, infinite where it cannot bind.  Costs five passes a round over the entries still open.
    """
    size = len(spare)
    rates = peaks.copy()
    pins = np.full(len(peaks), -1, dtype=np.intp)
    rows, entries, lengths = _binding_part(spare, entries, lengths)
    limits = peaks.take(rows)
    spare = spare.copy()
    count = np.bincount(entries, minlength=size)
    left = held = len(rows)
    starts, owner = _layout(lengths)
    while left:
        level = np.minimum.reduceat((spare / np.maximum(count, 1)).take(entries), starts)
        np.minimum(level, limits, out=level)
        np.maximum(level, 0.0, out=level, where=limits >= 0.0)
        offers = (spare / np.maximum(count, 1)).take(entries)
        least = (offers <= (level * SAME_SHARE).take(owner)).nonzero()[0]
        where = entries.take(least)
        chosen = least[(np.bincount(where, minlength=size) == count).take(where)]
        pinned = owner.take(chosen)
        closed = level >= limits
        pins[rows.take(pinned)] = entries.take(chosen)
        closed[pinned] = True
class _Numbering(dict["Resource", int]):
    """Numbers its keys in the order in which they are first asked for."""

    def __missing__(self, key: Resource) -> int:
        self[key] = number = len(self)
        return number


class Crowd:
    """The flows of one large component, a row each, with rates in B/s and times in ps.

    ``add`` and ``remove`` collect the changes of an instant, ``retire`` and ``solve`` apply them; a dead row stays
    until the fabric dissolves the crowd because ``is_sparse``.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.flows: list[Flow | None] = []
        self.live = 0
        self.urgent = 0
        self.heads: list[Flow] = []
        self.numbers = _Numbering()
        self._gone: list[int] = []
        self._floor = float("inf")
        self._new_from = 0
        self._capacity = np.empty(0)
        self._load = np.empty(0)
        self._weight = np.empty(0, dtype=np.intp)
        self._entries = np.empty(0, dtype=np.intp)
        self._starts = np.empty(0, dtype=np.intp)
        self._lengths = np.empty(0, dtype=np.intp)
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
        numbers, known = self.numbers, len(self.numbers)
        entries = np.array([numbers[r] for flow in flows for r in flow.path.resources], dtype=np.intp)
        lengths = np.array([len(flow.path.resources) for flow in flows], dtype=np.intp)
        limits = [float(r.capacity) if r.is_tight else np.inf for r in islice(numbers, known, None)]
        rates = np.array([flow.rate for flow in flows])
        for row, flow in enumerate(flows, len(self.flows)):
            flow.row = row
            flow.alarm = None
            self.urgent += flow.priority
        grown = np.zeros(len(limits))
        size = len(numbers)
        self._capacity = np.append(self._capacity, limits)
        self._load = np.append(self._load, grown) + np.bincount(entries, np.repeat(rates, lengths), size)
        self._weight = np.append(self._weight, grown.astype(np.intp)) + np.bincount(entries, minlength=size)
        self._starts = np.append(self._starts, len(self._entries) + lengths.cumsum() - lengths)
        self._entries = np.append(self._entries, entries)
        self._lengths = np.append(self._lengths, lengths)
        self._pins = np.append(self._pins, np.full(len(flows), -1, dtype=np.intp))
        self._peaks = np.append(self._peaks, [float(flow.path.peak) for flow in flows])
        self._sizes = np.append(self._sizes, [float(flow.wire_bytes) for flow in flows])
        self._rates = np.append(self._rates, rates)
        self._remaining = np.append(self._remaining, [flow.remaining for flow in flows])
        self._since = np.append(self._since, np.array([flow.since for flow in flows], dtype=np.int64))
        self._ends = np.append(self._ends, np.array([flow.ends for flow in flows], dtype=np.int64))
        self.flows.extend(flows)
        self.live += len(flows)

    def remove(self, flow: Flow) -> None:
        """The flow ends now."""
        self.flows[flow.row] = None
        self._gone.append(flow.row)
        if flow.priority:
            self.urgent -= 1
            self._floor = 0.0  # what it left may go to flows far below its own rate

    def limit(self, resource: Resource, capacity: float) -> None:
        """The resource can bind from now on, or no more (infinite)."""
        self._capacity[self.numbers[resource]] = capacity
        self._floor = min(self._floor, capacity / max(1, int(self._weight[self.numbers[resource]])))

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
        entries, lengths = self._entries_of(rows)
        self._load -= np.bincount(entries, np.repeat(rates, lengths), len(self._load))
        self._weight -= np.bincount(entries, minlength=len(self._weight))
        self._floor = min(self._floor, float(rates.min()))
        self._rates[rows] = -1.0
        self._ends[rows] = NEVER
        self._pins[rows] = -1
        self.live -= len(rows)

    def solve(self, now: int) -> int:
        """Share anew after the changes of this instant; returns the first end from here on, in ps."""
        groups = self._groups()
        load = np.zeros(len(self._capacity))
        if sum(map(len, groups)) < self.live:
            entries, lengths = self._entries_of(groups[0])
            load = self._load - np.bincount(entries, np.repeat(self._rates[groups[0]], lengths), len(load))
        for rows in groups:
            entries, lengths = self._entries_of(rows)
            spare = self._capacity - load
            spare[spare < self._capacity * (SAME_SHARE - 1)] = 0.0
            rates, self._pins[rows] = fill_many(spare, entries, lengths, self._peaks[rows])
            self._set_rates(rows, rates, now)
            load = load + np.bincount(entries, np.repeat(self._rates[rows], lengths), len(load))
        self._load = load
        self._check()
        self._floor = float("inf")
        self._new_from = len(self.flows)
        return int(self._ends.min())

    def ending(self, due: int) -> list[Flow]:
        """The flows that end at ``due``."""
        return [flow for row in np.flatnonzero(self._ends == due).tolist() if (flow := self.flows[row]) is not None]

    def dissolve(self) -> list[Flow]:
        """Write the rows back to their flows and return these."""
        columns = zip(
            self.flows,
            self._rates.tolist(),
            self._remaining.tolist(),
            self._since.tolist(),
            self._ends.tolist(),
            strict=True,
        )
        alive = []
        for flow, rate, remaining, since, ends in columns:
            if flow is not None:
                flow.rate, flow.remaining, flow.since, flow.ends = rate, remaining, since, ends
                alive.append(flow)
        return alive

    def rate_of(self, flow: Flow) -> float:
        """The rate of one of its flows now, in B/s."""
        return float(self._rates[flow.row])

    def _groups(self) -> list[Ints]:
        """The rows to solve again, in the order in which they are served."""
        alive = self._rates >= 0.0
        if self.urgent:
            rank = np.array([-1 if flow is None else flow.priority for flow in self.flows])
            return [np.flatnonzero(rank == 1), np.flatnonzero(rank == 0)]
        new = self._new_from
        if new < len(self.flows):
            shares = self._capacity / np.maximum(self._weight, 1)
            least = float(shares.take(self._entries[self._starts[new] :]).min())
            self._floor = min(self._floor, least, float(self._peaks[new:].min()))
        alive &= self._rates >= self._floor * (1 - SLACK)
        alive[new:] = self._rates[new:] >= 0.0
        return [np.flatnonzero(alive)]

    def _entries_of(self, rows: Ints) -> tuple[Ints, Ints]:
        """The entries of these rows, one row after the other, and how many each has."""
        lengths = self._lengths.take(rows)
        ends = lengths.cumsum()
        if not len(rows):
            return self._entries[:0], lengths
        shift = np.repeat(self._starts.take(rows) - ends + lengths, lengths)
        shift += np.arange(ends[-1])
        return self._entries.take(shift), lengths

    def _set_rates(self, rows: Ints, rates: Floats, now: int) -> None:
        """Book what has moved so far and the new end, for the rows whose rate really changes."""
        old = self._rates[rows]
        changed = np.abs(rates - old) > SAME_RATE * old
        rows, rates, old = rows[changed], rates[changed], old[changed]
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
        full = np.append(self._load >= self._capacity * (1 - SLACK), True)
        if not full.take(self._pins).all():
            raise InternalError("a flow could go faster than the fabric lets it")


def check_delivered(left: float, size: float, rate: float) -> None:
    """At its end a flow has ``left`` nothing of its ``size`` bytes, nor less than the rounding up to a picosecond."""
    slack = 1e-6 * size
    if not -slack - rate * (1.001 / PS_PER_S) <= left <= slack:
        raise InternalError(f"a copy of {size:.0f} bytes ended with {left:.6g} bytes to go")
