"""The proof against an explorer that visits every state of random programs: pairs, deadlocks, leaks, entries.

``TPUSIM_ORACLE_PROGRAMS`` and ``TPUSIM_ORACLE_SEED`` make a longer run of it.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from proof_oracle import Explored, Explorer, Program, observe, random_program

from tpusim.judges.proof import Names, is_shown, prove
from tpusim.judges.proof.accesses import Access
from tpusim.judges.proof.conflicts import Conflicts
from tpusim.judges.proof.record import Moved
from tpusim.judges.proof.tokens import Question
from tpusim.judges.proof.walk import reached
from tpusim.machine.dma import Copy

PROGRAMS = int(os.environ.get("TPUSIM_ORACLE_PROGRAMS", "1000"))
SEED = int(os.environ.get("TPUSIM_ORACLE_SEED", "0"))
PARTS = 8
MOST_STATES = 6_000


class EveryAccess(Conflicts):
    """Keeps all accesses, to ask about every pair."""

    def __init__(self, *arguments: Any) -> None:
        self.seen: list[Access] = []
        super().__init__(*arguments)

    def _read(self, access: Access, *rest: Any, **more: Any) -> None:
        self.seen.append(access)
        super()._read(access, *rest, **more)

    def _written(self, access: Access, *rest: Any) -> None:
        self.seen.append(access)
        super()._written(access, *rest)

    def pairs(self) -> list[tuple[Access, Access]]:
        return [
            (one, other)
            for number, one in enumerate(self.seen)
            for other in self.seen[:number]
            if one.buffer is other.buffer
            and one.source is not other.source
            and (one.is_write or other.is_write)
            and (one.is_leg or other.is_leg or one.device != other.device)
            and one.what.overlaps(other.what)
        ]


def name(access: Access) -> tuple[int, str]:
    leg = ("writer" if access.is_write else "reader") if isinstance(access.source, Copy) else ""
    return access.source.site.line, leg


def check(program: Program) -> Explored | None:
    explored = Explorer(program).explore(MOST_STATES)
    if explored is None:
        return None
    recorder, machine = observe(program)
    conflicts = EveryAccess(recorder, program.devices)
    assert len(explored.ends) == 1  # deadlocks and leaks are the same in every schedule
    ((_, left),) = explored.ends
    blocked = [core for core in machine.cores if core.blocked is not None]
    ends = next(iter(explored.ends))[0]
    assert [at == len(own) for at, own in zip(ends, Explorer(program).visible, strict=True)] == [
        core not in blocked for core in machine.cores
    ]
    calls = {call: number for number, call in enumerate(machine.calls)}
    line_calls = {op.line: n for own in program.operations for n, ops in enumerate(own) for op in ops}
    amounts = {}
    for semaphore, value in conflicts.left.items():
        if value:
            owners = [number for call, number in calls.items() if semaphore in _semaphores(call, semaphore.device)]
            kind = "barrier" if not owners else semaphore.spec.name
            amounts[semaphore.device, owners[0] if owners else -1, kind, semaphore.flat] = value
    assert amounts == dict(left)
    # every pair, asked in both directions
    pairs = conflicts.pairs()
    questions = [Question(one.stall, other.device, other.after) for one, other in pairs]
    questions += [Question(other.stall, one.device, one.after) for one, other in pairs]
    answers = reached(conflicts.system, questions)
    half = len(pairs)
    overlaps = {
        frozenset((name(one), name(other)))
        for (one, other), there, back in zip(pairs, answers[:half], answers[half:], strict=True)
        if there and back
    }
    assert overlaps == explored.overlaps
    # what the judge says without asking about all of them
    found = [*conflicts.unentered, *conflicts.unordered()]
    races, ends, outside, unscoped = set(), set(), set(), set()
    for earlier, later in found:
        if isinstance(later.source, Moved):
            ends.add(name(earlier))
        elif earlier.what is not None:
            races.add(frozenset((name(earlier), name(later))))
        else:
            owner = earlier.source
            is_scope = owner.is_scope if isinstance(owner, Moved) else owner not in calls
            call = owner.call if isinstance(owner, Moved) else owner
            number = calls[call] if call in calls else line_calls[later.source.site.line]
            (unscoped if is_scope else outside).add((later.device, earlier.device, number))
    assert races <= explored.overlaps
    assert ends <= explored.left
    assert outside == explored.outside
    copies = Explorer(program).copies
    faults = bool(explored.overlaps or explored.left or explored.unscoped)
    if not blocked:  # else the run does not show the scopes that its cores would have entered
        assert bool(races or ends or unscoped) == faults
    if not explored.left and not explored.unscoped:
        assert bool(races) == bool(explored.overlaps)
    # a copy to a scope that the run had left is one that a leave does not wait for
    gone = {(core, op.target, call) for core, call, op in (copies[line] for line, _ in explored.left)}
    assert unscoped <= explored.unscoped | gone
    if not blocked and not left and not outside:
        assert not explored.late
    return explored


def _semaphores(call: Any, device: int) -> list[Any]:
    return [semaphore for row in call.semaphores[device] for semaphore in row]


@pytest.mark.parametrize("part", range(PARTS))
def test_the_proof_agrees_with_every_interleaving(part: int) -> None:
    explored = racy = 0
    for number in range(part, PROGRAMS, PARTS):
        seed = SEED * 1_000_000 + number
        program = random_program(random.Random(seed))
        try:
            found = check(program)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}\n{program}\n{error}") from error
        if found is not None:
            explored += 1
            racy += bool(found.overlaps)
    assert explored > PROGRAMS // PARTS // 2
    assert 0 < racy < explored


def test_a_replay_shows_what_was_refuted() -> None:
    replayed = 0
    for seed in range(max(1, PROGRAMS // 5)):
        program = random_program(random.Random(SEED * 1_000_000 + seed))
        recorder, machine = observe(program)
        for _, fault, witness in prove(recorder, machine).witnesses(recorder, machine):
            if witness.held.leg.endswith(".last"):
                continue  # the copies here are no larger than what the machine moves at once
            watcher, again = observe(program, witness.token)
            assert is_shown(witness, fault, Names(watcher, again)), f"seed {seed}\n{program}\n{witness.token}"
            replayed += 1
    assert replayed
