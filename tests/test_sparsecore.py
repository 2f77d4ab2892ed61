"""Kernels on SparseCores: subcores with memory of their own, gathers and scatters by a list of indices."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpusim
from tpusim.errors import CapacityError, NotModelledError, OptionError, OutOfBoundsError, RaceError, UnwaitedError
from tpusim.explain import what_ifs

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
jnp = jax.numpy
lax = jax.lax
pl = pytest.importorskip("jax.experimental.pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu")
plsc = pytest.importorskip("jax.experimental.pallas.tpu_sc")

pytestmark = pytest.mark.jax

DMA = pltpu.SemaphoreType.DMA
SLICE = "v7x:1x1x1"
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(200, 128)).astype(np.float32)
LISTED = RNG.integers(0, 200, 32 * 16).astype(np.int32)


def subcores(cores: int = 2, count: int = 16) -> Any:
    return plsc.VectorSubcoreMesh(
        core_axis_name="core", subcore_axis_name="subcore", num_cores=cores, num_subcores=count
    )


def on_subcores(body: Any, out: Any, scratch: Any = (), mesh: Any = subcores) -> Any:
    """A kernel over the subcores of a device, traced where the chip is known."""
    return lambda *arrays: pl.kernel(
        body, out_type=jax.ShapeDtypeStruct(*out), mesh=mesh(), scratch_types=list(scratch)
    )(*arrays)


def run(fn: Any, *arrays: Any, slice: str = SLICE, **options: Any) -> Any:  # the option's name
    return np.asarray(tpusim.pallas.simulate(fn, slice=slice, **options)(*arrays))


def me() -> Any:
    return lax.axis_index("core") * 16 + lax.axis_index("subcore")


def gather(x_hbm: Any, i_hbm: Any, o_hbm: Any, i_vmem: Any, o_vmem: Any, sem: Any) -> None:
    """16 rows by a list of indices, on each subcore."""
    part = pl.ds(me() * 16, 16)
    pltpu.sync_copy(i_hbm.at[part], i_vmem)
    pltpu.async_copy(x_hbm.at[i_vmem], o_vmem, sem).wait()
    pltpu.sync_copy(o_vmem, o_hbm.at[part])


def scatter(x_hbm: Any, i_hbm: Any, o_hbm: Any, i_vmem: Any, x_vmem: Any, sem: Any) -> None:
    part = pl.ds(me() * 16, 16)
    pltpu.sync_copy(i_hbm.at[part], i_vmem)
    pltpu.sync_copy(x_hbm.at[part], x_vmem)
    pltpu.async_copy(x_vmem, o_hbm.at[i_vmem], sem).wait()


ROWS = (pltpu.VMEM((16,), jnp.int32), pltpu.VMEM((16, 128), jnp.float32), DMA)
OUT = ((512, 128), jnp.float32)


GATHER = tpusim.pallas.simulate(on_subcores(gather, OUT, ROWS), slice=SLICE)
SCATTER = tpusim.pallas.simulate(on_subcores(scatter, OUT, ROWS), slice=SLICE)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 99), span=st.sampled_from([1, 7, 200]))
def test_rows_gathered_by_any_list(seed: int, span: int) -> None:
    indices = np.random.default_rng(seed).integers(0, span, 512).astype(np.int32)
    np.testing.assert_array_equal(GATHER(TABLE, indices), TABLE[indices])


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 99))
def test_rows_scattered_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, indices = rng.normal(size=(512, 128)).astype(np.float32), rng.permutation(512).astype(np.int32)
    want = np.empty_like(x)
    want[indices] = x
    np.testing.assert_array_equal(SCATTER(x, indices), want)


def test_a_gather_is_timed_again_with_the_numbers_of_its_streams() -> None:
    """The what-ifs and the interval of a run against whole runs on such a chip."""
    small = {"data": True, "slice": SLICE}
    program = tpusim.pallas.simulate(on_subcores(gather, OUT, ROWS), detail=True, **small)
    program(TABLE, LISTED)
    runs = {run.change: run.time for run in what_ifs(program.result)}
    assert not [change for change in runs if "between devices" in change or "hop" in change or "link" in change]

    def taken(**values: float) -> int:
        on_it = tpusim.pallas.simulate(on_subcores(gather, OUT, ROWS), set=values, **small)
        on_it(TABLE, LISTED)
        return int(on_it.result.time)

    assert int(runs["no start latency of copies"]) == taken(**{"sparsecore.stream_latency": 0.0})
    time = int(program.result.time)
    effects = {effect.name: effect for effect in program.result.interval.effects}
    assert {"sparsecore.stream_latency", "sparsecore.stream_rate"} <= set(effects)
    assert not [name for name in effects if name.startswith("ici.")]
    for name in ("sparsecore.stream_latency", "dma.short_run"):
        group, _, field = name.partition(".")
        low, high = getattr(getattr(program.result.place.chip, group), field).interval
        assert (effects[name].shorter_ps if name in effects else 0) == time - min(time, taken(**{name: low}))
        assert (effects[name].longer_ps if name in effects else 0) == max(time, taken(**{name: high})) - time


def test_subcores_that_scatter_to_the_same_row_race() -> None:
    indices = np.arange(512, dtype=np.int32)
    indices[511] = 3
    with pytest.raises(RaceError, match=r"o_hbm\[16 indices\].*test_sparsecore.py"):
        run(on_subcores(scatter, OUT, ROWS), np.zeros(OUT[0], np.float32), indices)


def test_an_index_outside_the_table_names_it() -> None:
    indices = LISTED.copy()
    indices[40] = 200
    with pytest.raises(OutOfBoundsError, match=r"index 200 of a list leaves dimension 0 of size 200.*test_sparsecore"):
        run(on_subcores(gather, OUT, ROWS), TABLE, indices)


def test_a_list_that_is_still_on_its_way_races() -> None:
    def body(x_hbm: Any, i_hbm: Any, o_hbm: Any, i_vmem: Any, o_vmem: Any, sem: Any, early: Any) -> None:
        part = pl.ds(me() * 16, 16)
        copy = pltpu.async_copy(i_hbm.at[part], i_vmem, early)
        pltpu.async_copy(x_hbm.at[i_vmem], o_vmem, sem).wait()
        copy.wait()
        pltpu.sync_copy(o_vmem, o_hbm.at[part])

    with pytest.raises(RaceError, match="i_vmem"):
        run(on_subcores(body, OUT, (*ROWS, DMA)), TABLE, LISTED)


def test_a_gather_nobody_waits_for() -> None:
    def body(x_hbm: Any, i_hbm: Any, o_hbm: Any, i_vmem: Any, o_vmem: Any, sem: Any) -> None:
        pltpu.sync_copy(i_hbm.at[pl.ds(me() * 16, 16)], i_vmem)
        pltpu.async_copy(x_hbm.at[i_vmem], o_vmem, sem)

    with pytest.raises((UnwaitedError, tpusim.errors.LifetimeError, tpusim.errors.LeakError)):
        run(on_subcores(body, OUT, ROWS), TABLE, LISTED)


def pipelined_gather(axes: Any, x: Any, indices: Any) -> Any:
    """The windows of a pipeline are the lists."""
    count = indices.shape[0]

    def kernel(x_hbm: Any, i_hbm: Any, o_hbm: Any) -> None:
        pltpu.emit_pipeline(
            lambda i_vmem, o_vmem: pltpu.sync_copy(x_hbm.at[i_vmem.at[0]], o_vmem),
            grid=(count // 8,),
            in_specs=[pl.BlockSpec((1, 8), lambda i: (0, i))],
            out_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            core_axis_name=axes,
            dimension_semantics=(pltpu.PARALLEL,),
        )(i_hbm, o_hbm)

    return on_subcores(kernel, ((count, 128), jnp.float32))(x, indices.reshape(1, count))


def test_a_pipeline_over_all_subcores_gathers() -> None:
    np.testing.assert_array_equal(run(partial(pipelined_gather, ("core", "subcore")), TABLE, LISTED), TABLE[LISTED])


def test_a_pipeline_over_the_subcores_of_each_core_writes_everything_twice() -> None:
    fn = partial(pipelined_gather, "subcore")
    with pytest.raises(RaceError, match="o_hbm"):
        run(fn, TABLE, LISTED)
    np.testing.assert_array_equal(run(fn, TABLE, LISTED, on_finding="record"), TABLE[LISTED])


@pytest.mark.parametrize(("slice_", "lanes"), [("v7x:1x1x1", 16), ("v6e:1x1", 8), ("v5p:2x2x1", 8)])
def test_vectors_are_added_on_every_subcore(slice_: str, lanes: int) -> None:
    def body(x_hbm: Any, y_hbm: Any, o_hbm: Any, x_vmem: Any, y_vmem: Any) -> None:
        part = pl.ds(me() * 64, 64)
        pltpu.sync_copy(x_hbm.at[part], x_vmem)
        pltpu.sync_copy(y_hbm.at[part], y_vmem)

        @pl.loop(0, 64, step=lanes)
        def _(at: Any) -> None:
            x_vmem[pl.ds(at, lanes)] += y_vmem[pl.ds(at, lanes)]

        pltpu.sync_copy(x_vmem, o_hbm.at[part])

    x, y = RNG.normal(size=(2, 2048)).astype(np.float32)
    vector = pltpu.VMEM((64,), jnp.float32)
    got = run(on_subcores(body, (x.shape, jnp.float32), (vector, vector)), x, y, slice=slice_)
    np.testing.assert_array_equal(got, x + y)


def test_scalar_subcores_sum_rows() -> None:
    def body(x_hbm: Any, o_hbm: Any, row: Any) -> None:
        here = lax.axis_index("core")
        pltpu.sync_copy(x_hbm.at[here], row)

        @pl.loop(1, 16)
        def _(at: Any) -> None:
            row[at] += row[at - 1]

        pltpu.sync_copy(row, o_hbm.at[here])

    x = RNG.integers(0, 64, (2, 16)).astype(np.int32)
    mesh = partial(plsc.ScalarSubcoreMesh, axis_name="core", num_cores=2)
    fn = on_subcores(body, (x.shape, jnp.int32), (pltpu.SMEM((16,), jnp.int32),), mesh)
    np.testing.assert_array_equal(run(fn, x), np.cumsum(x, 1))


def test_shared_vmem_is_that_of_one_sparsecore() -> None:
    """Each subcore puts a row into it; the next subcore of its core takes it out after a signal."""

    def body(x_hbm: Any, o_hbm: Any, shared: Any, ready: Any) -> None:
        mine, others = lax.axis_index("subcore"), lax.rem(lax.axis_index("subcore") + 1, 16)
        pltpu.sync_copy(x_hbm.at[me()], shared.at[mine])
        pl.semaphore_signal(ready, 1, device_id={"subcore": others})
        pl.semaphore_wait(ready, 1)
        pltpu.sync_copy(shared.at[lax.rem(mine + 15, 16)], o_hbm.at[me()])

    x = RNG.normal(size=(32, 128)).astype(np.float32)
    scratch = (pltpu.VMEM_SHARED((16, 128), jnp.float32), pltpu.SemaphoreType.REGULAR)
    got = run(on_subcores(body, (x.shape, jnp.float32), scratch), x)
    np.testing.assert_array_equal(got.reshape(2, 16, 128), np.roll(x.reshape(2, 16, 128), 1, 1))


def test_the_memory_of_a_subcore_is_small() -> None:
    def body(o_hbm: Any, big: Any) -> None:
        pltpu.sync_copy(big.at[pl.ds(0, 8)], o_hbm)

    fn = on_subcores(body, ((8, 128), jnp.float32), (pltpu.VMEM((2048, 128), jnp.float32),))
    with pytest.raises(CapacityError, match=r"1\.0 MiB of SUBCORE_VMEM.*a subcore of v7x has 512\.0 KiB"):
        run(fn)


def test_a_chip_without_sparsecores() -> None:
    with tpusim.pallas.internals.chip.simulated_chip("v7x", 1):
        mesh = subcores()
    fn = on_subcores(gather, OUT, ROWS, lambda: mesh)
    with pytest.raises(OptionError, match="runs on 2 x 16 SparseCores x subcores; a device of v5e:1x1 has none"):
        run(fn, TABLE, LISTED, slice="v5e:1x1")


def test_indices_need_data() -> None:
    with pytest.raises(NotModelledError, match="data=False: the kernel needs the value of a list of indices"):
        run(on_subcores(gather, OUT, ROWS), TABLE, LISTED, data=False)


def vectors(body: Any, count: int = 2, scratch: Any = ()) -> Any:
    """A kernel on one subcore's vectors: ``count`` inputs of 64 numbers in its VMEM, and an output."""

    def whole(*refs: Any) -> None:
        inputs, out, (first, *rest) = refs[:count], refs[count], refs[count + 1 :]

        @pl.when(me() == 0)
        def _() -> None:
            for here, there in zip(inputs, rest[:count], strict=True):
                pltpu.sync_copy(here, there)
            pltpu.sync_copy(inputs[0], first)
            body(*rest[:count], first)
            pltpu.sync_copy(first, out)

    memories = [pltpu.VMEM((64,), jnp.int32)] * (count + 1)
    return on_subcores(whole, ((64,), jnp.int32), (*memories, *scratch))


