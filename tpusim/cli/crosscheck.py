"""``tpusim crosscheck FILE``: one kernel on the simulator, interpret mode, the TPU compiler and a TPU."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tpusim.cli.console import make_console, styled
from tpusim.cli.options import PLACE, File, Texts, takes
from tpusim.cli.request import check_writable, make_job
from tpusim.crosscheck import BACKENDS, CrossCheck, Seen, crosscheck
from tpusim.errors import OptionError
from tpusim.trace.perfetto import write_trace
from tpusim.units import format_bytes

_STYLES = {"ok": "green", "missing": "yellow"}
_MOST_RESIDUALS = 12


@takes(*PLACE, "schedule", "faults", "replay")
def crosscheck_(
    file: File,
    texts: Texts,
    backends: Annotated[str, typer.Option(help="Some of sim,interpret,compile,tpu.")] = ",".join(BACKENDS),
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs on a TPU.")] = 20,
    measured: Annotated[
        str | None, typer.Option(help="JSON of `tpusim time` from elsewhere, in place of a TPU here.")
    ] = None,
    json_file: Annotated[str | None, typer.Option("--json", help="Write the comparison as JSON; - for stdout.")] = None,
    trace: Annotated[str | None, typer.Option(help="Write both timelines (.json or .json.gz).")] = None,
) -> None:
    """Run a kernel on several backends and compare: data, verdicts, VMEM, times.

    Schedule, faults and token are the simulator's.

    Exit status: 0 all that are here agree; 1 one differs, fails or refuses; 2 bad arguments; 3 none is here.
    """
    job = make_job(file, **texts, on_finding="record", detail=trace is not None)
    for path in (json_file, trace):
        check_writable(path)
    wanted: Any = [name.strip() for name in backends.split(",") if name.strip()]
    is_json_out = json_file == "-"
    quiet = contextlib.redirect_stdout(sys.stderr) if is_json_out else contextlib.nullcontext()
    with quiet:
        found = crosscheck(
            job,
            wanted,
            measured=_measured(measured),
            repeats=repeats,
            progress=lambda name: typer.echo(f"{name} ...", err=True),
        )
    show(make_console(sys.stderr if is_json_out else sys.stdout), found)
    if trace is not None:
        _write_trace(found, trace)
    if json_file is not None:
        text = json.dumps(found.as_dict(), allow_nan=False) + "\n"
        if is_json_out:
            typer.echo(text, nl=False)
        else:
            Path(json_file).write_text(text, encoding="utf-8")
    raise typer.Exit(found.status)


def show(console: Console, found: CrossCheck) -> None:
    """The comparison as a table."""
    place = found.outcome.place
    if place is not None:
        sizes = ", ".join(f"{axis}={size}" for axis, size in place.axis_sizes.items())
        console.print(styled(f"{found.file} on {place.slice}, mesh {sizes}", "bold"))
    rows = [("backend", "", "data", "time us", "interval us", "VMEM"), *(_row(one) for one in found.seen)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for position, row in enumerate(rows):
        cells = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        style = "dim" if position == 0 else _STYLES.get(found.seen[position - 1].state, "red")
        console.print(styled(cells, style))
    for one in found.seen:
        if one.text:
            console.print(styled(f"{one.backend}: {one.text}"))
    if found.ratio is not None:
        inside = {True: ", inside the interval", False: ", outside the interval", None: ""}[found.is_inside]
        console.print(styled(f"simulated / measured  {found.ratio:.3f}{inside}"))
        _show_residuals(console, found)


def _row(one: Seen) -> tuple[str, ...]:
    time = "" if one.time_us is None else f"{one.time_us:.3f}"
    interval = "" if one.interval_us is None else f"{one.interval_us[0]:.3f} to {one.interval_us[1]:.3f}"
    vmem = "" if one.vmem_bytes is None else format_bytes(one.vmem_bytes)
    return one.backend, one.state, one.data or "", time, interval, vmem


def _show_residuals(console: Console, found: CrossCheck) -> None:
    if not found.residuals:
        console.print(styled("residuals             none: the hardware trace names no descriptor by its line", "dim"))
        return
    console.print(styled("copy                  simulated us  measured us   left us", "dim"))
    for one in sorted(found.residuals, key=lambda each: -abs(each.left_us))[:_MOST_RESIDUALS]:
        name = f"{one.where} #{one.turn} on {one.device}"
        console.print(styled(f"{name:<22}{one.simulated_us:>12.3f}{one.measured_us:>13.3f}{one.left_us:>+10.3f}"))


def _measured(path: str | None) -> Any:
    """Times that ``tpusim time --json`` wrote."""
    if path is None:
        return None
    from tpusim.pallas.remote import Timed

    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        times = tuple(float(time) for time in values["times_us"])
        events = tuple(tuple(event) for event in values.get("events", ()))
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OptionError(f"{path} is no JSON of `tpusim time --json`: it needs times_us") from None
    return Timed(times_us=times, events=events)


def _write_trace(found: CrossCheck, path: str) -> None:
    if found.result is None:
        typer.echo(f"no trace in {path}: there is no run to show", err=True)
        return
    try:
        write_trace(found.result, path, beside=found.device_events)
    except OSError as error:
        raise OptionError(f"cannot write {path}: {error.strerror}") from None
