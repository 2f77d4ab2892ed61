"""Compute costs: against the compiler's cycles, monotone in size, cheap to ask."""

import re
from math import prod

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim.chips import chip_names, load_chip
from tpusim.costs import CostTable
from tpusim.costs.ops import ELEMENTWISE, REDUCTIONS
from tpusim.errors import NotModelledError, OptionError

F32, BF16, I32, I8 = (np.dtype(t) for t in (np.float32, ml_dtypes.bfloat16, np.int32, np.int8))
SIMULATED = [name for name in chip_names() if load_chip(name).simulated]

# Cycles of libtpu 0.0.50.1's static profile.
MATMULS = [
    ("v5e", 128, 128, 128, BF16, 194),
    ("v5e", 512, 512, 512, BF16, 2215),
    ("v5e", 512, 512, 512, F32, 2241),
    ("v5e", 512, 512, 512, I8, 1167),
    ("v5e", 8, 512, 512, BF16, 271),
    ("v5e", 256, 1024, 256, BF16, 1192),
    ("v5p", 1024, 256, 512, BF16, 2210),
    ("v6e", 256, 256, 256, BF16, 318),
    ("v6e", 512, 512, 512, BF16, 769),
    ("v6e", 512, 512, 512, I8, 470),
]
ELEMENTWISE_512 = [
    ("v5e", "add", F32, 2, 262),
    ("v5e", "exp", F32, 1, 269),
    ("v5e", "sqrt", F32, 1, 782),
    ("v5e", "div", F32, 2, 907),
    ("v5e", "logistic", F32, 1, 1043),
    ("v5e", "sin", F32, 1, 9520),
    ("v5e", "add", BF16, 2, 230),
    ("v5e", "exp", BF16, 1, 273),
    ("v5e", "shift_left", I32, 1, 262),
    ("v5p", "rsqrt", F32, 1, 599),
    ("v6e", "exp", BF16, 1, 270),
    ("v6e", "div", F32, 2, 270),
    ("v6e", "sqrt", F32, 1, 458),
]


def table(name: str) -> CostTable:
    return CostTable.for_chip(load_chip(name))


@pytest.mark.parametrize(("chip", "m", "k", "n", "dtype", "compiler"), MATMULS)
def test_matmuls_are_within_12_percent_of_the_compiler(chip, m, k, n, dtype, compiler):
    assert table(chip).matmul_cycles(m, k, n, dtype) == pytest.approx(compiler, rel=0.12)


@pytest.mark.parametrize(("chip", "op", "dtype", "operands", "compiler"), ELEMENTWISE_512)
def test_elementwise_with_its_accesses_is_within_8_percent_of_the_compiler(chip, op, dtype, operands, compiler):
    costs, shape = table(chip), (512, 512)
    size = prod(shape) * dtype.itemsize
    cycles = max(
        costs.cycles(op, dtype, (shape,) * operands, shape),
        costs.access_cycles(size * operands, store=False),
        costs.access_cycles(size, store=True),
    )
    assert cycles == pytest.approx(compiler, rel=0.08)


@pytest.mark.parametrize(
    ("op", "axes", "out_shape", "compiler"),
    [
        ("reduce_sum", (1,), (512,), 295),
        ("reduce_max", (1,), (512,), 293),
        ("reduce_sum", (0,), (512,), 165),
        ("transpose", (1, 0), (512, 512), 930),
        ("roll", None, (512, 512), 804),
    ],
)
def test_operations_across_lanes_miss_only_their_fixed_latency(op, axes, out_shape, compiler):
    cycles = table("v5e").cycles(op, F32, ((512, 512),), out_shape, axes=axes)
    assert compiler - 260 < cycles < compiler
    assert cycles > 0.4 * compiler


def test_float32_at_highest_precision_takes_six_passes():
    assert table("v5e").matmul_cycles(256, 256, 256, F32, passes=6) == pytest.approx(1707, rel=0.01)


def test_narrow_types_go_faster_only_where_the_mxu_has_them():
    fp8 = np.dtype(ml_dtypes.float8_e4m3fn)
    fill = 257
    assert table("v7x").matmul_cycles(512, 512, 512, fp8) - fill == 256
    assert table("v7x").matmul_cycles(512, 512, 512, I8) - fill == 512
    assert table("v6e").matmul_cycles(512, 512, 512, fp8) - fill == 512
    int4 = np.dtype(ml_dtypes.int4)
    assert table("v5e").matmul_cycles(512, 512, 512, int4) - 170 == 512


def test_dot_general_is_a_matmul_with_one_fill_for_the_whole_batch():
    costs = table("v5e")
    one = costs.cycles("dot_general", BF16, ((256, 256), (256, 256)), (256, 256))
    four = costs.cycles("dot_general", BF16, ((4, 256, 256), (4, 256, 256)), (4, 256, 256))
    assert one == costs.matmul_cycles(256, 256, 256, BF16)
    assert four - 170 == 4 * (one - 170)


