"""Grid pipelines: the copies that the compiler puts around the steps of a grid.

An array that a grid walks over in blocks stays in HBM; the kernel sees a window in VMEM or SMEM that holds
the block of the present step.  Windows come in twos, so that the next step's block is on its way during the
body of this one, and a block goes back to HBM during the next body.  All of these are ordinary copies of
the core, with semaphores of the call, so that clock, traces and judges need to know nothing of pipelines.

The windows of one array share one `BufferSpec`, hence its position, name and regions: a step only puts
another window into the core's buffer table.  A whole array in VMEM is a pipeline of one step.

When a block's index is evaluated: for an input with n windows n - 1 steps ahead, before the body of that
step, and with one window after the previous body; for an output after the previous body.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from tpusim.errors import OutOfBoundsError
from tpusim.launch import Suspend
from tpusim.machine.calls import Call
from tpusim.machine.core import Core
from tpusim.machine.memory import Buffer, BufferSpec, Index, Region, fresh_array, sentinel
from tpusim.machine.timing import Timing
from tpusim.specs import MemoryRef, MemorySpace, SemaphoreType

IndexMap = Callable[..., tuple[int, ...]]
"""``index_map(context, *step)``: which block of an array a grid step uses; ``context`` is the device's."""

WINDOWS = 2
"""Windows of an array that does not say otherwise."""
CONVERTED_BYTES = 1 << 26
"""How much of an array a device keeps in converted form."""


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


def control_ps(timing: Timing, axes: int, cores: int = 1) -> int:
    """Scalar work of one step of a grid with so many axes, whose steps ``cores`` share; 0 without a grid."""
    core = timing.chip.core
    cycles = core.control_step.number + core.control_axis.number * (axes - 1)
    return timing.cycles(cycles / cores) if axes else 0


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
        name = array.name
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
        if shares is not None:
            self.spec, self.windows = shares.spec, shares.windows
        else:
            is_made = is_kept and not self.is_lent and held is None
            arrays = None if is_made else [self.blank] * len(machine.cores)
            self.spec = call.add_buffer(name, window, arrays, is_operand=True, slots=self.slots)
            self.windows = [[table[self.spec.position]] for table in call.buffers]
            for device, row in enumerate(self.windows):
                for _ in range(1, self.slots):
                    data = fresh_array(window.shape, window.dtype) if is_made else self.blank
                    row.append(Buffer(self.spec, device, data))
        self.semaphores = call.add_semaphores(f"{name}.window", SemaphoreType.DMA, (self.slots,))
        self.places: dict[tuple[int, ...], Place] = {}

    def place(self, index: tuple[int, ...], step: tuple[int, ...]) -> Place:
        """Where a block lies; raises ``OutOfBoundsError`` for one that is not in the array."""
        if self.is_fixed:
            found = self.places[index] = Place(self.array.whole, self.spec.whole, True)
            return found
        inner: list[Index] = []
        outer: list[Index] = []
        is_whole = True
        for dim, position, extent in zip(self.dims, index, self.array.shape, strict=True):
            start = position * dim.unit - dim.low
            first, last = max(start, 0), min(start + dim.size, extent)
            if last <= first or (first > start and not dim.low):
                raise OutOfBoundsError(self._outside(index, step))
            if dim.is_squeezed:
                outer.append(start)
                continue
            outer.append((first, last - first))
            inner.append((first - start, last - first))
            is_whole = is_whole and last - first == dim.size
        window = self.spec.whole
        region = self.array.whole.sub(tuple(outer))
        found = self.places[index] = Place(region, window if is_whole else window.sub(tuple(inner)), is_whole)
        return found

    def _outside(self, index: tuple[int, ...], step: tuple[int, ...]) -> str:
        starts = ", ".join(str(p * d.unit - d.low) for d, p in zip(self.dims, index, strict=True))
        sizes = ", ".join(str(d.size) for d in self.dims)
        return (
            f"{self.array.name}: the index map gives block ({', '.join(map(str, index))}) for grid step {step}; "
            f"it begins at element ({starts}) and has shape ({sizes}), the array has shape {self.array.shape}"
        )


def _first(_context: object, *_step: int) -> tuple[int, ...]:
    """The index of the only block."""
    return ()


class _End:
    """What one device has of a stream."""

    __slots__ = ("array", "buffers", "context", "core", "position", "semaphores", "site", "slot", "steps", "stream",
                 "suspend", "windows")  # fmt: skip

    def __init__(
        self, stream: Stream, core: Core, suspend: Suspend, context: Any, grid: tuple[int, ...], site: Any
    ) -> None:
        self.stream = stream
        self.core = core
        self.suspend = suspend
        self.context = context
        self.site = site
        self.windows = stream.windows[core.device]
        self.array = core.buffers[stream.array.position]
        self.semaphores = core.semaphores[stream.semaphores.position]
        self.buffers = core.buffers
        self.position = stream.spec.position
        self.slot = -1
        self.steps: Iterator[tuple[int, ...]] = product(*map(range, () if stream.is_fixed else grid))