NUMBERS = RNG.integers(0, 64, (2, 64)).astype(np.int32)
LANES = 16


@pytest.mark.parametrize("is_masked", [False, True])
def test_elements_by_a_vector_of_indices(is_masked: bool) -> None:
    def body(x_ref: Any, i_ref: Any, o_ref: Any) -> None:
        @plsc.parallel_loop(0, 64, LANES)
        def _(at: Any) -> None:
            indices = i_ref[pl.ds(at, LANES)]
            mask = indices > 20 if is_masked else None
            found = plsc.load_gather(x_ref, [indices], mask=mask)
            o_ref[pl.ds(at, LANES)] = found if mask is None else jnp.where(mask, found, -1)

    x, indices = NUMBERS
    want = np.where(indices > 20, x[indices], -1) if is_masked else x[indices]
    np.testing.assert_array_equal(run(vectors(body), x, indices), want)


@pytest.mark.parametrize("adds", [False, True])
def test_elements_to_a_vector_of_indices(adds: bool) -> None:
    def body(x_ref: Any, i_ref: Any, o_ref: Any) -> None:
        store = plsc.addupdate_scatter if adds else plsc.store_scatter

        @pl.loop(0, 64, step=LANES)
        def _(at: Any) -> None:
            store(o_ref, [i_ref[pl.ds(at, LANES)]], x_ref[pl.ds(at, LANES)] + 100)

    x, indices = NUMBERS[0], (NUMBERS[1] if adds else np.random.default_rng(1).permutation(64).astype(np.int32))
    want = x.copy()
    if adds:
        np.add.at(want, indices, x + 100)
    else:
        want[indices] = x + 100
    np.testing.assert_array_equal(run(vectors(body), x, indices), want)


