"""The verdict on kernels that run on several cores of a device: TensorCores that share an HBM, SparseCore subcores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from capturing import mesh, over_mesh

import tpusim

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
jnp = jax.numpy
lax = jax.lax
pl = pytest.importorskip("jax.experimental.pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu")
plsc = pytest.importorskip("jax.experimental.pallas.tpu_sc")
P = jax.sharding.PartitionSpec

from test_capture_cores import SHAPE, X, doubled, half, on_cores  # noqa: E402  (they need jax)
from test_sparsecore import LISTED, OUT, ROWS, TABLE, gather, on_subcores, scatter  # noqa: E402

pytestmark = pytest.mark.jax

CORES = "v5p:2x2x1"


def verify(fn: Any, *arrays: Any, slice: str = CORES, **options: Any) -> Any:  # the option's name
    return tpusim.pallas.verify(fn, *arrays, slice=slice, **options)


def handed_over(*, waits: bool = True, drains: bool = True) -> Any:
    """Core 0 writes a half, which core 1 copies; it waits for it, or is only slower."""

    def body(x_ref: Any, o_ref: Any, v_ref: Any, sem: Any, ready: Any) -> None:
        core = lax.axis_index("core")

        @pl.when(core == 0)
        def _() -> None:
            pltpu.async_copy(x_ref.at[half(0)], o_ref.at[half(0)], sem).wait()
            pl.semaphore_signal(ready, 1, core_index=1)

        @pl.when(core == 1)
        def _() -> None:
            if waits:
                pl.semaphore_wait(ready, 1)
            pl.delay(50_000)
            pltpu.async_copy(o_ref.at[half(0)], o_ref.at[half(1)], sem).wait()
            if drains and not waits:
                pl.semaphore_wait(ready, 1)

    return on_cores(body)


@pytest.mark.parametrize("calls", [1, 2])
def test_cores_that_each_do_their_part_are_proven(calls: int) -> None:
    verdict = verify(on_cores(doubled), X, calls=calls)
    assert (verdict.answer, verdict.reasons) == ("proven", ())


@pytest.mark.parametrize("calls", [1, 2])
def test_a_core_that_waits_for_another_is_proven(calls: int) -> None:
    assert verify(handed_over(), X, calls=calls).answer == "proven"


def test_a_core_that_reads_what_another_writes_is_refuted_and_replayed() -> None:
    verdict = verify(handed_over(waits=False), X)
    assert verdict.answer == "refuted"
    finding = next(found for found in verdict.findings if found.kind == "race")
    assert "the other access began meanwhile, and the data are wrong" in finding.message
    again = tpusim.pallas.simulate(handed_over(waits=False), slice=CORES, replay=finding.token, on_finding="record")
    assert not np.array_equal(again(X), np.concatenate([X[:8], X[:8]]))


def test_a_signal_that_stays_is_a_leak() -> None:
    verdict = verify(handed_over(waits=False, drains=False), X)
    assert verdict.answer == "refuted"
    assert any(found.kind == "leak" for found in verdict.findings)


def test_cores_that_wait_for_each_other() -> None:
    def body(x_ref: Any, o_ref: Any, v_ref: Any, sem: Any, ready: Any) -> None:
        pl.semaphore_wait(ready, 1)
        pl.semaphore_signal(ready, 1, core_index=1 - lax.axis_index("core"))

    verdict = verify(on_cores(body), X)
    assert verdict.answer == "refuted"
    assert verdict.findings[0].kind == "deadlock"


@pytest.mark.parametrize(("is_careful", "answer"), [(True, "proven"), (False, "refuted")])
def test_cores_of_several_devices(is_careful: bool, answer: str) -> None:
    """Each core sends its half to the same core of the other device, which has come or perhaps not."""

    def body(x_ref: Any, o_ref: Any, v_ref: Any, send: Any, receive: Any, ready: Any) -> None:
        core, there = lax.axis_index("core"), 1 - lax.axis_index("x")
        pltpu.sync_copy(x_ref.at[half(core)], v_ref)
        if is_careful:
            barrier = pltpu.get_barrier_semaphore()
            pl.semaphore_signal(barrier, 1, device_id={"x": there})
            pl.semaphore_wait(barrier, 1)
        copy = pltpu.make_async_remote_copy(v_ref, o_ref.at[half(core)], send, receive, device_id={"x": there})
        copy.start()
        copy.wait()

    scratch = (pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA,
               pltpu.SemaphoreType.REGULAR)  # fmt: skip
    params = pltpu.CompilerParams(collective_id=3) if is_careful else pltpu.CompilerParams(skip_device_barrier=True)
    fn = over_mesh(on_cores(body, scratch=scratch, compiler_params=params), mesh(2), P("x"), P("x"))
    x = np.arange(4096, dtype=np.float32).reshape(2 * SHAPE[0], 128)
    verdict = verify(fn, x)
    assert verdict.answer == answer, verdict.reasons
    if not is_careful:
        assert {found.kind for found in verdict.findings} == {"lifetime"}


@pytest.mark.parametrize("calls", [1, 2])
def test_subcores_that_gather_are_proven(calls: int) -> None:
    verdict = verify(on_subcores(gather, OUT, ROWS), TABLE, LISTED, slice="v7x:1x1x1", calls=calls)
    assert (verdict.answer, verdict.reasons) == ("proven", ())


def test_subcores_that_scatter_to_one_row_are_refuted() -> None:
    x, indices = np.zeros(OUT[0], np.float32), np.arange(512, dtype=np.int32)
    assert verify(on_subcores(scatter, OUT, ROWS), x, indices, slice="v7x:1x1x1").answer == "proven"
    indices[511] = 3
    verdict = verify(on_subcores(scatter, OUT, ROWS), x, indices, slice="v7x:1x1x1")
    assert verdict.answer == "refuted"
    assert "o_hbm[16 indices]" in verdict.findings[0].message
