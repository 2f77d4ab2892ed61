"""A kernel of ``kernels/`` run natively and the same kernel captured from its Pallas form do the same things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpusim.kernel_file import load_file
from tpusim.result import Result

FOLDER = Path(__file__).parent.parent / "kernels"
NAMES = sorted(file.stem for file in FOLDER.glob("*.py"))
COMPUTES = {"all_gather_matmul", "matmul_pipeline", "matmul_reduce_scatter", "ring_attention"}
"""Kernels whose compute a captured program prices as fused segments, a native one operation by operation."""


def operations(result: Result) -> dict[int, list[list[Any]]]:
    """For each device its copies, its waits and its signals, each in program order."""
    found: dict[int, list[list[Any]]] = {}
    for copy in sorted(result.trace.copies, key=lambda c: c.order):
        rows = found.setdefault(copy.core.device, [[], [], []])
        send = None if copy.src_sem is None else str(copy.src_sem)
        place = (str(copy.src_region), str(copy.dst_region), copy.dst.device)
        rows[0].append((*place, copy.dst_region.nbytes, send, str(copy.dst_sem)))
    for wait in result.trace.waits:
        found[wait.core.device][1].append((str(wait.semaphore), wait.amount))
    for signal in result.trace.signals:
        found[signal.core.device][2].append((str(signal.semaphore), signal.semaphore.device, signal.amount))
    return found


@pytest.mark.jax
@pytest.mark.parametrize("name", NAMES)
def test_native_and_captured_agree(name: str) -> None:
    from jax.sharding import AbstractMesh, AxisType

    import tpusim

    file = load_file(str(FOLDER / f"{name}.py"))
    axes = file.kernel.axes
    sizes = (2, 2) if len(axes) == 2 else (4,)
    arrays = file.inputs(devices=sizes if len(axes) == 2 else 4)
    mesh = AbstractMesh(sizes, axes, axis_types=(AxisType.Auto,) * len(axes))
    captured = tpusim.pallas.simulate(file.kernel.pallas(mesh, interpret=True), slice="v5e:2x2")
    outputs = captured(*arrays)
    native = file.kernel.simulate(*arrays, slice="v5e:2x2", mesh=dict(zip(axes, sizes, strict=True)))
    assert captured.result is not None
    assert native.outputs is not None
    assert operations(captured.result) == operations(native)
    assert captured.result.findings == native.findings == ()
    for got, want in zip(outputs if isinstance(outputs, tuple) else (outputs,), native.outputs, strict=True):
        if name in COMPUTES:
            left, right = np.asarray(got, np.float32), np.asarray(want, np.float32)
            assert np.abs(left - right).max() <= 1e-4 * max(1.0, np.abs(right).max())
        else:
            np.testing.assert_array_equal(got, want)
    if name not in COMPUTES:
        assert captured.result.time == pytest.approx(native.time, rel=0.01)
