"""``tpusim calibrate``: a chip's numbers from published timings, or from microbenchmarks on the TPU that is here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tpusim.calibrate.chip_file import write_chip
from tpusim.calibrate.published import Calibrator, chips_in
from tpusim.calibrate.rows import load_measurements
from tpusim.chips import Quantity, load_chip
from tpusim.cli.console import make_console, styled
from tpusim.errors import OptionError


def calibrate(
    file: Annotated[
        str | None, typer.Option("--from", help="Published timings, such as benchmarks/measured.toml.")
    ] = None,
    chip: Annotated[list[str] | None, typer.Option("--chip", help="Only this chip. Repeatable.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Directory for the chip files.")] = Path(),
) -> None:
    """Fit a chip's numbers to times, with intervals; write a chip file that every command takes as --chip."""
    if out.exists() and not out.is_dir():
        raise OptionError(f"--out takes a directory; {out} is a file")
    if file is None:
        raise OptionError("calibrate needs --from FILE with timings, such as benchmarks/measured.toml")
    measured = load_measurements(file)
    console = make_console()
    calibrator = Calibrator(measured, lambda text: typer.echo(text, err=True))
    for name in chip or chips_in(measured):
        found = calibrator.calibrate(name)
        path = out / f"{name}-calibrated.toml"
        write_chip(path, name, f"{load_chip(name).description}, fitted to {Path(file).name}", found.numbers)
        console.print(styled(f"{name}: {path}", "bold"))
        show_numbers(console, found.numbers, name)
        for row, left in found.residuals_us.items():
            console.print(styled(f"  row {row}: predicted less measured {left:+.3f} us", "dim"))


def show_numbers(console: Console, numbers: dict[str, Quantity], name: str) -> None:
    """Each number with its interval, its basis, and the shipped chip's value."""
    old = dict(load_chip(name).rows())
    width = max((len(path) for path in numbers), default=0)
    for path, quantity in numbers.items():
        low, high = quantity.interval
        text = f"  {path:<{width}}  {quantity.number:.4g} {quantity.unit}  ({low:.4g} to {high:.4g}, "
        console.print(styled(f"{text}{quantity.confidence}; shipped {old[path].number:.4g})"))
