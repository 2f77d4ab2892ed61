"""Captured kernels: control flow, semaphores, devices, printing and time inside a kernel."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from capturing import call, mesh, over_mesh, run

import tpusim
from tpusim.errors import CheckError, CollectiveIdError, DeviceIdError, LeakError, NotModelledError

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
jnp = jax.numpy
lax = jax.lax
pl = pytest.importorskip("jax.experimental.pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu")
P = jax.sharding.PartitionSpec

pytestmark = pytest.mark.jax

SHAPE = (8, 128)
X = np.arange(1024, dtype=np.float32).reshape(SHAPE) / 64
F32 = (SHAPE, np.float32)
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR
IS_NEW = jax.__version_info__ >= (0, 12)
"""Waits for one leg, source semaphores on local copies, barrier semaphores of a tag."""


def test_a_loop_with_a_bound_that_only_the_run_knows() -> None:
    def kernel(n_ref: Any, x_ref: Any, o_ref: Any, t_ref: Any) -> None:
        def body(i: Any, carry: Any) -> Any:
            total, array = carry
            return total + n_ref[i], array + x_ref[i] * 2

        total, array = lax.fori_loop(0, n_ref[0], body, (jnp.int32(0), jnp.zeros(128)))
        o_ref[0] = array
        t_ref[0] = total

    for n in (0, 3):
        counts = np.array([n, 5, 7, 9], np.int32)
        out, total = run(
            kernel, [((1, 128), np.float32), ((1,), np.int32)], counts, X, spaces=["smem", "vmem"],
            out_spaces=["vmem", "smem"],
        )  # fmt: skip
        np.testing.assert_array_equal(out[0], 2 * X[:n].sum(0))
        assert total[0] == counts[:n].sum()


def test_nested_scans_carry_refs_and_arrays_and_stack() -> None:
    def kernel(x_ref: Any, o_ref: Any, s_ref: Any) -> None:
        def outer(carry: Any, i: Any) -> Any:
            def inner(c: Any, j: Any) -> Any:
                o_ref[pl.ds(i, 1)] += x_ref[pl.ds(j, 1)]
                return c + x_ref[j], j * i

            total, products = lax.scan(inner, carry, jnp.arange(3))
            return total, products.sum()

        o_ref[...] = jnp.zeros(SHAPE)
        total, sums = lax.scan(outer, jnp.zeros(128), jnp.arange(8), reverse=True)
        s_ref[0] = total
        s_ref[1] = jnp.broadcast_to(sums.sum().astype(jnp.float32), (128,))

    out, sums = run(kernel, [F32, ((2, 128), np.float32)], X)
    np.testing.assert_allclose(out, np.broadcast_to(X[:3].sum(0), SHAPE))
    np.testing.assert_allclose(sums[0], 8 * X[:3].sum(0))
    assert (sums[1] == sum(i * j for i in range(8) for j in range(3))).all()


def test_branches_give_arrays_and_numbers() -> None:
    def kernel(i_ref: Any, x_ref: Any, o_ref: Any, n_ref: Any) -> None:
        i = i_ref[0]
        a, n = lax.cond(i > 1, lambda: (x_ref[...] * 2, i + 1), lambda: (x_ref[...], jnp.int32(0)))
        b = lax.switch(i, [lambda v: v, lambda v: v + 1, lambda v: v - o_ref[0, 0]], a)

        @pl.when(i == 2)
        def _() -> None:
            n_ref[1] = n * 10

        @pl.when(jnp.logical_not(i == 2))
        def _() -> None:
            n_ref[1] = -1

        o_ref[...] = b
        n_ref[0] = n

    def scribble_first(i_ref: Any, x_ref: Any, o_ref: Any, n_ref: Any) -> None:
        o_ref[...] = jnp.full(SHAPE, 5.0)
        kernel(i_ref, x_ref, o_ref, n_ref)

    outs = [F32, ((2,), np.int32)]
    spaces = {"spaces": ["smem", "vmem"], "out_spaces": ["vmem", "smem"]}
    for i, want, numbers in [(0, X, [0, -1]), (1, X + 1, [0, -1]), (2, 2 * X - 5, [3, 30])]:
        out, n = run(scribble_first, outs, np.array([i], np.int32), X, **spaces)
        np.testing.assert_array_equal(out, want)
        assert n.tolist() == numbers


def test_loops_written_with_pl_loop_and_a_step() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        @pl.loop(0, 8, step=2)
        def _(i: Any) -> None:
            o_ref[i] = x_ref[i] * 2
            o_ref[i + 1] = x_ref[i + 1]

    out = run(kernel, F32, X)
    np.testing.assert_array_equal(out, X * np.array([2, 1] * 4)[:, None])


def test_functions_that_jax_traces_apart() -> None:
    @jax.jit
    def softmax(x: Any) -> Any:
        return jax.nn.softmax(jnp.where(x > 3, x, jnp.clip(x, -1, 1)), axis=-1)

    def kernel(x_ref: Any, o_ref: Any, i_ref: Any) -> None:
        o_ref[...] = jax.nn.gelu(softmax(x_ref[...])) + jax.nn.silu(jnp.linspace(0.0, 1.0, 128))
        i_ref[0] = jnp.floor_divide(jnp.max(x_ref[...]).astype(jnp.int32), 2) % 5

    out, i = run(kernel, [F32, ((1,), np.int32)], X, out_spaces=["vmem", "smem"])
    want = jax.nn.gelu(softmax(X)) + jax.nn.silu(jnp.linspace(0.0, 1.0, 128))
    np.testing.assert_allclose(out, want, rtol=1e-5)
    assert i[0] == int(X.max()) // 2 % 5


def test_what_is_printed_and_how_long_a_delay_takes() -> None:
    def kernel(o_ref: Any) -> None:
        here = lax.axis_index("x")
        pl.debug_print("before {}", here)
        pl.delay(1000)  # ns
        pl.debug_print("after {} {}", here, o_ref.shape[0] * here)
        o_ref[...] = jnp.zeros(SHAPE)

    run = tpusim.pallas.simulate(over_mesh(call(kernel, F32), mesh(2), (), P("x")))
    run()
    lines = run.result.printed
    assert len(lines) == 4
    for device in range(2):
        found = [re.fullmatch(r"\[device \((\d),\), t = ([\d.]+) (\w+)\] (.*)", line).groups() for line in lines]
        (start, first), (end, second) = [
            (float(t) * {"ps": 1e-6, "ns": 1e-3, "us": 1}[unit], text) for d, t, unit, text in found if d == str(device)
        ]
        assert (first, second) == (f"before {device}", f"after {device} {8 * device}")
        assert end - start == pytest.approx(1, abs=0.1)


def test_scopes_within_scopes() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        def outer(a: Any, sem: Any) -> Any:
            pltpu.async_copy(x_ref, a, sem).wait()

            def inner(b: Any) -> Any:
                b[...] = a[...] + 1
                return b[...], b[0, 0].astype(jnp.int32)

            value, number = pl.run_scoped(inner, pltpu.VMEM(SHAPE, jnp.float32))
            again, _ = pl.run_scoped(inner, b=pltpu.VMEM(SHAPE, jnp.float32))
            a[...] = value + again + number
            pltpu.async_copy(a, o_ref, sem).wait()
            return number

        number = pl.run_scoped(outer, pltpu.VMEM(SHAPE, jnp.float32), DMA(()))

        @pl.loop(0, number)
        def _(i: Any) -> None:
            pl.run_scoped(lambda sem: pltpu.async_copy(o_ref.at[i], o_ref.at[i + 4], sem).wait(), DMA(()))

    out = run(kernel, F32, X + 2, spaces=["hbm"], out_spaces=["hbm"])
    want = 2 * (X + 3) + 3
    want[4:7] = want[:3]
    np.testing.assert_array_equal(out, want)


def test_arrays_of_semaphores() -> None:
    def kernel(x_ref: Any, o_ref: Any, sems: Any, grid: Any, counts: Any) -> None:
        for i in range(2):
            pltpu.make_async_copy(x_ref.at[pl.ds(4 * i, 4)], o_ref.at[pl.ds(4 * i, 4)], sems.at[i]).start()

        @pl.loop(0, 2)
        def _(i: Any) -> None:
            pltpu.make_async_copy(x_ref.at[pl.ds(4 * i, 4)], o_ref.at[pl.ds(4 * i, 4)], sems.at[i]).wait()
            pl.semaphore_signal(counts.at[i, 1], i + 1)
            pl.semaphore_wait(counts.at[i, 1], i + 1)

        @pl.loop(0, 2)
        def _(i: Any) -> None:
            pltpu.async_copy(o_ref.at[i], o_ref.at[i + 4], grid.at[1].at[i]).wait()
            pltpu.async_copy(o_ref.at[i], o_ref.at[i + 4], grid.at[pl.ds(i, 1)].at[0, pl.ds(1, 2)].at[1]).wait()

    out = run(kernel, F32, X, spaces=["hbm"], out_spaces=["hbm"], scratch=[DMA((2,)), DMA((2, 3)), REGULAR((2, 2))])
    np.testing.assert_array_equal(out, X[[0, 1, 2, 3, 0, 1, 6, 7]])


def test_reading_a_semaphore() -> None:
    def kernel(o_ref: Any, sem: Any, dma: Any) -> None:
        o_ref[0] = pl.semaphore_read(sem)
        pl.semaphore_signal(sem, 5)
        pl.semaphore_wait(sem, 2)
        o_ref[1] = pl.semaphore_read(sem)
        pl.semaphore_wait(sem, 3)
        o_ref[2] = pl.semaphore_read(sem) + 1

    out = run(kernel, ((3,), np.int32), out_spaces=["smem"], scratch=[REGULAR, DMA(())])
    assert out.tolist() == [0, 3, 1]


def test_a_wait_that_does_not_subtract() -> None:
    def kernel(x_ref: Any, o_ref: Any, n_ref: Any, ready: Any, send: Any, receive: Any) -> None:
        here = lax.axis_index("x")

        @pl.when(here == 1)
        def _() -> None:
            pl.delay(3000)
            pl.semaphore_signal(ready, 2, device_id={"x": 0})
            n_ref[0] = 0

        @pl.when(here == 0)
        def _() -> None:
            pl.semaphore_wait(ready, 2, decrement=False)
            n_ref[0] = pl.semaphore_read(ready)
            pl.semaphore_wait(ready, 1, decrement=False)
            pl.semaphore_wait(ready, 2)

        pltpu.sync_copy(x_ref, o_ref)

    fn = call(kernel, [F32, ((1,), np.int32)], [REGULAR, DMA(()), DMA(())], ["hbm"], ["hbm", "smem"])
    run = tpusim.pallas.simulate(over_mesh(fn, mesh(2), P("x"), P("x")))
    _, n = run(np.concatenate([X, X]))
    assert n.tolist() == [2, 0]
    assert run.result.findings == ()
    assert run.result.time.us > 3


def neighbour_kernel(device_id: Any, kind: Any, x_ref: Any, o_ref: Any, send: Any, receive: Any, credit: Any) -> None:
    """To the device ``device_id`` names, by copy and by signal."""
    target = device_id()
    extra = {} if kind is None else {"device_id_type": kind}
    pl.semaphore_signal(credit, 1, device_id=target, core_index=0, **extra)
    pl.semaphore_wait(credit, 1)
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, receive, device_id=target, **extra)
    copy.start()
    copy.wait()


def to(device_id: Any, sizes: tuple[int, ...], kind: Any = None) -> np.ndarray:
    """For each device whose block it got."""
    kernel = partial(neighbour_kernel, device_id, kind)
    fn = call(kernel, ((1, 128), np.int32), [DMA(())] * 2 + [REGULAR], ["hbm"], ["hbm"])
    axes = ("x", "y")[: len(sizes)]
    x = np.repeat(np.arange(np.prod(sizes), dtype=np.int32)[:, None], 128, 1)
    return np.asarray(tpusim.pallas.simulate(over_mesh(fn, mesh(*sizes), P(axes), P(axes)))(x))[:, 0].reshape(sizes)


@pytest.mark.filterwarnings("ignore:device_id_type is deprecated", "ignore:jax.experimental.pallas.DeviceIdType is")
def test_device_ids() -> None:
    index = lax.axis_index
    one = np.arange(4)
    assert (to(lambda: (index("x") + 1) % 4, (4,)) == np.roll(one, 1)).all()
    assert (to(lambda: ((index("x") + 1) % 4,), (4,)) == np.roll(one, 1)).all()
    assert (to(lambda: {"x": (index("x") + 3) % 4}, (4,)) == np.roll(one, -1)).all()
    two = np.arange(8).reshape(2, 4)
    assert (to(lambda: ((index("x") + 1) % 2, index("y")), (2, 4)) == np.roll(two, 1, 0)).all()
    assert (to(lambda: {"y": (index("y") + 1) % 4}, (2, 4)) == np.roll(two, 1, 1)).all()
    assert (to(lambda: {"y": (index("y") + 1) % 4, "x": 1 - index("x")}, (2, 4)) == np.roll(two, (1, 1), (0, 1))).all()
    assert (to(lambda: {("x", "y"): (index(("x", "y")) + 1) % 8}, (2, 4)).ravel() == np.roll(np.arange(8), 1)).all()
    logical = pl.DeviceIdType.LOGICAL
    assert (to(lambda: (index("x") * 4 + index("y") + 1) % 8, (2, 4), logical).ravel() == np.roll(range(8), 1)).all()
    assert (to(lambda: (index("x") + 1) % 4, (4,), logical) == np.roll(one, 1)).all()


def test_device_ids_that_name_no_device() -> None:
    with pytest.raises(
        DeviceIdError, match=r"device_id 4 names no device: the mesh is x=4 \(4 devices\).*test_capture"
    ):
        to(lambda: lax.axis_index("x") + 1, (4,))
    with pytest.raises(DeviceIdError, match="is an int but the mesh has several axes"):
        to(lambda: 1 - lax.axis_index("x"), (2, 2))
    with pytest.raises(DeviceIdError, match=r"names no device: the mesh is x=2, y=2"):
        to(lambda: {"y": lax.axis_index("y") + 1}, (2, 2))


def test_another_core_of_the_device_is_not_modelled() -> None:
    def kernel(o_ref: Any, sem: Any) -> None:
        pl.semaphore_signal(sem, 1, core_index=1)
        o_ref[...] = jnp.zeros(SHAPE)

    with pytest.raises(NotModelledError, match=r"another core of the device.*test_capture_control.py"):
        run(kernel, F32, scratch=[REGULAR])


def test_priority_and_add() -> None:
    def kernel(x_ref: Any, o_ref: Any, v: Any, sem: Any) -> None:
        v[...] = jnp.ones(SHAPE)
        pltpu.async_copy(v, o_ref, sem).wait()
        copy = pltpu.async_copy(x_ref, o_ref, sem, priority=1, add=True)
        copy.wait()

    fn = call(kernel, F32, [pltpu.VMEM(SHAPE, jnp.float32), DMA(())], ["hbm"], ["hbm"])
    run = tpusim.pallas.simulate(fn)
    np.testing.assert_array_equal(run(X), X + 1)
    assert [str(f.kind) for f in run.result.findings] == ["unsupported"]
    assert "add=True" in run.result.findings[0].message


def test_what_is_left_on_a_semaphore() -> None:
    def kernel(o_ref: Any, sem: Any) -> None:
        pl.semaphore_signal(sem, 3)
        pl.semaphore_wait(sem, 3, decrement=False)
        o_ref[...] = jnp.zeros(SHAPE)

    with pytest.raises(LeakError, match="sem is left at 3 on device"):
        run(kernel, F32, scratch=[REGULAR])


@pytest.mark.skipif(not IS_NEW, reason="jax 0.12 and newer")
def test_waits_for_one_leg_of_a_local_copy() -> None:
    def kernel(x_ref: Any, o_ref: Any, send: Any, receive: Any) -> None:
        copy = pltpu.make_async_copy(x_ref, o_ref, receive, src_sem=send)
        copy.start()
        copy.wait_read()
        copy.wait_write()

    fn = call(kernel, F32, [DMA(()), DMA(())], ["hbm"], ["hbm"])
    run = tpusim.pallas.simulate(fn)
    np.testing.assert_array_equal(run(X), X)
    assert [str(f.kind) for f in run.result.findings] == ["unsupported"]


@pytest.mark.skipif(not IS_NEW, reason="jax 0.12 and newer")
def test_a_barrier_semaphore_of_a_tag() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        here = lax.axis_index("x")
        barrier = pltpu.get_barrier_semaphore(tag="mine")
        pl.semaphore_signal(barrier, 1, device_id={"x": 1 - here})
        pl.semaphore_wait(barrier, 1)
        pltpu.sync_copy(x_ref, o_ref)

    run = tpusim.pallas.simulate(over_mesh(call(kernel, F32, (), ["hbm"], ["hbm"]), mesh(2), P("x"), P("x")))
    run(np.concatenate([X, X]))
    assert run.result.findings == ()


def test_a_collective_id_that_is_not_used_hides_nothing() -> None:
    def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(x_ref, o_ref, sem)
        copy.start()
        o_ref[0] = x_ref[0]
        copy.wait()

    fn = call(kernel, F32, [DMA(())], compiler_params=pltpu.CompilerParams(collective_id=4))
    with pytest.raises(CollectiveIdError) as caught:
        tpusim.pallas.simulate(lambda x: fn(fn(x)))(X)
    assert [str(finding.kind) for finding in caught.value.findings] == ["collective-id", "race"]
    assert caught.value.finding.message == (
        "kernel has collective_id=4 and never calls get_barrier_semaphore(): the compiler refuses a collective_id that "
        "is not used; leave it out."
    )


def checked(x_ref: Any, o_ref: Any) -> None:
    def body(i: Any, total: Any) -> Any:
        pl.debug_check(i < 2, "no more than two steps")
        return total + i

    o_ref[...] = x_ref[...] + jax.lax.fori_loop(0, 4, body, 0)
    pl.debug_check(x_ref[0, 0] < 1, "the first element is large")


def test_checks_of_a_kernel_do_nothing_unless_they_are_enabled() -> None:
    x = np.zeros(SHAPE, np.float32)
    np.testing.assert_array_equal(run(checked, (SHAPE, np.float32), x), x + 6)
    fn = call(checked, (SHAPE, np.float32))
    with (
        pl.enable_debug_checks(True),
        pytest.raises(CheckError, match=r"^no more than two steps  \[device \(0,\), \S*test_capture_control.py:\d+\]$"),
    ):
        tpusim.pallas.simulate(fn)(x)


def test_a_check_of_what_is_not_known_is_not_made() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        pl.debug_check(x_ref[0, 0] < 1, "the first element is large")
        o_ref[...] = x_ref[...]

    fn, x = call(kernel, (SHAPE, np.float32)), np.ones(SHAPE, np.float32)
    with pl.enable_debug_checks(True):
        tpusim.pallas.simulate(fn, data=False)(jax.ShapeDtypeStruct(SHAPE, np.float32))
        with pytest.raises(CheckError, match=r"^the first element is large  "):
            tpusim.pallas.simulate(fn)(x)


def test_what_is_done_for_an_effect_alone_and_not_known_is_not_modelled() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        pltpu.matmul_push_rhs(x_ref[...], 0, 0)
        o_ref[...] = x_ref[...]

    with pytest.raises(NotModelledError, match=r"^primitive matmul_push_rhs  \[\S*test_capture_control.py:\d+\]$"):
        run(kernel, (SHAPE, np.float32), np.zeros(SHAPE, np.float32))


@pytest.mark.parametrize(("steps", "pieces"), [(1, 1), (2, 4)])  # first, sum, sum, last
def test_what_always_runs_is_scheduled_with_what_is_around_it(steps: int, pieces: int) -> None:
    """On a grid axis of one step the first step is the last one, and the compiler knows."""

    def kernel(x_ref: Any, o_ref: Any, total: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += x_ref[...]

        @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
        def _() -> None:
            o_ref[...] = 2 * total[...]

        @pl.when(pl.program_id(1) > 5)
        def _() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

    rows = pl.BlockSpec((8, 128), lambda i, j: (i, 0))
    summed = pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct((24, 128), jnp.float32), grid=(3, steps),
        in_specs=[rows], out_specs=rows, scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
    )  # fmt: skip
    x = np.arange(3072, dtype=np.float32).reshape(24, 128)
    simulated = tpusim.pallas.simulate(summed, slice="v5e:1x1")
    np.testing.assert_array_equal(simulated(x), 2 * steps * x)
    computes = [each for each in simulated.result.trace.computes if each.operation == "compute"]
    assert len(computes) == 3 * pieces
