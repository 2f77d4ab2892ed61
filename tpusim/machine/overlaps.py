"""Which regions of a buffer overlap: found once for each region, when it first occurs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from tpusim.machine.memory import Region

Links: TypeAlias = "dict[Region, bool]"
"""The other regions that one overlaps, and whether they lie within it."""


class RegionIndex:
    """The regions of one buffer that have occurred, hashed by where they lie.

    Regions of equal extents share a grid with cells of that size, so a query looks at two cells a dimension
    for regions like itself, and never at more regions than there are.
    """

    __slots__ = ("_classes", "links")

    def __init__(self) -> None:
        self.links: dict[Region, Links] = {}
        self._classes: dict[tuple[int, ...], dict[tuple[int, ...], list[Region]]] = {}

    def links_of(self, region: Region) -> Links:
        """What ``region`` overlaps, now and (the same object) whenever more regions occur."""
        found = self.links.get(region)
        if found is None:
            found = self.links[region] = self._add(region)
        return found

    def _add(self, region: Region) -> Links:
        links: Links = {}
        if not region.size:
            return links
        for other in self._near(region):
            if region.overlaps(other):
                links[other] = other.is_within(region)
                self.links[other][region] = region.is_within(other)
        extents = tuple((size - 1) * stride + 1 for _, size, stride in region.box)
        place = tuple(start // extent for (start, _, _), extent in zip(region.box, extents, strict=True))
        self._classes.setdefault(extents, {}).setdefault(place, []).append(region)
        return links

    def _near(self, region: Region) -> Iterator[Region]:
        for extents, grid in self._classes.items():
            sides = []
            cells = 1
            for (start, size, stride), extent in zip(region.box, extents, strict=True):
                side = range((start - extent + 1) // extent, (start + (size - 1) * stride) // extent + 1)
                sides.append(side)
                cells *= len(side)
            if cells > len(grid):
                for regions in grid.values():
                    yield from regions
            else:
                for place in product(*sides):
                    yield from grid.get(place, ())
