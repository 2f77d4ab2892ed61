"""Captured kernels on several TensorCores of a device: each core an agent of its own, one HBM."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from capturing import call, mesh, over_mesh

import tpusim
from tpusim.errors import DeadlockError, DeviceIdError, NotModelledError, OptionError, RaceError

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
jnp = jax.numpy
lax = jax.lax
pl = pytest.importorskip("jax.experimental.pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu")
P = jax.sharding.PartitionSpec

pytestmark = pytest.mark.jax

HALF = (8, 128)
SHAPE = (16, 128)
X = np.arange(2048, dtype=np.float32).reshape(SHAPE)
SCRATCH = (pltpu.VMEM(HALF, jnp.float32), pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR)


def core_mesh(cores: int, axis: str = "core") -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # jax 0.12 has another name for it
        return pltpu.create_tensorcore_mesh(axis, num_cores=cores)


def on_cores(body: Any, cores: int = 2, scratch: Any = SCRATCH, **options: Any) -> Any:
    """A kernel over the cores of a device: one array of ``SHAPE`` to another."""
    return pl.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(SHAPE, jnp.float32),
        mesh=core_mesh(cores, options.pop("axis", "core")),
        scratch_types=list(scratch),
        **options,
    )


def half(core: Any) -> Any:
    return pl.ds(core * 8, 8)


def doubled(x_ref: Any, o_ref: Any, v_ref: Any, sem: Any, *_: Any, axis: str = "core") -> None:
    core = lax.axis_index(axis)
    pltpu.async_copy(x_ref.at[half(core)], v_ref, sem).wait()
    v_ref[...] = v_ref[...] * 2
    pltpu.async_copy(v_ref, o_ref.at[half(core)], sem).wait()


@pytest.mark.parametrize("axis", ["core", "x"])
def test_each_core_does_its_part(axis: str) -> None:
    run = tpusim.pallas.simulate(lambda x: on_cores(partial(doubled, axis=axis), axis=axis)(x) + 1, slice="v5p:2x2x1")
    np.testing.assert_array_equal(run(X), X * 2 + 1)
    assert not run.result.findings
    assert len(run.result.cores) == 2
    assert [core.operations > 4 for core in run.result.cores] == [True, True]


def test_the_cores_of_a_device_share_its_hbm_and_nothing_else() -> None:
    """What core 0 writes to HBM, core 1 reads after a signal; VMEM of the same name is each core's own."""

    def body(x_ref: Any, o_ref: Any, v_ref: Any, sem: Any, ready: Any) -> None:
        core = lax.axis_index("core")
        v_ref[...] = jnp.full(HALF, core + 1.0)

        @pl.when(core == 0)
        def _() -> None:
            pltpu.async_copy(v_ref, o_ref.at[half(0)], sem).wait()
            pl.semaphore_signal(ready, 1, core_index=1)

        @pl.when(core == 1)
        def _() -> None:
            pl.semaphore_wait(ready, 1)
            pltpu.async_copy(o_ref.at[half(0)], o_ref.at[half(1)], sem).wait()

    run = tpusim.pallas.simulate(on_cores(body), slice="v4:2x2x1")
    np.testing.assert_array_equal(run(X), np.ones(SHAPE))


def test_cores_that_write_the_same_part_of_hbm_race() -> None:
    def body(x_ref: Any, o_ref: Any, v_ref: Any, sem: Any, _: Any) -> None:
        pltpu.async_copy(x_ref.at[half(lax.axis_index("core"))], v_ref, sem).wait()
        pltpu.async_copy(v_ref, o_ref.at[half(0)], sem).wait()

    with pytest.raises(RaceError, match=r"test_capture_cores\.py"):
        tpusim.pallas.simulate(on_cores(body), slice="v5p:2x2x1")(X)


def test_a_core_that_reads_without_waiting_races_whatever_the_order_was() -> None:
    def body(x_ref: Any, o_ref: Any, v_ref: Any, sem: Any, ready: Any) -> None:
        core = lax.axis_index("core")

        @pl.when(core == 0)
        def _() -> None:
            pltpu.async_copy(x_ref.at[half(0)], o_ref.at[half(0)], sem).wait()

        @pl.when(core == 1)
        def _() -> None:
            pl.delay(50_000)
            pltpu.async_copy(o_ref.at[half(0)], o_ref.at[half(1)], sem).wait()

    with pytest.raises(RaceError):
        tpusim.pallas.simulate(on_cores(body), slice="v5p:2x2x1")(X)


