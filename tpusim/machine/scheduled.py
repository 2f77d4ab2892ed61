"""The machine under a schedule or with faults: every step that could come later is offered to the schedule first.

These classes take the place of the plain ones when a run asks for a schedule or for faults, so that a run without
pays nothing.  A core keeps to the global clock here: before each visible operation it lets everything earlier
happen.  No race-free program can tell; and the data a racy one gets are those of the order that was chosen.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

import greenlet
import numpy as np

from tpusim.chips import ChipSpec
from tpusim.faults import Fault, Impairments
from tpusim.findings import Where
from tpusim.machine.calls import Call
from tpusim.machine.clock import Later
from tpusim.machine.core import JOINED_CALLBACKS, Core
from tpusim.machine.dma import CORE, Copy
from tpusim.machine.impaired import ImpairedWiring, InstantWiring
from tpusim.machine.machine import Machine
from tpusim.machine.memory import Buffer, Region
from tpusim.machine.scheduled_copy import ScheduledCopy, ScheduledSignal
from tpusim.machine.semaphores import Semaphore
from tpusim.machine.slack import Slack, at_end
from tpusim.machine.wiring import Wiring
from tpusim.schedules import HOLD, Choice, Operation, Ordinals, Schedule, Step, draw, function_name, token_of
from tpusim.topology import Slice

_PATIENCE = 64
"""Looks at a semaphore in a row after which a core that polls counts as one that does not move."""


class ScheduledCore(Core):
    """A core each of whose visible operations is a step; perhaps one of a slow chip."""

    __slots__ = ("_looks", "_slowness", "number", "operation")

    copy_type = ScheduledCopy
    signal_type = ScheduledSignal

    machine: ScheduledMachine

    def __init__(self, machine: ScheduledMachine, device: int) -> None:
        super().__init__(machine, device)
        self.operation = Operation((), "", "enter", 0)
        """The one being executed."""
        self.number = 0
        """Which of its kind it is on the device."""
        self._looks = 0
        self._slowness = machine.faults.slowness(device)
        self.issue_ps = round(self.issue_ps * self._slowness)
        self.wait_ps = round(self.wait_ps * self._slowness)

    def before(self, kind: str, site: Any, names: Iterable[str], call_name: str = "kernel") -> None:
        """Offer the operation that comes now to the schedule; returns when it is to happen."""
        machine = self.machine
        function = function_name(site, call_name)
        operation = machine.ordinals.name(machine.coordinates(self.device), function, kind, names)
        number = machine.ordinals.any_ordinal(operation)
        step = Step(operation, "", number, round(machine.slack.operations.get(kind, 0) * self._slowness))
        choice = machine.offer(step)
        if choice.delay_ps == HOLD:
            machine.hold(step, self._released)
            machine.suspend()
        else:
            self.now += choice.delay_ps
            self._catch_up(0)
        self.operation = operation
        self.number = number

    def _after(self) -> None:
        """Let the schedule hold the core between the operation just executed and what follows."""
        machine = self.machine
        if not machine.schedule.looks_after:
            return
        step = Step(self.operation, "after", self.number)
        if machine.schedule.choose(step).delay_ps == HOLD:
            machine.hold(step, self._released)
            machine.suspend()

    def _released(self) -> None:
        self.since_ps = self.env.now
        self.now = max(self.now, self.since_ps)
        self.resume()

    def _catch_up(self, more_ps: int) -> None:
        """Let the global clock reach the core's, and ``more_ps`` beyond."""
        delay = self.now + more_ps - self.env.now
        if delay > 0:
            self.callbacks = JOINED_CALLBACKS
            self.env.schedule(self, CORE + self.order + self.operations, delay)
            self.machine.suspend()

    def _slowed(self, before: int) -> None:
        if self._slowness != 1:
            self.now = before + round((self.now - before) * self._slowness)

    # -- operations -----------------------------------------------------------------------------

    def load(self, buffer: Buffer, region: Region, site: Any) -> Copy | None:
        """Charge a load."""
        before = self.now
        racing = super().load(buffer, region, site)
        self._slowed(before)
        return racing

    def store(self, buffer: Buffer, region: Region, site: Any) -> None:
        """Charge a store."""
        before = self.now
        super().store(buffer, region, site)
        self._slowed(before)

    def compute(self, duration_ps: int, operation: str, site: Any) -> None:
        """Be busy."""
        super().compute(round(duration_ps * self._slowness), operation, site)

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
        """Issue a copy."""
        self.before("start", site, (src.spec.name, dst.spec.name))
        copy = super().start(src, src_region, dst, dst_region, src_sem, dst_sem, site, priority, add)
        if self.machine.schedule.pace == "instant":
            self._catch_up(2)
        self._after()
        return copy

    def wait(self, semaphore: Semaphore, amount: int, site: Any) -> bool:
        """Take from a semaphore."""
        self.before("wait", site, (semaphore.spec.name,))
        return super().wait(semaphore, amount, site)

    def wait_both(
        self, first: Semaphore, amount: int, site: Any, second: Semaphore, second_amount: int, second_site: Any
    ) -> bool:
        """One wait after the other."""
        if not self.wait(first, amount, site):
            self.machine.suspend()
        return self.wait(second, second_amount, second_site)

    def signal(self, semaphore: Semaphore, amount: int, site: Any) -> None:
        """Add to a semaphore."""
        self.before("signal", site, (semaphore.spec.name,))
        if self._slowness != 1:
            self.now += round(self.machine.timing.signal_ps * (self._slowness - 1))
        super().signal(semaphore, amount, site)
        if self.machine.schedule.pace == "instant":
            self._catch_up(1)
        self._after()

    def give_back(self, semaphore: Semaphore, amount: int, site: Any) -> None:
        """Put back what a wait has just taken."""
        self.machine.ordinals.name(
            self.machine.coordinates(self.device), function_name(site), "signal", (semaphore.spec.name,)
        )
        super().give_back(semaphore, amount, site)

    def join(self) -> bool:
        """Let the global clock catch up."""
        self._looks = self._looks + 1 if self.operation.kind == "read" else 0
        if self._looks > _PATIENCE:
            self.machine.release_soon()
        self.before("read", None, ())
        return super().join()


