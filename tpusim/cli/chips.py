"""``tpusim chips [NAME]``: what is known of each chip, and from where."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from tpusim.chips import ChipSpec, Quantity, chip_names, load_chip
from tpusim.cli.console import make_console, styled
from tpusim.units import format_bytes, format_rate, json_safe

_COLUMNS = ("chip", "HBM", "HBM copies", "VMEM", "links", "one way", "")


def chips(
    name: Annotated[
        str | None, typer.Argument(help="A chip, or the path of your own TOML.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show chips and what is known of them.

    With NAME every number of that chip, with its unit, source, confidence, interval and note.
    """
    shown = [load_chip(name)] if name is not None else [load_chip(each) for each in chip_names()]
    if as_json:
        values = [_as_dict(chip) for chip in shown]
        typer.echo(json.dumps(json_safe(values if name is None else values[0]), indent=2, allow_nan=False))
    elif name is None:
        _show_all(make_console(), shown)
    else:
        _show_one(make_console(), shown[0])


def _as_dict(chip: ChipSpec) -> dict[str, Any]:
    identity = chip.model_dump(mode="json", include={"name", "description", "device_kind", "simulated", "torus_dims"})
    return identity | {"quantities": {path: quantity.model_dump(mode="json") for path, quantity in chip.rows()}}


def _show_all(console: Console, shown: list[ChipSpec]) -> None:
    rows = [_COLUMNS, *(_row(chip) for chip in shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for position, row in enumerate(rows):
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        console.print(styled("  ".join(cells).rstrip(), "dim" if position == 0 else ""))
    console.print(styled("One chip with all its sources: tpusim chips v5e", "dim"))


def _row(chip: ChipSpec) -> tuple[str, ...]:
    return (
        chip.name,
        _bytes(chip.hbm.capacity),
        _rate(chip.hbm.bandwidth),
        _bytes(chip.vmem.capacity),
        str(chip.ici.links),
        _rate(chip.ici.link_bandwidth),
        chip.description,
    )


def _bytes(quantity: Quantity) -> str:
    return "unknown" if quantity.value is None else format_bytes(quantity.integer)


def _rate(quantity: Quantity) -> str:
    return "unknown" if quantity.value is None else format_rate(quantity.number)


def _show_one(console: Console, chip: ChipSpec) -> None:
    console.print(styled(f"{chip.name}: {chip.description}", "bold"))
    rows = list(chip.rows())
    name_width = max(len(path) for path, _ in rows)
    value_width = max(len(str(quantity)) for _, quantity in rows)
    indent = " " * (name_width + 2)
    for path, quantity in rows:
        line = styled(f"{path:<{name_width}}  {quantity!s:<{value_width}}  ")
        line.append_text(styled(f"{quantity.confidence:<10}", _STYLES.get(quantity.confidence, "")))
        line.append_text(styled(f"  {quantity.source}", "dim"))
        line.rstrip()
        console.print(line)
        if quantity.low is not None or quantity.high is not None:
            low, high = quantity.interval
            console.print(styled(f"{indent}{low:g} to {high:g} {quantity.unit}".rstrip(), "dim"))
        if quantity.note:
            console.print(styled(f"{indent}{quantity.note}", "dim"))
    console.print(styled("Change one for a run: tpusim run FILE --set ici.link_bandwidth=90e9", "dim"))


_STYLES = {"estimate": "yellow", "low": "yellow", "unknown": "yellow", "override": "magenta"}