def test_a_core_that_waits_for_ever() -> None:
    def body(x_ref: Any, o_ref: Any, v_ref: Any, sem: Any, ready: Any) -> None:
        pl.semaphore_signal(ready, 1, device_id={"core": 0})
        pl.semaphore_wait(ready, 1)

    with pytest.raises(DeadlockError) as caught:
        tpusim.pallas.simulate(on_cores(body), slice="v5p:2x2x1")(X)
    assert "device (0, 1)" in str(caught.value)


def test_core_index_out_of_range() -> None:
    def body(x_ref: Any, o_ref: Any, v_ref: Any, sem: Any, ready: Any) -> None:
        pl.semaphore_signal(ready, 1, core_index=lax.axis_index("core") + 1)

    with pytest.raises(DeviceIdError, match="core_index 2 names no device"):
        tpusim.pallas.simulate(on_cores(body), slice="v5p:2x2x1")(X)


@pytest.mark.parametrize(("slice_", "cores"), [("v5e:1x1", "megacore"), ("v5p:2x2x1", "split")])
def test_more_cores_than_a_device_has(slice_: str, cores: str) -> None:
    run = tpusim.pallas.simulate(on_cores(doubled), slice=slice_, cores=cores)
    with pytest.raises(OptionError, match=rf"runs on 2 TensorCores; a device of {slice_}.* has 1$"):
        run(X)


def test_kernels_on_one_core_and_on_several_in_one_program() -> None:
    def add(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    one = call(add, (SHAPE, np.float32))
    run = tpusim.pallas.simulate(lambda x: one(on_cores(doubled)(one(x))), slice="v5p:2x2x1")
    np.testing.assert_array_equal(run(X), (X + 1) * 2 + 1)


def test_kernels_that_call_their_cores_otherwise() -> None:
    other = on_cores(partial(doubled, axis="b"), axis="b")
    run = tpusim.pallas.simulate(lambda x: on_cores(doubled)(other(x)), slice="v5p:2x2x1")
    np.testing.assert_array_equal(run(X), X * 4)


@pytest.mark.parametrize("form", ["dict", "tuple", "core"])
def test_cores_of_several_devices(form: str) -> None:
    """Each core sends its half to a core of the next device."""

    def body(x_ref: Any, o_ref: Any, v_ref: Any, send: Any, receive: Any) -> None:
        core, here = lax.axis_index("core"), lax.axis_index("x")
        there = lax.rem(here + 1, 2)
        pltpu.sync_copy(x_ref.at[half(core)], v_ref)
        target = {"dict": {"x": there}, "tuple": (there,), "core": {"x": there, "core": 1 - core}}[form]
        part = half(1 - core) if form == "core" else half(core)
        pltpu.make_async_remote_copy(v_ref, o_ref.at[part], send, receive, device_id=target).start()
        pltpu.make_async_remote_copy(v_ref, o_ref.at[part], send, receive, device_id=target).wait()

    scratch = (SCRATCH[0], pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA)
    fn = over_mesh(on_cores(body, scratch=scratch), mesh(2), P("x"), P("x"))
    x = np.arange(4096, dtype=np.float32).reshape(32, 128)
    run = tpusim.pallas.simulate(fn, slice="v5p:2x2x1")
    got = np.asarray(run(x)).reshape(2, 2, 8, 128)
    want = x.reshape(2, 2, 8, 128)[::-1]
    np.testing.assert_array_equal(got, want[:, ::-1] if form == "core" else want)


def test_what_has_no_model() -> None:
    fn = over_mesh(on_cores(partial(doubled, axis="x"), axis="x"), mesh(2), P("x"), P("x"))
    with pytest.raises(NotModelledError, match=r"axes \['x'\] both of the mesh and of the cores of a device"):
        tpusim.pallas.simulate(fn, slice="v5p:2x2x1")(np.zeros((32, 128), np.float32))
