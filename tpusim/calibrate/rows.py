"""Measured times as facts, and what the simulator predicts for each.

A prediction is recorded once: the workload is simulated on the row's slice and its log kept, so that the time under
other numbers of the chip costs no second run (:mod:`tpusim.retime`).  A pipelined product of many row blocks is
simulated for one and two of them and continued: the blocks of rows are alike.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpusim.calibrate.workloads import make
from tpusim.chips import ChipSpec, Quantity, load_chip
from tpusim.errors import OptionError
from tpusim.intervals import COMPUTE_SHARE, FLOOR_PS, Interval, spread, used_numbers
from tpusim.retime import Recording

XLA_SHARE = 0.15
"""Part by which a row is off whose schedule is XLA's and not known."""
_MOST_BLOCKS = 4
_OVERHEADS = {"op": "xla.op_overhead", "collective": "xla.collective_overhead"}


class Row(BaseModel):
    """One measured time, as ``benchmarks/measured.toml`` has it; times in microseconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    row: int
    key: str
    us: float = Field(gt=0)
    chip: str
    slice: str
    family: str
    grade: Literal["A", "B", "C"]
    timing: Literal["wall", "device", "slope"]
    source: str
    use: Literal["calibrate", "predict"]
    workload: str
    parameters: dict[str, Any] = Field(alias="with")
    less: str | None = None
    xla: Literal["op", "collective"] | None = None
    sigma_us: float | None = None
    shown: bool = False
    layout: str | None = None
    note: str = ""

    @property
    def sigma(self) -> float:
        """How sure the measurement is: 1 %, at least 0.1 us, unless it says so itself."""
        return self.sigma_us if self.sigma_us is not None else max(0.1, 0.01 * self.us)


class Fit(BaseModel):
    """Which numbers of a chip follow from which rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    chip: str
    numbers: tuple[str, ...]
    rows: tuple[str, ...]


class CompilerLine(BaseModel):
    """The TPU compiler's model of a copy: cycles before the first byte, then bytes a cycle."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    chip: str
    direction: str
    cycles: int
    bytes_per_cycle: int


class Like(BaseModel):
    """A number in the proportion to ``per`` that another chip's has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    chip: str
    number: str
    of: str
    per: str


class Unscored(BaseModel):
    """Published rows that cannot be predicted, and what is missing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: tuple[int, ...]
    missing: str


class Measurements(BaseModel):
    """A file of measured times."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sources: dict[str, str] = Field(default_factory=dict)
    row: tuple[Row, ...]
    fit: tuple[Fit, ...] = ()
    compiler: tuple[CompilerLine, ...] = ()
    like: tuple[Like, ...] = ()
    unscored: tuple[Unscored, ...] = ()

    def by_key(self) -> dict[str, Row]:
        """Rows by their keys."""
        return {row.key: row for row in self.row}


def load_measurements(path: str | Path) -> Measurements:
    """Read and check a file; raises ``OptionError``."""
    try:
        with Path(path).open("rb") as file:
            found = Measurements.model_validate(tomllib.load(file))
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} is not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise OptionError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    keys = found.by_key()
    wanted = [(row.key, row.less) for row in found.row if row.less is not None]
    wanted += [(f"the fit of {', '.join(fit.numbers)}", key) for fit in found.fit for key in fit.rows]
    for place, key in wanted:
        if key not in keys:
            raise OptionError(f"{path}: {place} names row {key!r}, which is not there")
    return found


@dataclass(frozen=True)
class Prediction:
    """The time of a row as a function of the chip: weighted recordings and constants."""

    chip: ChipSpec
    parts: tuple[tuple[float, Recording], ...]
    constants: tuple[tuple[float, str], ...]
    used: Mapping[str, Quantity]
    compute_ps: float
    xla_share: float
    findings: tuple[str, ...] = field(default=())

    def time_ps(self, chip: ChipSpec) -> float:
        """Picoseconds on a chip that differs in its numbers alone."""
        total = sum(weight * recording.time_ps(chip) for weight, recording in self.parts)
        rows = dict(chip.rows()) if self.constants else {}
        return total + sum(weight * rows[path].number * 1e12 for weight, path in self.constants)

    def minus(self, other: Prediction) -> Prediction:
        """The difference of two predictions for one chip."""
        parts = tuple((-weight, recording) for weight, recording in other.parts)
        constants = tuple((-weight, path) for weight, path in other.constants)
        return Prediction(
            self.chip,
            self.parts + parts,
            self.constants + constants,
            {**self.used, **other.used},
            abs(self.compute_ps - other.compute_ps),
            max(self.xla_share, other.xla_share),
        )

    def interval(self) -> Interval:
        """The interval of the time, or of the size of a difference."""
        time = abs(self.time_ps(self.chip))
        floor = (FLOOR_PS, round(COMPUTE_SHARE * min(self.compute_ps, time)), round(self.xla_share * time))
        return spread(lambda chip: abs(self.time_ps(chip)), self.chip, self.used, floor)


def predict(row: Row, chip: ChipSpec | None = None) -> Prediction:
    """Simulate a row's workload, without data, on its chip or another of its kind."""
    chip = chip or load_chip(row.chip)
    sizes = _row_blocks(row)
    runs = [_simulated(row, chip, parameters) for _, parameters in sizes]
    parts = tuple(
        (weight, Recording(run.trace, run.cores, run.place)) for (weight, _), run in zip(sizes, runs, strict=True)
    )
    used = {path: q for run in runs for path, q in used_numbers(run.trace, run.place).items()}
    constants = ((1.0, _OVERHEADS[row.xla]),) if row.xla else ()
    rows = dict(chip.rows())
    used |= {path: rows[path] for _, path in constants}
    compute = sum(
        weight * max(core.compute_ps for core in run.cores) for (weight, _), run in zip(sizes, runs, strict=True)
    )
    return Prediction(chip, parts, constants, used, compute, XLA_SHARE if row.xla else 0.0)


def _row_blocks(row: Row) -> list[tuple[float, dict[str, Any]]]:
    """What to simulate, with weights: the row itself, or one and two blocks of rows of a large product."""
    parameters = row.parameters
    if row.workload != "matmul":
        return [(1.0, parameters)]
    (m, *rest), (bm, *_) = parameters["size"], parameters["tiles"]
    blocks = -(-m // bm)
    if blocks <= _MOST_BLOCKS:
        return [(1.0, parameters)]
    few = [{**parameters, "size": [count * bm, *rest]} for count in (1, 2)]
    return [(2.0 - blocks, few[0]), (blocks - 1.0, few[1])]


def _simulated(row: Row, chip: ChipSpec, parameters: Mapping[str, Any]) -> Any:
    workload = make(row.workload, **parameters)
    options: dict[str, Any] = {"slice": row.slice, "mesh": workload.mesh, "data": False, "checks": "none", "chip": chip}
    if row.layout == "lines":
        options["layout"] = _lines(list(workload.mesh.values()))
    elif row.layout is not None:
        options["layout"] = row.layout
    return workload.kernel.simulate(*workload.arrays, **options)


def _lines(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Chips for a mesh of two axes that lies on the slice as it is: the second axis along lines."""
    return [(row, column) for row in range(sizes[0]) for column in range(sizes[1])]
