"""What a token system reaches while one access is stalled, for many accesses at once.

Operations stand in the order of the reference run, which is a possible one.  Every wait is a threshold on the
sum of all that was ever added to its counter, so a stalled run is walked along that order: an operation of a
core that stands still is left out.  All stalls are columns of the same arrays, so an operation costs a few
NumPy calls on a row, whatever the number of stalls.  Up to its stall a column is the reference run itself;
therefore a chunk of columns, sorted by where they stall, begins at the first of these places.

A token that comes later in the order can let a core go on that stood still.  Then the walk is repeated for the
columns concerned, from the first wait that is satisfied now, by the cores that have moved alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpusim.judges.proof.tokens import Core, Question, Stall, TokenSystem

CHUNK = 4_096
"""Columns walked together: rows of 8 kB where sums are small, of which a core's first-level cache holds several."""

Row = np.ndarray[Any, np.dtype[Any]]

NOWHERE = np.iinfo(np.int32).max
"""Where a core stands that does not stand still."""


def reached(system: TokenSystem, questions: Sequence[Question]) -> list[bool]:
    """The answers.  Costs about operations x different stalls x 1 ns."""
    system.reduce()
    by_stall: dict[Stall, list[int]] = {}
    for number, question in enumerate(questions):
        by_stall.setdefault(question.stall, []).append(number)
    stalls = sorted(by_stall, key=system.begin_of)
    answers = np.zeros(len(questions), bool)
    devices = np.array([question.device for question in questions], np.intp)
    after = np.array([question.after for question in questions], np.int64)
    most = system.most
    values = np.zeros(system.counters, np.int16 if most < 1 << 14 else np.int32 if most < 1 << 30 else np.int64)
    at = 0
    for start in range(0, len(stalls), CHUNK):
        chunk = stalls[start : start + CHUNK]
        first = system.begin_of(chunk[0])
        for number in range(at, first):
            for counter, amount in system.effects[number]:
                values[counter] += amount
        at = first
        asked = np.array([number for stall in chunk for number in by_stall[stall]], np.intp)
        columns = np.array([column for column, stall in enumerate(chunk) for _ in by_stall[stall]], np.intp)
        answers[asked] = _Walk(system, chunk, values).ask(first, columns, devices[asked], after[asked])
    found: list[bool] = answers.tolist()
    return found


