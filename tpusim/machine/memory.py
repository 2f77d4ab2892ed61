"""Buffers in HBM, VMEM and SMEM, and the regions of them that operations touch.

All devices run one program, so everything static about a buffer (shape, tiles, name) and about a slice
of it (bounds, padded bytes, runs) is computed once and shared by all devices: a `BufferSpec` with a tree
of cached `Region` objects.  A `Buffer` is one device's copy: an array and the ranges in flight on it.
That keeps slicing off the hot path (a region is one dictionary look-up) and memory linear in devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tpusim.errors import OptionError, OutOfBoundsError, ShapeMismatchError
from tpusim.machine.overlaps import RegionIndex
from tpusim.specs import SPARSE, MemorySpace
from tpusim.units import format_bytes

if TYPE_CHECKING:
    from tpusim.chips import ChipSpec
    from tpusim.machine.calls import Call
    from tpusim.machine.dma import Copy
    from tpusim.machine.wiring import Route

Index = int | tuple[int, int] | tuple[int, int, int]
"""One dimension of a region's key: an int drops it, ``(start, size[, stride])`` keeps it."""

_SPACE_CODES = {
    space: code
    for code, space in enumerate(
        (MemorySpace.HBM, MemorySpace.VMEM, MemorySpace.SMEM, MemorySpace.SUBCORE_VMEM, MemorySpace.VMEM_SHARED)
    )
}

LANE_BYTES = 512
"""128 lanes of 32 bits: one row of a tile, the unit that narrow arrays are padded to."""


class Tiling:
    """How one memory space of a chip lays out arrays: tiles of sublanes x 128 lanes, none in SMEM."""

    __slots__ = ("granule_bytes", "short_run_bytes", "sublanes_by_bits")

    def __init__(self, sublanes_by_bits: dict[int, int], short_run_bytes: int, granule_bytes: int = 32) -> None:
        self.granule_bytes = granule_bytes
        """What a SparseCore moves at once; its memories have no tiles."""
        self.sublanes_by_bits = sublanes_by_bits
        self.short_run_bytes = short_run_bytes


class BufferSpec:
    """The static side of a buffer, shared by all devices.

    ``slots`` is how many such buffers a device has, of which its table shows one at a time (windows of a
    grid pipeline), and ``padded_bytes`` what they occupy with tile padding; ``position`` its place in each
    core's buffer table; ``scope`` the ``run_scoped`` it lives in, ``None`` for the whole call.
    """

    __slots__ = (
        "bits", "dtype", "home", "index", "initialised", "is_operand", "name", "nbytes", "padded_bytes", "position",
        "scope", "shape", "slots", "space", "space_code", "sublanes", "tiling", "whole",
    )  # fmt: skip

    def __init__(
        self,
        position: int,
        name: str,
        space: MemorySpace,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        tiling: Tiling,
        *,
        is_operand: bool = False,
        initialised: bool = False,
        scope: object = None,
        slots: int = 1,
    ) -> None:
        if dtype.kind in "cmMOSU" or dtype.itemsize > 8:
            raise OptionError(f"{name}: a TPU has no arrays of {dtype.name}")
        self.scope = scope
        self.home: Call | None = None
        """The call with whose entry it begins to live, for one that a call hands to later ones."""
        self.index = RegionIndex()
        """Which of its regions overlap."""
        self.slots = slots
        self.position = position
        self.name = name
        self.space = MemorySpace.HBM if space is MemorySpace.ANY else space
        self.space_code = _SPACE_CODES[self.space]
        self.shape = shape
        self.dtype = dtype
        self.tiling = tiling
        self.is_operand = is_operand
        self.initialised = initialised
        self.bits = element_bits(dtype)
        self.sublanes = self._sublanes()
        self.nbytes = _ceil(int(np.prod(shape, dtype=np.int64)) * self.bits, 8)
        self.whole = Region(self, tuple((0, size, 1) for size in shape), tuple(range(len(shape))))
        is_tiled = self.space is not MemorySpace.SMEM and self.space not in SPARSE
        self.padded_bytes = slots * (self._padded() if is_tiled else self.whole.wire_bytes)

    def _sublanes(self) -> int:
        """Rows of a tile: the chip's, fewer where a power of two of them holds all rows of the array.

        Source: what libtpu 0.0.50.1 allocates for scratch of 1 to 32 rows of 32, 16 and 8 bits on v6e.
        """
        packing = 32 // self.bits or 1
        if len(self.shape) < 2:
            return packing
        needed = 1 << max(0, self.shape[-2] - 1).bit_length()
        most = self.tiling.sublanes_by_bits.get(self.bits) or 8 * packing
        return min(most, max(packing, needed))

    def _padded(self) -> int:
        rows, columns = _rows_columns(self.shape)
        outer = int(np.prod(self.shape[:-2], dtype=np.int64))
        sublanes = self.sublanes
        return outer * _ceil(rows, sublanes) * sublanes * _ceil(columns, 128) * 128 * self.bits // 8

    def __repr__(self) -> str:
        return f"{self.name}: {self.space.name} {self.dtype.name}{list(self.shape)}"


