"""A core: its clock, and the operations it can execute.

A core runs ahead of the global clock through compute, loads and stores; starts and signals are
scheduled at its local time and never suspend it, and a wait that the semaphore already satisfies goes
on at local time.  This is legal because signals only add and each semaphore has one waiter.  Only a
wait that fails, or a semaphore read, hands control back to the event loop: then the operation returns
``False`` and whoever executes the kernel must suspend it; ``resume`` is called when it may go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpusim.machine.dma import BEGIN, BEGIN_CALLBACKS, CORE, SIGNAL, Copy, Signal

if TYPE_CHECKING:
    from tpusim.machine.calls import Call
    from tpusim.machine.machine import Machine
    from tpusim.machine.memory import Buffer, Region
    from tpusim.machine.semaphores import Semaphore


class Blocked(NamedTuple):
    """What a core waits for."""

    semaphore: Semaphore
    amount: int
    since_ps: int
    site: Any


class Core:
    """One TensorCore (or megacore) of one device, executing one program.

    ``now`` is its local clock in picoseconds, never behind the global one while it runs.  ``device`` is
    the row-major index of its device in the mesh.
    """

    __slots__ = (
        "_blocked", "_ok", "_then", "begin_flow", "buffers", "call", "callbacks", "compute_ps", "device",
        "done", "entered_ps", "env", "exited_ps", "hooks", "issue_ps", "machine", "max_operations", "max_ps", "now",
        "operations", "order", "resume", "schedule", "semaphores", "since_ps", "wait_ps",
    )  # fmt: skip

    copy_type: type[Copy] = Copy
    signal_type: type[Signal] = Signal

    def __init__(self, machine: Machine, device: int) -> None:
        self.machine = machine
        self.env = machine.env
        self.hooks = machine.hooks
        self.begin_flow = machine.fabric.begin
        self.max_ps = machine.max_ps
        self.max_operations = machine.max_operations
        self.device = device
        self.order = device << 34
        self.now = 0
        self.since_ps = 0
        """The global time since it runs: of its last wake-up."""
        self.operations = 0
        self.compute_ps = 0
        self.entered_ps = 0
        self.exited_ps = -1
        self.done = False
        self._blocked: tuple[Semaphore, int, int, Any] | None = None
        self._then: tuple[Semaphore, int, Any] | None = None
        self.issue_ps = machine.timing.issue_ps
        self.wait_ps = machine.timing.wait_ps
        self.schedule = machine.env.schedule
        self.call: Call | None = None
        self.buffers: list[Buffer] = []
        self.semaphores: list[list[Semaphore]] = []
        self.resume: Callable[[], object] = _not_running
        self._ok = True
        self.callbacks: Any = JOINED_CALLBACKS

    @property
    def blocked(self) -> Blocked | None:
        """What it waits for, if it does."""
        return None if self._blocked is None else Blocked._make(self._blocked)

    # -- memory ---------------------------------------------------------------------------------

    def load(self, buffer: Buffer, region: Region, site: Any) -> Copy | None:
        """Charge a load; returns the copy in flight it races with, already reported, if any."""
        racing = buffer.writer_of(region) if buffer.writing else None
        self.operations += 1
        self.now += region.load_ps if region.load_ps >= 0 else self.machine.price_access(region)[0]
        if self.now > self.max_ps or self.operations > self.max_operations:
            self.machine.report_past_limit(self)
        if racing is not None:
            self.machine.report_race(self, "load of", buffer, region, racing, site)
        for hook in self.hooks.loaded:
            hook(self, buffer, region, site)
        return racing

    def store(self, buffer: Buffer, region: Region, site: Any) -> None:
        """Charge a store and check it against the copies in flight; call it before writing the data."""
        racing = buffer.writer_of(region) if buffer.writing else None
        if racing is None and buffer.reading:
            racing = buffer.reader_of(region)
        self.operations += 1
        self.now += region.store_ps if region.store_ps >= 0 else self.machine.price_access(region)[1]
        if self.now > self.max_ps or self.operations > self.max_operations:
            self.machine.report_past_limit(self)
        if racing is not None:
            self.machine.report_race(self, "store to", buffer, region, racing, site)
        buffer.fresh = False
        for hook in self.hooks.stored:
            hook(self, buffer, region, site)

    def compute(self, duration_ps: int, operation: str, site: Any) -> None:
        """Be busy for ``duration_ps``, at least one cycle."""
        before = self.now
        self.now = before + duration_ps
        self.operations += 1
        self.compute_ps += duration_ps
        if self.now > self.max_ps or self.operations > self.max_operations:
            self.machine.report_past_limit(self)
        for hook in self.hooks.computed:
            hook(self, operation, before, self.now, site)

    def delay(self, duration_ps: int, site: Any) -> None:
        """Do nothing for ``duration_ps``, at least one cycle."""
        before = self.now
        self.now = before + max(duration_ps, self.machine.timing.cycle_ps)
        self.operations += 1
        if self.now > self.max_ps or self.operations > self.max_operations:
            self.machine.report_past_limit(self)
        for hook in self.hooks.computed:
            hook(self, "delay", before, self.now, site)

    # -- copies ---------------------------------------------------------------------------------

    def start(
        self,
        src: Buffer,
        src_region: Region,
        dst: Buffer,
        dst_region: Region,
        src_sem: Semaphore | None,
        dst_sem: Semaphore,
        site: Any,
        priority: int = 0,
        add: bool = False,
    ) -> Copy:
        """Issue a copy; it begins after its start latency.  The destination is in flight from now on."""
        self.operations = number = self.operations + 1
        route = src.routes.get(dst.place) or self.machine.wiring.route(src, dst)
        order = self.order + number
        copy = self.copy_type(self, src, src_region, dst, dst_region, src_sem, dst_sem, route, order, site)
        if priority or add:
            copy.priority = priority
            copy.add = add
        if src.writing:
            racing = src.writer_of(src_region)
            if racing is not None:
                self.machine.report_race(self, "copy from", src, src_region, racing, site)
        racing = dst.writer_of(dst_region) if dst.writing else None
        if racing is None and dst.reading:
            racing = dst.reader_of(dst_region)
        if racing is not None:
            self.machine.report_race(self, "copy to", dst, dst_region, racing, site)
        if src is dst and src_region.overlaps(dst_region):
            self.machine.report_overlap(copy)
        if not dst.alive:
            self.machine.report_outside_lifetime(copy)
        if src.fresh and src_sem is not None:
            self.machine.report_uninitialised(copy)
        if route.warns:
            self.machine.report_routing(copy)
        src.reading.append(copy)
        dst.writing.append(copy)
        self.now = now = self.now + self.issue_ps
        if now > self.max_ps or number > self.max_operations:
            self.machine.report_past_limit(self)
        for hook in self.hooks.copy_started:
            hook(copy)
        copy.due = begin = now + route.start_ps
        copy.callbacks = BEGIN_CALLBACKS
        self.schedule(copy, BEGIN + order, begin - self.since_ps)
        return copy

    # -- semaphores -----------------------------------------------------------------------------

    def wait(self, semaphore: Semaphore, amount: int, site: Any) -> bool:
        """Take ``amount``; ``False`` where the core must be suspended until it is there."""
        self.operations += 1
        before = self.now
        self.now = now = before + self.wait_ps
        if semaphore.value >= amount:
            semaphore.value -= amount
            for hook in self.hooks.waited:
                hook((self, semaphore, amount, before, now, site))
            return True
        if semaphore.waiter is not None:
            self.machine.report_second_waiter(self, semaphore, site)
        self._blocked = (semaphore, amount, before, site)
        semaphore.need = amount
        semaphore.waiter = self
        return False

    def wait_both(
        self, first: Semaphore, amount: int, site: Any, second: Semaphore, second_amount: int, second_site: Any
    ) -> bool:
        """One wait after the other, suspending at most once; ``False`` as for ``wait``."""
        if self.wait(first, amount, site):
            return self.wait(second, second_amount, second_site)
        self._then = (second, second_amount, second_site)
        return False

    def wake(self, now: int) -> None:
        """Go on after a wait; called by the semaphore that holds enough at ``now`` (ps)."""
        semaphore, amount, since, site = self._blocked  # type: ignore[misc]  # a semaphore wakes who waits for it
        self._blocked = None
        self.since_ps = now
        if now > self.now:
            self.now = now
        else:
            now = self.now
        for hook in self.hooks.waited:
            hook((self, semaphore, amount, since, now, site))
        then = self._then
        if then is not None:
            self._then = None
            if not self.wait(*then):
                return
        self.resume()

    def give_back(self, semaphore: Semaphore, amount: int, site: Any) -> None:
        """Put back what a wait has just taken: a wait that only looks is a wait and a signal to oneself."""
        semaphore.value += amount
        for hook in self.hooks.signalled:
            hook(self, semaphore, amount, self.now, site)

    def signal(self, semaphore: Semaphore, amount: int, site: Any) -> None:
        """Add to a semaphore of this or another device."""
        machine = self.machine
        timing = machine.timing
        self.operations = number = self.operations + 1
        self.now = now = self.now + timing.signal_ps
        if now > self.max_ps or number > self.max_operations:
            machine.report_past_limit(self)
        for hook in self.hooks.signalled:
            hook(self, semaphore, amount, now, site)
        if semaphore.device == self.device:
            semaphore.add(amount, now)
            return
        arrival = now + machine.wiring.signal_ps(self.device, semaphore.device)
        event = self.signal_type(self, semaphore, amount, site)
        self.schedule(event, SIGNAL + self.order + number, arrival - self.since_ps)

    def peek(self, semaphore: Semaphore, site: Any) -> int:
        """The value of a semaphore now, for more than to print it; ``join`` first."""
        for hook in self.machine.hooks.peeked:
            hook(self, semaphore, site)
        return semaphore.value

    def join(self) -> bool:
        """Let the global clock catch up; ``False`` where the core must be suspended until it has."""
        self.operations = number = self.operations + 1
        self.now += self.machine.timing.cycle_ps
        delay = self.now - self.since_ps
        if delay <= 0:
            return True
        self.callbacks = JOINED_CALLBACKS
        self.schedule(self, CORE + self.order + number, delay)
        return False

    def stop(self) -> None:
        """Let go of the program, which is over."""
        self.resume = _not_running

    def _joined(self) -> None:
        self.callbacks = JOINED_CALLBACKS
        self.since_ps = self.env.now
        self.resume()

    def __repr__(self) -> str:
        return f"Core(device {self.machine.coordinates(self.device)}, t = {self.now} ps)"


# An unbound method, as an event's callbacks get the event: a core that held itself would outlive its run.
JOINED_CALLBACKS: Final = [Core._joined]


def _not_running() -> None:
    raise RuntimeError("this core runs no program")
