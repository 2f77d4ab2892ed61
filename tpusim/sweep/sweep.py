"""A sweep: points from a search, rows from workers or from disk, and what is best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from tpusim.kernel_file import load_file
from tpusim.options import RunOptions
from tpusim.sweep.ranking import Objective, Place, ranked
from tpusim.sweep.row import Request, Row, check_names, resolved
from tpusim.sweep.search import Search, conversation, grid, guided
from tpusim.sweep.space import Space, key_of
from tpusim.sweep.store import Store
from tpusim.sweep.workers import LocalProcesses, Workers

Progress = Callable[[Row, int, int], None]
"""Told of each row, how many there are by now, and how many there will be."""


@dataclass(frozen=True)
class Sweep:
    """The rows of a sweep, in the order in which its search asked for them.

    ``reused``: how many were on disk; ``damaged``: lines on disk that could not be read.
    """

    rows: tuple[Row, ...]
    objective: Objective
    reused: int = 0
    damaged: int = 0

    @property
    def ranking(self) -> list[Place]:
        """The rows that are right, the best first."""
        return ranked(self.rows, self.objective)

    @property
    def best(self) -> Row | None:
        """The best row; ``None`` where none is right."""
        ranking = self.ranking
        return ranking[0].row if ranking else None


def run_sweep(
    file: str,
    space: Space | Mapping[str, Sequence[Any]],
    out: str | Path,
    *,
    objective: Objective = "time",
    trials: int | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Run ``path.py[:name]`` at the points of ``space``.

    Names are run options (``slice``, ``mesh``, ``layout``...), numbers of the chip (``ici.link_bandwidth``), and
    parameters of the file's ``make_kernel()`` and ``inputs()``.  ``out``: the rows, JSON lines; what is there already
    is not run again.  ``trials``: points of a guided search (seeded by ``seed``) instead of all.  ``options``: run
    options of all points.

    A point that cannot be run, or runs wrong, is a row that says so.  Raises ``OptionError`` for names nobody takes,
    and where ``out`` belongs to another sweep.
    """
    space = space if isinstance(space, Space) else Space(space)
    options = dict(options or {})
    loaded = load_file(file)
    check_names(loaded, space)
    RunOptions.of(options)
    head = {"file": loaded.path.name, "kernel": loaded.name, "sha256": loaded.digest, "options": options}
    request = Request(resolved(file), loaded.digest, options, {})
    head["tpusim"] = request.version
    search = grid(space) if trials is None else guided(space, trials, objective, seed)
    total = len(space) if trials is None else min(trials, len(space))
    with Store(Path(out), head) as store, workers or LocalProcesses() as running:
        rows, reused = _run(search, store, running, request, progress, total)
    return Sweep(tuple(rows), objective, reused, store.damaged)


def _run(
    search: Search, store: Store, workers: Workers, request: Request, progress: Progress | None, total: int
) -> tuple[list[Row], int]:
    rows: list[Row] = []
    reused = 0
    for points, answer in conversation(search):
        found = [row for point in points if (row := store.row(point)) is not None]
        missing = [replace(request, point=point) for point in points if store.row(point) is None]
        reused += len(found)
        for done, row in enumerate(chain(found, _stored(store, workers.run(missing))), len(rows) + 1):
            if progress is not None:
                progress(row, done, total)
        answer += [store.rows[key_of(point)] for point in points]
        rows += answer
    return rows, reused


def _stored(store: Store, rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        store.add(row)
        yield row
