"""Captured kernels: parts and views of refs, masks, small types, odd shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from capturing import call, run
from hypothesis import given, settings
from hypothesis import strategies as st

import tpusim
from tpusim.errors import DeadlockError, MemorySpaceError, OutOfBoundsError, RaceError, ShapeMismatchError

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
jnp = jax.numpy
pl = pytest.importorskip("jax.experimental.pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu")

pytestmark = pytest.mark.jax

DMA = pltpu.SemaphoreType.DMA
X = np.arange(4 * 16 * 128, dtype=np.float32).reshape(4, 16, 128)


def test_slices_of_slices() -> None:
    def kernel(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
        i = i_ref[0]
        rows = x_ref.at[1].at[pl.ds(i, 8)]
        o_ref[0] = rows[...]
        o_ref[1] = rows.at[pl.ds(0, 8)][...] + x_ref[3, -8:, :]
        o_ref[2, 0:4] = x_ref[2, pl.ds(i, 4, 2)]
        o_ref[2, 4:8] = x_ref.at[2][0:8:2]
        o_ref.at[3, pl.ds(i - 2, 2)].at[1][...] = x_ref[3, 15]
        o_ref[3, 0:1] = jnp.zeros((1, 128))
        o_ref[3, 2:8] = x_ref.at[3, 2:16].at[pl.ds(0, 6)][...]

    out = run(kernel, ((4, 8, 128), np.float32), np.array([2], np.int32), X, spaces=["smem", "vmem"])
    np.testing.assert_array_equal(out[0], X[1, 2:10])
    np.testing.assert_array_equal(out[1], X[1, 2:10] + X[3, 8:])
    np.testing.assert_array_equal(out[2], X[2, [2, 4, 6, 8, 0, 2, 4, 6]])
    np.testing.assert_array_equal(out[3], np.concatenate([np.zeros((1, 128)), X[3, [-1]], X[3, 2:8]]))


def test_reshaped_refs() -> None:
    def kernel(x_ref: Any, o_ref: Any, v: Any, sem: Any) -> None:
        flat = x_ref.reshape(64, 128)
        pltpu.async_copy(flat.at[pl.ds(8, 16)], v, sem).wait()
        half = v.reshape(2, 8, 128)
        half[1] = half[1] * 2
        half.at[0][0:2] = jnp.zeros((2, 128))
        columns = v.reshape(16, 2, 64)  # not together in memory: every other half of a row
        columns.at[:, 1][4:6] = columns[4:6, 1] + 0.5
        out = o_ref.reshape(2, 8, 128)
        pltpu.async_copy(v.reshape(4, 4, 128).at[2:4].reshape(8, 128), out.at[0], sem).wait()
        pltpu.async_copy(half.at[0], out.at[1], sem).wait()

    out = run(
        kernel, ((16, 128), np.float32), X, spaces=["hbm"], out_spaces=["hbm"],
        scratch=[pltpu.VMEM((16, 128), jnp.float32), DMA(())],
    )  # fmt: skip
    want = X.reshape(64, 128)[8:24].copy()
    want[8:] *= 2
    want[:2] = 0
    want[4:6, 64:] += 0.5
    np.testing.assert_array_equal(out, np.roll(want, 8, 0))


def test_transposed_refs() -> None:
    def kernel(x_ref: Any, o_ref: Any, p_ref: Any) -> None:
        turned = x_ref.at[0:4, 0:8].transpose((1, 0, 2))
        p_ref[...] = turned[2:4] * 2
        o_ref.at[...].transpose((1, 0, 2))[0:8] = turned[...] * 2

    out, part = run(kernel, [((4, 8, 128), np.float32), ((2, 4, 128), np.float32)], X)
    np.testing.assert_array_equal(out, X[:, :8] * 2)
    np.testing.assert_array_equal(part, X[:, 2:4].transpose(1, 0, 2) * 2)


@pytest.mark.parametrize(("narrow", "wide"), [("bfloat16", "uint32"), ("int8", "int32"), ("int16", "float32")])
def test_refs_with_other_bits_to_an_element(narrow: str, wide: str) -> None:
    def kernel(x_ref: Any, packed_ref: Any, o_ref: Any, v: Any, sem: Any) -> None:
        ratio = jnp.dtype(wide).itemsize // jnp.dtype(narrow).itemsize
        pltpu.async_copy(x_ref.bitcast(wide), packed_ref, sem).wait()
        v[...] = x_ref[...]
        words = v.bitcast(wide)
        words[0:2] = words[2:4] if wide == "float32" else words[2:4] + 1 - jnp.ones((), wide)
        o_ref[...] = v[...]
        o_ref.bitcast(wide).at[pl.ds(32 // ratio - 1, 1)][...] = jnp.zeros((1, 128), wide)

    x = jnp.asarray(np.random.default_rng(0).integers(0, 100, (32, 128)), dtype=narrow)
    packed, out = (
        jax.ShapeDtypeStruct((32 * x.dtype.itemsize // 4, 128), wide),
        jax.ShapeDtypeStruct(x.shape, x.dtype),
    )
    got, rows = run(
        kernel, [packed, out], x, out_spaces=["hbm", "vmem"], scratch=[pltpu.VMEM((32, 128), narrow), DMA(())]
    )
    want = np.asarray(jax.lax.bitcast_convert_type(x.reshape(-1, 4 // x.dtype.itemsize, 128).swapaxes(1, 2), wide))
    np.testing.assert_array_equal(got, want)
    ratio = 4 // x.dtype.itemsize
    expected = np.array(x)
    expected[: 2 * ratio] = expected[2 * ratio : 4 * ratio]
    expected[32 - ratio :] = 0
    np.testing.assert_array_equal(rows, expected)


def factorisations(size: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(1, 8), min_size=1, max_size=4).map(tuple).filter(lambda s: math.prod(s) == size)


SHAPES = [(4, 6), (24,), (2, 2, 6), (3, 8), (2, 3, 4), (4, 1, 6)]


def spec_of(shape: tuple[int, ...], dtype: str) -> Any:
    from tpusim.machine.memory import BufferSpec, Tiling
    from tpusim.specs import MemorySpace

    tiling = Tiling({32: 8, 16: 16, 8: 32, 4: 32, 64: 8}, 64)
    return BufferSpec(0, "v", MemorySpace.VMEM, shape, np.dtype(dtype), tiling)


def draw_chain(data: Any, spec: Any, array: Any) -> tuple[Any, Any, Any]:
    """A region after some views, its values, and which element of the buffer each value lies in."""
    from tpusim.pallas.views import bitcast, reshaped, transposed

    region, values = spec.whole, array
    owners = np.arange(24).reshape(spec.shape)
    for _ in range(data.draw(st.integers(1, 4))):
        move = data.draw(st.sampled_from(["index", "reshape", "transpose", "bitcast"]))
        if move == "reshape":
            new = data.draw(st.sampled_from([s for s in SHAPES if math.prod(s) == values.size] or [(values.size,)]))
            region, values, owners = reshaped(region, new), values.reshape(new), owners.reshape(new)
        elif move == "transpose":
            order = tuple(data.draw(st.permutations(range(values.ndim))))
            region, values, owners = transposed(region, order), values.transpose(order), owners.transpose(order)
        elif move == "bitcast" and values.dtype == np.int16:
            region, values = bitcast(region, "uint16"), values.view(np.uint16)
        elif move == "index":
            key = []
            for size in values.shape:
                start = data.draw(st.integers(0, size - 1))
                stride = data.draw(st.integers(1, 2))
                count = data.draw(st.integers(1, (size - 1 - start) // stride + 1))
                key.append(data.draw(st.sampled_from([start, (start, count, stride)])))
            slices = tuple(k if isinstance(k, int) else slice(k[0], k[0] + (k[1] - 1) * k[2] + 1, k[2]) for k in key)
            region, values, owners = region.sub(tuple(key)), values[slices], owners[slices]
    return region, values, owners


@settings(max_examples=60)
@given(st.data())
def test_any_chain_of_views_covers_what_it_reads_and_writes(data: Any) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    spec = spec_of(shape, data.draw(st.sampled_from(["int32", "int16"])))
    array = np.arange(24, dtype=spec.dtype).reshape(shape)
    region, values, owners = draw_chain(data, spec, array)
    np.testing.assert_array_equal(region.read(array), values)
    assert region.shape == values.shape
    box = np.arange(24).reshape(shape)[region.index]
    assert set(np.ravel(owners)) <= set(np.ravel(box))
    np.testing.assert_array_equal(region.elements(), np.sort(np.ravel(owners)))
    assert region.has_holes == (owners.size < box.size)
    changed = array.copy()
    region.write(changed, np.full(values.shape, 99, values.dtype))
    want = array.copy().ravel()
    want[np.ravel(owners)] = 99
    np.testing.assert_array_equal(changed.ravel(), want)


@settings(max_examples=200)
@given(st.data())
def test_views_and_masks_of_a_buffer_overlap_where_they_share_an_element(data: Any) -> None:
    from tpusim.pallas.views import masked

    spec = spec_of(data.draw(st.sampled_from(SHAPES)), "int32")
    array = np.arange(24, dtype=np.int32).reshape(spec.shape)
    regions, sets = [], []
    for _ in range(2):
        region, _, owners = draw_chain(data, spec, array)
        if data.draw(st.booleans()):
            bits = data.draw(st.lists(st.booleans(), min_size=owners.size, max_size=owners.size))
            mask = np.array(bits, np.bool_).reshape(owners.shape)
            region, owners = masked(region, mask), owners[mask]
        regions.append(region)
        sets.append(set(np.ravel(owners).tolist()))
    (one, two), (mine, other) = regions, sets
    if one is None or two is None:
        assert not mine or not other
        return
    assert one.overlaps(two) == two.overlaps(one) == bool(mine & other)
    assert one.is_within(two) == (mine <= other)
    assert two.is_within(one) == (other <= mine)


def test_rows_of_another_width_lie_in_the_rows_their_bits_come_from() -> None:
    from tpusim.pallas.views import bitcast, reshaped

    narrow = spec_of((8, 4), "int16")
    place = np.arange(32).reshape(8, 4)
    words = bitcast(narrow.whole, "int32")
    assert words.sub(((1, 2), 3)).elements().tolist() == sorted(place[2:6, 3].tolist())
    halves = reshaped(words, (2, 2, 4)).sub((1, 0))
    assert halves.elements().tolist() == sorted(place[4:6].ravel().tolist())
    wide = spec_of((4, 4), "int32")
    assert bitcast(wide.whole, "int16").sub(((1, 2),)).elements().tolist() == list(range(8))


def test_a_view_races_like_the_memory_it_covers() -> None:
    def kernel(x_ref: Any, o_ref: Any, v: Any, sem: Any, *, row: int) -> None:
        copy = pltpu.async_copy(x_ref.at[0], v, sem)
        o_ref[...] = v.reshape(2, 8, 128)[1] if row else jnp.zeros((8, 128))
        copy.wait()

    from functools import partial

    options = {"spaces": ["hbm"], "scratch": [pltpu.VMEM((16, 128), jnp.float32), DMA(())]}
    run(partial(kernel, row=0), ((8, 128), np.float32), X, **options)
    with pytest.raises(RaceError, match=r"load of v.reshape\(2, 8, 128\)\[1\] on device \(0,\) meets a copy in flight"):
        run(partial(kernel, row=1), ((8, 128), np.float32), X, **options)


TILES = np.arange(16 * 8 * 128, dtype=np.float32).reshape(16, 8, 128)


@pytest.mark.parametrize("meets", [False, True])
def test_a_part_of_a_reshaped_ref_that_is_no_box(meets: bool) -> None:
    """Tiles 3 to 5 of rows of four: a store to tile 7, in the box around them, is not in their way."""

    def kernel(x_ref: Any, o_ref: Any, v: Any, sem: Any) -> None:
        flat = v.reshape(16, 8, 128)
        flat[...] = jnp.zeros((16, 8, 128))
        copy = pltpu.make_async_copy(x_ref.at[3:6], flat.at[3:6], sem)
        copy.start()
        flat[4 if meets else 7] = jnp.ones((8, 128))  # meanwhile
        copy.wait()
        o_ref[...] = flat[...]

    options = {"spaces": ["hbm"], "scratch": [pltpu.VMEM((4, 4, 8, 128), jnp.float32), DMA(())]}
    if meets:
        with pytest.raises(RaceError, match=r"store to v.reshape\(16, 8, 128\)\[4\].* meets a copy in flight"):
            run(kernel, ((16, 8, 128), np.float32), TILES, **options)
    else:
        out = run(kernel, ((16, 8, 128), np.float32), TILES, **options)
        want = np.zeros_like(TILES)
        want[3:6], want[7] = TILES[3:6], 1
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("is_enough", [True, False])
def test_a_wait_for_several_copies_may_leave_the_ref_that_says_how_many(is_enough: bool) -> None:
    """A wait needs a semaphore and a number of bytes; it accesses nothing."""

    def kernel(n_ref: Any, x_ref: Any, o_ref: Any, v: Any, sem: Any) -> None:
        for i in range(4):
            pltpu.make_async_copy(x_ref.at[i], v.at[i], sem).start()
        rows = v.at[0, pl.ds(0, n_ref[0])]
        pltpu.make_async_copy(rows, rows, sem).wait()
        pltpu.sync_copy(v, o_ref)

    options = {"spaces": ["smem", "hbm"], "out_spaces": ["hbm"]}
    options["scratch"] = [pltpu.VMEM((4, 8, 128), jnp.float32), DMA(())]
    x, rows = (
        np.random.default_rng(0).normal(size=(4, 8, 128)).astype(np.float32),
        np.array([32 if is_enough else 40], np.int32),
    )
    if is_enough:
        np.testing.assert_array_equal(run(kernel, (x.shape, np.float32), rows, x, **options), x)
        return
    with pytest.raises(DeadlockError, match="waits for 20480 B on sem"):
        run(kernel, (x.shape, np.float32), rows, x, **options)


@pytest.mark.parametrize("verb", ["load", "store"])
@pytest.mark.parametrize("meets", [False, True])
@pytest.mark.parametrize("ragged", [False, True], ids=["box", "no box"])
def test_a_masked_access_touches_what_its_mask_selects(verb: str, meets: bool, ragged: bool) -> None:
    def kernel(x_ref: Any, o_ref: Any, v: Any, sem: Any) -> None:
        v[...] = jnp.zeros((16, 128))
        copy = pltpu.make_async_copy(x_ref.at[0, pl.ds(0, 8)], v.at[pl.ds(0, 8)], sem)
        copy.start()
        rows = jax.lax.broadcasted_iota(jnp.int32, (16, 128), 0)
        lanes = jax.lax.broadcasted_iota(jnp.int32, (16, 128), 1)
        mask = rows >= (7 if meets else 8)
        if ragged:
            mask = mask & ((lanes + rows) % 3 == 0)
        if verb == "load":
            o_ref[...] = pltpu.load(v.at[...], mask=mask)  # masked load
            copy.wait()
        else:
            pltpu.store(v.at[...], jnp.ones((16, 128)), mask=mask)  # masked store
            copy.wait()
            o_ref[...] = v[...]

    options = {"spaces": ["hbm"], "scratch": [pltpu.VMEM((16, 128), jnp.float32), DMA(())]}
    if meets:
        with pytest.raises(RaceError, match="load of" if verb == "load" else "store to") as caught:
            run(kernel, ((16, 128), np.float32), X, **options)
        assert ("where a mask selects" in str(caught.value)) == ragged
        return
    out = run(kernel, ((16, 128), np.float32), X, **options)
    mask = np.arange(16)[:, None] + 0 * np.arange(128) >= 8
    if ragged:
        mask &= (np.arange(16)[:, None] + np.arange(128)) % 3 == 0
    if verb == "store":
        want = np.where(mask, 1, 0)
        want[:8] = X[0, :8]
        np.testing.assert_array_equal(out, want)
    else:
        assert (out[mask] == 0).all()


@pytest.mark.parametrize("meets", [False, True])
@pytest.mark.parametrize("way", ["at once", "behind a wait", "in a branch"])
def test_without_data_a_mask_from_places_alone_is_exact(way: str, meets: bool) -> None:
    """Rows from one on that a loop counts; a copy is on its way to the rows before."""

    def kernel(x_ref: Any, o_ref: Any, v: Any, sem: Any, other: Any) -> None:
        copy = pltpu.make_async_copy(x_ref.at[0, pl.ds(0, 8)], v.at[pl.ds(0, 8)], sem)
        copy.start()

        @pl.loop(0, 3)
        def _(turn: Any) -> None:
            rows = jax.lax.broadcasted_iota(jnp.int32, (16, 128), 0)
            if way == "behind a wait":
                pltpu.async_copy(x_ref.at[0, pl.ds(0, 8)], v.at[pl.ds(8, 8)], other).wait()
            mask = rows >= turn + (7 if meets else 8)
            if way == "in a branch":
                pl.when(turn < 2)(lambda: pltpu.store(v.at[...], jnp.ones((16, 128)), mask=mask))
            else:
                pltpu.store(v.at[...], jnp.ones((16, 128)), mask=mask)

        copy.wait()
        pltpu.sync_copy(v, o_ref)

    options = {"spaces": ["hbm"], "out_spaces": ["hbm"], "data": False}
    options["scratch"] = [pltpu.VMEM((16, 128), jnp.float32), DMA(()), DMA(())]
    if meets:
        with pytest.raises(RaceError, match="store to"):
            run(kernel, ((16, 128), np.float32), X, **options)
    else:
        run(kernel, ((16, 128), np.float32), X, **options)


def test_without_data_a_mask_from_values_is_all_of_it() -> None:
    def kernel(x_ref: Any, o_ref: Any, v: Any, sem: Any) -> None:
        v[...] = jnp.zeros((16, 128))
        mask = v[...] > 0
        copy = pltpu.async_copy(x_ref.at[0], v, sem)
        pltpu.store(v.at[...], jnp.ones((16, 128)), mask=mask)
        copy.wait()
        o_ref[...] = v[...]

    options = {"spaces": ["hbm"], "scratch": [pltpu.VMEM((16, 128), jnp.float32), DMA(())]}
    run(kernel, ((16, 128), np.float32), X, **options)
    with pytest.raises(RaceError, match="store to"):
        run(kernel, ((16, 128), np.float32), X, data=False, **options)


def test_a_mask_that_selects_nothing_touches_nothing() -> None:
    def kernel(x_ref: Any, o_ref: Any, v: Any, sem: Any) -> None:
        copy = pltpu.async_copy(x_ref.at[0], v, sem)
        pltpu.store(v.at[...], jnp.ones((16, 128)), mask=jnp.zeros((16, 128), jnp.bool_))
        copy.wait()
        o_ref[...] = v[...]

    options = {"spaces": ["hbm"], "scratch": [pltpu.VMEM((16, 128), jnp.float32), DMA(())]}
    np.testing.assert_array_equal(run(kernel, ((16, 128), np.float32), X, **options), X[0])


def test_a_copy_to_a_part_that_is_no_box_leaves_what_lies_between() -> None:
    """It does not overwrite the box around it: an unwaited copy to another part of that is still a race later."""

    def kernel(x_ref: Any, o_ref: Any, v: Any, sem: Any, other: Any) -> None:
        flat = v.reshape(16, 8, 128)
        between = pltpu.async_copy(x_ref.at[6], flat.at[6], sem)
        pltpu.async_copy(x_ref.at[3:6], flat.at[3:6], other).wait()
        o_ref[...] = flat[...]  # tile 6 may not be there
        between.wait()

    options = {"spaces": ["hbm"], "scratch": [pltpu.VMEM((4, 4, 8, 128), jnp.float32), DMA(()), DMA(())]}
    with pytest.raises(RaceError, match=r"load of v.reshape\(16, 8, 128\) "):
        run(kernel, ((16, 8, 128), np.float32), TILES, **options)


def test_an_index_that_leaves_a_view() -> None:
    def kernel(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref.reshape(64, 128)[pl.ds(i_ref[0], 8)]

    run(kernel, ((8, 128), np.float32), np.array([56], np.int32), X, spaces=["smem", "vmem"])
    with pytest.raises(
        OutOfBoundsError, match=r"x_ref.reshape\(64, 128\)\[57:65\]: index 57:65 leaves dimension 0 of size 64"
    ):
        run(kernel, ((8, 128), np.float32), np.array([57], np.int32), X, spaces=["smem", "vmem"])


def test_a_negative_index_is_out_of_bounds_as_on_a_tpu() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[-1]

    with pytest.raises(OutOfBoundsError, match=r"index -1 leaves dimension 0 of size 4.*test_capture_refs.py"):
        run(kernel, ((16, 128), np.float32), X)


def test_masked_loads_and_stores() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        lanes = jax.lax.broadcasted_iota(jnp.int32, (16, 128), 1)
        o_ref[...] = jnp.full((16, 128), -1.0)
        pltpu.store(o_ref.at[...], x_ref[0] * 2, mask=lanes < 100)
        value = pltpu.load(x_ref.at[1], mask=lanes >= 120)
        pltpu.store(o_ref.at[...], value, mask=lanes >= 120)

    out = run(kernel, ((16, 128), np.float32), X)
    np.testing.assert_array_equal(out[:, :100], X[0, :, :100] * 2)
    assert (out[:, 100:120] == -1).all()
    np.testing.assert_array_equal(out[:, 120:], X[1, :, 120:])


def test_adding_to_a_ref() -> None:
    from jax._src.state.primitives import ref_addupdate

    def kernel(x_ref: Any, o_ref: Any, n_ref: Any) -> None:
        o_ref[...] = x_ref[0]
        o_ref[...] += x_ref[1]
        o_ref[2:4] *= 3
        ref_addupdate(o_ref, (slice(0, 8),), x_ref[2, 0:8])
        n_ref[0] = 5
        n_ref[0] += 7
        ref_addupdate(n_ref, (0,), jnp.int32(4))

    out, n = run(kernel, [((16, 128), np.float32), ((1,), np.int32)], X, out_spaces=["vmem", "smem"])
    want = X[0] + X[1]
    want[2:4] *= 3
    want[:8] += X[2, :8]
    np.testing.assert_array_equal(out, want)
    assert n[0] == 16


@pytest.mark.parametrize(
    "dtype", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float8_e4m3fn", "float8_e5m2", "bool", "int8"]
)
def test_small_types(dtype: str) -> None:
    def kernel(x_ref: Any, o_ref: Any, v: Any, sem: Any) -> None:
        pltpu.async_copy(x_ref.at[pl.ds(0, 32)], v, sem).wait()
        value = v[...]
        o_ref[0:32] = jnp.where(value.astype(jnp.float32) > 1, value, jnp.zeros_like(value))
        o_ref[32:64] = x_ref[32:64]

    most = 2 if "2" in dtype[:5] else 7
    x = jnp.asarray(np.random.default_rng(0).integers(0, most, (64, 128)), jnp.int32).astype(dtype)
    out = run(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), x, scratch=[pltpu.VMEM((32, 128), x.dtype), DMA(())])
    want = np.array(x)
    want[:32][want[:32].astype(np.float32) <= 1] = 0
    assert out.dtype == want.dtype
    np.testing.assert_array_equal(out.astype(np.float32), want.astype(np.float32))


@pytest.mark.skipif(not hasattr(pltpu, "annotate"), reason="this jax has no pltpu.annotate")
def test_what_is_said_of_a_ref_for_the_compiler_changes_nothing() -> None:
    def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
        said = pltpu.annotate(o_ref, no_hazard=True)
        pltpu.async_copy(pltpu.annotate(x_ref.at[0], no_hazard=True), said, sem).wait()
        said[...] += pltpu.annotate(x_ref.at[1], no_bank_conflict=True)[...]

    out = run(kernel, ((16, 128), np.float32), X, scratch=[DMA(())], spaces=["vmem"], out_spaces=["vmem"])
    np.testing.assert_array_equal(out, X[0] + X[1])


def test_shapes_without_dimensions_and_of_one_element() -> None:
    def kernel(x_ref: Any, s_ref: Any, o_ref: Any, t_ref: Any, v: Any) -> None:
        v[...] = x_ref[...] * s_ref[0, 0]
        o_ref[...] = v[...] + x_ref[0, 0]
        o_ref[0, 0] = o_ref[0, 0] + 0.5
        t_ref[...] = s_ref[0, 0] * 2

    out, t = run(
        kernel, [((1, 1), np.float32), ((), np.float32)], np.full((1, 1), 3, np.float32),
        np.full((1, 1), 5, np.float32), spaces=["vmem", "smem"], out_spaces=["vmem", "smem"],
        scratch=[pltpu.VMEM((1, 1), jnp.float32)],
    )  # fmt: skip
    assert out.tolist() == [[18.5]]
    assert t.shape == ()
    assert t == 10


def test_a_value_that_was_loaded_does_not_change() -> None:
    def kernel(x_ref: Any, o_ref: Any, v: Any, sem: Any) -> None:
        before = x_ref[0]
        pltpu.async_copy(x_ref.at[1], x_ref.at[0], sem).wait()
        v[...] = before
        held = v[...]
        v[0:8] = held[8:16] * 2
        v[8:16] = held[0:8] + v[0:8]
        o_ref[...] = v[...]

    out = run(kernel, ((16, 128), np.float32), X, scratch=[pltpu.VMEM((16, 128), jnp.float32), DMA(())])
    np.testing.assert_array_equal(out, np.concatenate([X[0, 8:] * 2, X[0, :8] + X[0, 8:] * 2]))


def test_an_array_in_smem_is_read_one_element_at_a_time() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    with pytest.raises(MemorySpaceError, match=r"load of shape \(8,\) on SMEM ref x_ref.*test_capture_refs.py"):
        tpusim.pallas.simulate(call(kernel, ((8,), np.int32), (), ["smem"], ["smem"]))(np.zeros(8, np.int32))


def test_aliased_operands_and_a_loaded_value() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        before = x_ref[...]
        o_ref[...] = before * 2
        o_ref[...] = o_ref[...] + before

    x = X[0].copy()
    for space in ("vmem", "hbm"):
        if space == "hbm":

            def kernel(x_ref: Any, o_ref: Any) -> None:
                def body(v: Any) -> None:
                    pltpu.sync_copy(x_ref.at[0:8], v)
                    v[...] = v[...] * 3
                    pltpu.sync_copy(v, o_ref.at[0:8])

                pl.run_scoped(body, pltpu.VMEM((8, 128), jnp.float32))

        fn = call(kernel, (x.shape, x.dtype), (), [space], [space], input_output_aliases={0: 0})
        out = np.asarray(tpusim.pallas.simulate(fn)(x))
        np.testing.assert_array_equal(x, X[0])
        np.testing.assert_array_equal(out, x * 3 if space == "vmem" else np.concatenate([x[:8] * 3, x[8:]]))


@pytest.mark.parametrize("which", [0, 1, 2, 7])
def test_a_choice_between_refs(which: int) -> None:
    """An index that names none of them takes the last, as the compiler does."""

    def kernel(
        i_ref: Any, a_ref: Any, b_ref: Any, c_ref: Any, o_ref: Any, p_ref: Any, v: Any, w: Any, sem: Any
    ) -> None:
        which = i_ref[0]
        source = pl.select_ref(which, a_ref.at[0], b_ref.at[1], c_ref.at[2])
        pltpu.async_copy(source.at[pl.ds(which % 2, 8)], v, sem).wait()
        target = pl.select_ref(which, v, w)
        pltpu.async_copy(a_ref.at[3, pl.ds(0, 8)], target, sem).wait()
        o_ref[...] = v[...]
        p_ref[...] = w[...]

    arrays = [X, X + 10_000, X + 20_000]
    scratch = [pltpu.VMEM((8, 128), jnp.float32), pltpu.VMEM((8, 128), jnp.float32), DMA(())]
    out = [((8, 128), np.float32)] * 2
    options: Any = {"spaces": ["smem", "hbm", "hbm", "hbm"], "scratch": scratch}
    first, second = run(kernel, out, np.array([which], np.int32), *arrays, **options)
    chosen = min(which, 2)
    filled = arrays[chosen][chosen, which % 2 :][:8]
    np.testing.assert_array_equal(first, X[3, :8] if which == 0 else filled)
    if which:
        np.testing.assert_array_equal(second, X[3, :8])


def test_a_choice_between_refs_races_with_what_it_chose() -> None:
    def kernel(i_ref: Any, x_ref: Any, o_ref: Any, v: Any, w: Any, sem: Any) -> None:
        copy = pltpu.async_copy(x_ref.at[0, pl.ds(0, 8)], pl.select_ref(i_ref[0], v, w), sem)
        o_ref[...] = v[...]  # too early, if it was chosen
        copy.wait()

    scratch = [pltpu.VMEM((8, 128), jnp.float32), pltpu.VMEM((8, 128), jnp.float32), DMA(())]
    options: Any = {"spaces": ["smem", "hbm"], "scratch": scratch}
    run(kernel, ((8, 128), np.float32), np.array([1], np.int32), X, **options)
    with pytest.raises(RaceError, match=r"load of v on device \(0,\) meets a copy in flight that writes v"):
        run(kernel, ((8, 128), np.float32), np.array([0], np.int32), X, **options)


def test_a_copy_between_different_shapes() -> None:
    def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
        pltpu.async_copy(x_ref.at[0, 0:1], o_ref.at[0:7], sem).wait()

    with pytest.raises(ShapeMismatchError) as caught:
        run(kernel, ((8, 128), np.float32), X, scratch=[DMA])
    assert str(caught.value).startswith(
        "copy from x_ref[0, 0:1] of shape (1, 128) to o_ref[0:7] of shape (7, 128): they must be equal"
    )
    assert "test_capture_refs.py" in str(caught.value)
