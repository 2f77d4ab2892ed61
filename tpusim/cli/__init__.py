"""The command line: ``tpusim run | kernels | chips | doctor | new``.

Exit status of every command: 0 right; 1 a finding of severity error or a wrong result; 2 bad arguments,
one line on standard error; 3 not modelled, or not possible on this computer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from tpusim.cli.chips import chips
from tpusim.cli.console import one_line
from tpusim.cli.doctor import doctor, version_of
from tpusim.cli.kernels import kernels
from tpusim.cli.new import new
from tpusim.cli.run import run
from tpusim.cli.status import Status
from tpusim.errors import NotModelledError, OptionError


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its status; ``arguments`` default to those of the process."""
    command = typer.main.get_command(_app())
    try:
        command(list(arguments) if arguments is not None else None, prog_name="tpusim")
    except OptionError as error:
        typer.echo(f"Error: {one_line(error)}", err=True)
        sys.exit(Status.BAD_ARGUMENTS)
    except NotModelledError as error:
        typer.echo(f"Error: {one_line(error)}", err=True)
        sys.exit(Status.NOT_POSSIBLE)
    sys.exit(Status.RIGHT)


def _app() -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Run one TPU DMA program on an ordinary computer: its data, its time and a verdict.",
    )
    for command in (run, kernels, chips, doctor, new):
        app.command()(command)
    app.callback()(_options)
    return app


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        typer.echo(f"tpusim {version_of('tpusim')}")
        raise typer.Exit
