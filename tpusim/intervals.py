"""How far a predicted time can be trusted: its interval, and the figures it rests on.

Most of what decides the time of a DMA program is not published, so every number of a chip has an interval, and a
time has to inherit them.  Each number that a run used is set to both ends of its interval and the recorded run is
timed again (:mod:`tpusim.retime`): a finite difference that knows what a formula would not, that a latency hidden
behind compute does not matter until it is long enough to show.  The differences, taken as independent, add up in
quadrature, together with what no number accounts for: 4 % of the compute, and 0.3 us (the errors that a model of
this form had against published timings where its inputs were known).

A run that takes long to time again is timed only twice, with all numbers at their quicker and all at their slower
end; that interval is wider, since not everything is off in one direction.  How long is counted, not measured, so
that the same run has the same interval everywhere: operations, and solves of the fabric, each worth 50 of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from tpusim.chips import ChipSpec, Quantity
from tpusim.machine.timing import copy_numbers
from tpusim.retime import Recording
from tpusim.specs import MemorySpace
from tpusim.units import Duration

if TYPE_CHECKING:
    from tpusim.machine.core import Core
    from tpusim.options import Place
    from tpusim.trace.log import EventLog

COMPUTE_SHARE = 0.04
"""Part by which compute is off where its cycles are the compiler's own."""
COMPUTE = "compute cost"
"""The name under which the interval of the default compute cost is listed."""
FLOOR_PS = 300_000
"""What a short run is off by, whatever its numbers."""
MOST_SINGLY = 25_000
"""Operations and solves, counted as one, of a run that is timed for each number by itself."""
MOST_AT_ALL = 500_000
"""The same of a run that gets an interval: some 5 seconds to time it again."""
_SOLVE = 50
"""Operations that take as long as a solve of the fabric (6 us each against 140 to 540 us for 16 to 64 devices that
all send to all)."""

_BASES = {"high": "datasheet", "medium": "datasheet", "low": "datasheet", "override": "given"}
_ORDER = ("measured", "fitted", "compiler", "datasheet", "estimate", "given")


class Effect(NamedTuple):
    """What a number's interval does to a time."""

    name: str
    basis: str
    shorter_ps: int
    longer_ps: int

    @property
    def size_ps(self) -> int:
        """The larger of the two."""
        return max(self.shorter_ps, self.longer_ps)


@dataclass(frozen=True)
class Interval:
    """From ``low`` to ``high``, what contributes most to it first, and the kinds of figures behind the time.

    ``effects`` is empty where all numbers were moved together.
    """

    low: Duration
    high: Duration
    effects: tuple[Effect, ...]
    basis: tuple[str, ...]

    def __str__(self) -> str:
        """``3.0 to 4.1 us``."""
        return f"{self.low.us:.4g} to {self.high.us:.4g} us"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        effects = [
            {"name": e.name, "basis": e.basis, "shorter_us": e.shorter_ps / 1e6, "longer_us": e.longer_ps / 1e6}
            for e in self.effects
        ]
        return {"low_us": self.low.us, "high_us": self.high.us, "basis": list(self.basis), "effects": effects}


def interval_of(log: EventLog, cores: tuple[Core, ...], place: Place, time: Duration) -> Interval | None:
    """The interval of a complete run; ``None`` where timing it again takes more than :data:`MOST_AT_ALL` operations."""
    effort = effort_of(log, cores)
    if effort > MOST_AT_ALL:
        return None
    recording = Recording(log, cores, place)
    busiest = max((core.compute_ps for core in cores), default=0)
    floor = (FLOOR_PS, round(COMPUTE_SHARE * min(busiest, time)))
    used = used_numbers(log, place)
    scales = compute_scales(log, cores)
    ends = [recording.time_ps(place.chip, compute=scale) for scale in scales] if scales is not None else []
    singly = effort <= MOST_SINGLY
    return spread(recording.time_ps, place.chip, used, floor, singly=singly, compute_ends=ends)


def effort_of(log: EventLog, cores: tuple[Core, ...]) -> int:
    """What it takes to time a run again: operations, and solves, each counted as some."""
    operations = len(log.copies) + len(log.waits) + len(log.signals) + len(log.computes)
    return operations + _SOLVE * cores[0].machine.fabric.solves if cores else operations


def compute_scales(log: EventLog, cores: tuple[Core, ...]) -> tuple[float, float] | None:
    """By what the compute of a run may be shorter and longer; ``None`` where its cycles are not estimates."""
    ranges = cores[0].machine.compute_ranges if cores else {}
    total = low = high = 0
    for compute in log.computes:
        duration = compute.to_ps - compute.from_ps
        least, most = ranges.get(duration, (duration, duration))
        total, low, high = total + duration, low + least, high + most
    return (low / total, high / total) if ranges and total else None


