"""Refs seen through a transform: reshaped, transposed, or with other bits to an element.

A `ViewRegion` is a region of a buffer for everything that is about place and time (its box, bytes and tiles
are those of the memory it covers), and knows how to read and write values of its own shape and type.  Where
what it covers is not a box, its time is that of the smallest box around it, and what it overlaps is found
element by element.  Of an element that a bitcast takes apart, each part stands for all of it.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from tpusim.machine.memory import Region, element_bits
from tpusim.pallas.bits import bitcast_rows
from tpusim.pallas.keys import Full, Index, Key, box_around, everything, full_key, key_text, reshape_groups, slices_of


class ViewRegion(Region):
    """What a transform makes of a region."""

    __slots__ = ("_covers", "_elements", "dtype", "has_holes", "parent", "text")

    is_box = False

    def __init__(self, parent: Region, covers: Region, shape: tuple[int, ...], dtype: Any, text: str) -> None:
        # Not the initialiser of a region: place and time are those of the memory it covers.
        self.spec, self.box, self.kept, self.index = covers.spec, covers.box, covers.kept, covers.index
        self.lo, self.hi, self.dense, self.wire_bytes = covers.lo, covers.hi, covers.dense, covers.wire_bytes
        self.load_ps = self.store_ps = -1
        self.flaws = None
        self.subs = {}
        self._covers = covers
        self.parent = parent
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.size = int(np.prod(shape, dtype=np.int64))
        self.nbytes = -(-self.size * element_bits(self.dtype) // 8)
        self.text = text
        self._elements: np.ndarray[Any, Any] | None = None
        self.has_holes = self.size * element_bits(self.dtype) < covers.size * covers.spec.bits
        if self.has_holes:
            self.dense = False

    def wire_bytes_at(self, short: int) -> int:
        """Those of the memory it covers."""
        return self._covers.wire_bytes_at(short)

    def elements(self) -> np.ndarray[Any, Any]:
        """The places of its elements in the buffer, ascending."""
        if self._elements is None:
            self._elements = np.unique(self.places())
        return self._elements

    def places(self) -> np.ndarray[Any, Any]:
        """For each of its elements, along the other dimensions, those places in the buffer that it lies in."""
        raise NotImplementedError

    def sub(self, key: tuple[Index, ...]) -> Region:
        """The region ``key`` of this one."""
        found = self.subs.get(key)
        if found is None:
            found = self.subs[key] = Part(self, full_key(self, key))
        return found

    def covered(self, key: Key) -> Region:
        """The region of the buffer that ``key`` of this view lies in."""
        return covered(self.parent, self.pull(key))

    def pull(self, key: Key) -> Key:
        """``key`` in terms of the parent."""
        raise NotImplementedError

    def read(self, array: np.ndarray[Any, Any]) -> Any:
        """Its values, given the buffer's."""
        raise NotImplementedError

    def write(self, array: np.ndarray[Any, Any], value: Any) -> None:
        """Put its values into those of the buffer."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.parent}{self.text}"


def covered(region: Region, key: Key) -> Region:
    """The plain region that a key of a region lies in."""
    return region.covered(key) if isinstance(region, ViewRegion) else region.sub(key)


def places(region: Region) -> np.ndarray[Any, Any]:
    """Where the elements of a region lie in the buffer: (places of one element, *shape)."""
    if isinstance(region, ViewRegion):
        return region.places()
    return region.elements().reshape((1, *region.shape))


def _dtype(region: Region) -> Any:
    return region.dtype if isinstance(region, ViewRegion) else region.spec.dtype


class Part(ViewRegion):
    """A part of a view."""

    __slots__ = ("key", "slices")

    def __init__(self, parent: ViewRegion, key: Key) -> None:
        shape = tuple(part[1] for part in key if not isinstance(part, int))
        super().__init__(parent, parent.covered(key), shape, parent.dtype, key_text(parent.shape, key))
        self.key = key
        self.slices = slices_of(key)

    def pull(self, key: Key) -> Key:
        """Index the dimensions that are left."""
        rest = iter(key)
        parts: list[Full] = []
        for part in self.key:
            if isinstance(part, int):
                parts.append(part)
                continue
            start, _, stride = part
            inner = next(rest)
            if isinstance(inner, int):
                parts.append(start + inner * stride)
            else:
                parts.append((start + inner[0] * stride, inner[1], inner[2] * stride))
        return tuple(parts)

    def places(self) -> np.ndarray[Any, Any]:
        """A part of the parent's."""
        return places(self.parent)[(slice(None), *self.slices)]

    def read(self, array: np.ndarray[Any, Any]) -> Any:
        """Read through the parent."""
        return self.parent.read(array)[self.slices]

    def write(self, array: np.ndarray[Any, Any], value: Any) -> None:
        """In place where the parent is a view of the array, else through a copy of the parent's values."""
        whole = self.parent.read(array)
        if not np.may_share_memory(whole, array):
            whole = np.array(whole)
            whole[self.slices] = value
            self.parent.write(array, whole)
        else:
            whole[self.slices] = value


