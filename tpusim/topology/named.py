"""Chips and links by name, as an option writes them, and ways around links that are down."""

from __future__ import annotations

import re
from collections.abc import Container

from tpusim.errors import OptionError
from tpusim.topology.routes import Route, die_link_index, link, links_out_of
from tpusim.topology.slices import Slice


def parse_coordinates(text: str) -> tuple[int, ...]:
    """``(1,0)`` or ``1.0``, the form that needs no quotes in a shell; raises ``OptionError``."""
    inner = text.strip().removeprefix("(").removesuffix(")").removesuffix(",")
    parts = [part.strip() for part in inner.replace(".", ",").split(",")]
    if not all(part.isdecimal() and part.isascii() for part in parts):
        raise OptionError(f"{text!r} are no coordinates, such as (1,0) or 1.0")
    return tuple(map(int, parts))


def format_coordinates(coords: tuple[int, ...]) -> str:
    """``1.0``."""
    return ".".join(map(str, coords))


def chip_named(slice_: Slice, coords: tuple[int, ...]) -> int:
    """Number of the chip at coordinates; raises ``OptionError`` where the slice has none there."""
    if len(coords) != len(slice_.shape) or any(at >= size for at, size in zip(coords, slice_.shape, strict=True)):
        raise OptionError(f"{slice_} has no chip {coords}: chips are named by {len(slice_.shape)} coordinates")
    return slice_.device_at(coords) // slice_.devices_per_chip


def parse_link(text: str) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """``(0,0)-(1,0)``, or ``(0,0)->(1,0)`` (``0.0-to-1.0``) for one direction: both ends, and whether it is that.

    Between the dies of a v7x chip: ``(0,0,0,0)-(0,0,0,1)``, or as reports name it, ``(0,0,0) die 0->die 1``.
    """
    dies = re.fullmatch(r"\(([\d,]+)\) die (\d)->die (\d)", text)
    named = "({0},{1})->({0},{2})".format(*dies.groups()) if dies else text
    first, dash, second = named.replace("-to-", "->").partition("-")
    if not dash:
        raise OptionError(f"{text!r} is no link, such as (0,0)-(1,0), or (0,0)->(1,0) for one direction")
    return parse_coordinates(first), parse_coordinates(second.removeprefix(">")), second.startswith(">")


def links_named(slice_: Slice, text: str) -> tuple[int, ...]:
    """Numbers of the directed links between two neighbours, chips or dies; raises ``OptionError`` where there is none.

    A die's last coordinate is its number on the chip.
    """
    first, second, is_directed = parse_link(text)
    if slice_.has_die_links and len(first) == len(second) == len(slice_.shape) + 1:
        return _die_links(slice_, first, second, is_directed)
    ends = chip_named(slice_, first), chip_named(slice_, second)
    found = _links_from(slice_, *ends)
    if not found:
        raise OptionError(f"{slice_} has no link between chips {first} and {second}")
    return found if is_directed else found + _links_from(slice_, *reversed(ends))


def _die_links(slice_: Slice, first: tuple[int, ...], second: tuple[int, ...], is_directed: bool) -> tuple[int, ...]:
    chip = chip_named(slice_, first[:-1])
    if first[:-1] != second[:-1] or {first[-1], second[-1]} != {0, 1}:
        raise OptionError(f"{slice_} has no link between dies {first} and {second}: those of one chip are 0 and 1")
    found = die_link_index(slice_, chip, first[-1]), die_link_index(slice_, chip, second[-1])
    return found[:1] if is_directed else found


def _links_from(slice_: Slice, source: int, target: int) -> tuple[int, ...]:
    place = slice_.chip_coords(target)
    return tuple(index for index in links_out_of(slice_, source) if link(slice_, index).target == place)


def detour(slice_: Slice, source: int, target: int, down: Container[int]) -> Route | None:
    """A shortest way between the chips of two devices over links that are not ``down``; ``None``: there is none.

    Of several the first in the order of link numbers.
    """
    start, end = slice_.chip_of(source), slice_.chip_of(target)
    if start == end:
        return None  # between the dies of a chip there is one link
    came: dict[int, tuple[int, int]] = {start: (-1, -1)}
    queue = [start]
    for chip in queue:  # grows while we walk
        for index in links_out_of(slice_, chip):
            neighbour = slice_.device_at(link(slice_, index).target) // slice_.devices_per_chip
            if neighbour not in came and index not in down:
                came[neighbour] = (chip, index)
                queue.append(neighbour)
    if end not in came:
        return None
    way: list[int] = []
    while end != start:
        end, index = came[end]
        way.append(index)
    return Route(tuple(reversed(way)), len(way), False)
