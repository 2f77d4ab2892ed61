"""The order of devices that ``jax.make_mesh`` gives, computed without JAX.

JAX first asks a table for the chip (rings for the smallest slices), then gives each mesh axis, the last
one first, as many *whole* slice axes as have its size together.  Where that fails it splits slice axes,
but only on v5e; elsewhere it refuses.  The rules are those of ``jax/_src/mesh_utils.py`` of JAX 0.12;
JAX 0.10.2 differs in one point, it does not prefer the two dies of a v7x chip for the last mesh axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod

import numpy as np

from tpusim.topology.slices import Slice

_RING_4 = (0, 1, 3, 2)
_RING_8_AS_4X2 = (0, 1, 2, 3, 7, 6, 5, 4)
_RING_16 = (0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 15, 14, 13, 12, 8, 4)
_RING_CUBE = (0, 1, 3, 2, 6, 7, 5, 4)
_RING_DIES = (0, 1, 2, 3, 6, 7, 4, 5)

_Assignment = list[list[int]]
"""For each slice axis and each mesh axis, how much of the one lies along the other."""


def make_mesh_order(slice_: Slice, axis_sizes: Sequence[int]) -> tuple[int, ...] | None:
    """Device numbers in the row-major order of ``jax.make_mesh(axis_sizes, names)``.

    ``axis_sizes`` must have as many places as the slice has devices.  ``None`` where JAX raises.
    """
    if slice_.chip == "v4" and slice_.devices_per_chip == 2:
        return None  # JAX makes meshes of v4 in megacore mode only
    table = _table_order(slice_, axis_sizes)
    if table is not None:
        return table
    physical = _physical_mesh(slice_)
    assignment = _whole_axes(physical.shape, axis_sizes, prefers_dies=slice_.chip == "v7x")
    if assignment is None and slice_.chip == "v5e":
        assignment = _split_axes(physical.shape, axis_sizes)
    return None if assignment is None else _lay(physical, assignment)


def _table_order(slice_: Slice, axis_sizes: Sequence[int]) -> tuple[int, ...] | None:
    if slice_.chip in ("v5e", "v6e"):
        if slice_.shape == (2, 2):
            return _RING_4
        if slice_.shape == (2, 4):
            return _RING_8_AS_4X2  # a ring of a 4x2 grid: on 2x4 its neighbours are up to 2 hops apart
        if slice_.shape == (4, 4) and max(axis_sizes) == slice_.num_devices:
            return _RING_16
    if slice_.chip == "v5p" and slice_.shape == (2, 2, 2) and slice_.num_devices == 8:
        return _RING_CUBE
    if slice_.chip == "v7x" and slice_.shape[:2] == (2, 2) and slice_.num_devices <= 32:
        return tuple(first + at for first in range(0, slice_.num_devices, 8) for at in _RING_DIES)
    return None


def _physical_mesh(slice_: Slice) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Device numbers as an array over x, y, z, and the core where a chip has two devices."""
    x, y, z = slice_.shape3
    numbers = np.arange(slice_.num_devices).reshape(z, y, x, slice_.devices_per_chip).transpose(2, 1, 0, 3)
    return numbers if slice_.devices_per_chip > 1 else numbers[..., 0]


def _whole_axes(physical: tuple[int, ...], axis_sizes: Sequence[int], *, prefers_dies: bool) -> _Assignment | None:
    free = list(range(len(physical)))
    assignment = [[1] * len(axis_sizes) for _ in physical]

    def rank(axes: tuple[int, ...]) -> tuple[int, int]:
        if not prefers_dies:
            return 0, 0
        ranks = [0 if axis == 3 else axis + 1 for axis in axes]
        return min(ranks), sum(ranks)

    for mesh_axis in reversed(range(len(axis_sizes))):
        size = axis_sizes[mesh_axis]
        candidates = (
            axes
            for count in range(len(free), 0, -1)
            for axes in sorted(combinations(free, count), key=rank)
            if prod(physical[axis] for axis in axes) == size
        )
        chosen = next(candidates, ())
        if not chosen and size > 1:
            return None
        for axis in chosen:
            assignment[axis][mesh_axis] = physical[axis]
            free.remove(axis)
    return assignment


def _split_axes(physical: tuple[int, ...], axis_sizes: Sequence[int]) -> _Assignment | None:
    assignment = [[1] * len(axis_sizes) for _ in physical]
    for mesh_axis in reversed(range(len(axis_sizes))):
        used = [prod(row) for row in assignment]
        left = tuple(size // taken for size, taken in zip(physical, used, strict=True))

        def preference(parts: tuple[int, ...], used: list[int] = used) -> tuple[int, int, int, tuple[int, ...]]:
            whole = [part for part, size in zip(parts, physical, strict=True) if part == size]
            shared = [part for part, taken in zip(parts, used, strict=True) if taken > 1]
            return prod(whole), sum(part > 1 for part in whole), prod(shared), parts

        best = max(_divisions(left, axis_sizes[mesh_axis]), key=preference, default=None)
        if best is None:
            return None
        for row, part in zip(assignment, best, strict=True):
            row[mesh_axis] = part
    return assignment


def _divisions(sizes: tuple[int, ...], total: int) -> Iterator[tuple[int, ...]]:
    """Every way to write ``total`` as a product of one divisor of each size."""
    if not sizes:
        if total == 1:
            yield ()
        return
    for part in range(1, min(sizes[0], total) + 1):
        if sizes[0] % part == 0 and total % part == 0:
            for rest in _divisions(sizes[1:], total // part):
                yield (part, *rest)


def _lay(physical: np.ndarray[tuple[int, ...], np.dtype[np.int64]], assignment: _Assignment) -> tuple[int, ...]:
    mesh_axes = len(assignment[0])
    split = physical.reshape([part for row in assignment for part in row])
    order = [axis * mesh_axes + at for at in range(mesh_axes) for axis in range(len(assignment))]
    return tuple(split.transpose(order).reshape(-1).tolist())
