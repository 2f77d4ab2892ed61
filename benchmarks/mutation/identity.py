"""Whether two mutants are the same program: one text for the operations of a run.

Two runs with the same text have, on each device, the same copies, waits, signals, loads and stores in the same order,
of the same bytes and the same amounts.  Rules change no arithmetic, so two of them whose data are right on one schedule
do the same on every other.  Objects have no names in it, only their order of appearance.  Loads of what nobody writes
are left out, those of an input's window in SMEM too, which is filled before the body begins: a captured program does
not record them.  So a native kernel and its captured form can be the same program.
"""

import hashlib
from typing import Any

from tpusim.judges.proof import Recorder
from tpusim.judges.proof.record import Moved, Signalled, Touched
from tpusim.machine.dma import Copy
from tpusim.machine.semaphores import Semaphore
from tpusim.specs import MemorySpace


def identity(recorder: Recorder) -> str:
    """The text of a finished run."""
    numbers: dict[Any, int] = {}
    digest = hashlib.sha256()
    written = {e.buffer.spec for e in recorder.events if isinstance(e, Touched) and e.is_write}
    written |= {e.dst.spec for e in recorder.events if isinstance(e, Copy) and not _fills_window(e)}
    by_device: dict[int, list[Any]] = {}
    for event in recorder.events:
        if not isinstance(event, Touched) or event.buffer.spec in written:
            core = event[0] if isinstance(event, tuple) else event.core
            by_device.setdefault(core.device, []).append(event)
    for _, own in sorted(by_device.items()):
        for event in own:
            digest.update(repr(_described(event, numbers)).encode())
    return digest.hexdigest()[:16]


def _fills_window(copy: Copy) -> bool:
    """Whether a copy brings an input to SMEM before the body begins: both are called like the input."""
    return copy.dst.spec.space is MemorySpace.SMEM and copy.src.spec.name == copy.dst.spec.name


def _described(event: Any, numbers: dict[Any, int]) -> tuple:
    def part(buffer: Any, region: Any) -> tuple:
        which = numbers.setdefault(buffer.spec, len(numbers)), buffer.device
        return *which, (region.box if region.is_box else tuple(region.elements()))

    def counter(semaphore: Semaphore | None) -> tuple:
        if semaphore is None:
            return ()
        return numbers.setdefault((semaphore.spec, semaphore.flat), len(numbers)), semaphore.device

    if isinstance(event, Copy):
        ends = part(event.src, event.src_region), part(event.dst, event.dst_region)
        return "copy", *ends, counter(event.src_sem), counter(event.dst_sem)
    if isinstance(event, Signalled):
        return "signal", counter(event.semaphore), event.amount
    if isinstance(event, Touched):
        return "store" if event.is_write else "load", part(event.buffer, event.region)
    if isinstance(event, Moved):
        return "enter" if event.is_entry else "leave", event.is_scope
    if type(event) is tuple:
        return "wait", counter(event[1]), event[2]
    return type(event).__name__, *(counter(value) for value in event if isinstance(value, Semaphore))
