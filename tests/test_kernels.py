"""Every kernel of ``kernels/``: right on the simulator on many meshes, and with equal data through real Pallas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim.bounds import MeshBounds
from tpusim.job.check import compare as job_compare
from tpusim.kernel_file import load_file
from tpusim.options import RunOptions
from tpusim.result import Result
from tpusim.specs import as_dtype

FOLDER = Path(__file__).parent.parent / "kernels"
FILES = sorted(FOLDER.glob("*.py"))
ONE_AXIS = [f.stem for f in FILES if load_file(str(f)).kernel.axes == ("x",)]
TWO_AXES = [f.stem for f in FILES if load_file(str(f)).kernel.axes == ("x", "y")]
COPIES = {"right_permute", "ring_all_gather", "ring_all_gather_bidir", "all_to_all", "barrier", "torus_all_gather"}
"""Kernels that only move data: equal to the bit, for every dtype and shape."""


def mesh_of(devices: int | tuple[int, ...]) -> dict[str, int]:
    return {"x": devices} if isinstance(devices, int) else dict(zip("xy", devices, strict=True))


def check(name: str, devices: Any, slice_: str, options: dict[str, Any] | None = None, **inputs: Any) -> Result:
    """Run a kernel file on a mesh; its data must be the reference's and its time above the lower bound."""
    file = load_file(str(FOLDER / f"{name}.py"))
    arrays = file.inputs(devices=devices, **inputs)
    run = {"slice": slice_, "mesh": mesh_of(devices), **(options or {})}
    result = file.kernel.simulate(*arrays, **run)
    assert [f for f in result.findings if f.kind != "routing"] == []
    compare(name, result.outputs, file.reference(*arrays, devices=devices))
    place = RunOptions.of(run).place(file.kernel.axes)
    bound = file.lower_bound(MeshBounds(place.slice, place.chip, place.axis_sizes, place.devices), *arrays)
    assert 0 <= bound <= result.time
    return result


def compare(name: str, outputs: Any, expected: Any) -> None:
    """Exact for copies and integers; else within the rounding of the coarser of the two computations."""
    wanted = expected if isinstance(expected, tuple) else (expected,)
    assert len(outputs) == len(wanted)
    for got, want in zip(outputs, wanted, strict=True):
        got, want = np.asarray(got), np.asarray(want)
        assert got.shape == want.shape
        if name in COPIES or got.dtype.kind in "iu":
            np.testing.assert_array_equal(got, want.astype(got.dtype))
            continue
        left, right = got.astype(np.float64), want.astype(np.float64)
        rounding = 0.02 if got.dtype.itemsize == 2 else 2e-4
        assert np.abs(left - right).max() <= rounding * max(1.0, np.abs(right).max())


@pytest.mark.parametrize("name", ONE_AXIS)
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 5, 8, 11])
def test_one_axis_kernel_is_right(name: str, devices: int) -> None:
    check(name, devices, "v5e:4x4")


@pytest.mark.parametrize("name", TWO_AXES)
@pytest.mark.parametrize("devices", [(1, 1), (2, 2), (1, 4), (3, 1), (2, 3), (4, 4), (3, 5)])
def test_two_axis_kernel_is_right(name: str, devices: tuple[int, int]) -> None:
    check(name, devices, "v5e:4x4", {"layout": "row-major"})


@pytest.mark.parametrize("name", ONE_AXIS)
@pytest.mark.parametrize("slice_", ["v4:2x2x2", "v5p:2x2x1", "v6e:2x4", "v7x:2x2x1"])
def test_every_chip(name: str, slice_: str) -> None:
    check(name, 4, slice_, dtype="bfloat16")


@given(
    name=st.sampled_from(sorted(COPIES - {"torus_all_gather"})),
    devices=st.integers(1, 9),
    dtype=st.sampled_from(["float32", "bfloat16", "int32", "int8", "float16"]),
    rows=st.integers(1, 3),
    columns=st.sampled_from([128, 256, 384]),
    seed=st.integers(0, 1000),
    slice_=st.sampled_from(["v5e:4x4", "v6e:4x4", "v5p:2x2x4", "v7x:2x2x2"]),
)
def test_moving_collectives_against_numpy(
    name: str, devices: int, dtype: str, rows: int, columns: int, seed: int, slice_: str
) -> None:
    check(name, devices, slice_, shape=(32 * rows, columns), dtype=dtype, seed=seed)