class _Reader(_End):
    """An input on one device."""

    __slots__ = ("coming", "index", "lent", "lent_bytes")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lent: dict[Place, Any] = {}
        self.lent_bytes = 0
        self.index: tuple[int, ...] | None = None
        self.coming: deque[tuple[int, Place] | None] = deque()

    def fetch(self) -> None:
        """Look at the next step that has not been looked at; start the copy of its block if it is another one."""
        step = next(self.steps, None)
        if step is None:
            return
        stream = self.stream
        index = stream.index_map(self.context, *step)
        if index == self.index:
            self.coming.append(None)
            return
        self.index = index
        place = stream.places.get(index) or stream.place(index, step)
        slot = self.slot = (self.slot + 1) % stream.slots
        window = self.windows[slot]
        if stream.is_lent:
            window.array = None  # until the copy has been waited for
        elif not place.is_whole and window.array is not None:
            window.array[...] = sentinel(stream.spec.dtype)
        self.core.start(self.array, place.array, window, place.window, None, self.semaphores[slot], self.site)
        self.coming.append((slot, place))

    def take(self) -> None:
        """Give the kernel the block of the present step."""
        fetched = self.coming.popleft()
        if fetched is None:
            return
        slot, place = fetched
        if not self.core.wait(self.semaphores[slot], place.window.nbytes, self.site):
            self.suspend()
        window = self.windows[slot]
        if self.stream.is_lent:
            window.array = self.lent.get(place)
            if window.array is None:
                window.array = self._lend(place)
        self.buffers[self.position] = window

    def _lend(self, place: Place) -> Any:
        """The array of a block without a copy in the window."""
        source, stream = self.array.array, self.stream
        if source is None:
            return None
        view = source[place.array.index]
        if not place.is_whole:
            whole = fresh_array(stream.spec.shape, stream.spec.dtype)
            whole[place.window.index] = view
            view = whole
        if stream.held is not None:
            view = view.reshape(stream.held)
        if stream.convert is not None:
            view = stream.convert(view)
            self.lent_bytes += view.nbytes
            if self.lent_bytes <= CONVERTED_BYTES:
                self.lent[place] = view
        return view


class _Writer(_End):
    """An output on one device."""

    __slots__ = ("busy", "index", "place", "step")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.busy = [0] * self.stream.slots
        self.place: Place | None = None
        self.step: tuple[int, ...] | None = next(self.steps)
        self.index = self.stream.index_map(self.context, *self.step)

    def take(self) -> None:
        """Give the kernel a window for the block of the present step: the same one, or a free one."""
        if self.place is not None:
            return
        stream = self.stream
        index = self.index
        self.place = stream.places.get(index) or stream.place(index, self.step or ())
        slot = self.slot = (self.slot + 1) % stream.slots
        self._wait(slot)
        window = self.windows[slot]
        if not stream.keeps:
            if stream.held is not None:
                window.array = stream.blank
            elif not window.fresh and window.array is not None:
                window.array[...] = sentinel(stream.spec.dtype)
            window.fresh = True
        self.buffers[self.position] = window

    def give(self) -> None:
        """After a body: if the next step writes another block, or there is none, copy this one out."""
        stream = self.stream
        step = self.step = next(self.steps, None)
        if step is not None:
            index = stream.index_map(self.context, *step)
            if index == self.index:
                return
            self.index = index
        place, slot = self.place, self.slot
        if place is None:
            return
        self.place = None
        self.busy[slot] = place.array.nbytes
        window = self.windows[slot]
        if stream.held is not None and window.array is not None:
            window.array = np.asarray(window.array).reshape(stream.spec.shape)
        self.core.start(window, place.window, self.array, place.array, None, self.semaphores[slot], self.site)

    def drain(self) -> None:
        """Wait for all that is under way, the oldest first."""
        for ahead in range(1, self.stream.slots + 1):
            self._wait((self.slot + ahead) % self.stream.slots)

    def _wait(self, slot: int) -> None:
        size = self.busy[slot]
        if size:
            self.busy[slot] = 0
            if not self.core.wait(self.semaphores[slot], size, self.site):
                self.suspend()


class Pipeline:
    """The streams of one call, and the loop over its grid.

    ``scalars`` are brought into SMEM before anything else; index maps may read them.  ``site`` is where
    the call stands.
    """

    def __init__(self, site: Any) -> None:
        self.site = site
        self.scalars: list[Stream] = []
        self.inputs: list[Stream] = []
        self.outputs: list[Stream] = []

    def run(
        self,
        core: Core,
        suspend: Suspend,
        context: Any,
        grid: tuple[int, ...],
        body: Callable[[tuple[int, ...]], object],
        control_ps: int = 0,
    ) -> None:
        """Execute all steps of ``grid`` on one device; ``control_ps`` is the scalar work of a step itself."""
        site = self.site
        common = (core, suspend, context, grid, site)
        scalars = [_Reader(stream, core, suspend, context, (), site) for stream in self.scalars]
        for reader in scalars:
            reader.fetch()
        for reader in scalars:
            reader.take()
        if 0 in grid:
            return
        readers = [_Reader(stream, *common) for stream in self.inputs]
        writers = [_Writer(stream, *common) for stream in self.outputs]
        ahead = [reader for reader in readers if reader.stream.slots > 1]
        for reader in readers:
            reader.fetch()
        for reader in ahead:
            for _ in range(2, reader.stream.slots):
                reader.fetch()
        fetching, taking, giving = ahead, readers, writers
        is_first = True
        for step in product(*map(range, grid)):
            if control_ps:
                core.compute(control_ps, "grid step", site)
            for reader in fetching:
                reader.fetch()
            for reader in taking:
                reader.take()
            for writer in giving:
                writer.take()
            body(step)
            if is_first:  # from now on only what moves
                is_first = False
                fetching = taking = [reader for reader in readers if not reader.stream.is_fixed]
                giving = [writer for writer in writers if not writer.stream.is_fixed]
            for writer in giving:
                writer.give()
        for writer in writers:
            if writer.stream.is_fixed:
                writer.give()
        for writer in writers:
            writer.drain()