def test_an_index_outside_the_vector() -> None:
    def body(x_ref: Any, i_ref: Any, o_ref: Any) -> None:
        o_ref[pl.ds(0, LANES)] = plsc.load_gather(x_ref, [i_ref[pl.ds(0, LANES)] + 64])

    with pytest.raises(OutOfBoundsError, match=r"leaves dimension 0 of size 64"):
        run(vectors(body), *NUMBERS)


def test_what_a_mask_selects_goes_to_the_front() -> None:
    """The numbers below 20 of each vector, one vector behind the other, with a running count."""

    def body(x_ref: Any, i_ref: Any, o_ref: Any) -> None:
        def turn(at: Any, count: Any) -> Any:
            x = x_ref[pl.ds(at, LANES)]
            small = x < 20
            plsc.store_compressed(o_ref.at[pl.ds(count, LANES)], x, mask=small)
            return count + plsc.all_reduce_population_count(small)[0]

        plsc.parallel_loop(0, 48, LANES, carry=jnp.int32(0))(turn)

    x = NUMBERS[0]
    small = x[:48][x[:48] < 20]
    want = np.concatenate([small, x[len(small) :]])
    np.testing.assert_array_equal(run(vectors(body), *NUMBERS), want)


def test_vector_sums_and_updates() -> None:
    def body(x_ref: Any, i_ref: Any, o_ref: Any) -> None:
        x = x_ref[pl.ds(0, LANES)]
        o_ref[pl.ds(0, LANES)] = plsc.cumsum(x, mask=x > 9)
        plsc.addupdate(o_ref.at[pl.ds(16, LANES)], x)
        o_ref[pl.ds(32, LANES)] = plsc.all_reduce_ffs(x > 40)

    x = NUMBERS[0]
    want = x.copy()
    want[:16] = np.cumsum(np.where(x[:16] > 9, x[:16], 0))
    want[16:32] += x[:16]
    want[32:48] = int(np.argmax(x[:16] > 40))
    np.testing.assert_array_equal(run(vectors(body), *NUMBERS), want)


