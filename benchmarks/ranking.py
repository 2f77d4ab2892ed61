"""Whether the simulator orders block sizes as the TPU compiler does.

``python benchmarks/ranking.py [--chips v5e,v6e] [--compute default]``

Needs the ``tpu`` extra.  Two kernels: the pipelined matmul of ``validate_compiler.py``, and the all-gather matmul's
local part, each device's share of the columns times every block of rows, as a one-device kernel of one call a block
of rows (the compiler gives no cycles for a kernel with remote copies).  For each: is the best by simulation within
the compiler's top three, what does choosing it cost (regret), and how many pairs more than 4 % apart are in order.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from typing import Any

from compiler_kernels import matmul

from tpusim.chips import load_chip
from tpusim.pallas import simulate
from tpusim.pallas.compiler import compile_programs, lower
from tpusim.topology import Slice

CLAIM = 0.04
"""Two tiles nearer than this are not put in order: so good are the compiler's cycles between tiles."""
TILES = [
    (128, 128, 128), (256, 256, 256), (512, 512, 512), (128, 512, 128), (256, 512, 256), (512, 256, 512),
    (256, 1024, 256), (512, 1024, 512), (1024, 512, 1024), (256, 2048, 256), (128, 1024, 256), (256, 512, 512),
    (512, 512, 1024), (1024, 256, 512), (512, 2048, 512), (1024, 1024, 512),
]  # fmt: skip
"""Blocks of rows, depth and columns."""
KERNELS = {"pipelined matmul": (2048, 2048, 2048), "all-gather matmul, local part": (1024, 4096, 1024)}


def measured(chip: str, sizes: tuple[int, int, int], compute: str) -> list[tuple[Any, int, float]]:
    """Tile, the compiler's cycles, simulated cycles."""
    made = [(tile, *matmul(*sizes, *tile)) for tile in TILES]
    whole = compile_programs([lower(fn, shapes, chip) for _, fn, shapes in made], chip, timeout_s=300)
    clock = load_chip(chip).clock_hz / 1e12
    found = []
    for (tile, function, shapes), compiled in zip(made, whole, strict=True):
        run = simulate(
            function, slice=str(Slice.smallest(chip, 1)), chip="compiler", data=False, checks="none", compute=compute
        )
        run(*shapes)
        if compiled.cycles is not None:
            found.append((tile, compiled.cycles, int(run.result.time) * clock))
    return found


def report(title: str, rows: list[tuple[Any, int, float]]) -> None:
    """The order and what it would cost."""
    by_compiler = sorted(rows, key=lambda row: row[1])
    best = min(rows, key=lambda row: row[2])
    place = by_compiler.index(best) + 1
    regret = best[1] / by_compiler[0][1] - 1
    claimed = [(a, b) for a, b in combinations(rows, 2) if abs(a[2] / b[2] - 1) > CLAIM]
    right = sum((a[2] < b[2]) == (a[1] < b[1]) for a, b in claimed)
    print(
        f"{title}: {len(rows)} tiles, simulated best {best[0]} is number {place} by the compiler, regret {regret:.1%}; "
        f"{right} of {len(claimed)} claimed pairs in order"
    )


def main() -> None:
    """Print the figures for each chip and kernel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", default="v5e,v6e")
    parser.add_argument("--compute", default="default", choices=("default", "exact"))
    options = parser.parse_args()
    for chip in options.chips.split(","):
        for name, sizes in KERNELS.items():
            report(f"{chip}, {name}", measured(chip, sizes, options.compute))


if __name__ == "__main__":
    main()
