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
    copy, less_read = None, 0
    if isinstance(earlier.source, Copy):
        copy, less_read = earlier.source, int(earlier.also is not None)
    else:
        limits[earlier.device] = earlier.clock
    at = [0] * len(programs)
    values: defaultdict[Semaphore, int] = defaultdict(int)
    waiting: dict[Semaphore, int] = {}
    ready = list(range(len(programs)))
    while ready and at[device] < position:
        runner = ready.pop()
        for step in range(at[runner], limits[runner]):
            operation = programs[runner][step]
            at[runner] = step
            stalled = operation is copy
            for semaphore, amount in _effects(operation, less_read if stalled else 0, 1 if stalled else 0):
                values[semaphore] += amount
                if amount > 0 and semaphore in waiting:
                    ready.append(waiting.pop(semaphore))
            if values[semaphore] < 0:
                values[semaphore] -= amount
                waiting[semaphore] = runner
                break
        else:
            at[runner] = limits[runner]
    return at[device] >= position


def _effects(operation: Operation, less_read: int, less_written: int) -> list[tuple[Semaphore, int]]:
    """What an operation adds to semaphores; a wait adds a negative amount."""
    if not isinstance(operation, Copy):
        return [operation]
    effects = [(operation.dst_sem, operation.dst_region.nbytes - less_written)]
    if operation.src_sem is not None:
        effects.append((operation.src_sem, operation.src_region.nbytes - less_read))
    return effects
