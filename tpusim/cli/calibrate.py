"""``tpusim calibrate``: a chip's numbers from published timings, or from microbenchmarks on the TPU that is here."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tpusim.calibrate import microbenchmarks
from tpusim.calibrate.chip_file import write_chip
from tpusim.calibrate.microbenchmarks import COUNTS
from tpusim.calibrate.on_device import calibrate_device, plan, title
from tpusim.calibrate.published import Calibrator, chips_in
from tpusim.calibrate.rows import load_measurements
from tpusim.chips import Quantity, load_chip
from tpusim.cli.console import make_console, styled
from tpusim.errors import OptionError
from tpusim.job import Status
from tpusim.topology import Slice

if TYPE_CHECKING:
    from tpusim.pallas.remote import Timed


def calibrate(
    file: Annotated[
        str | None, typer.Option("--from", help="Published timings, such as benchmarks/measured.toml.")
    ] = None,
    chip: Annotated[list[str] | None, typer.Option("--chip", help="Only this chip. Repeatable.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Directory for the chip files.")] = Path(),
    slice_: Annotated[
        str | None, typer.Option("--slice", help="The TPU slice that is here: run microbenchmarks on it.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each microbenchmark.")] = 20,
) -> None:
    """Fit a chip's numbers to times, with intervals; write a chip file that every command takes as --chip.

    With --from, to published timings; with --slice, to microbenchmarks on the TPU of this computer.
    """
    if out.exists() and not out.is_dir():
        raise OptionError(f"--out takes a directory; {out} is a file")
    console = make_console()
    if file is None:
        if not slice_:
            raise OptionError("calibrate needs --from FILE with timings, or --slice of the TPU that is here")
        _on_tpu(console, slice_, repeats, out)
        return
    if slice_:
        raise OptionError("calibrate takes --from FILE or --slice, not both")
    measured = load_measurements(file)
    calibrator = Calibrator(measured, lambda text: typer.echo(text, err=True))
    for name in chip or chips_in(measured):
        found = calibrator.calibrate(name)
        path = out / f"{name}-calibrated.toml"
        write_chip(path, name, f"{load_chip(name).description}, fitted to {Path(file).name}", found.numbers)
        console.print(styled(f"{name}: {path}", "bold"))
        show_numbers(console, found.numbers, name)
        for row, left in found.residuals_us.items():
            console.print(styled(f"  row {row}: predicted less measured {left:+.3f} us", "dim"))


def _on_tpu(console: Console, slice_: str, repeats: int, out: Path) -> None:
    """Run the microbenchmarks on a TPU and fit its numbers to them."""
    from tpusim.pallas.remote import Run, run_all, tpu_missing

    where = Slice.parse(slice_)
    devices, chip = where.num_devices, load_chip(where.chip)
    missing = tpu_missing()
    if missing is not None:
        typer.echo(f"Error: calibrate --slice {slice_}: {missing}", err=True)
        raise typer.Exit(Status.NOT_POSSIBLE)
    wanted = [{**parameters, "count": count} for parameters in plan(devices) for count in COUNTS]
    typer.echo(f"{len(wanted)} microbenchmarks on {devices} devices", err=True)
    runs = [Run(microbenchmarks.__file__, {"x": devices}, parameters) for parameters in wanted]
    timed = dict(zip(map(title, wanted), run_all(runs, repeats=repeats), strict=True))
    for name, one in timed.items():
        if one.median_us is None:
            raise OptionError(f"no device time of {name}: {one.error or 'the profile has no TPU'}")
    numbers, solution = calibrate_device(
        chip, slice_, devices, lambda parameters: _time_of(timed[title(parameters)]), lambda text: None
    )
    path = out / f"{chip.name}-measured.toml"
    write_chip(path, chip.name, f"{chip.description}, measured on {slice_}", numbers)
    console.print(styled(f"{chip.name}: {path}", "bold"))
    show_numbers(console, numbers, chip.name)
    for row, left in solution.residuals_us.items():
        console.print(styled(f"  {row}: predicted less measured {left:+.3f} us", "dim"))


def _time_of(timed: Timed) -> tuple[float, float]:
    """The middle of the times, and half of what the middle half of them spans."""
    ordered = sorted(timed.times_us)
    quarter = len(ordered) // 4
    return median(ordered), (ordered[-1 - quarter] - ordered[quarter]) / 2


def show_numbers(console: Console, numbers: dict[str, Quantity], name: str) -> None:
    """Each number with its interval, its basis, and the shipped chip's value."""
    old = dict(load_chip(name).rows())
    width = max((len(path) for path in numbers), default=0)
    for path, quantity in numbers.items():
        low, high = quantity.interval
        text = f"  {path:<{width}}  {quantity.number:.4g} {quantity.unit}  ({low:.4g} to {high:.4g}, "
        console.print(styled(f"{text}{quantity.confidence}; shipped {old[path].number:.4g})"))
