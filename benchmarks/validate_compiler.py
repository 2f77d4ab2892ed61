"""Simulated times of one-chip kernels against the TPU compiler's own estimate of the whole kernel.

``python benchmarks/validate_compiler.py [--chips v5e,v5p,v6e] [--only TEXT] [--json FILE]``

Needs the ``tpu`` extra, and no TPU.  Both sides are models of the compiler's making: what is tested is that a time
put together from pieces of work, copies and waits is the time of the whole.  So the machine takes the profile
``compiler``: the compiler's start latencies, and no contention, which its model has not.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from compiler_kernels import Case, cases

from tpusim.chips import load_chip
from tpusim.pallas import simulate
from tpusim.pallas.compiler import compile_programs, lower
from tpusim.topology import Slice


class Row(NamedTuple):
    """One kernel on one chip, in cycles."""

    chip: str
    name: str
    compiler: int | None
    exact: float
    default: float
    low: float
    high: float
    note: str | None

    def error(self, how: str) -> float:
        """Relative error of a mode."""
        return getattr(self, how) / self.compiler - 1 if self.compiler else float("nan")


def rows(chip: str, chosen: list[Case]) -> Iterator[Row]:
    """Every case on a chip."""
    spec = load_chip(chip)
    place = str(Slice.smallest(chip, 1))
    cycles = spec.clock_hz / 1e12
    programs = [lower(case.function, case.shapes, chip) for case in chosen]
    for case, whole in zip(chosen, compile_programs(programs, chip, timeout_s=300), strict=True):
        times = {}
        for compute in ("exact", "default"):
            run = simulate(case.function, slice=place, chip="compiler", data=False, checks="none", compute=compute)
            run(*case.shapes)
            times[compute] = run.result
        usual = times["default"]
        low, high = (end * 1e6 * cycles for end in usual.interval_us)
        yield Row(
            chip,
            case.name,
            whole.cycles,
            int(times["exact"].time) * cycles,
            int(usual.time) * cycles,
            low,
            high,
            whole.error or whole.note,
        )


def main() -> None:
    """Print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", default="v5e,v5p,v6e")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    warnings.simplefilter("always")
    chosen = [case for case in cases() if options.only in case.name]
    found: list[Row] = []
    for chip in options.chips.split(","):
        print(f"\n{chip:<38} {'compiler':>9} {'exact':>9} {'error':>7} {'default':>9} {'error':>7}  interval")
        for row in rows(chip, chosen):
            if row.compiler is None:
                print(f"{row.name:<38} {'none':>9} {row.exact:9.0f} {'':>7} {row.default:9.0f}   {row.note}")
                continue
            found.append(row)
            inside = row.low <= row.compiler <= row.high
            print(
                f"{row.name:<38} {row.compiler:9d} {row.exact:9.0f} {row.error('exact'):+7.1%} {row.default:9.0f} "
                f"{row.error('default'):+7.1%}  {row.low:.0f} to {row.high:.0f}{'' if inside else '  outside'}",
                flush=True,
            )
        _figures(chip, [row for row in found if row.chip == chip])
    _figures("all", found)
    if options.json is not None:
        options.json.write_text(json.dumps([row._asdict() for row in found], indent=1), encoding="utf-8")


def _figures(title: str, found: list[Row]) -> None:
    if not found:
        return
    line: list[Any] = [f"{title}: {len(found)} kernels"]
    for how in ("exact", "default"):
        errors = [abs(row.error(how)) for row in found]
        line.append(f"{how} median {median(errors):.1%}, worst {max(errors):.1%}")
    inside = sum(row.low <= row.compiler <= row.high for row in found if row.compiler is not None)
    print("; ".join([*line, f"compiler inside the interval {inside / len(found):.0%}"]))


if __name__ == "__main__":
    main()
