"""Every state that a kernel can come to, from the operations of one run: the explorer of the tests, told of them.

A unit is the greatest number of bytes of which every part of a buffer is a whole number, or half of it where some
copy would have only one.
"""

import sys
from math import gcd
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "tests"))

from proof_oracle import Explorer, Program
from race_oracle import BUFFERS, Op

from tpusim.judges.proof import Recorder
from tpusim.judges.proof.record import Moved, Signalled, Touched
from tpusim.machine.dma import Copy
from tpusim.specs import SemaphoreType


def bad_state(recorder: Recorder, devices: int, most: int) -> str | None:
    """What is wrong in some state, empty where nothing is; ``None`` past so many states, or for other operations."""
    if any(type(e) is not tuple and not isinstance(e, Copy | Signalled | Moved | Touched) for e in recorder.events):
        return None
    program = _program(recorder, devices)
    explorer = Explorer(program)
    found = explorer.explore(most)
    if found is None:
        return None
    faults = {"race": found.overlaps, "lifetime": found.outside or found.late or found.left or found.unscoped}
    for at, left in found.ends:
        faults["deadlock"] = any(number < len(own) for number, own in zip(at, explorer.visible, strict=True))
        faults["leak"] = left
    return next((name for name, is_so in faults.items() if is_so), "")


def _program(recorder, devices):
    unit = _unit(recorder.events)
    numbers, elements = {}, {}
    calls = max(sum(isinstance(e, Moved) and e.is_entry for e in recorder.events) // devices, 1)
    program = Program(devices, calls, [[[] for _ in range(calls)] for _ in range(devices)], elements)
    call = [-1] * devices

    def number(kind, key):
        return numbers.setdefault((kind, key), len(numbers) + BUFFERS + 1)

    def part(buffer, region):
        name = str(number("part", (region.spec, region.box)))
        elements[name] = {int(place) // unit for place in region.elements() * (buffer.spec.bits // 8)}
        return name

    def semaphore(sem):
        kind = {SemaphoreType.BARRIER: "barrier", SemaphoreType.DMA: "dma"}.get(sem.spec.kind, "credit")
        return kind, number(kind, (sem.spec, sem.flat))

    for line, event in enumerate(recorder.events):
        if type(event) is tuple:
            core, sem, amount, *_ = event
            kind, name = semaphore(sem)
            op = Op("wait", sem=(kind, name), amount=amount // unit if kind == "dma" else amount, line=line)
        elif isinstance(event, Copy):
            core = event.core
            send = None if event.src_sem is None else semaphore(event.src_sem)[1]
            source, target = part(event.src, event.src_region), part(event.dst, event.dst_region)
            spec = number("buffer", event.src.spec), number("buffer", event.dst.spec)
            sem = semaphore(event.dst_sem)
            op = Op("copy", source, spec[0], event.dst.device, target, spec[1], send, sem, line=line)
        elif isinstance(event, Signalled):
            core = event.core
            target, sem = event.semaphore.device, semaphore(event.semaphore)
            op = Op("signal", target=target, sem=sem, amount=event.amount, line=line)
        elif isinstance(event, Touched):
            core, buffer = event.core, event.buffer
            kind, name = "store" if event.is_write else "load", number("buffer", buffer.spec)
            op = Op(kind, part(buffer, event.region), name, line=line)
        else:
            call[event.core.device] += event.is_entry
            continue
        program.operations[core.device][call[core.device]].append(op)
    return program


def _unit(events):
    """Bytes of a unit."""
    unit, smallest = 0, None
    for event in events:
        parts = []
        if type(event) is tuple and event[1].spec.kind is SemaphoreType.DMA:
            unit = gcd(unit, event[2])
        elif isinstance(event, Touched):
            parts = [(event.buffer, event.region)]
        elif isinstance(event, Copy):
            parts = [(event.src, event.src_region), (event.dst, event.dst_region)]
            smallest = min(smallest or event.dst_region.nbytes, event.dst_region.nbytes)
        for buffer, region in parts:
            item, places = buffer.spec.bits // 8, region.elements()
            gaps = np.flatnonzero(np.diff(places) != 1)
            edges = [*places[:1], *places[gaps + 1], *(places[gaps] + 1), region.size]
            unit = gcd(unit, *(int(edge) * item for edge in edges))
    return max(1, unit // 2 if smallest == unit else unit)
