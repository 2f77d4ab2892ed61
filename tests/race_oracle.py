"""Random DMA programs for the race judge, and a slow oracle that shares no code with it.

A program is a list of operations a device, run on the machine itself: no kernel language in between.  The
oracle logs what happens in what order and asks of every conflicting pair whether the run that stalls one
access reaches the other.  `explore` answers the same by visiting every state, each unit of a copy on its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from tpusim.findings import Kind, Where
from tpusim.judges.races import RaceJudge
from tpusim.machine.calls import Call
from tpusim.machine.core import Core
from tpusim.machine.machine import Machine
from tpusim.machine.memory import Region
from tpusim.machine.semaphores import Semaphore
from tpusim.observe import Observer
from tpusim.options import RunOptions
from tpusim.specs import VMEM, SemaphoreType

SIZE = 4
PARTS: dict[str, Any] = {
    "all": ((0, 4),), "low": ((0, 2),), "high": ((2, 2),), "middle": ((1, 2),), "even": ((0, 2, 2),),
    "one": ((1, 1),), "last": ((3, 1),),
}  # fmt: skip
ELEMENTS = {
    "all": {0, 1, 2, 3}, "low": {0, 1}, "high": {2, 3}, "middle": {1, 2}, "even": {0, 2}, "one": {1}, "last": {3},
}  # fmt: skip
BUFFERS = 2
SCOPE = "scope"
"""A ``run_scoped`` that owns one more buffer, whose number is that of all others plus one."""
DMAS = 2
CREDITS = 2


@dataclass(frozen=True)
class Op:
    """One operation; which fields mean something depends on ``kind``."""

    kind: str
    part: str = "all"
    buffer: int = 0
    target: int = 0
    target_part: str = "all"
    target_buffer: int = 0
    send: int | None = None
    sem: tuple[str, int] = ("dma", 0)
    amount: int = 0
    line: int = 0


@dataclass
class Program:
    devices: int
    barrier: bool
    operations: list[list[Op]]
    sends: dict[tuple[int, tuple[str, int]], int] = field(default_factory=dict)


@st.composite
def programs(draw: st.DrawFn, most: int = 14) -> Program:
    """Programs that cannot deadlock: a wait takes no more than earlier operations of the list bring."""
    devices = draw(st.integers(1, 3))
    program = Program(devices, draw(st.booleans()), [[] for _ in range(devices)])
    held: dict[tuple[int, tuple[str, int]], int] = {}
    count = draw(st.integers(2, most))
    for line in range(1, count + 1):
        device = draw(st.integers(0, devices - 1))
        waitable = sorted(sem for (owner, sem), value in held.items() if owner == device and value)
        kinds = ["copy", "copy", "load", "store", "signal", "delay"] + ["wait"] * (4 if waitable else 0)
        kind = draw(st.sampled_from(kinds))
        if kind == "wait":
            sem = draw(st.sampled_from(waitable))
            value = held[device, sem]
            amount = draw(st.sampled_from([value, value, min(2, value), min(1, value)]))
            held[device, sem] -= amount
            op = Op("wait", sem=sem, amount=amount, line=line)
        elif kind == "signal":
            target = draw(st.integers(0, devices - 1))
            op = Op("signal", target=target, sem=("credit", draw(st.integers(0, CREDITS - 1))), amount=1, line=line)
            held[target, op.sem] = held.get((target, op.sem), 0) + 1
        elif kind == "copy":
            part, other = draw(st.sampled_from([("all", "all"), ("low", "high"), ("middle", "low"), ("even", "high")]))
            buffer, remote = draw(st.integers(0, BUFFERS - 1)), draw(st.booleans())
            target = draw(st.integers(0, devices - 1)) if remote else device
            other_buffer = draw(st.integers(0, BUFFERS - 1))
            if target == device and other_buffer == buffer:
                other_buffer = 1 - buffer
            send = draw(st.integers(0, DMAS - 1)) if remote else None
            sem = ("dma", draw(st.integers(0, DMAS - 1)))
            op = Op("copy", part, buffer, target, other, other_buffer, send, sem, line=line)
            size = len(ELEMENTS[part])
            held[target, sem] = held.get((target, sem), 0) + size
            if send is not None:
                held[device, ("dma", send)] = held.get((device, ("dma", send)), 0) + size
        elif kind == "delay":
            op = Op("delay", amount=draw(st.sampled_from([1_000, 300_000, 5_000_000])), line=line)
        else:
            op = Op(kind, draw(st.sampled_from(sorted(PARTS))), draw(st.integers(0, BUFFERS - 1)), line=line)
        program.operations[device].append(op)
    return program


# -- running it ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Access:
    """An access as the oracle sees it; ``position``: operations its device has executed before."""

    line: int
    device: int
    position: int
    where: tuple[int, int]
    elements: frozenset[int]
    is_write: bool
    leg: str
    copy: int


class Log(Observer):
    """The operations of each device, and accesses in the order in which they began."""

    def __init__(self, devices: int) -> None:
        self.programs: list[list[tuple[Any, ...]]] = [[] for _ in range(devices)]
        self.accesses: list[tuple[Access, tuple[int, ...]]] = []
        self.order: list[tuple[int, int]] = []
        self.ended: dict[int, int] = {}

    def _now(self) -> tuple[int, ...]:
        return tuple(map(len, self.programs))

    def _did(self, device: int, *operation: Any) -> None:
        self.order.append((device, len(self.programs[device])))
        self.programs[device].append(operation)

    def _access(self, core: Any, buffer: Any, region: Any, site: Any, is_write: bool, leg: str = "") -> None:
        flat = frozenset(
            range(region.box[0][0], region.box[0][0] + region.box[0][1] * region.box[0][2], region.box[0][2])
        )
        place = (buffer.device, buffer.spec.position)
        device = core.device
        number = site.line if leg else 0
        access = Access(site.line, device, len(self.programs[device]), place, flat, is_write, leg, number)
        self.accesses.append((access, self._now()))

    def loaded(self, core: Any, buffer: Any, region: Any, site: Any) -> None:
        self._access(core, buffer, region, site, False)

    def stored(self, core: Any, buffer: Any, region: Any, site: Any) -> None:
        self._access(core, buffer, region, site, True)

    def copy_started(self, copy: Any) -> None:
        self._access(copy.core, copy.src, copy.src_region, copy.site, False, "reader")
        self._access(copy.core, copy.dst, copy.dst_region, copy.site, True, "writer")
        send = None if copy.src_sem is None else _name(copy.src_sem)
        self._did(copy.core.device, "copy", copy.site.line, copy.src_region.nbytes, send, _name(copy.dst_sem))

    def waited(self, event: Any) -> None:
        core, semaphore, amount, *_ = event
        self._did(core.device, "wait", _name(semaphore), amount)

    def signalled(self, core: Any, semaphore: Any, amount: int, sent_ps: int, site: Any) -> None:
        self._did(core.device, "signal", _name(semaphore), amount)

    def exited(self, core: Any) -> None:
        self.ended[core.device] = len(self.programs[core.device])


def _name(semaphore: Any) -> tuple[int, str]:
    return semaphore.device, str(semaphore)


def observe(program: Program) -> tuple[Log, Machine]:
    """Run a program under the judge."""
    place = RunOptions.of({"mesh": {"x": program.devices}}).place(["x"])
    log, judge = Log(program.devices), RaceJudge()
    machine = Machine(
        place.slice, place.chip, place.axis_sizes, place.devices, on_finding="record", observers=[log, judge]
    )
    judge.attach(machine)
    call = declare(machine)
    for core in machine.cores:
        steps = _steps(program, machine, call, core)
        machine.launch(core, lambda steps=steps: next(steps, None))
    machine.run()
    return log, machine


def declare(machine: Machine) -> Call:
    """A call with the buffers and semaphores of these programs."""
    call = machine.new_call("program")
    for name in range(BUFFERS):
        call.add_buffer(f"b{name}", VMEM((SIZE,), "int8"), initialised=True)
    call.add_semaphores("dma", SemaphoreType.DMA, (DMAS,))
    call.add_semaphores("credit", SemaphoreType.REGULAR, (CREDITS,))
    call.add_semaphores("barrier", SemaphoreType.BARRIER, ())
    call.scope(SCOPE, None, ["scoped"], [VMEM((SIZE,), "int8")])
    return call


def _steps(program: Program, machine: Machine, call: Call, core: Core) -> Iterator[None]:
    device = core.device
    call.enter(device)
    if program.barrier and program.devices > 1:
        barrier = [table[2][0] for table in call.semaphores]
        for other in range(program.devices):
            if other != device:
                core.signal(barrier[other], 1, Where("program", 0))
        if not core.wait(barrier[device], program.devices - 1, Where("program", 0)):
            yield
    yield from execute(program.operations[device], call, core)
    machine.exit(core)


def execute(operations: Sequence[Op], call: Call, core: Core) -> Iterator[None]:
    """Execute operations on a core; gives up control where it has to be suspended."""

    def region(buffer: int, part: str) -> Region:
        return call.buffers[0][buffer].spec.whole.sub(PARTS[part])

    def semaphore(device: int, sem: tuple[str, int]) -> Semaphore:
        if sem[0] == "barrier":
            return core.machine.barrier_semaphore(0, device)
        return call.semaphores[device][0 if sem[0] == "dma" else 1][sem[1]]

    device = core.device
    for op in operations:
        site = Where("program", op.line)
        if op.kind == "load":
            core.load(core.buffers[op.buffer], region(op.buffer, op.part), site)
        elif op.kind == "store":
            core.store(core.buffers[op.buffer], region(op.buffer, op.part), site)
        elif op.kind == "enter":
            call.enter_scope(call.scopes[SCOPE], device)
        elif op.kind == "leave":
            call.leave_scope(call.scopes[SCOPE], device)
        elif op.kind == "delay":
            core.delay(op.amount, site)
        elif op.kind == "signal":
            core.signal(semaphore(op.target, op.sem), op.amount, site)
        elif op.kind == "copy":
            send = None if op.send is None else semaphore(device, ("dma", op.send))
            target = call.buffers[op.target][op.target_buffer]
            core.start(
                core.buffers[op.buffer], region(op.buffer, op.part), target, region(op.target_buffer, op.target_part),
                send, semaphore(op.target, op.sem), site,
            )  # fmt: skip
        elif not core.wait(semaphore(device, op.sem), op.amount, site):
            yield


# -- what can overlap ---------------------------------------------------------------------------------


def reaches(
    log: Log, ends: tuple[int, ...], stop: dict[int, int], held: dict[tuple[int, str], int], device: int, position: int
) -> bool:
    """Whether a device comes to a position when others stop early and some bytes (copy, leg) never arrive."""
    limits = [min(end, stop.get(d, end)) for d, end in enumerate(ends)]
    at = [0] * len(ends)
    values: dict[Any, int] = {}
    moved = True
    while moved:
        moved = False
        for d, limit in enumerate(limits):
            while at[d] < limit:
                kind, *rest = log.programs[d][at[d]]
                if kind == "wait":
                    if values.get(rest[0], 0) < rest[1]:
                        break
                    values[rest[0]] -= rest[1]
                elif kind == "signal":
                    values[rest[0]] = values.get(rest[0], 0) + rest[1]
                else:
                    line, size, send, receive = rest
                    for leg, sem in (("reader", send), ("writer", receive)):
                        if sem is not None:
                            values[sem] = values.get(sem, 0) + size - held.get((line, leg), 0)
                at[d] += 1
                moved = True
    return at[device] >= position


def stalled(access: Access) -> tuple[dict[int, int], dict[tuple[int, str], int]]:
    """The stop and the bytes held back that keep an access from ending."""
    if access.leg == "reader":
        return {}, {(access.line, "reader"): 1, (access.line, "writer"): 1}
    if access.leg == "writer":
        return {}, {(access.line, "writer"): 1}
    return {access.device: access.position}, {}


def racing(log: Log, *, whole: bool) -> set[tuple[int, int]]:
    """Lines (later, earlier) of conflicts that can overlap; ``whole``: by all that the run brings, else so far."""
    found = set()
    final = tuple(map(len, log.programs))
    for number, (later, now) in enumerate(log.accesses):
        for earlier, _ in log.accesses[:number]:
            if not conflicting(earlier, later):
                continue
            stop, held = stalled(earlier)
            if reaches(log, final if whole else now, stop, held, later.device, later.position):
                found.add((later.line, earlier.line))
    return found


def conflicting(earlier: Access, later: Access) -> bool:
    if earlier.where != later.where or not (earlier.is_write or later.is_write):
        return False
    if earlier.leg and earlier.copy == later.copy:
        return False
    if not earlier.leg and earlier.device == later.device:
        return False
    return bool(earlier.elements & later.elements)


def outside(log: Log, program: Program) -> set[int]:
    """Lines of remote copies and signals that can fall outside their target's call."""
    found = set()
    final = tuple(map(len, log.programs))
    lines = {op.line: (device, op) for device, ops in enumerate(program.operations) for op in ops}
    begins = {access.line: access.position for access, _ in log.accesses if access.leg}
    for line, (device, op) in lines.items():
        if op.kind not in ("copy", "signal") or op.target == device:
            continue
        before = [o for o in program.operations[device] if o.kind in ("copy", "signal", "wait") and o.line < line]
        position = begins.get(line, len(before) + (program.devices if program.barrier else 0))
        if reaches(log, final, {op.target: 0}, {}, device, position):
            found.add(line)
        if op.target in log.ended:
            stop = {device: position} if op.kind == "signal" else {}
            if reaches(log, final, stop, {(line, "writer"): 1}, op.target, log.ended[op.target]):
                found.add(line)
    return found