class _Walk:
    """A chunk of stalls, a column each; ``values`` are the sums of all counters where the first one begins."""

    def __init__(self, system: TokenSystem, stalls: Sequence[Stall], values: Row) -> None:
        self.system = system
        self.stalls = stalls
        self.values = values
        self.width = width = len(stalls)
        self.rows: dict[int, Row] = {}
        """For the counters met so far their sums in every column."""
        self.stands = np.full((system.devices, width), NOWHERE, np.int32)
        """For every core and column the operation before which the core stands still."""
        self.is_stalled = np.zeros((system.devices, width), bool)
        for column, stall in enumerate(stalls):
            if isinstance(stall, Core):
                self.is_stalled[stall.device, column] = True
        self._set_active(np.ones((system.devices, width), bool))

    def ask(self, first: int, columns: Row, devices: Row, after: Row) -> Row:
        """Whether each device, in its column, executes its operation ``after``; the walk begins at ``first``."""
        stops: defaultdict[int, list[int]] = defaultdict(list)
        shorts: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for column, stall in enumerate(self.stalls):
            if isinstance(stall, Core):
                stops[self.system.begin_of(stall)].append(column)
            else:
                shorts[stall.number] += [(counter, column, units) for counter, units in self.system.short(stall)]
        self._walk(first, stops, shorts, {})
        answers = np.zeros(len(columns), bool)
        asked = np.arange(len(columns))
        while True:
            found = self.stands[devices, columns] > after
            answers[asked] = found
            is_open = np.zeros(self.width, bool)
            is_open[columns[~found]] = True
            waiting = self._satisfied(is_open)
            if not waiting:
                return answers
            chosen = np.zeros(self.width, bool)
            for standing in waiting.values():
                chosen[standing] = True
            if 2 * np.count_nonzero(chosen) < self.width:
                place = self._narrow(chosen)
                waiting = {number: place[standing] for number, standing in waiting.items()}
                left = chosen[columns]
                asked, columns, devices, after = asked[left], place[columns[left]], devices[left], after[left]
            self._set_active(np.zeros((self.system.devices, self.width), bool))
            self._walk(min(waiting), {}, {}, waiting)

    # -- one walk -------------------------------------------------------------------------------

    def _walk(
        self,
        first: int,
        stops: Mapping[int, list[int]],
        shorts: Mapping[int, list[tuple[int, int, int]]],
        waiting: dict[int, Row],
    ) -> None:
        """Execute what can be, from operation ``first`` on.

        ``stops``: columns in which a core is stalled before an operation.  ``shorts``: (counter, column, units)
        that a copy does not bring.  ``waiting``: columns in which a core that stood before a wait may go on.
        """
        system, rows, moving, counts, active = self.system, self.rows, self.moving, self.counts, self.active
        devices, effects, thresholds = system.device, system.effects, system.threshold
        amounts, lacks = np.empty(self.width, self.values.dtype), np.empty(self.width, bool)
        add, multiply, less, both, count = np.add, np.multiply, np.less, np.logical_and, np.count_nonzero
        for number in range(first, len(system)):
            device = devices[number]
            if number in stops:
                self._stop(device, number, stops[number])
            if number in waiting:
                self._go_on(device, number, waiting.pop(number))
            if not moving[device]:
                if not (waiting or self.most):
                    return
                continue
            threshold = thresholds[number]
            if threshold:
                counter = effects[number][0][0]
                row = rows.get(counter)
                if row is None:
                    row = self._row(counter)
                less(row, threshold, out=lacks)
                both(lacks, active[device], out=lacks)
                if count(lacks):
                    self._stop(device, number, lacks.nonzero()[0])
                continue
            for counter, amount in effects[number]:
                row = rows.get(counter)
                if row is None:
                    row = self._row(counter)
                if amount == 1:
                    add(row, counts[device], out=row)
                elif amount:
                    multiply(counts[device], amount, out=amounts)
                    add(row, amounts, out=row)
            if number in shorts:
                for counter, column, units in shorts[number]:
                    self._row(counter)[column] -= units

    def _row(self, counter: int) -> Row:
        found = self.rows.get(counter)
        if found is None:
            found = self.rows[counter] = np.full(self.width, self.values[counter], self.values.dtype)
        return found

    def _stop(self, device: int, number: int, columns: Any) -> None:
        """A core stands still before an operation, in columns in which it moved up to here."""
        self.stands[device, columns] = number
        self.active[device, columns] = False
        self.counts[device, columns] = 0
        self.moving[device] -= len(columns)
        self.most -= len(columns)

    def _go_on(self, device: int, number: int, columns: Row) -> None:
        """A core that stood still before a wait goes on where the wait is satisfied."""
        free = columns[self._enough(number, columns)]
        self.stands[device, free] = NOWHERE
        self.active[device, free] = True
        self.counts[device, free] = 1
        self.moving[device] += len(free)
        self.most += len(free)

    def _enough(self, number: int, columns: Row) -> Row:
        """Whether a wait is satisfied in some columns."""
        enough: Row = self._row(self.system.effects[number][0][0])[columns] >= self.system.threshold[number]
        return enough

    def _set_active(self, active: Row) -> None:
        self.active = active
        self.counts = active.astype(self.values.dtype)
        self.moving = [int(count) for count in np.count_nonzero(active, axis=1)]
        self.most = sum(self.moving)

    # -- what comes after it --------------------------------------------------------------------

    def _satisfied(self, is_open: Row) -> dict[int, Row]:
        """For those open columns in which some wait is satisfied now, all waits before which a core stands."""
        devices, columns = np.nonzero((self.stands != NOWHERE) & ~self.is_stalled & is_open)
        numbers = self.stands[devices, columns]
        order = np.argsort(numbers, kind="stable")
        numbers, columns = numbers[order], columns[order]
        starts = np.nonzero(np.diff(numbers, prepend=-1))[0]
        standing = dict(zip(numbers[starts].tolist(), np.split(columns, starts[1:]), strict=False))
        chosen = np.zeros(self.width, bool)
        first = len(self.system)
        for number, part in standing.items():
            enough = part[self._enough(number, part)]
            if len(enough):
                chosen[enough] = True
                first = min(first, number)
        kept = {number: part[chosen[part]] for number, part in standing.items() if number >= first}
        return {number: part for number, part in kept.items() if len(part)}

    def _narrow(self, chosen: Row) -> Row:
        """Keep the chosen columns alone; gives their new places by the old ones."""
        self.width = int(np.count_nonzero(chosen))
        self.rows = {counter: row[chosen] for counter, row in self.rows.items()}
        self.stands = self.stands[:, chosen]
        self.is_stalled = self.is_stalled[:, chosen]
        place: Row = np.cumsum(chosen) - 1
        return place
