"""How long the all-schedule proof takes, the judge alone: the run that it watches is not timed.

    python benchmarks/proof.py [--only TEXT] [--repeats 3] [--chunks]

Seconds of the process's own CPU, the median of some repeats.  *Build* makes the token system and the pairs that have
to be ordered of the events, *ask* answers for all of them.  ``--chunks``: how the width of a chunk changes *ask*.

Cost law: build = 7 us an event; ask = operations x (2 us + 0.6 ns x stalls) for each chunk of 4,096 stalls, of which
all but the first begin later: operations x stalls x 0.8 ns where there are thousands of stalls.
"""

import argparse
import statistics
import time

import numpy as np

from tpusim import HBM, VMEM, Kernel, SemaphoreType, ShapeDtypeStruct, ds, fori_loop, make_async_copy, when
from tpusim.judges.proof import Recorder, walk
from tpusim.judges.proof.conflicts import Conflicts
from tpusim.kernel_file import load_file
from tpusim.machine.machine import no_collection
from tpusim.native import simulate

STEPS = 2_048


def gather():
    """A kernel that gathers rows of a table through two slots; each is loaded while the other is worked on."""

    def kernel(table, rows, slots, in_sems, out_sems):
        def load(step):
            return make_async_copy(table.at[ds(step * 7 % STEPS * 8, 8)], slots.at[step % 2], in_sems.at[step % 2])

        def store(step):
            return make_async_copy(slots.at[step % 2], rows.at[ds(step * 8, 8)], out_sems.at[step % 2])

        def body(step, carry):
            load(step).wait()
            slots[step % 2] = slots[step % 2] + 1.0
            store(step).start()
            when(step > 0)(lambda: store(step - 1).wait())
            when(step + 1 < STEPS)(lambda: load(step + 1).start())
            return carry

        load(0).start()
        fori_loop(0, STEPS, body, None)
        store(STEPS - 1).wait()

    shape = ShapeDtypeStruct((STEPS * 8, 128), "float32")
    scratch = (VMEM((2, 8, 128), "float32"), SemaphoreType.DMA((2,)), SemaphoreType.DMA((2,)))
    return Kernel(kernel, out_shape=shape, in_specs=HBM, out_specs=HBM, scratch_shapes=scratch)


def cases():
    """Name, target in seconds (``None``: no target), kernel, arrays, run options."""
    for devices, slice_, target in [(16, "v5e:4x4", 0.1), (64, "v5e:8x8", 1.0), (128, "v5e:8x16", 5.0)]:
        file = load_file("kernels/ring_all_gather.py")
        yield f"ring all-gather, {devices} devices", target, file.kernel, file.inputs(devices=devices), slice_
    for stem, devices, slice_, target in [
        ("all_reduce", 16, "v5e:4x4", None),
        ("all_reduce", 64, "v5e:8x8", 3.0),
        ("ring_reduce_scatter", 64, "v5e:8x8", None),
        ("all_to_all", 64, "v5e:8x8", None),
    ]:
        file = load_file(f"kernels/{stem}.py")
        yield f"{stem}, {devices} devices", target, file.kernel, file.inputs(devices=devices), slice_
    table = np.zeros((STEPS * 8, 128), np.float32)
    yield f"double-buffered gather, {STEPS:,} steps", 5.0, gather(), [table], "v5e:1x1"


def recorded(kernel, arrays, slice_):
    """One run without data under the recorder."""
    recorder = Recorder()
    options = {"slice": slice_, "data": False, "checks": "none", "on_finding": "record"}
    result = simulate(kernel, arrays, options, observers=[recorder])
    assert result.ok
    return recorder, len(result.cores)


def measure(recorder, devices):
    """CPU seconds to build and to ask, and what was built."""
    with no_collection():  # as `prove` does
        started = time.process_time()
        conflicts = Conflicts(recorder, devices)
        built = time.process_time()
        assert not conflicts.unordered()
        return built - started, time.process_time() - built, conflicts


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--chunks", action="store_true")
    arguments = parser.parse_args()
    print(f"{'seconds of CPU':<38}{'operations':>11}{'pairs':>8}{'stalls':>8}{'build':>7}{'ask':>7}{'all':>7}  target")
    for name, target, kernel, arrays, slice_ in cases():
        if arguments.only not in name:
            continue
        recorder, devices = recorded(kernel, arrays, slice_)
        widths = (512, 1_024, 2_048, 4_096, 8_192) if arguments.chunks else (walk.CHUNK,)
        for width in widths:
            walk.CHUNK = width
            times = [measure(recorder, devices) for _ in range(arguments.repeats)]
            build, ask = (statistics.median(row[column] for row in times) for column in (0, 1))
            conflicts = times[0][2]
            stalls = len({earlier.stall for earlier, _ in conflicts.conflicts})
            limit = "" if target is None else f"  {target:g}"
            label = f"{name}, chunk {width}" if arguments.chunks else name
            print(
                f"{label:<38}{len(conflicts.system):>11,}{len(conflicts.conflicts):>8,}{stalls:>8,}"
                f"{build:>7.2f}{ask:>7.2f}{build + ask:>7.2f}{limit}",
                flush=True,
            )


if __name__ == "__main__":
    main()