def test_dot_general_of_shapes_that_do_not_multiply_says_which_form_it_takes():
    with pytest.raises(
        OptionError,
        match=re.escape("dot_general is priced for shapes (..., m, k) and (..., k, n), not ((8, 4), (8, 4))") + "$",
    ):
        table("v5e").cycles("dot_general", F32, ((8, 4), (8, 4)), (8, 8))


@given(
    op=st.sampled_from(sorted(ELEMENTWISE)),
    dtype=st.sampled_from([F32, BF16, I32, I8]),
    chip=st.sampled_from(SIMULATED),
    shape=st.lists(st.integers(1, 300), min_size=0, max_size=3).map(tuple),
    axis=st.integers(0, 2),
    more=st.integers(0, 300),
)
def test_elementwise_costs_at_least_a_cycle_and_never_less_for_a_larger_array(op, dtype, chip, shape, axis, more):
    larger = tuple(size + more if axis == i else size for i, size in enumerate(shape))
    costs = table(chip)
    assert 1 <= costs.cycles(op, dtype, (shape,), shape) <= costs.cycles(op, dtype, (larger,), larger)


@given(
    sizes=st.tuples(*[st.integers(1, 3000)] * 3),
    more=st.tuples(*[st.integers(0, 600)] * 3),
    dtype=st.sampled_from([F32, BF16, I8]),
    chip=st.sampled_from(SIMULATED),
)
def test_matmuls_never_cost_less_for_larger_sizes_or_beat_the_peak(sizes, more, dtype, chip):
    costs = table(chip)
    larger = tuple(a + b for a, b in zip(sizes, more, strict=True))
    cycles = costs.matmul_cycles(*sizes, dtype)
    assert cycles <= costs.matmul_cycles(*larger, dtype)
    if dtype == BF16:
        assert cycles * load_chip(chip).core.mxu_flops_per_cycle.integer >= 2 * prod(sizes)


@given(
    op=st.sampled_from(sorted(REDUCTIONS)),
    shape=st.lists(st.integers(1, 200), min_size=1, max_size=4).map(tuple),
    data=st.data(),
)
def test_reductions_are_priced_over_any_axes_and_grow_with_the_lanes(op, shape, data):
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    out_shape = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    costs = table("v5p")
    wider = (*shape[:-1], shape[-1] + 128)
    kept = out_shape if len(shape) - 1 in axes else (*out_shape[:-1], out_shape[-1] + 128)
    small = costs.cycles(op, F32, (shape,), out_shape, axes=axes)
    assert 1 <= small <= costs.cycles(op, F32, (wider,), kept, axes=axes)
    assert costs.cycles(op, F32, (shape,), out_shape) >= 1


def test_reduced_axes_are_inferred_from_the_shapes():
    costs = table("v5e")
    lanes = costs.cycles("reduce_sum", F32, ((64, 1024),), (64,))
    assert lanes == costs.cycles("reduce_sum", F32, ((64, 1024),), (64,), axes=(1,))
    assert lanes == costs.cycles("reduce_sum", F32, ((64, 1024),), (64, 1))
    rows = costs.cycles("reduce_sum", F32, ((64, 1024),), (1024,))
    assert rows == costs.cycles("reduce_sum", F32, ((64, 1024),), (1024,), axes=(0,))
    assert rows == costs.cycles("reduce_sum", F32, ((64, 1024),), (1024,), axes=(-2,))


def test_broadcasts_cost_only_along_lanes():
    costs = table("v5e")
    assert costs.cycles("broadcast_in_dim", F32, ((1, 512),), (512, 512), axes=(0, 1)) == 1
    assert costs.cycles("broadcast_in_dim", F32, ((),), (512, 512), axes=()) == 1
    assert costs.cycles("broadcast_in_dim", F32, ((512, 1),), (512, 512), axes=(0, 1)) > 100
    assert costs.cycles("broadcast_in_dim", F32, ((512,),), (512, 512), axes=(0,)) > 100
    assert costs.cycles("broadcast_in_dim", F32, ((512,),), (512, 512), axes=(1,)) == 1


def test_reshapes_and_transposes_that_leave_the_tiles_alone_are_free():
    costs = table("v5e")
    assert costs.cycles("reshape", F32, ((4, 64, 128),), (256, 128)) == 1
    assert costs.cycles("reshape", F32, ((64, 128),), (1, 64, 128)) == 1
    assert costs.cycles("reshape", F32, ((64, 128),), (8192,)) > 1
    assert costs.cycles("reshape", F32, ((100, 4, 128),), (400, 128)) > 1
    assert costs.cycles("transpose", F32, ((2, 4, 64, 128),), (4, 2, 64, 128), axes=(1, 0, 2, 3)) == 1
    assert costs.cycles("transpose", F32, ((2, 4, 64, 128),), (4, 2, 64, 128)) == 1
    assert costs.cycles("transpose", F32, ((64, 128),), (128, 64)) > 1


