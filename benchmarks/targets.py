"""The figures of speed that tpusim is held to, and where in the tables of the benchmarks each is found.

A benchmark prints a table of its own; a target names the part, its row and the number in it.  What is read is what
a person sees there, so a table that changes its columns shows here as a figure that is wrong or missing.
"""

import re
from typing import NamedTuple


class Target(NamedTuple):
    """``what`` is ``number`` of the row of ``part`` that begins with ``row``, at least or at most ``limit``.

    ``row`` is an expression; of several rows that match the worst counts.  ``number`` counts the row's numbers behind
    its name, from the end where negative.  ``over``: it is divided by the same number of that row.
    """

    issue: int
    what: str
    part: str
    row: str
    number: int
    sense: str
    limit: float
    unit: str = ""
    over: str = ""

    @property
    def wanted(self) -> str:
        """``at least 80,000 DMAs/s``."""
        return f"{'at least' if self.sense == '>=' else 'at most'} {self.limit:,g}{self.unit}"

    def reached(self, lines: list[str]) -> float | None:
        """The figure among the lines of its part; ``None`` where it is not there."""
        found = [
            numbers[self.number] for numbers in _numbers(lines, self.row) if -len(numbers) <= self.number < len(numbers)
        ]
        if not found:
            return None
        worst = min(found) if self.sense == ">=" else max(found)
        if not self.over:
            return worst
        base = [numbers[self.number] for numbers in _numbers(lines, self.over)]
        return worst / base[0] if base and base[0] else None

    def is_met(self, value: float) -> bool:
        """Whether a figure is good enough."""
        return value >= self.limit if self.sense == ">=" else value <= self.limit


