"""The critical path of a run: the chain of operations, across devices, that its time consists of.

It is walked backwards from the device that ended last.  A step of a core leads to the one before it; a wait
that blocked leads to what ended it: the copy's hops, its transfer, its start latency, then the core that
issued it, or the flight of a signal and the core that sent it.  So the links of the chain touch each other,
and their lengths add up to the time of the run.

Slack, for a link: how much sooner it could have ended before another chain would have taken over, which is
the shortest time that a core on the chain was blocked for it later on (other devices that do the same at the
same time are taken to shrink with it).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tpusim.trace.log import SignalSent, Wait
from tpusim.trace.steps import Doing, Step, Steps

if TYPE_CHECKING:
    from tpusim.machine.dma import Copy

LinkKind = Doing | Literal["latency", "transfer", "hops", "signal flight"]


class ChainLink(NamedTuple):
    """One piece of the critical path; ``event`` is the log's event it is part of, if any."""

    device: int
    kind: LinkKind
    from_ps: int
    to_ps: int
    site: Any
    event: Any
    slack_ps: int
    """How much sooner it could have ended before another chain took over; the run's time where none does."""

    @property
    def length_ps(self) -> int:
        """What it contributes to the time of the run."""
        return self.to_ps - self.from_ps


def critical_path(steps: Steps) -> list[ChainLink]:
    """The chain from 0 to the end of the run, first link first; costs O(steps on it x log)."""
    if not steps.of or steps.end_ps <= 0:
        return []
    walk = _Walk(steps)
    while walk.at > 0:
        walk.back()
    return walk.chain[::-1]


class _Walk:
    """Where the walk back has come to."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.at = steps.end_ps
        self.slack = steps.end_ps
        self.device = max(range(len(steps.of)), key=lambda device: _busy_until(steps.of[device]))
        self.chain: list[ChainLink] = []
        self.exits = {
            stay.at_ps: stay.core.device
            for stay in steps.result.trace.stays
            if stay.buffers is None and not stay.has_entered
        }

    def back(self) -> None:
        step = self._step_before()
        wait = step.event
        if step.doing == "blocked" and isinstance(wait, Wait) and step.to_ps == self.at:
            arrival = self.steps.ender(wait)
            if arrival is not None:
                self.slack = min(self.slack, wait.to_ps - wait.from_ps - wait.core.wait_ps)
                source, leg = arrival[2], arrival[3]
                if isinstance(source, SignalSent):
                    self._signal(source)
                else:
                    self._copy(source, leg)
                return
        other = self.exits.get(self.at, self.device) if step.doing == "outside" else self.device
        if other != self.device and step.to_ps == self.at:
            self.device = other  # the group went on when its last device had come
            return
        self._link(step.device, step.doing, step.from_ps, step.site, step.event)

    def _step_before(self) -> Step:
        mine = self.steps.of[self.device]
        return mine[bisect_left(mine, self.at, key=lambda step: step.to_ps)]

    def _copy(self, copy: Copy, leg: str) -> None:
        device = copy.core.device
        if leg == "receive":
            self._link(device, "hops", copy.read_ps, copy.site, copy)
        self._link(device, "transfer", copy.begin_ps, copy.site, copy)
        self._link(device, "latency", copy.issued_ps + copy.core.issue_ps, copy.site, copy)
        self.device = device

    def _signal(self, signal: SignalSent) -> None:
        self._link(signal.core.device, "signal flight", signal.sent_ps, signal.site, signal)
        self.device = signal.core.device

    def _link(self, device: int, kind: LinkKind, begin: int, site: Any, event: Any) -> None:
        if begin < self.at:
            self.chain.append(ChainLink(device, kind, begin, self.at, site, event, self.slack))
            self.at = begin


def _busy_until(steps: list[Step]) -> int:
    return next((step.to_ps for step in reversed(steps) if step.doing not in ("idle", "outside")), 0)