def test_a_histogram() -> None:
    def body(x_ref: Any, i_ref: Any, o_ref: Any) -> None:
        @pl.loop(0, 64, step=LANES)
        def _(at: Any) -> None:
            o_ref[pl.ds(at, LANES)] = jnp.zeros((LANES,), jnp.int32)

        @pl.loop(0, 64, step=LANES)
        def _(at: Any) -> None:
            x = i_ref[pl.ds(at, LANES)]
            counts, last = plsc.scan_count(x, mask=x > 3)
            plsc.addupdate_scatter(o_ref, [x], counts, mask=last)

    x = NUMBERS[1]
    np.testing.assert_array_equal(run(vectors(body), *NUMBERS), np.bincount(x[x > 3], minlength=64))


@pytest.mark.parametrize("waits", [True, False])
def test_subcores_of_a_core_meet(waits: bool) -> None:
    """Each puts a row into shared VMEM and takes its neighbour's: only behind a barrier."""

    def body(x_hbm: Any, o_hbm: Any, shared: Any) -> None:
        mine = lax.axis_index("subcore")
        pltpu.sync_copy(x_hbm.at[me()], shared.at[mine])
        if waits:
            plsc.subcore_barrier()
        pltpu.sync_copy(shared.at[lax.rem(mine + 1, 16)], o_hbm.at[me()])

    x = RNG.normal(size=(32, 128)).astype(np.float32)
    fn = on_subcores(body, (x.shape, jnp.float32), (pltpu.VMEM_SHARED((16, 128), jnp.float32),))
    if not waits:
        with pytest.raises(RaceError, match="shared"):
            run(fn, x)
        return
    np.testing.assert_array_equal(run(fn, x).reshape(2, 16, 128), np.roll(x.reshape(2, 16, 128), -1, 1))


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("is_masked", [False, True])
def test_running_extremes(name: str, is_masked: bool) -> None:
    """What comes before the first element under the mask stays what it is."""
    operation = getattr(pytest.importorskip("jax._src.pallas.mosaic.sc_primitives"), name)  # one of them is not public

    def body(x_ref: Any, i_ref: Any, o_ref: Any) -> None:
        x = x_ref[pl.ds(0, LANES)]
        o_ref[pl.ds(0, LANES)] = operation(x, mask=x % 3 == 1 if is_masked else None)

    x = NUMBERS[0][:LANES] - 32
    want, seen = x.copy(), None
    for at, number in enumerate(x):
        if not is_masked or number % 3 == 1:
            seen = number if seen is None else (max if name == "cummax" else min)(seen, number)
        want[at] = number if seen is None else seen
    np.testing.assert_array_equal(run(vectors(body), NUMBERS[0] - 32, NUMBERS[1])[:LANES], want)


