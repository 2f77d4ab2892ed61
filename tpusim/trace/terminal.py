"""A run at a glance: one line of characters a device, for a terminal.

Each character stands for an equal part of the run and shows what the device did for most of it: compute,
a copy of its own in flight, both, or a wait for others; neighbours in mesh order that look the same share a line.
numpy does the sums, by the covered length up to
each boundary, so the cost does not grow with the width.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tpusim.units import Duration

if TYPE_CHECKING:
    from tpusim.result import Result

_LEAST = 0.05
_MOST_DEVICES = 64
"""Devices looked at."""


class Glyphs(NamedTuple):
    """The characters of a lane."""

    compute: str
    both: str
    copy: str
    wait: str
    nothing: str


BLOCKS = Glyphs("█", "▓", "▒", "░", " ")
ASCII = Glyphs("#", "%", "=", ".", " ")

_Stretches = list[tuple[int, int]]
_Floats = np.ndarray[Any, np.dtype[np.float64]]


def timeline(result: Result, width: int = 100, lanes: int = 16, glyphs: Glyphs = BLOCKS) -> list[str]:
    """Lines of at most ``width`` characters: at most ``lanes`` lanes, each of one device or several in a row that look
    the same, a scale, a legend.

    Empty where nothing took any time.  Works for runs that failed.
    """
    end_ps = int(result.time)
    if end_ps <= 0 or not result.cores:
        return []
    shown = result.cores[:_MOST_DEVICES]
    names = [str(core.machine.coordinates(core.device)) for core in shown]
    margin = len(_range(names)) + 1
    columns = max(10, width - margin - 1)
    edges = np.linspace(0.0, float(end_ps), columns + 1)
    stretches = _stretches(result, len(shown), end_ps)
    pictures = []
    for device in range(len(shown)):
        compute, copy, wait = (_shares(kind[device], edges) for kind in stretches)
        pictures.append(_lane(compute, copy, wait, glyphs))
    groups = [list(devices) for _, devices in groupby(range(len(shown)), pictures.__getitem__)]
    lines = []
    for devices in groups[:lanes]:
        lines.append(f"{_range([names[device] for device in devices]):<{margin}}|{pictures[devices[0]]}".rstrip())
    hidden = len(result.cores) - sum(len(devices) for devices in groups[:lanes])
    if hidden:
        lines.append(f"{'':<{margin}}|and {hidden} more device{'s' if hidden > 1 else ''}")
    lines.append(f"{'':<{margin}}0{Duration(end_ps)!s:>{columns}}")
    lines.append(
        f"{'':<{margin}}{glyphs.compute} compute  {glyphs.both} compute and copy  {glyphs.copy} own copy in flight"
        f"  {glyphs.wait} waiting for others"
    )
    return lines


def _range(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}"


def _stretches(result: Result, count: int, end_ps: int) -> tuple[list[_Stretches], list[_Stretches], list[_Stretches]]:
    """When each device computed, had a copy of its own in flight, and waited."""
    copies: list[_Stretches] = [[] for _ in range(count)]
    computes: list[_Stretches] = [[] for _ in range(count)]
    waits: list[_Stretches] = [[] for _ in range(count)]
    log = result.trace
    for copy in log.copies:
        if copy.core.device < count:
            copies[copy.core.device].append((copy.issued_ps, copy.written_ps if copy.written_ps >= 0 else end_ps))
    for compute in log.computes:
        if compute.core.device < count and compute.operation != "delay":
            computes[compute.core.device].append((compute.from_ps, compute.to_ps))
    for wait in log.waits:
        if wait.core.device < count:
            waits[wait.core.device].append((wait.from_ps, wait.to_ps))
    for core in result.cores[:count]:
        if core.blocked is not None:
            waits[core.device].append((core.blocked.since_ps, end_ps))
    return computes, copies, waits


def _shares(stretches: Iterable[tuple[int, int]], edges: _Floats) -> _Floats:
    """For each column the share of it that the stretches cover, 0 to 1."""
    times: list[float] = [0.0]
    covered: list[float] = [0.0]
    total, reached = 0, -1
    for begin, end in sorted(stretches):
        if end <= reached:
            continue
        begin = max(begin, reached)
        times += [begin, end]
        covered += [total, total + end - begin]
        total += end - begin
        reached = end
    shares: _Floats = np.diff(np.interp(edges, times, covered)) / (edges[1] - edges[0])
    return shares


def _lane(compute: _Floats, copy: _Floats, wait: _Floats, glyphs: Glyphs) -> str:
    lane = []
    for computing, copying, waiting in zip(compute, copy, wait, strict=True):
        if max(computing, copying, waiting) < _LEAST:
            lane.append(glyphs.nothing)
        elif computing >= 0.5 or (computing >= copying and computing >= waiting):
            lane.append(glyphs.both if copying >= 0.5 else glyphs.compute)
        elif copying >= 0.5 or copying >= waiting:  # a wait for one's own copy shows as the copy
            lane.append(glyphs.both if computing >= 0.25 else glyphs.copy)
        else:
            lane.append(glyphs.wait)
    return "".join(lane)
