"""From the events of a run to the token system and to the pairs of accesses that have to be ordered.

For every byte only the last write before an access, and the reads between two writes, are asked about: what lies
further back is ordered by the chain of these, or one of them is a race itself.  Parts of buffers are regions as
they occur, as in :mod:`tpusim.judges.ranges`.

Most pairs are ordered by a wait of the later core that needs every token there can be: what the core itself has
added before, and all that others ever add.  They are left out here; the token system answers for the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpusim.judges.proof.accesses import Access, Cell, Conflict
from tpusim.judges.proof.record import Met, Moved, Peeked, Recorder, Signalled, Touched
from tpusim.judges.proof.tokens import Core, Leg, Question, TokenSystem
from tpusim.judges.proof.walk import reached
from tpusim.machine.dma import Copy
from tpusim.machine.semaphores import Semaphore
from tpusim.specs import SemaphoreType

if TYPE_CHECKING:
    from tpusim.machine.calls import Call
    from tpusim.machine.memory import Buffer, Region


class Conflicts:
    """The token system of a run and its conflicts, built from what a recorder kept.

    ``unentered``: remote operations that even in this run came before their target's entry.  ``overlapping``:
    copies whose source and destination share elements.  ``left``: what is left on each semaphore.
    ``shared``: semaphores for which several cores wait.  ``leaving``: scopes that end with something left on a
    semaphore of theirs.  ``meetings``: how often cores leave an XLA collective.
    """

    def __init__(self, recorder: Recorder, devices: int) -> None:
        self.system = TokenSystem(devices)
        self.conflicts: list[Conflict] = []
        self.unentered: list[Conflict] = []
        self.overlapping: list[Copy] = []
        self.peeked: list[Peeked] = []
        self.left: defaultdict[Semaphore, int] = defaultdict(int)
        self.leaving: list[tuple[Moved, Semaphore, int]] = []
        self.meetings = 0
        self.copies = 0
        self._waiters: defaultdict[Semaphore, dict[int, int]] = defaultdict(dict)
        self._taken: defaultdict[tuple[Semaphore, int], int] = defaultdict(int)
        self._own: defaultdict[Semaphore, int] = defaultdict(int)
        self._foreign: defaultdict[Semaphore, int] = defaultdict(int)
        """What the owner has added so far, and what others add in the whole run."""
        self._open: defaultdict[Semaphore, list[Access]] = defaultdict(list)
        """Legs that no wait has settled."""
        self._cells: dict[Buffer, dict[Region, Cell]] = {}
        self._calls: list[Call | None] = [None] * devices
        self._entries: dict[Any, Access] = {}
        self._exits: dict[Any, Access] = {}
        self._outliving: defaultdict[Any, list[Access]] = defaultdict(list)
        """By call and device: legs there whose semaphores a call hands to later ones, so that its end is not theirs."""
        self._asked: set[tuple[Access, int, Any]] = set()
        self._scoped: set[Any] = set()
        self._free: dict[Semaphore, Access | None] = {}
        """Semaphores of scopes: since when their counters are free for them, where not since the call's entry."""
        self._freed: dict[int, Access] = {}
        """By device: where it last left a scope with semaphores in the call it is in."""
        self._early: defaultdict[Semaphore, list[Access]] = defaultdict(list)
        """Signals and copies to semaphores whose scope is not entered."""
        for event in recorder.events:
            self._look_ahead(event)
        self.shared = [semaphore for semaphore, waiters in self._waiters.items() if len(waiters) > 1]
        handlers: dict[type, Callable[[Any], None]] = {
            tuple: self._wait, Copy: self._copy, Signalled: self._signal, Touched: self._touch, Moved: self._move,
            Peeked: self._peek, Met: self._meet,
        }  # fmt: skip
        for event in recorder.events:
            handlers[type(event)](event)
        for semaphore, (first, *_) in self._early.items():
            self.unentered += [Conflict(self._core_access(semaphore.device, semaphore, True, None, None), first)]

    def _look_ahead(self, event: Any) -> None:
        """What has to be known of all events before the first is looked at."""
        if type(event) is tuple:
            self._waiters[event[1]][event[0].device] = 0
        elif type(event) is Copy:
            if event.dst_sem.device != event.core.device:
                self._foreign[event.dst_sem] += event.dst_region.nbytes
        elif type(event) is Signalled:
            if event.semaphore.device != event.core.device:
                self._foreign[event.semaphore] += event.amount
        elif type(event) is Moved and event.is_scope:
            self._scoped.update(buffer.spec for buffer in event.buffers)
            self._scoped.update(semaphore.spec for semaphore in event.semaphores)

    def unordered(self) -> list[Conflict]:
        """The conflicts in which nothing forces the earlier access to end before the later begins."""
        questions = [Question(earlier.stall, later.device, later.after) for earlier, later in self.conflicts]
        answers = reached(self.system, questions)
        return [conflict for conflict, can_be in zip(self.conflicts, answers, strict=True) if can_be]

    def needs_parts(self, conflict: Conflict) -> bool:
        """Whether the later access can begin only while all but the last bytes of the earlier one have come."""
        stall, later = conflict.earlier.stall, conflict.later
        if not isinstance(stall, Leg):
            return False
        whole = replace(stall, is_whole=True)
        return not reached(self.system, [Question(whole, later.device, later.after)])[0]

    # -- operations -----------------------------------------------------------------------------

    def _wait(self, event: Any) -> None:
        core, semaphore, amount, *_ = event
        key = (semaphore, core.device)
        self._taken[key] += amount
        self.left[semaphore] -= amount
        number = self.system.wait(core.device, key, self._taken[key])
        if self._taken[key] == self._own[semaphore] + self._foreign[semaphore]:
            for leg in self._open.pop(semaphore, ()):
                leg.waiter, leg.settled = core.device, number

    def _tokens(self, semaphore: Semaphore | None, amount: int) -> list[tuple[Any, int]]:
        """What adding to a semaphore adds to counters: one for each core that waits for it."""
        if semaphore is None:
            return []
        self.left[semaphore] += amount
        return [((semaphore, device), amount) for device in self._waiters.get(semaphore, ())]

    def _signal(self, event: Signalled) -> None:
        device, semaphore = event.core.device, event.semaphore
        if semaphore.device == device:
            self._own[semaphore] += event.amount
        number = self.system.add(device, self._tokens(semaphore, event.amount))
        if event.amount and semaphore.device != device and semaphore.spec.kind is not SemaphoreType.BARRIER:
            later = Access(device, number, Core(device, 0), event, True, None, semaphore)
            self._ask_entry(later, semaphore.device, semaphore.spec.home, [semaphore])

    def _copy(self, copy: Copy) -> None:
        device = copy.core.device
        self.copies += 1
        size = copy.dst_region.nbytes
        if not size:
            self.system.add(device, ())
            return
        sent, received = self._tokens(copy.src_sem, copy.src_region.nbytes), self._tokens(copy.dst_sem, size)
        number = self.system.copy(device, sent, received)
        # without a semaphore of its own the reader of a copy withholds what its writer does
        reader = Access(device, number, Leg(number, bool(sent)), copy, False, copy.src, copy.src_region)
        writer = Access(device, number, Leg(number, False), copy, True, copy.dst, copy.dst_region)
        if sent and copy.src_sem is not None:
            reader.writer = writer
            self._open[copy.src_sem].append(reader)
            self._own[copy.src_sem] += copy.src_region.nbytes
        else:
            self._open[copy.dst_sem].append(reader)
        self._open[copy.dst_sem].append(writer)
        if copy.dst_sem.device == device:
            self._own[copy.dst_sem] += size
        if copy.dst_sem.spec.home is not None:
            self._outlives(writer, copy.dst)
        if (copy.src_sem or copy.dst_sem).spec.home is not None:
            self._outlives(reader, copy.src)
        if copy.src is copy.dst and copy.src_region.overlaps(copy.dst_region):
            self.overlapping.append(copy)
        self._read(reader, copy.src, copy.src_region, is_load=False)
        self._written(writer, copy.dst, copy.dst_region)
        if copy.dst.device != device:
            self._ask_entry(writer, copy.dst.device, copy.dst.spec.home, [copy.dst, copy.dst_sem])

    def _outlives(self, leg: Access, buffer: Buffer) -> None:
        """The end of the call does not wait for a leg, which may be busy with what the call owns."""
        if buffer.spec.home is not None or buffer.spec.scope is not None:
            return
        key = self._calls[leg.device], buffer.device
        if key in self._exits:  # even in this run it came later
            self.unentered.append(Conflict(leg, self._exits[key]))
        else:
            self._outliving[key].append(leg)

    def _touch(self, event: Touched) -> None:
        if not event.region.size:
            return
        access = self._core_access(event.core.device, event, event.is_write, event.buffer, event.region)
        if event.is_write:
            self._written(access, event.buffer, event.region)
        else:
            self._read(access, event.buffer, event.region, is_load=True)

    def _peek(self, event: Peeked) -> None:
        self.peeked.append(event)

    def _meet(self, event: Met) -> None:
        if event.others is None:
            self.system.add(event.core.device, [(event.meeting, 1)])
        else:
            self.meetings += 1
            self.system.wait(event.core.device, event.meeting, len(event.others))

    def _core_access(self, device: int, event: Any, is_write: bool, buffer: Buffer | None, what: Any) -> Access:
        own = self.system.operations[device]
        return Access(device, self.system.last(device), Core(device, len(own)), event, is_write, buffer, what)

    # -- calls and scopes -----------------------------------------------------------------------

    def _move(self, event: Moved) -> None:
        device = event.core.device
        access = self._core_access(device, event, True, None, None)
        if not event.is_scope:
            self._calls[device] = event.call if event.is_entry else None
            if event.is_entry:
                self._entries[event.call, device] = access
                self._freed.pop(device, None)
            else:
                self._exits[event.call, device] = access
                for leg in self._outliving.pop((event.call, device), ()):
                    self._ask(leg, access)
            return
        for buffer in event.buffers:
            if not event.is_entry:
                for cell in self._cells.get(buffer, {}).values():
                    self._ask_all(cell, access)
            self._cells.pop(buffer, None)
            if event.is_entry:
                self._entries[buffer] = access
            else:
                self._entries.pop(buffer, None)
        for semaphore in event.semaphores:
            if not event.is_entry:
                self._free.pop(semaphore, None)
                self._freed[device] = access
                continue
            free = self._free[semaphore] = self._freed.get(device)
            for later in self._early.pop(semaphore, ()):
                if free is not None:
                    self.conflicts.append(Conflict(free, later))
        if not event.is_entry:
            self.leaving += [(event, owned, self.left[owned]) for owned in event.semaphores if self.left[owned]]

    def _ask_entry(self, later: Access, target: int, home: Call | None, objects: list[Any]) -> None:
        """Whether the target certainly has entered the call, and the scopes, that own what is touched there."""
        call = home or self._calls[later.device]
        entries: list[tuple[Any, Access | None]] = [(call, self._entries.get((call, target)))]
        for owned in objects:
            if owned.spec not in self._scoped and getattr(owned.spec, "scope", None) is None:
                continue
            if not isinstance(owned, Semaphore):
                entries.append((owned, self._entries.get(owned)))
            elif owned in self._free:
                free = self._free[owned]
                entries += [(owned, free)] if free is not None else []
            else:
                self._early[owned].append(later)
        for owner, entry in entries:
            if entry is None:
                self.unentered.append(Conflict(self._core_access(target, owner, True, None, None), later))
            elif (entry, later.device, type(later.source)) not in self._asked:
                # what the same core sends later is ordered where its first is
                self._asked.add((entry, later.device, type(later.source)))
                self.conflicts.append(Conflict(entry, later))

    # -- accesses -------------------------------------------------------------------------------

    def _cell(self, buffer: Buffer, region: Region) -> tuple[dict[Region, Cell], Cell]:
        cells = self._cells.get(buffer)
        if cells is None:
            cells = self._cells[buffer] = {}
        cell = cells.get(region)
        if cell is None:
            cell = cells[region] = Cell(buffer.spec.index.links_of(region))
        return cells, cell

    def _read(self, access: Access, buffer: Buffer, region: Region, *, is_load: bool) -> None:
        cells, cell = self._cell(buffer, region)
        self._ask(cell.write, access)
        for other, _ in _live(cells, cell.links):
            self._ask(cells[other].write, access)
        if is_load:
            cell.load = access
        else:
            cell.reads.append(access)

    def _written(self, access: Access, buffer: Buffer, region: Region) -> None:
        cells, cell = self._cell(buffer, region)
        self._ask_all(cell, access)
        for other, is_inside in _live(cells, cell.links):
            self._ask_all(cells[other], access)
            if is_inside:
                del cells[other]
        cell.write, cell.reads, cell.load = access, [], None

    def _ask_all(self, cell: Cell, later: Access) -> None:
        self._ask(cell.write, later)
        self._ask(cell.load, later)
        for read in cell.reads:
            self._ask(read, later)

    def _ask(self, earlier: Access | None, later: Access) -> None:
        if earlier is None or earlier.source is later.source:
            return
        if earlier.is_over_for(later) if earlier.is_leg else earlier.device == later.device:
            return
        self.conflicts.append(Conflict(earlier, later))


def _live(cells: dict[Region, Cell], links: dict[Region, bool]) -> list[tuple[Region, bool]]:
    """Those of ``links`` that have a cell."""
    if not links:
        return []
    if len(links) <= len(cells):
        return [link for link in links.items() if link[0] in cells]
    return [(region, links[region]) for region in cells if region in links]
