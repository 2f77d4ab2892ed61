"""``tpusim run FILE``: run a kernel, check it, time it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tpusim.chips import parse_set
from tpusim.cli.console import make_console, one_line
from tpusim.cli.options import (
    Checks,
    Chip,
    Cores,
    Faults,
    LayoutText,
    OnFinding,
    Overrides,
    Params,
    Replay,
    ScheduleText,
)
from tpusim.cli.progress import RunProgress
from tpusim.cli.report import show
from tpusim.errors import OptionError
from tpusim.job import Job, Status, run_job
from tpusim.result import Result
from tpusim.specs import as_dtype
from tpusim.trace.perfetto import write_trace

_SIM_ONLY = (
    "set",
    "chip",
    "layout",
    "cores",
    "data",
    "checks",
    "on_finding",
    "max_time",
    "max_events",
    "schedule",
    "faults",
    "replay",
)


def run(
    file: Annotated[str, typer.Argument(help="path.py or path.py:name", show_default=False)],
    slice_: Annotated[str | None, typer.Option("--slice", help="Slice of chips, such as v5e:4x4.")] = None,
    mesh: Annotated[str | None, typer.Option(help="Sizes of the kernel's axes: x=4 or x=2,y=4.")] = None,
    shape: Annotated[str | None, typer.Option(help="Shape of one device's shard: 8,128.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Element type of the inputs, such as bfloat16.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the inputs and of the run.")] = None,
    param: Params = None,
    set_: Overrides = None,
    layout: LayoutText = None,
    cores: Cores = None,
    data: Annotated[bool | None, typer.Option("--data/--no-data", help="Carry array contents.")] = None,
    checks: Checks = None,
    on_finding: OnFinding = None,
    max_time: Annotated[float | None, typer.Option(help="Most simulated microseconds.")] = None,
    max_events: Annotated[int | None, typer.Option(help="Most events, and most operations of one core.")] = None,
    schedule: ScheduleText = None,
    fault: Faults = None,
    replay: Replay = None,
    chip: Chip = None,
    backend: Annotated[str, typer.Option(help="sim, or interpret: JAX's TPU interpret mode.")] = "sim",
    json_file: Annotated[str | None, typer.Option("--json", help="Write the result as JSON; - for stdout.")] = None,
    trace: Annotated[str | None, typer.Option(help="Write a timeline for ui.perfetto.dev (.json or .json.gz).")] = None,
) -> None:
    """Run a kernel, check it, time it.

    Exit status: 0 right; 1 a finding of severity error or a wrong result; 2 bad arguments; 3 not modelled,
    or not possible on this computer.
    """
    given = {
        "slice": slice_,
        "mesh": parse_mesh_option(mesh),
        "layout": parse_layout(layout),
        "seed": seed,
        "set": dict(parse_set(text) for text in set_) if set_ else None,
        "cores": cores,
        "data": data,
        "checks": checks,
        "on_finding": on_finding,
        "max_time": max_time,
        "max_events": max_events,
        "schedule": schedule,
        "faults": tuple(fault) if fault else None,
        "replay": replay,
        "chip": chip,
    }
    options = {name: value for name, value in given.items() if value is not None}
    _check_backend(backend, options, trace)
    if trace == "-":
        raise OptionError("--trace takes the path of a file, not - for the standard output")
    for path in (json_file, trace):
        check_writable(path)
    own = dict(parse_set(text, "--param", "bm=128") for text in param or ())
    parameters = own | {"shape": parse_shape(shape), "dtype": parse_dtype(dtype), "seed": seed}
    given_parameters = {name: value for name, value in parameters.items() if value is not None}
    job = Job(file, options, given_parameters, backend, detail=trace is not None)
    is_json_out = json_file == "-"
    # what the user's code prints is no part of the JSON
    quiet = contextlib.redirect_stdout(sys.stderr) if is_json_out else contextlib.nullcontext()
    with quiet, RunProgress() as progress:
        outcome = run_job(job, progress)
    console = make_console(sys.stderr if is_json_out else sys.stdout)
    if outcome.result is None and outcome.status is Status.NOT_POSSIBLE:
        typer.echo(f"Error: {one_line(outcome.problem)}", err=True)
    else:
        show(console, outcome)
    if trace is not None:
        _write_trace(outcome.result, trace)
    if json_file is not None:
        write_json(outcome.as_dict(), json_file)
    raise typer.Exit(outcome.status)


def parse_mesh_option(text: str | None) -> str | int | None:
    """``--mesh``: a number, or a text that the run options read."""
    return int(text) if text is not None and text.isdecimal() else text


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """``--shape``."""
    if text is None:
        return None
    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    if not all(part.isdecimal() and part.isascii() for part in parts):
        raise OptionError(f"--shape takes sizes such as 8,128, not {text!r}")
    sizes = tuple(int(part) for part in parts)
    if 0 in sizes:
        raise OptionError(f"--shape takes positive sizes, not {text!r}")
    return sizes


def parse_dtype(text: str | None) -> str | None:
    """``--dtype``: the name of an element type."""
    if text is not None:
        try:
            as_dtype(text)
        except TypeError:
            raise OptionError(f"--dtype: there is no dtype {text!r}; float32, bfloat16, int32, int8 are some") from None
    return text


def parse_layout(text: str | None) -> Any:
    """A name, or coordinates as a JSON list."""
    if text is None or not text.lstrip().startswith("["):
        return text
    try:
        places = json.loads(text)
    except ValueError:
        places = None
    is_list = isinstance(places, list) and all(isinstance(place, list) for place in places)
    if not is_list or not all(type(at) is int for place in places for at in place):
        raise OptionError(f"--layout takes coordinates as [[0,0],[0,1]], one for each device, not {text!r}")
    return places


def _check_backend(backend: str, options: Mapping[str, Any], trace: str | None) -> None:
    if backend not in ("sim", "interpret"):
        raise OptionError(f"--backend is sim or interpret, not {backend!r}")
    if backend == "sim":
        return
    for name in _SIM_ONLY:
        if name in options:
            raise OptionError(f"--{name.replace('_', '-')} has no meaning with --backend interpret")
    if trace is not None:
        raise OptionError("--trace needs --backend sim: interpret mode has no time")


def check_writable(path: str | None) -> None:
    """Before a long run, not after it."""
    if path is None or path == "-":
        return
    if not Path(path).parent.is_dir():
        raise OptionError(f"cannot write {path}: there is no directory {Path(path).parent}")
    if Path(path).is_dir():
        raise OptionError(f"cannot write {path}: it is a directory")


def _write_trace(result: Result | None, path: str) -> None:
    if result is None:
        typer.echo(f"no trace in {path}: there is no run to show", err=True)
        return
    try:
        write_trace(result, path)
    except OSError as error:
        raise OptionError(f"cannot write {path}: {error.strerror}") from None


def write_json(values: Any, path: str) -> None:
    """Write JSON to a file, or to standard output for ``-``."""
    text = json.dumps(values, allow_nan=False) + "\n"
    if path == "-":
        typer.echo(text, nl=False)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot write {path}: {error.strerror}") from None
