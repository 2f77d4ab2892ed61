"""The moving side of a pipeline: what one device fetches and writes back from step to step, and the loop itself.

The loop is a generator that yields where its core must be suspended, as captured kernels are; a native kernel, which
suspends its greenlet, gives it nothing to yield.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import numpy as np

from tpusim.machine.core import Core
from tpusim.machine.memory import fresh_array, sentinel
from tpusim.machine.timing import Timing
from tpusim.pipeline.streams import Place, Stream

CONVERTED_BYTES = 1 << 26
"""How much of an array a device keeps in converted form."""


def control_ps(timing: Timing, axes: int, cores: int = 1) -> int:
    """Scalar work of one step of a grid with so many axes, whose steps ``cores`` share; 0 without a grid."""
    core = timing.chip.core
    cycles = core.control_step.number + core.control_axis.number * (axes - 1)
    return timing.cycles(cycles / cores) if axes else 0


class _End:
    """What one device has of a stream."""

    __slots__ = ("array", "buffers", "context", "core", "position", "semaphores", "site", "slot", "steps", "stream",
                 "windows")  # fmt: skip

    def __init__(self, stream: Stream, core: Core, context: Any, grid: tuple[int, ...], site: Any) -> None:
        self.stream = stream
        self.core = core
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

    def wait(self) -> bool:
        """Wait for the block of the present step; ``False`` as for `Core.wait`."""
        fetched = self.coming[0]
        if fetched is None:
            return True
        slot, place = fetched
        return self.core.wait(self.semaphores[slot], place.window.nbytes, self.site)

    def take(self) -> None:
        """Give the kernel the block of the present step, which is there."""
        fetched = self.coming.popleft()
        if fetched is None:
            return
        slot, place = fetched
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

    __slots__ = ("busy", "index", "is_first", "place", "step")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.busy = [0] * self.stream.slots
        self.place: Place | None = None
        self.is_first = False
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
        self.is_first = True
        window = self.windows[slot]
        if not stream.keeps:
            if stream.held is not None:
                window.array = stream.blank
            elif not window.fresh and window.array is not None:
                window.array[...] = sentinel(stream.spec.dtype)
            window.fresh = True
        self.buffers[self.position] = window

    def give(self) -> bool:
        """After a body: copy the block out if the next step writes another one; have a window free for that.

        ``False`` as for `Core.wait`.  The compiler waits for the window at the end of the first step of a block, not
        when the next one needs it.
        """
        self._copy_out()
        if self.is_first:
            self.is_first = False
            if self.step is not None:
                return self.wait((self.slot + 1) % self.stream.slots)
        return True

    def _copy_out(self) -> None:
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

    def oldest_first(self) -> list[int]:
        """Its windows, in the order in which they were last used."""
        return [(self.slot + ahead) % self.stream.slots for ahead in range(1, self.stream.slots + 1)]

    def wait(self, slot: int) -> bool:
        """Wait for what is under way from a window, if anything; ``False`` as for `Core.wait`."""
        size = self.busy[slot]
        if not size:
            return True
        self.busy[slot] = 0
        return self.core.wait(self.semaphores[slot], size, self.site)


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
        context: Any,
        grid: tuple[int, ...],
        body: Callable[[tuple[int, ...]], Iterable[None]],
        control_ps: int = 0,
    ) -> Iterable[None]:
        """Execute all steps of ``grid`` on one device; ``control_ps`` is the scalar work of a step itself.

        Yields where the core must be suspended; what ``body`` returns is iterated over for the same.
        """
        if not grid and not self.scalars and not self.inputs and not self.outputs:
            return body(())
        return self._steps(core, context, grid, body, control_ps)

    def _steps(
        self,
        core: Core,
        context: Any,
        grid: tuple[int, ...],
        body: Callable[[tuple[int, ...]], Iterable[None]],
        control_ps: int,
    ) -> Iterator[None]:
        site = self.site
        common = (core, context, grid, site)
        scalars = [_Reader(stream, core, context, (), site) for stream in self.scalars]
        for reader in scalars:
            reader.fetch()
        for reader in scalars:
            if not reader.wait():
                yield
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
                if not reader.wait():
                    yield
                reader.take()
            for writer in giving:
                writer.take()
            yield from body(step)
            if is_first:  # from now on only what moves
                is_first = False
                fetching = taking = [reader for reader in readers if not reader.stream.is_fixed]
                giving = [writer for writer in writers if not writer.stream.is_fixed]
            for writer in giving:
                if not writer.give():
                    yield
        for writer in writers:
            if writer.stream.is_fixed and not writer.give():
                yield
        for writer in writers:
            for slot in writer.oldest_first():
                if not writer.wait(slot):
                    yield
