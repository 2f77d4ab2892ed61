"""Whether one access must be over before another begins, asked of the operations executed so far.

Signals and copies only add to semaphores and each semaphore has one waiter, so whatever an agent can do
it can still do after any other has done more.  The run in which one access never ends and everything else
goes as far as it can is therefore the union of all schedules in which it has not ended: the second access is
reached there if and only if nothing forces the first to be over.  Vector clocks are fast and never claim an
order that is not forced; this tells the rare rest: orders forced by alternatives, none of which is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpusim.judges.clocks import Access, Operation
from tpusim.machine.dma import Copy

if TYPE_CHECKING:
    from tpusim.machine.semaphores import Semaphore


def can_overlap(programs: Sequence[Sequence[Operation]], earlier: Access, device: int, position: int) -> bool:
    """Whether ``device`` can come to its operation ``position`` while ``earlier`` is not over.

    ``programs`` holds what each device executed so far.  A core that stalls in an access executes nothing
    after it; a reader leg that stalls withholds the last byte from both semaphores of its copy, a writer leg
    from the receive semaphore.  Takes time linear in the operations.
    """
    limits = [len(program) for program in programs]
    withheld: set[tuple[Copy, Semaphore]] = set()
    source = earlier.source
    if isinstance(source, Copy):
        withheld.add((source, source.dst_sem))
        if earlier.also is not None and source.src_sem is not None:
            withheld.add((source, source.src_sem))
    else:
        limits[earlier.device] = earlier.clock
    return _reaches(programs, limits, withheld, device, position)


def _reaches(
    programs: Sequence[Sequence[Operation]],
    limits: Sequence[int],
    withheld: set[tuple[Copy, Semaphore]],
    target: int,
    position: int,
) -> bool:
    at = [0] * len(programs)
    values: defaultdict[Semaphore, int] = defaultdict(int)
    waiting: dict[Semaphore, int] = {}
    ready = list(range(len(programs)))
    while ready:
        device = ready.pop()
        program = programs[device]
        for step in range(at[device], limits[device]):
            at[device] = step
            operation = program[step]
            if type(operation) is Copy:
                added = [(operation.dst_sem, operation.dst_region.nbytes - ((operation, operation.dst_sem) in withheld))]
                if operation.src_sem is not None:
                    less = (operation, operation.src_sem) in withheld
                    added.append((operation.src_sem, operation.src_region.nbytes - less))
            else:
                semaphore, amount = operation
                if amount <= 0:
                    if values[semaphore] < -amount:
                        waiting[semaphore] = device
                        break
                    values[semaphore] += amount
                    continue
                added = [(semaphore, amount)]
            for semaphore, amount in added:
                values[semaphore] += amount
                if semaphore in waiting:
                    ready.append(waiting.pop(semaphore))
        else:
            at[device] = limits[device]
        if at[target] >= position:
            return True
    return False
