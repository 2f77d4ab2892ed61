"""Where the time goes: every instant of every device, by what it did or what it waited for.

A blocked wait is cut by what it waited for was doing at the time.  For a copy: not yet started, start latency,
transfer (by the resource that set its pace), hops; for a signal: not yet sent, on its way.  So the time of a copy
counts only where it is exposed.  The parts add up to devices x time of the run, exactly.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tpusim.specs import SemaphoreType
from tpusim.trace.log import SignalSent, Wait
from tpusim.trace.rates import Use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpusim.machine.dma import Copy
    from tpusim.trace.steps import Step, Steps


class Cause(NamedTuple):
    """A part of the time: ``group`` is ``compute``, ``core``, ``exposed copy``, ``wait`` or ``idle``."""

    group: str
    what: str

    def __str__(self) -> str:
        return f"{self.group}: {self.what}" if self.what != self.group else self.group


@dataclass(frozen=True)
class Shares:
    """Picoseconds by cause, summed over the devices, and for each device."""

    total_ps: int
    by_cause: dict[Cause, int]
    by_device: list[dict[Cause, int]]

    def share(self, cause: Cause) -> float:
        """Its part of the whole, 0 to 1."""
        return self.by_cause.get(cause, 0) / self.total_ps if self.total_ps else 0.0


_PLAIN = {
    "compute": Cause("compute", "compute"),
    "load": Cause("compute", "loads and stores"),
    "store": Cause("compute", "loads and stores"),
    "other": Cause("core", "scalars, loads and stores not kept"),
    "start": Cause("core", "starting copies"),
    "signal": Cause("core", "signalling"),
    "wait": Cause("core", "waits that need not wait"),
    "delay": Cause("core", "delay"),
    "outside": Cause("idle", "between calls"),
    "idle": Cause("idle", "after its end"),
}


def shares(steps: Steps, use: Use | None = None) -> Shares:
    """Sum up the time of every device."""
    use = use or Use(steps.result)
    by_device: list[dict[Cause, int]] = []
    total: Counter[Cause] = Counter()
    for mine in steps.of:
        own: Counter[Cause] = Counter()
        for step in mine:
            for cause, length in causes_of(step, steps, use):
                own[cause] += length
        total.update(own)
        by_device.append(dict(own))
    return Shares(steps.end_ps * len(steps.of), dict(total.most_common()), by_device)


def causes_of(step: Step, steps: Steps, use: Use) -> Iterator[tuple[Cause, int]]:
    """What a step's time went to, with the picoseconds of each."""
    if step.doing != "blocked":
        yield _PLAIN[step.doing], step.length_ps
        return
    arrival = steps.ender(step.event) if isinstance(step.event, Wait) else None
    if arrival is None:
        yield Cause("wait", "for ever" if not isinstance(step.event, Wait) else "for its semaphore"), step.length_ps
        return
    source = arrival[2]
    phases = _signal_phases(source) if isinstance(source, SignalSent) else _copy_phases(source, use)
    at = step.from_ps
    for until, cause in phases:
        if until > at and at < step.to_ps:
            yield cause, min(until, step.to_ps) - at
            at = min(until, step.to_ps)
    if at < step.to_ps:
        yield cause, step.to_ps - at


def _signal_phases(signal: SignalSent) -> list[tuple[int, Cause]]:
    is_barrier = signal.semaphore.spec.kind is SemaphoreType.BARRIER
    what = "barrier" if is_barrier else "semaphore"
    late = Cause("wait", f"{what}: not signalled yet")
    return [(signal.sent_ps, late), (1 << 62, Cause("wait", f"{what}: signal on its way"))]


def _copy_phases(copy: Copy, use: Use) -> list[tuple[int, Cause]]:
    return [
        (copy.issued_ps + copy.core.issue_ps, Cause("wait", "copy not started yet by its sender")),
        (copy.begin_ps, Cause("exposed copy", "start latency")),
        (copy.read_ps, Cause("exposed copy", f"transfer, {use.binding(copy)}")),
        (1 << 62, Cause("exposed copy", "hop latency")),
    ]
