"""Overlapping stretches of time on as few lanes as they need."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush


def pack(stretches: Iterable[tuple[int, int]]) -> list[int]:
    """The lane of each stretch (begin, end), which come in order of their begin; the lowest free one."""
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    lanes: list[int] = []
    used = 0
    for begin, end in stretches:
        while busy and busy[0][0] <= begin:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lane, used = used, used + 1
        heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes
