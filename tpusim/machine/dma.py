"""A copy in flight: one slotted object that is its own event in every phase.

Issued by a core, it waits for its start latency, moves through the fabric at its share of every
bandwidth (the *reader* leg), and after the hop latency has written its destination (the *writer* leg).
The bytes themselves are moved once, at the end of the reader: no race-free program can tell the
difference from moving them while time passes, and racy programs are the judges' business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tpusim.machine.flows import Flow

if TYPE_CHECKING:
    from tpusim.machine.core import Core
    from tpusim.machine.memory import Buffer, Region
    from tpusim.machine.semaphores import Semaphore
    from tpusim.machine.wiring import Route

# The kinds of event, in the order in which those of one instant run.
# The end of a reader, which the fabric schedules, has a copy's own order as its priority.
SIGNAL, READ, WRITTEN, BEGIN, CORE, SOLVE = (kind << 58 for kind in range(-1, 5))


class Copy(Flow):
    """One asynchronous copy.

    Times in picoseconds: ``issued_ps`` (the core's clock at the start call), ``begin_ps`` (first byte),
    ``read_ps`` (reader ended), ``written_ps`` (writer ended); -1 while not reached.
    """

    __slots__ = (
        "add", "begin_ps", "core", "dst", "dst_region", "dst_sem", "issued_ps", "read_ps",
        "route", "site", "src", "src_region", "src_sem", "written_ps",
    )  # fmt: skip

    def __init__(
        self,
        core: Core,
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
        wire = src_region.wire_bytes
        other = dst_region.wire_bytes
        # Flow.__init__, written out: this is the hottest constructor of all
        self.path = route.path
        self.wire_bytes = wire if wire >= other else other
        self.order = order
        self.priority = 0
        self.core = core
        self.src = src
        self.src_region = src_region
        self.dst = dst
        self.dst_region = dst_region
        self.src_sem = src_sem
        self.dst_sem = dst_sem
        self.route = route
        self.site = site
        self.add = False
        self.issued_ps = core.now
        self.begin_ps = self.read_ps = self.written_ps = -1

    @property
    def is_remote(self) -> bool:
        """Whether it has a send semaphore of its own (its target may still be its own device)."""
        return self.src_sem is not None

    @property
    def hops(self) -> int:
        """Links on its way."""
        return self.route.hops

    def begin(self) -> None:
        """The start latency is over: bytes begin to move."""
        self.begin_ps = now = self.due
        core = self.core
        if not self.dst.alive and self.dst.device != core.device:
            core.machine.report_outside_lifetime(self)
        core.begin_flow(self, now)

    def transferred(self) -> None:
        """End of the reader leg, called by the fabric."""
        core = self.core
        self.read_ps = now = self.due
        src, src_sem = self.src, self.src_sem
        if src.array is not None:
            self.move()
        else:
            if self.dst.written is not None:
                core.machine.fill(self.dst)
            self.dst.array = None  # nobody knows what it holds now
        src.reading.remove(self)
        if core.hooks.copy_read:
            for hook in core.hooks.copy_read:
                hook(self)
        hop_ps = self.route.hop_ps
        if hop_ps:
            self.due = now + hop_ps
            self.callbacks = WRITTEN_CALLBACKS
            core.schedule(self, WRITTEN + self.order, hop_ps)
            if src_sem is not None:
                src_sem.add(self.src_region.nbytes, now)
        else:
            # One instant for both legs: the writer still ends after the reader.
            if src_sem is not None:
                src_sem.add(self.src_region.nbytes, now)
            self.written()

    def move(self) -> None:
        """Copy the bytes from source to destination."""
        src, dst, source, target = self.src.array, self.dst.array, self.src_region, self.dst_region
        if src is None or dst is None:
            return
        written = self.src.written
        if written is not None and source not in written:
            self.core.machine.fill(self.src)
        written = self.dst.written
        if written is not None:
            if target.is_box and not self.add:
                written[target] = None
            else:
                self.core.machine.fill(self.dst)
        if source.is_box and target.is_box and not self.add:
            dst[target.index] = src[source.index]
            return
        if self.add:
            target.add(dst, source.read(src))
        else:
            target.write(dst, source.read(src))

    def written(self) -> None:
        """End of the writer leg."""
        core = self.core
        self.written_ps = now = self.due
        self.callbacks = _DONE
        dst = self.dst
        dst.writing.remove(self)
        dst.fresh = False
        if not dst.alive and dst.device != core.device:
            core.machine.report_outside_lifetime(self)
        if core.hooks.copy_written:
            for hook in core.hooks.copy_written:
                hook(self)
        self.dst_sem.add(self.dst_region.nbytes, now)

    def __repr__(self) -> str:
        return f"Copy({self.src_region} on {self.src.device} -> {self.dst_region} on {self.dst.device})"


# Unbound methods: an event's callbacks get the event, and here the event is the copy itself.
BEGIN_CALLBACKS: Final = [Copy.begin]
WRITTEN_CALLBACKS: Final = [Copy.written]
_DONE: Final[list[Any]] = []


class Signal:
    """A remote semaphore signal on its way; its own event."""

    __slots__ = ("_ok", "amount", "callbacks", "core", "semaphore", "site")

    def __init__(self, core: Core, semaphore: Semaphore, amount: int, site: Any) -> None:
        self._ok = True
        self.core = core
        self.semaphore = semaphore
        self.amount = amount
        self.site = site
        self.callbacks: Any = core.machine.signal_callbacks
