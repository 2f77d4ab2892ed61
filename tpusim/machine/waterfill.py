"""Max-min fair rates by progressive filling: for a few flows in plain Python, for a crowd in numpy.

All flows rise together; a flow stops at its own peak or when a resource it crosses is full.  The numpy form does
not walk the levels one by one: a resource that offers *all* its flows the least of what they are offered anywhere
is full at exactly that share whatever happens elsewhere, so every such resource is closed in one round.  The number
of rounds is then the depth of "who waits for whom" (4 to 60 on meshes), not the number of levels (hundreds).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from tpusim.errors import InternalError
from tpusim.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.intp]
    Bools = NDArray[np.bool_]

NEVER = 2**62
"""The end of a flow that does not move, in picoseconds."""
TINY_PS = 1e-6
"""An end this little after a whole picosecond is rounding, not time."""
SAME_SHARE = 1 + 1e-12
"""Shares within this factor are one level."""
SAME_RATE = 1e-13
"""A relative change of a rate below this is rounding: the flow keeps its end."""
SLACK = 1e-9
"""Relative tolerance of the laws checked after every solve."""

_Key = TypeVar("_Key")


def fill_few(
    crossings: Sequence[Sequence[_Key]], peaks: Sequence[int], capacities: Mapping[_Key, float], urgent: int = 0
) -> list[float]:
    """Fair rates of flows that cross ``crossings[i]`` (a key twice weighs 2), at most ``peaks[i]`` each.

    The first ``urgent`` flows are served before the others.  Costs O(flows x levels).
    """
    rates = [0.0] * len(peaks)
    spare = dict(capacities)
    for first, end in ((0, urgent), (urgent, len(peaks))):
        if first == end:
            continue
        _fill_level_by_level(crossings, peaks, spare, range(first, end), rates)
        for key, capacity in capacities.items():
            if spare[key] < capacity * (SAME_SHARE - 1):
                spare[key] = 0.0
    return rates


def _fill_level_by_level(
    crossings: Sequence[Sequence[_Key]],
    peaks: Sequence[int],
    spare: dict[_Key, float],
    flows: Sequence[int],
    rates: list[float],
) -> None:
    """Fill ``rates`` of these flows out of ``spare``, which is left holding the rest."""
    weight = dict.fromkeys(spare, 0)
    for i in flows:
        for key in crossings[i]:
            weight[key] += 1
    while flows:
        shares = [(spare[key] / count, key) for key, count in weight.items() if count]
        share = max(min([offer for offer, _ in shares], default=np.inf), 0.0)
        closing = [i for i in flows if peaks[i] <= share]
        if closing:
            for i in closing:
                rates[i] = float(peaks[i])
        else:
            full = {key for offer, key in shares if offer <= share * SAME_SHARE}
            closing = [i for i in flows if not full.isdisjoint(crossings[i])]
            for i in closing:
                rates[i] = share
        for i in closing:
            for key in crossings[i]:
                spare[key] -= rates[i]
                weight[key] -= 1
        if len(closing) == len(flows):
            return
        gone = set(closing)
        flows = [i for i in flows if i not in gone]


def fill_many(spare: Floats, crossings: Ints, peaks: Floats) -> tuple[Floats, Ints]:
    """Fair rates of many flows, and the resource that holds each back (-1: its own peak).

    Column i of ``crossings`` has the resources of flow i, padded with any that cannot bind; ``spare`` is what each
    resource has to give, infinite where it cannot bind.  Costs about 3 ns for each number of ``crossings`` a round.
    """
    size = len(spare)
    rates = np.empty(len(peaks))
    pins = np.full(len(peaks), -1, dtype=np.intp)
    rows = np.arange(len(peaks))
    spare = spare.copy()
    count = np.bincount(crossings.ravel(), minlength=size)
    while len(rows):
        offers = (spare / np.maximum(count, 1)).take(crossings)
        level = np.minimum(offers.min(axis=0), peaks)
        np.maximum(level, 0.0, out=level)
        least = (offers <= level * SAME_SHARE).ravel().nonzero()[0]
        where = crossings.ravel().take(least)
        held = (np.bincount(where, minlength=size) == count).take(where)
        pinned = least.compress(held) % len(rows)
        closed = level >= peaks
        pins[rows.take(pinned)] = where.compress(held)
        pins[rows.compress(closed)] = -1
        closed[pinned] = True
        done = closed.nonzero()[0]
        level = level.take(done)
        rates[rows.take(done)] = level
        if len(done) == len(rows):
            break
        leaving = crossings.take(done, axis=1)
        spare -= loads_of(leaving, level, size)
        count -= np.bincount(leaving.ravel(), minlength=size)
        still_open = (~closed).nonzero()[0]
        crossings = crossings.take(still_open, axis=1)
        peaks, rows = peaks.take(still_open), rows.take(still_open)
    return rates, pins


def packed(crossings: Ints, binds: Bools) -> Ints:
    """The numbers that bind alone, each column closed up and padded with 0."""
    width = crossings.shape[1]
    mask = binds.take(crossings)
    depth = mask.cumsum(axis=0, dtype=np.int32)
    place = mask.ravel().nonzero()[0]
    packed = np.zeros((max(1, int(depth[-1].max(initial=0))), width), dtype=np.intp)
    packed.ravel()[(depth.ravel().take(place).astype(np.intp) - 1) * width + place % width] = crossings.ravel().take(
        place
    )
    return packed


def differ(rates: Floats, old: Floats) -> Ints:
    """Where a rate has really changed."""
    return (np.abs(rates - old) > SAME_RATE * old).nonzero()[0]


def loads_of(crossings: Ints, rates: Floats, size: int) -> Floats:
    """What flows at these rates carry over each of ``size`` resources."""
    weights = np.empty(crossings.shape)
    weights[:] = rates
    return cast("Floats", np.bincount(crossings.ravel(), weights.ravel(), size))


def check_delivered(left: float, size: float, rate: float) -> None:
    """At its end a flow has ``left`` nothing of its ``size`` bytes, nor less than the rounding up to a picosecond."""
    slack = 1e-6 * size
    if not -slack - rate * (1.001 / PS_PER_S) <= left <= slack:
        raise InternalError(f"a copy of {size:.0f} bytes ended with {left:.6g} bytes to go")
