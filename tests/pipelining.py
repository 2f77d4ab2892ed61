"""Helpers for tests of grid pipelines: a call with blocks, its run, and the copies of that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tpusim

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
pl = pytest.importorskip("jax.experimental.pallas")

TILE = (8, 128)


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return (np.arange(np.prod(shape)).reshape(shape) % 97).astype(dtype)


def captured(fn: Any, *arrays: Any, **options: Any) -> tuple[Any, Any]:
    """Results of a function with kernels in it, and the ``Result``."""
    program = tpusim.pallas.simulate(fn, **{"slice": "v5e:1x1", **options})
    values = program(*arrays)
    return jax.tree.map(np.asarray, values), program.result


def blocked(kernel: Any, grid: Any, ins: Any, out: Any, shape: Any, dtype: Any = np.float32, **options: Any) -> Any:
    """A ``pallas_call`` with a grid; ``ins`` and ``out`` are (block shape, index map) or BlockSpecs."""
    specs = [spec if isinstance(spec, pl.BlockSpec) else pl.BlockSpec(*spec) for spec in (*ins, out)]
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=specs[:-1],
        out_specs=specs[-1],
        out_shape=jax.ShapeDtypeStruct(shape, dtype),
        **options,
    )


def copies(result: Any) -> list[str]:
    """Source and destination of every copy, in program order."""
    return [f"{copy.src_region} -> {copy.dst_region}" for copy in result.trace.copies]


def moved(result: Any) -> list[tuple[str, str, int]]:
    return [(str(copy.src_region), str(copy.dst_region), copy.dst_region.nbytes) for copy in result.trace.copies]


def double(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + x_ref[...]


def add(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + y_ref[...]
