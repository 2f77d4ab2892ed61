"""Simulated less measured, descriptor by descriptor.

A hardware trace names a descriptor by the line that starts it (``ring.py:47``), as the TPU compiler's source
annotations do.  The n-th event of a line on a device is the n-th copy that the simulator started there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tpusim.findings import where_of
from tpusim.result import Result

_LINE = re.compile(r"(?P<file>[\w./-]+\.py):(?P<line>\d+)")


class Residual(NamedTuple):
    """One copy: where it was started, which one of that line, and microseconds from start to written."""

    device: int
    where: str
    turn: int
    simulated_us: float
    measured_us: float

    @property
    def left_us(self) -> float:
        """Simulated less measured."""
        return self.simulated_us - self.measured_us

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return {**self._asdict(), "left_us": self.left_us}


def residuals(result: Result, events: Iterable[Sequence[Any]]) -> list[Residual]:
    """For each copy that a hardware trace (device, track, name, from, to) names by its line."""
    measured: defaultdict[tuple[int, str, int], list[float]] = defaultdict(list)
    for device, _, name, begin, end in sorted(events, key=lambda event: (event[0], event[3])):
        found = _LINE.search(name)
        if found is not None:
            measured[device, Path(found["file"]).name, int(found["line"])].append(end - begin)
    pairs: list[Residual] = []
    turns: defaultdict[tuple[int, str, int], int] = defaultdict(int)
    for copy in result.trace.copies:
        where = where_of(copy.site)
        if where is None or copy.written_ps < 0:
            continue
        key = copy.core.device, Path(where.file).name, where.line
        turn = turns[key]
        turns[key] += 1
        times = measured.get(key, [])
        if turn < len(times):
            simulated = (copy.written_ps - copy.issued_ps) / 1e6
            pairs.append(Residual(key[0], f"{key[1]}:{key[2]}", turn, simulated, times[turn]))
    return pairs
