"""A trace of a whole pod: not every event, but how busy everything was in equal parts of the run.

A counter for each device's compute, waits and copies in flight, and for each link and memory its use, so the
file grows with the devices and the parts, however long the run was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.topology import link
from tpusim.trace.rates import Use

if TYPE_CHECKING:
    from tpusim.trace.perfetto import Events

_Floats = np.ndarray[Any, np.dtype[np.float64]]


def in_parts(events: Events, parts: int) -> Iterator[str]:
    """The events of a trace in ``parts`` equal parts; counters are shares from 0 to 1, copies a mean number."""
    result = events.result
    edges = np.linspace(0.0, float(max(int(result.time), 1)), parts + 1)
    computes, waits, copies = (_by_device(each) for each in _stretches(events))
    for device in sorted(events.shown):
        pid = events.pid(device)
        yield from events.process(pid, events.names.process(device))
        for name, found in (("compute", computes), ("waiting", waits), ("copies in flight", copies)):
            yield from _counter(events, pid, name, edges, covered(found.get(device, []), edges))
    use = Use(result)
    wiring = result.cores[0].machine.wiring if result.cores else None
    if wiring is None:
        return
    yield from events.process(events.links_pid, "ICI links")
    for index in sorted(wiring.links):
        name = f"link {link(result.place.slice, index)}"
        yield from _counter(events, events.links_pid, name, edges, use.over(wiring.links[index], edges))
    yield from events.process(events.hbm_pid, "HBM")
    for unit in sorted(wiring.hbms):
        name = f"HBM {events.names.memory(unit)}"
        yield from _counter(events, events.hbm_pid, name, edges, use.over(wiring.hbms[unit], edges))


def covered(stretches: list[tuple[int, int]], edges: _Floats) -> _Floats:
    """How many of the stretches cover each part between two edges, in the mean."""
    if not stretches:
        return np.zeros(len(edges) - 1)
    begins, ends = (np.sort(np.array(side, dtype=np.float64)) for side in zip(*stretches, strict=True))
    # the covered time up to an instant: for every stretch that has begun what has passed of it
    passed = _sum_below(begins, edges) - _sum_below(ends, edges)
    share: _Floats = np.diff(passed) / np.diff(edges)
    return share


def _sum_below(times: _Floats, edges: _Floats) -> _Floats:
    """The sum of ``edge - time`` over all times before each edge."""
    before = np.searchsorted(times, edges)
    total: _Floats = before * edges - np.concatenate([[0.0], np.cumsum(times)])[before]
    return total


def _stretches(events: Events) -> tuple[Iterable[tuple[int, int, int]], ...]:
    """Device, from, to of compute, of waits and of copies."""
    log, end = events.log, events.end_ps
    return (
        ((each.core.device, each.from_ps, each.to_ps) for each in log.computes if each.operation != "delay"),
        ((each.core.device, each.from_ps, each.to_ps) for each in log.waits),
        ((c.core.device, c.issued_ps, c.written_ps if c.written_ps >= 0 else end) for c in events.copies),
    )


def _by_device(found: Iterable[tuple[int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    by_device: dict[int, list[tuple[int, int]]] = {}
    for device, begin, end in found:
        by_device.setdefault(device, []).append((begin, end))
    return by_device


def _counter(events: Events, pid: int, name: str, edges: _Floats, values: _Floats) -> Iterator[str]:
    head = f'{{"ph":"C","pid":{pid},"tid":0,"name":{json.dumps(name)},"ts":'
    last = -1.0
    for at, value in zip(edges[:-1].tolist(), np.round(values, 4).tolist(), strict=True):
        if value != last:
            yield f'{head}{events.us[int(at)]},"args":{{"value":{max(value, 0.0)}}}}}'
        last = value
    yield f'{head}{events.us[int(edges[-1])]},"args":{{"value":0}}}}'
