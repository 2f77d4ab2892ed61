"""Which start or signal satisfied which wait: what the arrows of a timeline show.

A semaphore is a counter without a memory of who added to it, so the pairing is by order: what arrived
first is taken first.  An arrow goes to the wait that took the last of what its source added.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple

from tpusim.trace.log import EventLog, SignalSent, Wait

if TYPE_CHECKING:
    from tpusim.machine.dma import Copy
    from tpusim.machine.semaphores import Semaphore


class Arrow(NamedTuple):
    """From a copy's start, or a signal, to the wait that took what it added."""

    source: Copy | SignalSent
    leg: Literal["send", "receive", "signal"]
    wait: Wait


Arrival = tuple[int, int, "Copy | SignalSent", Literal["send", "receive", "signal"]]
"""When it arrived in ps, how much, of what."""


def arrows(log: EventLog) -> list[Arrow]:
    """Every arrow of a run, semaphore by semaphore in the order of their first use."""
    waits: dict[Semaphore, list[Wait]] = {}
    for wait in log.waits:
        waits.setdefault(wait.semaphore, []).append(wait)
    return [arrow for semaphore, got in arrivals(log).items() for arrow in _match(got, waits.get(semaphore, []))]


def arrivals(log: EventLog) -> dict[Semaphore, list[Arrival]]:
    """What each semaphore got, in the order of time."""
    arrivals: dict[Semaphore, list[Arrival]] = {}
    for copy in log.copies:
        if copy.src_sem is not None and copy.read_ps >= 0:
            arrivals.setdefault(copy.src_sem, []).append((copy.read_ps, copy.src_region.nbytes, copy, "send"))
        if copy.written_ps >= 0:
            arrivals.setdefault(copy.dst_sem, []).append((copy.written_ps, copy.dst_region.nbytes, copy, "receive"))
    for signal in log.signals:
        arrivals.setdefault(signal.semaphore, []).append((_arrival_ps(signal), signal.amount, signal, "signal"))
    for got in arrivals.values():
        got.sort(key=itemgetter(0))
    return arrivals


def _arrival_ps(signal: SignalSent) -> int:
    core = signal.core
    target = signal.semaphore.device
    if target == core.device:
        return signal.sent_ps
    machine = core.machine
    return signal.sent_ps + machine.wiring.signal_ps(core.device, target)


def _match(arrivals: list[Arrival], waits: list[Wait]) -> list[Arrow]:
    found: list[Arrow] = []
    coming = iter(arrivals)
    left = 0
    source: Copy | SignalSent | None = None
    for wait in waits:
        need = wait.amount
        while need > 0:
            if left == 0:
                arrival = next(coming, None)
                if arrival is None:
                    return found
                _, left, source, leg = arrival
            taken = min(need, left)
            need -= taken
            left -= taken
            if left == 0 and source is not None:
                found.append(Arrow(source, leg, wait))
    return found