def has_late_senders(log: Log) -> bool:
    """Whether something was sent to a semaphore after a wait that, in another schedule, it could have satisfied."""
    final = tuple(map(len, log.programs))
    waits: list[tuple[Any, int, int]] = []
    for device, position in log.order:
        kind, *rest = log.programs[device][position]
        if kind == "wait":
            waits.append((rest[0], device, position))
            continue
        sems = [rest[0]] if kind == "signal" else [sem for sem in rest[2:] if sem is not None]
        for sem, waiter, at in waits:
            if sem in sems and waiter != device and reaches(log, final, {waiter: at}, {}, device, position):
                return True
    return False


def explore(log: Log, limit: int = 60_000) -> set[tuple[int, int]] | None:
    """The racing lines by visiting every state, a unit of each leg at a time; ``None`` past ``limit`` states."""
    copies = {
        operation[1]: (operation[2], operation[3], operation[4])
        for program in log.programs
        for operation in program
        if operation[0] == "copy"
    }
    order = sorted(copies)
    accesses = [access for access, _ in log.accesses]
    found: set[tuple[int, int]] = set()
    seen: set[Any] = set()
    at = (0,) * len(log.programs)
    todo = [(at, (-1,) * len(order), (-1,) * len(order), ())]
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        if len(seen) > limit:
            return None
        at, read, written, values = state

        @lru_cache(None)
        def under_way(access: Access, at: Any = at, read: Any = read, written: Any = written) -> bool:
            if not access.leg:
                return at[access.device] == access.position
            index = order.index(access.line)
            done = read[index] if access.leg == "reader" else written[index]
            return 0 <= done < copies[access.line][0]

        live = [access for access in accesses if under_way(access)]
        for access in live:
            for other in live:
                if access is not other and conflicting(other, access):
                    found.add((access.line, other.line))
        counts = dict(values)

        def add(sem: Any, amount: int, counts: Any = counts) -> tuple[Any, ...]:
            changed = {**counts, sem: counts.get(sem, 0) + amount} if sem is not None else counts
            return tuple(sorted(changed.items()))

        for device, program in enumerate(log.programs):
            if at[device] == len(program):
                continue
            kind, *rest = program[at[device]]
            moved = (*at[:device], at[device] + 1, *at[device + 1 :])
            if kind == "wait" and counts.get(rest[0], 0) >= rest[1]:
                todo.append((moved, read, written, add(rest[0], -rest[1])))
            elif kind == "signal":
                todo.append((moved, read, written, add(rest[0], rest[1])))
            elif kind == "copy":
                index = order.index(rest[0])
                begun = [(*legs[:index], 0, *legs[index + 1 :]) for legs in (read, written)]
                todo.append((moved, begun[0], begun[1], values))
        for index, line in enumerate(order):
            size, send, receive = copies[line]
            if 0 <= read[index] < size:
                more = (*read[:index], read[index] + 1, *read[index + 1 :])
                todo.append((at, more, written, add(send, 1)))
            if 0 <= written[index] < read[index]:
                more = (*written[:index], written[index] + 1, *written[index + 1 :])
                todo.append((at, read, more, add(receive, 1)))
    return found


def reported(machine: Machine, kind: Kind) -> set[tuple[int, int]]:
    """Lines (later, earlier) of the findings of a kind."""
    return {
        (f.where.line if f.where else -1, f.other.line if f.other else -1) for f in machine.findings if f.kind is kind
    }
