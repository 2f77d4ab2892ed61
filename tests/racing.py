"""What the tests of the race judge share: common ways to meet, and how to look at findings."""

from __future__ import annotations

from simulating import run

from tpusim import (
    VMEM,
    axis_index,
    axis_size,
    delay,
    get_barrier_semaphore,
    semaphore_read,
    semaphore_signal,
    semaphore_wait,
)
from tpusim.findings import Kind

BUFFER = VMEM((8, 128), "float32")
SLOTS = VMEM((2, 8, 128), "float32")
MISSING = "a barrier between the two, or a signal, is missing."


def record(fn, *arrays, **keywords):
    """The findings and outputs of a run that goes on after a race."""
    result = run(fn, *arrays, on_finding="record", **keywords)
    return tuple(f for f in result.findings if f.kind is not Kind.ROUTING), result.outputs


def neighbours():
    """Left and right on a ring."""
    me, n = axis_index("x"), axis_size("x")
    return (me - 1) % n, (me + 1) % n


def meet(*peers):
    """A barrier with some devices."""
    barrier = get_barrier_semaphore()
    for peer in peers:
        semaphore_signal(barrier, device_id=peer)
    semaphore_wait(barrier, len(peers))


def let_it_pass(sem):
    """Let so much time go by that every copy has landed, which orders nothing."""
    delay(100_000)
    semaphore_read(sem)  # until the global clock is there


def pairs(findings):
    """The two lines of each finding, in any order."""
    return {frozenset((str(f.where), str(f.other))) for f in findings}
