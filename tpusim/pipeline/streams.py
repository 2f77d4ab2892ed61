"""The static side of a pipeline: how an array is cut into blocks, where each lies, and the windows for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tpusim.errors import OutOfBoundsError
from tpusim.machine.calls import Call
from tpusim.machine.memory import Buffer, BufferSpec, Index, Region, fresh_array
from tpusim.machine.semaphores import PIPELINE
from tpusim.specs import MemoryRef, MemorySpace, SemaphoreType

IndexMap = Callable[..., tuple[int, ...]]
"""``index_map(context, *step)``: which block of an array a grid step uses; ``context`` is the device's."""

WINDOWS = 2
"""Windows of an array that does not say otherwise."""


class Dim(NamedTuple):
    """How one dimension of an array is cut.

    A block has ``size`` elements and begins at ``index * unit - low``: ``unit`` is ``size`` where an index
    counts blocks and 1 where it counts elements, ``low`` the padding before element 0.  A squeezed
    dimension is not in the window.
    """

    size: int
    unit: int
    is_squeezed: bool = False
    low: int = 0


def block_dims(block_shape: Sequence[int | None]) -> tuple[Dim, ...]:
    """The dimensions of a plain block shape; ``None`` is a squeezed one."""
    return tuple(Dim(1, 1, True) if size is None else Dim(size, size) for size in block_shape)


class Place(NamedTuple):
    """A block: its elements in the array, and those of the window (fewer than all at an edge)."""

    array: Region
    window: Region
    is_whole: bool


class Stream:
    """One array of a call that a grid walks over, and its windows on every device.

    ``index_map`` is ``None`` where the whole array is one block: then there is one window and one copy.
    ``is_lent``: nobody writes the array or its windows during the call, so a window may be a view of the
    array; ``convert`` makes what the kernel gets of that view, once a block.  ``keeps``: the window of a
    new block need not be made to look never written, because the kernel stores all of it before it looks.
    ``held``: the kernel exchanges the window's array as a whole, for ones of this shape.  ``shares``: the
    window is that of another stream.
    """

    def __init__(
        self,
        call: Call,
        name: str,
        array: BufferSpec,
        window: MemoryRef,
        dims: tuple[Dim, ...],
        index_map: IndexMap | None,
        slots: int = WINDOWS,
        *,
        is_lent: bool = False,
        convert: Callable[[Any], Any] | None = None,
        keeps: bool = False,
        held: tuple[int, ...] | None = None,
        shares: Stream | None = None,
    ) -> None:
        self.name = name
        self.array = array
        self.dims = dims
        self.index_map = index_map or _first
        self.is_fixed = index_map is None
        self.slots = 1 if self.is_fixed else slots
        self.keeps = keeps or shares is not None
        machine = call.machine
        is_kept = machine.data or window.space is MemorySpace.SMEM
        self.is_lent = is_lent and is_kept
        self.convert = convert
        self.held = held
        self.blank = fresh_array(held, window.dtype) if held is not None and not self.is_lent else None
        """The array of a window that was never written, where it is held."""
        self.windows: list[list[Buffer]]
        self.spec: BufferSpec
        if shares is not None:
            self.spec, self.windows = shares.spec, shares.windows
        else:
            is_made = is_kept and not self.is_lent and held is None
            arrays = None if is_made else [self.blank] * len(machine.cores)
            self.spec = call.add_buffer(name, window, arrays, is_operand=True, slots=self.slots)
            self.windows = [[table[self.spec.position]] for table in call.buffers]
            for device, row in enumerate(self.windows):
                is_filled = is_made and row[0].array is not None
                for _ in range(1, self.slots):
                    data = fresh_array(window.shape, window.dtype) if is_filled else self.blank
                    row.append(Buffer(self.spec, device, data))
        self.semaphores = call.add_semaphores(f"{name}{PIPELINE}", SemaphoreType.DMA, (self.slots,))
        self.places: dict[tuple[int, ...], Place] = {}

    def place(self, index: tuple[int, ...], step: tuple[int, ...]) -> Place:
        """Where a block lies; raises ``OutOfBoundsError`` for one that is not in the array."""
        if self.is_fixed:
            found = self.places[index] = Place(self.array.whole, self.spec.whole, True)
            return found
        inner: list[Index] = []
        outer: list[tuple[int, int, int]] = []
        kept: list[int] = []
        is_whole = True
        for number, (dim, position, extent) in enumerate(zip(self.dims, index, self.array.shape, strict=True)):
            start = position * dim.unit - dim.low
            first, last = max(start, 0), min(start + dim.size, extent)
            if last <= first or (first > start and not dim.low):
                raise OutOfBoundsError(self._outside(index, step))
            outer.append((first, last - first, 1))
            if dim.is_squeezed:
                continue
            kept.append(number)
            inner.append((first - start, last - first))
            is_whole = is_whole and last - first == dim.size
        window = self.spec.whole
        region = Region(self.array, tuple(outer), tuple(kept))
        found = self.places[index] = Place(region, window if is_whole else window.sub(tuple(inner)), is_whole)
        return found

    def _outside(self, index: tuple[int, ...], step: tuple[int, ...]) -> str:
        starts = ", ".join(str(p * d.unit - d.low) for d, p in zip(self.dims, index, strict=True))
        sizes = ", ".join(str(d.size) for d in self.dims)
        return (
            f"{self.name}: the index map gives block ({', '.join(map(str, index))}) for grid step {step}; "
            f"it begins at element ({starts}) and has shape ({sizes}), the array has shape {self.array.shape}"
        )


def add_stream(streams: list[Stream], stream: Stream) -> None:
    """Append to the inputs, or to the outputs, of a pipeline, and say with whom a stream has its flags in common.

    Of those that a grid moves the first has flags of its own, then the second and third share theirs, the fourth and
    fifth, and so on.  Source: bundles of libtpu 0.0.50.1, kernels of 2 to 5 inputs and 1 to 3 outputs.
    """
    moving = [other for other in streams if not other.is_fixed]
    if moving and len(moving) % 2 == 0 and not stream.is_fixed:
        stream.semaphores.flag = moving[-1].semaphores.flag
    streams.append(stream)


def _first(_context: object, *_step: int) -> tuple[int, ...]:
    """The index of the only block."""
    return ()
