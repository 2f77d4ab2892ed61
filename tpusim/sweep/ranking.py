"""Which rows are the best, and which of them nobody can tell apart.

Two runs on one chip share the errors of its numbers: a link that is slower than thought slows both.  So what counts
is the interval of the *difference*: each number's effect on the one run less its effect on the other, in quadrature,
and 4 % of the time for what no number accounts for (the TPU compiler's own cycles order tiles no better than that).
Rows of different chips, or without effects, tie where their intervals overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from typing import Literal, NamedTuple

from tpusim.sweep.row import Row

Objective = Literal["time", "ratio"]
"""``time``: simulated microseconds; ``ratio``: time over the lower bound, to compare problems of different size."""
UNORDERED = 0.04
"""Share of a time below which no order is claimed."""


class Place(NamedTuple):
    """A row in its place; ``is_tie``: no telling whether it is slower than the first."""

    rank: int
    row: Row
    is_tie: bool


def score(row: Row, objective: Objective) -> float | None:
    """What is to be small; ``None`` for a row that is not right, or whose lower bound is not known."""
    if row["status"] != "right":
        return None
    value: float | None = row["time_us" if objective == "time" else "ratio"]
    return value


def ranked(rows: Sequence[Row], objective: Objective) -> list[Place]:
    """The rows with a score, the best first; equal ones in the order in which they came."""
    scored = [(value, row) for row in rows if (value := score(row, objective)) is not None]
    scored.sort(key=lambda pair: pair[0])
    if not scored:
        return []
    best_score, best = scored[0]
    return [
        Place(rank, row, row is not best and is_tie(best, row, value / best_score if best_score else 1.0, objective))
        for rank, (value, row) in enumerate(scored, 1)
    ]


def is_tie(best: Row, other: Row, factor: float, objective: Objective) -> bool:
    """Whether ``other``, whose score is ``factor`` times the best one's, may be as good."""
    if factor <= 1 + UNORDERED:
        return True
    if objective != "time":
        return False
    if best["chip"] == other["chip"] and best["effects"] and other["effects"]:
        return bool(other["time_us"] - best["time_us"] <= _spread(best, other))
    if best["high_us"] is None or other["low_us"] is None:
        return False
    return bool(other["low_us"] <= best["high_us"])


def _spread(best: Row, other: Row) -> float:
    """How much the difference of two times on one chip can be off, in microseconds."""
    none = (0.0, 0.0)
    parts = [UNORDERED * other["time_us"]]
    for name in sorted(best["effects"].keys() | other["effects"].keys()):
        shorter, longer = best["effects"].get(name, none)
        other_shorter, other_longer = other["effects"].get(name, none)
        # the order turns where the best is longer by more, or shorter by less, than the other
        parts.append(max(0.0, longer - other_longer, other_shorter - shorter))
    return hypot(*parts)