class ScheduledCall(Call):
    """A call whose entry on each device is a step."""

    def enter(self, device: int) -> None:
        """Begin of the call on a device."""
        core = self.machine.cores[device]
        if isinstance(core, ScheduledCore):
            core.before("enter", None, (), self.name)
        super().enter(device)


class ScheduledMachine(Machine):
    """A slice of chips whose steps happen when ``schedule`` lets them, with ``faults``."""

    core_type = ScheduledCore
    call_type = ScheduledCall
    follows_writes = False
    suspends_inside = True

    def __init__(
        self,
        slice_: Slice,
        chip: ChipSpec,
        axis_sizes: dict[str, int],
        devices: tuple[int, ...],
        *,
        schedule: Schedule,
        faults: Sequence[Fault] = (),
        **options: Any,
    ) -> None:
        mesh = [tuple(map(int, np.unravel_index(d, tuple(axis_sizes.values())))) for d in range(len(devices))]
        self.faults = Impairments(faults, slice_, devices, mesh)
        self.schedule = schedule
        self.schedule_title = schedule.title
        self.token = token_of(schedule, faults)
        self.ordinals = Ordinals()
        self.offered = 0
        """Legs and remote signals so far, whose order is not the program's alone."""
        self._held: list[tuple[int, int, Callable[[], None]]] = []
        """A heap of rank, arrival and what happens."""
        self._arrivals = 0
        self._hub = greenlet.getcurrent()
        self._threads: list[greenlet.greenlet] = []
        self._launched: set[int] = set()
        pace = schedule.pace
        super().__init__(
            slice_, chip if pace == "nominal" else at_end(chip, is_fast=True), axis_sizes, devices, **options
        )
        self.slack = Slack(chip, self.timing)
        self.signal_callbacks = [ScheduledSignal.arrive]

    def _wire(self) -> Wiring:
        if self.schedule.pace == "instant":
            self.timing.hop_ps = self.timing.remote_signal_ps = 0
            return InstantWiring(self.slice, self.devices, self.timing, self.faults)
        return ImpairedWiring(self.slice, self.devices, self.timing, self.faults)

    # -- steps ----------------------------------------------------------------------------------

    def offer(self, step: Step) -> Choice:
        """What the schedule and jitter make of a step."""
        choice = self.schedule.choose(step)
        if step.leg:
            self.offered += 1
            for jitter in self.faults.jitters if choice.delay_ps != HOLD else ():
                delay = choice.delay_ps + draw(jitter.seed + 2, step, jitter.most_ps + 1)
                choice = Choice(delay, choice.last_bytes)
        return choice

    def hold(self, step: Step, action: Callable[[], None]) -> None:
        """Let ``action`` happen when nothing else moves and it is the step's turn."""
        self._arrivals += 1
        heappush(self._held, (self.schedule.rank(step, self._arrivals), self._arrivals, action))

    def later(self, choice: Choice, step: Step, order: int, action: Callable[[], None]) -> None:
        """Let ``action`` happen after the delay of a choice, among the events of that instant at ``order``."""
        if choice.delay_ps == HOLD:
            self.hold(step, action)
        elif choice.delay_ps:
            self.env.schedule(Later(action), order, choice.delay_ps)
        else:
            action()

    def _release(self) -> bool:
        if not self._held:
            return False
        self._release_one()
        return True

    def _release_one(self) -> None:
        if self._held:
            heappop(self._held)[-1]()

    def release_soon(self) -> None:
        """Let a held step happen although a core still moves: it only looks at a semaphore, again and again."""
        if self._held:
            self.env.schedule(Later(self._release_one), 0, 0)

    def absent(self) -> dict[Core, tuple[str, Where | None]]:
        """Devices that a fault keeps away, and the fault."""
        away = {fault.text: device for device, fault in self.faults.late.items() if fault.by_ps is None}
        return {self.cores[device]: (f"to be started: {text}", None) for text, device in away.items()}

    def misfit(self) -> str | None:
        """What of the schedule did not fit the run that is over."""
        return self.schedule.misfit(self.ordinals, self.axis_sizes)

    def suspend(self) -> None:
        """Leave the core that is executing, until its ``resume`` is called."""
        self._hub.switch()

    # -- the plain machine's --------------------------------------------------------------------

    def launch(self, core: Core, resume: Callable[[], object], at_ps: int = 0) -> None:
        """Have a core's program begin at a time, or later, or never, as its faults say."""
        if core.device not in self._launched:
            self._launched.add(core.device)
            if self.faults.never_starts(core.device):
                return
            at_ps += self.faults.lateness_ps(core.device)
        super().launch(core, resume, at_ps)

    def execute(self, core: Core, steps: Iterator[None], at_ps: int = 0) -> None:
        """Have a core's program begin in a greenlet of its own, which any operation of it may suspend."""

        def main() -> None:
            for _ in steps:
                self.suspend()

        thread = greenlet.greenlet(main, self._hub)
        thread.gr_context = contextvars.copy_context()
        self._threads.append(thread)
        self.launch(core, thread.switch, at_ps)

    def end(self) -> None:
        """Give up the programs that have not come to their end."""
        for thread in self._threads:
            while thread:
                thread.throw(greenlet.GreenletExit)
        self._threads.clear()

    def exit(self, core: Core) -> None:
        """End of a core's call."""
        if isinstance(core, ScheduledCore) and core.call is not None:
            core.before("exit", None, (), core.call.name)
        super().exit(core)

    def run(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Run until nothing moves and nothing is held."""
        self._hub = greenlet.getcurrent()
        super().run(progress)
