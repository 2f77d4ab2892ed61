"""The token system of a run: what each operation adds to counters or waits for, in the order of the run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

from tpusim.errors import InternalError


@dataclass(frozen=True, slots=True)
class Core:
    """The stall of a core: it executes no more than its first ``position`` operations."""

    device: int
    position: int


@dataclass(frozen=True, slots=True)
class Leg:
    """The stall of a leg of the copy that is operation ``number``: the last of its bytes, or all, never come."""

    number: int
    is_reader: bool
    is_whole: bool = False


Stall = Core | Leg


class Question(NamedTuple):
    """Whether ``device`` still executes its operation ``after`` (-1: none) while something is stalled."""

    stall: Stall
    device: int
    after: int


class TokenSystem:
    """The operations of all cores in the reference order, each what it adds to counters or waits for.

    An operation's number is its place in that order.  Counters are any keys; amounts and thresholds are integers.
    """

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.device: list[int] = []
        self.threshold: list[int] = []
        """0 for an operation that is not a wait."""
        self.effects: list[tuple[tuple[int, int], ...]] = []
        """(counter, amount) of what it adds; for a wait its counter and 0."""
        self.operations: list[list[int]] = [[] for _ in range(devices)]
        """Numbers of each core's operations."""
        self.legs: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """For a copy the counters that its stalled reader, and its stalled writer, keep short."""
        self._counters: dict[Any, int] = {}
        self._units: list[int] = []
        self._sums: list[int] = []
        self._is_reduced = False

    def __len__(self) -> int:
        return len(self.device)

    def last(self, device: int) -> int:
        """The number of a core's last operation so far, -1 before its first."""
        own = self.operations[device]
        return own[-1] if own else -1

    def counter(self, key: Any) -> int:
        """The number of a counter."""
        found = self._counters.get(key)
        if found is None:
            found = self._counters[key] = len(self._units)
            self._units.append(0)
            self._sums.append(0)
        return found

    def add(self, device: int, effects: Sequence[tuple[Any, int]]) -> int:
        """A core's operation that adds amounts to counters, at once; gives its number."""
        for key, amount in effects:
            self._sums[self.counter(key)] += amount
        return self._append(device, 0, tuple((self._with_unit(key, amount), amount) for key, amount in effects))

    def copy(self, device: int, sent: Sequence[tuple[Any, int]], received: Sequence[tuple[Any, int]]) -> int:
        """A core starts a copy; its reader adds ``sent``, its writer ``received``."""
        number = self.add(device, [*sent, *received])
        writer = tuple(self.counter(key) for key, _ in received)
        self.legs[number] = ((*(self.counter(key) for key, _ in sent), *writer), writer)
        return number

    def wait(self, device: int, key: Any, threshold: int) -> int:
        """A core waits until all that was ever added to a counter is at least ``threshold``; it must be so by now."""
        if self._sums[self.counter(key)] < threshold:
            raise InternalError(f"proof: a wait for {threshold} stands before what it waits for")
        return self._append(device, threshold, ((self._with_unit(key, threshold), 0),))

    def _with_unit(self, key: Any, amount: int) -> int:
        counter = self.counter(key)
        self._units[counter] = gcd(self._units[counter], amount)
        return counter

    def _append(self, device: int, threshold: int, effects: tuple[tuple[int, int], ...]) -> int:
        number = len(self.device)
        self.device.append(device)
        self.threshold.append(threshold)
        self.effects.append(effects)
        self.operations[device].append(number)
        return number

    def reduce(self) -> None:
        """Count in the largest unit that divides all amounts of a counter: most become 1, and sums stay small.

        A byte that never comes keeps the unit it belongs to from being complete, and with it nothing else.
        """
        if self._is_reduced:
            return
        self._is_reduced = True
        units = self._units = [unit or 1 for unit in self._units]
        for number, effects in enumerate(self.effects):
            self.effects[number] = tuple((counter, amount // units[counter]) for counter, amount in effects)
            if self.threshold[number]:
                self.threshold[number] //= units[effects[0][0]]

    @property
    def counters(self) -> int:
        """How many counters there are."""
        return len(self._units)

    @property
    def most(self) -> int:
        """The largest sum of a counter, in its unit."""
        return max((total // unit for total, unit in zip(self._sums, self._units, strict=True)), default=0)

    def short(self, stall: Leg) -> list[tuple[int, int]]:
        """The counters that a stalled leg keeps short, and by how many units."""
        withheld = self.legs[stall.number][0 if stall.is_reader else 1]
        if stall.is_whole:
            return [(counter, amount) for counter, amount in self.effects[stall.number] if counter in withheld]
        missing: defaultdict[int, int] = defaultdict(int)
        for counter in withheld:
            missing[counter] += 1
        return [(counter, -(-count // self._units[counter])) for counter, count in missing.items()]

    def begin_of(self, stall: Stall) -> int:
        """The first operation at which a stalled run differs from the reference run."""
        if isinstance(stall, Leg):
            return stall.number
        own = self.operations[stall.device]
        return own[stall.position] if stall.position < len(own) else len(self)
