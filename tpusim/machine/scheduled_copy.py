"""Copies and signals whose ends are offered to a schedule.

A copy samples its source when its reader ends and writes its destination when its writer ends, and a leg may move and
count all but its last bytes first: what hardware does while bytes move, seen at one point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.machine.clock import Later
from tpusim.machine.dma import READ, WRITTEN, Copy, Signal
from tpusim.machine.memory import Buffer, Region
from tpusim.machine.semaphores import Semaphore
from tpusim.schedules import Step

if TYPE_CHECKING:
    from tpusim.machine.scheduled import ScheduledCore
    from tpusim.machine.wiring import Route


class ScheduledSignal(Signal):
    """A remote signal whose arrival is a step."""

    __slots__ = ("_step",)

    def __init__(self, core: ScheduledCore, semaphore: Semaphore, amount: int, site: Any) -> None:
        super().__init__(core, semaphore, amount, site)
        machine = core.machine
        links = machine.wiring.way(core.device, semaphore.device).links
        self._step = Step(core.operation, "arrival", core.number, machine.slack.signal_ps(len(links)), links)

    def arrive(self) -> None:
        """It is there, unless the schedule has it come later."""
        machine: Any = self.core.machine
        machine.later(machine.offer(self._step), self._step, self.core.order, self._count)

    def _count(self) -> None:
        self.core.machine._signal(self)


class ScheduledCopy(Copy):
    """A copy the ends of whose legs are steps.

    ``_value`` is what its reader has sampled, ``_read`` and ``_landed`` the bytes that its legs have counted so far.
    """

    __slots__ = ("_landed", "_number", "_operation", "_read", "_value")

    def __init__(
        self,
        core: ScheduledCore,
        src: Buffer,
        src_region: Region,
        dst: Buffer,
        dst_region: Region,
        src_sem: Semaphore | None,
        dst_sem: Semaphore,
        route: Route,
        order: int,
        site: Any,
    ) -> None:
        super().__init__(core, src, src_region, dst, dst_region, src_sem, dst_sem, route, order, site)
        self._operation = core.operation
        self._number = core.number
        self._value: Any = None
        self._read = self._landed = 0

    def transferred(self) -> None:
        """All bytes have moved: the reader may end."""
        core: Any = self.core
        slack = core.machine.slack.reader_ps(self)
        nbytes = self.src_region.nbytes
        step = Step(self._operation, "reader", self._number, slack, self.route.links, nbytes)
        choice = core.machine.offer(step)
        if choice.last_bytes:
            self._read_part(nbytes - choice.last_bytes)
        core.machine.later(choice, step, READ + self.order, self._end_reader)

    def _read_part(self, nbytes: int) -> None:
        """Sample and count the first bytes; they are written after the hop latency."""
        self._sample(nbytes)
        self._read = nbytes
        self.core.schedule(Later(lambda: self._write_part(nbytes)), WRITTEN + self.order, self.route.hop_ps)
        if self.src_sem is not None:
            self.src_sem.add(nbytes, self.core.env.now)

    def _end_reader(self) -> None:
        if self.src_sem is not None and self._read:
            # what was counted in part is counted again with the whole, at this same instant
            self.src_sem.value -= self._read
            self.src_sem.added -= self._read
        self.due = self.core.env.now
        super().transferred()
        if self.route.hop_ps:
            self.callbacks = _WRITTEN_CALLBACKS

    def move(self) -> None:
        """Sample what is not sampled yet."""
        self._sample(self.src_region.nbytes)

    def _sample(self, nbytes: int) -> None:
        """Read the source's bytes from the last sampled one up to ``nbytes``."""
        if self.src.array is None:
            return
        value = np.array(self.src_region.read(self.src.array), order="C")
        self._value = value if self._value is None else _spliced(self._value, value, self._read, self.src_region)

    def _write_part(self, nbytes: int) -> None:
        """Write and count the first bytes."""
        if nbytes <= self._landed:
            return
        self._put(nbytes)
        before, self._landed = self._landed, nbytes
        self.dst_sem.add(nbytes - before, self.core.env.now)

    def _put(self, nbytes: int) -> None:
        """Write bytes from the last written one up to ``nbytes``."""
        array = self.dst.array
        if array is None or self._value is None:
            return
        old = np.array(self.dst_region.read(array), order="C")
        value = np.asarray(self._value).reshape(old.shape)
        if self.add:
            value = old + value
        region = self.dst_region
        first, last = (old.size * part // max(1, region.nbytes) for part in (self._landed, nbytes))
        old.reshape(-1)[first:last] = value.reshape(-1)[first:last]
        region.write(array, old)

    def written(self) -> None:
        """All bytes are there: the writer may end."""
        core: Any = self.core
        machine = core.machine
        slack, nbytes = machine.slack.hops_ps(self.route.hops), self.dst_region.nbytes
        step = Step(self._operation, "writer", self._number, slack, self.route.links, nbytes)
        choice = machine.offer(step)
        if choice.last_bytes:
            self._write_part(nbytes - choice.last_bytes)
        machine.later(choice, step, WRITTEN + self.order, self._end_writer)

    def _end_writer(self) -> None:
        self.due = self.core.env.now
        self._put(self.dst_region.nbytes)
        if self._landed:
            self.dst_sem.value -= self._landed
            self.dst_sem.added -= self._landed
        super().written()


_WRITTEN_CALLBACKS = [ScheduledCopy.written]


def _spliced(old: Any, new: Any, nbytes: int, region: Region) -> Any:
    """``old`` up to a byte, ``new`` from there."""
    at = old.size * nbytes // max(1, region.nbytes)
    new.reshape(-1)[:at] = old.reshape(-1)[:at]
    return new
