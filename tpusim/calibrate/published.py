"""A chip from published timings and the TPU compiler's own model of copies.

Three kinds of knowledge, the firmest last: what the compiler assumes of a copy; a link rate in the proportion to its
nameplate that another chip's shows; and what follows from measured rows.  Where rows show both a latency and the
compiler's value for it, the compiler's turns out too long; the same factor may apply where no row says so, and then
is the lower end of the interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tpusim.calibrate.fit import Fitted, Observation, Solution, fit
from tpusim.calibrate.rows import Fit, Like, Measurements, Prediction, Row, predict
from tpusim.chips import ChipSpec, Quantity, load_chip
from tpusim.errors import OptionError

Progress = Callable[[str], None]

_COMPILER = "libtpu 0.0.50.1, static LLO profile"
_LIKE_SHARE = 0.04
"""How far a proportion taken from another chip may be off."""


@dataclass(frozen=True)
class Calibration:
    """What one chip's rows gave: the numbers with their intervals, and what is left of each row."""

    chip: ChipSpec
    numbers: dict[str, Quantity]
    residuals_us: dict[str, float]


def chips_in(measured: Measurements) -> list[str]:
    """Chips for which the file says something."""
    named = [*(fit.chip for fit in measured.fit), *(line.chip for line in measured.compiler)]
    return list(dict.fromkeys([*named, *(like.chip for like in measured.like)]))


class Calibrator:
    """Numbers of shipped chips from a file of measurements; each fit is solved once.

    ``progress`` is told of each fit.
    """

    def __init__(self, measured: Measurements, progress: Progress = lambda text: None) -> None:
        self.measured = measured
        self.progress = progress
        self._rows = measured.by_key()
        self._solutions: dict[Fit, Solution] = {}

    def calibrate(self, name: str) -> Calibration:
        """The numbers of one chip; raises ``OptionError`` where the file says nothing about it."""
        measured = self.measured
        if name not in chips_in(measured):
            raise OptionError(f"nothing to calibrate {name} from. Possible: {', '.join(chips_in(measured))}")
        chip = load_chip(name)
        old = dict(chip.rows())
        numbers = self._from_compiler(name, old)
        for like in measured.like:
            if like.chip == name:
                numbers[like.number] = self._in_proportion(like, old)
        residuals: dict[str, float] = {}
        for group in measured.fit:
            if group.chip == name:
                solution = self._solve(group)
                source = f"fitted to published timings, rows {', '.join(group.rows)}"
                numbers |= {path: _quantity(old[path], found, source) for path, found in solution.numbers.items()}
                residuals |= solution.residuals_us
        return Calibration(with_quantities(chip, numbers), numbers, residuals)

    def _solve(self, group: Fit) -> Solution:
        found = self._solutions.get(group)
        if found is None:
            chip, rows = load_chip(group.chip), self._rows
            self.progress(f"{group.chip}: {', '.join(group.numbers)} from rows {', '.join(group.rows)}")
            observed = [observe(rows[key], rows, chip) for key in group.rows]
            found = self._solutions[group] = fit(chip, group.numbers, observed)
        return found

    def _shortest_share(self) -> float:
        """The least part of the compiler's latency that a measured one turned out to be; 1 where none was."""
        shares = [1.0]
        for line in self.measured.compiler:
            path = f"dma.start_latency_{line.direction}"
            for group in self.measured.fit:
                if group.chip == line.chip and path in group.numbers:
                    assumed = line.cycles / load_chip(line.chip).clock_hz
                    shares.append(self._solve(group).numbers[path].value / assumed)
        return min(shares)

    def _from_compiler(self, name: str, old: Mapping[str, Quantity]) -> dict[str, Quantity]:
        """Latencies and rates of the compiler's lines for a chip."""
        numbers: dict[str, Quantity] = {}
        clock, shortest = old["core.clock"].number, self._shortest_share()
        for line in self.measured.compiler:
            if line.chip != name:
                continue
            latency = line.cycles / clock
            both: dict[str, dict[str, Any]] = {
                f"dma.start_latency_{line.direction}": {"value": latency, "low": latency * shortest, "high": latency},
                f"dma.rate_{line.direction}": {"value": line.bytes_per_cycle * clock, "low": None, "high": None},
            }
            note = f"the compiler's model: {line.cycles} cycles, then {line.bytes_per_cycle} B a cycle"
            said = {"source": _COMPILER, "confidence": "compiler", "note": note}
            numbers |= {path: old[path].model_copy(update={**values, **said}) for path, values in both.items()}
        return numbers

    def _in_proportion(self, like: Like, old: Mapping[str, Quantity]) -> Quantity:
        """A number in the proportion that another chip's fitted one has."""
        theirs = dict(load_chip(like.of).rows())
        fitted = [self._solve(group) for group in self.measured.fit if group.chip == like.of]
        value = next((s.numbers[like.number].value for s in fitted if like.number in s.numbers), None)
        share = (theirs[like.number].number if value is None else value) / theirs[like.per].number
        mine = share * old[like.per].number
        return old[like.number].model_copy(
            update={
                "value": mine, "low": mine * (1 - _LIKE_SHARE), "high": mine * (1 + _LIKE_SHARE), "source": "tpusim",
                "confidence": "estimate", "note": f"{share:.3f} of {like.per}, as on {like.of}",
            }
        )  # fmt: skip


def observe(row: Row, rows: Mapping[str, Row], chip: ChipSpec) -> Observation:
    """A row, or its difference to the row it names, as an observation of ``chip``."""
    prediction, us = difference(row, rows, chip)
    sigma = row.sigma if row.less is None else max(row.sigma, rows[row.less].sigma)
    return Observation(name_of(row), us, sigma, prediction.time_ps, prediction.used)


def name_of(row: Row) -> str:
    """``3 - 2``: the row, and what is subtracted from it."""
    return row.key if row.less is None else f"{row.key} - {row.less}"


def difference(row: Row, rows: Mapping[str, Row], chip: ChipSpec | None = None) -> tuple[Prediction, float]:
    """What is predicted of a row, and the measured microseconds it stands for."""
    if row.less is None:
        return predict(row, chip), row.us
    other = rows[row.less]
    return predict(row, chip).minus(predict(other, chip)), row.us - other.us


def with_quantities(chip: ChipSpec, numbers: Mapping[str, Quantity]) -> ChipSpec:
    """The chip with these quantities."""
    groups: dict[str, dict[str, Quantity]] = {}
    for path, quantity in numbers.items():
        group, _, field = path.partition(".")
        groups.setdefault(group, {})[field] = quantity
    return chip.model_copy(update={g: getattr(chip, g).model_copy(update=f) for g, f in groups.items()})


def _quantity(old: Quantity, found: Fitted, source: str) -> Quantity:
    update = {"value": found.value, "low": found.low, "high": found.high, "note": ""}
    return old.model_copy(update={**update, "source": source, "confidence": "fitted"})
