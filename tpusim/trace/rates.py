"""How fast every link and memory was used, over time."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.units import PS_PER_S

if TYPE_CHECKING:
    from tpusim.machine.dma import Copy
    from tpusim.machine.flows import Resource
    from tpusim.result import Result

_Floats = np.ndarray[Any, np.dtype[np.float64]]


def rate_changes(result: Result) -> dict[Resource, list[tuple[int, int]]]:
    """For each resource (time in ps, B/s from then on): as the fabric shared it, where the run kept that.

    Otherwise from each copy's mean rate; its share may have changed on the way.
    """
    if result.rates is None:
        return _mean_rates(result)
    rates: dict[Resource, list[tuple[int, int]]] = {}
    for at, resource, rate in result.rates:
        rates.setdefault(resource, []).append((at, round(rate)))
    return rates


def _mean_rates(result: Result) -> dict[Resource, list[tuple[int, int]]]:
    changes: dict[Resource, dict[int, int]] = {}
    for copy in result.trace.copies:
        begin, read = copy.begin_ps, copy.read_ps
        if begin < 0 or read <= begin:
            continue
        rate = copy.wire_bytes * PS_PER_S // (read - begin)
        for resource, _, weight in copy.path.loads:
            times = changes.get(resource)
            if times is None:
                times = changes[resource] = {}
            times[begin] = times.get(begin, 0) + rate * weight
            times[read] = times.get(read, 0) - rate * weight
    rates: dict[Resource, list[tuple[int, int]]] = {}
    for resource, times in changes.items():
        at = sorted(times)
        rates[resource] = list(zip(at, accumulate(times[t] for t in at), strict=True))
    return rates


class Use:
    """The use of every resource as a share of its capacity, 0 to 1."""

    def __init__(self, result: Result) -> None:
        self.end_ps = int(result.time)
        self._carried: dict[Resource, tuple[_Floats, _Floats]] = {}
        for resource, changes in rate_changes(result).items():
            times = np.array([0, *(at for at, _ in changes), max(self.end_ps, changes[-1][0])], dtype=np.float64)
            rates = np.array([0, *(rate for _, rate in changes)], dtype=np.float64)
            self._carried[resource] = times, np.concatenate([[0.0], np.cumsum(rates * np.diff(times))]) / PS_PER_S

    def mean(self, resource: Resource, from_ps: int, to_ps: int) -> float:
        """Mean use of a resource in a stretch of time."""
        return float(self.over(resource, np.array([from_ps, to_ps], dtype=np.float64))[0])

    def over(self, resource: Resource, edges_ps: _Floats) -> _Floats:
        """Mean use of a resource between each two edges."""
        if resource not in self._carried:
            return np.zeros(len(edges_ps) - 1)
        carried = np.interp(edges_ps, *self._carried[resource])
        use: _Floats = np.diff(carried) / np.maximum(np.diff(edges_ps), 1) * (PS_PER_S / resource.capacity)
        return np.clip(use, 0.0, 1.0)

    def binding(self, copy: Copy) -> str:
        """What set the pace of a copy's transfer: ``DMA engine``, or the kind of the fullest resource on its way."""
        path = copy.path
        alone_ps = copy.wire_bytes * PS_PER_S / path.peak
        if copy.read_ps - copy.begin_ps <= 1.005 * alone_ps + 2:
            if path.peak == path.rate_limit and all(load < r.capacity for r, load, _ in path.loads):
                return "DMA engine"
            return kind_of(max(path.loads, key=lambda load: load[1] / load[0].capacity)[0])
        used = [(self.mean(r, copy.begin_ps, copy.read_ps), r) for r, _, _ in path.loads]
        return kind_of(max(used, key=lambda use: use[0])[1]) if used else "DMA engine"


def kind_of(resource: Resource) -> str:
    """``ICI link`` or ``HBM``."""
    return "HBM" if resource.name.startswith("HBM") else "ICI link"