def _numbers(lines: list[str], row: str) -> list[list[float]]:
    """The numbers behind the name of each row that begins with the expression ``row``."""
    rests = [line[match.end() :] for line in lines if (match := re.match(row, line))]
    return [[float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*(?:\.\d+)?", rest)] for rest in rests]


def _captured(row: str, off: float | None, on: float | None, what: str) -> list[Target]:
    sides = [(3, off, "checks off"), (4, on, "checks on")]
    return [
        Target(3, f"{what}, {side}", "captured", rf"{row} ", number, ">=", limit, "x faster than interpret mode")
        for number, limit, side in sides
        if limit is not None
    ]


_WITH_A_FIRST_CALL = r"(?!us-|256-|matmul|paged-gather-20000)[a-z]+-?\S* "
"""Rows of the captured kernels that are held against interpret mode's first call."""

TARGETS = [
    Target(2, "`import tpusim`", "import", "tpusim", 0, "<=", 300, " ms"),
    Target(2, "ring all-gather, 16 devices", "native", "16 devices", 2, ">=", 80_000, " DMAs/s"),
    Target(2, "ring all-gather, 16 devices, over a bare SimPy loop", "native", "16 devices", 4, ">=", 0.35, "x"),
    Target(2, "a DMA on 256 devices over one on 16", "native", "256 devices", 1, "<=", 1.5, "x", "16 devices"),
    Target(2, "a DMA on 1,024 over one on 16", "native", "1,024 devices, no data", 1, "<=", 1.5, "x", "16 devices"),
    Target(2, "one ring step, v5p:16x16x24", "pod", r"one ring step, v5p:16x16x24", 0, "<=", 5, " s"),
    Target(2, "3-axis ring all-gather there", "pod", "3-axis ring all-gather, v5p:16x16x24", 0, "<=", 90, " s"),
    Target(2, "3-axis ring all-gather, memory", "pod", "3-axis ring all-gather, v5p:16x16x24", -1, "<=", 6, " GiB"),
    Target(2, "direct all-to-all, v6e:8x8", "pod", r"direct all-to-all, v6e:8x8", 0, "<=", 5, " s"),
    Target(2, "direct all-to-all, v6e:16x16", "pod", r"direct all-to-all, v6e:16x16", 0, "<=", 180, " s"),
    *_captured("all-gather-8", 100, 50, "ring all-gather 8x128, 8 devices"),
    *_captured("all-gather-32", 150, 80, "ring all-gather 8x128, 32 devices"),
    *_captured("all-gather-64", 150, 80, "ring all-gather 8x128, 64 devices"),
    *_captured("reduce-scatter-8", 80, 50, "ring reduce-scatter 8x128, 8 devices"),
    *_captured("reduce-scatter-32", 150, 100, "ring reduce-scatter 8x128, 32 devices"),
    *_captured("all-gather-8-1MB", 15, 12, "ring all-gather 256x1024, 8 devices"),
    *_captured("all-gather-16-1MB", 15, 12, "ring all-gather 256x1024, 16 devices"),
    *_captured("paged-gather-2048", None, 1_000, "paged gather, 2,048 steps"),
    Target(
        3, "paged gather, a step of 20,000 over one of 2,048", "captured", "paged-gather-20000 ", -1, "<=", 1.25, "x",
        over="paged-gather-2048 ",
    ),
    *_captured("flash", 12, None, "small flash attention"),
    Target(3, "matmul 2048^3 over its bare products", "captured", "matmul-512 ", 3, "<=", 1.3, "x"),
    Target(
        3, "trace, lower, first run, the least", "captured", _WITH_A_FIRST_CALL, -3, ">=", 2,
        "x faster than interpret mode's first call",
    ),
    Target(3, "a captured DMA, checks off", "captured", "us-a-copy ", -2, "<=", 8, " us"),
    Target(3, "a captured DMA, checks on", "captured", "us-a-copy ", -1, "<=", 16, " us"),
    Target(3, "256 devices, 65,536 copies, checks on", "captured", "256-devices ", 1, "<=", 1_200, " ms"),
    Target(4, "checks over none, the most", "checks", r".*, [\d,]+(?: devices)?\s{2,}", 3, "<=", 3, "x"),
    Target(
        4, "a DMA with checks, 100,000 over 100", "checks", "sequential local, 1 range, 100,000", 1, "<=", 1.25, "x",
        over="sequential local, 1 range, 100 ",
    ),
    Target(4, "native all-gather, 16 devices, checks on", "native-checked", "16 devices", 2, ">=", 40_000, " DMAs/s"),
    Target(4, "proof, ring all-gather, 16 devices", "proof", "ring all-gather, 16 devices", 5, "<=", 0.1, " s"),
    Target(4, "proof, ring all-gather, 64 devices", "proof", "ring all-gather, 64 devices", 5, "<=", 1, " s"),
    Target(4, "proof, ring all-gather, 128 devices", "proof", "ring all-gather, 128 devices", 5, "<=", 5, " s"),
    Target(4, "proof, all-reduce with credits, 64 devices", "proof", "all_reduce, 64 devices", 5, "<=", 3, " s"),
    Target(4, "proof, gather of 2,048 steps", "proof", "double-buffered gather, 2,048 steps", 5, "<=", 5, " s"),
    Target(6, "a DMA on 6,144 devices over one on 16, native", "scale", r"native\s+6144", -1, "<=", 2, "x"),
    Target(6, "a DMA on 6,144 devices over one on 16, captured", "scale", r"captured\s+6144", -1, "<=", 2, "x"),
    Target(6, "report of 64 chips, 4,032 copies: opens", "page", r"report.html\s+opens", 0, "<=", 1_500, " ms"),
    Target(6, "report of 64 chips: a frame of a pan", "page", r"report.html\s+pan, [a-z ]+", 0, "<=", 100, " ms"),
]  # fmt: skip


def summary(lines: dict[str, list[str]]) -> str:
    """A Markdown table of all targets of the parts that were run; ``lines``: what each part printed."""
    rows = ["| issue | figure | target | reached | |", "|---|---|---|---|---|"]
    for target in TARGETS:
        if target.part not in lines:
            continue
        value = target.reached(lines[target.part])
        reached = "not measured" if value is None else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
        mark = "" if value is None else "yes" if target.is_met(value) else "**no**"
        rows.append(f"| {target.issue} | {target.what} | {target.wanted} | {reached} | {mark} |")
    return "\n".join(rows)
