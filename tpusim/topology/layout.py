"""How a mesh lies on a slice: the device at each position of the mesh.

- ``auto``: exactly the order of ``jax.make_mesh`` on that chip and slice.  One axis is a ring of
  neighbours only on the smallest slices; elsewhere the devices come row by row, with long hops.
- ``ring``: along every mesh axis the next device, cyclically, is one hop away.
- ``row-major``: devices in the order of their numbers, x fastest.
- a list of coordinates, one ``(x, y[, z[, core]])`` for each position.

A mesh *smaller* than the slice takes the first devices of the layout of the whole slice as one axis, and
fills its positions with them in row-major order.  (``jax.make_mesh`` takes the first devices by number
instead, and then treats them as a slice of their own.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Literal

from tpusim.errors import OptionError
from tpusim.topology.make_mesh import make_mesh_order
from tpusim.topology.routes import hops
from tpusim.topology.slices import Slice

Layout = Literal["auto", "ring", "row-major"] | Sequence[Sequence[int]]
"""A named layout, or the coordinates of the device at each position of the mesh."""

_NAMES = ("auto", "ring", "row-major")


def mesh_devices(slice_: Slice, axis_sizes: Sequence[int], layout: Layout = "auto") -> tuple[int, ...]:
    """The device number at each position of the mesh, in row-major order (last axis fastest).

    ``axis_sizes`` are the sizes of the mesh axes.  Raises ``OptionError`` where the slice has too few
    devices, where the layout does not exist, and where coordinates are wrong.
    """
    sizes = tuple(axis_sizes)
    if not sizes or any(size < 1 for size in sizes):
        raise OptionError(f"A mesh has one or more axes, each of size 1 or more, not {_shape(sizes)}.")
    if prod(sizes) > slice_.num_devices:
        raise OptionError(f"A {_shape(sizes)} mesh needs {prod(sizes)} devices, {slice_} has {slice_.num_devices}.")
    if not isinstance(layout, str):
        return _explicit(slice_, sizes, layout)
    if layout not in _NAMES:
        raise OptionError(f"layout is one of {', '.join(_NAMES)} or a list of coordinates, not {layout!r}.")
    return _named(slice_, sizes, layout)


def layout_summary(slice_: Slice, axis_sizes: Sequence[int], devices: Sequence[int]) -> tuple[int, ...]:
    """For each mesh axis, the largest hop count between neighbours, the last and the first included.

    ``devices`` as from :func:`mesh_devices`.  Costs one distance for each position and axis.
    """
    largest = []
    stride = prod(axis_sizes)
    for size in axis_sizes:
        block, stride = stride, stride // size
        largest.append(
            max(
                hops(slice_, device, devices[at - at % block + (at + stride) % block])
                for at, device in enumerate(devices)
            )
        )
    return tuple(largest)


def _shape(sizes: Iterable[int]) -> str:
    return "x".join(map(str, sizes)) or "()"


def _explicit(slice_: Slice, sizes: tuple[int, ...], places: Sequence[Sequence[int]]) -> tuple[int, ...]:
    if len(places) != prod(sizes):
        raise OptionError(f"layout has {len(places)} coordinates, a {_shape(sizes)} mesh needs {prod(sizes)}.")
    devices = tuple(slice_.device_at(tuple(place)) for place in places)
    seen: dict[int, int] = {}
    for at, device in enumerate(devices):
        if device in seen:
            raise OptionError(
                f"layout has the device at {tuple(places[at])} twice, at positions {seen[device]} and {at}."
            )
        seen[device] = at
    return devices


@lru_cache(maxsize=64)
def _named(slice_: Slice, sizes: tuple[int, ...], layout: str) -> tuple[int, ...]:
    count = prod(sizes)
    if count < slice_.num_devices:
        devices = _named(slice_, (slice_.num_devices,), layout)[:count]
        if layout == "ring" and max(layout_summary(slice_, sizes, devices)) > 1:
            raise OptionError(
                f"The first {count} devices of the ring of {slice_} form no {_shape(sizes)} mesh of rings with one"
                f" hop between neighbours; a mesh of all {slice_.num_devices} devices in one axis is a ring."
            )
        return devices
    if layout == "row-major":
        return tuple(range(count))
    if layout == "ring":
        return _rings(slice_, sizes)
    order = make_mesh_order(slice_, sizes)
    if order is None:
        split = " with cores='split'" if slice_.cores == "split" else ""
        raise OptionError(
            f"jax.make_mesh refuses a {_shape(sizes)} mesh on {slice_}{split}, so layout='auto' has no order for"
            " it; layout='row-major' takes the devices by number."
        )
    return order


def _rings(slice_: Slice, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Give each mesh axis whole axes of the slice (cores included) that form a ring together."""
    extent = (slice_.devices_per_chip, *slice_.shape3)  # the core first: it changes fastest
    wraps = (False, *slice_.wraps, False)
    used = [axis for axis, size in enumerate(extent) if size > 1]
    for owners in product(reversed(range(len(sizes))), repeat=len(used)):  # dies to the last axis, as JAX does
        groups: list[list[int]] = [[] for _ in sizes]
        for axis, owner in zip(used, owners, strict=True):
            groups[owner].append(axis)
        if all(
            prod(extent[axis] for axis in group) == size and (len(group) != 1 or size <= 2 or wraps[group[0]])
            for group, size in zip(groups, sizes, strict=True)
        ):
            rings = [_ring([extent[axis] for axis in group]) for group in groups]
            return tuple(_device(slice_, groups, steps) for steps in product(*rings))
    raise OptionError(
        f"layout='ring' finds no {_shape(sizes)} mesh of rings on {slice_}: every mesh axis takes whole axes of the"
        " slice, several together or one that wraps or is 2 long; layout='auto' and 'row-major' allow longer hops."
    )


def _device(slice_: Slice, groups: list[list[int]], steps: tuple[tuple[int, ...], ...]) -> int:
    place = [0, 0, 0, 0]
    for group, step in zip(groups, steps, strict=True):
        for axis, at in zip(group, step, strict=True):
            place[axis] = at
    core, x, y, z = place
    return slice_.device_at((x, y, z, core))


def _ring(extent: list[int]) -> list[tuple[int, ...]]:
    """A closed tour of a grid without wraparound whose last size is even (of one axis: its order).

    Rows along the last axis; each row holds a path through the other axes.  The first place of the path
    is kept free on the way up, and is the way back down.
    """
    if len(extent) < 2:
        return [(at,) for at in range(extent[0])] if extent else [()]
    path = _path(extent[:-1])
    rows = extent[-1]
    up = [(*place, row) for row in range(rows) for place in (path[1:] if row % 2 == 0 else reversed(path[1:]))]
    return [(*path[0], 0), *up, *((*path[0], row) for row in range(rows - 1, 0, -1))]


def _path(extent: list[int]) -> list[tuple[int, ...]]:
    """Every place of a grid, each one step from the one before; the first axis changes fastest."""
    if not extent:
        return [()]
    inner = _path(extent[:-1])
    return [(*place, row) for row in range(extent[-1]) for place in (inner if row % 2 == 0 else reversed(inner))]
