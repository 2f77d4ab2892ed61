"""One point run: what goes to a worker, and the row that comes back.

A worker gets the path of FILE, the hash of its content and names with values; it imports the file itself, and
refuses one that is not the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tpusim.errors import OptionError
from tpusim.findings import Severity
from tpusim.job import Job, Outcome, Status, run_job
from tpusim.kernel_file import KernelFile, load_file
from tpusim.options import RunOptions
from tpusim.result import Result
from tpusim.sweep.space import Point, Space
from tpusim.units import json_safe

Row = dict[str, Any]
"""JSON-ready: ``point, status, time_us, low_us, high_us, effects, lower_bound_us, ratio, chip, slice, dmas, bytes,
result, findings, error, wall_s``; ``status`` is right, wrong, refused or not-possible."""

_MEASURED = (
    "time_us", "low_us", "high_us", "effects", "lower_bound_us", "ratio", "chip", "slice", "dmas", "bytes", "wall_s",
)  # fmt: skip
_WORDS = {
    Status.RIGHT: "right",
    Status.WRONG: "wrong",
    Status.BAD_ARGUMENTS: "refused",
    Status.NOT_POSSIBLE: "not-possible",
}
RUN_OPTIONS = {field.name for field in fields(RunOptions)}
"""Names in a space that are run options."""


@dataclass(frozen=True)
class Request:
    """A point to run: FILE, what it holds (SHA-256), the options all points share, and the tpusim that asks."""

    file: str
    digest: str
    options: Mapping[str, Any]
    point: Point
    version: str = version("tpusim")

    @property
    def job(self) -> Job:
        """Run options by their names, chip numbers by their dotted names, everything else parameters of FILE."""
        options, parameters = dict(self.options), {}
        numbers = dict(options.pop("set", {}))
        for name, value in self.point.items():
            if "." in name:
                numbers[name] = value
            elif name in RUN_OPTIONS:
                options[name] = value
            if name == "seed" or not (name in RUN_OPTIONS or "." in name):
                parameters[name] = tuple(value) if name == "shape" and isinstance(value, list) else value
        if numbers:
            options["set"] = numbers
        return Job(self.file, options, parameters)


def evaluate(request: Request) -> Row:
    """Run a point in this process.

    What cannot be run is a row that says so.  Raises ``OptionError`` where this worker is not fit to run any point
    of the sweep: no such file here, another content, another tpusim.
    """
    here = version("tpusim")
    if here != request.version:
        raise OptionError(f"a worker has tpusim {here}, the sweep was started by tpusim {request.version}")
    if load_file(request.file).digest != request.digest:
        raise OptionError(f"{request.file} has changed since the sweep was started, or is another one on a worker")
    try:
        outcome = run_job(request.job)
    except OptionError as error:
        return failed(request.point, Status.BAD_ARGUMENTS, str(error))
    return row_of(request.point, outcome)


def row_of(point: Point, outcome: Outcome) -> Row:
    """The row of a point that was run."""
    row = {"point": point, "status": _WORDS[outcome.status], **_measured(outcome.result)}
    row["result"] = None if outcome.check is None else outcome.check.text
    row["findings"] = sorted({str(f.kind) for f in outcome.findings if f.severity is Severity.ERROR})
    row["error"] = outcome.problem.splitlines()[0] if outcome.problem else None
    safe: Row = json_safe(row)
    return safe


def failed(point: Point, status: Status, error: str) -> Row:
    """The row of a point without a run."""
    return {"point": point, "status": _WORDS[status], **_measured(None), "result": None, "findings": [], "error": error}


def _measured(result: Result | None) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(_MEASURED)
    if result is None:
        return values
    values |= {"chip": result.place.chip.name, "slice": result.slice, "wall_s": result.wall_s}
    values |= {"dmas": result.dmas, "bytes": result.bytes}
    if not result.is_complete:
        return values
    values |= {"time_us": result.time_us, "lower_bound_us": result.lower_bound_us, "ratio": result.ratio}
    if (interval := result.interval) is not None:
        values |= {"low_us": interval.low.us, "high_us": interval.high.us}
        values["effects"] = {e.name: [e.shorter_ps / 1e6, e.longer_ps / 1e6] for e in interval.effects}
    return values


def resolved(file: str) -> str:
    """FILE with an absolute path, for a worker with another working directory."""
    path, colon, name = file.rpartition(":") if ".py:" in file else (file, "", "")
    return f"{Path(path).resolve()}{colon}{name}"


def check_names(loaded: KernelFile, space: Space) -> None:
    """Raises ``OptionError`` for a name that is no run option, no chip number and no parameter of FILE."""
    known = {name for names in loaded.parameters.values() for name in names}
    for name in space.values:
        if name in RUN_OPTIONS or name in known or "." in name:
            continue
        has = "; ".join(f"{function}() has: {', '.join(names)}" for function, names in loaded.parameters.items())
        raise OptionError(
            f"{loaded.path}: nothing takes {name!r}: it is no run option, no number of a chip (dma.issue), and {has}"
        )
