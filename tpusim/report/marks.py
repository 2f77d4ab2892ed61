"""The marks of a timeline: rectangles on lanes, few enough to be drawn.

A device is a band one unit high: compute on top, its waits below, then its copies on as many thin lanes as
they need.  A page draws its marks again for each frame while the reader pans, so there are two sets of them where
there are many: every single one, for a closer look, and an overview for the whole run, in which a lane is cut into
equal parts of time and each part shows what most of it was, as solid as it is full.  Beyond ``MOST_MARKS`` the
closer look is made in the same way, with as fine a cut as that number allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from tpusim.report.overview import cut
from tpusim.report.style import LOOKS
from tpusim.specs import SemaphoreType
from tpusim.trace.lanes import pack
from tpusim.trace.lines import Places
from tpusim.trace.log import Wait
from tpusim.trace.names import Names
from tpusim.units import format_bytes

if TYPE_CHECKING:
    from tpusim.machine.dma import Copy
    from tpusim.trace.steps import Step, Steps

MOST_MARKS = 50_000
"""Marks of the closer look."""
FEW_MARKS = 2_500
"""Marks that a browser without a graphics card draws in a twentieth of a second."""
COMPUTE_LANE = (0.04, 0.26)
WAIT_LANE = (0.28, 0.48)
DMA_LANES = (0.50, 0.94)
_PARTS, _LANES = 4096, 6
"""Of the overview: the finest cut of the run, and lanes for the copies of a device."""


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
    """What a timeline shows of the run's devices ``devices``, a row each from the top."""

    devices: list[int]
    all_devices: int
    close: list[Mark] = field(default_factory=list)
    """Every mark, or as many as can be held."""
    overview: list[Mark] | None = None
    """The same in few; ``None`` where they are few already."""
    merged: int = 0
    """How many marks were made into fewer for the closer look."""

    @property
    def left_out(self) -> list[int]:
        """The devices that are not shown."""
        return sorted(set(range(self.all_devices)) - set(self.devices))


def marks(steps: Steps, devices: Sequence[int] | None = None, most: int = MOST_MARKS, few: int = FEW_MARKS) -> Marks:
    """The marks of some devices, all by default: at most about ``most`` of them, and ``few`` as an overview."""
    shown = Marks(list(range(len(steps.of)) if devices is None else devices), len(steps.of))
    maker = _Maker(steps, shown.devices)
    everything = [*maker.cores(), *maker.copies()]
    shown.close = everything
    if len(everything) > most:
        shown.close, shown.merged = _fewer(everything, most), len(everything)
    if len(everything) > few:
        shown.overview = _fewer(everything, few, _LANES)
    return shown


def _fewer(everything: list[Mark], most: int, lanes: int | None = None) -> list[Mark]:
    """At most about ``most`` marks, one for each lane at least; ``lanes``: of the copies of a device, ``None``: all.

    A kind that is nowhere most of a part keeps its longest mark, so that all kinds of the run are seen.
    """
    end_ps = max(mark.to_ps for mark in everything)
    low, high = DMA_LANES

    def lane(mark: Mark) -> tuple[int, float]:
        row, place = int(mark.top), mark.top % 1
        return row, place if lanes is None or place < low else low + int((place - low) / (high - low) * lanes + 1e-9)

    ordered = sorted(everything, key=lambda mark: (lane(mark), mark.from_ps))
    by_lane = [list(own) for _, own in groupby(ordered, lane)]
    parts = _PARTS
    while True:
        found = [mark for own in by_lane for mark in cut(own, parts, end_ps)]
        if len(found) <= most or (parts == 1 and lanes == 1):
            lost = {mark.kind for mark in everything} - {mark.kind for mark in found}
            of_kind = [[mark for mark in everything if mark.kind == kind] for kind in sorted(lost)]
            return found + [max(own, key=lambda mark: mark.to_ps - mark.from_ps) for own in of_kind]
        if parts == 1:
            return _fewer(everything, most, 1)
        parts //= 2


class _Maker:
    def __init__(self, steps: Steps, devices: list[int]) -> None:
        self.steps = steps
        self.devices = devices
        self.names = Names(steps.result.place)
        self.place = Places()

    def line(self, site: object) -> str:
        return str(self.place(site) or "")

    def cores(self) -> Iterable[Mark]:
        for row, device in enumerate(self.devices):
            for step in self.steps.of[device]:
                kind, text = self._meaning(step)
                if kind:
                    top, bottom = WAIT_LANE if LOOKS[kind].lane == "wait" else COMPUTE_LANE
                    begin, end = step.from_ps, step.to_ps
                    yield Mark(kind, begin, end, row + top, row + bottom, device, text, self.line(step.site))

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
                is_copy = event.semaphore.spec.kind is SemaphoreType.DMA
                return "copy_wait" if is_copy else "signal_wait", f"wait for {event.semaphore}, for ever"
            arrival = self.steps.ender(event)
            kind = "signal_wait" if arrival is None or arrival[3] == "signal" else "copy_wait"
            return kind, f"wait for {event.semaphore}"
        return "", ""

    def copies(self) -> Iterable[Mark]:
        by_device: dict[int, list[Copy]] = {device: [] for device in self.devices}
        for copy in self.steps.result.trace.copies:
            if copy.core.device in by_device:
                by_device[copy.core.device].append(copy)
        for row, copies in enumerate(by_device.values()):
            lanes = pack((copy.issued_ps, self._ended(copy)) for copy in copies)
            low, high = DMA_LANES
            height = (high - low) / (max(lanes, default=0) + 1)
            for copy, lane in zip(copies, lanes, strict=True):
                top = row + low + lane * height
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
