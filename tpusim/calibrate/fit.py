"""From times to a chip's numbers: least squares, with an interval for each number.

A fitted number is no better than the rows (their sigma), nor than what the model holds beside it: where only the sum
of a latency and a core's cycles shows in a time, the latency inherits what is not known of the cycles.  So its
interval has both: the covariance of the least squares, and how far the solution moves when each other number that
the rows depend on goes to either end of its own interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from tpusim.chips import ChipSpec, Quantity
from tpusim.errors import MissingExtraError, OptionError

_Vector = np.ndarray[Any, np.dtype[np.float64]]
_LOWEST = 1e-3
"""A number may fall to this part of where it began: it stays positive."""


@dataclass(frozen=True)
class Observation:
    """A measured time in microseconds, how sure it is, and the prediction of it for any chip, in picoseconds."""

    name: str
    us: float
    sigma_us: float
    time_ps: Callable[[ChipSpec], float]
    used: Mapping[str, Quantity]


class Fitted(NamedTuple):
    """A number with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Solution:
    """Fitted numbers by name, without those that show in no time, and what is left of each observation.

    ``residuals_us``: predicted less measured, in microseconds.
    """

    numbers: dict[str, Fitted]
    residuals_us: dict[str, float]
    chip: ChipSpec
    """The chip with these numbers."""


def fit(chip: ChipSpec, names: Sequence[str], observations: Sequence[Observation]) -> Solution:
    """Numbers of ``chip`` such that it predicts the observations; the others stay as they are.

    Raises ``OptionError`` where there are fewer observations than numbers, or none depends on a number, and
    without SciPy.
    """
    if len(observations) < len(names):
        raise OptionError(f"{len(names)} numbers ({', '.join(names)}) cannot follow from {len(observations)} times")
    rows = dict(chip.rows())
    start = np.array([rows[name].number for name in names])
    for name, value in zip(names, start, strict=True):
        if value == 0:
            raise OptionError(f"{name} is 0 on {chip.name}: a fit needs a value to begin from")
        if not any(name in observation.used for observation in observations):
            raise OptionError(f"no time given depends on {name}")

    def residuals(scales: _Vector, base: ChipSpec = chip) -> _Vector:
        shifted = base.with_values(dict(zip(names, (start * scales).tolist(), strict=True)))
        return np.array([(o.time_ps(shifted) / 1e6 - o.us) / o.sigma_us for o in observations])

    found = _least_squares()(
        residuals, np.ones(len(names)), bounds=(_LOWEST, np.inf), diff_step=1e-3, x_scale="jac", xtol=1e-10
    )
    scales: _Vector = found.x
    inverse = np.linalg.pinv(found.jac)
    spread = (inverse**2).sum(axis=1)
    low, high = spread.copy(), spread.copy()
    for path, quantity in _others(names, observations).items():
        ends = [residuals(scales, chip.with_values({path: end})) for end in quantity.interval]
        moves = np.array([-inverse @ (end - found.fun) for end in ends])
        low += np.minimum(moves.min(axis=0), 0.0) ** 2
        high += np.maximum(moves.max(axis=0), 0.0) ** 2
    values = start * scales
    shown = np.abs(found.jac).max(axis=0) > 0
    numbers = {
        name: Fitted(float(value), float(max(0.0, value - abs(begin) * sqrt(down))), float(value + begin * sqrt(up)))
        for name, value, begin, down, up in zip(names, values, start, low, high, strict=True)
        if shown[names.index(name)]
    }
    solved = chip.with_values(dict(zip(names, values.tolist(), strict=True)))
    left = {o.name: o.time_ps(solved) / 1e6 - o.us for o in observations}
    return Solution(numbers, left, solved)


def _others(names: Sequence[str], observations: Sequence[Observation]) -> dict[str, Quantity]:
    """The other numbers that the observations depend on and that have an interval."""
    used = {path: quantity for observation in observations for path, quantity in observation.used.items()}
    return {
        path: quantity
        for path, quantity in used.items()
        if path not in names and (quantity.low is not None or quantity.high is not None)
    }


def _least_squares() -> Any:
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise MissingExtraError("a fit needs scipy in this Python: pip install 'tpusim[calibrate]'") from None
    return least_squares
