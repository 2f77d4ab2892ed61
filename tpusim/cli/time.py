"""``tpusim time FILE``: how long one kernel takes on the TPU that is here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tpusim.cli.console import make_console, styled
from tpusim.cli.options import INPUTS, File, Texts, takes
from tpusim.cli.request import check_writable, make_job
from tpusim.job import Status
from tpusim.job.userfault import user_code
from tpusim.kernel_file import load_file, path_of
from tpusim.options import RunOptions
from tpusim.program import Kernel


@takes(*INPUTS)
def time(
    file: File,
    texts: Texts,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs.")] = 20,
    warmup: Annotated[int, typer.Option(min=1, help="Runs before them.")] = 3,
    json_file: Annotated[str | None, typer.Option("--json", help="Write the times as JSON; - for stdout.")] = None,
) -> None:
    """Measure a kernel on a TPU: device time by the profiler, after a warm-up.

    Exit status: 0 measured; 1 the run failed; 2 bad arguments; 3 no TPU here.
    """
    from tpusim.pallas.remote import Run, run_all, tpu_missing

    check_writable(json_file)
    job = make_job(file, **texts)
    with user_code(path_of(file)):
        kernel = load_file(file).made(job.parameters)
    place = RunOptions.of(job.options).place(kernel.axes if isinstance(kernel, Kernel) else ("x",))
    missing = tpu_missing()
    if missing is not None:
        typer.echo(f"Error: time {file}: {missing}", err=True)
        raise typer.Exit(Status.NOT_POSSIBLE)
    timed = run_all([Run(file, place.axis_sizes, job.parameters)], repeats=repeats, warmup=warmup)[0]
    if timed.median_us is None:
        typer.echo(f"Error: time {file}: {timed.error or 'the profile has no TPU'}", err=True)
        raise typer.Exit(Status.WRONG)
    if json_file is not None:
        values = {
            "file": file,
            "slice": str(place.slice),
            "median_us": timed.median_us,
            "times_us": timed.times_us,
            "events": timed.events,
        }
        text = json.dumps(values, allow_nan=False) + "\n"
        if json_file == "-":
            typer.echo(text, nl=False)
            return
        Path(json_file).write_text(text, encoding="utf-8")
    times = timed.times_us
    span = f"{min(times):.3f} to {max(times):.3f} us, {len(times)} runs"
    make_console().print(styled(f"time         {timed.median_us:.3f} us   (measured; {span})"))
