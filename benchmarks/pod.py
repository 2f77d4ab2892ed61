"""Whole pods: one ring step and a three-axis ring all-gather on a v5p job, and direct all-to-all under contention.

    python benchmarks/pod.py [step] [gather] [all-to-all-64] [all-to-all-256]

Prints seconds, copies, microseconds a copy and the peak memory of the process so far.
"""

import argparse
import resource
import time

import tpusim
from tpusim import (
    HBM,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    axis_size,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    semaphore_signal,
    semaphore_wait,
)
from tpusim.kernel_file import load_file

AXES = ("x", "y", "z")
SHARD = (8, 128)


def ring_step(x_ref, o_ref, send_sem, recv_sem):
    """Every device sends its shard one step along x."""
    right = (axis_index("x") + 1) % axis_size("x")
    copy = make_async_remote_copy(x_ref, o_ref, send_sem, recv_sem, device_id={"x": right})
    copy.start()
    copy.wait()


def gather(x_ref, o_ref, own_sem, send_sem, recv_sems):
    """Ring all-gather along x, then of what that gave along y, then along z: ``o[z, y, x]`` is a shard."""
    barrier = get_barrier_semaphore()
    me = {axis: axis_index(axis) for axis in AXES}
    for axis in AXES:
        semaphore_signal(barrier, device_id={axis: (me[axis] - 1) % axis_size(axis)})
    semaphore_wait(barrier, len(AXES))
    own = make_async_copy(x_ref, o_ref.at[me["z"], me["y"], me["x"]], own_sem)
    own.start()
    own.wait()
    first = 0
    for place in range(3):
        axis = AXES[place]
        n = axis_size(axis)
        outer = [(me["z"], me["y"]), (me["z"],), ()][place]
        right, slot = (me[axis] + 1) % n, me[axis]
        for step in range(n - 1):
            part = o_ref.at[(*outer, slot)]
            copy = make_async_remote_copy(part, part, send_sem, recv_sems.at[first + step], device_id={axis: right})
            copy.start()
            copy.wait()
            slot = (slot - 1) % n
        first += n


def pod_kernels():
    """The two kernels on three axes."""
    together = ((AXES[::-1]), None)
    step = tpusim.Kernel(
        ring_step,
        out_shape=lambda x: ShapeDtypeStruct(x.shape, x.dtype),
        axes=AXES,
        shard_in=(together,),
        shard_out=(together,),
        in_specs=HBM,
        out_specs=HBM,
        scratch_shapes=(SemaphoreType.DMA, SemaphoreType.DMA),
    )
    sizes = lambda: tuple(axis_size(axis) for axis in AXES[::-1])  # noqa: E731  # one expression
    whole = tpusim.Kernel(
        gather,
        out_shape=lambda x: ShapeDtypeStruct((*sizes(), *x.shape), x.dtype),
        axes=AXES,
        shard_in=(together,),
        shard_out=((None, None, None, None, None),),
        in_specs=HBM,
        out_specs=HBM,
        scratch_shapes=lambda x: (SemaphoreType.DMA, SemaphoreType.DMA, SemaphoreType.DMA((sum(sizes()),))),
        collective_id=0,
    )
    return step, whole


def report(name, run):
    """Time one run and print its row."""
    started = time.perf_counter()
    result = run()
    seconds = time.perf_counter() - started
    assert result.ok
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    each = seconds / result.dmas * 1e6
    print(f"{name:<44}{seconds:>9.2f} s{result.dmas:>10} copies{each:>9.1f} us each{peak:>7.2f} GiB", flush=True)


def main():
    """Run the cases named on the command line, all by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=["step", "gather", "all-to-all-64", "all-to-all-256"])
    parser.add_argument("--checks", default="observed")
    arguments = parser.parse_args()
    step, whole = pod_kernels()
    shards = [ShapeDtypeStruct((6144 * SHARD[0], SHARD[1]), "float32")]
    pod = {"slice": "v5p:16x16x24", "mesh": "x=16,y=16,z=24", "layout": "row-major", "data": False}
    pod["checks"] = arguments.checks
    all_to_all = load_file("kernels/all_to_all.py")
    for case in arguments.cases:
        if case == "step":
            report("one ring step, v5p:16x16x24", lambda: step.simulate(*shards, **pod))
        elif case == "gather":
            report("3-axis ring all-gather, v5p:16x16x24", lambda: whole.simulate(*shards, **pod))
        else:
            devices = int(case.rpartition("-")[2])
            slice_ = {64: "v6e:8x8", 256: "v6e:16x16"}[devices]
            arrays = all_to_all.inputs(devices=devices)
            run = {"slice": slice_, "checks": arguments.checks}
            report(
                f"direct all-to-all, {slice_}",
                lambda arrays=arrays, run=run: all_to_all.kernel.simulate(*arrays, **run),
            )


if __name__ == "__main__":
    main()