class Reshaped(ViewRegion):
    """Another shape for the same elements."""

    __slots__ = ("groups",)

    def __init__(self, parent: Region, shape: tuple[int, ...]) -> None:
        super().__init__(parent, covered(parent, everything(parent.shape)), shape, _dtype(parent), f".reshape{shape}")
        self.groups = reshape_groups(parent.shape, shape)

    def pull(self, key: Key) -> Key:
        """Element by element within each group of dimensions that became another group."""
        parts: list[Full] = []
        first_old = first_new = 0
        for old, new in self.groups:
            inner = key[first_new : first_new + len(new)]
            first_old, first_new = first_old + len(old), first_new + len(new)
            if old == new:
                parts += inner
                continue
            size = int(np.prod(new, dtype=np.int64))
            elements = np.arange(size).reshape(new)[slices_of(inner)].ravel()
            parts += box_around(np.unravel_index(elements, old)) if old else []
        return tuple(parts)

    def places(self) -> np.ndarray[Any, Any]:
        """The parent's in another shape."""
        return places(self.parent).reshape((-1, *self.shape))

    def read(self, array: np.ndarray[Any, Any]) -> Any:
        """A view of the parent's values where they lie together."""
        return self.parent.read(array).reshape(self.shape)

    def write(self, array: np.ndarray[Any, Any], value: Any) -> None:
        """In the parent's shape."""
        self.parent.write(array, np.broadcast_to(value, self.shape).reshape(self.parent.shape))


class Transposed(ViewRegion):
    """The dimensions in another order."""

    __slots__ = ("order",)

    def __init__(self, parent: Region, order: tuple[int, ...]) -> None:
        shape = tuple(parent.shape[dim] for dim in order)
        whole = covered(parent, everything(parent.shape))
        super().__init__(parent, whole, shape, _dtype(parent), f".transpose{order}")
        self.order = order

    def pull(self, key: Key) -> Key:
        """Each index where its dimension was."""
        return tuple(key[self.order.index(dim)] for dim in range(len(key)))

    def places(self) -> np.ndarray[Any, Any]:
        """The parent's in another order."""
        return places(self.parent).transpose((0, *(dim + 1 for dim in self.order)))

    def read(self, array: np.ndarray[Any, Any]) -> Any:
        """A view."""
        return self.parent.read(array).transpose(self.order)

    def write(self, array: np.ndarray[Any, Any], value: Any) -> None:
        """In the parent's order."""
        back = tuple(int(dim) for dim in np.argsort(self.order))
        self.parent.write(array, np.broadcast_to(value, self.shape).transpose(back))


