"""Captured programs: what may stand around kernels, what goes in and comes out."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from capturing import call, mesh, over_mesh

import tpusim
from tpusim.errors import DeadlockError, NotModelledError, OptionError, OutOfBoundsError

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
jnp = jax.numpy
pl = pytest.importorskip("jax.experimental.pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu")
P = jax.sharding.PartitionSpec

pytestmark = pytest.mark.jax

SHAPE = (8, 128)
X = np.arange(1024, dtype=np.float32).reshape(SHAPE) / 64
F32 = (SHAPE, np.float32)


def double_kernel(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def double(x: Any) -> Any:
    return pl.pallas_call(double_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def shift_kernel(axis: str, size: int, x_ref: Any, o_ref: Any, send: Any, receive: Any) -> None:
    """To the right neighbour."""
    here = jax.lax.axis_index(axis)
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, receive, device_id={axis: (here + 1) % size})
    copy.start()
    copy.wait()


def shift(x: Any, axis: str = "x", size: int = 4) -> Any:
    return call(
        partial(shift_kernel, axis, size),
        (x.shape, x.dtype),
        [pltpu.SemaphoreType.DMA(())] * 2,
        ["hbm"],
        ["hbm"],
    )(x)


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.rstrip().endswith(text))


def test_results_are_those_of_fn() -> None:
    run = tpusim.pallas.simulate(double)
    out = run(X)
    assert isinstance(out, jax.Array)
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(out, X * 2)
    assert run.result.ok
    assert [c.name for c in run.result.calls] == ["double_kernel"]
    assert run.result.calls[0].time > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "uint8", "int16", "int32", "uint32", "float8_e4m3fn"])
def test_dtypes_go_through(dtype: str) -> None:
    x = jnp.arange(4096, dtype=jnp.float32).reshape(32, 128).astype(jnp.int8).astype(dtype)
    out = tpusim.pallas.simulate(jax.jit(lambda x: call(lambda a, o: pltpu.sync_copy(a, o), (x.shape, x.dtype))(x)))(x)
    assert out.dtype == x.dtype
    assert (np.asarray(out) == np.asarray(x)).all()


def test_the_same_object_again_with_other_shapes_and_types() -> None:
    run = tpusim.pallas.simulate(jax.jit(double))
    np.testing.assert_array_equal(run(X), X * 2)
    wide = np.ones((16, 256), np.int32)
    np.testing.assert_array_equal(run(wide), wide * 2)
    first = run.result
    np.testing.assert_array_equal(run(X), X * 2)
    assert run.result is not first


def test_pytrees_keywords_and_static_arguments() -> None:
    @partial(jax.jit, static_argnames=("times", "mode"))
    def fn(tree: dict[str, Any], times: int, *, mode: str = "up", extra: Any = None) -> dict[str, Any]:
        assert extra is None
        y = tree["a"]
        for _ in range(times):
            y = double(y)
        return {"y": (y if mode == "up" else -y, [tree["b"]]), "none": None}

    run = tpusim.pallas.simulate(fn)
    out = run({"a": X, "b": np.int32(3)}, 2, mode="down")
    np.testing.assert_array_equal(out["y"][0], X * -4)
    assert out["y"][1][0] == 3
    assert out["none"] is None
    assert len(run.result.calls) == 2
    np.testing.assert_array_equal(run({"a": X, "b": np.int32(3)}, 1)["y"][0], X * 2)


def test_python_numbers_stay_what_they_are() -> None:
    def fn(x: Any, n: int, scale: float, names: list[str]) -> Any:
        return double(x) * scale if n > 2 and "a" in names else x

    run = tpusim.pallas.simulate(fn)
    np.testing.assert_array_equal(run(X, 3, 0.5, ["a"]), X)
    np.testing.assert_array_equal(run(X, 1, 0.5, ["a"]), X)
    assert run.result.calls == ()


def test_weak_types_and_wide_numpy_arrays() -> None:
    def fn(x: Any) -> Any:
        return double(x), jax.lax.full((), 2.0) * 1, x.sum()

    out, weak, total = tpusim.pallas.simulate(fn)(X.astype(np.float64))
    assert out.dtype == jnp.float32
    assert weak.weak_type
    assert not total.weak_type
    assert total == pytest.approx(X.sum())


def test_plain_jax_around_kernels() -> None:
    def fn(x: Any) -> Any:
        y = jnp.sort(x, axis=1) + jnp.float32(1)
        return jax.vmap(lambda row: row.sum())(double(y)), double(y.T.astype(jnp.bfloat16))

    got = tpusim.pallas.simulate(fn)(X)
    y = np.sort(X, 1) + 1
    np.testing.assert_allclose(got[0], (2 * y).sum(1), rtol=1e-6)
    assert got[1].dtype == jnp.bfloat16
    np.testing.assert_array_equal(got[1], 2 * y.T.astype(got[1].dtype))


def test_control_flow_around_kernels() -> None:
    def fn(x: Any, n: Any) -> Any:
        y, ys = jax.lax.scan(lambda c, i: (double(c), c[0, 0] + i), x, jnp.arange(3.0))
        _, backwards = jax.lax.scan(lambda c, v: (c, double(c)[0, 1] * v), x, ys, reverse=True)
        z = jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, double(c[1])), (0, y))[1]
        return (
            jax.lax.cond(n > 1, double, lambda v: v, z),
            jax.lax.fori_loop(0, 2, lambda _, v: double(v), x),
            backwards,
        )

    run = tpusim.pallas.simulate(jax.jit(fn))
    got, twice, backwards = run(X, np.int32(2))
    np.testing.assert_array_equal(got, X * 64)
    np.testing.assert_array_equal(twice, X * 4)
    np.testing.assert_array_equal(backwards, [0, 2 * X[0, 1], 4 * X[0, 1]])
    assert len(run.result.calls) == 3 + 3 + 2 + 1 + 2
    np.testing.assert_array_equal(run(X, np.int32(1))[0], X * 16)


def test_custom_derivatives() -> None:
    @jax.custom_vjp
    def f(x: Any) -> Any:
        return double(x)

    f.defvjp(lambda x: (double(x), x), lambda x, g: (double(double(g)) * x,))

    @jax.custom_jvp
    def h(x: Any) -> Any:
        return double(x)

    h.defjvp(lambda primals, tangents: (h(*primals), double(double(*tangents))))
    run = tpusim.pallas.simulate(jax.jit(lambda x: h(f(x))))
    np.testing.assert_array_equal(run(X), X * 4)
    run = tpusim.pallas.simulate(jax.grad(lambda x: f(x).sum()))
    np.testing.assert_array_equal(run(X), X * 4)
    assert len(run.result.calls) == 3
    run = tpusim.pallas.simulate(jax.value_and_grad(jax.checkpoint(lambda x: jnp.sin(f(x)).sum())))
    value, grad = run(X)
    assert value == pytest.approx(np.sin(2 * X).sum(), rel=1e-4)
    np.testing.assert_allclose(grad, np.cos(2 * X) * 4 * X, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("devices", [4, 8, 64, 256])
def test_an_abstract_mesh_needs_no_devices(devices: int) -> None:
    fn = over_mesh(partial(shift, size=devices), mesh(devices), P("x"), P("x"))
    x = np.arange(devices * 1024, dtype=np.float32).reshape(devices * 8, 128)
    np.testing.assert_array_equal(tpusim.pallas.simulate(fn)(x), np.roll(x, 8, 0))


def test_a_real_mesh_of_one_device() -> None:
    real = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    fn = over_mesh(lambda x: double(x) + jax.lax.axis_index("x"), real, P("x"), P("x"))
    np.testing.assert_array_equal(tpusim.pallas.simulate(fn)(jnp.asarray(X)), X * 2)


def test_collectives_between_kernels() -> None:
    lax = jax.lax

    def body(double: Any, x: Any) -> Any:
        y = double(x)
        return (
            lax.psum(y, "x"),
            lax.pmax(y, "x"),
            lax.pmin(y, ("x",)),
            lax.pmean(y, "x"),
            lax.all_gather(y, "x"),
            lax.all_gather(y, "x", axis=1, tiled=True),
            lax.psum_scatter(y, "x", scatter_dimension=1, tiled=True),
            lax.psum_scatter(y.reshape(4, 2, 128), "x"),
            lax.all_to_all(y, "x", 1, 0, tiled=True),
            lax.all_to_all(y.reshape(4, 2, 128), "x", 0, 1),
            lax.ppermute(y, "x", [(0, 1), (1, 2), (3, 0), (2, 3)]),
            double(lax.psum(y, "x")),
            lax.psum(1, "x") + lax.axis_index("x") + jnp.zeros(1, jnp.int32),
        )

    x = np.random.default_rng(0).integers(-9, 9, (32, 128)).astype(np.float32)
    got = tpusim.pallas.simulate(over_mesh(partial(body, double), mesh(4), P("x"), P("x")))(x)
    # vmap with an axis name gives the same collectives
    want = jax.vmap(partial(body, lambda v: v * 2), axis_name="x")(x.reshape(4, 8, 128))
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, np.asarray(theirs).reshape(mine.shape), rtol=1e-6)


def test_collectives_over_two_axes() -> None:
    lax = jax.lax

    def body(x: Any) -> Any:
        y = double(x)
        return (
            lax.psum(y, ("x", "y")),
            lax.psum(y, "y"),
            lax.all_gather(y, ("x", "y"), tiled=True),
            lax.all_gather(y, ("y", "x"), tiled=True),
            lax.ppermute(y, "x", [(1, 0)]),
            lax.psum_scatter(y, ("x", "y"), tiled=True),
            shift(y, "y", 2),
            jnp.full((1,), lax.axis_index(("y", "x"))),
        )

    x = np.random.default_rng(0).integers(-9, 9, (32, 128)).astype(np.float32)
    got = tpusim.pallas.simulate(over_mesh(body, mesh(2, 2), P(("x", "y")), P(("x", "y"))))(x)
    parts = 2 * x.reshape(2, 2, 8, 128)
    devices = [(a, b) for a in range(2) for b in range(2)]
    total = parts.sum((0, 1))
    want = [
        [total] * 4,
        [parts[a].sum(0) for a, b in devices],
        [np.concatenate([parts[d] for d in devices])] * 4,
        [np.concatenate([parts[a, b] for b in range(2) for a in range(2)])] * 4,
        [parts[1, b] * (a == 0) for a, b in devices],
        [total[2 * (2 * a + b) :][:2] for a, b in devices],
        [parts[a, 1 - b] for a, b in devices],
        [[2 * b + a] for a, b in devices],
    ]
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, np.concatenate(theirs))


def test_checked_shard_maps_and_replicated_results() -> None:
    def body(x: Any, w: Any) -> Any:
        y = jax.lax.psum(x * w, "x")
        return y, jax.lax.all_gather(x, "x", tiled=True), jax.lax.pmax(x, "x")

    fn = jax.jit(jax.shard_map(body, mesh=mesh(4), in_specs=(P("x"), P()), out_specs=(P(), P(None, "x"), P())))
    x = np.arange(32 * 8, dtype=np.float32).reshape(32, 8)
    total, gathered, top = tpusim.pallas.simulate(fn)(x, np.float32(2))
    np.testing.assert_array_equal(total, 2 * x.reshape(4, 8, 8).sum(0))
    np.testing.assert_array_equal(gathered, np.tile(x, 4))
    np.testing.assert_array_equal(top, x[-8:])


def test_several_shard_maps_one_after_the_other() -> None:
    part = over_mesh(lambda x: shift(jax.lax.psum(x, "x") + x), mesh(4), P("x"), P("x"))
    run = tpusim.pallas.simulate(lambda x: jax.lax.fori_loop(0, 3, lambda _, v: part(v) - 1, part(x)))
    x = np.arange(4 * 1024, dtype=np.float32).reshape(32, 128) % 7
    want = x
    for turn in range(4):
        blocks = want.reshape(4, 8, 128)
        want = np.roll(blocks + blocks.sum(0), 1, 0).reshape(32, 128) - (turn > 0)
    np.testing.assert_array_equal(run(x), want)
    assert len(run.result.calls) == 4


def test_arrays_of_calls_that_are_over_are_not_kept() -> None:
    part = over_mesh(lambda x: jax.lax.fori_loop(0, 6, lambda _, v: shift(double(v)), x), mesh(4), P("x"), P("x"))
    run = tpusim.pallas.simulate(part)
    x = np.ones((32, 128), np.float32)
    np.testing.assert_array_equal(run(x), x * 64)
    calls = run.result.cores[0].machine.calls
    assert len(calls) == 12
    assert all(buffer.array is None for call in calls for table in call.buffers for buffer in table)


def test_keys_and_random_numbers_around_kernels() -> None:
    def body(key: Any, x: Any) -> Any:
        mine = jax.random.fold_in(key, jax.lax.axis_index("x"))
        return double(x + jax.random.uniform(mine, x.shape)), jax.random.split(mine, 2)

    fn = over_mesh(body, mesh(4), (P(), P("x")), (P("x"), P("x")))
    key = jax.random.key(3)
    x = np.zeros((32, 128), np.float32)
    out, keys = tpusim.pallas.simulate(fn)(key, x)
    for device in range(4):
        mine = jax.random.fold_in(key, device)
        np.testing.assert_array_equal(out[8 * device :][:8], 2 * jax.random.uniform(mine, SHAPE))
        assert (jax.random.key_data(keys[2 * device :][:2]) == jax.random.key_data(jax.random.split(mine, 2))).all()


def test_an_argument_is_never_changed() -> None:
    def scribble(x_ref: Any, o_ref: Any, v: Any) -> None:
        v[...] = jnp.zeros(SHAPE)
        pltpu.sync_copy(x_ref, o_ref)
        pltpu.sync_copy(v, x_ref)

    x = X.copy()
    fn = call(scribble, F32, [pltpu.VMEM(SHAPE, jnp.float32)], ["hbm"], ["hbm"])
    np.testing.assert_array_equal(tpusim.pallas.simulate(fn)(x), X)
    np.testing.assert_array_equal(x, X)


def test_an_error_names_the_users_line_and_leaves_nothing_behind() -> None:
    def reach(x_ref: Any, i_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[pl.ds(i_ref[0], 8)]  # the wrong line

    run = tpusim.pallas.simulate(jax.jit(lambda x, i: call(reach, F32, spaces=["vmem", "smem"])(x, i)))
    x = np.concatenate([X, X])
    np.testing.assert_array_equal(run(x, np.array([8], np.int32)), X)
    with pytest.raises(OutOfBoundsError) as caught:
        run(x, np.array([9], np.int32))
    assert caught.value.finding.where == (__file__, line_of("# the wrong line"))
    assert caught.value.finding.device == (0,)
    assert run.result is caught.value.result
    np.testing.assert_array_equal(run(x, np.array([0], np.int32)), X)
    assert run.result.ok


def test_devices_that_wait_in_a_collective_others_never_reach() -> None:
    def body(x: Any) -> Any:
        here = jax.lax.axis_index("x")
        return jax.lax.cond(here < 2, lambda v: jax.lax.psum(v, "x"), double, x)  # psum

    run = tpusim.pallas.simulate(over_mesh(body, mesh(4), P("x"), P("x")))
    with pytest.raises(DeadlockError) as caught:
        run(np.zeros((32, 128), np.float32))
    assert re.search(
        r"2 of 4 devices can never proceed.*\n"
        r"  devices \(0,\)-\(1,\) each wait in psum over x at .*test_capture.py:\d+, which devices \(2,\)-\(3,\) never "
        r"reach\n",
        str(caught.value),
    )
    assert caught.value.finding.where == (__file__, line_of("# psum"))


def test_collectives_within_groups_of_an_axis() -> None:
    lax = jax.lax
    groups = [[0, 3], [2, 1]]

    def body(x: Any) -> Any:
        y = double(x)
        return (
            lax.psum(y, "x", axis_index_groups=groups),
            lax.all_gather(y, "x", axis_index_groups=groups, tiled=True),
            lax.psum_scatter(y, "x", axis_index_groups=groups, tiled=True),
            lax.all_to_all(y, "x", 0, 1, axis_index_groups=groups, tiled=True),
            lax.pbroadcast(y, "x", 2),
        )

    x = np.random.default_rng(0).integers(-9, 9, (32, 128)).astype(np.float32)
    got = tpusim.pallas.simulate(over_mesh(body, mesh(4), P("x"), P("x")))(x)
    y = 2 * x.reshape(4, 8, 128)
    want: list[list[Any]] = [[y[2]] * 4 for _ in got]
    for group in groups:
        for rank, device in enumerate(group):
            total = y[group].sum(0)
            want[0][device] = total
            want[1][device] = np.concatenate(y[group])
            want[2][device] = np.split(total, 2)[rank]
            want[3][device] = np.concatenate([np.split(y[other], 2)[rank] for other in group], 1)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(mine, np.concatenate(theirs))


def test_what_there_is_no_model_for_around_kernels() -> None:
    def some(x: Any) -> Any:
        at = jnp.arange(4, dtype=jnp.int32)
        return jax.lax.ragged_all_to_all(double(x), x, at, at, at, at, axis_name="x")

    run = tpusim.pallas.simulate(over_mesh(some, mesh(4), P("x"), P("x")))
    with pytest.raises(NotModelledError, match=r"the XLA collective ragged_all_to_all.*test_capture.py"):
        run(np.zeros((32, 128), np.float32))


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="brings its own mesh"):
        tpusim.pallas.simulate(double, mesh=4)
    with pytest.raises(OptionError, match="only a run with data=False"):
        tpusim.pallas.simulate(double)(jax.ShapeDtypeStruct(SHAPE, jnp.float32))


def test_without_data() -> None:
    fn = over_mesh(lambda x: shift(double(x) + 1), mesh(4), P("x"), P("x"))
    x = np.zeros((32, 128), np.float32)
    full, bare = tpusim.pallas.simulate(fn), tpusim.pallas.simulate(fn, data=False)
    full(x)
    assert bare(x) is None
    assert bare(jax.ShapeDtypeStruct(x.shape, x.dtype)) is None
    assert bare.result.outputs is None
    assert bare.result.time == full.result.time
    assert bare.result.dmas == full.result.dmas


def first_half(x_ref: Any, out_ref: Any) -> None:
    out_ref[0:8, :] = x_ref[0:8, :]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_result_that_no_kernel_wrote_is_told(devices: int) -> None:
    fn = call(first_half, ((16, 128), np.float32))
    both = over_mesh(lambda x: (x, fn(x)), mesh(2), P("x"), P("x")) if devices == 2 else lambda x: (x, fn(x))
    run = tpusim.pallas.simulate(both)
    run(jnp.ones((16 * devices, 128), jnp.float32))
    (finding,) = run.result.findings
    assert (finding.kind, finding.argument) == ("uninitialised", "out_ref")
    assert finding.message == (
        "out_ref of first_half, which is result 1 of the program, holds memory that no kernel ever wrote (shown as NaN "
        "or a sentinel)."
    )
    assert run.result.ok
    later = tpusim.pallas.simulate(lambda x: jnp.concatenate([fn(x), x]))
    later(jnp.ones((16, 128), jnp.float32))
    assert later.result.findings[0].argument == "result 0"


def test_wide_arguments_become_narrow_as_jax_makes_them_and_that_is_said_once() -> None:
    run = tpusim.pallas.simulate(double)
    run(X.astype(np.float64))  # every value is the same in 32 bits
    third = np.full(SHAPE, 1 / 3)
    with pytest.warns(UserWarning, match=r"array argument 0 is float64 and is computed with as float32, as JAX does"):
        out = run(third)
    assert out.dtype == jnp.float32
    run(third)
    with pytest.warns(UserWarning, match="array argument 1 is int64 and is computed with as int32"):
        tpusim.pallas.simulate(lambda x, n: double(x) + n)(X, np.int64(1 << 40))


def test_what_happens_within_a_sync_copy_has_the_line_of_its_caller():
    def kernel(x_ref, o_ref, v, i_ref):
        i_ref[0] = 9
        pltpu.sync_copy(x_ref, v.at[pl.ds(i_ref[0], 8)])  # out of bounds

    scratch = [pltpu.VMEM((16, 128), jnp.float32), pltpu.SMEM((1,), jnp.int32)]
    with pytest.raises(OutOfBoundsError) as caught:
        tpusim.pallas.simulate(call(kernel, F32, scratch, ["hbm"], ["hbm"]))(X)
    assert caught.value.finding.where == (__file__, line_of("# out of bounds"))
