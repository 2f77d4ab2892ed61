"""``tpusim exec -- script.py ARGS``: an unmodified program, its Pallas kernels on the simulated machine."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from tpusim.cli.console import make_console, plain, styled
from tpusim.cli.options import Texts, takes
from tpusim.cli.request import check_writable, read_options
from tpusim.cli.run import write_json
from tpusim.errors import OptionError
from tpusim.job import Status
from tpusim.units import json_safe

if TYPE_CHECKING:
    from tpusim.pallas.inplace import Interception

_MOST_PROBLEMS = 10
_INTERRUPTED = 130


@takes(
    "seed", "set", "layout", "cores", "checks", "on_finding", "max_time", "max_events", "schedule", "faults", "replay",
    "chip",
)  # fmt: skip
def exec_(
    command: Annotated[
        list[str], typer.Argument(help="script.py ARGS, or -- -m module ARGS", metavar="-- COMMAND", show_default=False)
    ],
    texts: Texts,
    slice_: Annotated[str, typer.Option("--slice", help="Slice of chips, one CPU device for each.")] = "v5e:2x2",
    arrive_timeout: Annotated[
        float, typer.Option(help="Seconds that a device waits at a kernel for the others of its mesh.")
    ] = 60,
    json_file: Annotated[str | None, typer.Option("--json", help="Write the calls as JSON; - for stdout.")] = None,
) -> None:
    """Run a Python program with its Pallas kernels on the simulated machine.

    Exit status: that of the program where it is not 0; 1 a finding of severity error, else 0; 2 bad
    arguments; 3 not possible on this computer.
    """
    options = read_options({"slice": slice_, **texts})
    check_writable(json_file)
    program = _Program(command)
    from tpusim.pallas import intercept_process

    sim = intercept_process(options, arrive_timeout)
    is_json_out = json_file == "-"
    # what the program prints is no part of the JSON
    quiet = contextlib.redirect_stdout(sys.stderr) if is_json_out else contextlib.nullcontext()
    began = time.perf_counter()
    with quiet:
        status = program.run(sim)
        sys.stdout.flush()
    wall_s = time.perf_counter() - began
    status = status or (Status.RIGHT if sim.ok else Status.WRONG)
    _show(sim, slice_)
    if json_file is not None:
        values = {"ok": status == 0, "status": status, "slice": slice_, "command": command, "wall_s": wall_s}
        write_json(json_safe({**values, "calls": [call.as_dict() for call in sim.calls]}), json_file)
    raise typer.Exit(status)


class _Program:
    """``script.py ARGS`` or ``-m module ARGS``, run as Python itself does."""

    def __init__(self, command: Sequence[str]) -> None:
        self.is_module = command[0] == "-m"
        self.name, self.arguments = "", list(command[1:])
        if not self.is_module:
            self.name = command[0]
            if not Path(self.name).exists():
                raise OptionError(f"{self.name}: no such file")
        elif self.arguments:
            self.name = self.arguments.pop(0)
        else:
            raise OptionError("-m needs the name of a module")

    def run(self, sim: Interception) -> int:
        """Run it to its end; its exit status."""
        sys.argv = [self.name, *self.arguments]
        folder = os.getcwd() if self.is_module else str(Path(self.name).resolve().parent)
        if not sys.flags.safe_path:
            sys.path[0] = folder
        try:
            with sim:
                if self.is_module:
                    runpy.run_module(self.name, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(self.name, run_name="__main__")
        except SystemExit as exit_:
            return _status(exit_.code)
        except KeyboardInterrupt as error:
            _print(error)
            return _INTERRUPTED
        except BaseException as error:  # noqa: BLE001 - as Python does at the end of a script
            _print(error)
            return 1
        return 0


def _status(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    sys.stdout.flush()
    print(code, file=sys.stderr)  # noqa: T201 - as Python does
    return 1


def _print(error: BaseException) -> None:
    """The traceback, without the frames of whoever ran the program."""
    sys.stdout.flush()
    frames: TracebackType | None = error.__traceback__
    own = {__file__, runpy.__file__, "<frozen runpy>"}
    while frames is not None and frames.tb_frame.f_code.co_filename in own:
        frames = frames.tb_next
    if frames is not None:
        error = error.with_traceback(frames)
    sys.excepthook(type(error), error, error.__traceback__)


def _show(sim: Interception, slice_: str) -> None:
    """The calls as a table on standard error, then what was wrong with them."""
    from tpusim.pallas.calls import table

    console = make_console(sys.stderr)
    count = len(sim.calls)
    console.print(styled(f"tpusim: {count} kernel call{'s' if count != 1 else ''} on {slice_}", "bold"))
    if count:
        for line in table(call.as_dict() for call in sim.calls):
            console.print(plain(line))
    problems = list(dict.fromkeys(text for call in sim.calls for text in call.problems()))
    for text in problems[:_MOST_PROBLEMS]:
        console.print(styled(text, "red"))
    if len(problems) > _MOST_PROBLEMS:
        console.print(styled(f"... and {len(problems) - _MOST_PROBLEMS} more errors; --json has them all", "dim"))
