"""A native kernel as a real Pallas kernel: ``jit(shard_map(pallas_call(fn)))``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from tpusim.backend import use
from tpusim.declare import Declared, Dims, check_returned, resolve, unused_collective_id
from tpusim.errors import CollectiveIdError
from tpusim.pallas.tracing import MEMORY_SPACES, PallasBackend, scratch_type
from tpusim.specs import BlockSpec, MemorySpace, ShapeDtypeStruct

if TYPE_CHECKING:
    from tpusim.program import Kernel


def emit(kernel: Kernel, mesh: Mesh | AbstractMesh, interpret: Any = None) -> Callable[..., Any]:
    """A function from GLOBAL arrays to the GLOBAL outputs of ``kernel`` on ``mesh``.

    ``mesh`` has the kernel's axes in the kernel's order; an abstract one will do to capture the function.
    ``interpret``: ``True`` for TPU interpret mode on the CPU, a ``pltpu.InterpretParams``, or
    ``None``/``False`` for a TPU.  The function is jitted; declarations are resolved when it first meets a
    set of shapes.
    """
    sizes = dict(mesh.shape)
    auto = _with_auto_axes(mesh)
    params = (pltpu.InterpretParams() if interpret is True else interpret) or False

    @jax.jit  # type: ignore[untyped-decorator]
    def run(*arrays: Any) -> Any:
        declared = resolve(kernel, [ShapeDtypeStruct(a.shape, a.dtype) for a in arrays], sizes)
        outs = tuple(_partition_spec(dims) for dims in declared.shard_out)
        return jax.shard_map(
            _pallas_call(kernel, declared, sizes, params),
            mesh=auto,
            in_specs=tuple(_partition_spec(dims) for dims in declared.shard_in),
            out_specs=outs[0] if declared.single_output else outs,
            check_vma=False,
        )(*arrays)

    return run  # type: ignore[no-any-return]


def abstract_mesh(sizes: Mapping[str, int]) -> AbstractMesh:
    """A mesh without devices, to lower or capture a kernel on."""
    kinds = (AxisType.Auto,) * len(sizes)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)


def shapes_of(arrays: Sequence[Any]) -> list[Any]:
    """The types of arrays as JAX has them, 64-bit ones made 32-bit."""
    return [jax.eval_shape(lambda x: x, array) for array in arrays]


def _with_auto_axes(mesh: Mesh | AbstractMesh) -> Mesh | AbstractMesh:
    """``mesh`` with axes of type Auto; jax 0.12 makes them Explicit unless told otherwise."""
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)


def _pallas_call(kernel: Kernel, declared: Declared, sizes: dict[str, int], interpret: Any) -> Callable[..., Any]:
    backend = PallasBackend(kernel.name, sizes, declared.grid, kernel.collective_id, is_interpreted=bool(interpret))

    @functools.wraps(kernel.fn)  # Pallas names the arguments after the function's
    def traced(*refs: Any) -> None:
        with use(backend):
            check_returned(kernel.name, kernel.fn(*refs))
        if kernel.collective_id is not None and not backend.took_barrier:
            raise CollectiveIdError(unused_collective_id(kernel.name, kernel.collective_id))

    def block_spec(spec: BlockSpec) -> Any:
        space = MEMORY_SPACES[spec.memory_space or MemorySpace.VMEM]
        return pl.BlockSpec(spec.block_shape, _within(backend, spec.index_map), memory_space=space)

    out_shapes = tuple(jax.ShapeDtypeStruct(s.shape, s.dtype) for s in declared.out_shards)
    out_specs = tuple(block_spec(spec) for spec in declared.out_specs)
    return pl.pallas_call(  # type: ignore[no-any-return]
        traced,
        out_shape=out_shapes[0] if declared.single_output else out_shapes,
        grid=declared.grid,
        in_specs=[block_spec(spec) for spec in declared.in_specs],
        out_specs=out_specs[0] if declared.single_output else out_specs,
        scratch_shapes=[scratch_type(entry) for entry in declared.scratch],
        input_output_aliases=declared.aliases,
        compiler_params=pltpu.CompilerParams(
            collective_id=kernel.collective_id,
            vmem_limit_bytes=kernel.vmem_limit_bytes,
            # a device takes part in the others' calls even where nobody reads its own outputs
            has_side_effects=len(sizes) > 1 or next(iter(sizes.values())) > 1,
        ),
        interpret=interpret,
        name=kernel.name,
    )


def _within(backend: PallasBackend, index_map: Callable[..., Any] | None) -> Callable[..., Any] | None:
    if index_map is None:
        return None

    def mapped(*indices: Any) -> Any:
        with use(backend):
            return index_map(*indices)

    return mapped


def _partition_spec(dims: Dims) -> PartitionSpec:
    return PartitionSpec(*(names if len(names) > 1 else names[0] if names else None for names in dims))
