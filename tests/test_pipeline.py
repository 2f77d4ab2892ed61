"""Grid pipelines: what captured kernels with blocks compute, against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipelining import TILE, add, blocked, captured, copies, double, numbers

from tpusim.errors import NotModelledError, OutOfBoundsError, RaceError
from tpusim.specs import as_dtype

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
jnp = jax.numpy
pl = pytest.importorskip("jax.experimental.pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu")

pytestmark = pytest.mark.jax


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int32"])
def test_elements_of_every_width(dtype: str) -> None:
    x = numbers(64, 256, dtype=as_dtype(dtype)) % as_dtype(dtype).type(11)
    at = ((32, 128), lambda i, j: (i, j))
    fn = blocked(double, (2, 2), [at], at, x.shape, x.dtype)
    got, result = captured(fn, x)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got.astype(np.float32), 2 * x.astype(np.float32))
    assert result.findings == ()


@pytest.mark.parametrize(
    ("grid", "index_map"),
    [
        ((8,), lambda i: (i // 4, i // 2 % 2, i % 2)),
        ((2, 4), lambda i, j: (i, j // 2, j % 2)),
        ((2, 2, 2), lambda i, j, k: (i, j, k)),
        ((2, 2, 2), lambda i, j, k: (k, j, i)),
    ],
)
def test_grids_of_one_to_three_dimensions(grid: Any, index_map: Any) -> None:
    x = numbers(4, 16, 256)
    at = ((2, *TILE), index_map)
    got, result = captured(blocked(double, grid, [at], at, x.shape), x)
    np.testing.assert_array_equal(got, 2 * x)
    assert len(result.trace.copies) == 16


@pytest.mark.parametrize("in_scratch", [False, True])
def test_a_block_that_is_revisited_keeps_accumulating(in_scratch: bool) -> None:
    def into(o_ref: Any, x_ref: Any, y_ref: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    def kernel(x_ref: Any, y_ref: Any, o_ref: Any, *scratch: Any) -> None:
        if not scratch:
            into(o_ref, x_ref, y_ref)
            return
        into(scratch[0], x_ref, y_ref)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _() -> None:
            o_ref[...] = scratch[0][...]

    x, y = numbers(256, 384), numbers(384, 256)
    fn = blocked(
        kernel,
        (2, 2, 3),
        [((128, 128), lambda i, j, k: (i, k)), ((128, 128), lambda i, j, k: (k, j))],
        ((128, 128), lambda i, j, k: (i, j)),
        (256, 256),
        scratch_shapes=[pltpu.VMEM((128, 128), jnp.float32)] if in_scratch else [],
    )
    got, result = captured(fn, x, y)
    np.testing.assert_array_equal(got, x @ y)
    assert len(result.trace.copies) == 12 + 12 + 4
    assert result.findings == ()


def test_edge_blocks_are_cut_and_the_rest_of_the_window_is_nan() -> None:
    def kernel(x_ref: Any, o_ref: Any, unknown_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1
        unknown_ref[...] = jnp.isnan(x_ref[...]).astype(jnp.float32)

    x = numbers(20, 200)
    spec = pl.BlockSpec(TILE, lambda i, j: (i, j))
    fn = pl.pallas_call(
        kernel,
        grid=(3, 2),
        in_specs=[spec],
        out_specs=[spec, spec],
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((20, 200), (24, 256))],
    )
    (got, unknown), result = captured(fn, x)
    np.testing.assert_array_equal(got, x + 1)
    outside = np.ones((24, 256))
    outside[:20, :200] = 0
    np.testing.assert_array_equal(unknown, outside)
    assert "x_ref[16:20, 128:200] -> x_ref[0:4, 0:72]" in copies(result)
    assert "o_ref[0:4, 0:72] -> o_ref[16:20, 128:200]" in copies(result)


def test_dimensions_that_the_kernel_does_not_see() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        assert x_ref.shape == TILE
        assert o_ref.shape == (1, *TILE)
        o_ref[0] = x_ref[...] * 3

    x = numbers(3, 2, *TILE)
    fn = blocked(
        kernel, (3,), [((None, None, *TILE), lambda i: (i, 1, 0, 0))], ((1, *TILE), lambda i: (2 - i, 0, 0)), (3, *TILE)
    )
    got, _ = captured(fn, x)
    np.testing.assert_array_equal(got, 3 * x[::-1, 1])


def test_blocks_at_elements() -> None:
    x = numbers(40, 128)
    spec = pl.BlockSpec((pl.Element(16), pl.Element(128)), lambda i: (i * 8, 0))
    got, _ = captured(blocked(double, (4,), [spec], ((16, 128), lambda i: (i, 0)), (64, 128)), x)
    np.testing.assert_array_equal(got, np.concatenate([2 * x[8 * i : 8 * i + 16] for i in range(4)]))


def test_blocks_at_elements_with_padding() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.where(jnp.isnan(x_ref[...]), -1.0, x_ref[...])

    x = numbers(16, 128)
    spec = pl.BlockSpec((pl.Element(8, (4, 4)), pl.Element(128)), lambda i: (i * 8, 0))
    got, _ = captured(blocked(kernel, (3,), [spec], (TILE, lambda i: (i, 0)), (24, 128)), x)
    np.testing.assert_array_equal(got, np.pad(x, ((4, 4), (0, 0)), constant_values=-1))


def gather(x_ref: Any) -> Any:
    """Rows of tiles of ``x`` by a table."""

    def kernel(table_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + table_ref[pl.program_id(0)].astype(jnp.float32)

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(5,),
            in_specs=[pl.BlockSpec((1, *TILE), lambda i, table: (table[i], 0, 0))],
            out_specs=pl.BlockSpec((1, *TILE), lambda i, table: (i, 0, 0)),
        ),
        out_shape=jax.ShapeDtypeStruct((5, *TILE), jnp.float32),
    )


@pytest.mark.parametrize("data", [True, False])
def test_a_table_in_smem_chooses_the_blocks(data: bool) -> None:
    table, x = np.array([3, 3, 0, 1, 3], np.int32), numbers(4, *TILE)
    got, result = captured(gather(x), table, x, data=data)
    if data:
        np.testing.assert_array_equal(got, x[table] + table[:, None, None])
    assert copies(result)[0] == "table_ref -> table_ref"
    assert [text for text in copies(result) if text.startswith("x_ref")] == [
        f"x_ref[{row}:{row + 1}] -> x_ref" for row in (3, 0, 1, 3)
    ]


def test_a_block_outside_the_array() -> None:
    with pytest.raises(OutOfBoundsError) as caught:
        captured(gather(None), np.array([0, 1, 2, 4, 3], np.int32), numbers(4, *TILE))
    assert caught.value.finding.message == (
        "x_ref: the index map gives block (4, 0, 0) for grid step (3,); it begins at element (4, 0, 0) and has shape "
        "(1, 8, 128), the array has shape (4, 8, 128)"
    )
    assert caught.value.finding.where.file == __file__


@pytest.mark.parametrize(("windows", "read"), [(1, [0, 5, 5, 5]), (2, [0, 1, 5, 5]), (3, [0, 1, 2, 5])])
def test_when_an_index_map_looks_at_its_table(windows: int, read: list[int]) -> None:
    def kernel(table_ref: Any, x_ref: Any, o_ref: Any) -> None:
        for step in range(1, 4):
            table_ref[step] = 5
        o_ref[...] = x_ref[...]

    fn = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(4,),
            in_specs=[pl.BlockSpec((1, *TILE), lambda i, table: (table[i], 0, 0), pipeline_mode=pl.Buffered(windows))],
            out_specs=pl.BlockSpec((1, *TILE), lambda i, table: (i, 0, 0)),
        ),
        out_shape=jax.ShapeDtypeStruct((4, *TILE), jnp.float32),
    )
    x = numbers(6, *TILE)
    table = np.arange(4, dtype=np.int32)
    got, _ = captured(fn, table, x)
    np.testing.assert_array_equal(got, x[read])
    np.testing.assert_array_equal(table, np.arange(4))


def test_input_and_output_in_one_array() -> None:
    x, y = numbers(64, 128), numbers(64, 128) + 1
    at = (TILE, lambda i: (i, 0))
    fn = blocked(add, (8,), [at, at], at, x.shape, input_output_aliases={1: 0})
    got, result = captured(fn, x, y)
    np.testing.assert_array_equal(got, x + y)
    np.testing.assert_array_equal(y, numbers(64, 128) + 1)
    assert copies(result)[-1] == "o_ref -> y_ref[56:64]"
    assert result.findings == ()


def test_a_block_of_an_aliased_array_that_is_fetched_while_it_is_written_back() -> None:
    at = (TILE, lambda i: (i, 0))
    again = (TILE, lambda i: (jnp.maximum(i - 1, 0), 0))
    fn = blocked(double, (4,), [again], at, (32, 128), input_output_aliases={0: 0})
    with pytest.raises(RaceError, match=r"x_ref\["):
        captured(fn, numbers(32, 128))


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_grid_of_a_size_that_is_computed(steps: int) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * pl.num_programs(0).astype(jnp.float32)

    def fn(count: Any, x: Any) -> Any:
        at = (TILE, lambda i, j: (i, j))
        return blocked(kernel, (count, 2), [at], at, x.shape)(x)

    x = numbers(32, 256)
    got, result = captured(fn, np.int32(steps), x)
    np.testing.assert_array_equal(got[: 8 * steps], steps * x[: 8 * steps])
    assert np.isnan(got[8 * steps :]).all()
    assert len(result.trace.copies) == 4 * steps


def test_vmap_adds_a_grid_dimension() -> None:
    def kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        place = 10 * pl.program_id(0) + pl.num_programs(0)
        o_ref[...] = x_ref[...] + y_ref[...] + place.astype(jnp.float32)

    x, y = numbers(3, 16, 128), numbers(16, 128)
    at = (TILE, lambda i: (i, 0))
    fn = jax.vmap(blocked(kernel, (2,), [at, at], at, (16, 128)), in_axes=(0, None))
    got, _ = captured(fn, x, y)
    place = np.repeat([2, 12], 8)[:, None]
    np.testing.assert_array_equal(got, x + y + place)


def test_blocks_in_smem() -> None:
    def kernel(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * s_ref[0, 1].astype(jnp.float32)

    s, x = np.arange(12, dtype=np.int32).reshape(4, 3), numbers(32, 128)
    scalars = pl.BlockSpec((1, 3), lambda i: (i, 0), memory_space=pltpu.SMEM)
    fn = blocked(kernel, (4,), [scalars, (TILE, lambda i: (i, 0))], (TILE, lambda i: (i, 0)), x.shape)
    got, _ = captured(fn, s, x)
    np.testing.assert_array_equal(got, x * np.repeat(s[:, 1], 8)[:, None])


def test_arrays_that_are_passed_whole() -> None:
    def kernel(x_ref: Any, whole_ref: Any, o_ref: Any, sem: Any) -> None:
        step = pl.program_id(0)
        copy = pltpu.make_async_copy(x_ref.at[step], o_ref, sem)
        copy.start()
        copy.wait()
        o_ref[...] += whole_ref[step]

    x, whole = numbers(4, *TILE), numbers(4, *TILE) + 5
    fn = blocked(
        kernel,
        (4,),
        [pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec()],
        ((None, *TILE), lambda i: (i, 0, 0)),
        x.shape,
        scratch_shapes=[pltpu.SemaphoreType.DMA(())],
    )
    got, result = captured(fn, x, whole)
    np.testing.assert_array_equal(got, x + whole)
    assert copies(result).count("whole_ref -> whole_ref") == 1


def test_a_window_that_is_written_in_parts() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        for row in range(8):
            o_ref[row, :] = x_ref[7 - row, :]
        x_ref[0, :] = jnp.zeros((128,), jnp.float32)
        o_ref[7, :] = o_ref[7, :] + x_ref[0, :]

    x = numbers(24, 128)
    at = (TILE, lambda i: (i, 0))
    got, _ = captured(blocked(kernel, (3,), [at], at, x.shape), x)
    np.testing.assert_array_equal(got, x.reshape(3, 8, 128)[:, ::-1].reshape(24, 128))
    assert x[0, 1] == 1


def test_a_new_block_has_never_been_written() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(0) < 2)
        def _() -> None:
            o_ref[...] = x_ref[...]

    x = numbers(32, 128)
    at = (TILE, lambda i: (i, 0))
    got, _ = captured(blocked(kernel, (4,), [at], at, x.shape), x)
    np.testing.assert_array_equal(got[:16], x[:16])
    assert np.isnan(got[16:]).all()


def test_values_of_a_window_live_on_when_it_changes() -> None:
    def kernel(x_ref: Any, o_ref: Any, last_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            last_ref[...] = jnp.zeros_like(last_ref)

        before = last_ref[...]
        last_ref[...] = x_ref[...]
        o_ref[...] = before + last_ref[...]

    x = numbers(32, 128)
    at = (TILE, lambda i: (i, 0))
    fn = blocked(kernel, (4,), [at], at, x.shape, scratch_shapes=[pltpu.VMEM(TILE, jnp.float32)])
    got, _ = captured(fn, x)
    np.testing.assert_array_equal(got, x + np.pad(x, ((8, 0), (0, 0)))[:32])


def test_a_stored_value_does_not_follow_the_buffer_it_came_from() -> None:
    def kernel(x_ref: Any, o_ref: Any, buffer_ref: Any) -> None:
        buffer_ref[...] = x_ref[...]
        o_ref[...] = buffer_ref[...]
        buffer_ref[0:1, :] = jnp.zeros((1, 128), jnp.float32)

    x = numbers(32, 128)
    at = (TILE, lambda i: (i, 0))
    got, _ = captured(blocked(kernel, (4,), [at], at, x.shape, scratch_shapes=[pltpu.VMEM(TILE, jnp.float32)]), x)
    np.testing.assert_array_equal(got, x)


def test_not_modelled() -> None:
    at = (TILE, lambda i: (i, 0))
    specs = {
        "use_lookahead": pl.BlockSpec(*at, pipeline_mode=pl.Buffered(2, use_lookahead=True)),
        "BoundedSlice": pl.BlockSpec((pl.BoundedSlice(8), 128), lambda i: (pl.ds(8 * i, 8), 0)),
        "memory space ANY": pl.BlockSpec(*at, memory_space=pl.ANY),
    }
    for says, spec in specs.items():
        with pytest.raises(NotModelledError, match=says) as caught:
            captured(blocked(double, (2,), [spec], at, (16, 128)), numbers(16, 128))
        assert Path(caught.value.finding.where.file).parent == Path(__file__).parent
