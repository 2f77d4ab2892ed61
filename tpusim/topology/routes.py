"""Links between chips and the routes of copies over them.

**Links.**  Every chip has one directed ICI link to each neighbour: two for each axis, one where the axis
ends.  The two dies of a v7x chip have one die-to-die link each way between them.  A link's number is
arithmetic, ``(chip * axes + axis) * 2 + (0 if positive else 1)``, and the die-to-die links follow; numbers
of links that an axis without wraparound does not have stay unused.  Nothing is built for a slice: 6,144
devices cost no more than two until somebody asks for a route.

**Routes.**  Along x, then y, then z, each the shorter way round, ties in the positive direction.  The ICI
links belong to the *chip*: both dies of a v7x chip reach them directly (how the dies divide them is not
published), so the die-to-die link carries only what stays on the chip.  Split cores of a v4 or v5p chip
share their HBM: a copy between them needs no link.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from tpusim.errors import OptionError
from tpusim.topology.slices import Slice

_ROUTE_CACHE = 1 << 18


@dataclass(frozen=True, slots=True)
class Link:
    """One directed link: ``source`` and ``target`` are chip coordinates.

    ``kind`` is ``"ici"`` between chips and ``"d2d"`` between the dies of one chip; ``axis`` and
    ``direction`` (+1 or -1) are those of the slice, for a die-to-die link axis 3 and the way it goes.
    """

    index: int
    source: tuple[int, int, int]
    axis: int
    direction: int
    kind: Literal["ici", "d2d"]
    target: tuple[int, int, int]
    num_axes: int = field(repr=False)

    def __str__(self) -> str:
        """``(1,0)->(2,0)``, or ``(0,0,0) die 0->die 1``."""
        if self.kind == "d2d":
            first, second = (0, 1) if self.direction > 0 else (1, 0)
            return f"{self._place(self.source)} die {first}->die {second}"
        return f"{self._place(self.source)}->{self._place(self.target)}"

    def _place(self, coords: tuple[int, int, int]) -> str:
        return f"({','.join(map(str, coords[: self.num_axes]))})"


class Route(NamedTuple):
    """The way of a copy: numbers of its links in order, their count, and whether JAX advises against it.

    ``warns`` is true on v5e where the hop count along an axis is neither 0 nor a power of two.
    """

    links: tuple[int, ...]
    hops: int
    warns: bool


def link_index(slice_: Slice, chip: int, axis: int, direction: int) -> int:
    """Number of the ICI link that leaves ``chip`` along ``axis`` in ``direction`` (+1 or -1)."""
    return (chip * len(slice_.shape) + axis) * 2 + (direction < 0)


def die_link_index(slice_: Slice, chip: int, from_core: int) -> int:
    """Number of the link that leaves one die of a chip for the other."""
    return slice_.num_chips * len(slice_.shape) * 2 + chip * 2 + from_core


def _has_link(slice_: Slice, position: int, axis: int, direction: int) -> bool:
    return slice_.wraps[axis] or 0 <= position + direction < slice_.shape[axis]


@lru_cache(maxsize=_ROUTE_CACHE)
def link(slice_: Slice, index: int) -> Link:
    """The link of a number; raises ``OptionError`` where the slice has none of that number."""
    axes = len(slice_.shape)
    first_die_link = slice_.num_chips * axes * 2
    if slice_.has_die_links and first_die_link <= index < first_die_link + slice_.num_chips * 2:
        chip, core = divmod(index - first_die_link, 2)
        place = slice_.chip_coords(chip)
        return Link(index, place, 3, -1 if core else 1, "d2d", place, axes)
    if 0 <= index < first_die_link:
        rest, negative = divmod(index, 2)
        chip, axis = divmod(rest, axes)
        source = slice_.chip_coords(chip)
        direction = -1 if negative else 1
        if _has_link(slice_, source[axis], axis, direction):
            target = _moved(slice_, source, axis, direction)
            return Link(index, source, axis, direction, "ici", target, axes)
    raise OptionError(f"{slice_} has no link {index}.")


def links(slice_: Slice) -> Iterator[Link]:
    """Every link of the slice, by number."""
    for chip in range(slice_.num_chips):
        for index in links_out_of(slice_, chip):
            yield link(slice_, index)
    if slice_.has_die_links:
        for chip in range(slice_.num_chips):
            for core in (0, 1):
                yield link(slice_, die_link_index(slice_, chip, core))


def links_out_of(slice_: Slice, chip: int) -> tuple[int, ...]:
    """Numbers of the ICI links that leave a chip."""
    place = slice_.chip_coords(chip)
    return tuple(
        link_index(slice_, chip, axis, direction)
        for axis in range(len(slice_.shape))
        for direction in (1, -1)
        if _has_link(slice_, place[axis], axis, direction)
    )


def links_into(slice_: Slice, chip: int) -> tuple[int, ...]:
    """Numbers of the ICI links that end at a chip; as many as leave it."""
    place = slice_.chip_coords(chip)
    return tuple(
        link_index(slice_, slice_.chip_at(_moved(slice_, place, axis, direction)), axis, -direction)
        for axis in range(len(slice_.shape))
        for direction in (1, -1)
        if _has_link(slice_, place[axis], axis, direction)
    )


def _moved(slice_: Slice, place: tuple[int, int, int], axis: int, direction: int) -> tuple[int, int, int]:
    moved = list(place)
    moved[axis] = (moved[axis] + direction) % slice_.shape3[axis]
    x, y, z = moved
    return x, y, z


def _offset(slice_: Slice, axis: int, source: int, target: int) -> int:
    """Signed hops along an axis, the shorter way round, positive where both are equal."""
    offset = target - source
    if axis < len(slice_.wraps) and slice_.wraps[axis]:
        size = slice_.shape[axis]
        forward = offset % size
        return forward if 2 * forward <= size else forward - size
    return offset


def distance(slice_: Slice, chip_a: int, chip_b: int) -> int:
    """The fewest ICI links between two chips."""
    places = zip(slice_.chip_coords(chip_a), slice_.chip_coords(chip_b), strict=True)
    return sum(abs(_offset(slice_, axis, start, end)) for axis, (start, end) in enumerate(places))


@lru_cache(maxsize=_ROUTE_CACHE)
def hops(slice_: Slice, a: int, b: int) -> int:
    """The hop count of ``route(slice_, a, b)`` without building it."""
    chip_a, chip_b = slice_.chip_of(a), slice_.chip_of(b)
    if chip_a == chip_b:
        return int(a != b and slice_.has_die_links)
    return distance(slice_, chip_a, chip_b)


@lru_cache(maxsize=_ROUTE_CACHE)
def route(slice_: Slice, a: int, b: int) -> Route:
    """The way from device ``a`` to device ``b``; raises ``OptionError`` for devices the slice does not have.

    Computed when first asked for and kept; one hop never warns.  A die-to-die crossing counts as one hop;
    between split cores of one chip, and from a device to itself, there is no link and no hop.
    """
    start, end = slice_.coords(a), slice_.coords(b)
    if start[:3] == end[:3]:
        if a == b or not slice_.has_die_links:
            return Route((), 0, False)
        return Route((die_link_index(slice_, slice_.chip_of(a), start[3]),), 1, False)
    place = start[:3]
    way: list[int] = []
    warns = False
    for axis in range(len(slice_.shape)):
        offset = _offset(slice_, axis, place[axis], end[axis])
        direction = 1 if offset > 0 else -1
        for _ in range(abs(offset)):
            way.append(link_index(slice_, slice_.chip_at(place), axis, direction))
            place = _moved(slice_, place, axis, direction)
        warns |= slice_.has_power_of_two_routes and abs(offset).bit_count() > 1
    return Route(tuple(way), len(way), warns)