@pytest.mark.parametrize("is_descending", [False, True])
@pytest.mark.parametrize("is_masked", [False, True])
def test_keys_sorted_with_their_values(is_descending: bool, is_masked: bool) -> None:
    def body(x_ref: Any, i_ref: Any, o_ref: Any) -> None:
        x, values = x_ref[pl.ds(0, LANES)], i_ref[pl.ds(0, LANES)]
        mask = {"mask": values > 20} if is_masked else {}
        for place, part in enumerate(plsc.sort_key_val(x, values, descending=is_descending, **mask)):
            o_ref[pl.ds(place * LANES, LANES)] = part.astype(jnp.int32)

    keys, values = np.random.default_rng(3).permutation(64).astype(np.int32) - 20, NUMBERS[1]
    got = run(vectors(body), keys, values).reshape(4, LANES)
    valid = [at for at in range(LANES) if not is_masked or values[at] > 20]
    order = sorted(valid, key=lambda at: keys[at], reverse=is_descending)
    np.testing.assert_array_equal(got[:2, : len(order)], [keys[order], values[order]])
    assert sorted(zip(*got[:2], strict=True)) == sorted(zip(keys[:LANES], values[:LANES], strict=True))
    if is_masked:
        np.testing.assert_array_equal(got[2], np.arange(LANES) < len(order))


@pytest.mark.parametrize("format", ["INTERLEAVED", "COMPRESSED"])
@pytest.mark.parametrize("bits", ["int16", "bfloat16"])
def test_two_vectors_in_one_of_half_the_width(format: str, bits: str) -> None:
    """The elements as they lie in the packed vector, and what comes out of it again."""
    wide, how = (jnp.int32 if bits == "int16" else jnp.float32), getattr(plsc.PackFormat, format)

    def body(x_ref: Any, i_ref: Any, o_ref: Any) -> None:
        a, b = (ref[pl.ds(0, LANES)].astype(wide) for ref in (x_ref, i_ref))
        packed = plsc.pack(a, b, format=how)
        assert packed.dtype == jnp.dtype(bits)
        o_ref[pl.ds(0, 2 * LANES)] = packed.astype(jnp.int32).reshape(2 * LANES)
        for place, part in enumerate(plsc.unpack(packed, format=how)):
            o_ref[pl.ds((2 + place) * LANES, LANES)] = part.astype(jnp.int32)

    x, y = NUMBERS[:, :LANES]
    inside = np.stack([x, y], 1).ravel() if format == "INTERLEAVED" else np.concatenate([x, y])
    np.testing.assert_array_equal(run(vectors(body), *NUMBERS), np.concatenate([inside, x, y]))