class SpecCache:
    """The buffer declarations of one program, kept from run to run, and with them every region made of them.

    They hold for one chip (its tiles, and prices of loads and stores); another one starts anew.
    """

    __slots__ = ("_chip", "_specs")

    def __init__(self) -> None:
        self._chip: ChipSpec | None = None
        self._specs: dict[Any, BufferSpec] = {}

    def on(self, chip: ChipSpec) -> dict[Any, BufferSpec]:
        """Those for a chip, by what they declare."""
        if chip is not self._chip:
            self._chip, self._specs = chip, {}
        return self._specs


NARROW: Final = MappingProxyType({"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4})
"""Types of less than a byte, and their bits; NumPy keeps each element in a byte of its own."""


def element_bits(dtype: np.dtype[Any]) -> int:
    """Bits of one element as the TPU stores it: 4 for int4, 32 for bool (one mask word)."""
    if dtype == np.bool_:
        return 32
    return NARROW.get(dtype.name) or dtype.itemsize * 8


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)


def _rows_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) >= 2:
        return shape[-2], shape[-1]
    return (1, shape[0]) if shape else (1, 1)


class Region:
    """A rectangular part of a buffer, static and shared by all devices.

    ``box`` holds (start, size, stride) for each dimension of the buffer, ``kept`` the dimensions that
    are still visible; ``lo`` and ``hi`` bound its elements in row-major order.  ``wire_bytes`` is what a
    copy moves: lanes padded to 128, and every contiguous run shorter than the chip's ``short_run_bytes``
    counted as one of that length.
    """

    __slots__ = (
        "box", "dense", "flaws", "hi", "index", "kept", "lo", "load_ps", "nbytes", "shape", "size", "spec", "store_ps",
        "subs", "wire_bytes",
    )  # fmt: skip

    def __init__(self, spec: BufferSpec, box: tuple[tuple[int, int, int], ...], kept: tuple[int, ...]) -> None:
        self.spec = spec
        self.box = box
        self.kept = kept
        self.shape = tuple(box[dim][1] for dim in kept)
        self.index = _numpy_index(spec.shape, box, kept)
        self.size = 1
        for _, size, _ in box:
            self.size *= size
        self.nbytes = _ceil(self.size * spec.bits, 8)
        self.lo, self.hi, self.dense = _extent(spec.shape, box, self.size)
        self.wire_bytes = self.wire_bytes_at(spec.tiling.short_run_bytes)
        self.load_ps = self.store_ps = -1
        self.flaws: tuple[Any, ...] | None = None
        """What the linter has found against copies of it, once it has looked."""
        self.subs: dict[tuple[Index, ...], Region] = {}

    is_box = True
    """Whether ``index`` says all about its values in an array."""
    has_holes = False
    """Whether there are elements in the box that do not belong to it."""

    def elements(self) -> np.ndarray[Any, Any]:
        """The row-major places in the buffer of its elements, ascending."""
        places = np.arange(int(np.prod(self.spec.shape, dtype=np.int64))).reshape(self.spec.shape)
        return np.ravel(places[self.index])

    def wire_bytes_at(self, short: int) -> int:
        """What a copy moves where contiguous runs shorter than ``short`` bytes count as one of that length."""
        if not self.size:
            return 0
        spec = self.spec
        if spec.space is MemorySpace.SMEM:
            return _ceil(self.nbytes, 4) * 4
        if spec.space in SPARSE:
            granule = spec.tiling.granule_bytes
            if self.dense or not self.box:
                return _ceil(self.nbytes, granule) * granule
            run = _ceil(self.box[-1][1] * spec.bits, 8 * granule) * granule
            return self.size // self.box[-1][1] * run
        bits = spec.bits
        packing = max(1, 32 // bits)
        box = ((0, 1, 1),) * (2 - len(self.box)) + self.box
        shape = (1,) * (2 - len(spec.shape)) + spec.shape
        (row, rows, row_stride), (column, columns, _) = box[-2:]
        outer = 1
        for _, size, _ in box[:-2]:
            outer *= size
        lane_tiles = _ceil(column + columns, 128) - column // 128
        row_bytes = LANE_BYTES * max(1, bits // 32)  # one packed row of one lane tile
        if len(spec.shape) < 2:
            # one row of consecutive elements: no sublanes, one run
            return max(lane_tiles * 128 * bits // 8, short)
        sublanes = spec.sublanes
        if row_stride > 1:
            return outer * rows * lane_tiles * max(row_bytes, short)
        whole_tiles = row % sublanes == 0 and (rows % sublanes == 0 or row + rows == shape[-2])
        if whole_tiles:
            whole = outer * _ceil(rows, sublanes) * (sublanes // packing) * row_bytes * lane_tiles
            return max(whole, short) if whole else 0
        total, first = 0, row
        while first < row + rows:
            last = min(row + rows, (first // sublanes + 1) * sublanes)
            packed = _ceil(last, packing) - first // packing
            total += max(packed * row_bytes, short)
            first = last
        return outer * total * lane_tiles

    def sub(self, key: tuple[Index, ...]) -> Region:
        """The region ``key`` of this one; raises ``OutOfBoundsError`` or ``ShapeMismatchError``."""
        found = self.subs.get(key)
        if found is None:
            found = self.subs[key] = self._cut(key)
        return found

    def _cut(self, key: tuple[Index, ...]) -> Region:
        if len(key) > len(self.kept):
            raise ShapeMismatchError(f"{self}: {len(key)} indices for a ref of shape {self.shape}")
        box, kept = list(self.box), list(self.kept)
        for dim, part in zip(self.kept, key, strict=False):
            start, size, stride = self.box[dim]
            if isinstance(part, int):
                first, count, step = part, 1, 1
                kept.remove(dim)
            else:
                first, count, step = part if len(part) == 3 else (*part, 1)
                if count < 0 or step < 1:
                    raise ShapeMismatchError(f"{self}: a slice of {count} elements with stride {step} cannot be")
            last = first + (count - 1) * step
            if first < 0 or first > size or (count and last >= size):
                raise OutOfBoundsError(
                    f"{self}[{self._key_text(key)}]: index {self._key_text((part,))} leaves dimension "
                    f"{self.kept.index(dim)} of size {size}"
                )
            box[dim] = (start + first * stride, count, stride * step)
        return Region(self.spec, tuple(box), tuple(kept))

    @staticmethod
    def _key_text(key: tuple[Index, ...]) -> str:
        parts = []
        for part in key:
            if isinstance(part, int):
                parts.append(str(part))
            else:
                step = part[2] if len(part) == 3 else 1
                end = part[0] + (part[1] - 1) * step + 1 if part[1] else part[0]
                parts.append(f"{part[0]}:{end}" + (f":{step}" if step != 1 else ""))
        return ", ".join(parts)

    def read(self, array: np.ndarray[Any, Any]) -> Any:
        """Its values in the buffer's array: a view where NumPy has one."""
        return array[self.index]

    def write(self, array: np.ndarray[Any, Any], value: Any) -> None:
        """Put values into the buffer's array."""
        array[self.index] = value

    def add(self, array: np.ndarray[Any, Any], value: Any) -> None:
        """Add values to those in the buffer's array."""
        self.write(array, self.read(array) + value)

    def overlaps(self, other: Region) -> bool:
        """Whether the two regions of one buffer share an element."""
        if self.lo >= other.hi or other.lo >= self.hi:
            return False
        if self.dense and other.dense:
            return True
        return self._boxes_meet(other) and (
            not (self.has_holes or other.has_holes) or bool(np.isin(self.elements(), other.elements()).any())
        )

    def is_within(self, outer: Region) -> bool:
        """Whether every element of this region is one of ``outer``."""
        for (a, n, s), (b, m, t) in zip(self.box, outer.box, strict=True):
            if a < b or a + (n - 1) * s > b + (m - 1) * t or (a - b) % t or (n > 1 and s % t):
                return outer.has_holes and self.has_holes and self._elements_within(outer)
        return not outer.has_holes or self._elements_within(outer)

    def _elements_within(self, outer: Region) -> bool:
        return bool(np.isin(self.elements(), outer.elements()).all())

    def _boxes_meet(self, other: Region) -> bool:
        for (a, n, s), (b, m, t) in zip(self.box, other.box, strict=True):
            if a >= b + (m - 1) * t + 1 or b >= a + (n - 1) * s + 1:
                return False
            if (s > 1 or t > 1) and not _share_an_index(range(a, a + n * s, s), range(b, b + m * t, t)):
                return False
        return True

    def __str__(self) -> str:
        if self is self.spec.whole:
            return self.spec.name
        parts = []
        for dim, (start, size, stride) in enumerate(self.box):
            if dim not in self.kept:
                parts.append(str(start))
            elif (start, size, stride) == (0, self.spec.shape[dim], 1):
                parts.append(":")
            else:
                end = start + (size - 1) * stride + 1 if size else start
                parts.append(f"{start}:{end}" + (f":{stride}" if stride != 1 else ""))
        while parts and parts[-1] == ":":
            parts.pop()
        return f"{self.spec.name}[{', '.join(parts)}]" if parts else self.spec.name


def _share_an_index(a: range, b: range) -> bool:
    """Whether two strided index sets meet."""
    if len(b) < len(a):
        a, b = b, a
    return any(index in b for index in a)


def _numpy_index(shape: tuple[int, ...], box: tuple[tuple[int, int, int], ...], kept: tuple[int, ...]) -> Any:
    """What a box is in NumPy, as short as can be: that is what indexing costs."""
    parts: list[int | slice] = [
        slice(start, start + (size - 1) * stride + 1 if size else start, stride) if dim in kept else start
        for dim, (start, size, stride) in enumerate(box)
    ]
    while parts and isinstance(parts[-1], slice) and box[len(parts) - 1] == (0, shape[len(parts) - 1], 1):
        parts.pop()
    return parts[0] if len(parts) == 1 else tuple(parts)


def _extent(shape: tuple[int, ...], box: tuple[tuple[int, int, int], ...], size: int) -> tuple[int, int, bool]:
    """First element, one past the last, and whether everything between belongs to the box."""
    if size == 0:
        return 0, 0, True
    low = high = 0
    for extent, (start, count, stride) in zip(shape, box, strict=True):
        low = low * extent + start
        high = high * extent + start + (count - 1) * stride
    return low, high + 1, high + 1 - low == size


class Buffer:
    """One device's copy of a `BufferSpec`: its array and what is in flight on it.

    ``array`` is ``None`` when the run carries no data.  ``writing`` holds copies whose destination is
    not complete, ``reading`` copies whose source has not been read.  ``alive`` is false outside the
    owner's call or scope; ``fresh`` while nothing has been written to it.  ``written``: the regions of an
    array in which nothing else holds anything yet, not even what fresh memory shows; ``None`` for all others.
    """

    __slots__ = ("alive", "array", "device", "fresh", "place", "reading", "routes", "spec", "writing", "written")

    def __init__(self, spec: BufferSpec, device: int, array: np.ndarray[Any, Any] | None) -> None:
        self.spec = spec
        self.device = device
        self.place = 4 * device + spec.space_code
        """The memory it lies in: its device's HBM, VMEM or SMEM."""
        self.array = array
        self.alive = True
        self.fresh = not spec.initialised
        self.written: dict[Region, None] | None = None
        self.writing: list[Copy] = []
        self.reading: list[Copy] = []
        self.routes: dict[int, Route] = {}
        """The ways of copies from here so far, by the memory they lead to."""

    def fill(self) -> bool:
        """Have everything outside ``written`` show that it was never written; whether there was any."""
        written, self.written = self.written, None
        array = self.array
        if not written or array is None:
            if array is not None:
                array[...] = sentinel(self.spec.dtype)
            return array is not None
        if _follow_each_other(written, self.spec.whole.hi):
            return False
        missing = np.ones(self.spec.shape, np.bool_)
        for region in written:
            missing[region.index] = False
        array[missing] = sentinel(self.spec.dtype)
        return bool(missing.any())

    def writer_of(self, region: Region) -> Copy | None:
        """A copy in flight whose destination meets ``region``."""
        lo, hi = region.lo, region.hi
        for copy in self.writing:
            other = copy.dst_region
            if other.lo < hi and lo < other.hi and other.overlaps(region):
                return copy
        return None

    def hide_in_flight(self, region: Region, value: np.ndarray[Any, Any]) -> None:
        """Put a sentinel into those elements of ``value``, loaded from ``region``, that a copy is writing."""
        for copy in self.writing:
            other = copy.dst_region
            if other.overlaps(region):
                met = [
                    [index in range(b, b + m * t, t) for index in range(a, a + n * s, s)]
                    for dim, ((a, n, s), (b, m, t)) in enumerate(zip(region.box, other.box, strict=True))
                    if dim in region.kept
                ]
                value[np.ix_(*met)] = sentinel(region.spec.dtype)

    def reader_of(self, region: Region) -> Copy | None:
        """A copy in flight whose source meets ``region``."""
        lo, hi = region.lo, region.hi
        for copy in self.reading:
            other = copy.src_region
            if other.lo < hi and lo < other.hi and other.overlaps(region):
                return copy
        return None


def _follow_each_other(regions: Iterable[Region], end: int) -> bool:
    """Whether regions without gaps of their own leave none between them up to ``end``."""
    reached = 0
    for region in sorted(regions, key=_by_first_element):
        if region.lo > reached or not region.dense:
            return False
        reached = max(reached, region.hi)
    return reached >= end


_by_first_element = attrgetter("lo")


def sentinel(dtype: np.dtype[Any]) -> Any:
    """What fresh memory holds: a NaN with a pattern of its own, or a number nobody writes on purpose."""
    if dtype == np.float32:
        return np.uint32(0x7FC0DEAD).view(np.float32)
    if dtype == np.float16:
        return np.uint16(0x7EAD).view(np.float16)
    if dtype.name == "bfloat16":
        return np.uint16(0x7FED).view(dtype)
    if dtype == np.bool_:
        return np.False_
    if dtype.kind in "iu" or "int" in dtype.name:
        number = {1: -0x55, 2: -0x5EAD}.get(dtype.itemsize, -0x5EADBEEF)
        return np.array(number).astype(dtype)[()]
    return np.array(np.nan).astype(dtype)[()]


def empty_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array of anything, at an address from which XLA takes it without a copy."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + _XLA_ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _XLA_ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


_XLA_ALIGNMENT = 64


def fresh_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array of never written elements."""
    if dtype.isbuiltin == 1:
        return np.full(shape, sentinel(dtype), dtype)
    bits = np.dtype(f"u{dtype.itemsize}")  # NumPy fills its own types ten times as fast
    return np.full(shape, np.asarray(sentinel(dtype)).view(bits), bits).view(dtype)


def holds_sentinel(array: np.ndarray[Any, Any]) -> bool:
    """Whether any element still is fresh memory; false for types too small to tell.

    One integer of 8 or 16 bits may well be the sentinel by chance; 16 bytes of them side by side are not.
    """
    dtype = array.dtype
    is_small_integer = dtype.kind in "iu" and dtype.itemsize < 4
    if (dtype.itemsize < 2 and not is_small_integer) or dtype == np.bool_ or array.size == 0:
        return False
    bits: Any = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.itemsize]
    flat = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    found = flat.view(bits) == np.asarray(sentinel(dtype)).view(bits)
    if not found.any() or not is_small_integer:
        return bool(found.any())
    side_by_side = 16 // dtype.itemsize
    whole = found.size // side_by_side * side_by_side
    return bool(found.reshape(-1)[:whole].reshape(-1, side_by_side).all(axis=1).any())


def memory_table(buffers: Sequence[tuple[str, MemorySpace, tuple[int, ...], Any, int]]) -> str:
    """One line a buffer with its padded bytes, for an over-allocation's report."""
    lines = [
        f"  {name:<24} {space.name} {np.dtype(dtype).name}{list(shape)}  {format_bytes(padded)}"
        for name, space, shape, dtype, padded in buffers
    ]
    return "\n".join(lines)
