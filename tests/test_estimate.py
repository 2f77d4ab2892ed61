"""Cycles of operations that are scheduled together, and the machine as the compiler sees it."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpusim
from tpusim.chips import load_chip
from tpusim.chips.profiles import compiler_profile
from tpusim.costs import CostTable
from tpusim.costs.estimate import Mixture
from tpusim.errors import OptionError

F32, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
OPERATIONS = ["add", "exp", "div", "reduce_sum", "reduce_max", "transpose", "dot_general"]


def mixture(chip="v5e"):
    return Mixture(CostTable.for_chip(load_chip(chip)))


def put(mixed, op, side=256):
    shape = (side, side)
    shapes = (shape,) * (2 if op in ("add", "div", "dot_general") else 1)
    mixed.operation(
        op, F32, shapes, (side,) if op.startswith("reduce") else shape, axes=(1,) if "reduce" in op else None
    )


@given(st.lists(st.sampled_from(OPERATIONS), max_size=8), st.sampled_from(["v5e", "v5p", "v6e", "v7x"]))
def test_more_work_never_takes_less_and_the_middle_is_between_the_ends(operations, chip):
    mixed = mixture(chip)
    before = mixed.estimate()
    for op in operations:
        put(mixed, op)
        after = mixed.estimate()
        assert after.low <= after.mid <= after.high
        assert all(new >= old for new, old in zip(after, before, strict=True))
        before = after


def test_a_copy_goes_its_own_way():
    one = mixture()
    put(one, "reduce_sum")
    other, before = one.copy(), one.estimate()
    put(other, "dot_general")
    other.access(F32, (256, 256), is_store=True)
    assert one.estimate() == before
    assert other.estimate().mid > before.mid


def test_loads_and_stores_hide_behind_a_product():
    shape = (512, 512)
    mixed = mixture()
    mixed.operation("dot_general", BF16, (shape, shape), shape)
    alone = mixed.estimate().mid
    for _ in range(2):
        mixed.access(BF16, shape, is_store=False)
    mixed.access(F32, shape, is_store=True)
    assert mixed.estimate().mid == pytest.approx(alone, abs=10)


def test_products_that_wait_for_each_other_pay_their_fill_each_time():
    shape = (256, 256)
    mixed = mixture()
    for _ in range(3):
        mixed.operation("dot_general", BF16, (shape, shape), shape)
    assert mixed.estimate().mid >= 3 * (256 + 170)


def test_the_sum_of_a_row_is_in_every_lane_already():
    mixed = mixture()
    mixed.operation("reduce_sum", F32, ((256, 512),), (256,), axes=(1,))
    before = mixed.estimate()
    mixed.operation("broadcast_in_dim", F32, ((256,),), (256, 512), axes=(0,))
    assert mixed.estimate() == before
    fresh = mixture()
    fresh.operation("broadcast_in_dim", F32, ((256, 1),), (256, 512), axes=(0, 1))
    assert fresh.estimate().mid > 100


def test_the_profile_has_the_compilers_latencies_and_no_contention():
    chip = compiler_profile("v5e", {"dma.issue": 7})
    assert chip.dma.start_latency_hbm_to_vmem.number == pytest.approx(1142 / 1.5e9)
    assert chip.hbm.bandwidth.number > 1e16
    assert chip.dma.issue.number == 7
    with pytest.raises(OptionError, match=r"^chip='compiler': the compiler tells no latencies of v4\."):
        compiler_profile("v4")


def test_a_run_takes_the_profile_of_its_slices_chip():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1.0

    made = tpusim.Kernel(kernel, out_shape=tpusim.ShapeDtypeStruct((256, 512), "float32"))
    x = np.zeros((256, 512), np.float32)
    usual, profile = (made.simulate(x, slice="v6e:1x1", chip=chip) for chip in (None, "compiler"))
    assert profile.place.chip.dma.start_latency_hbm_to_vmem.number == pytest.approx(561 / 1.75e9)
    assert profile.time != usual.time


def test_the_interval_of_compute_reaches_the_time():
    def kernel(x_ref, o_ref):
        x = x_ref[...]
        for _ in range(40):
            x = tpusim.np.exp(x)
        o_ref[...] = x

    made = tpusim.Kernel(kernel, out_shape=tpusim.ShapeDtypeStruct((256, 512), "float32"))
    result = made.simulate(np.zeros((256, 512), np.float32), slice="v5e:1x1")
    (effect,) = (effect for effect in result.interval.effects if effect.name == "compute cost")
    assert effect.longer_ps > 0.05 * int(result.time)
