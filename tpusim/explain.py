"""What a colleague would say about a run: what it waits for, and what would make it faster.

How full a link is and where the time went are read from the events.  Every other number comes from a run of
the same program on a machine that is different in one thing: the recorded operations are executed again, with
contention solved anew (:mod:`tpusim.retime`).  No rule of thumb has a number here.

The numbers of a chip are known only so well, and a saving inherits that: the run and its what-if are both timed with
each number at the ends of its interval, and what no number accounts for is added (:mod:`tpusim.intervals`).  A
saving that may be none at all within that is said to be undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import hypot
from typing import TYPE_CHECKING, Any

from tpusim.findings import CONTINUABLE, Severity
from tpusim.intervals import (
    COMPUTE,
    FLOOR_PS,
    MOST_AT_ALL,
    chips_at_ends,
    compute_scales,
    effort_of,
    has_far_signals,
    used_numbers,
)
from tpusim.machine.timing import copy_numbers
from tpusim.retime import Recording
from tpusim.topology import link, link_index
from tpusim.trace.critical import critical_path
from tpusim.trace.lines import line_uses
from tpusim.trace.names import Names
from tpusim.trace.rates import Use, rate_changes
from tpusim.trace.shares import shares
from tpusim.trace.steps import Steps
from tpusim.units import Duration

if TYPE_CHECKING:
    from tpusim.chips import ChipSpec
    from tpusim.machine.flows import Resource
    from tpusim.machine.machine import Machine
    from tpusim.result import Result
    from tpusim.topology import Slice

_ENDLESS = 1e17
_FULL = 0.98
_WORTH_SAYING = 0.01
_MOST_SINGLY = 2_500
"""Operations and solves of a run whose savings are looked at for each number of the chip by itself."""


@dataclass(frozen=True)
class WhatIf:
    """A run on a machine that is different in one thing: ``change``, and what it would take."""

    change: str
    time: Duration
    saved: float
    """Share of the run's time that it would save; negative where it would take longer."""
    could_save: tuple[float, float] | None = None
    """The interval of ``saved``: both runs with the chip's numbers at the ends of theirs; ``None`` where not known."""

    @property
    def is_decided(self) -> bool:
        """Whether it saves something, or costs something, wherever the numbers lie."""
        return self.could_save is not None and (self.could_save[0] > 0 or self.could_save[1] < 0)

    @property
    def saving(self) -> str:
        """``49% (47 to 51%)``."""
        if self.could_save is None:
            return f"{self.saved:.0%}"
        low, high = (round(100 * end) for end in self.could_save)
        return f"{self.saved:.0%} ({low} to {high}%)"

    def __str__(self) -> str:
        return f"{self.change}: {self.time}, {self.saving} less"


