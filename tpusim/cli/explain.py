"""``tpusim explain FILE``: what a colleague would say about a run."""

from __future__ import annotations

import sys

import typer

from tpusim.cli.console import make_console, one_line, styled
from tpusim.cli.options import PLACE, File, JsonFile, Texts, takes
from tpusim.cli.progress import RunProgress
from tpusim.cli.request import check_writable, make_job
from tpusim.cli.run import quiet_for, write_json
from tpusim.explain import explain
from tpusim.job import run_job


@takes(*PLACE, "data", "compute", "max_time", "max_events", "schedule", "faults", "replay")
def explain_(
    file: File,
    texts: Texts,
    json_file: JsonFile = None,
) -> None:
    """Say what a run waits for, and what would make it faster; each number comes from a run of its own.

    Exit status: 0 right; 1 a finding of severity error or a wrong result; 2 bad arguments; 3 not modelled,
    or not possible on this computer.
    """
    check_writable(json_file)
    job = make_job(file, **texts, detail=True)
    with quiet_for(json_file), RunProgress() as progress:
        outcome = run_job(job, progress)
        said = explain(outcome.result) if outcome.result is not None else None
    if said is None or outcome.result is None:
        typer.echo(f"Error: nothing to explain, there is no run: {one_line(outcome.problem)}", err=True)
        raise typer.Exit(outcome.status)
    console = make_console(sys.stderr if json_file == "-" else sys.stdout)
    console.print(styled(outcome.result.summary[0], "bold"))
    for sentence in said.sentences:
        console.print(styled(sentence))
    if count := len(outcome.findings):
        console.print(styled(f"tpusim run shows its {f'{count} findings' if count > 1 else 'finding'}.", "yellow"))
    if json_file is not None:
        write_json(outcome.as_dict() | said.as_dict(), json_file)
    raise typer.Exit(outcome.status)
