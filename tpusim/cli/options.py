"""The options that more than one command takes, as the command line spells them.

A command that runs a FILE says with :func:`takes` which of the job's options it has; it gets them as one mapping,
which :func:`~tpusim.cli.request.make_job` reads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

Texts = dict[str, Any]
"""What was given for the options that a command takes, by name; ``None`` where nothing was."""

SliceText = Annotated[str | None, typer.Option("--slice", help="Slice of chips, such as v5e:4x4.")]
MeshText = Annotated[str | None, typer.Option("--mesh", help="Sizes of the kernel's axes: x=4 or x=2,y=4.")]
ShapeText = Annotated[str | None, typer.Option("--shape", help="Shape of one device's shard: 8,128.")]
DtypeText = Annotated[str | None, typer.Option("--dtype", help="Element type of the inputs, such as bfloat16.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the inputs and of the run.")]
Data = Annotated[bool | None, typer.Option("--data/--no-data", help="Carry array contents.")]
File = Annotated[str, typer.Argument(help="path.py or path.py:name", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a chip number: ici.link_bandwidth=90e9. Repeatable.")
]
Params = Annotated[
    list[str] | None,
    typer.Option("--param", help="A parameter of the file's make_kernel() or inputs(): bm=128. Repeatable."),
]
LayoutText = Annotated[
    str | None,
    typer.Option("--layout", help="How a mesh lies on the slice: auto, ring, row-major or [[0,0],[0,1],...]."),
]
Cores = Annotated[str | None, typer.Option("--cores", help="megacore or split (v4, v5p).")]
Checks = Annotated[
    str | None,
    typer.Option("--checks", help="observed: look for races; none: only for accesses to a copy under way."),
]
Compute = Annotated[
    str | None,
    typer.Option("--compute", help="default: by the shipped table; exact: by the TPU compiler (the tpu extra)."),
]
OnFinding = Annotated[str | None, typer.Option("--on-finding", help="raise or record.")]
Chip = Annotated[str | None, typer.Option("--chip", help="Your own chip, a TOML file.")]
ScheduleText = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help="Order of what may happen in any order: default, random, shuffle (both drawn from --seed), eager, lazy, "
        "newest, split, slow-device:0, slow-link:0.0-1.0.",
    ),
]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        help="link:0.0-1.0:dead[,reroute], link:0.0-1.0:slow=4, chip:1.0:slow=2, jitter:200ns, device:2:late=50us, "
        "device:2:never. Repeatable.",
    ),
]
Replay = Annotated[str | None, typer.Option("--replay", help="Schedule and faults of a finding: its token.")]
Html = Annotated[str, typer.Option("--html", help="The page to write.", show_default=False)]
Calls = Annotated[int, typer.Option("--calls", min=1, help="Calls in a row, each device entering the next at once.")]
JsonFile = Annotated[str | None, typer.Option("--json", help="Write the result as JSON; - for stdout.")]
TraceFile = Annotated[
    str | None, typer.Option("--trace", help="Write a timeline for ui.perfetto.dev (.json or .json.gz).")
]
TraceDevices = Annotated[
    str | None, typer.Option("--trace-devices", help="Devices in the timeline, row-major numbers: 0-3,8.")
]
ReportDevices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        help="Devices drawn one by one: slowest (ends last), busiest (waits least), slowest:16, or row-major numbers: "
        "0-3,8. Default: all up to 64, else the 64 slowest.",
    ),
]
TraceParts = Annotated[
    int | None,
    typer.Option("--trace-parts", min=1, help="For pods: how busy all is in so many parts of the run."),
]
GraphFile = Annotated[
    str | None, typer.Option("--graph", help="Write who waits for whom in a deadlock: a Graphviz file.")
]
MaxTime = Annotated[float | None, typer.Option("--max-time", help="Most simulated microseconds of a run.")]
MaxEvents = Annotated[
    int | None, typer.Option("--max-events", help="Most events of a run, and most operations of one core.")
]

_OF_A_JOB = {
    "slice": SliceText,
    "mesh": MeshText,
    "shape": ShapeText,
    "dtype": DtypeText,
    "seed": Seed,
    "param": Params,
    "set": Overrides,
    "layout": LayoutText,
    "cores": Cores,
    "data": Data,
    "checks": Checks,
    "compute": Compute,
    "on_finding": OnFinding,
    "max_time": MaxTime,
    "max_events": MaxEvents,
    "schedule": ScheduleText,
    "faults": Faults,
    "replay": Replay,
    "chip": Chip,
}
INPUTS = ("slice", "mesh", "shape", "dtype", "seed", "param")
"""Where a FILE runs, and on what."""
PLACE = (*INPUTS, "set", "layout", "cores", "chip")
"""And how the slice is made."""


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with these options of a job between its arguments and its own options; it gets them as ``texts``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [each for each in signature(command, eval_str=True).parameters.values() if each.name != "texts"]
        shared = [Parameter(n, Parameter.KEYWORD_ONLY, default=None, annotation=_OF_A_JOB[n]) for n in names]
        needed = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own if each.default is Parameter.empty]
        others = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own if each.default is not Parameter.empty]

        @wraps(command)
        def with_texts(**given: Any) -> None:
            command(texts={name: given.pop(name) for name in names}, **given)

        parameters = [*needed, *shared, *others]
        made: Any = with_texts
        made.__signature__ = signature(command).replace(parameters=parameters)
        made.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_texts

    return decorate
