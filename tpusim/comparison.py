"""Which of two runs is quicker, as far as their times can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tpusim.errors import OptionError
from tpusim.result import Result
from tpusim.units import Duration


@dataclass(frozen=True)
class Comparison:
    """``verdict``: ``a`` or ``b``, whichever is quicker, or ``undecided`` where the intervals of both times overlap.

    ``ratio``: time of b over time of a.
    """

    verdict: Literal["a", "b", "undecided"]
    ratio: float
    a: Duration
    b: Duration
    reason: str

    def __str__(self) -> str:
        """``a is quicker, 3.4 us against 5.1 us: ...``, or ``undecided: ...``."""
        if self.verdict == "undecided":
            return f"undecided: {self.a} against {self.b}, {self.reason}"
        first, second = (self.a, self.b) if self.verdict == "a" else (self.b, self.a)
        return f"{self.verdict} is quicker: {first} against {second}, {self.reason}"


def compare(a: Result, b: Result) -> Comparison:
    """Compare the times of two complete runs.

    Intervals that overlap, or are not known, decide nothing.  Raises ``OptionError`` for a run that stopped on
    its way.
    """
    for name, result in (("a", a), ("b", b)):
        if not result.is_complete:
            raise OptionError(f"compare: run {name} stopped at {result.time}, so it has no time to compare")
    ratio = b.time / a.time if a.time else 1.0 if not b.time else float("inf")
    known = a.interval, b.interval
    if known[0] is None or known[1] is None:
        return Comparison("undecided", ratio, a.time, b.time, "a run has too many operations for an interval")
    if known[0].low <= known[1].high and known[1].low <= known[0].high:
        return Comparison("undecided", ratio, a.time, b.time, f"{known[0]} and {known[1]} overlap")
    reason = f"{known[0]} and {known[1]} do not overlap"
    return Comparison("a" if a.time < b.time else "b", ratio, a.time, b.time, reason)
