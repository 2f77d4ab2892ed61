"""Random programs of several calls, and an explorer that visits every state they can come to.

It shares no code with the proof.  A state holds how far each core is, how many units of every copy were read
and written, and the semaphores' values, from which waits really subtract.  Every unit of every copy is a step of
its own.  A core that has executed so many visible operations may be anywhere before its next one: at its loads
and stores there, in front of the entry into a call, or past the exit from one.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import greenlet
from race_oracle import BUFFERS, ELEMENTS, Op, declare, execute

from tpusim.judges.proof import Recorder, ReplayRecorder
from tpusim.machine.core import Core
from tpusim.machine.machine import Machine
from tpusim.options import RunOptions
from tpusim.session import Session

VISIBLE = ("copy", "signal", "wait")
COPIES = [("low", "high"), ("one", "last"), ("high", "middle"), ("even", "low"), ("last", "one")]


@dataclass
class Program:
    """``operations[device][call]``."""

    devices: int
    calls: int
    operations: list[list[list[Op]]]
    elements: Mapping[str, Collection[int]] = field(default_factory=lambda: ELEMENTS)
    """Of each part that operations name."""

    def __str__(self) -> str:
        return "\n".join(
            f"device {device}, call {call}: {op}"
            for device, calls in enumerate(self.operations)
            for call, ops in enumerate(calls)
            for op in ops
        )


def random_program(rng: random.Random, most: int = 12) -> Program:
    """A program whose waits mostly can be satisfied; some deadlock, some leave something behind."""
    devices, calls = rng.choice([1, 2, 2, 2, 3, 3]), rng.choice([1, 1, 2, 2, 3])
    program = Program(devices, calls, [[[] for _ in range(calls)] for _ in range(devices)])
    count, line = rng.randint(4, most), 0
    barrier: dict[int, int] = {}
    scoped = rng.random() < 0.35
    uses_barrier = rng.random() < 0.6
    drains, goes_wrong = rng.random() < 0.75, rng.random() < 0.15
    for call in range(calls):
        held: dict[tuple[int, tuple[str, int]], int] = {}
        if uses_barrier and devices > 1:
            ring = rng.random() < 0.5
            for device in range(devices):
                targets = [(device + 1) % devices] if ring else [other for other in range(devices) if other != device]
                for target in targets:
                    line += 1
                    op = Op("signal", target=target, sem=("barrier", 0), amount=1, line=line)
                    program.operations[device][call].append(op)
                line += 1
                amount = 1 if ring else devices - 1
                program.operations[device][call].append(Op("wait", sem=("barrier", 0), amount=amount, line=line))
        for _ in range(max(1, count // calls)):
            device = rng.randrange(devices)
            waitable = sorted(sem for (owner, sem), value in held.items() if owner == device and value)
            kinds = ["copy", "copy", "load", "store", "signal"] + ["wait"] * (4 if waitable else 0)
            kind = rng.choice(kinds)
            line += 1
            if kind == "wait":
                sem = rng.choice(waitable)
                amount = rng.choice([held[device, sem], held[device, sem], 1])
                held[device, sem] -= amount
                op = Op("wait", sem=sem, amount=amount + (goes_wrong and rng.random() < 0.3), line=line)
            elif kind == "signal":
                target = rng.randrange(devices)
                sem = rng.choice([("credit", 0), ("credit", 0), ("credit", 1), ("barrier", 0)])
                op = Op("signal", target=target, sem=sem, amount=1, line=line)
                table = barrier if sem[0] == "barrier" else held
                key: Any = target if sem[0] == "barrier" else (target, sem)
                table[key] = table.get(key, 0) + 1
            elif kind == "copy":
                op = _copy(rng, device, devices, line, held)
            else:
                op = Op(kind, rng.choice(sorted(ELEMENTS)), rng.randrange(2), line=line)
            program.operations[device][call].append(op)
        if scoped:
            _add_scopes(rng, [calls[call] for calls in program.operations], call)
        if drains:
            for (owner, sem), value in sorted(held.items()):
                if value:
                    line += 1
                    program.operations[owner][call].append(Op("wait", sem=sem, amount=value, line=line))
    for device, value in sorted(barrier.items()):
        if drains:
            line += 1
            program.operations[device][-1].append(Op("wait", sem=("barrier", 0), amount=value, line=line))
    return program


def _add_scopes(rng: random.Random, operations: list[list[Op]], call: int) -> None:
    """Give some devices a scope, and let some operations use its buffer."""
    inside = {}
    for device, own in enumerate(operations):
        if len(own) > 1 and rng.random() < 0.6:
            first, last = sorted(rng.sample(range(len(own) + 1), 2))
            inside[device] = (first, last)
    for device, own in enumerate(operations):
        first, last = inside.get(device, (0, 0))
        for number, op in enumerate(own):
            here = first <= number < last
            if op.kind in ("load", "store") and here and rng.random() < 0.7:
                own[number] = replace(op, buffer=BUFFERS)
            elif op.kind == "copy" and (op.target != device or here) and op.target in inside and rng.random() < 0.6:
                own[number] = replace(op, target_buffer=BUFFERS)
            elif op.kind == "copy" and here and rng.random() < 0.4:
                own[number] = replace(op, buffer=BUFFERS)
    for device, (first, last) in inside.items():
        operations[device].insert(last, Op("leave"))
        operations[device].insert(first, Op("enter"))


def _copy(rng: random.Random, device: int, devices: int, line: int, held: dict[Any, int]) -> Op:
    part, other = rng.choice(COPIES)
    buffer = rng.randrange(2)
    remote = rng.random() < 0.7
    target = rng.randrange(devices) if remote else device
    send = rng.randrange(2) if remote else None
    sem = ("dma", rng.randrange(2))
    size = len(ELEMENTS[part])
    held[target, sem] = held.get((target, sem), 0) + size
    if send is not None:
        held[device, ("dma", send)] = held.get((device, ("dma", send)), 0) + size
    return Op("copy", part, buffer, target, other, 1 - buffer, send, sem, line=line)


# -- running it ---------------------------------------------------------------------------------------


def observe(program: Program, token: str | None = None) -> tuple[Recorder, Machine]:
    """Run a program on the machine under the recorder; ``token`` replays a schedule."""
    recorder = Recorder() if token is None else ReplayRecorder()
    options = RunOptions.of({"mesh": {"x": program.devices}, "checks": "none", "on_finding": "record", "replay": token})
    machine = Session(options, ["x"], observers=[recorder]).machine
    calls = [declare(machine) for _ in range(program.calls)]
    hub = greenlet.getcurrent()
    for core in machine.cores:
        steps = _steps(program, machine, calls, core)

        def body(steps: Iterator[None] = steps) -> None:
            for _ in steps:
                hub.switch()

        machine.launch(core, greenlet.greenlet(body).switch)
    machine.run()
    return recorder, machine


def _steps(program: Program, machine: Machine, calls: list[Any], core: Core) -> Iterator[None]:
    for call, operations in zip(calls, program.operations[core.device], strict=True):
        call.enter(core.device)
        yield from execute(operations, call, core)
        machine.exit(core)


# -- every state --------------------------------------------------------------------------------------


class Access(NamedTuple):
    """A load, a store or a leg; ``position``: visible operations its core has executed when it begins."""

    line: int
    leg: str
    device: int
    position: int
    where: tuple[int, int, int]
    elements: frozenset[int]
    is_write: bool


@dataclass
class Explored:
    """What some schedule shows.

    ``overlaps``: pairs of (line, leg) of conflicting accesses under way together.  ``outside``: (device, target,
    call) of remote operations that can come before their target has entered.  ``late``: whether a device can leave
    a call while a copy that uses its memory there is under way.  ``unscoped`` and ``left``: the same for scopes, of
    copies to them (device, target, call) and of legs (line, leg).  ``ends``: the states in which nothing can move.
    """

    overlaps: set[frozenset[tuple[int, str]]] = field(default_factory=set)
    outside: set[tuple[int, int, int]] = field(default_factory=set)
    late: bool = False
    unscoped: set[tuple[int, int, int]] = field(default_factory=set)
    left: set[tuple[int, str]] = field(default_factory=set)
    ends: set[Any] = field(default_factory=set)
    states: int = 0


class Explorer:
    """Visits every state of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.visible: list[list[tuple[int, Op]]] = [[] for _ in range(program.devices)]
        self.entries: list[list[int]] = [[] for _ in range(program.devices)]
        self.exits: list[list[int]] = [[] for _ in range(program.devices)]
        self.accesses: list[Access] = []
        self.copies: dict[int, tuple[int, int, Op]] = {}
        self.scopes: dict[tuple[int, int], list[int]] = {}
        """Positions at which a device enters and leaves the scope of a call."""
        for device, calls in enumerate(program.operations):
            own = self.visible[device]
            for call, operations in enumerate(calls):
                self.entries[device].append(len(own))
                for op in operations:
                    if op.kind in VISIBLE:
                        own.append((call, op))
                    elif op.kind in ("enter", "leave"):
                        self.scopes.setdefault((device, call), []).append(len(own))
                    self._accesses(device, call, op, len(own) - (op.kind in VISIBLE))
                self.exits[device].append(len(own))
        self.order = sorted(self.copies)
        self.pairs = [
            (one, other)
            for number, one in enumerate(self.accesses)
            for other in self.accesses[:number]
            if conflicting(one, other)
        ]

    def _accesses(self, device: int, call: int, op: Op, position: int) -> None:
        if op.kind in ("load", "store"):
            elements = frozenset(self.program.elements[op.part])
            self.accesses.append(
                Access(op.line, "", device, position, (device, call, op.buffer), elements, op.kind == "store")
            )
        elif op.kind == "copy":
            self.copies[op.line] = (device, call, op)
            for leg, owner, buffer, part in (
                ("reader", device, op.buffer, op.part),
                ("writer", op.target, op.target_buffer, op.target_part),
            ):
                elements = frozenset(self.program.elements[part])
                self.accesses.append(
                    Access(op.line, leg, device, position, (owner, call, buffer), elements, leg == "writer")
                )

    def explore(self, limit: int) -> Explored | None:
        """Everything, or ``None`` past ``limit`` states."""
        found = Explored()
        start = ((0,) * self.program.devices, (-1,) * len(self.order), (-1,) * len(self.order), ())
        seen, todo = {start}, [start]
        while todo:
            state = todo.pop()
            found.states += 1
            if found.states > limit:
                return None
            self._look(state, found)
            after = list(self._moves(state))
            if not after:
                at, _, _, values = state
                found.ends.add((at, values))
            for other in after:
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return found

    def _look(self, state: Any, found: Explored) -> None:
        at, read, written, _ = state
        place = {line: number for number, line in enumerate(self.order)}

        def under_way(access: Access) -> bool:
            if not access.leg:
                return bool(at[access.device] == access.position)
            units = (read if access.leg == "reader" else written)[place[access.line]]
            return 0 <= units < len(access.elements)

        for one, other in self.pairs:
            if under_way(one) and under_way(other):
                found.overlaps.add(frozenset(((one.line, one.leg), (other.line, other.leg))))
        for device, own in enumerate(self.visible):
            if at[device] < len(own):
                call, op = own[at[device]]
                is_remote = op.kind in ("copy", "signal") and op.target != device and op.sem[0] != "barrier"
                if is_remote and at[op.target] <= self.entries[op.target][call]:
                    found.outside.add((device, op.target, call))
                is_scoped = is_remote and op.kind == "copy" and op.target_buffer == BUFFERS
                if is_scoped and at[op.target] <= self.scopes[op.target, call][0]:
                    found.unscoped.add((device, op.target, call))
        for number, line in enumerate(self.order):
            device, call, op = self.copies[line]
            size = len(self.program.elements[op.part])
            if 0 <= read[number] < size and at[device] >= self.exits[device][call]:
                found.late = True
            if 0 <= written[number] < size and at[op.target] >= self.exits[op.target][call]:
                found.late = True
            for leg, units, owner, buffer in (
                ("reader", read[number], device, op.buffer),
                ("writer", written[number], op.target, op.target_buffer),
            ):
                if buffer == BUFFERS and 0 <= units < size and at[owner] >= self.scopes[owner, call][1]:
                    found.left.add((line, leg))

    def _moves(self, state: Any) -> Iterator[Any]:
        at, read, written, values = state
        for device, own in enumerate(self.visible):
            if at[device] == len(own):
                continue
            call, op = own[at[device]]
            moved = (*at[:device], at[device] + 1, *at[device + 1 :])
            if op.kind == "wait":
                key = _name(device, call, op.sem)
                if dict(values).get(key, 0) >= op.amount:
                    yield moved, read, written, _added(values, key, -op.amount)
            elif op.kind == "signal":
                yield moved, read, written, _added(values, _name(op.target, call, op.sem), op.amount)
            else:
                number = self.order.index(op.line)
                yield moved, _put(read, number, 0), _put(written, number, 0), values
        for number, line in enumerate(self.order):
            device, call, op = self.copies[line]
            if 0 <= read[number] < len(self.program.elements[op.part]):
                send = None if op.send is None else _name(device, call, ("dma", op.send))
                yield at, _put(read, number, read[number] + 1), written, _added(values, send, 1)
            if 0 <= written[number] < read[number]:
                receive = _name(op.target, call, op.sem)
                yield at, read, _put(written, number, written[number] + 1), _added(values, receive, 1)


def conflicting(one: Access, other: Access) -> bool:
    """Whether two accesses touch the same bytes, one of them writing, and are not one core's or one copy's."""
    if one.where != other.where or not (one.is_write or other.is_write) or not one.elements & other.elements:
        return False
    if one.leg and other.leg and one.line == other.line:
        return False
    return bool(one.leg or other.leg or one.device != other.device)


def _name(device: int, call: int, sem: tuple[str, int]) -> tuple[int, int, str, int]:
    """A semaphore: barrier semaphores are the same in all calls."""
    return device, -1 if sem[0] == "barrier" else call, *sem


def _put(units: tuple[int, ...], number: int, value: int) -> tuple[int, ...]:
    return (*units[:number], value, *units[number + 1 :])


def _added(values: Any, key: Any, amount: int) -> Any:
    if key is None:
        return values
    changed = dict(values)
    changed[key] = changed.get(key, 0) + amount
    if not changed[key]:
        del changed[key]
    return tuple(sorted(changed.items()))
