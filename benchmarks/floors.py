"""What the parts cost that every figure of the simulator is made of: how fast this machine is.

    python benchmarks/floors.py [--repeats 7]

A figure in microseconds a copy means little without them: a copy on its way is three events of SimPy, one switch of
the kernel that waits for it, and some dozens of calls.  CPU time, the best of the repeats.
"""

import argparse
import time
from collections.abc import Callable

import greenlet
import numpy as np
import simpy

COUNT = 20_000


class Event:
    """An event that is scheduled again and again."""

    __slots__ = ("callbacks",)
    _ok = True


def rescheduled(in_heap):
    """One re-used object given to ``env.schedule``, with so many of them in the heap."""

    def run():
        env, left = simpy.Environment(0), [COUNT]

        def again(event):
            left[0] -= 1
            if left[0] > 0:
                event.callbacks = callbacks
                env.schedule(event, 1, 10)

        callbacks = [again]
        for _ in range(in_heap):
            event = Event()
            event.callbacks = callbacks
            env.schedule(event, 1, 10)
        return env.run

    return run


def timeouts():
    """``yield env.timeout(1)`` in one process."""
    env = simpy.Environment(0)

    def process():
        for _ in range(COUNT):
            yield env.timeout(1)

    env.process(process())
    return env.run


def transfers():
    """A process with three timeouts, all at once."""
    env = simpy.Environment(0)

    def transfer():
        yield env.timeout(1)
        yield env.timeout(2)
        yield env.timeout(3)

    for _ in range(COUNT):
        env.process(transfer())
    return env.run


def greenlets():
    """To a greenlet and back."""
    hub = greenlet.getcurrent()

    def work():
        while True:
            hub.switch()

    worker = greenlet.greenlet(work)
    worker.switch()
    return lambda: [worker.switch() for _ in range(COUNT)]


def generators():
    """To a generator and back."""

    def work():
        while True:
            yield

    following = work().__next__
    return lambda: [following() for _ in range(COUNT)]


def calls():
    """A call of a Python function."""

    def same(value):
        return value

    return lambda: [same(None) for _ in range(COUNT)]


def copies():
    """``np.copyto`` of 4 KB."""
    target, source = np.zeros(1024, np.float32), np.ones(1024, np.float32)
    return lambda: [np.copyto(target, source) for _ in range(COUNT)]


PARTS: dict[str, Callable[[], Callable[[], object]]] = {
    "SimPy event, re-used, 1 in the heap": rescheduled(1),
    "SimPy event, re-used, 64 in the heap": rescheduled(64),
    "SimPy timeout in a process": timeouts,
    "SimPy process with three timeouts": transfers,
    "greenlet there and back": greenlets,
    "generator there and back": generators,
    "Python call": calls,
    "copy of 4 KB": copies,
}


def measure(make, repeats):
    """Microseconds of one."""
    best = float("inf")
    for _ in range(repeats):
        run = make()
        started = time.process_time()
        run()
        best = min(best, time.process_time() - started)
    return best / COUNT * 1e6


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    print(f"{'part':<40}{'us':>8}")
    for name, make in PARTS.items():
        print(f"{name:<40}{measure(make, repeats):>8.3f}")


if __name__ == "__main__":
    main()
