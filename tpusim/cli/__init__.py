"""The command line: ``tpusim COMMAND``; each command is a module here.

Exit status of every command: 0 right; 1 a finding of severity error or a wrong result; 2 bad arguments,
one line on standard error; 3 not modelled, or not possible on this computer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, NoReturn

import typer

from tpusim.cli import (
    calibrate,
    chips,
    costs,
    crosscheck,
    doctor,
    exec,
    explain,
    explore,
    kernels,
    lint,
    new,
    report,
    run,
    sweep,
    time,
    verify,
)
from tpusim.cli.console import never_fail_to_encode, one_line
from tpusim.cli.run import write_json
from tpusim.errors import MissingExtraError, NotModelledError, OptionError
from tpusim.job import Status
from tpusim.job.userfault import UserCodeError

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What click raises for arguments that it cannot read, of whichever click typer brings."""
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its status; ``arguments`` default to those of the process."""
    from tpusim.pallas.host import quiet_libtpu

    never_fail_to_encode()
    quiet_libtpu()  # before a FILE imports jax
    command = typer.main.get_command(_app())
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        status = command(given, prog_name="tpusim", standalone_mode=False)
    except _UsageError as error:
        _fail_usage(error, given)
    except typer.Abort:  # Ctrl-C, in some versions of typer
        sys.exit(_INTERRUPTED)
    except (MissingExtraError, NotModelledError) as error:
        _fail(one_line(error), Status.NOT_POSSIBLE, given)
    except OptionError as error:
        _fail(one_line(error), Status.BAD_ARGUMENTS, given)
    except UserCodeError as error:
        _fail(str(error), Status.WRONG, given)
    sys.exit(status if isinstance(status, int) else Status.RIGHT)


def _fail_usage(error: Any, given: Sequence[str]) -> NoReturn:
    text = error.format_message()
    if "\n" in text:  # a group of commands without one of them: its help
        typer.echo(text, err=True)
        sys.exit(Status.BAD_ARGUMENTS)
    where = error.ctx.command_path if error.ctx is not None else "tpusim"
    _fail(f"{one_line(text)} (see {where} -h)", Status.BAD_ARGUMENTS, given)


def _fail(text: str, status: Status, given: Sequence[str]) -> NoReturn:
    """One line on standard error; who asked for JSON on standard output gets it."""
    typer.echo(f"Error: {text}", err=True)
    own = given[: given.index("--")] if "--" in given else given
    if "--json=-" in own or ("--json", "-") in pairwise(own):
        write_json({"ok": False, "error": text}, "-")
    sys.exit(status)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"tpusim {doctor.version_of('tpusim')}")
        raise typer.Exit


def _app() -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Run one TPU DMA program on an ordinary computer: its data, its time and a verdict.",
    )
    app.add_typer(costs.costs(), name="costs")
    commands = (
        run.run, lint.lint, report.report, sweep.sweep, calibrate.calibrate, time.time, kernels.kernels,
        chips.chips, doctor.doctor, new.new,
    )  # fmt: skip
    for command in commands:
        app.command()(command)
    app.command("explain")(explain.explain_)
    app.command("verify")(verify.verify)
    app.command("explore")(explore.explore_)
    app.command("crosscheck")(crosscheck.crosscheck_)
    # options end where the program begins: what follows is its own
    app.command("exec", context_settings={"allow_interspersed_args": False})(exec.exec_)
    app.callback()(_options)
    return app


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Options before the command."""
