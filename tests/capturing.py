"""Helpers for tests of captured programs: a kernel as one call, and a mesh without devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def mesh(*sizes: int) -> Any:
    """An abstract mesh with axes x, y."""
    from jax.sharding import AbstractMesh, AxisType

    axes = ("x", "y")[: len(sizes)]
    return AbstractMesh(sizes, axes, axis_types=(AxisType.Auto,) * len(axes))


def memory(name: str) -> Any:
    """A whole-array BlockSpec in a memory space: ``hbm``, ``vmem``, ``smem``, ``any``, ``sem``."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    spaces = {"hbm": pltpu.HBM, "vmem": pltpu.VMEM, "smem": pltpu.SMEM, "any": pl.ANY, "sem": pltpu.SEMAPHORE}
    return pl.BlockSpec(memory_space=spaces[name])


def call(
    kernel: Callable[..., Any],
    out: Any,
    scratch: Sequence[Any] = (),
    spaces: Sequence[str] = (),
    out_spaces: Sequence[str] = (),
    **options: Any,
) -> Callable[..., Any]:
    """A gridless ``pallas_call``; ``out``: one or several (shape, dtype); ``spaces``: of inputs and outputs."""
    import jax
    from jax.experimental import pallas as pl

    several = isinstance(out, list)
    shapes = [s if not isinstance(s, tuple) else jax.ShapeDtypeStruct(*s) for s in (out if several else [out])]
    if spaces:
        options["in_specs"] = [memory(space) for space in spaces]
    if out_spaces:
        specs = [memory(space) for space in out_spaces]
        options["out_specs"] = specs if several else specs[0]
    return pl.pallas_call(kernel, out_shape=shapes if several else shapes[0], scratch_shapes=list(scratch), **options)


def run(kernel: Callable[..., Any], out: Any, *arrays: Any, data: bool = True, **options: Any) -> Any:
    """Results of a kernel of one device, as NumPy arrays."""
    import jax

    import tpusim

    result = tpusim.pallas.simulate(call(kernel, out, **options), data=data)(*arrays)
    return jax.tree.map(np.asarray, result)


def over_mesh(fn: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """``fn`` on every device of a mesh."""
    import jax

    return jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))