@pytest.mark.parametrize("name", ["all_gather_matmul", "matmul_pipeline", "matmul_reduce_scatter", "ring_attention"])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "uint8", "int16", "float8_e5m2", "float64"])
def test_products_saturate_in_small_integers(name: str, dtype: str) -> None:
    shape = {} if name == "ring_attention" else {"shape": (64, 2048)}  # sums beyond what int8 holds
    file = load_file(str(FOLDER / f"{name}.py"))
    arrays = file.inputs(devices=2, dtype=dtype, **shape)
    result = file.kernel.simulate(*arrays, slice="v5e:2x2", mesh=2)
    assert result.outputs is not None
    check = job_compare(result.outputs, file.reference(*arrays, devices=2))
    assert not check.is_wrong, check.text


@given(
    name=st.sampled_from(["ring_reduce_scatter", "all_reduce"]),
    devices=st.integers(1, 9),
    dtype=st.sampled_from(["float32", "bfloat16", "int32"]),
    rows=st.integers(1, 3),
    columns=st.sampled_from([128, 256]),
    seed=st.integers(0, 1000),
)
def test_reducing_collectives_against_numpy(
    name: str, devices: int, dtype: str, rows: int, columns: int, seed: int
) -> None:
    file = load_file(str(FOLDER / f"{name}.py"))
    shape = (32 * rows * (devices if name == "all_reduce" else 1), columns)
    arrays = file.inputs(devices=devices, shape=shape, dtype=dtype, seed=seed)
    result = file.kernel.simulate(*arrays, slice="v5e:4x4", mesh=devices)
    compare(name, result.outputs, file.reference(*arrays, devices=devices))


@pytest.mark.parametrize("name", sorted(COPIES | {"ring_reduce_scatter", "all_reduce", "torus_all_reduce"}))
def test_a_faster_link_is_never_slower_and_a_longer_hop_never_faster(name: str) -> None:
    devices: Any = (2, 4) if name in TWO_AXES else 8
    times = [
        check(name, devices, "v5e:2x4", {"set": {key: value}}).time
        for key, value in [
            ("ici.link_bandwidth", 20e9),
            ("ici.link_bandwidth", 40e9),
            ("ici.link_bandwidth", 80e9),
            ("ici.hop_latency", 0.1e-6),
            ("ici.hop_latency", 0.9e-6),
        ]
    ]
    assert times[0] >= times[1] >= times[2]
    assert times[3] <= times[4]


@pytest.mark.parametrize("name", [f.stem for f in FILES])
def test_without_data_it_takes_the_same_time(name: str) -> None:
    devices: Any = (2, 2) if name in TWO_AXES else 4
    file = load_file(str(FOLDER / f"{name}.py"))
    arrays = file.inputs(devices=devices)
    run = {"slice": "v5e:2x2", "mesh": mesh_of(devices)}
    with_data = file.kernel.simulate(*arrays, **run)
    without = file.kernel.simulate(*arrays, **run, data=False)
    assert without.outputs is None
    assert without.time == with_data.time
    assert without.dmas == with_data.dmas
    assert without.bytes == with_data.bytes


@pytest.mark.jax
@pytest.mark.parametrize("name", [f.stem for f in FILES])
def test_real_pallas_gives_the_same_data(name: str, interpret: Any) -> None:
    devices: Any = (2, 2) if name in TWO_AXES else 3
    file = load_file(str(FOLDER / f"{name}.py"))
    arrays = file.inputs(devices=devices, dtype="float32", seed=3)
    mesh = mesh_of(devices)
    through_pallas = interpret(str(FOLDER / f"{name}.py"), mesh, arrays)
    simulated = file.kernel.simulate(*arrays, slice="v5e:2x2", mesh=mesh)
    compare(name, simulated.outputs, tuple(through_pallas))
    compare(name, through_pallas, file.reference(*arrays, devices=devices))


def test_dtypes_have_names_numpy_does_not_know() -> None:
    assert as_dtype("bfloat16").itemsize == 2
