"""Captured pipelines of JAX at the edge of an array: their copies move whole tiles, and so the padding behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from capturing import call
from hypothesis import given, settings
from hypothesis import strategies as st

import tpusim
from tpusim.errors import OutOfBoundsError

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
jnp = jax.numpy
pl = pytest.importorskip("jax.experimental.pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu")

pytestmark = pytest.mark.jax


def doubled(x: np.ndarray[Any, Any], block: tuple[int | None, ...], grid: tuple[int, ...]) -> Any:
    """A kernel that doubles ``x``, a block a step."""

    def index(*step: Any) -> tuple[Any, ...]:
        return (*step, *(0,) * (x.ndim - len(step)))

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    def kernel(x_ref: Any, o_ref: Any) -> None:
        spec = pl.BlockSpec(block, index)
        pltpu.emit_pipeline(body, grid=grid, in_specs=[spec], out_specs=[spec])(x_ref, o_ref)

    return call(kernel, (x.shape, x.dtype), spaces=["any"], out_spaces=["any"])


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_blocks_that_leave_their_array(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([np.dtype(np.float32), np.dtype(np.int32), jnp.dtype(jnp.bfloat16)]))
    packing = 4 // dtype.itemsize
    block = 8 * packing * data.draw(st.integers(1, 2)), 128
    shape = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 300))
    outer = data.draw(st.sampled_from([(), (2,)]))
    x = np.arange(np.prod((*outer, *shape))).reshape((*outer, *shape)).astype(dtype)
    grid = tuple(-(-size // part) for size, part in zip(shape, block, strict=True))
    fn = doubled(x, (*(None,) * len(outer), *block), (*outer, *grid))
    simulated = tpusim.pallas.simulate(fn, slice="v5e:1x1")
    np.testing.assert_array_equal(simulated(x), x * 2)
    assert simulated.result.findings == ()


def test_one_dimension_and_a_proof() -> None:
    x = np.arange(2500, dtype=np.float32)
    np.testing.assert_array_equal(tpusim.pallas.simulate(doubled(x, (1024,), (3,)))(x), 2 * x)
    assert tpusim.pallas.verify(doubled(x, (1024,), (3,)), x).answer == "proven"


def test_such_a_copy_counts_with_all_its_bytes_and_moves_whole_tiles() -> None:
    times = {}
    for rows in (17, 24):
        x = np.ones((rows, 128), np.float32)
        simulated = tpusim.pallas.simulate(doubled(x, (8, 128), (3,)), slice="v5e:1x1")
        simulated(x)
        times[rows] = simulated.result.time_us
    assert times[17] == times[24]


def test_copies_of_the_kernel_itself_may_not_reach_there() -> None:
    def body(x_ref: Any, o_ref: Any, all_ref: Any, window: Any, sem: Any) -> None:
        pltpu.make_async_copy(all_ref.at[pl.ds(pl.program_id(0) * 8, 8)], window, sem).start()
        pltpu.make_async_copy(all_ref.at[pl.ds(0, 8)], window, sem).wait()
        o_ref[...] = x_ref[...] + window[...]

    def kernel(x_ref: Any, o_ref: Any, window: Any, sem: Any) -> None:
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pipeline = pltpu.emit_pipeline(
            lambda *refs: body(*refs, x_ref, window, sem), grid=(3,), in_specs=[spec], out_specs=[spec]
        )
        pipeline(x_ref, o_ref)

    x = np.ones((20, 128), np.float32)
    scratch = [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA]
    fn = call(kernel, (x.shape, x.dtype), scratch, spaces=["any"], out_spaces=["any"])
    with pytest.raises(OutOfBoundsError, match=r"^x_ref\[16:24, 0:128\]: index 16:24 leaves dimension 0 of size 20  "):
        tpusim.pallas.simulate(fn)(x)
