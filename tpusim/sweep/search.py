"""Which points to run: all of them, or those that a guided search asks for.

A search is a generator of batches of points; it is sent the rows of a batch before it yields the next.  It depends
on its seed and those rows alone, so it can be interrupted and asked again.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from typing import Any

from tpusim.errors import MissingExtraError
from tpusim.sweep.ranking import Objective, score
from tpusim.sweep.row import Row
from tpusim.sweep.space import Point, Space, key_of

Search = Generator[list[Point], list[Row], None]
BATCH = 8
"""Points a guided search asks for at a time: more would be asked for knowing less."""


def conversation(search: Search) -> Iterator[tuple[list[Point], list[Row]]]:
    """Each batch of points, with a list to put their rows into, in the same order."""
    points = next(search, None)
    while points is not None:
        rows: list[Row] = []
        yield points, rows
        try:
            points = search.send(rows)
        except StopIteration:
            return


def grid(space: Space) -> Search:
    """All points at once."""
    yield list(space)


def guided(space: Space, trials: int, objective: Objective, seed: int) -> Search:
    """``trials`` points, each batch where the rows so far promise most (Optuna's tree-structured Parzen estimator).

    Raises ``OptionError`` where Optuna is not installed.
    """
    if find_spec("optuna") is None:
        raise MissingExtraError("a guided search needs Optuna: pip install 'tpusim[sweep]', or leave out --trials")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=BATCH))
    rng = random.Random(seed)
    known: dict[str, Row | None] = {}
    while len(known) < min(trials, len(space)):
        asked: list[tuple[Any, Point]] = []
        for _ in range(min(BATCH, min(trials, len(space)) - len(known))):
            trial, point = _ask(study, space, known, objective, rng)
            known[key_of(point)] = None
            asked.append((trial, point))
        rows = yield [point for _, point in asked]
        for (trial, point), row in zip(asked, rows, strict=True):
            known[key_of(point)] = row
            _tell(study, trial, row, objective)


def _ask(
    study: Any, space: Space, known: dict[str, Row | None], objective: Objective, rng: random.Random
) -> tuple[Any, Point]:
    """A point that was not asked for yet; one by chance where the search keeps to those it knows."""
    for _ in range(4 * BATCH):
        trial = study.ask()
        point = {name: _suggested(trial, name, list(values)) for name, values in space.values.items()}
        if key_of(point) not in known:
            return trial, point
        _tell(study, trial, known[key_of(point)], objective)
    return None, rng.choice([point for point in space if key_of(point) not in known])


def _suggested(trial: Any, name: str, values: list[Any]) -> Any:
    """Numbers have an order that a search can use; other values are merely different."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return sorted(values)[trial.suggest_int(name, 0, len(values) - 1)]
    return values[trial.suggest_categorical(name, range(len(values)))]


def _tell(study: Any, trial: Any, row: Row | None, objective: Objective) -> None:
    from optuna.trial import TrialState

    if trial is None:
        return
    value = None if row is None else score(row, objective)
    if value is None:
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, value)
