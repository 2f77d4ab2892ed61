"""Races and lifetimes on the observed schedule, exact although the run shows only one order.

Two accesses to overlapping bytes, one of them a write, race unless the waits between them force one to be
over before the other begins.  Which waits force what is decided by vector clocks (`clocks`), byte ranges by
`ranges`; before a race is reported it is confirmed by the run that stalls the earlier access (`stall`).  So
nothing is reported that cannot happen.  Conflicts are looked for where the later access begins: at a load, a
store, or the start of a copy, whose legs may run at any time from then on.  Everything is kept per core and
per region, so the cost of a copy does not depend on how many there were or are in flight.

The entry into a call or scope and the exit from it count as a write of the owner to everything it holds.
But a scope's semaphores are counters that its entry does not reset, so a peer may signal one, or send a copy that
counts on it, before: from the moment on when its owner is in the call and has left every scope that might use the
same counter.

What one run cannot tell: operations that other schedules would bring (a signal that this run sends only after
the wait it could have satisfied), and waiting by polling ``semaphore_read``, which orders nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tpusim.judges.clocks import NEVER, Access, CoreClock, Counter
from tpusim.judges.race_report import Later, RaceReporter
from tpusim.judges.ranges import Conflict, Shadow
from tpusim.judges.stall import can_overlap
from tpusim.machine.dma import Copy
from tpusim.machine.semaphores import Semaphore, SemaphoreSpec
from tpusim.observe import Observer, WaitEvent
from tpusim.specs import SemaphoreType

if TYPE_CHECKING:
    from tpusim.machine.calls import Call
    from tpusim.machine.core import Core
    from tpusim.machine.machine import Machine
    from tpusim.machine.memory import Buffer, Region

LEFT = NEVER + 1
"""In place of the clock at which a device entered a call: it has left it."""


class EarlySignal(NamedTuple):
    """A signal, or a copy, to a semaphore whose owner has not entered its scope: judged when it does."""

    core: Core
    others: np.ndarray[Any, Any]
    """What the core knew of the other cores."""
    position: int
    """Operations of the core before it."""
    site: Any
    verb: str = "signal to"


class RaceJudge(Observer):
    """Finds races and lifetime faults of one run; reports them to its machine as they are met.

    Cost: 2 us a local and 5 to 8 us a remote copy with its waits, whatever their number; memory is linear in
    operations.
    """

    def __init__(self) -> None:
        self._clocks: list[CoreClock] = []
        self._counters: dict[Semaphore, Counter] = {}
        self._shadows: dict[Buffer, Shadow] = {}
        self._entries: dict[Call | None, list[int]] = {}
        self._arrivals: dict[Call | None, list[int]] = {}
        """As ``_entries``, for ever."""
        self._scoped: dict[Semaphore, int] = {}
        """Semaphores of scopes: the owner's clock when the counter was free for them."""
        self._freed: list[int] = []
        """By device: its clock when it last left a scope with semaphores in the call it is in."""
        self._early: dict[Semaphore, list[EarlySignal]] = {}
        """Signals to semaphores whose scope is not entered."""

    def attach(self, machine: Machine) -> None:
        """Judge the run of ``machine``; call it once, before the run."""
        nobody = np.full(len(machine.cores), -1, np.int64)
        self._clocks = [CoreClock(device, nobody) for device in range(len(machine.cores))]
        self._programs = [clock.operations for clock in self._clocks]
        self._freed = [-1] * len(machine.cores)
        self._report = RaceReporter(machine, self._counters)

    # -- calls and scopes -----------------------------------------------------------------------

    def entered(self, core: Core) -> None:
        """The buffers of the call belong to the core from now on."""
        entries = self._entries.get(core.call)
        if entries is None:
            entries = self._entries[core.call] = [NEVER] * len(self._clocks)
            self._arrivals[core.call] = entries.copy()
        clock = self._clocks[core.device]
        entries[core.device] = self._arrivals[core.call][core.device] = len(clock.operations)
        clock.entries = entries
        self._freed[core.device] = -1

    def exited(self, core: Core) -> None:
        """Nobody may touch the buffers of the call any more."""
        call = core.call
        clock = self._clocks[core.device]
        clock.entries[core.device] = LEFT
        if call is None:
            return
        for semaphore in [s for s in self._early if s.device == core.device and s.spec in call.semaphore_specs]:
            for early in self._early.pop(semaphore):
                self._report.signal_outside(early.core, semaphore, early.site, has_left=True, verb=early.verb)
        # With semaphores that a later call waits for, the core's own copies may outlive the call without a leak.
        hands_over = any(row[0].spec.home is not None for row in call.semaphores[core.device] if row)
        for buffer in call.buffers[core.device]:
            if buffer.spec.home is not None or buffer.device != core.device:
                continue  # a later call has it, or the first core of the device
            shadow = self._shadows.pop(buffer, None)
            if shadow is None:
                continue
            for conflict in shadow.everything(clock) if hands_over else shadow.open_writes():
                copy = conflict.access.source
                if not isinstance(copy, Copy) or self._report.is_known_lifetime(copy.site, core.device):
                    continue
                if copy.core is core and not hands_over:
                    continue
                if self._is_possible(conflict, clock):
                    self._report.left_too_early(copy, buffer, "", core)

    def scope_entered(self, core: Core, buffers: Sequence[Buffer], semaphores: Sequence[Semaphore]) -> None:
        """The buffers of the scope begin anew."""
        now = len(self._programs[core.device])
        for buffer in buffers:
            shadow = self._shadow(buffer)
            shadow.cells.clear()
            shadow.entered = now
        since = max(self._entries[core.call][core.device], self._freed[core.device])
        for semaphore in semaphores:
            self._scoped[semaphore] = since
            for early in self._early.pop(semaphore, ()):
                if not self._is_after(core.device, since, early.core.device, early.others, early.position, early.site):
                    self._report.signal_outside(early.core, semaphore, early.site, has_left=False, verb=early.verb)

    def scope_left(self, core: Core, buffers: Sequence[Buffer], semaphores: Sequence[Semaphore]) -> None:
        """Whatever the scope held must be over."""
        clock = self._clocks[core.device]
        for buffer in buffers:
            shadow = self._shadow(buffer)
            for conflict in shadow.everything(clock):
                copy = conflict.access.source
                if not isinstance(copy, Copy) or copy in buffer.writing or copy in buffer.reading:
                    continue  # in flight: the machine says so itself
                if self._report.is_known_lifetime(copy.site, core.device):
                    continue
                if self._is_possible(conflict, clock):
                    self._report.left_too_early(copy, buffer, "the run_scoped of ", core)
            shadow.cells.clear()
        if semaphores:
            self._freed[core.device] = len(clock.operations)

    # -- semaphores -----------------------------------------------------------------------------

    def waited(self, event: WaitEvent) -> None:
        """The core knows more."""
        core, semaphore, amount, _, _, _ = event
        counter = self._counters.get(semaphore)
        if counter is None:
            counter = self._counters[semaphore] = Counter(semaphore.device)
        clock = self._clocks[core.device]
        if amount:
            counter.take(amount, clock)
        clock.operations.append((semaphore, -amount))

    def signalled(self, core: Core, semaphore: Semaphore, amount: int, sent_ps: int, site: Any) -> None:
        """Whoever waits for it will know what the core has done."""
        clock = self._clocks[core.device]
        owner = semaphore.device
        is_foreign = amount and owner != core.device and semaphore.spec.kind is not SemaphoreType.BARRIER
        if is_foreign and semaphore.spec.is_scoped and not semaphore.alive and not self._has_left(clock, owner):
            early = EarlySignal(core, clock.others, len(clock.operations), site)
            self._early.setdefault(semaphore, []).append(early)
            clock.shared = True
        elif is_foreign and not self._is_inside(clock, owner, self._scope_entered(semaphore), site):
            self._report.signal_outside(core, semaphore, site, has_left=self._has_left(clock, owner))
        counter = self._counters.get(semaphore)
        if counter is None:
            counter = self._counters[semaphore] = Counter(owner)
        if amount:
            counter.add((amount, core.device, len(clock.operations), clock.others, None))
            clock.shared = True
        clock.operations.append((semaphore, amount))

    def released(self, core: Core, meeting: Any, others: Sequence[int]) -> None:
        """Devices met outside of kernels: as if each had signalled the first, which then signalled each of them.

        All of them stand still until the last is told, so the first one's turn does for all.
        """
        first = others[0]
        if core.device != first or len(others) == 1:
            return
        spec = SemaphoreSpec(-1, "meeting", SemaphoreType.BARRIER, ())
        gathered = Semaphore(spec, first, 0)
        cores = [core.machine.cores[device] for device in others]
        for other in cores[1:]:
            self.signalled(other, gathered, 1, other.now, None)
        self.waited((core, gathered, len(others) - 1, core.now, core.now, None))
        for other in cores[1:]:
            go = Semaphore(spec, other.device, 0)
            self.signalled(core, go, 1, core.now, None)
            self.waited((other, go, 1, other.now, other.now, None))

    # -- accesses -------------------------------------------------------------------------------

    def loaded(self, core: Core, buffer: Buffer, region: Region, site: Any) -> None:
        """The core read a region."""
        shadow = self._shadows.get(buffer) or self._shadow(buffer)
        clock = self._clocks[core.device]
        found = shadow.load(region, clock, site)
        if found:
            self._judge(found, clock, Later(core, buffer, region, site, is_write=False))

    def stored(self, core: Core, buffer: Buffer, region: Region, site: Any) -> None:
        """The core wrote a region."""
        shadow = self._shadows.get(buffer) or self._shadow(buffer)
        clock = self._clocks[core.device]
        found = shadow.write(region, clock, Access(core.device, len(clock.operations), site))
        if found:
            self._judge(found, clock, Later(core, buffer, region, site, is_write=True))

    def copy_started(self, copy: Copy) -> None:
        """Two accesses that may happen at any time from now on, and what their ends will add."""
        core = copy.core
        device = core.device
        clock = self._clocks[device]
        src, dst = copy.src, copy.dst
        src_region, dst_region = copy.src_region, copy.dst_region
        size = dst_region.nbytes
        if size:
            now = len(clock.operations)
            others = clock.others
            dst_sem, src_sem = copy.dst_sem, copy.src_sem
            counters, shadows = self._counters, self._shadows
            target = dst_sem.device  # whoever waits for it; not the owner where cores share an HBM
            reader = writer = Access(target, NEVER, copy)
            if src_sem is not None:
                reader = Access(device, NEVER, copy, writer)
            source_shadow = shadows.get(src) or self._shadow(src)
            target_shadow = shadows.get(dst) or self._shadow(dst)
            found = source_shadow.read(src_region, clock, reader)
            if found:
                self._judge(found, clock, Later(core, src, src_region, copy.site, is_write=False, copy=copy))
            found = target_shadow.write(dst_region, clock, writer)
            if found:
                self._judge(found, clock, Later(core, dst, dst_region, copy.site, is_write=True, copy=copy))
            if target != device and (
                clock.inside.get(target) != clock.entries[target]
                or target_shadow.entered >= 0
                or self._scoped
                or not dst_sem.alive
                or dst.spec.home is not None
            ):
                self._check_target(copy, clock, target_shadow.entered)
            clock.shared = True
            counter = counters.get(dst_sem)
            if counter is None:
                counter = counters[dst_sem] = Counter(target)
            counter.add((size, device, now, others, writer))
            if src_sem is not None:
                counter = counters.get(src_sem)
                if counter is None:
                    counter = counters[src_sem] = Counter(device)
                counter.add((src_region.nbytes, device, now, others, reader))
        clock.operations.append(copy)

    # -- verdicts -------------------------------------------------------------------------------

    def _shadow(self, buffer: Buffer) -> Shadow:
        found = self._shadows.get(buffer)
        if found is None:
            found = self._shadows[buffer] = Shadow(buffer.spec.index, buffer.device)
        return found

    def _judge(self, conflicts: Sequence[Conflict], clock: CoreClock, later: Later) -> None:
        for conflict in conflicts:
            if conflict.access.source is later.copy and later.copy is not None:
                continue  # source and destination of one copy: the machine's business
            if self._report.is_known(conflict, later) or self._is_possible(conflict, clock):
                self._report.race(conflict, later)

    def _is_possible(self, conflict: Conflict, clock: CoreClock) -> bool:
        return can_overlap(self._programs, conflict.access, clock.device, len(clock.operations))

    def _scope_entered(self, semaphore: Semaphore) -> int:
        if not semaphore.alive:
            return NEVER
        return self._scoped.get(semaphore, -1) if self._scoped else -1

    def _is_inside(self, clock: CoreClock, owner: int, scope_entered: int, site: Any, home: Call | None = None) -> bool:
        """Whether ``owner`` has certainly entered its call and scope and not left it yet, or that is known.

        ``home``: the call to enter, where what it holds does not end with it.
        """
        since = max((clock.entries if home is None else self._arrivals[home])[owner], scope_entered)
        return self._is_after(owner, since, clock.device, clock.others, len(clock.operations), site)

    def _is_after(self, owner: int, since: int, device: int, others: Any, position: int, site: Any) -> bool:
        """Whether ``device`` is at its operation ``position`` only when ``owner`` is at ``since``, or that is known."""
        if others[owner] >= since or self._report.is_known_lifetime(site, owner):
            return True
        return since < NEVER and not can_overlap(self._programs, Access(owner, since, None), device, position)

    def _has_left(self, clock: CoreClock, owner: int) -> bool:
        return clock.entries[owner] == LEFT

    def _check_target(self, copy: Copy, clock: CoreClock, scope_entered: int) -> None:
        if not copy.dst.alive:
            return  # the machine says so itself
        owner = copy.dst.device
        semaphore = copy.dst_sem
        if semaphore.spec.is_scoped and not semaphore.alive and not self._has_left(clock, owner):
            early = EarlySignal(copy.core, clock.others, len(clock.operations), copy.site, "copy that counts on")
            self._early.setdefault(semaphore, []).append(early)
        else:
            scope_entered = max(scope_entered, self._scope_entered(semaphore))
        home = copy.dst.spec.home
        if home is None and scope_entered < clock.others[owner] >= clock.entries[owner]:
            clock.inside[owner] = clock.entries[owner]
        elif not self._is_inside(clock, owner, scope_entered, copy.site, home):
            self._report.copy_outside(copy, has_left=self._has_left(clock, owner))
