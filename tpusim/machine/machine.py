"""The façade of the simulated hardware: build it, put calls on its cores, run it until nothing moves."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from math import prod
from typing import Any

from simpy.core import EmptySchedule

from tpusim.chips import ChipSpec
from tpusim.errors import InterruptedRunError
from tpusim.findings import Finding, Kind, Where
from tpusim.machine.calls import Call
from tpusim.machine.clock import make_clock
from tpusim.machine.core import JOINED_CALLBACKS, Core
from tpusim.machine.dma import CORE, SOLVE
from tpusim.machine.fabric import Fabric
from tpusim.machine.memory import Buffer, Region, SpecCache, Tiling
from tpusim.machine.queues import QueueFabric
from tpusim.machine.reports import Reporting
from tpusim.machine.semaphores import Semaphore, SemaphoreSpec
from tpusim.machine.timing import Timing
from tpusim.machine.wiring import Ways, Wiring
from tpusim.observe import Hooks, Observer
from tpusim.specs import MemorySpace, SemaphoreType
from tpusim.topology import Slice
from tpusim.units import format_bytes

FOREVER_PS = 1 << 62
_PROGRESS_EVENTS = 1 << 16


class Machine(Reporting):
    """A slice of chips with a mesh on it.

    ``devices[i]`` is the slice's device at row-major mesh position i; ``axis_sizes`` are the mesh axes in
    order.  ``data=False`` runs without array contents (SMEM stays real).  ``on_finding`` is ``"raise"``
    or ``"record"``.  ``cores_of_device``: sizes of those last mesh axes that are cores of one device; ``ways``: what
    earlier runs on this mesh have worked out.  Life cycle: make it, ``new_call``, put a program on each core
    (``launch``), ``run``.

    The parts it is built of are class attributes: :class:`tpusim.machine.scheduled.ScheduledMachine` has others, so
    that schedules and faults cost nothing where there are none.
    """

    follows_writes = True
    """Whether copies tell buffers what they write (``Buffer.written``)."""
    core_type: type[Core] = Core
    call_type: type[Call] = Call
    suspends_inside = False
    """Whether an operation may suspend its core itself, so that what executes it needs a greenlet."""
    schedule_title = "default schedule"
    token: str | None = None
    """What replays the run; ``None`` for the default schedule."""

    def __init__(
        self,
        slice_: Slice,
        chip: ChipSpec,
        axis_sizes: dict[str, int],
        devices: tuple[int, ...],
        *,
        data: bool = True,
        on_finding: str = "raise",
        observers: Sequence[Observer] = (),
        max_events: int | None = None,
        max_ps: int | None = None,
        cores_of_device: tuple[int, ...] = (),
        ways: Ways | None = None,
    ) -> None:
        self.slice = slice_
        self.chip = chip
        self.axis_sizes = axis_sizes
        self.devices = devices
        self.cores_of_device = cores_of_device
        self.group = prod(cores_of_device)
        """Mesh positions that are cores of one device and share its HBM."""
        self.data = data
        self.raises = on_finding == "raise"
        self.findings: list[Finding] = []
        self.hooks = Hooks(observers)
        self.max_events = max_events
        self.max_operations = sys.maxsize if max_events is None else max_events
        self.max_ps = FOREVER_PS if max_ps is None else max_ps
        self.events = 0
        self.env = make_clock()
        self.timing = Timing(chip) if ways is None else ways.timing
        self.compute_ranges: dict[int, tuple[int, int]] = {}
        """Duration of a stretch of compute whose cycles are an estimate -> the least and the most it may be (ps)."""
        self.tiling = Tiling({bits: chip.tile(bits)[0] for bits in (32, 16, 8, 4)}, chip.dma.short_run.integer)
        if chip.sparsecore.granule is not None:
            self.tiling.granule_bytes = chip.sparsecore.granule.integer
        self.tiling.sublanes_by_bits[64] = self.tiling.sublanes_by_bits[32]
        self.wiring = self._wire() if ways is None else Wiring(ways)
        self.fabric = (QueueFabric if chip.has_flag_queues else Fabric)(self.env, SOLVE)
        self.signal_callbacks: list[Callable[[Any], None]] = [self._signal]
        self.cores = [self.core_type(self, device) for device in range(len(devices))]
        self._coordinates = list(product(*map(range, axis_sizes.values())))
        self.calls: list[Call] = []
        self.barriers: dict[Any, list[Semaphore]] = {}
        self.has_blanks = False
        """Whether results may hold memory that nobody wrote."""
        self.routing_sites: list[Any] = []
        self.ended_ps: int | None = None
        """When the run ended, where the clock went on for a report's sake."""

    # -- building -------------------------------------------------------------------------------

    def _wire(self) -> Wiring:
        return Wiring(Ways(self.slice, self.devices, self.timing))

    def new_call(
        self,
        name: str,
        vmem_limit_bytes: int | None = None,
        where: Where | None = None,
        known: SpecCache | None = None,
    ) -> Call:
        """A call of a kernel, defined at ``where``, on all devices; add its buffers and semaphores, then launch it.

        ``known``: what earlier runs of the kernel declared.
        """
        call = self.call_type(self, name, vmem_limit_bytes, where, known)
        self.calls.append(call)
        return call

    def barrier_semaphore(self, collective_id: Any, device: int) -> Semaphore:
        """The barrier semaphore of an id on a device; it outlives calls."""
        found = self.barriers.get(collective_id)
        if found is None:
            name = f"collective_id {collective_id}" if isinstance(collective_id, int) else str(collective_id)
            spec = SemaphoreSpec(-1, f"barrier ({name})", SemaphoreType.BARRIER, ())
            found = self.barriers[collective_id] = [Semaphore(spec, d, 0) for d in range(len(self.cores))]
        return found[device]

    def capacities(self, vmem_limit_bytes: int | None) -> dict[MemorySpace, tuple[int, str]]:
        """For each memory its limit in bytes and what sets it."""
        chip = self.chip
        vmem = chip.vmem.capacity.integer - chip.vmem.reserved.integer
        scoped = chip.vmem.scoped_limit.integer if vmem_limit_bytes is None else vmem_limit_bytes
        hbm = chip.hbm.capacity.integer // self.slice.devices_per_chip
        limit = min(vmem, scoped)
        if limit == vmem:
            reason = f"a core of {chip.name} has {format_bytes(vmem)}"
        elif vmem_limit_bytes is None:
            reason = (
                f"a kernel on {chip.name} gets {format_bytes(scoped)} unless vmem_limit_bytes says more "
                f"(the core has {format_bytes(vmem)})"
            )
        else:
            reason = f"vmem_limit_bytes is {format_bytes(scoped)} (a core of {chip.name} has {format_bytes(vmem)})"
        smem = chip.smem.capacity.integer
        own, subcores = chip.sparsecore.vmem, chip.sparsecore.subcores
        subcore_bytes = own.integer if own is not None else 0
        shared = subcore_bytes * (subcores.integer if subcores is not None else 0)
        return {
            MemorySpace.VMEM: (limit, reason),
            MemorySpace.HBM: (hbm, f"a device of {chip.name} has {format_bytes(hbm)}"),
            MemorySpace.SMEM: (smem, f"a core of {chip.name} has {format_bytes(smem)}"),
            MemorySpace.SUBCORE_VMEM: (subcore_bytes, f"a subcore of {chip.name} has {format_bytes(subcore_bytes)}"),
            MemorySpace.VMEM_SHARED: (shared, f"a SparseCore of {chip.name} has {format_bytes(shared)}"),
        }

    def price_access(self, region: Region) -> tuple[int, int]:
        """Load and store time of a region in picoseconds, remembered on the region.

        A vector access takes its slots beside the arithmetic: they are charged with it, only the issue is here.
        """
        scalars = region.size if region.spec.space is MemorySpace.SMEM else 1
        price = region.load_ps = region.store_ps = self.timing.cycles(max(1, scalars))
        return price, price

    def fill(self, buffer: Buffer) -> None:
        """Have what was never written in a buffer show it."""
        if buffer.fill():
            self.has_blanks = True

    # -- names ----------------------------------------------------------------------------------

    def coordinates(self, device: int) -> tuple[int, ...]:
        """Mesh coordinates of a row-major device index."""
        return self._coordinates[device]

    # -- events ---------------------------------------------------------------------------------

    def _signal(self, event: Any) -> None:
        event.callbacks = _IGNORE
        semaphore = event.semaphore
        if event.amount and not semaphore.alive and not self._keeps(semaphore):
            self.note(
                Kind.LIFETIME,
                f"a signal from device {self.coordinates(event.core.device)} reaches {semaphore} on device "
                f"{self.coordinates(semaphore.device)} outside the call or run_scoped that owns it: a wait for it, or "
                "a barrier, has to keep the target there.",
                event.core.device,
                event.site,
                time_ps=self.env.now,
            )
        semaphore.add(event.amount, self.env.now)

    def _keeps(self, semaphore: Semaphore) -> bool:
        """Whether a signal outside the scope of a semaphore is counted all the same: its device is in the call."""
        core = self.cores[semaphore.device]
        is_inside = core.call is not None and not core.done and semaphore.spec in core.call.semaphore_specs
        return semaphore.spec.is_scoped and is_inside

    def launch(self, core: Core, resume: Callable[[], object], at_ps: int = 0) -> None:
        """Have a core's program begin (``resume`` called) at a time."""
        core.resume = resume
        core.now = max(core.now, at_ps)
        core.callbacks = JOINED_CALLBACKS
        self.env.schedule(core, CORE + core.order, core.now - self.env.now)

    def execute(self, core: Core, steps: Iterator[None], at_ps: int = 0) -> None:
        """Have a core's program begin at a time; ``steps`` yields where the core must be suspended."""
        self.launch(core, partial(next, steps, None), at_ps)

    def end(self) -> None:
        """Give up the programs that have not come to their end."""

    def exit(self, core: Core) -> None:
        """End of a core's call: at its local time its buffers and semaphores cease to be."""
        core.operations += 1
        core.exited_ps = core.now
        if core.call is not None and core.now > core.call.end_ps:
            core.call.end_ps = core.now
        for hook in self.hooks.exited:
            hook(core)
        event = _Exit(core, core.call)
        self.env.schedule(event, CORE + core.order + core.operations, core.now - self.env.now)
        core.done = True

    def run(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Run until nothing moves; whether every core is done is for the judges to say.

        ``progress`` is called now and then with the simulated picoseconds and the events so far.  Raises
        the error of a finding, ``LivelockError`` past ``max_events`` or ``max_time``, and
        ``InterruptedRunError`` on Ctrl-C.
        """
        try:
            with no_collection():
                while self._run_some() or self._release():
                    if progress is not None:
                        progress(self.env.now, self.events)
        except InterruptedRunError:
            raise  # it knows the line
        except KeyboardInterrupt as error:
            raise InterruptedRunError(self.livelock_finding("interrupted"), findings=self.findings) from error

    def forget(self) -> None:
        """Let go of what a run holds in circles, when nobody looks at it any more: all of it is then freed at once."""
        self.cores, self.calls, self.barriers = [], [], {}

    def _release(self) -> bool:
        """Let happen what was held until nothing else moves; false where there is nothing."""
        return False

    def absent(self) -> dict[Core, tuple[str, Where | None]]:
        """Devices that never begin, and why."""
        return {}

    def misfit(self) -> str | None:
        """What of the schedule that was asked for did not fit the run that is over."""
        return None

    def _run_some(self) -> bool:
        """Run a number of events within the limits; false once there are none."""
        env, count = self.env, _PROGRESS_EVENTS
        if self.max_events is not None:
            count = min(count, self.max_events - self.events)
            if count <= 0:
                if env.peek() < FOREVER_PS:
                    self.report_livelock(f"the run passed max_events = {self.max_events}")
                return False
        step, ran = env.step, 0
        try:
            if self.max_ps == FOREVER_PS:
                for ran in range(1, count + 1):  # noqa: B007  # it is read below, also after an error
                    step()
            else:
                for ran in range(1, count + 1):
                    if FOREVER_PS > env.peek() > self.max_ps:
                        ran -= 1
                        break
                    step()
        except EmptySchedule:
            ran -= 1
            return False
        finally:
            self.events += ran
        if ran < count:
            self.report_past_limit()
        return True


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector away: a run keeps nearly all it makes, so looking through it finds nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Exit:
    """The end of a call on one device; its own event."""

    __slots__ = ("_ok", "call", "callbacks", "core")

    def __init__(self, core: Core, call: Call | None) -> None:
        self._ok = True
        self.core = core
        self.call = call
        self.callbacks: Any = [self._run]

    def _run(self, _event: object) -> None:
        call = self.call
        if call is None:
            return
        device = self.core.device
        machine = self.core.machine
        for buffer in call.buffers[device]:
            if buffer.spec.home is not None or buffer.device != device:
                continue
            for copy in buffer.writing:
                if copy.core is not self.core and copy.issued_ps <= machine.env.now:
                    machine.report_outside_lifetime(copy, f"device {machine.coordinates(device)} leaves the kernel")
            buffer.alive = False
        for row in call.semaphores[device]:
            for semaphore in row:
                semaphore.alive = semaphore.spec.home is not None


def _ignore(event: Any) -> None:
    event.callbacks = _IGNORE


_IGNORE: list[Callable[[Any], None]] = [_ignore]
