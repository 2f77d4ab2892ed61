"""Regions of buffers: which elements they hold, whether two meet, and how many bytes a copy of them moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim.chips import load_chip
from tpusim.errors import OutOfBoundsError, ShapeMismatchError
from tpusim.machine.memory import BufferSpec, Region, Tiling
from tpusim.specs import HBM, SMEM, MemorySpace, as_dtype
from tpusim.topology import CHIPS

DTYPES = ("float32", "int32", "bfloat16", "float16", "int8", "float8_e5m2", "int4", "bool")


def tiling(chip: str = "v5e") -> Tiling:
    spec = load_chip(chip)
    return Tiling({bits: spec.tile(bits)[0] for bits in (32, 16, 8, 4)}, spec.dma.short_run.integer)


def whole(shape: tuple[int, ...], dtype: str = "float32", space: MemorySpace = HBM, chip: str = "v5e") -> Region:
    return BufferSpec(0, "buffer", space, shape, as_dtype(dtype), tiling(chip)).whole


def elements(region: Region) -> set[int]:
    numbers = np.arange(np.prod(region.spec.shape, dtype=int)).reshape(region.spec.shape)
    return set(np.ravel(numbers[region.index]).tolist())


@st.composite
def parts(draw: Any, size: int) -> Any:
    """An int or (start, size, stride) within a dimension."""
    start = draw(st.integers(0, size - 1))
    if draw(st.booleans()):
        return start
    stride = draw(st.integers(1, 3))
    return start, draw(st.integers(0, (size - 1 - start) // stride + 1)), stride


@st.composite
def two_regions(draw: Any) -> tuple[Region, Region]:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    region = whole(shape)
    keys = [tuple(draw(parts(size)) for size in shape[: draw(st.integers(0, len(shape)))]) for _ in range(2)]
    return region.sub(keys[0]), region.sub(keys[1])


@given(two_regions())
def test_regions_meet_where_they_share_an_element(pair):
    a, b = pair
    assert a.overlaps(b) == b.overlaps(a) == bool(elements(a) & elements(b))


@given(two_regions())
def test_a_region_is_what_its_index_takes_of_the_array(pair):
    for region in pair:
        taken = np.zeros(region.spec.shape)[region.index]
        assert taken.shape == region.shape
        assert taken.size == region.size == len(elements(region))
        assert region.nbytes == 4 * region.size
        if region.size:
            assert (region.lo, region.hi) == (min(elements(region)), max(elements(region)) + 1)


@given(st.data())
def test_a_region_of_a_region_is_numpys(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3)))
    region, array = whole(shape), np.arange(np.prod(shape)).reshape(shape)
    for _ in range(data.draw(st.integers(1, 3))):
        if not all(array.shape):
            break
        key = tuple(data.draw(parts(size)) for size in array.shape[: data.draw(st.integers(0, array.ndim))])
        region = region.sub(key)
        array = array[tuple(p if isinstance(p, int) else slice(p[0], p[0] + p[1] * p[2], p[2]) for p in key)]
    assert elements(region) == set(array.ravel().tolist())


@given(two_regions())
def test_the_text_of_a_region_names_its_elements(pair):
    for region in pair:
        array = np.arange(np.prod(region.spec.shape)).reshape(region.spec.shape)
        assert set(np.ravel(eval(str(region), {"buffer": array})).tolist()) == elements(region)


@pytest.mark.parametrize("key", [(4,), (-1,), ((0, 5),), ((2, 2, 2),), ((5, 0),), (0, 8), (0, (1, 8))])
def test_what_leaves_the_buffer_is_refused(key):
    with pytest.raises(OutOfBoundsError):
        whole((4, 8)).sub(key)


@pytest.mark.parametrize("key", [(0, 0, 0), ((0, -1),), ((0, 2, 0),), ((3, 2, -1),)])
def test_what_is_no_index_is_refused(key):
    with pytest.raises(ShapeMismatchError):
        whole((4, 8)).sub(key)


TILE = 4096  # bytes: 8 sublanes x 128 lanes x 32 bits, whatever is packed into them


@pytest.mark.parametrize(
    ("shape", "dtype", "bytes_"),
    [
        ((8, 128), "float32", TILE),
        ((16, 128), "float32", 2 * TILE),
        ((8, 129), "float32", 2 * TILE),
        ((9, 128), "float32", 2 * TILE),
        ((3, 8, 128), "float32", 3 * TILE),
        ((1, 1), "float32", 512),  # few rows: smaller tiles, of a power of two of rows
        ((3, 1, 128), "float32", 3 * 512),
        ((3, 3, 128), "float32", 3 * 4 * 512),
        ((3, 5, 128), "float32", 3 * TILE),
        ((3, 1, 128), "bfloat16", 3 * 512),  # two rows share a 32-bit row
        ((3, 4, 128), "bfloat16", 3 * 2 * 512),
        ((3, 2, 128), "int8", 3 * 512),
        ((16, 128), "bfloat16", TILE),
        ((32, 128), "int8", TILE),
        ((33, 128), "int8", 2 * TILE),
        ((8, 128), "bool", TILE),
        ((1024,), "float32", TILE),  # one dimension: rows of 128, no sublanes
        ((129,), "float32", 1024),
        ((1,), "float32", 512),
        ((), "float32", 512),
        ((1000,), "int8", 1024),
        ((100,), "int8", 512),  # the shortest run of v5e
        ((0, 128), "float32", 0),
    ],
)
def test_bytes_of_whole_arrays_worked_by_hand(shape, dtype, bytes_):
    assert whole(shape, dtype, chip="v6e").wire_bytes == bytes_


@pytest.mark.parametrize(
    ("key", "dtype", "bytes_"),
    [
        (((0, 8),), "float32", TILE),  # whole tiles
        (((8, 16),), "float32", 2 * TILE),
        (((0, 4),), "float32", 4 * 512),  # rows of a tile
        (((6, 4),), "float32", 4 * 512),  # over two tiles
        ((5,), "float32", 512),
        ((5, 7), "float32", 512),  # one element: one row of a tile
        (((0, 8), (0, 64)), "float32", TILE),  # half the lanes
        (((0, 4, 2),), "float32", 4 * 512),  # every second row
        (((0, 2),), "bfloat16", 512),  # two rows share a 32-bit row
        (((1, 2),), "bfloat16", 1024),
        (((0, 1),), "int8", 512),
    ],
)
def test_bytes_of_parts_worked_by_hand(key, dtype, bytes_):
    assert whole((32, 128), dtype, chip="v6e").sub(key).wire_bytes == bytes_


def test_scalar_memory_moves_words():
    assert whole((3,), "int32", SMEM).wire_bytes == 12
    assert whole((3,), "int8", SMEM).wire_bytes == 4


@given(st.sampled_from(CHIPS), st.sampled_from(DTYPES), st.lists(st.integers(1, 70), min_size=1, max_size=4))
def test_a_copy_moves_at_least_its_bytes_and_fits_its_padded_buffer(chip, dtype, shape):
    region = whole(tuple(shape), dtype, chip=chip)
    assert region.nbytes <= region.wire_bytes
    assert region.nbytes <= region.spec.padded_bytes


@given(st.sampled_from(CHIPS), st.sampled_from(DTYPES), st.integers(1, 70), st.integers(1, 300), st.data())
def test_more_rows_or_columns_never_move_fewer_bytes(chip, dtype, rows, columns, data):
    region = whole((rows, columns), dtype, chip=chip)
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    smaller = data.draw(st.integers(1, rows - row)), data.draw(st.integers(1, columns - column))
    larger = data.draw(st.integers(smaller[0], rows - row)), data.draw(st.integers(smaller[1], columns - column))
    small, large = (region.sub(((row, a), (column, b))) for a, b in (smaller, larger))
    assert small.nbytes <= small.wire_bytes <= large.wire_bytes
