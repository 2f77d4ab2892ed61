"""What each core did at every instant: the steps that all analysis of a run is made of.

The steps of a device follow on each other without gap or overlap from 0 to the end of the run, so whatever
is summed over them adds up to devices times the run's time.  What the log does not hold (scalar work, and
loads and stores where they were not kept) is a step of kind ``other``.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tpusim.trace.flows import Arrival, arrivals
from tpusim.trace.log import Wait

if TYPE_CHECKING:
    from tpusim.machine.core import Core
    from tpusim.machine.semaphores import Semaphore
    from tpusim.result import Result

Doing = Literal["compute", "load", "store", "start", "signal", "wait", "blocked", "delay", "other", "outside", "idle"]
"""``wait``: one that found what it needed; ``blocked``: one that did not; ``outside``: before, between and after
calls that follow; ``idle``: after the last call, until the slowest device has ended."""


class Step(NamedTuple):
    """One thing that a core did; ``event`` is what the log has of it."""

    device: int
    doing: Doing
    from_ps: int
    to_ps: int
    site: Any = None
    event: Any = None

    @property
    def length_ps(self) -> int:
        """How long it took."""
        return self.to_ps - self.from_ps


class Steps:
    """The steps of every device of a run, and what ended each wait."""

    def __init__(self, result: Result) -> None:
        self.end_ps = int(result.time)
        self.result = result
        self._arrivals: dict[Semaphore, list[Arrival]] = arrivals(result.trace)
        raw: list[list[Step]] = [[] for _ in result.cores]
        _collect(result, raw)
        inside = [[(begin, end) for _, begin, end in own] for own in calls_of(result, self.end_ps)]
        self.of: list[list[Step]] = [
            _without_gaps(core.device, raw[core.device], inside[core.device], self.end_ps) for core in result.cores
        ]
        """For each device its steps in order."""

    def ender(self, wait: Wait) -> Arrival | None:
        """What arrived at the instant at which a blocked wait ended; ``None`` for one that did not block."""
        if wait.to_ps - wait.from_ps <= wait.core.wait_ps:
            return None
        got = self._arrivals.get(wait.semaphore, [])
        at = bisect_left(got, wait.to_ps, key=lambda arrival: arrival[0])
        return got[at] if at < len(got) and got[at][0] == wait.to_ps else None


def _collect(result: Result, raw: list[list[Step]]) -> None:
    log = result.trace
    for compute in log.computes:
        doing: Doing = "delay" if compute.operation == "delay" else "compute"
        at = compute.core.device
        raw[at].append(Step(at, doing, compute.from_ps, compute.to_ps, compute.site, compute))
    for access in log.accesses:
        at = access.core.device
        raw[at].append(Step(at, access.kind, access.from_ps, access.to_ps, access.site, access))
    for copy in log.copies:
        at, issued = copy.core.device, copy.issued_ps
        raw[at].append(Step(at, "start", issued, issued + copy.core.issue_ps, copy.site, copy))
    for signal in log.signals:
        at, sent = signal.core.device, signal.sent_ps
        raw[at].append(Step(at, "signal", sent - signal.core.machine.timing.signal_ps, sent, signal.site, signal))
    for wait in log.waits:
        at = wait.core.device
        doing = "blocked" if wait.to_ps - wait.from_ps > wait.core.wait_ps else "wait"
        raw[at].append(Step(at, doing, wait.from_ps, wait.to_ps, wait.site, wait))
    for core in result.cores:
        if core.blocked is not None:
            since = core.blocked.since_ps
            raw[core.device].append(
                Step(core.device, "blocked", since, max(since, int(result.time)), core.blocked.site, core.blocked)
            )


def calls_of(result: Result, end_ps: int) -> list[list[tuple[str, int, int]]]:
    """For each device the calls it was in: name, from, to; ``end_ps`` where it never left."""
    calls: list[list[tuple[str, int, int]]] = [[] for _ in result.cores]
    entered: dict[Core, tuple[str, int]] = {}
    for stay in result.trace.stays:
        if stay.buffers is None:
            if stay.has_entered:
                entered[stay.core] = stay.call.name, stay.at_ps
            elif stay.core in entered:
                calls[stay.core.device].append((*entered.pop(stay.core), stay.at_ps))
    for core, (name, since) in entered.items():
        calls[core.device].append((name, since, max(end_ps, since)))
    return calls


def _without_gaps(device: int, steps: list[Step], calls: list[tuple[int, int]], end_ps: int) -> list[Step]:
    """In order of time, cut to the run, each gap filled."""
    filled: list[Step] = []
    reached = 0
    # a wait that only looks is logged with a signal that takes no time: it is cut to nothing
    for step in sorted(steps, key=lambda step: (step.to_ps, step.from_ps)):
        begin, end = max(step.from_ps, reached), min(step.to_ps, end_ps)
        if end <= begin:
            continue
        if begin > reached:
            filled += _gap(device, reached, begin, calls, end_ps)
        filled.append(step if (begin, end) == (step.from_ps, step.to_ps) else step._replace(from_ps=begin, to_ps=end))
        reached = end
    if reached < end_ps:
        filled += _gap(device, reached, end_ps, calls, end_ps)
    return filled


def _gap(device: int, begin: int, end: int, calls: list[tuple[int, int]], end_ps: int) -> list[Step]:
    found: list[Step] = []
    at = begin
    last = calls[-1][1] if calls else 0
    for entered, exited in calls:
        if exited <= at or entered >= end:
            continue
        if entered > at:
            found.append(Step(device, "outside", at, entered))
            at = entered
        found.append(Step(device, "other", at, min(exited, end)))
        at = min(exited, end)
    if at < end:
        found.append(Step(device, "idle" if at >= last and end == end_ps else "outside", at, end))
    return found
