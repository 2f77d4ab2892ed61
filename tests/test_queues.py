"""Copies that count on one flag, in the machine as the compiler sees it and on the chip."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpusim
from tpusim import HBM, VMEM, BlockSpec, SemaphoreType, ShapeDtypeStruct, make_async_copy
from tpusim.chips.profiles import compiler_profile

ROWS = st.integers(1, 64).map(lambda tiles: 8 * tiles)
NO_LIMIT = {"hbm.bandwidth": 1e17}


def reading(rows, flags):
    """Time (ps) of a kernel that reads arrays of so many rows at once, each counting on its flag."""

    def kernel(*refs):
        windows, semaphores = refs[len(rows) + 1 : -1], refs[-1]
        made = [
            make_async_copy(source, window, semaphores.at[flag])
            for source, window, flag in zip(refs, windows, flags, strict=False)
        ]
        for copy in made:
            copy.start()
        for copy in made:
            copy.wait()
        refs[len(rows)][...] = refs[len(rows) + 1][0:8, 0:128]

    scratch = tuple(VMEM((count, 1024), "float32") for count in rows)
    made = tpusim.Kernel(
        kernel,
        out_shape=ShapeDtypeStruct((8, 128), "float32"),
        in_specs=(HBM,) * len(rows),
        scratch_shapes=(*scratch, SemaphoreType.DMA((len(rows),))),
    )
    arrays = [np.zeros((count, 1024), np.float32) for count in rows]
    return lambda **options: int(made.simulate(*arrays, slice="v5e:1x1", data=False, **options).time)


@given(st.lists(ROWS, min_size=2, max_size=4))
def test_the_compiler_has_copies_on_one_flag_move_one_after_the_other(rows):
    together, apart = reading(rows, [0] * len(rows)), reading(rows, range(len(rows)))
    rate = compiler_profile("v5e").dma.rate_hbm_to_vmem.number
    issue_ps = compiler_profile("v5e").dma.issue.number * 1e12 / 1.5e9 * len(rows)
    longer = together(chip="compiler") - apart(chip="compiler")
    expected = 4096 * (sum(rows) - max(rows)) / rate * 1e12
    assert longer == pytest.approx(expected, abs=issue_ps)
    assert together(set=NO_LIMIT) == pytest.approx(apart(set=NO_LIMIT), abs=issue_ps)


def test_every_second_and_third_stream_of_a_grid_have_one_flag():
    def kernel(*refs):
        for ref in refs[6:]:
            ref[...] = refs[0][...]

    at = BlockSpec((8, 128), lambda i: (i, 0))
    arrays = [np.zeros((32, 128), np.float32)] * 6
    arrays[2] = arrays[2][:8]
    made = tpusim.Kernel(
        kernel,
        grid=(4,),
        out_shape=(ShapeDtypeStruct((32, 128), "float32"),) * 3,
        in_specs=(at, at, BlockSpec((8, 128), None), at, at, at),
        out_specs=(at,) * 3,
    )
    result = made.simulate(*arrays, slice="v5e:1x1", mesh=1)
    groups = {}
    for copy in result.trace.copies:
        groups.setdefault(copy.dst_sem.spec.flag, {})[copy.dst_sem.spec.name.removesuffix(".window")] = None
    assert list(map(list, groups.values())) == [
        ["arg0"],
        ["arg1", "arg3"],
        ["arg2"],  # it does not move
        ["arg4", "arg5"],
        ["arg6"],
        ["arg7", "arg8"],
    ]
