"""Arrays over a mesh: what part of a GLOBAL array each device holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tpusim.errors import NotModelledError
from tpusim.pallas import internals
from tpusim.pallas.blank import Blank, is_blank

Axes = list[tuple[str, ...]]
"""For each dimension of an array the mesh axes it is cut over."""


def mesh_of(jaxpr: Any) -> dict[str, int]:
    """The mesh of a program: that of its shard_maps, which must agree; one device without any."""
    meshes = set()
    for eqn in internals.all_equations(jaxpr):
        if eqn.primitive.name != "shard_map":
            continue
        sizes = {str(axis): int(size) for axis, size in eqn.params["mesh"].shape.items()}
        meshes.add(tuple(sizes.items()))
        outside = [axis for axis, size in sizes.items() if size > 1 and axis not in _manual_axes(eqn, sizes)]
        if outside:
            raise internals.not_modelled(f"a shard_map that leaves mesh axes {outside} to the compiler", eqn)
    if len(meshes) > 1:
        raise NotModelledError(f"shard_maps over different meshes: {sorted(meshes)}")
    return dict(meshes.pop()) if meshes else {"x": 1}


def _manual_axes(eqn: Any, sizes: dict[str, int]) -> set[str]:
    found = eqn.params.get("manual_axes", eqn.params.get("newly_manual_axes"))
    return set(sizes) if found is None else {str(axis) for axis in found}


def dimensions(spec: Any, rank: int) -> Axes:
    """Mesh axes of each dimension of a PartitionSpec."""
    parts: Axes = [(part,) if isinstance(part, str) else tuple(part or ()) for part in spec]
    return parts + [()] * (rank - len(parts))


def _block(dims: Axes, at: dict[str, int], sizes: dict[str, int]) -> list[tuple[int, int]]:
    """For each dimension which block of how many a device holds."""
    blocks = []
    for names in dims:
        index, count = 0, 1
        for name in names:
            index, count = index * sizes[name] + at[name], count * sizes[name]
        blocks.append((index, count))
    return blocks


def block_slices(dims: Axes, at: dict[str, int], sizes: dict[str, int], shape: Sequence[int]) -> list[slice]:
    """The part of each dimension of a GLOBAL array that a device holds."""
    return [
        slice(block * (extent // count), (block + 1) * (extent // count))
        for (block, count), extent in zip(_block(dims, at, sizes), shape, strict=True)
    ]


def shard(value: Any, dims: Axes, at: dict[str, int], sizes: dict[str, int]) -> Any:
    """The part of a GLOBAL array on the device at mesh position ``at``; one without data stays that."""
    if is_blank(value) or not any(dims):
        return value
    array = host_array(value)
    return array[tuple(block_slices(dims, at, sizes, array.shape))]


def gather(parts: Sequence[Any], dims: Axes, aval: Any, places: Sequence[Any], sizes: dict[str, int]) -> Any:
    """The GLOBAL array that devices at ``places`` hold parts of; of equal parts the first device's."""
    if not any(dims):
        return parts[0]
    if any(map(is_blank, parts)):
        return Blank()
    keys = not internals.is_plain(aval.dtype)
    arrays = [np.asarray(jax.random.key_data(part)) if keys else np.asarray(part) for part in parts]
    whole = np.empty((*aval.shape, *arrays[0].shape[len(aval.shape) :]), arrays[0].dtype)
    for array, coords in reversed(list(zip(arrays, places, strict=True))):
        at = dict(zip(sizes, coords, strict=True))
        index = tuple(
            slice(block * extent, (block + 1) * extent)
            for (block, _), extent in zip(_block(dims, at, sizes), array.shape, strict=False)
        )
        whole[index] = array
    return jax.random.wrap_key_data(whole, impl=jax.random.key_impl(parts[0])) if keys else whole


def host_array(value: Any) -> Any:
    """An array as NumPy sees it; typed PRNG keys stay what they are."""
    return value if isinstance(value, jax.Array) and not internals.is_plain(value.dtype) else np.asarray(value)


def key_words(value: Any) -> Any:
    """Typed PRNG keys as the words they lie in memory as; any other value is itself."""
    is_key = isinstance(value, jax.Array) and not internals.is_plain(value.dtype)
    return np.asarray(jax.random.key_data(value)) if is_key else value
