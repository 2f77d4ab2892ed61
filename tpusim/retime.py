"""The time of a run under other numbers, from what it recorded.

A run's log holds, for each core, every copy, wait, signal and stretch of compute in program order.  That is the
whole of what decides its time, so the same machine can execute it again for another chip specification: no user
code, no arrays, no JAX, and contention for links and memory solved anew.  Under the chip of the run itself the
time comes out to the picosecond, which is what tests hold it to.

What lies between two recorded operations (loads, stores, scalar work) is kept, in cycles.  A value read from a
semaphore keeps its effect on the program, and a wait for XLA operations between kernels its length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tpusim.machine.machine import Machine
from tpusim.machine.memory import Buffer, Region
from tpusim.machine.semaphores import Semaphore

if TYPE_CHECKING:
    from tpusim.chips import ChipSpec
    from tpusim.machine.core import Core
    from tpusim.options import Place
    from tpusim.trace.log import EventLog

CONTROL = "grid step"
"""The operation under which the control of a grid step is logged."""

_COPY, _WAIT, _SIGNAL, _FREE_SIGNAL, _COMPUTE, _CONTROL, _DELAY, _EXIT = range(8)

Operation = tuple[int, int, Any, Any]
"""Kind, picoseconds since the end of the one before, and what it acts on and how much."""


class Recording:
    """The operations of every core of a run."""

    def __init__(self, log: EventLog, cores: tuple[Core, ...], place: Place) -> None:
        self.place = place
        self.clock_hz = place.chip.clock_hz
        machine = cores[0].machine
        self.programs = _programs(log, cores, machine.timing.issue_ps, machine.timing.signal_ps)

    def time_ps(self, chip: ChipSpec, compute: float = 1.0, prepare: Callable[[Machine], object] | None = None) -> int:
        """Picoseconds until the last core has ended, on ``chip``, with compute ``compute`` times as long.

        ``prepare`` may change the machine, the capacity of one link say, before anything runs.
        """
        place = self.place
        machine = Machine(place.slice, chip, place.axis_sizes, place.devices, data=False, on_finding="record")
        if prepare is not None:
            prepare(machine)
        player = _Stage(machine, self, compute)
        for core, program in zip(machine.cores, self.programs, strict=True):
            machine.launch(core, player.part(core, program))
        machine.run()
        return max((core.now for core in machine.cores), default=0)


def _programs(log: EventLog, cores: tuple[Core, ...], issue_ps: int, signal_ps: int) -> list[list[Operation]]:
    """For each core its operations in program order, which is the order of their ends."""
    ends: list[list[tuple[int, int, int, Any, Any]]] = [[] for _ in cores]  # end, begin, kind, on what, how much
    for core, semaphore, amount, from_ps, to_ps, _ in log.waits:
        ends[core.device].append((to_ps, from_ps, _WAIT, semaphore, amount))
    for copy in log.copies:
        ends[copy.core.device].append((copy.issued_ps + issue_ps, copy.issued_ps, _COPY, copy, None))
    for core, semaphore, amount, sent_ps, _ in log.signals:
        ends[core.device].append((sent_ps, sent_ps - signal_ps, _SIGNAL, semaphore, amount))
    for core, operation, from_ps, to_ps, _ in log.computes:
        kind = _CONTROL if operation == CONTROL else _DELAY if operation == "delay" else _COMPUTE
        ends[core.device].append((to_ps, from_ps, kind, operation, to_ps - from_ps))
    programs = []
    for core, events in zip(cores, ends, strict=True):
        events.sort(key=lambda event: event[0])  # stable: what gives back follows the wait whose end it shares
        program: list[Operation] = []
        before = 0
        for end, begin, kind, what, amount in events:
            if begin < before:  # only a signal that gives back what a wait has just taken costs nothing
                kind, begin = _FREE_SIGNAL, end
            program.append((kind, begin - before, what, amount))
            before = end
        left = core.exited_ps if core.exited_ps >= 0 else core.now
        program.append((_EXIT, max(0, left - before), None, None))
        programs.append(program)
    return programs


class _Stage:
    """A machine with stand-ins for the buffers and semaphores of a recording."""

    def __init__(self, machine: Machine, recording: Recording, compute: float) -> None:
        self.machine = machine
        old, new = recording.place.chip, machine.chip
        self.work = recording.clock_hz / new.clock_hz
        self.compute = compute * self.work
        steps = [chip.core.control_step.number + chip.core.control_axis.number for chip in (old, new)]
        self.control = self.work * (steps[1] / steps[0] if steps[0] else 1.0)
        self.short_run = new.dma.short_run.integer
        self.is_cut_alike = self.short_run == old.dma.short_run.integer
        self.buffers: dict[int, Buffer] = {}
        self.semaphores: dict[int, Semaphore] = {}

    def buffer(self, original: Buffer) -> Buffer:
        """The stand-in of a buffer: no data, always there."""
        found = self.buffers.get(id(original))
        if found is None:
            found = self.buffers[id(original)] = Buffer(original.spec, original.device, None)
            found.fresh = False
        return found

    def semaphore(self, original: Semaphore) -> Semaphore:
        """The stand-in of a semaphore, zero at first."""
        found = self.semaphores.get(id(original))
        if found is None:
            found = self.semaphores[id(original)] = Semaphore(original.spec, original.device, original.flat)
        return found

    def start(self, core: Core, copy: Any) -> None:
        """Start a recorded copy."""
        src_sem = None if copy.src_sem is None else self.semaphore(copy.src_sem)
        regions: tuple[Region, Region] = copy.src_region, copy.dst_region
        started = core.start(
            self.buffer(copy.src), regions[0], self.buffer(copy.dst), regions[1], src_sem,
            self.semaphore(copy.dst_sem), copy.site, copy.priority,
        )  # fmt: skip
        if not self.is_cut_alike:
            started.wire_bytes = max(region.wire_bytes_at(self.short_run) for region in regions)

    def part(self, core: Core, program: list[Operation]) -> Callable[[], None]:
        """What runs a program on a core: goes on until a wait fails, and again when it is called."""
        operations = iter(program)
        work, scales = self.work, {_COMPUTE: self.compute, _CONTROL: self.control, _DELAY: 1.0}

        def resume() -> None:
            for kind, gap, what, amount in operations:
                core.now += gap if work == 1.0 else round(gap * work)
                if kind == _WAIT:
                    if not core.wait(self.semaphore(what), amount, None):
                        return
                elif kind == _COPY:
                    self.start(core, what)
                elif kind == _SIGNAL:
                    core.signal(self.semaphore(what), amount, None)
                elif kind == _FREE_SIGNAL:
                    core.give_back(self.semaphore(what), amount, None)
                elif kind == _EXIT:
                    core.done = True
                else:
                    scale = scales[kind]
                    core.compute(amount if scale == 1.0 else round(amount * scale), what, None)

        return resume