@pytest.mark.parametrize("limit", [-1, 30, 64])
def test_elements_from_the_front_go_where_a_mask_is(limit: int) -> None:
    def body(x_ref: Any, i_ref: Any, o_ref: Any) -> None:
        mask = i_ref[pl.ds(0, LANES)] <= limit
        o_ref[pl.ds(0, LANES)] = jnp.where(mask, plsc.load_expanded(x_ref.at[pl.ds(8, LANES)], mask=mask), -1)

    x, mask = NUMBERS[0], NUMBERS[1][:LANES] <= limit
    want = np.full(LANES, -1)
    want[mask] = x[8 : 8 + mask.sum()]
    np.testing.assert_array_equal(run(vectors(body), *NUMBERS)[:LANES], want)


SOME = np.where(RNG.random(512) < 0.4, -1, LISTED).astype(np.int32)


def test_ignored_indices_gather_nothing() -> None:
    """Their rows keep what they held, and the copy is waited for as a whole."""

    def body(x_hbm: Any, i_hbm: Any, o_hbm: Any, i_vmem: Any, o_vmem: Any, sem: Any) -> None:
        part = pl.ds(me() * 16, 16)
        pltpu.sync_copy(i_hbm.at[part], i_vmem)
        pltpu.sync_copy(x_hbm.at[pl.ds(0, 16)], o_vmem)
        pltpu.async_copy(x_hbm.at[plsc.Indices(i_vmem, ignored_value=-1)], o_vmem, sem).wait()
        pltpu.sync_copy(o_vmem, o_hbm.at[part])

    want = np.where(SOME[:, None] < 0, np.tile(TABLE[:16], (32, 1)), TABLE[SOME])
    np.testing.assert_array_equal(run(on_subcores(body, OUT, ROWS), TABLE, SOME), want)


def test_ignored_indices_scatter_nothing() -> None:
    """A subcore that ignores all of its list but the ones of its own rows shares the output with the others."""

    def body(x_hbm: Any, i_hbm: Any, o_hbm: Any, i_vmem: Any, x_vmem: Any, sem: Any) -> None:
        pltpu.sync_copy(i_hbm.at[me()], i_vmem)
        pltpu.sync_copy(x_hbm.at[pl.ds(me() * 16, 16)], x_vmem)
        pltpu.async_copy(x_vmem, o_hbm.at[plsc.Indices(i_vmem, ignored_value=999)], sem).wait()

    x = RNG.normal(size=(512, 128)).astype(np.float32)
    lists = np.full((32, 16), 999, np.int32)
    lists[:, :8] = np.random.default_rng(5).permutation(256).reshape(32, 8)
    want = np.empty((256, 128), np.float32)
    want[lists[:, :8].ravel()] = x.reshape(32, 16, 128)[:, :8].reshape(256, 128)
    got = run(on_subcores(body, ((256, 128), jnp.float32), ROWS), x, lists)
    np.testing.assert_array_equal(got, want)


@pytest.mark.filterwarnings("ignore:jax.experimental.pallas.core_map is deprecated")
def test_a_core_map_over_refs_made_outside() -> None:
    """Refs without a memory space lie in HBM."""

    def fn(*arrays: Any) -> Any:
        x_ref, i_ref, o_ref = (jax.new_ref(array) for array in (*arrays, jnp.zeros(*OUT)))
        pl.core_map(subcores(), scratch_shapes=list(ROWS))(partial(gather, x_ref, i_ref, o_ref))
        return o_ref[...]

    np.testing.assert_array_equal(run(jax.jit(fn), TABLE, LISTED), TABLE[LISTED])


def test_what_has_no_model_says_so() -> None:
    def body(i_hbm: Any, o_hbm: Any, count: Any) -> None:
        plsc.fetch_and_add(count.at[0], jnp.int32(1), subcore_id=jnp.int32(0))

    with pytest.raises(NotModelledError, match=r"primitive sc_fetch_and_add.*test_sparsecore\.py"):
        run(on_subcores(body, OUT, (pltpu.SMEM((1,), jnp.int32),)), LISTED)