@pytest.mark.parametrize(
    ("source", "target", "cycles"), [(F32, BF16, 32), (BF16, F32, 64), (F32, I8, 496), (I8, BF16, 160), (I32, F32, 64)]
)
def test_casts_cost_by_the_widths_of_both_types(source, target, cycles):
    shape = (512, 512)
    assert table("v5e").cycles("convert_element_type", source, (shape,), shape, out_dtype=target) == cycles


@pytest.mark.parametrize(("source", "target"), [(I8, F32), (BF16, I8), (np.dtype(bool), F32)])
def test_casts_the_table_lacks_go_through_32_bits(source, target):
    costs, shape = table("v6e"), (256, 256)
    assert costs.cycles("convert_element_type", source, (shape,), shape, out_dtype=target) > 1


def test_padding_counts_whole_registers():
    costs = table("v5e")
    assert costs.cycles("div", F32, ((9, 129),) * 2, (9, 129)) == costs.cycles("div", F32, ((16, 256),) * 2, (16, 256))
    assert costs.cycles("div", F32, ((), ()), ()) == costs.cycles("div", F32, ((8, 128),) * 2, (8, 128))


def test_types_without_vector_units_of_their_own_cost_their_unpacking():
    v5e, v6e, shapes = table("v5e"), table("v6e"), ((512, 512), (512, 512))
    slots = v5e.slots("max", BF16, shapes, (512, 512))
    assert slots["VALU"] == v5e.slots("add", BF16, shapes, (512, 512))["VALU"], "derived as the compiler's own row"
    assert v6e.cycles("max", BF16, shapes, (512, 512)) < v5e.cycles("max", BF16, shapes, (512, 512))
    for narrow in (I8, np.dtype(ml_dtypes.int4)):
        assert v5e.slots("add", narrow, shapes, (512, 512))["VALU"] > 0


def test_an_unknown_operation_is_priced_as_add():
    costs, shape = table("v5e"), (512, 512)
    assert not costs.known("frobnicate")
    assert costs.cycles("frobnicate", F32, (shape, shape), shape) == costs.cycles("add", F32, (shape, shape), shape)
    names = (
        "add sub mul div max min exp log tanh logistic rsqrt sqrt sin cos pow integer_pow neg abs sign floor ceil "
        "round select_n eq ne lt le gt ge and or xor not shift_left shift_right_logical convert_element_type "
        "broadcast_in_dim reshape transpose reduce_sum reduce_max argmax concatenate iota dot_general cumsum copy"
    )
    assert [name for name in names.split() if not costs.known(name)] == []


def test_accesses_fill_the_load_and_store_slots():
    assert table("v5e").access_cycles(3 * 4096, store=False) == 1
    assert table("v5e").access_cycles(3 * 4096, store=True) == 3
    assert table("v7x").access_cycles(4 * 4096, store=True) == 2
    assert table("v6e").access_cycles(0, store=True) == 1
    assert table("v4").scalar_cycles() == 1


def test_fused_slots_add_up_to_less_than_the_cycles_of_the_parts():
    costs, shape = table("v6e"), (512, 512)
    exp, add = costs.slots("exp", F32, (shape,), shape), costs.slots("add", F32, (shape, shape), shape)
    fused = {unit: exp.get(unit, 0) + add.get(unit, 0) for unit in exp | add}
    parts = costs.cycles("exp", F32, (shape,), shape) + costs.cycles("add", F32, (shape, shape), shape)
    assert costs.slot_cycles(fused) < parts


def test_equal_chips_share_one_table_and_overrides_reach_it():
    assert table("v5e") is table("v5e")
    assert repr(table("v4")) == "CostTable(v4, table v5p)"
    slower = CostTable.for_chip(load_chip("v5e", {"core.mxu_fill": 1000}))
    assert slower.matmul_cycles(512, 512, 512, BF16) == 3048
    assert set(table("v5e").provenance) >= {"libtpu", "date", "method"}


def test_a_chip_that_is_only_shown_has_no_costs():
    with pytest.raises(NotModelledError, match=r"^compute costs of chip 8t: it is shown, not simulated$"):
        table("8t")


def test_an_unknown_cost_table_names_the_possible_ones(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('base = "v5e"\ncost_table = "v9"\n')
    with pytest.raises(OptionError, match=r"^chip mine: no cost table 'v9'\. Possible: v5e, v5p, v6e, v7x$"):
        CostTable.for_chip(load_chip(file))
