"""Grid pipelines: the copies around the steps, what they cost, and that native kernels do the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from capturing import mesh
from pipelining import TILE, add, blocked, captured, copies, double, moved, numbers
from simulating import error_of, run

import tpusim
from tpusim import HBM, SMEM, VMEM, BlockSpec, ShapeDtypeStruct, program_id
from tpusim.errors import CapacityError, OptionError

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
jnp = jax.numpy
pl = pytest.importorskip("jax.experimental.pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu")

pytestmark = pytest.mark.jax


# -- copies --------------------------------------------------------------------------------------------


def test_a_block_is_copied_when_its_index_changes_and_prefetched_before_the_body() -> None:
    x, y = numbers(16, 128), numbers(8, 256)
    fn = blocked(
        add,
        (2, 2),
        [(TILE, lambda i, j: (i, 0)), (TILE, lambda i, j: (0, j))],
        (TILE, lambda i, j: (i, j)),
        (16, 256),
    )
    got, result = captured(fn, x, y)
    np.testing.assert_array_equal(got, np.tile(x, (1, 2)) + np.tile(y, (2, 1)))
    assert copies(result) == [
        "x_ref[0:8] -> x_ref",
        "y_ref[:, 0:128] -> y_ref",
        "y_ref[:, 128:256] -> y_ref",  # for step (0, 1), before the body of (0, 0)
        "o_ref -> o_ref[0:8, 0:128]",
        "x_ref[8:16] -> x_ref",
        "y_ref[:, 0:128] -> y_ref",
        "o_ref -> o_ref[0:8, 128:256]",
        "y_ref[:, 128:256] -> y_ref",
        "o_ref -> o_ref[8:16, 0:128]",
        "o_ref -> o_ref[8:16, 128:256]",
    ]
    windows = [str(copy.dst_sem) for copy in result.trace.copies if str(copy.src_region).startswith("y_ref")]
    assert windows == [f"y_ref.window[{slot}]" for slot in (0, 1, 0, 1)]
    assert {Path(copy.site.file).parent for copy in result.trace.copies} == {Path(__file__).parent}


@pytest.mark.parametrize(("steps", "expected"), [((), 1), ((3,), 1)])
def test_a_whole_array_has_one_window(steps: Any, expected: int) -> None:
    x = numbers(*TILE)
    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    _, result = captured(blocked(double, steps, [whole], whole, x.shape), x)
    assert len(result.trace.copies) == 2
    semaphore = result.trace.copies[0].dst_sem.spec
    assert semaphore.size == expected


def test_a_capacity_finding_counts_every_window() -> None:
    shape = (1032, 1024)
    at = (shape, lambda i: (i, 0))
    x = numbers(2 * 1032, 1024)
    with pytest.raises(CapacityError) as caught:
        captured(blocked(double, (2,), [at], at, x.shape, name="big"), x)
    assert [line.split()[:3] for line in caught.value.finding.message.splitlines()[2:]] == [
        ["x_ref", "(2", "buffers)"],
        ["o_ref", "(2", "buffers)"],
    ]
    one = pl.BlockSpec(*at, pipeline_mode=pl.Buffered(1))
    got, _ = captured(blocked(double, (2,), [one], at, x.shape), x)
    np.testing.assert_array_equal(got, 2 * x)


def test_without_data_the_same_happens() -> None:
    x = numbers(20, 200)
    at = (TILE, lambda i, j: (i, j))
    fn = blocked(double, (3, 2), [at], at, x.shape)
    _, with_data = captured(fn, x)
    _, without = captured(fn, x, data=False)
    assert moved(with_data) == moved(without)
    assert with_data.time == without.time


# -- time ----------------------------------------------------------------------------------------------


def step_us(shape: tuple[int, int], work: int, **options: Any) -> float:
    """Microseconds of one step in steady state of a kernel that reads one block and writes one."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        x = x_ref[...]
        for _ in range(work):
            x = x * x + 1.0
        o_ref[...] = x

    def total(steps: int) -> float:
        at = (shape, lambda i: (i, 0))
        fn = blocked(kernel, (steps,), [at], at, (steps * shape[0], shape[1]))
        _, result = captured(fn, jax.ShapeDtypeStruct((steps * shape[0], shape[1]), jnp.float32), data=False, **options)
        return result.time.us

    return (total(40) - total(20)) / 20


FREE = {
    "dma.start_latency_hbm_to_vmem": 1e-12,
    "dma.start_latency_vmem_to_hbm": 1e-12,
    "dma.rate_hbm_to_vmem": 1e16,
    "dma.rate_vmem_to_hbm": 1e16,
    "hbm.bandwidth": 1e16,
}


@pytest.mark.parametrize(
    ("shape", "work", "bound"),
    [((8, 128), 1, "latency"), ((512, 1024), 1, "bandwidth"), ((256, 512), 400, "compute")],
)
def test_a_step_takes_what_core_latency_or_bandwidth_allow(shape: Any, work: int, bound: str) -> None:
    chip = tpusim.chips.load_chip("v5e")
    nbytes = 4 * shape[0] * shape[1]
    only_reads = {"dma.start_latency_vmem_to_hbm": 1e-12}  # the copy out is waited for a step later
    core = step_us(shape, work, set=FREE)
    transfer = nbytes / min(chip.dma.rate_hbm_to_vmem.number, chip.hbm.bandwidth.number) * 1e6
    latency = chip.dma.start_latency_hbm_to_vmem.number * 1e6 + transfer
    limits = {
        "compute": core,
        "latency": (latency + core) / 2,
        "bandwidth": 2 * nbytes / chip.hbm.bandwidth.number * 1e6,
    }
    assert max(limits, key=lambda name: limits[name]) == bound
    assert step_us(shape, work, set=only_reads) == pytest.approx(limits[bound], rel=0.04)


