"""Whether what the cores of a run do depends on memory that nobody has written.

One run tells nothing about that: its fresh memory holds one value.  So the program is run again with other numbers in
the scalar memory of its scratch, and must execute the same operations.  Two numbers are tried, which finds counters
that were never set; a comparison that holds for all three alike is not found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from tpusim.findings import where_of
from tpusim.judges.proof.record import Recorder, Signalled, Touched
from tpusim.machine.dma import Copy
from tpusim.specs import MemorySpace

if TYPE_CHECKING:
    from tpusim.machine.core import Core
    from tpusim.machine.machine import Machine
    from tpusim.machine.memory import Buffer, BufferSpec
    from tpusim.machine.semaphores import Semaphore

NUMBERS = (0, 257)
"""Small, as loops may go so far."""


class OtherContents(Recorder):
    """A recorder that first puts a number into the SMEM scratch of what each core enters."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def entered(self, core: Core) -> None:
        """A call begins on a core."""
        super().entered(core)
        if core.call is not None:
            self._fill([core.call.buffers[core.device][spec.position] for spec in core.call.scratch])

    def scope_entered(self, core: Core, buffers: Sequence[Buffer], semaphores: Sequence[Semaphore]) -> None:
        """A scope begins on a core."""
        super().scope_entered(core, buffers, semaphores)
        self._fill(buffers)

    def _fill(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            if buffer.array is not None and _holds_scalars(buffer.spec):
                buffer.array[...] = self._number


def has_scalar_scratch(machine: Machine) -> bool:
    """Whether any kernel has scratch from which it can load scalars without having written them."""
    return any(_holds_scalars(spec) for call in machine.calls for spec in call.scratch)


def first_difference(recorder: Recorder, other: Recorder, machine: Machine) -> str | None:
    """The operation of a core that another run does not have there, in words; ``None`` where all do the same."""
    for core in machine.cores:
        rows = (_operations(watcher, core.device) for watcher in (recorder, other))
        for one, another in zip_longest(*rows, fillvalue=(None, None)):
            if one[0] != another[0]:
                return f"what device {machine.coordinates(core.device)} does at {where_of(one[1] or another[1])}"
    return None


def _holds_scalars(spec: BufferSpec) -> bool:
    return spec.space is MemorySpace.SMEM and spec.dtype.kind in "iu"


def _operations(recorder: Recorder, device: int) -> Iterator[tuple[Any, Any]]:
    """What a core does and where that stands, operation by operation."""
    for event in recorder.events:
        if type(event) is tuple:
            core, semaphore, amount, _, _, site = event
            if core.device == device:
                yield ("wait", str(semaphore), amount), site
        elif event.core.device != device:
            continue
        elif isinstance(event, Copy):
            semaphores = str(event.src_sem), str(event.dst_sem)
            yield ("copy", event.dst.device, str(event.src_region), str(event.dst_region), *semaphores), event.site
        elif isinstance(event, Signalled):
            yield ("signal", event.semaphore.device, str(event.semaphore), event.amount), event.site
        elif isinstance(event, Touched):
            yield ("touch", event.is_write, str(event.region)), event.site
