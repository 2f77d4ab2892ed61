"""``tpusim verify FILE``: prove or refute that a kernel is right in every schedule."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from tpusim.cli.console import labelled, make_console, one_line, styled
from tpusim.cli.explore import explore_job, show_exploration
from tpusim.cli.options import PLACE, Calls, File, JsonFile, Texts, takes
from tpusim.cli.request import check_writable, make_job
from tpusim.cli.run import quiet_for, write_json
from tpusim.findings import Severity
from tpusim.job import Job, Outcome, Status
from tpusim.job.verify import verify_job
from tpusim.verdict import Answer, Verdict

_MOST_FINDINGS = 10
_STYLES = {"proven": "bold green", "refuted": "bold red", "not-proven": "bold yellow"}
_STATUS = {"proven": Status.RIGHT, "refuted": Status.WRONG, "not-proven": Status.NOT_POSSIBLE}


@takes(*PLACE, "data", "max_time", "max_events", "replay")
def verify(
    file: File,
    texts: Texts,
    calls: Calls = 1,
    runs: Annotated[int, typer.Option(min=0, help="Schedules to explore where nothing is proven.")] = 30,
    json_file: JsonFile = None,
) -> None:
    """Prove or refute that a kernel is right in every schedule.

    Looked for are deadlocks, leaks, races and lifetime faults; the data of one run are compared with
    reference().  Where the proof does not apply, --runs schedules are explored instead; with --replay the one it
    names, and nothing is proven.  Exit status: 0 proven; 1 refuted, or wrong in an explored schedule; 2 bad
    arguments; 3 not proven, or not possible on this computer.
    """
    check_writable(json_file)
    job = make_job(file, **texts, calls=calls)
    if texts["replay"] is not None:
        _replay(job, json_file)
    with quiet_for(json_file):
        verdict, outcome = verify_job(job)
        is_complete = outcome.result is not None and outcome.result.is_complete
        is_open = verdict.answer == "not-proven" and is_complete and runs
        explored = explore_job(job, runs)[0] if is_open else None
    console = make_console(sys.stderr if json_file == "-" else sys.stdout)
    _show(console, verdict, outcome)
    if explored is not None:
        show_exploration(console, explored)
    if json_file is not None:
        found = {"error": outcome.fault or outcome.not_possible, "explored": explored and explored.as_dict()}
        write_json({"file": file, **verdict.as_dict(), **found}, json_file)
    is_wrong = outcome.fault is not None or (explored is not None and not explored.ok)
    raise typer.Exit(Status.WRONG if is_wrong else _STATUS[verdict.answer])


def _replay(job: Job, json_file: str | None) -> NoReturn:
    """What the schedule of a token shows, which refutes a kernel or says nothing about other schedules."""
    with quiet_for(json_file):
        made, first = explore_job(job, 1)
    console = make_console(sys.stderr if json_file == "-" else sys.stdout)
    if first.result is not None:
        console.print(styled(first.result.headline, "bold"))
    answer: Answer = "not-proven" if made.ok else "refuted"
    console.print(labelled(f"verdict      {answer}: no schedule but the one replayed was tried.", _STYLES[answer]))
    show_exploration(console, made)
    if json_file is not None:
        write_json({"file": job.file, "answer": answer, "ok": False, "explored": made.as_dict()}, json_file)
    raise typer.Exit(_STATUS[answer])


def _show(console: Console, verdict: Verdict, outcome: Outcome) -> None:
    if outcome.result is not None:
        console.print(styled(outcome.result.headline, "bold"))
    elif outcome.not_possible is not None:
        typer.echo(f"Error: {one_line(outcome.not_possible)}", err=True)
        return
    console.print(labelled(f"verdict      {verdict.summary}", _STYLES[verdict.answer]))
    if verdict.answer != "proven":
        console.print(labelled(f"data         {verdict.data}"))
    for finding in verdict.findings[:_MOST_FINDINGS]:
        is_error = finding.severity is Severity.ERROR
        console.print(styled(finding.explain(), "red" if is_error else "yellow"))
    if len(verdict.findings) > _MOST_FINDINGS:
        more = len(verdict.findings) - _MOST_FINDINGS
        console.print(styled(f"... and {more} more findings; --json has them all", "dim"))
    if outcome.fault is not None:
        console.print(styled(outcome.fault, "red"))
    if verdict.premises:
        console.print(styled("It rests on:", "dim"))
    for premise in verdict.premises:
        console.print(styled(f"  {premise}", "dim"))