def test_control_is_charged_for_every_step_and_axis() -> None:
    def total(*grid: int) -> int:
        whole = pl.BlockSpec(memory_space=pltpu.VMEM)
        return captured(blocked(double, grid, [whole], whole, TILE), numbers(*TILE))[1].time.ps

    chip = tpusim.chips.load_chip("v5e")
    axis = chip.core.control_axis.number * 1e12 / chip.clock_hz
    assert total(20, 1) - total(20) == pytest.approx(19 * axis, rel=1e-3)  # that of the first step is hidden
    assert total(20) - total(10) > 10 * chip.core.control_step.number * 1e12 / chip.clock_hz


def test_two_cores_of_a_device_share_a_parallel_dimension() -> None:
    def total(semantics: str, **options: Any) -> int:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            x = x_ref[...]
            for _ in range(400):
                x = x * x + 1.0
            o_ref[...] = x

        at = ((256, 512), lambda i: (i, 0))
        params = pltpu.CompilerParams(dimension_semantics=(semantics,))
        fn = blocked(kernel, (8,), [at], at, (2048, 512), compiler_params=params)
        return captured(fn, numbers(2048, 512), **options)[1].time.ps

    alone = total("arbitrary", slice="v5p:2x2x1")
    assert total("parallel", slice="v5p:2x2x1") / alone == pytest.approx(0.5, abs=0.05)
    assert total("parallel", slice="v5p:2x2x1", cores="split") == alone
    assert total("parallel") == total("arbitrary")


# -- native kernels ------------------------------------------------------------------------------------


def matmul(x_ref: Any, y_ref: Any, scale_ref: Any, o_ref: Any, acc_ref: Any) -> None:
    @tpusim.when(program_id(2) == 0)
    def _() -> None:
        acc_ref[...] = tpusim.np.zeros((128, 128), "float32")

    acc_ref[...] = acc_ref[...] + tpusim.np.dot(x_ref[...], y_ref[...], preferred_element_type="float32")

    @tpusim.when(program_id(2) == 2)
    def _() -> None:
        o_ref[...] = acc_ref[...] * scale_ref[0, 0]


MATMUL = tpusim.Kernel(
    matmul,
    out_shape=ShapeDtypeStruct((256, 256), "float32"),
    grid=(2, 2, 3),
    in_specs=(
        BlockSpec((128, 128), lambda i, j, k: (i, k)),
        BlockSpec((128, 128), lambda i, j, k: (k, j)),
        BlockSpec((1, 1), lambda i, j, k: (0, 0), SMEM),
    ),
    out_specs=BlockSpec((128, 128), lambda i, j, k: (i, j)),
    scratch_shapes=(VMEM((128, 128), "float32"),),
    shard_in=((), (), ()),
    shard_out=((),),
)


def scaled(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2.0


EDGES = tpusim.Kernel(
    scaled,
    out_shape=ShapeDtypeStruct((20, 200), "float32"),
    grid=(3, 2),
    in_specs=BlockSpec(TILE, lambda i, j: (2 - i, j)),
    out_specs=BlockSpec(TILE, lambda i, j: (2 - i, j)),
    shard_in=((),),
    shard_out=((),),
)


@pytest.mark.parametrize(
    ("kernel", "arrays", "expected"),
    [
        (MATMUL, (numbers(256, 384), numbers(384, 256), np.full((1, 1), 2, np.float32)), None),
        (EDGES, (numbers(20, 200),), 2 * numbers(20, 200)),
    ],
)
def test_native_blocks_move_as_captured_ones(kernel: Any, arrays: Any, expected: Any) -> None:
    native = kernel.simulate(*arrays, slice="v5e:1x1", mesh=1)
    got, result = captured(kernel.pallas(mesh(1), interpret=True), *arrays)
    wanted = 2 * (arrays[0] @ arrays[1]) if expected is None else expected
    np.testing.assert_array_equal(native.outputs[0], wanted)
    np.testing.assert_array_equal(got, wanted)
    assert moved(native) == moved(result)
    assert native.findings == result.findings == ()


def test_native_blocks_that_cannot_be() -> None:
    def nothing(x_ref: Any, o_ref: Any) -> None:
        pass

    x = numbers(16, 128)
    out = ShapeDtypeStruct((16, 128), "float32")
    cases = [
        (BlockSpec((8,), lambda i: (i,)), (2,), "has 1 dimensions, the array has shape (16, 128)"),
        (BlockSpec((0, 128), lambda i: (i, 0)), (2,), "must hold positive sizes"),
        (BlockSpec(TILE, lambda i: (i, 0), HBM), (2,), "an array in HBM is passed whole"),
        (BlockSpec(TILE, lambda i: (i, 0)), (), "without a grid there is one step only"),
        (BlockSpec(TILE, lambda i: i), (2,), "its index_map gives 1 indices"),
    ]
    for spec, grid, says in cases:
        error = error_of(OptionError, nothing, x, out_shape=out, in_specs=spec, grid=grid)
        assert says in str(error)
        assert "block shape" in str(error)


def test_native_blocks_may_depend_on_the_device() -> None:
    out = ShapeDtypeStruct(TILE, "float32")
    spec = BlockSpec(TILE, lambda i: (tpusim.axis_index("x"), 0))
    result = run(
        lambda x_ref, o_ref: scaled(x_ref, o_ref), numbers(16, 128), out_shape=out, mesh=2, grid=(1,), in_specs=spec,
        out_specs=BlockSpec(TILE, lambda i: (0, 0)), shard_in=((),),
    )  # fmt: skip
    np.testing.assert_array_equal(result.outputs[0], 2 * numbers(16, 128))
