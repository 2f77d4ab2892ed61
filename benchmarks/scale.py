"""From one board to a whole pod: what a copy costs as the devices become many, native and captured.

    python benchmarks/scale.py [--most 6144] [--only native|captured|simpy]

Every device sends its shard 16 times to its neighbour along each axis of a v5p slice in turn, each time waiting for
what it gets.  Each row is a process of its own, so its peak memory is its own; contents are carried up to 256
devices.  Prints devices, copies, seconds of the run alone, microseconds a copy, peak memory, and the cost of a copy
over that of 16 devices.  The rows of ``simpy`` are the same program with nothing but a process and three timeouts for
each copy: what the growing heap and the memory it lies in cost by themselves.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

SLICES = {4: "2x2x1", 16: "2x2x4", 64: "4x4x4", 256: "4x8x8", 1024: "8x8x16", 6144: "16x16x24"}
WAYS = ("native", "captured", "simpy")
AXES = ("x", "y", "z")
ROUNDS = 16
SHARD = (8, 128)
MOST_WITH_DATA = 256


def native(sizes, options):
    """The second run of the native kernel."""
    import numpy as np

    import tpusim

    def shift(x_ref, o_ref, inbox, send_sems, recv_sems):
        for step in range(ROUNDS):
            axis = AXES[step % 3]
            right = (tpusim.axis_index(axis) + 1) % tpusim.axis_size(axis)
            source = inbox.at[step - 1] if step else x_ref
            place = inbox.at[step] if step < ROUNDS - 1 else o_ref
            copy = tpusim.make_async_remote_copy(
                source, place, send_sems.at[step], recv_sems.at[step], device_id={axis: right}
            )
            copy.start()
            copy.wait()

    kernel = tpusim.Kernel(
        shift,
        axes=AXES,
        out_shape=lambda x: (x, tpusim.ShapeDtypeStruct((ROUNDS, *x.shape), x.dtype)),
        in_specs=tpusim.HBM,
        out_specs=tpusim.HBM,
        scratch_shapes=[tpusim.SemaphoreType.DMA((ROUNDS,))] * 2,
    )
    x = global_array(np, sizes)
    kernel.simulate(x, **options)
    return kernel.simulate(x, **options)


def captured(sizes, options):
    """The second run of the same through ``pl.pallas_call`` over an abstract mesh."""
    import jax
    import numpy as np
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu
    from jax.sharding import AbstractMesh, AxisType
    from jax.sharding import PartitionSpec as P

    import tpusim.pallas

    def shift(x_ref, o_ref, inbox, send_sems, recv_sems):
        for step in range(ROUNDS):
            axis = AXES[step % 3]
            right = (jax.lax.axis_index(axis) + 1) % jax.lax.axis_size(axis)
            source = inbox.at[step - 1] if step else x_ref
            place = inbox.at[step] if step < ROUNDS - 1 else o_ref
            copy = pltpu.make_async_remote_copy(
                source, place, send_sems.at[step], recv_sems.at[step], device_id={axis: right}
            )
            copy.start()
            copy.wait()

    def call(x):
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        inbox = jax.ShapeDtypeStruct((ROUNDS, *x.shape), x.dtype)
        scratch = [pltpu.SemaphoreType.DMA((ROUNDS,))] * 2
        return pl.pallas_call(
            shift, out_shape=(shape, inbox), in_specs=[anywhere], out_specs=(anywhere, anywhere), scratch_shapes=scratch
        )(x)

    mesh = AbstractMesh(sizes, AXES, axis_types=(AxisType.Auto,) * 3)
    program = jax.shard_map(call, mesh=mesh, in_specs=P(AXES), out_specs=P(AXES), check_vma=False)
    run = tpusim.pallas.simulate(jax.jit(program), **options)
    x = global_array(np, sizes)
    argument = x if options["data"] else jax.ShapeDtypeStruct(x.shape, x.dtype)
    run(argument)
    run(argument)
    return run.result


def bare(sizes):
    """Copies and seconds of a bare SimPy loop in which each device waits for the copy of its neighbour."""
    import gc

    import simpy

    devices = sizes[0] * sizes[1] * sizes[2]
    env = simpy.Environment()
    arrived = [[env.event() for _ in range(ROUNDS)] for _ in range(devices)]

    def transfer(target, step):
        yield env.timeout(1)
        yield env.timeout(2)
        yield env.timeout(3)
        arrived[target][step].succeed()

    def device(me):
        for step in range(ROUNDS):
            env.process(transfer((me + 1) % devices, step))
            yield arrived[me][step]

    for me in range(devices):
        env.process(device(me))
    gc.disable()  # as during a run of the simulator
    began = time.perf_counter()
    env.run()
    seconds = time.perf_counter() - began
    gc.enable()
    return devices * ROUNDS, seconds


def global_array(np, sizes):
    """A shard for each device."""
    devices = sizes[0] * sizes[1] * sizes[2]
    rows, columns = SHARD
    return np.zeros((devices * rows, columns), np.float32)


def child(way, devices):
    """One row, in its own process."""
    sizes = tuple(int(size) for size in SLICES[devices].split("x"))
    options = {"slice": f"v5p:{SLICES[devices]}", "layout": "row-major"}
    options |= {"data": devices <= MOST_WITH_DATA, "checks": "none"}
    if way == "simpy":
        bare(sizes)
        copies, seconds = bare(sizes)
    else:
        result = {"native": native, "captured": captured}[way](sizes, options)
        copies, seconds = result.dmas, result.wall_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"copies": copies, "seconds": seconds, "peak": peak}))


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--most", type=int, default=max(SLICES))
    parser.add_argument("--only", choices=WAYS)
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], int(options.child[1]))
        return
    print(f"{'way':<9}{'devices':>8}{'copies':>9}{'seconds':>9}{'us/copy':>9}{'peak MiB':>10}{'x of 16':>9}")
    for way in (options.only,) if options.only else WAYS:
        base = None
        for devices in (count for count in SLICES if count <= options.most):
            command = [sys.executable, __file__, "--child", way, str(devices)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            row = json.loads(done.stdout)
            each = row["seconds"] / row["copies"] * 1e6
            base = each if devices == 16 else base
            ratio = f"{each / base:.2f}" if base else ""
            print(
                f"{way:<9}{devices:>8}{row['copies']:>9}{row['seconds']:>9.3f}{each:>9.1f}"
                f"{row['peak'] / 2**20:>10.0f}{ratio:>9}",
                flush=True,
            )


if __name__ == "__main__":
    main()
