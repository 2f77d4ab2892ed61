"""The marks of a timeline: rectangles on lanes, few enough to be drawn.

A device is a band one unit high: compute on top, its waits below, then its copies on as many thin lanes as
they need.  Beyond ``MOST_MARKS`` marks, those of one kind on one lane that begin in the same small part of
the run become one, as solid as it is full.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tpusim.report.style import LOOKS
from tpusim.trace.lanes import pack
from tpusim.trace.lines import Places
from tpusim.trace.log import Wait
from tpusim.trace.names import Names
from tpusim.units import format_bytes

if TYPE_CHECKING:
    from tpusim.machine.dma import Copy
    from tpusim.trace.steps import Step, Steps

MOST_MARKS = 50_000
MOST_DEVICES = 64
COMPUTE_LANE = (0.04, 0.26)
WAIT_LANE = (0.28, 0.48)
DMA_LANES = (0.50, 0.94)


class Mark(NamedTuple):
    """A rectangle: its kind is a key of ``LOOKS``, ``top`` and ``bottom`` are in devices, from the first one down."""

    kind: str
    from_ps: int
    to_ps: int
    top: float
    bottom: float
    device: int
    text: str
    line: str
    share: float = 1.0


@dataclass
class Marks:
    """What a timeline shows."""

    by_kind: dict[str, list[Mark]] = field(default_factory=dict)
    devices: int = 0
    hidden_devices: int = 0
    merged: int = 0
    """How many marks were made into fewer."""

    @property
    def count(self) -> int:
        """Marks to draw."""
        return sum(map(len, self.by_kind.values()))


def marks(steps: Steps, most: int = MOST_MARKS, most_devices: int = MOST_DEVICES) -> Marks:
    """The marks of the first devices of a run."""
    total = len(steps.of)
    shown = Marks(devices=min(total, most_devices), hidden_devices=max(0, total - most_devices))
    maker = _Maker(steps, shown.devices)
    everything = [*maker.cores(), *maker.copies()]
    for kind in LOOKS:
        shown.by_kind[kind] = []
    for mark in everything:
        shown.by_kind[mark.kind].append(mark)
    bins = 4096
    while shown.count > most and bins >= 1:
        shown.by_kind = {kind: list(_merged(found, steps.end_ps, bins)) for kind, found in shown.by_kind.items()}
        bins //= 2
    shown.merged = len(everything) if shown.count < len(everything) else 0
    return shown


class _Maker:
    def __init__(self, steps: Steps, devices: int) -> None:
        self.steps = steps
        self.devices = devices
        self.names = Names(steps.result.place)
        self.place = Places()

    def line(self, site: object) -> str:
        return str(self.place(site) or "")

    def cores(self) -> Iterable[Mark]:
        for mine in self.steps.of[: self.devices]:
            for step in mine:
                kind, text = self._meaning(step)
                if kind:
                    top, bottom = WAIT_LANE if LOOKS[kind].lane == "wait" else COMPUTE_LANE
                    at = step.device
                    yield Mark(kind, step.from_ps, step.to_ps, at + top, at + bottom, at, text, self.line(step.site))

    def _meaning(self, step: Step) -> tuple[str, str]:
        event = step.event
        if step.doing == "compute":
            return "compute", event.operation
        if step.doing in ("load", "store"):
            return "access", f"{step.doing} {event.region}"
        if step.doing == "start":
            return "core", f"start copy to {event.dst_region}"
        if step.doing == "signal":
            return "core", f"signal {event.semaphore} of {self.names.coords[event.semaphore.device]}"
        if step.doing == "blocked":
            if not isinstance(event, Wait):
                return "signal_wait", f"wait for {event.semaphore}, for ever"
            arrival = self.steps.ender(event)
            kind = "signal_wait" if arrival is None or arrival[3] == "signal" else "copy_wait"
            return kind, f"wait for {event.semaphore}"
        return "", ""

    def copies(self) -> Iterable[Mark]:
        by_device: list[list[Copy]] = [[] for _ in range(self.devices)]
        for copy in self.steps.result.trace.copies:
            if copy.core.device < self.devices:
                by_device[copy.core.device].append(copy)
        for device, copies in enumerate(by_device):
            lanes = pack((copy.issued_ps, self._ended(copy)) for copy in copies)
            low, high = DMA_LANES
            height = (high - low) / (max(lanes, default=0) + 1)
            for copy, lane in zip(copies, lanes, strict=True):
                top = device + low + lane * height
                yield from self._legs(copy, top, top + height * 0.88)

    def _legs(self, copy: Copy, top: float, bottom: float) -> Iterable[Mark]:
        device, end = copy.core.device, self._ended(copy)
        coords = self.names.coords
        text = (
            f"{copy.src_region} {coords[copy.src.device]} → {copy.dst_region} {coords[copy.dst.device]}, "
            f"{format_bytes(copy.dst_region.nbytes)}"
        )
        line = self.line(copy.site)
        transfer = "remote" if copy.route.kind == "remote" else "local"
        began = copy.begin_ps if copy.begin_ps >= 0 else end
        read = copy.read_ps if copy.read_ps >= 0 else end
        for kind, begin, until in (("latency", copy.issued_ps, began), (transfer, began, read), ("hops", read, end)):
            if until > begin:
                yield Mark(kind, begin, until, top, bottom, device, text, line)

    def _ended(self, copy: Copy) -> int:
        return copy.written_ps if copy.written_ps >= 0 else max(self.steps.end_ps, copy.issued_ps)


def _merged(found: list[Mark], end_ps: int, bins: int) -> Iterable[Mark]:
    """Marks of one kind that begin on one lane in one of ``bins`` parts of the run, as one mark each."""
    groups: dict[tuple[float, int], list[Mark]] = {}
    for mark in found:
        # at less than 256 parts the lanes of a device's copies are merged, too
        row = mark.top if bins >= 256 else float(mark.device)
        groups.setdefault((row, mark.from_ps * bins // max(end_ps, 1)), []).append(mark)
    for group in groups.values():
        if len(group) == 1:
            yield group[0]
            continue
        first = group[0]
        begin, until = min(mark.from_ps for mark in group), max(mark.to_ps for mark in group)
        filled = sum((mark.to_ps - mark.from_ps) * mark.share for mark in group) / max(until - begin, 1)
        top, bottom = min(mark.top for mark in group), max(mark.bottom for mark in group)
        lines = {mark.line for mark in group}
        line = first.line if len(lines) == 1 else f"{len(lines)} lines"
        text = f"several, {LOOKS[first.kind].title}"
        yield Mark(first.kind, begin, until, top, bottom, first.device, text, line, min(1.0, max(0.15, filled)))
