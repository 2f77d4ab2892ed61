"""``tpusim explore FILE``: run a kernel under many schedules."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated, Any

import typer

from tpusim.chips import parse_set
from tpusim.cli.console import labelled, make_console, one_line, styled
from tpusim.cli.options import Chip, Cores, Faults, LayoutText, Overrides, Params, Replay
from tpusim.cli.request import check_writable, parse_dtype, parse_layout, parse_mesh_option, parse_shape
from tpusim.cli.run import write_json
from tpusim.errors import OptionError
from tpusim.explore import Exploration, Trial, explore
from tpusim.job import Job, Outcome, Status, run_job
from tpusim.job.check import compare

_MOST_SHOWN = 10


def explore_(
    file: Annotated[str, typer.Argument(help="path.py or path.py:name", show_default=False)],
    runs: Annotated[int, typer.Option(min=1, help="Schedules to try, the default one among them.")] = 50,
    slice_: Annotated[str | None, typer.Option("--slice", help="Slice of chips, such as v5e:4x4.")] = None,
    mesh: Annotated[str | None, typer.Option(help="Sizes of the kernel's axes: x=4 or x=2,y=4.")] = None,
    shape: Annotated[str | None, typer.Option(help="Shape of one device's shard: 8,128.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Element type of the inputs, such as bfloat16.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the inputs and of the schedules.")] = None,
    param: Params = None,
    set_: Overrides = None,
    layout: LayoutText = None,
    cores: Cores = None,
    chip: Chip = None,
    max_time: Annotated[float | None, typer.Option(help="Most simulated microseconds of a run.")] = None,
    max_events: Annotated[int | None, typer.Option(help="Most events of a run.")] = None,
    fault: Faults = None,
    replay: Replay = None,
    json_file: Annotated[str | None, typer.Option("--json", help="Write what was found as JSON; - for stdout.")] = None,
) -> None:
    """Run a kernel under many schedules and say what goes wrong, with the token that shows it again.

    Exit status: 0 nothing wrong was seen, which is no proof; 1 a finding of severity error or wrong data; 2 bad
    arguments; 3 not modelled, or not possible on this computer.
    """
    given = {
        "slice": slice_, "mesh": parse_mesh_option(mesh), "layout": parse_layout(layout), "seed": seed,
        "set": dict(parse_set(text) for text in set_) if set_ else None, "cores": cores, "chip": chip,
        "max_time": max_time, "max_events": max_events, "faults": tuple(fault) if fault else None,
    }  # fmt: skip
    options = {name: value for name, value in given.items() if value is not None} | {"on_finding": "record"}
    check_writable(json_file)
    own: dict[str, Any] = dict(parse_set(text, "--param", "bm=128") for text in param or ())
    own |= {"shape": parse_shape(shape), "dtype": parse_dtype(dtype), "seed": seed}
    parameters = {name: value for name, value in own.items() if value is not None}
    outcomes: list[Outcome] = []

    def trial(schedule: str) -> Trial:
        how = {"schedule": schedule} if replay is None else {"replay": replay}
        outcomes.append(run_job(Job(file, {**options, **how}, parameters)))
        return _trial(outcomes)

    is_json_out = json_file == "-"
    quiet = contextlib.redirect_stdout(sys.stderr) if is_json_out else contextlib.nullcontext()
    with quiet:
        made = explore(trial, 1 if replay is not None else runs, seed or 0)
    _show(make_console(sys.stderr if is_json_out else sys.stdout), made, outcomes[0])
    if json_file is not None:
        write_json({"file": file, **made.as_dict()}, json_file)
    status = outcomes[0].status
    raise typer.Exit(status if status is Status.NOT_POSSIBLE else Status.RIGHT if made.ok else Status.WRONG)


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


def _show(console: Any, made: Exploration, first: Outcome) -> None:
    if first.result is not None:
        console.print(styled(first.result.summary[0], "bold"))
    elif first.status is Status.NOT_POSSIBLE:
        raise OptionError(one_line(first.problem))
    console.print(labelled(f"explored     {made.text}", "green" if made.ok else "red"))
    for wrong in made.wrong[:_MOST_SHOWN]:
        console.print(styled(wrong.text, "red"))
        console.print(styled(f"  Replay: {wrong.token or 'default'}."))
    if len(made.wrong) > _MOST_SHOWN:
        console.print(styled(f"... and {len(made.wrong) - _MOST_SHOWN} more; --json has them all", "dim"))