@dataclass(frozen=True)
class Explanation:
    """``sentences``, most important first, and all what-if runs, largest saving first."""

    sentences: tuple[str, ...]
    what_ifs: tuple[WhatIf, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        runs = [
            {
                "change": run.change, "time_us": run.time.us, "saved": run.saved, "could_save": run.could_save,
                "is_decided": run.is_decided,
            }
            for run in self.what_ifs
        ]  # fmt: skip
        return {"sentences": list(self.sentences), "what_ifs": runs}


def explain(result: Result) -> Explanation:
    """Explain a run; each what-if takes a few times as long as the run took without its arrays."""
    steps = Steps(result)
    use = Use(result)
    runs = what_ifs(result)
    said = [_head(result), *_busiest(result, runs), *_where(steps, use), *_path(steps), *_help(result, runs)]
    return Explanation(tuple(said), tuple(runs))


def what_ifs(result: Result) -> list[WhatIf]:
    """What the run would take if one thing were different, largest saving first.

    Empty for a run that stopped on its way, and for one under faults or a schedule of its own.
    """
    if not result.is_complete or not result.time or result.token is not None:
        return []
    recording = Recording(result.trace, result.cores, result.place)
    chip = result.place.chip
    doubt = _Doubt(result, recording)
    found: list[WhatIf] = []

    def run(change: str, values: Mapping[str, float] | None = None, **how: Any) -> None:
        def changed(chip: ChipSpec, compute: float) -> int:
            return recording.time_ps(chip.with_values(values) if values else chip, **{"compute": compute, **how})

        time = Duration(changed(chip, 1.0))
        found.append(WhatIf(change, time, 1 - time / result.time, doubt.of(changed)))

    kinds = sorted({copy.route.kind for copy in result.trace.copies})
    if result.links:
        run("links without a limit", {"ici.link_bandwidth": _ENDLESS})
        name, busiest = max(result.links.items(), key=_fullness)
        index = _index_of(result, busiest)
        run(f"{name} alone without a limit", prepare=lambda machine: _widen(machine, [index], 1 << 20))
        one_way = _one_way(result)
        if one_way:
            run("both directions of the links used", prepare=lambda machine: _widen(machine, one_way, 2))
    has_signals = has_far_signals(result.trace, result.place)
    if result.links or has_signals:
        run("no hop latency", {"ici.hop_latency": 0})
    if has_signals:
        run("no latency of signals between devices", {"ici.signal_latency": 0})
    if kinds:
        numbers = [copy_numbers(kind) for kind in kinds]
        run("no start latency of copies", {latency: 0 for latency, _ in numbers})
        run("DMA engines without a limit", {rate: _ENDLESS for _, rate in numbers})
    if result.hbms:
        run("HBM without a limit", {"hbm.bandwidth": _ENDLESS})
    if result.trace.computes:
        run("compute for nothing", compute=0.0)
    return sorted(found, key=lambda what: -what.saved)


class _Doubt:
    """How far a saving can be trusted: the run and its what-if with the numbers of the chip at the same ends."""

    def __init__(self, result: Result, recording: Recording) -> None:
        self.chip, self.time = result.place.chip, int(result.time)
        effort = effort_of(result.trace, result.cores)
        self.is_known = effort <= MOST_AT_ALL
        if not self.is_known:
            return
        used = used_numbers(result.trace, result.place)
        ends = chips_at_ends(self.chip, used, singly=effort <= _MOST_SINGLY)
        machines = {name: [(chip, 1.0) for chip in chips] for name, chips in ends.items()}
        scales = compute_scales(result.trace, result.cores)
        if scales is not None:
            machines[COMPUTE] = [(self.chip, scale) for scale in scales]
        self.ends = [[(m, recording.time_ps(m[0], compute=m[1])) for m in each] for each in machines.values()]

    def of(self, changed: Callable[[ChipSpec, float], int]) -> tuple[float, float] | None:
        """The ends of what is saved where the run takes ``changed`` instead; ``None`` where that takes too long."""
        if not self.is_known:
            return None
        saved = 1 - changed(self.chip, 1.0) / self.time
        floor = FLOOR_PS / self.time
        less, more = [floor], [floor]
        for machines in self.ends:
            at_ends = [1 - changed(*machine) / max(time, 1) for machine, time in machines]
            less.append(max(0.0, saved - min(at_ends, default=saved)))
            more.append(max(0.0, max(at_ends, default=saved) - saved))
        return saved - hypot(*less), min(1.0, saved + hypot(*more))


def _fullness(named: tuple[str, Resource]) -> tuple[float, str]:
    name, resource = named
    return resource.busy_bytes / resource.capacity, name


def _index_of(result: Result, resource: Resource) -> int:
    links = result.cores[0].machine.wiring.links
    return next(index for index, each in links.items() if each is resource)


def _widen(machine: Machine, indices: list[int], times: int) -> None:
    for index in indices:
        machine.wiring.link(index).capacity *= times


def _one_way(result: Result) -> list[int]:
    """Links that carried something while their way back carried nothing."""
    slice_, used = result.place.slice, _used_links(result)
    return sorted(index for index in used if _back(slice_, index) not in used)


def _used_links(result: Result) -> set[int]:
    return {index for index, each in result.cores[0].machine.wiring.links.items() if each.busy_bytes}


def _back(slice_: Slice, index: int) -> int:
    there = link(slice_, index)
    if there.kind == "d2d":
        return index + there.direction  # the two of a chip are numbered one after the other
    return link_index(slice_, slice_.chip_at(there.target), there.axis, -there.direction)


def full_share(result: Result, resource: Resource) -> float:
    """The share of the run's time in which a resource was full."""
    changes = rate_changes(result).get(resource, [])
    ends = [at for at, _ in changes[1:]] + [int(result.time)]
    full = sum(end - at for (at, rate), end in zip(changes, ends, strict=True) if rate >= _FULL * resource.capacity)
    return full / int(result.time) if result.time else 0.0


def _head(result: Result) -> str:
    errors = sum(finding.severity is Severity.ERROR for finding in result.findings)
    if not result.is_complete:
        stopped = next((f.kind for f in result.findings if f.kind not in CONTINUABLE), "unfinished")
        return f"The run stopped after {result.time}: {stopped}."
    wrong = f" {errors} finding{'s say' if errors > 1 else ' says'} that it is not right yet." if errors else ""
    if result.lower_bound is None:
        return f"It takes {result.time}; no lower bound of it is known.{wrong}"
    if result.ratio is None:
        return f"It takes {result.time}; its lower bound is 0, no device has to send anything.{wrong}"
    return f"It takes {result.time}, {result.ratio:.2f} times its lower bound of {result.lower_bound}.{wrong}"


def _busiest(result: Result, runs: list[WhatIf]) -> list[str]:
    said = []
    names = Names(result.place)
    memories = {f"the HBM of chip {names.memory(int(key.split()[-1]))}": each for key, each in result.hbms.items()}
    for resources in (result.links, memories):
        if not resources or not result.time:
            continue
        name, busiest = max(resources.items(), key=_fullness)
        mean = busiest.busy_bytes / busiest.capacity / result.time.s
        full = full_share(result, busiest)
        if full >= _WORTH_SAYING:
            said.append(f"{name[0].upper()}{name[1:]} is full {full:.0%} of the time.")
        elif mean >= 0.05:
            said.append(f"{name[0].upper()}{name[1:]} is never full; {mean:.0%} of what it could carry is used.")
    both = next((run for run in runs if run.change.startswith("both directions")), None)
    if both is not None:
        saving = "both would save nothing"
        if both.saved >= _WORTH_SAYING:
            saving = f"both would save {both.saved:.0%}"
            if both.could_save is not None and not both.is_decided:
                saving = f"whether both would save anything is undecided: {both.saving}"
        used, one_way = _used_links(result), _one_way(result)
        what = "One direction of the links is used"
        if len(one_way) < len(used):
            what = f"{len(one_way)} of the {len(used)} links in use have nothing the other way"
        said.append(f"{what}; {saving}.")
    return said


def _where(steps: Steps, use: Use) -> list[str]:
    found = shares(steps, use)
    largest = [(cause, found.share(cause)) for cause in found.by_cause if found.share(cause) >= 0.1][:3]
    names = [f"{share:.0%} {cause}" for cause, share in largest]
    return [f"The time of a device goes to: {'; '.join(names)}."] if names else []


def _path(steps: Steps) -> list[str]:
    uses = line_uses(steps, critical_path(steps))
    on_path = sorted((item for item in uses.items() if item[0]), key=lambda item: -item[1].critical_ps)[:2]
    end = max(steps.end_ps, 1)
    parts = [f"{where} ({use.critical_ps / end:.0%})" for where, use in on_path if use.critical_ps / end >= 0.05]
    return [f"The critical path lies on {' and '.join(parts)}."] if parts else []


def _help(result: Result, runs: list[WhatIf]) -> list[str]:
    if not runs:
        return []
    large = [run for run in runs if run.saved >= _WORTH_SAYING]
    undecided = [run for run in large if run.could_save is not None and not run.is_decided]
    useful = [run for run in large if run not in undecided]
    said = []
    if useful:
        first, *others = useful
        said.append(f"What holds it back most: with {first.change} it would take {first.time}, {first.saving} less.")
        if others:
            rest = "; ".join(f"{run.change} {run.saving}" for run in others)
            said.append(f"By themselves these would save: {rest}.")
    else:
        said.append(f"No single change of the machine would {'certainly ' if undecided else ''}save 1 %.")
    if undecided:
        rest = "; ".join(f"{run.change} {run.saving}" for run in undecided)
        said.append(f"Undecided, less than the numbers of the chip can tell: {rest}.")
    idle = [run.change for run in runs if run.saved < _WORTH_SAYING and not run.change.startswith("both")]
    if idle:
        said.append(f"No use: {'; '.join(idle)}.")
    if any(run.could_save is None for run in runs):
        said.append("How sure these savings are would take too long to say: the run has too many operations.")
    return said
