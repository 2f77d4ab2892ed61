"""Forms of kernels: memory spaces of operands and results, what calls hand over, kernels on a core mesh."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from capturing import call, mesh, over_mesh, run

import tpusim
from tpusim.errors import LifetimeError, RaceError, UnwaitedError

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
jnp = jax.numpy
lax = jax.lax
pl = pytest.importorskip("jax.experimental.pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu")
P = jax.sharding.PartitionSpec

pytestmark = [
    pytest.mark.jax,
    pytest.mark.filterwarnings("ignore:jax.experimental.pallas.core_map is deprecated"),
]

SHAPE = (8, 128)
X = np.arange(1024, dtype=np.float32).reshape(SHAPE) / 64
F32 = (SHAPE, np.float32)
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR


def core_mesh(cores: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # jax 0.12 has another name for it
        return pltpu.create_tensorcore_mesh("core", num_cores=cores)


def test_every_memory_space() -> None:
    def kernel(n_ref: Any, h_ref: Any, a_ref: Any, v_ref: Any, *outs: Any) -> None:
        o_n, o_h, o_a, o_v = outs
        for i in range(4):
            o_n[i] = n_ref[i] * 2
        pltpu.sync_copy(h_ref, o_h)
        pltpu.sync_copy(a_ref, o_a)
        o_v[...] = v_ref[...] + n_ref[0]

    n = np.arange(4, dtype=np.int32) + 1
    spaces = ["smem", "hbm", "any", "vmem"]
    got = run(
        kernel, [((4,), np.int32), F32, F32, F32], n, X, X + 1, X + 2, spaces=spaces, out_spaces=spaces,
        compiler_params=pltpu.CompilerParams(has_side_effects=True),
    )  # fmt: skip
    for mine, theirs in zip(got, [n * 2, X, X + 1, X + 3], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_kernel_without_operands_or_with_several_results() -> None:
    def kernel(a_ref: Any, b_ref: Any) -> None:
        a_ref[...] = jnp.ones(SHAPE)
        b_ref[0] = 3

    first, second = run(kernel, [F32, ((1,), np.int32)], out_spaces=["vmem", "smem"])
    assert (first == 1).all()
    assert second.tolist() == [3]


@pytest.mark.parametrize("space", ["vmem", "hbm", "smem"])
def test_operands_that_become_results(space: str) -> None:
    def kernel(n_ref: Any, x_ref: Any, y_ref: Any, o_ref: Any, p_ref: Any) -> None:
        if space == "hbm":
            pltpu.sync_copy(y_ref.at[0:4], o_ref.at[4:8])
            pltpu.sync_copy(y_ref, p_ref)
        elif space == "vmem":
            o_ref[0:4] = x_ref[4:8] * n_ref[0]
            p_ref[...] = y_ref[...] + o_ref[...]
        else:
            o_ref[0] = x_ref[1] + n_ref[0]
            p_ref[0] = o_ref[0] + o_ref[2]

    shape = (4,) if space == "smem" else SHAPE
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    fn = call(kernel, [(shape, x.dtype)] * 2, (), ["smem", space, space], [space] * 2, input_output_aliases={1: 0})
    n = np.array([2], np.int32)
    before = x.copy()
    out, other = tpusim.pallas.simulate(lambda n, x, y: (*fn(n, x, y), x)[:2])(n, x, x + 1)
    np.testing.assert_array_equal(x, before)
    want = x.copy()
    if space == "hbm":
        want[4:] = x[:4] + 1
        np.testing.assert_array_equal(other, x + 1)
    elif space == "vmem":
        want[:4] = x[4:] * 2
        np.testing.assert_array_equal(other, x + 1 + want)
    else:
        want[0] = x[1] + 2
        assert other[0] == want[0] + x[2]
    np.testing.assert_array_equal(out, want)


# -- start in one call, wait in another ----------------------------------------------------------------


def start_kernel(target: Any, x_ref: Any, o_ref: Any, send: Any, receive: Any) -> None:
    here = lax.axis_index("x")
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1, device_id={"x": (here - 1) % 4})
    pl.semaphore_wait(barrier, 1)
    pltpu.make_async_remote_copy(x_ref, o_ref, send, receive, device_id={"x": target(here)}).start()


def done_kernel(target: Any, x_ref: Any, y_ref: Any, send: Any, receive: Any, o_ref: Any) -> None:
    here = lax.axis_index("x")
    pltpu.make_async_remote_copy(x_ref, o_ref, send, receive, device_id={"x": target(here)}).wait()


def right(here: Any) -> Any:
    return (here + 1) % 4


def started(x: Any) -> Any:
    semaphore = DMA(())
    return call(
        partial(start_kernel, right),
        [(x.shape, x.dtype), semaphore, semaphore],
        (),
        ["any"],
        ["any", "sem", "sem"],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(x)


def done(x: Any, y: Any, send: Any, receive: Any) -> Any:
    fn = call(
        partial(done_kernel, right), (y.shape, y.dtype), (), ["any", "any", "sem", "sem"], ["any"],
        input_output_aliases={1: 0},
    )  # fmt: skip
    return fn(x, y, send, receive)


def double(x: Any) -> Any:
    return call(lambda a, o: o.__setitem__(..., a[...] * 2), (x.shape, x.dtype))(x)


def test_a_copy_that_one_call_starts_and_another_waits_for() -> None:
    def body(x: Any) -> Any:
        y, *semaphores = started(x)
        z = double(x)
        return done(x, y, *semaphores), z

    x = np.arange(4 * 1024, dtype=np.float32).reshape(32, 128)
    run = tpusim.pallas.simulate(over_mesh(body, mesh(4), P("x"), P("x")))
    out, z = run(x)
    np.testing.assert_array_equal(out, np.roll(x, 8, 0))
    np.testing.assert_array_equal(z, x * 2)
    assert run.result.findings == ()
    assert run.result.calls[0].name == "start_kernel"
    assert len(run.result.calls) == 3
    run(x)
    assert tpusim.pallas.verify(over_mesh(body, mesh(4), P("x"), P("x")), x, calls=2).answer == "proven"
    bare = tpusim.pallas.simulate(over_mesh(body, mesh(4), P("x"), P("x")), data=False)
    bare(x)
    assert bare.result.time == run.result.time
    assert bare.result.findings == ()


def test_a_semaphore_through_a_barrier_and_two_calls() -> None:
    def body(x: Any) -> Any:
        y, *semaphores = started(x)
        x, y, *semaphores = lax.optimization_barrier((x, y, *semaphores))
        out = done(x, y, *semaphores)
        y, *semaphores = started(out)
        return done(out, y, *semaphores)

    x = np.arange(4 * 1024, dtype=np.float32).reshape(32, 128)
    run = tpusim.pallas.simulate(over_mesh(body, mesh(4), P("x"), P("x")))
    np.testing.assert_array_equal(run(x), np.roll(x, 16, 0))
    assert run.result.findings == ()


def test_a_copy_that_is_started_and_never_waited_for() -> None:
    def body(x: Any) -> Any:
        return double(x), started(x)[0]

    run = tpusim.pallas.simulate(over_mesh(body, mesh(4), P("x"), P("x")))
    with pytest.raises(UnwaitedError, match=r"is left at 4096 B on devices \(0,\)-\(3,\).*no wait_"):
        run(np.zeros((32, 128), np.float32))


def test_using_what_is_still_on_its_way() -> None:
    def scribble(x_ref: Any, y_ref: Any, send: Any, receive: Any, o_ref: Any, v: Any) -> None:
        pltpu.sync_copy(o_ref, v)
        done_kernel(right, x_ref, y_ref, send, receive, o_ref)

    def body(x: Any) -> Any:
        y, *semaphores = started(x)
        fn = call(
            scribble, F32, [pltpu.VMEM(SHAPE, jnp.float32)], ["any", "any", "sem", "sem"], ["any"],
            input_output_aliases={1: 0},
        )  # fmt: skip
        return fn(x, y, *semaphores)

    verdict = tpusim.pallas.verify(over_mesh(body, mesh(4), P("x"), P("x")), np.zeros((32, 128), np.float32))
    assert {str(finding.kind) for finding in verdict.errors} == {"race"}
    run = tpusim.pallas.simulate(over_mesh(body, mesh(4), P("x"), P("x")))
    with pytest.raises(RaceError, match=r"copy from .* meets a copy in flight"):
        run(np.zeros((32, 128), np.float32))


def read_between(x: Any) -> Any:
    y, *semaphores = started(x)
    read = y + 1
    return done(x, y, *semaphores) + read


def summed_between(x: Any) -> Any:
    y, *semaphores = started(x)
    read = lax.psum(y, "x")
    return done(x, y, *semaphores) + read


def loaded_between(x: Any) -> Any:
    y, *semaphores = started(x)
    read = double(y)
    return done(x, y, *semaphores) + read


def computed_before(x: Any) -> Any:
    return overwritten(x * 2)


def overwritten(x: Any) -> Any:
    y, *semaphores = started(x)
    x = call(lambda a, o: o.__setitem__(..., a[...] + 1), F32, input_output_aliases={0: 0})(x)
    return done(x, y, *semaphores)


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("body", [read_between, summed_between, loaded_between, overwritten, computed_before])
def test_an_array_that_is_used_before_the_copy_on_it_is_waited_for(body: Any, data: bool) -> None:
    """By XLA, by another kernel, or overwritten in place; without data it is told apart from others all the same."""
    fn, x = over_mesh(body, mesh(4), P("x"), P("x")), np.arange(4096, dtype=np.float32).reshape(32, 128)
    verdict = tpusim.pallas.verify(fn, x, data=data)
    assert (verdict.answer, {str(finding.kind) for finding in verdict.errors}) == ("refuted", {"race"})
    assert "the other access began meanwhile" in verdict.errors[0].message
    with pytest.raises(RaceError):
        tpusim.pallas.simulate(fn, data=data)(x)
    np.testing.assert_array_equal(x.ravel(), np.arange(4096))
    if not data:
        with pytest.raises(RaceError):
            tpusim.pallas.simulate(fn, data=False)(jax.ShapeDtypeStruct(x.shape, x.dtype))


def test_an_array_may_be_read_while_it_is_sent_and_when_it_has_come() -> None:
    def body(x: Any) -> Any:
        y, *semaphores = started(x)
        z = x * 3
        return done(x, y, *semaphores) * 2 + z

    fn, x = over_mesh(body, mesh(4), P("x"), P("x")), np.arange(4096, dtype=np.float32).reshape(32, 128)
    assert tpusim.pallas.verify(fn, x, calls=2).answer == "proven"
    np.testing.assert_array_equal(tpusim.pallas.simulate(fn)(x), np.roll(x, 8, 0) * 2 + x * 3)


@pytest.mark.parametrize("is_source", [True, False])
def test_a_copy_that_outlives_the_call_whose_scratch_it_uses(is_source: bool) -> None:
    """Nothing is left on a semaphore in the end, as a later call waits."""

    def start(x_ref: Any, o_ref: Any, send: Any, receive: Any, v: Any) -> None:
        there = {"x": right(lax.axis_index("x"))}
        pltpu.sync_copy(x_ref, v if is_source else o_ref)
        source, target = (v, o_ref) if is_source else (x_ref, v)
        pltpu.make_async_remote_copy(source, target, send, receive, device_id=there).start()

    def body(x: Any) -> Any:
        semaphore = DMA(())
        fn = call(start, [F32, semaphore, semaphore], [pltpu.VMEM(SHAPE, jnp.float32)], ["any"], ["any", "sem", "sem"])
        y, *semaphores = fn(x)
        return done(x, y, *semaphores)

    fn, x = over_mesh(body, mesh(4), P("x"), P("x")), np.zeros((32, 128), np.float32)
    verdict = tpusim.pallas.verify(fn, x)
    (fault,) = verdict.errors
    assert verdict.answer == "refuted"
    what = "from v" if is_source else "to v on device (0,)"
    assert fault.kind == "lifetime"
    assert fault.message.startswith(f"the copy {what} started by device (")
    assert "leaves the kernel without a wait that makes sure that the copy is over." in fault.message
    assert "the other access began meanwhile" in fault.message
    with pytest.raises(LifetimeError):
        tpusim.pallas.simulate(fn)(x)


def test_a_regular_semaphore_is_handed_on() -> None:
    def give(x_ref: Any, o_ref: Any, sems: Any) -> None:
        pl.semaphore_signal(sems.at[1], 3)
        pltpu.sync_copy(x_ref, o_ref)

    def take(x_ref: Any, sems: Any, o_ref: Any, sems_out: Any) -> None:
        pl.semaphore_wait(sems.at[1], 2)
        pltpu.sync_copy(x_ref, o_ref)

    def last(x_ref: Any, sems: Any, o_ref: Any) -> None:
        pl.semaphore_wait(sems.at[1], 1)
        o_ref[0] = pl.semaphore_read(sems.at[1])

    def fn(x: Any) -> Any:
        y, sems = call(give, [F32, REGULAR((2,))], (), ["any"], ["any", "sem"])(x)
        z, sems = call(take, [F32, REGULAR((2,))], (), ["any", "sem"], ["any", "sem"], input_output_aliases={1: 1})(
            y, sems
        )
        return z, call(last, ((1,), np.int32), (), ["any", "sem"], ["smem"])(z, sems)

    run = tpusim.pallas.simulate(fn)
    out, n = run(X)
    np.testing.assert_array_equal(out, X)
    assert n[0] == 0
    assert run.result.findings == ()


def test_a_start_without_a_barrier_may_come_too_early() -> None:
    def early(x_ref: Any, o_ref: Any, send: Any, receive: Any) -> None:
        pltpu.make_async_remote_copy(x_ref, o_ref, send, receive, device_id={"x": right(lax.axis_index("x"))}).start()

    def body(x: Any) -> Any:
        semaphore = DMA(())
        fn = call(
            early, [F32, semaphore, semaphore], (), ["any"], ["any", "sem", "sem"],
            compiler_params=pltpu.CompilerParams(skip_device_barrier=True),
        )  # fmt: skip
        y, *semaphores = fn(x)
        return done(x, y, *semaphores)

    verdict = tpusim.pallas.verify(over_mesh(body, mesh(4), P("x"), P("x")), np.zeros((32, 128), np.float32))
    assert {str(finding.kind) for finding in verdict.errors} == {"lifetime"}
    run = tpusim.pallas.simulate(over_mesh(body, mesh(4), P("x"), P("x")))
    with pytest.raises(LifetimeError):
        run(np.zeros((32, 128), np.float32))


# -- kernels on a mesh of cores ------------------------------------------------------------------------


def core_body(x_ref: Any, o_ref: Any, v: Any, sem: Any) -> None:
    core = lax.axis_index("core")
    pltpu.async_copy(x_ref, v, sem).wait()
    v[...] = v[...] * 2 + core
    pltpu.async_copy(v, o_ref, sem).wait()


def test_a_kernel_on_a_mesh_of_one_core() -> None:
    def fn(x: Any) -> Any:
        return pl.kernel(
            core_body,
            out_type=jax.ShapeDtypeStruct(SHAPE, jnp.float32),
            mesh=core_mesh(1),
            scratch_types=[pltpu.VMEM(SHAPE, jnp.float32), DMA(())],
        )(x)

    run = tpusim.pallas.simulate(jax.jit(fn))
    np.testing.assert_array_equal(run(X), X * 2)
    assert len(run.result.calls) == 1
    assert run.result.dmas == 2


def test_a_core_map_over_refs() -> None:
    def fn(x: Any) -> Any:
        def stateful(refs: Any) -> None:
            x_ref, y_ref = refs

            @pl.core_map(core_mesh(1))
            def _() -> None:
                pl.run_scoped(partial(core_body, x_ref, y_ref), pltpu.VMEM(SHAPE, jnp.float32), DMA(()))

        return pl.run_state(stateful)((x, jnp.zeros_like(x)))[1] + 1

    run = tpusim.pallas.simulate(jax.jit(fn))
    np.testing.assert_array_equal(run(X), X * 2 + 1)
    np.testing.assert_array_equal(run(X + 1), X * 2 + 3)


def test_a_core_map_over_refs_made_outside() -> None:
    """Twice on the same refs, with arithmetic on them in between."""

    def fn(x: Any) -> Any:
        x_ref, y_ref = jax.new_ref(x), jax.new_ref(jnp.zeros_like(x))
        for _ in range(2):

            @pl.core_map(core_mesh(1))
            def _() -> None:
                pl.run_scoped(partial(core_body, x_ref, y_ref), pltpu.VMEM(SHAPE, jnp.float32), DMA(()))

            x_ref[...] = y_ref[...] + 1
        return y_ref[...], x_ref[0]

    for way in (fn, jax.jit(fn)):
        run = tpusim.pallas.simulate(way)
        for x in (X, X + 1):
            y, row = run(x)
            np.testing.assert_array_equal(y, (x * 2 + 1) * 2)
            np.testing.assert_array_equal(row, (x * 2 + 1)[0] * 2 + 1)
        assert len(run.result.calls) == 2


def test_a_core_kernel_that_talks_to_other_devices() -> None:
    def kernel(x_ref: Any, o_ref: Any, send: Any, receive: Any) -> None:
        copy = pltpu.make_async_remote_copy(
            x_ref, o_ref, send, receive, device_id={"x": right(lax.axis_index("x")), "core": 0}
        )
        copy.start()
        copy.wait()

    def body(x: Any) -> Any:
        return pl.kernel(
            kernel,
            out_type=jax.ShapeDtypeStruct(SHAPE, jnp.float32),
            mesh=core_mesh(1),
            scratch_types=[DMA(()), DMA(())],
        )(x)

    x = np.arange(4 * 1024, dtype=np.float32).reshape(32, 128)
    run = tpusim.pallas.simulate(over_mesh(body, mesh(4), P("x"), P("x")))
    np.testing.assert_array_equal(run(x), np.roll(x, 8, 0))


def test_a_jitted_function_is_traced_anew_for_every_chip():
    @jax.jit
    def fn(x):
        vmem = pltpu.get_tpu_info().vmem_capacity_bytes // 2**20

        def fill(o_ref):
            o_ref[...] = jnp.full_like(o_ref, vmem)

        return pl.pallas_call(fill, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))()

    x = np.zeros((8, 128), np.float32)
    found = [tpusim.pallas.simulate(fn, slice=slice_)(x)[0, 0] for slice_ in ("v5e:1x1", "v5p:2x2x1", "v5e:1x1")]
    assert found == [128, 64, 128]


@pytest.mark.parametrize(("slice_", "vmem"), [("v5e:1x1", 128), ("v5p:2x2x1", 64), ("v7x:1x1x1", 64)])
def test_code_that_asks_for_the_chip_sees_the_simulated_one(slice_, vmem):
    def add_one(x_hbm, o_hbm):
        assert pltpu.get_tpu_info().vmem_capacity_bytes == vmem * 2**20

        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...] + 1

        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(body, grid=(4,), in_specs=[block], out_specs=[block])(x_hbm, o_hbm)

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    x = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
    call = pl.pallas_call(
        add_one, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), in_specs=[anywhere], out_specs=anywhere
    )
    run = tpusim.pallas.simulate(jax.jit(call), slice=slice_)
    np.testing.assert_array_equal(run(x), x + 1)
    assert run.result.findings == ()
    assert run.result.dmas == 8


@pytest.mark.parametrize(("slice_", "cores"), [("v5e:1x1", 1), ("v5p:2x2x1", 2), ("v7x:1x1x1", 1)])
def test_a_mesh_of_all_cores_has_those_of_the_simulated_chip(slice_, cores):
    def fn(x):
        if hasattr(pltpu, "TensorCoreMesh"):
            made = pltpu.TensorCoreMesh(axis_name="core")
        else:  # jax 0.10
            made = pltpu.create_tensorcore_mesh("core")
        return x + made.shape["core"]

    assert tpusim.pallas.simulate(fn, slice=slice_)(np.int32(0)) == cores


def test_a_second_barrier_on_a_semaphore_of_a_scope():
    def kernel(x_ref, o_ref, send, receive):
        here = lax.axis_index("x")
        peers = [{"x": (here + step) % 4} for step in (1, 3)]
        barrier = pltpu.get_barrier_semaphore()
        for peer in peers:
            pl.semaphore_signal(barrier, 1, device_id=peer)
        pl.semaphore_wait(barrier, 2)

        def again(second):
            for peer in peers:
                pl.semaphore_signal(second, 1, device_id=peer)
            pl.semaphore_wait(second, 2)

        pl.run_scoped(again, pltpu.SemaphoreType.REGULAR)
        pltpu.make_async_remote_copy(x_ref, o_ref, send, receive, device_id=peers[0]).start()
        pltpu.make_async_remote_copy(x_ref, o_ref, send, receive, device_id=peers[0]).wait()

    def body(x):
        options = {"compiler_params": pltpu.CompilerParams(collective_id=0)}
        return call(kernel, F32, [DMA, DMA], ["hbm"], ["hbm"], **options)(x)

    x = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
    run = tpusim.pallas.simulate(over_mesh(body, mesh(4), P("x"), P("x")))
    np.testing.assert_array_equal(run(x), np.roll(x, 8, axis=0))
    assert run.result.findings == ()


def test_a_scope_shared_by_the_cores_of_a_mesh_of_one_core() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        def scoped(v: Any, sem: Any) -> None:
            pltpu.async_copy(x_ref, v, sem).wait()
            v[...] = v[...] + lax.axis_index("core").astype(jnp.float32) + 1
            pltpu.async_copy(v, o_ref, sem).wait()

        pl.run_scoped(scoped, pltpu.VMEM(SHAPE, jnp.float32), DMA(()), collective_axes=("core",))

    out_type = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    fn = jax.jit(lambda x: pl.kernel(kernel, out_type=out_type, mesh=core_mesh(1))(x))
    np.testing.assert_array_equal(tpusim.pallas.simulate(fn)(X), X + 1)
