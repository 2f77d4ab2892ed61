"""``tpusim sweep FILE``: the same kernel with many parameters; which is the fastest."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tpusim.cli.console import make_console, plain, styled
from tpusim.cli.options import File, JsonFile, Texts, takes
from tpusim.cli.request import check_writable, read_options
from tpusim.cli.run import write_json
from tpusim.errors import OptionError
from tpusim.job import Status
from tpusim.job.userfault import user_code
from tpusim.kernel_file import path_of
from tpusim.report.frame import need_bokeh
from tpusim.sweep import Sweep, run_sweep
from tpusim.sweep.plot import write_plot
from tpusim.sweep.ranking import Objective
from tpusim.sweep.row import Row
from tpusim.sweep.space import Space
from tpusim.sweep.tables import check_table, write_table
from tpusim.sweep.workers import DaskCluster, LocalProcesses

_INTERRUPTED = 130


@takes("slice", "mesh", "set", "layout", "cores", "data", "checks", "chip")
def sweep(
    file: File,
    param: Annotated[
        list[str],
        typer.Option(help="What to vary: bm=128,256 or slice=v5e:2x2,v5e:4x4 or ici.link_bandwidth=45e9,90e9."),
    ],
    texts: Texts,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs, the runs and the search.")] = 0,
    objective: Annotated[str, typer.Option(help="time, or ratio: time over the lower bound.")] = "time",
    trials: Annotated[int | None, typer.Option(min=1, help="Points of a guided search, instead of all.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: the cores of this computer.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="A Dask scheduler: tcp://host:8786 or tls://...")] = None,
    out: Annotated[str | None, typer.Option(help="Rows as they come; default: NAME.sweep.jsonl.")] = None,
    table: Annotated[list[str] | None, typer.Option(help="Write the rows as .csv or .parquet. Repeatable.")] = None,
    plot: Annotated[str | None, typer.Option(help="Draw the ranking, as an .html page of its own.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 20,
    json_file: JsonFile = None,
) -> None:
    """Run a kernel with many parameters and rank them.

    Rows are on disk as they come; the same command goes on after an interruption.  Exit status: 0 where a point
    runs right; 1 where none does; 2 bad arguments.
    """
    if objective not in ("time", "ratio"):
        raise OptionError(f"--objective is time or ratio, not {objective!r}")
    by: Objective = "ratio" if objective == "ratio" else "time"
    options = read_options({"seed": seed, **texts})
    space = Space.parse(param)
    path = out or f"{path_of(file).stem}.sweep.jsonl"
    for each in table or ():
        check_table(each)
    if plot is not None:
        need_bokeh()
    for place in (path, json_file, plot, *(table or ())):
        check_writable(place)
    workers = LocalProcesses(jobs) if scheduler is None else DaskCluster(scheduler)
    with _progress() as shown:
        task = shown.add_task("", total=None)

        def progress(row: Row, done: int, total: int) -> None:
            shown.update(task, completed=done, total=total)

        try:
            with user_code(path_of(file)):
                found = run_sweep(
                    file, space, path, objective=by, trials=trials, seed=seed, options=options,
                    workers=workers, progress=progress,
                )  # fmt: skip
        except KeyboardInterrupt:
            bar = shown.tasks[task]
            some = f"{bar.completed:.0f} of {bar.total:.0f} points are" if bar.total else "the points so far are"
            typer.echo(f"Interrupted: {some} in {path}; the same command goes on from there.", err=True)
            raise typer.Exit(_INTERRUPTED) from None
    for each in table or ():
        write_table(found.rows, each)
    names = [name for name, values in space.values.items() if len(values) > 1] or list(space.values)
    if plot is not None and found.best is not None:
        write_plot(found, names, plot)
    _show(found, names, path, top, to_stderr=json_file == "-")
    if json_file is not None:
        _write_json(found, json_file)
    raise typer.Exit(Status.RIGHT if found.best is not None else Status.WRONG)


def _progress() -> Progress:
    console = make_console(sys.stderr)
    columns = (TextColumn("points"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _show(found: Sweep, names: list[str], path: str, top: int, *, to_stderr: bool) -> None:
    console = make_console(sys.stderr if to_stderr else sys.stdout)
    ranking = found.ranking
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", *names, "time", "interval", "x bound"):
        shown.add_column(plain(name), justify="left" if name in names else "right")
    for place in ranking[:top]:
        row = place.row
        interval = "" if row["low_us"] is None else f"{row['low_us']:.4g} to {row['high_us']:.4g} us"
        shown.add_row(
            "=1" if place.is_tie else str(place.rank),
            *(plain(_text(row["point"][name])) for name in names),
            f"{row['time_us']:.3f} us",
            interval,
            "" if row["ratio"] is None else f"{row['ratio']:.2f}",
        )
    if ranking:
        console.print(shown)
    if len(ranking) > top:
        console.print(styled(f"... and {len(ranking) - top} more", "dim"))
    if any(place.is_tie for place in ranking):
        console.print(styled("=1: no telling whether it is slower than the first", "dim"))
    _show_failed(console, found)
    again = f", {found.reused} of them from before" if found.reused else ""
    console.print(styled(f"{_counted(len(found.rows), 'point')}{again}; rows in {path}", "dim"))
    if found.damaged:
        lines = _counted(found.damaged, "damaged line")
        console.print(styled(f"{lines} of {path} not used; what was missing was run again", "yellow"))


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _show_failed(console: Any, found: Sweep) -> None:
    """Points that are not right, those with the same reason together."""
    reasons: dict[str, list[Row]] = {}
    for row in found.rows:
        if row["status"] != "right":
            why = row["error"] or row["result"] or ", ".join(row["findings"])
            reasons.setdefault(f"{row['status']}: {why}", []).append(row)
    for reason, rows in reasons.items():
        first = ", ".join(f"{name}={value}" for name, value in rows[0]["point"].items())
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        console.print(styled(f"{reason}  ({first}{more})", "red" if rows[0]["status"] == "wrong" else "yellow"))


def _write_json(found: Sweep, path: str) -> None:
    ranking = [{"rank": place.rank, "is_tie": place.is_tie, **place.row} for place in found.ranking]
    failed = [row for row in found.rows if row["status"] != "right"]
    write_json({"objective": found.objective, "ranking": ranking, "failed": failed}, path)
