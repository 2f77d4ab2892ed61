"""``tpusim run FILE``: run a kernel, check it, time it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from tpusim.cli.console import make_console, one_line
from tpusim.cli.options import (
    PLACE,
    Calls,
    File,
    GraphFile,
    JsonFile,
    Texts,
    TraceDevices,
    TraceFile,
    TraceParts,
    takes,
)
from tpusim.cli.progress import RunProgress
from tpusim.cli.request import check_writable, make_job, parse_devices
from tpusim.cli.show import show
from tpusim.errors import OptionError
from tpusim.job import Outcome, Status, run_job
from tpusim.result import Result
from tpusim.trace.perfetto import write_trace

_SIM_ONLY = (
    "set",
    "chip",
    "layout",
    "cores",
    "data",
    "checks",
    "compute",
    "on_finding",
    "max_time",
    "max_events",
    "schedule",
    "faults",
    "replay",
)


@takes(*PLACE, "data", "checks", "compute", "on_finding", "max_time", "max_events", "schedule", "faults", "replay")
def run(
    file: File,
    texts: Texts,
    backend: Annotated[str, typer.Option(help="sim, or interpret: JAX's TPU interpret mode.")] = "sim",
    json_file: JsonFile = None,
    graph: GraphFile = None,
    trace: TraceFile = None,
    trace_devices: TraceDevices = None,
    trace_parts: TraceParts = None,
    calls: Calls = 1,
) -> None:
    """Run a kernel, check it, time it.

    Exit status: 0 right; 1 a finding of severity error or a wrong result; 2 bad arguments; 3 not modelled,
    or not possible on this computer.
    """
    job = make_job(file, **texts, backend=backend, detail=trace is not None, calls=calls)
    _check_backend(backend, job.options, trace)
    devices = parse_devices(trace_devices)
    for option, value in (("--trace-devices", devices), ("--trace-parts", trace_parts)):
        if value is not None and trace is None:
            raise OptionError(f"{option} says what --trace writes, and there is no --trace")
    if trace == "-":
        raise OptionError("--trace takes the path of a file, not - for the standard output")
    for path in (json_file, trace, graph):
        check_writable(path)
    with quiet_for(json_file), RunProgress() as progress:
        outcome = run_job(job, progress)
    if json_file is not None and json_file != "-":  # files first: who reads the report may stop at its first lines
        write_json(outcome.as_dict(), json_file)
    if trace is not None:
        _write_trace(outcome.result, trace, devices, trace_parts)
    if graph is not None and graph != "-":
        _write_graph(outcome, graph)
    console = make_console(sys.stderr if json_file == "-" else sys.stdout)
    if outcome.result is None and outcome.status is Status.NOT_POSSIBLE:
        typer.echo(f"Error: {one_line(outcome.problem)}", err=True)
    else:
        show(console, outcome)
    if graph == "-":
        _write_graph(outcome, graph)
    if json_file == "-":
        write_json(outcome.as_dict(), json_file)
    raise typer.Exit(outcome.status)


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


def _write_trace(result: Result | None, path: str, devices: tuple[int, ...] | None, parts: int | None) -> None:
    if result is None:
        typer.echo(f"no trace in {path}: there is no run to show", err=True)
        return
    if devices is not None and max(devices) >= len(result.place.devices):
        raise OptionError(f"--trace-devices: the mesh has devices 0 to {len(result.place.devices) - 1}")
    try:
        write_trace(result, path, devices, parts)
    except OSError as error:
        raise OptionError(f"cannot write {path}: {error.strerror}") from None


def quiet_for(json_file: str | None) -> AbstractContextManager[Any]:
    """Where JSON goes to standard output, what the user's code prints is no part of it."""
    return contextlib.redirect_stdout(sys.stderr) if json_file == "-" else contextlib.nullcontext()


def _write_graph(outcome: Outcome, path: str) -> None:
    found = next((finding.graph for finding in outcome.findings if finding.graph), None)
    if found is None:
        typer.echo(f"no graph in {path}: there is no deadlock", err=True)
    else:
        write_text(found, path)


def write_json(values: Any, path: str) -> None:
    """Write JSON to a file, or to standard output for ``-``."""
    write_text(json.dumps(values, allow_nan=False) + "\n", path)


def write_text(text: str, path: str) -> None:
    """Write to a file, or to standard output for ``-``."""
    if path == "-":
        typer.echo(text, nl=False)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot write {path}: {error.strerror}") from None
