"""Choosing block sizes without a chip."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from tpusim.errors import OptionError
from tpusim.job import Outcome, Status, run_loaded
from tpusim.kernel_file import KernelFile
from tpusim.program import Kernel
from tpusim.result import Result
from tpusim.sweep.ranking import Objective, Place, ranked, score
from tpusim.sweep.row import Request, Row, check_names, failed, row_of
from tpusim.sweep.search import conversation, grid, guided
from tpusim.sweep.space import Point, Space


@dataclass(frozen=True)
class Tuned:
    """``best``: the parameters of the fastest kernel that is right; ``kernel``: that kernel; ``result``: its run.

    ``ties``: parameters that nobody can tell from the best.  ``ranking``: all that are right, the best first;
    ``rows``: all, also those that cannot be run and why.
    """

    best: Point
    kernel: Any
    result: Result
    ties: tuple[Point, ...]
    ranking: tuple[Place, ...]
    rows: tuple[Row, ...]


def autotune(
    make: Callable[..., Kernel | Callable[..., Any]],
    space: Mapping[str, Sequence[Any]],
    slice: str | None = None,
    *,
    inputs: Sequence[Any] | Callable[..., Sequence[Any]],
    reference: Callable[..., Any] | None = None,
    objective: Objective = "time",
    trials: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Tuned:
    """The fastest of the kernels ``make(**point)`` on a simulated slice.

    ``make`` returns a :class:`tpusim.Kernel`, or a JAX function, which is captured:
    ``lambda bm: functools.partial(matmul, block_shape=(bm, bm))``.  ``space``: the values to try, by name; names of
    run options (``slice``, ``layout``) go to the run.  ``inputs``: the arrays, or a function of the point that makes
    them; ``reference(*inputs)``: the right outputs, so that a wrong kernel does not win.  ``trials``: points of a
    guided search instead of all.  Further keywords are run options.

    Raises ``OptionError`` where no point runs right, with the reasons.
    """
    points, shared = Space(space), dict(options) if slice is None else {"slice": slice, **options}
    loaded = _loaded(make, points, inputs, reference)
    search = grid(points) if trials is None else guided(points, trials, objective, seed)
    rows: list[Row] = []
    best: Outcome | None = None
    least = inf
    for batch, answer in conversation(search):
        for point in batch:
            outcome, row = _run(loaded, Request(str(loaded.path), "", shared, point))
            answer.append(row)
            value = score(row, objective)
            if value is not None and value < least:
                best, least = outcome, value
        rows += answer
    if best is None or best.result is None:
        reasons = sorted({str(row["error"] or row["result"] or f"no {objective}") for row in rows})
        raise OptionError(f"autotune: none of {len(rows)} points runs right: {'; '.join(reasons[:3])}")
    ranking = ranked(rows, objective)
    point = ranking[0].row["point"]
    ties = tuple(place.row["point"] for place in ranking if place.is_tie)
    return Tuned(point, loaded.made(point), best.result, ties, tuple(ranking), tuple(rows))


def _run(loaded: KernelFile, request: Request) -> tuple[Outcome | None, Row]:
    try:
        outcome = run_loaded(loaded, request.job)
    except OptionError as error:
        return None, failed(request.point, Status.BAD_ARGUMENTS, str(error))
    if outcome.is_interrupted:
        raise KeyboardInterrupt
    return outcome, row_of(request.point, outcome)


def _loaded(
    make: Callable[..., Any],
    space: Space,
    inputs: Sequence[Any] | Callable[..., Sequence[Any]],
    reference: Callable[..., Any] | None,
) -> KernelFile:
    """The functions as a kernel file that is no file."""
    arrays: Callable[..., Any] = inputs if callable(inputs) else lambda: tuple(inputs)
    path = Path(inspect.getsourcefile(inspect.unwrap(make)) or "autotune")
    loaded = KernelFile(make, arrays, reference, None, path, "kernel", make)
    check_names(loaded, space)
    has_own = any(name in loaded.parameters["make_kernel"] for name in space.values)
    return loaded if has_own else replace(loaded, kernel=make())
