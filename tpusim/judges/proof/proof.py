"""From a recorded run to what it proves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpusim.findings import Finding, where_of
from tpusim.judges.proof.accesses import Conflict
from tpusim.judges.proof.conflicts import Conflicts
from tpusim.judges.proof.record import Recorder
from tpusim.judges.proof.report import ProofReport
from tpusim.judges.proof.witness import Names, Witness, witness_of
from tpusim.machine.machine import no_collection
from tpusim.specs import SemaphoreType

if TYPE_CHECKING:
    from tpusim.machine.machine import Machine

PREMISES = (
    "P1 each core's operations, and where they point, are the same in every schedule: true of a race-free program "
    "whose control and addresses come from its own memory",
    "P2 one core waits for each semaphore",
    "P3 semaphores are only added to and waited for: no reset, no attempt that may fail",
    "P4 a byte of a copy counts on the send semaphore once it was read, on the receive semaphore once it is visible, "
    "and is written only after it was read",
    "P5 bytes of a copy, and copies among themselves, move in any order",
    "P6 a started copy ends without help: no bounded queue of copies stops a core",
    "P7 waits and copies count the same bytes",
    "P8 a load or store is over when its core executes its next copy, signal or wait",
)
BARRIER_PREMISE = "calls with equal collective_id share one barrier semaphore, which is the harder case"
MEETING_PREMISE = "XLA collectives between kernels join their group in program order"


@dataclass(frozen=True)
class Proof:
    """What follows for all schedules.

    ``faults``: findings, each with the two accesses that show it (``None`` where no schedule is needed).
    ``doubts``: why nothing is proven even without a fault; empty where the premises hold.  ``operations``: copies,
    waits and signals of all cores.
    """

    faults: list[tuple[Finding, Conflict | None]]
    doubts: list[str]
    operations: int
    premises: tuple[str, ...] = field(default=PREMISES)
    conflicts: Conflicts | None = field(default=None, repr=False)

    def witnesses(self, recorder: Recorder, machine: Machine) -> Iterator[tuple[int, Conflict, Witness]]:
        """For each fault (by its place in ``faults``) that another schedule is needed for, that schedule."""
        if self.conflicts is None or all(conflict is None for _, conflict in self.faults):
            return
        names = Names(recorder, machine)
        for number, (_, conflict) in enumerate(self.faults):
            if conflict is not None:
                witness = witness_of(conflict, names, is_partial=self.conflicts.needs_parts(conflict))
                if witness is not None:
                    yield number, conflict, witness


def prove(recorder: Recorder, machine: Machine) -> Proof:
    """Judge all schedules of the run that ``recorder`` watched on ``machine``.

    Deadlocks and what is left on semaphores at exit are the same in every schedule; they are the run's findings.
    """
    with no_collection():
        conflicts = Conflicts(recorder, len(machine.cores))
        unordered = conflicts.unordered()
    report = ProofReport(machine)
    faults: list[tuple[Finding, Conflict | None]] = [
        (finding, None) for finding in report.overlaps(conflicts.overlapping)
    ]
    faults += report.findings([*conflicts.unentered, *unordered])
    faults += [(finding, None) for finding in report.leaving(conflicts.leaving)]
    premises = list(PREMISES)
    if any(semaphore.spec.kind is SemaphoreType.BARRIER for semaphore in conflicts.left):
        premises.append(BARRIER_PREMISE)
    if conflicts.meetings:
        premises.append(MEETING_PREMISE)
    return Proof(faults, _doubts(conflicts, machine), len(conflicts.system), tuple(premises), conflicts)


def _doubts(conflicts: Conflicts, machine: Machine) -> list[str]:
    """Premises that do not hold."""
    found = []
    for place in sorted({str(where_of(event.site)) for event in conflicts.peeked}):
        found.append(
            f"P1: semaphore_read at {place}: the value depends on the schedule, and the kernel may do something else "
            "with another one."
        )
    for semaphore in conflicts.shared:
        found.append(
            f"P2: several cores wait for {semaphore} of device {machine.coordinates(semaphore.device)}: who of them "
            "takes what depends on the schedule."
        )
    return found
