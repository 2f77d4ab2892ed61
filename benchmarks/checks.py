"""What the race judge costs: microseconds a copy with checks and without, and whether that stays flat.

    python benchmarks/checks.py [--repeats 3] [--most 100000]

Runs with and without checks alternate; times are those of the process's own CPU, the figures medians.  Only
the event loop is timed, with everything the kernel does in it, not the set-up.
"""

import argparse
import statistics
import time

import numpy as np

from tpusim import HBM, VMEM, Kernel, SemaphoreType, ShapeDtypeStruct, ds, fori_loop, make_async_copy
from tpusim.kernel_file import load_file
from tpusim.native.simulate import Program
from tpusim.options import RunOptions
from tpusim.session import Session

TILE = ShapeDtypeStruct((8, 128), "float32")


def sequential(copies, ranges):
    """A kernel of local copies one after the other, each into the next of some ranges."""

    def kernel(x_ref, o_ref, buffer, sem):
        def step(index, carry):
            copy = make_async_copy(x_ref, buffer.at[ds(index % ranges * 8, 8)], sem)
            copy.start()
            copy.wait()
            return carry

        fori_loop(0, copies, step, None)

    scratch = (VMEM((8 * ranges, 128), "float32"), SemaphoreType.DMA)
    return Kernel(kernel, out_shape=TILE, in_specs=HBM, out_specs=HBM, scratch_shapes=scratch)


def overlapping(copies, in_flight):
    """A kernel that always has some local copies in flight, each on its own semaphore."""

    def kernel(x_ref, o_ref, buffer, sems):
        def copy(index):
            slot = index % in_flight
            return make_async_copy(x_ref, buffer.at[ds(slot * 8, 8)], sems.at[slot])

        def step(index, carry):
            copy(index).wait()
            copy(index).start()
            return carry

        for index in range(in_flight):
            copy(index).start()
        fori_loop(in_flight, copies, step, None)
        for index in range(in_flight):
            copy(index).wait()

    scratch = (VMEM((8 * in_flight, 128), "float32"), SemaphoreType.DMA((in_flight,)))
    return Kernel(kernel, out_shape=TILE, in_specs=HBM, out_specs=HBM, scratch_shapes=scratch)


def seconds_a_copy(kernel, arrays, options):
    """CPU seconds a copy of one run's event loop."""
    session = Session(RunOptions.of(options), kernel.axes)
    program = Program(kernel, arrays, session)
    program.launch()
    started = time.process_time()
    session.machine.run()
    seconds = time.process_time() - started
    program.close()
    assert not [finding for finding in session.machine.findings if finding.kind != "routing"]
    return seconds / len(session.log.copies)


def cases(most):
    """Name, kernel, arrays and run options of each row."""
    tile = np.zeros((8, 128), np.float32)
    for ranges in (1, 64):
        for copies in (100, 1_000, 10_000, 100_000):
            if copies <= most:
                name = f"sequential local, {ranges} range{'s' if ranges > 1 else ''}, {copies:,}"
                yield name, sequential(copies, ranges), [tile], {"mesh": 1, "data": False}
    for in_flight in (4, 64, 256):
        yield f"{in_flight} in flight, 10,000", overlapping(10_000, in_flight), [tile], {"mesh": 1, "data": False}
    for stem, devices, slice_ in [
        ("ring_all_gather", 8, "v5e:2x4"),
        ("ring_all_gather", 16, "v5e:4x4"),
        ("ring_all_gather", 32, "v5e:4x8"),
        ("ring_all_gather", 64, "v5e:8x8"),
        ("ring_reduce_scatter", 16, "v5e:4x4"),
        ("ring_reduce_scatter", 32, "v5e:4x8"),
        ("all_to_all", 32, "v5e:4x8"),
    ]:
        file = load_file(f"kernels/{stem}.py")
        yield f"{stem}, {devices} devices", file.kernel, file.inputs(devices=devices), {"slice": slice_}


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--most", type=int, default=100_000, help="the most copies of a row")
    parser.add_argument("--only", default="", help="rows whose name holds this")
    arguments = parser.parse_args()
    print(f"{'us a copy':<38}{'off':>8}{'on':>8}{'extra':>8}{'ratio':>8}")
    for name, kernel, arrays, options in cases(arguments.most):
        if arguments.only not in name:
            continue
        times = {"none": [], "observed": []}
        for _ in range(arguments.repeats):
            for checks, found in times.items():
                found.append(seconds_a_copy(kernel, arrays, {**options, "checks": checks}) * 1e6)
        off, on = (statistics.median(found) for found in times.values())
        print(f"{name:<38}{off:>8.2f}{on:>8.2f}{on - off:>8.2f}{on / off:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
