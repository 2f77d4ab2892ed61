"""A program over four CPU devices for ``test_intercept``: many situations in one process, the outcomes as JSON."""

# ruff: noqa: E402 - the devices are declared before jax is imported

from __future__ import annotations

import json
import sys
import time
from functools import partial

import tpusim.pallas

tpusim.pallas.declare_host_devices(4)

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

X = jnp.arange(4 * 8 * 128, dtype=jnp.float32).reshape(32, 128)
ARRIVE_S = 5


def ring(x_ref, o_ref, send, recv, *, silent=None, waits_send=True):
    me = jax.lax.axis_index("x")
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id={"x": jax.lax.rem(me + 1, 4)})
    if silent is None:
        copy.start()
    else:
        pl.when(me != silent)(copy.start)
    copy.wait_recv()
    if waits_send:
        copy.wait_send()


def shift(x, **how):
    return pl.pallas_call(
        partial(ring, **how),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
    )(x)


def add(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1


def increase(x):
    return pl.pallas_call(add, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def swap(x_ref, o_ref, send, recv):
    other = {"b": 1 - jax.lax.axis_index("b")}
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id=other)
    copy.start()
    copy.wait()


def swapped(x):
    return pl.pallas_call(
        swap,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
    )(x)


def mapped(fn, shape=(4,), axes=("x",)):
    mesh = jax.make_mesh(shape, axes, axis_types=(AxisType.Auto,) * len(axes))
    return jax.shard_map(fn, mesh=mesh, in_specs=P(*axes), out_specs=P(*axes), check_vma=False)


def halves(x_ref, o_ref, send, recv):
    core, me = jax.lax.axis_index("core"), jax.lax.axis_index("x")
    half = pl.ds(core * 4, 4)
    right = {"x": jax.lax.rem(me + 1, 4), "core": core}
    pltpu.async_remote_copy(x_ref.at[half], o_ref.at[half], send, recv, device_id=right).wait()


def shifted_by_cores(x):
    """As ``shift``, each core of a device half of it."""
    return pl.kernel(
        halves,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        mesh=pltpu.create_tensorcore_mesh("core", num_cores=2),
        scratch_types=[pltpu.SemaphoreType.DMA] * 2,
    )(x)


def is_shifted(result, steps=1):
    return bool(np.array_equal(np.asarray(result), np.roll(np.asarray(X), 8 * steps, 0)))


def error_of(fn):
    began = time.monotonic()
    try:
        fn(X)
    except Exception as error:  # noqa: BLE001 - which one is what the test asks
        return {"error": type(error).__name__, "text": str(error), "s": time.monotonic() - began}
    return {"error": None}


def only_below(limit, fn):
    """``fn`` on the devices before ``limit``; the others keep what they have."""
    return lambda x: jax.lax.cond(jax.lax.axis_index("x") < limit, fn, lambda x: x, x)


def main():
    out = {}
    with tpusim.pallas.intercept(slice="v5e:2x2") as sim:
        moved = jax.jit(mapped(shift))
        out["ring"] = is_shifted(moved(X))
        out["ring_call"] = sim.calls[-1].as_dict() | {"printed": str(sim.calls[-1].result)}

        increased = jax.jit(mapped(increase))
        result, seen = X, []
        for _ in range(3):  # control flow on values that kernels made
            seen.append(float(result[0, 0]))
            result = increased(result) if seen[-1] > 3000 else moved(result)
        out["python"] = seen

        def twice(x):
            once = shift(x)
            return shift(once) + 0 * jax.lax.psum(once, "x")

        out["collective_between"] = is_shifted(jax.jit(mapped(twice))(X), 2)
        looped = mapped(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: shift(x), x))
        out["loop"] = is_shifted(jax.jit(looped)(X), 3)
        out["not_jitted"] = is_shifted(mapped(shift)(X))
        grid = jax.jit(mapped(swapped, (2, 2), ("a", "b")))(jnp.arange(16 * 256.0).reshape(16, 256))
        out["two_axes"] = [float(grid[0, 0]), float(grid[8, 128])]

        out["deadlock"] = error_of(jax.jit(mapped(partial(shift, silent=2))))
        out["after_deadlock"] = is_shifted(moved(X))
        out["unwaited"] = error_of(jax.jit(mapped(partial(shift, waits_send=False))))
        before = len(sim.calls)
        some = jax.jit(mapped(only_below(3, increase)))(X)
        out["alone"] = np.asarray(some - X)[::8, 0].tolist()
        out["alone_devices"] = sorted(device for call in sim.calls[before:] for device in call.devices)
        mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
        spread = jax.device_put(X, jax.NamedSharding(mesh, P("x")))
        out["not_local"] = error_of(lambda _: increase(spread))
    with tpusim.pallas.intercept(slice="v5e:2x2", arrive_timeout_s=ARRIVE_S) as sim:
        out["absent"] = error_of(jax.jit(mapped(only_below(3, shift))))
        out["absent_call"] = sim.calls[-1].as_dict()
        out["after_absent"] = is_shifted(moved(X))
    with tpusim.pallas.intercept(slice="v5p:2x2x1") as sim:
        out["cores"] = is_shifted(jax.jit(mapped(shifted_by_cores))(X))
        out["cores_call"] = sim.calls[-1].as_dict()
    with tpusim.pallas.intercept(slice="v5e:1x1"):
        out["too_large"] = error_of(jax.jit(mapped(shift)))
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
