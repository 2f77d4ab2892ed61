"""Copies of JAX's own pipelines at the edge of an array: they move whole tiles, and so the padding behind it.

``emit_pipeline`` rounds a block that leaves its array up to the next tile.  A TPU has that tile, as it pads every
array; here an array ends where it ends.  Such a copy counts with all its bytes, as its wait does, and reads and
writes what there is; the rest of the block keeps what it had.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tpusim.errors import OutOfBoundsError
from tpusim.machine.memory import Region, element_bits, sentinel
from tpusim.pallas.keys import Full, Index, Key
from tpusim.pallas.views import ViewRegion


class Edge(ViewRegion):
    """A region of which only the first elements of each dimension, those of ``inside``, are there."""

    __slots__ = ("inside", "slices")

    def __init__(self, inside: Region, shape: tuple[int, ...]) -> None:
        dtype = inside.dtype if isinstance(inside, ViewRegion) else inside.spec.dtype
        super().__init__(inside, inside, shape, dtype, "")
        self.has_holes, self.dense = inside.has_holes, inside.dense
        self.flaws = ()  # as whole tiles are moved, the compiler has nothing against it
        self.inside = inside
        self.slices = tuple(slice(0, extent) for extent in inside.shape)

    def places(self) -> np.ndarray[Any, Any]:
        """Those that are there."""
        found = self.inside.elements()
        return found.reshape((1, *self.inside.shape)) if found.size == self.inside.size else found[None]

    def pull(self, key: Key) -> Key:
        """The part of a key that is there."""
        parts: list[Full] = []
        for part, extent in zip(key, self.inside.shape, strict=True):
            if isinstance(part, int):
                parts.append(part)
            else:
                start, size, stride = part
                parts.append((start, min(size, max(0, -(-(extent - start) // stride))), stride))
        return tuple(parts)

    def read(self, array: np.ndarray[Any, Any]) -> Any:
        """What is there, and fresh memory behind it."""
        values = np.full(self.shape, sentinel(self.dtype), self.dtype)
        values[self.slices] = self.inside.read(array)
        return values

    def write(self, array: np.ndarray[Any, Any], value: Any) -> None:
        """What there is a place for."""
        self.inside.write(array, np.broadcast_to(value, self.shape)[self.slices])


def edge(region: Region, key: tuple[Index, ...]) -> Region:
    """The region ``key`` of this one, which may reach into the last tile's padding of the whole buffer."""
    try:
        return region.sub(key)
    except OutOfBoundsError:
        inside = _inside(region, key)
        if inside is None:
            raise
        shape = tuple(part[1] for part in key if not isinstance(part, int))
        return Edge(region.sub(inside), shape)


def _inside(region: Region, key: tuple[Index, ...]) -> tuple[Index, ...] | None:
    """``key`` without what lies in padding; ``None`` where it reaches further, or into other parts of the buffer."""
    if not region.is_box:
        return None
    parts: list[Index] = []
    for dim, part in zip(region.kept, key, strict=False):
        extent = region.spec.shape[dim]
        if isinstance(part, int):
            parts.append(part)
            continue
        start, size, stride = part if len(part) == 3 else (*part, 1)
        beyond = start + size - extent
        if beyond > 0 and size:
            is_whole = region.box[dim] == (0, extent, 1)
            if not is_whole or stride != 1 or not 0 <= start < extent or beyond >= padding(region, dim):
                return None
            size = extent - start
        parts.append((start, size, stride))
    return tuple(parts)


def padding(region: Region, dim: int) -> int:
    """The size of a tile along a dimension of a buffer; behind its end lie fewer elements than that."""
    rank = len(region.spec.shape)
    packing = max(1, 32 // element_bits(region.spec.dtype))
    if rank == 1:
        return 256 * packing
    return {rank - 1: 128, rank - 2: 8 * packing}.get(dim, 1)


def has_edges(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether an array does not end with a tile."""
    packing = max(1, 32 // element_bits(dtype))
    if len(shape) == 1:
        return shape[0] % (128 * packing) != 0
    return len(shape) > 1 and (shape[-1] % 128 != 0 or shape[-2] % (8 * packing) != 0)


def both_inside(source: Region, target: Region) -> tuple[Region, Region]:
    """The two sides of a copy, both with as many elements as the one that has fewer."""
    if isinstance(source, Edge) == isinstance(target, Edge) or source.shape != target.shape:
        return source, target
    if isinstance(source, Edge):
        return source, _cut(target, source.inside.shape)
    return _cut(source, target.inside.shape), target  # type: ignore[attr-defined]  # the other one is the edge


def _cut(region: Region, shape: tuple[int, ...]) -> Region:
    return Edge(region.sub(tuple((0, extent, 1) for extent in shape)), region.shape)


RUNTIME: dict[str, Any] = {"edge": edge, "both_inside": both_inside}
"""Names that generated code may use."""