class Bitcast(ViewRegion):
    """Other elements of the same bits: rows packed into wider rows, or taken apart, as the TPU tiles them."""

    __slots__ = ("old", "wider")

    def __init__(self, parent: Region, dtype: Any) -> None:
        old, new = element_bits(_dtype(parent)), element_bits(np.dtype(dtype))
        shape = list(parent.shape)
        if old != new:
            shape[-2] = shape[-2] * old // new
        whole = covered(parent, everything(parent.shape))
        super().__init__(parent, whole, tuple(shape), dtype, f".bitcast({np.dtype(dtype).name})")
        self.old, self.wider = old, new

    def pull(self, key: Key) -> Key:
        """The rows that the bits come from."""
        if self.old == self.wider:
            return key
        rows = key[-2]
        start, size, stride = (rows, 1, 1) if isinstance(rows, int) else rows
        index = np.arange(start, start + size * stride, stride)
        if self.wider > self.old:
            ratio = self.wider // self.old
            index = (index[:, None] * ratio + np.arange(ratio)).ravel()
        else:
            index = index * self.wider // self.old
        return (*key[:-2], *box_around((index,)), key[-1])

    def places(self) -> np.ndarray[Any, Any]:
        """A wider row lies in several rows, of a narrower one several lie in one."""
        of_parent = places(self.parent)
        if self.wider <= self.old:
            return np.repeat(of_parent, self.old // self.wider, -2) if self.wider < self.old else of_parent
        ratio = self.wider // self.old
        rows = of_parent.reshape((*of_parent.shape[:-2], -1, ratio, of_parent.shape[-1]))
        return np.moveaxis(rows, -2, 0).reshape((-1, *self.shape))

    def read(self, array: np.ndarray[Any, Any]) -> Any:
        """Always a copy."""
        return bitcast_rows(self.parent.read(array), self.dtype)

    def write(self, array: np.ndarray[Any, Any], value: Any) -> None:
        """As the parent's elements."""
        whole = np.broadcast_to(np.asarray(value, self.dtype), self.shape)
        self.parent.write(array, bitcast_rows(whole, _dtype(self.parent)))


class Masked(ViewRegion):
    """Those elements of a region that a mask selects, in no order: a place and a time, never values."""

    __slots__ = ("mask",)

    def __init__(self, parent: Region, mask: np.ndarray[Any, Any], covers: Region) -> None:
        count = int(mask.sum())
        super().__init__(parent, covers, (count,), _dtype(parent), f" where a mask selects {count} of {parent.size}")
        self.mask = mask

    def places(self) -> np.ndarray[Any, Any]:
        """The selected ones."""
        return places(self.parent)[:, self.mask]


def masked(region: Region, mask: Any) -> Region | None:
    """The part of a region that a mask selects: the region itself, a box, single elements, or ``None``."""
    chosen = np.broadcast_to(np.asarray(mask, np.bool_), region.shape)
    if chosen.all():
        return region
    subs: dict[Any, Region | None] = cast(Any, region.subs)
    key = "mask", chosen.tobytes()
    if key not in subs:
        subs[key] = _select(region, chosen) if chosen.any() else None
    return subs[key]


def _select(region: Region, mask: np.ndarray[Any, Any]) -> Region:
    key = tuple(box_around(np.nonzero(mask)))
    inside = region.sub(key)
    return inside if inside.size == mask.sum() else Masked(region, mask, covered(region, key))


def reshaped(region: Region, shape: tuple[int, ...]) -> Region:
    """A region with another shape."""
    return _known(region, Reshaped, shape)


def transposed(region: Region, order: tuple[int, ...]) -> Region:
    """A region with its dimensions in another order."""
    return _known(region, Transposed, order)


def bitcast(region: Region, dtype: str) -> Region:
    """A region with elements of another type."""
    return _known(region, Bitcast, dtype)


def _known(region: Region, make: Any, argument: Any) -> Region:
    subs: dict[Any, Region] = cast(Any, region.subs)  # keys of their own kind
    found = subs.get((make, argument))
    if found is None:
        found = subs[make, argument] = make(region, argument)
    return found


RUNTIME: dict[str, Any] = {"reshaped": reshaped, "transposed": transposed, "bitcast": bitcast}
"""Names that generated code may use."""
