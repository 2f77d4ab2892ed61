"""``tpusim explore FILE``: run a kernel under many schedules."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from tpusim.cli.console import labelled, make_console, one_line, styled
from tpusim.cli.options import PLACE, File, JsonFile, Texts, takes
from tpusim.cli.request import check_writable, make_job
from tpusim.cli.run import quiet_for, write_json
from tpusim.errors import OptionError
from tpusim.explore import Exploration, Trial, explore
from tpusim.job import Job, Outcome, Status, run_job
from tpusim.job.check import compare

_MOST_SHOWN = 10


@takes(*PLACE, "max_time", "max_events", "faults", "replay")
def explore_(
    file: File,
    texts: Texts,
    runs: Annotated[int, typer.Option(min=1, help="Schedules to try, the default one among them.")] = 50,
    json_file: JsonFile = None,
) -> None:
    """Run a kernel under many schedules and say what goes wrong, with the token that shows it again.

    Exit status: 0 nothing wrong was seen, which is no proof; 1 a finding of severity error or wrong data; 2 bad
    arguments; 3 not modelled, or not possible on this computer.
    """
    job = make_job(file, **texts)
    check_writable(json_file)
    with quiet_for(json_file):
        made, first = explore_job(job, 1 if texts["replay"] is not None else runs)
    console = make_console(sys.stderr if json_file == "-" else sys.stdout)
    if first.result is not None:
        console.print(styled(first.result.headline, "bold"))
    elif first.status is Status.NOT_POSSIBLE:
        raise OptionError(one_line(first.problem))
    show_exploration(console, made)
    if json_file is not None:
        write_json({"file": file, **made.as_dict()}, json_file)
    status = first.status
    raise typer.Exit(status if status is Status.NOT_POSSIBLE else Status.RIGHT if made.ok else Status.WRONG)


def explore_job(job: Job, runs: int) -> tuple[Exploration, Outcome]:
    """Run a job under ``runs`` schedules, or under the one it replays; also its first outcome."""
    outcomes: list[Outcome] = []

    def trial(schedule: str) -> Trial:
        how = {} if "replay" in job.options else {"schedule": schedule}
        outcomes.append(run_job(replace(job, options={**job.options, **how, "on_finding": "record"})))
        if outcomes[-1].is_interrupted and len(outcomes) > 1:  # not one schedule's fault
            raise KeyboardInterrupt
        return _trial(outcomes)

    return explore(trial, runs, job.options.get("seed", 0)), outcomes[0]


def _trial(outcomes: list[Outcome]) -> Trial:
    """The last run as a trial; its data against the reference, or without one against those of the first run."""
    last, first = outcomes[-1], outcomes[0]
    problem = last.fault or last.not_possible
    check = last.check
    outputs = None if last.result is None else last.result.outputs
    if check is not None and check.verdict == "unchecked" and outputs is not None:
        expected = None if first.result is None else first.result.outputs
        check = None if expected is None else compare(outputs, expected)
        if check is not None and check.is_wrong:
            problem = f"not those of the default schedule: {check.text}"
    elif check is not None and check.is_wrong:
        problem = check.text
    return Trial(last.result, last.findings, problem)


def show_exploration(console: Console, made: Exploration) -> None:
    """What was tried, and what was wrong with the token that shows it again."""
    console.print(labelled(f"explored     {made.text}", "green" if made.ok else "red"))
    for wrong in made.wrong[:_MOST_SHOWN]:
        console.print(styled(wrong.text, "red"))
        console.print(styled(f"  Replay: {wrong.token or 'default'}."))
    if len(made.wrong) > _MOST_SHOWN:
        console.print(styled(f"... and {len(made.wrong) - _MOST_SHOWN} more; --json has them all", "dim"))
