"""``tpusim costs build``: the table of compute costs, made anew by the TPU compiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tpusim.costs.table import TABLE
from tpusim.errors import OptionError


def costs() -> typer.Typer:
    """The commands of ``tpusim costs``."""
    app = typer.Typer(help="The table that default compute cost rests on.", no_args_is_help=True)
    app.callback()(lambda: None)  # so that its one command keeps its name
    app.command()(build)
    return app


def build(
    output: Annotated[Path, typer.Option("--output", help="The JSON file to write.")] = Path("compute_costs.json"),
    chips: Annotated[str, typer.Option("--chips", help="Chips to compile for; the others stay as they are.")] = (
        "v5e,v5p,v6e,v7x"
    ),
) -> None:
    """Make the table anew with the TPU compiler of this Python; needs the tpu extra, and no TPU.

    v4 uses the table of v5p: the compiler gives no cycles for it.  Exit status: 0 written; 2 bad arguments.
    """
    from tpusim.pallas.compiler import require_compiler

    require_compiler("tpusim costs build")
    from tpusim.pallas.cost_table import CHIPS
    from tpusim.pallas.cost_table import build as build_table

    chosen = tuple(chips.split(","))
    wrong = [chip for chip in chosen if chip not in CHIPS]
    if wrong:
        raise OptionError(f"--chips: no table is built for {wrong[0]!r}. Possible: {', '.join(CHIPS)}")
    document = build_table(json.loads(TABLE.read_text(encoding="utf-8")), chosen)
    try:
        output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot write {output}: {error.strerror}") from None
    typer.echo(f"{output}: {', '.join(chosen)} by libtpu {document['provenance']['libtpu']}")
