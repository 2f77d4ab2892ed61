"""What a native kernel gets for its arguments: refs to buffers and to semaphores.

A ref is a static region of a buffer position; which device's buffer it means is decided by who uses it,
so the same ref names a peer's buffer in a remote copy.  All devices share the refs of a call, and a part of
a ref is made once: slicing is a look-up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tpusim.backend import active
from tpusim.errors import MemorySpaceError, NotModelledError, OptionError, OutOfBoundsError, ShapeMismatchError
from tpusim.machine.memory import Region
from tpusim.machine.semaphores import SemaphoreSpec
from tpusim.specs import MemorySpace, SemaphoreType
from tpusim.values import Array, Scalar


class DynamicSlice(tuple[int, ...]):
    """``ds(start, size, stride)``, its start already a number: (start, size, stride)."""

    __slots__ = ()


def region_key(region: Region, index: Any) -> tuple[Any, ...]:
    """The key of ``index`` for `Region.sub`: ints and (start, size, stride), tracked scalars resolved."""
    if type(index) is not tuple:
        index = (index,)
    key: list[Any] = []
    for part in index:
        kind = type(part)
        if kind is DynamicSlice or (kind is int and part >= 0):
            key.append(part)
        elif kind is Scalar:
            key.append(_scalar(part))
        else:
            return _slow_key(region.shape, index)
    return tuple(key)


def _scalar(part: Scalar) -> int:
    value = part.value
    if type(value) is not int:
        raise ShapeMismatchError(f"an index must be an integer, not {value!r}")
    return value


def _slow_key(shape: tuple[int, ...], index: tuple[Any, ...]) -> tuple[Any, ...]:
    if sum(part is Ellipsis for part in index) > 1:
        raise ShapeMismatchError("an index can only have a single ellipsis ('...')")
    if Ellipsis in [part for part in index if part is Ellipsis]:
        at = next(i for i, part in enumerate(index) if part is Ellipsis)
        fill = len(shape) - (len(index) - 1)
        index = (*index[:at], *[slice(None)] * fill, *index[at + 1 :])
    if len(index) > len(shape):
        raise ShapeMismatchError(f"{len(index)} indices for a ref of shape {shape}")
    return tuple(_part(part, size) for part, size in zip(index, shape, strict=False))


def _part(part: Any, size: int) -> Any:
    if isinstance(part, DynamicSlice):
        return part
    if isinstance(part, Scalar):
        return _scalar(part)
    if isinstance(part, slice):
        bounds = [_bound(b) for b in (part.start, part.stop, part.step)]
        first, last, step = (*bounds[:2], 1 if bounds[2] is None else bounds[2])
        if step < 1:
            return 0, size, step
        start, stop, _ = slice(first, last, step).indices(size)
        start, stop = max(start, first or 0), max(stop, last or 0)  # past the end is an error, not cut off
        return start, max(0, -(-(stop - start) // step)), step
    if isinstance(part, bool | np.bool_) or part is None or isinstance(part, Array | np.ndarray | list):
        raise NotModelledError(
            f"a ref is indexed with integers and slices, not with {type(part).__name__}; load it first"
        )
    if not hasattr(part, "__index__"):
        raise OptionError(f"a ref is indexed with integers and slices, not with {part!r:.60}")
    value = int(part.__index__())
    return value + size if -size <= value < 0 else value


def _bound(value: Any) -> int | None:
    if value is None:
        return None
    if not hasattr(value, "__index__"):
        raise OptionError(f"a slice has integers as bounds, not {value!r:.60}")
    return int(value.__index__())  # a tracked scalar refuses: a slice has fixed bounds


class Ref:
    """A buffer of the kernel, or a region of it.

    ``ref[...]`` loads, ``ref[...] = value`` stores, ``ref.at[...]`` is a smaller ref for a copy.
    """

    __slots__ = ("at", "position", "region")

    at: _At
    """``ref.at[index]``: the part of this ref that ``index`` names."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.position = region.spec.position

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.region.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type."""
        return self.region.spec.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.region.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.region.size

    def __getattr__(self, name: str) -> Any:
        if name == "at":  # made when first asked for, then kept: most refs are never cut further
            self.at = _At(self.region)
            return self.at
        raise AttributeError(f"a ref has no attribute {name!r}")

    def __getitem__(self, index: Any) -> Any:
        executor: Any = active()
        return executor.load(self.region.sub(region_key(self.region, index)))

    def __setitem__(self, index: Any, value: Any) -> None:
        executor: Any = active()
        executor.store(self.region.sub(region_key(self.region, index)), value)

    def __repr__(self) -> str:
        return f"Ref({self.region})"


class _At:
    __slots__ = ("parts", "region")

    def __init__(self, region: Region) -> None:
        self.region = region
        self.parts: dict[Any, Ref] = {}

    def __getitem__(self, index: Any) -> Ref:
        key = index.value if type(index) is Scalar else index
        if type(key) is not int or key < 0:
            key = region_key(self.region, index)
        found = self.parts.get(key)
        if found is None:
            found = self.parts[key] = Ref(self.region.sub(key if type(key) is tuple else (key,)))
        return found


_NO_ELEMENTS: dict[int, SemaphoreRef] = {}


class SemaphoreRef:
    """A semaphore, or an array of them; ``sem.at[i]`` picks one."""

    __slots__ = ("_elements", "at", "counts_bytes", "flat", "position", "shape", "spec")

    at: SemaphoreRef
    """``sem.at[index]``: the semaphore that ``index`` names."""

    def __init__(self, spec: SemaphoreSpec, flat: int, shape: tuple[int, ...]) -> None:
        self.spec = spec
        self.counts_bytes = spec.kind is SemaphoreType.DMA and not shape
        """Whether it is one that a copy may count on."""
        self.position = spec.position
        self.flat = flat
        self.shape = shape
        self._elements: dict[int, SemaphoreRef] = _NO_ELEMENTS if not shape else {}

    def __getattr__(self, name: str) -> Any:
        if name == "at":  # itself, kept when first asked for: a property would cost a call each time
            self.at = self
            return self
        raise AttributeError(f"a semaphore has no attribute {name!r}")

    def __getitem__(self, index: Any) -> SemaphoreRef:
        shape = self.shape
        if type(index) is int and len(shape) == 1 and 0 <= index < shape[0]:
            found = self._elements.get(index)
            if found is None:
                found = self._elements[index] = SemaphoreRef(self.spec, self.flat + index, ())
            return found
        if type(index) is not tuple:
            index = (index,)
        if index == (Ellipsis,):
            return self
        if len(index) > len(shape):
            raise ShapeMismatchError(f"{self.spec.name}: {len(index)} indices for semaphores of shape {shape}")
        flat = 0
        for dim, part in enumerate(index):
            value = part.value if type(part) is Scalar else part.__index__()
            if not 0 <= value < shape[dim]:
                raise OutOfBoundsError(
                    f"{self.spec.name}[{', '.join(str(getattr(p, 'value', p)) for p in index)}]: "
                    f"index {value} leaves dimension {dim} of size {shape[dim]}"
                )
            flat = flat * shape[dim] + value
        rest = shape[len(index) :]
        for extent in rest:
            flat *= extent
        return SemaphoreRef(self.spec, self.flat + flat, rest)

    def __repr__(self) -> str:
        return f"SemaphoreRef({self.spec.name})"


class BarrierRef:
    """The barrier semaphore of the kernel's collective id."""

    __slots__ = ("collective_id", "shape")

    def __init__(self, collective_id: Any) -> None:
        self.collective_id = collective_id
        self.shape: tuple[int, ...] = ()


def require_vector_memory(region: Region, verb: str) -> None:
    """Raise ``MemorySpaceError`` where ``region`` cannot be loaded or stored by a core."""
    spec = region.spec
    if spec.space is MemorySpace.HBM:
        raise MemorySpaceError(
            f"vector {verb} {'from' if verb == 'load' else 'to'} HBM ref {region}: a core reaches VMEM and SMEM only; "
            f"copy it with make_async_copy or sync_copy first"
        )
    if spec.space is MemorySpace.SMEM and region.shape:
        raise MemorySpaceError(
            f"{verb} of shape {region.shape} {'from' if verb == 'load' else 'to'} SMEM ref {region}: "
            "SMEM holds scalars; index one element"
        )