def spread(
    time_ps: Callable[[ChipSpec], float],
    chip: ChipSpec,
    used: Mapping[str, Quantity],
    floor: Sequence[int],
    *,
    singly: bool = True,
    compute_ends: Sequence[float] = (),
) -> Interval:
    """The interval of anything that takes ``time_ps`` on a chip and uses some of its numbers.

    ``floor``: picoseconds by which it is off whatever the numbers, each for a reason of its own.  ``compute_ends``:
    what it takes with the least and the most compute, where that is an estimate.
    """
    time = time_ps(chip)
    ends: dict[str, list[float]] = {
        path: [time_ps(other) for other in chips] for path, chips in chips_at_ends(chip, used, singly=singly).items()
    }
    if compute_ends:
        ends[COMPUTE] = list(compute_ends)
    effects = []
    for path, times in ends.items():
        shorter, longer = max(0, round(time - min(times))), max(0, round(max(times) - time))
        if shorter or longer:
            effects.append(Effect(path, basis_name(used[path]) if path in used else "compiler", shorter, longer))
    effects.sort(key=lambda effect: -effect.size_ps)
    low = round(time) - _quadrature(*(effect.shorter_ps for effect in effects), *floor)
    high = round(time) + _quadrature(*(effect.longer_ps for effect in effects), *floor)
    return Interval(Duration(max(0, low)), Duration(high), tuple(effects) if singly else (), basis_of(used.values()))


def chips_at_ends(chip: ChipSpec, used: Mapping[str, Quantity], *, singly: bool) -> dict[str, list[ChipSpec]]:
    """The chip with each number that is not known exactly at the ends of its interval, by name of the number.

    Not ``singly``: all numbers together, at their quicker and at their slower end; the name is empty.
    """
    moved = {path: quantity for path, quantity in used.items() if quantity.low is not None or quantity.high is not None}
    if singly:
        return {p: [chip.with_values({p: end}) for end in sorted(set(q.interval))] for p, q in moved.items()}
    ends = ({p: q.interval[is_slow != _is_speed(q)] for p, q in moved.items()} for is_slow in (False, True))
    return {"": [chip.with_values(values) for values in ends]}


def _is_speed(quantity: Quantity) -> bool:
    """Whether more of it is quicker."""
    return quantity.unit in ("B/s", "Hz")


def _quadrature(*parts: int) -> int:
    return round(sqrt(sum(part * part for part in parts)))


def basis_name(quantity: Quantity) -> str:
    """What a number is: measured, fitted, compiler, datasheet, estimate, or given by the user."""
    return _BASES.get(quantity.confidence, quantity.confidence)


def basis_of(used: Iterable[Quantity]) -> tuple[str, ...]:
    """The kinds of figures among the numbers used, the firmest first."""
    kinds = {basis_name(quantity) for quantity in used}
    return tuple(kind for kind in _ORDER if kind in kinds)


def used_numbers(log: EventLog, place: Place) -> dict[str, Quantity]:
    """The chip's numbers that a run's time can depend on, by name such as ``dma.issue``."""
    rows = dict(place.chip.rows())
    return {path: rows[path] for path in _used_paths(log, place) if path in rows}


def has_far_signals(log: EventLog, place: Place) -> bool:
    """Whether a signal leaves its device; one between cores of a device does not."""
    devices = place.devices
    return any(devices[signal.semaphore.device] != devices[signal.core.device] for signal in log.signals)


def _used_paths(log: EventLog, place: Place) -> Iterator[str]:
    yield "core.clock"
    kinds = {copy.route.kind for copy in log.copies}
    if log.copies:
        yield "dma.issue"
    for kind in sorted(kinds):
        yield from copy_numbers(kind)
    regions = {id(region): region for copy in log.copies for region in (copy.src_region, copy.dst_region)}
    quantity = place.chip.dma.short_run
    if any(r.wire_bytes_at(int(end)) != r.wire_bytes for end in quantity.interval for r in regions.values()):
        yield "dma.short_run"
    if any(MemorySpace.HBM in (copy.src.spec.space, copy.dst.spec.space) for copy in log.copies):
        yield "hbm.bandwidth"
    remote = has_far_signals(log, place)
    if remote or "remote" in kinds:
        yield from ("ici.link_bandwidth", "ici.hop_latency", "ici.die_to_die_bandwidth", "ici.die_to_die_latency")
    if remote:
        yield "ici.signal_latency"
    if log.signals:
        yield "sync.signal"
    if log.waits:
        yield "sync.wait"
    if log.computes:
        yield from ("core.control_step", "core.control_axis", "core.mxu_flops_per_cycle")
