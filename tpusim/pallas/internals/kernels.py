"""What the equations of kernel calls hold, those of ``pallas_call`` and of ``mpmd_map``.

Checked with jax 0.10.2 (Python 3.11) and 0.12.0.1 (Python 3.13), which agree here.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

from jax.experimental import pallas as pl

from tpusim.pallas.internals.jaxprs import Literal, not_modelled, open_jaxpr
from tpusim.pallas.internals.refs import key_words
from tpusim.pallas.internals.versions import PrivateModule
from tpusim.pipeline import Dim
from tpusim.specs import MemorySpace

_pallas_core = PrivateModule("jax._src.pallas.core")
_mosaic_core = PrivateModule("jax._src.pallas.mosaic.core")
_sparse_core = PrivateModule("jax._src.pallas.mosaic.sc_core")
TensorCoreMesh = _mosaic_core.type("TensorCoreMesh")
ScalarSubcoreMesh = _sparse_core.type("ScalarSubcoreMesh")
VectorSubcoreMesh = _sparse_core.type("VectorSubcoreMesh")
DynamicGridDim = _pallas_core.type("DynamicGridDim")


class Block(NamedTuple):
    """One array of a kernel call: its shape, how it is cut, and the map from grid indices to blocks.

    ``index_map`` is the map's jaxpr, or ``None`` where the whole array is one block.  ``refused`` says
    what there is no model for, if anything.
    """

    shape: tuple[int, ...]
    dims: tuple[Dim, ...]
    index_map: Any
    windows: int
    refused: str | None


class KernelCall(NamedTuple):
    """What a ``pallas_call`` equation holds; ``grid`` has ``None`` where the bound is an operand.

    ``cores``: axes of the cores of a device that run it, if it is more than the one TensorCore; ``is_sparse``: they are
    those of SparseCores; ``default``: where a ref without a memory space lies.
    """

    name: str
    jaxpr: Any
    grid: tuple[int | None, ...]
    vmapped: tuple[int, ...]
    parallel: tuple[bool, ...]
    num_prefetch: int
    num_inputs: int
    num_outputs: int
    blocks: tuple[Block, ...]
    aliases: tuple[tuple[int, int], ...]
    collective_id: int | None
    vmem_limit_bytes: int | None
    skip_device_barrier: bool
    out_avals: tuple[Any, ...]
    cores: dict[str, int]
    is_sparse: bool
    default: MemorySpace


def kernel_call(eqn: Any) -> KernelCall:
    """The contents of a kernel call."""
    if eqn.primitive.name == "mpmd_map":
        return _core_kernel(eqn)
    if core_axes(eqn):
        return _in_place_on_cores(eqn)
    params = eqn.params
    mapping = params["grid_mapping"]
    compiler = params["compiler_params"]
    jaxpr, _ = open_jaxpr(params["jaxpr"])
    name = params.get("name") or getattr(jaxpr.debug_info, "func_name", "kernel")
    semantics = getattr(compiler, "dimension_semantics", None) or ("arbitrary",) * len(mapping.grid)
    return KernelCall(
        name=str(name),
        jaxpr=jaxpr,
        grid=tuple(None if is_dynamic_grid(dim) else int(dim) for dim in mapping.grid),
        vmapped=tuple(mapping.vmapped_dims),
        parallel=tuple(
            str(getattr(kind, "value", kind)).lower() in ("parallel", "core_parallel") for kind in semantics
        ),
        num_prefetch=mapping.num_index_operands,
        num_inputs=mapping.num_inputs,
        num_outputs=mapping.num_outputs,
        blocks=tuple(_block(block) for block in mapping.block_mappings),
        aliases=tuple((int(a), int(b)) for a, b in params["input_output_aliases"]),
        collective_id=getattr(compiler, "collective_id", None),
        vmem_limit_bytes=getattr(compiler, "vmem_limit_bytes", None),
        skip_device_barrier=bool(getattr(compiler, "skip_device_barrier", False)),
        out_avals=tuple(params["out_avals"]),
        cores={},
        is_sparse=False,
        default=MemorySpace.VMEM,
    )


def core_axes(eqn: Any) -> dict[str, int]:
    """The axes of the cores of a device that run a kernel's equation; none where that is its one TensorCore."""
    params = eqn.params
    # A core_map of jax 0.10, over refs that are still to go, and what these kernels become in place.
    if eqn.primitive.name in ("core_map", "pallas_call") and params.get("mesh") is not None:
        params = {"meshes": (params["mesh"],), "external_meshes": ()}
    elif eqn.primitive.name != "mpmd_map":
        return {}
    for mesh in (*params["meshes"], *params["external_meshes"]):
        if not isinstance(mesh, TensorCoreMesh | ScalarSubcoreMesh | VectorSubcoreMesh):
            raise not_modelled(f"mpmd_map: a kernel on a {type(mesh).__name__}", eqn)
    if len(params["meshes"]) != 1 or params["external_meshes"]:
        raise not_modelled("mpmd_map: kernels on cores of several kinds at once", eqn)
    (mesh,) = params["meshes"]
    sizes = {str(axis): int(size) for axis, size in mesh.shape.items()}
    return {} if isinstance(mesh, TensorCoreMesh) and math.prod(sizes.values()) == 1 else sizes


def lone_device(names: Container[str]) -> dict[str, int]:
    """The mesh of a program that has none, with an axis that is none of ``names``."""
    return {next(name for name in ("x", "device", "the device") if name not in names): 1}


def _core_kernel(eqn: Any) -> KernelCall:
    """A ``pl.kernel`` or ``core_map``."""
    params = eqn.params
    aliases = dict(params["input_output_aliases"]).items()
    return _on_cores(eqn, params["meshes"][0], params["jaxprs"][0], [v.aval for v in eqn.invars], aliases)


def _in_place_on_cores(eqn: Any) -> KernelCall:
    """What they are where a program runs: a ``pallas_call`` over the mesh of the cores."""
    params = eqn.params
    inputs = [block.array_aval for block in params["grid_mapping"].block_mappings[: params["grid_mapping"].num_inputs]]
    return _on_cores(eqn, params["mesh"], params["jaxpr"], inputs, params["input_output_aliases"])


def _on_cores(eqn: Any, mesh: Any, kernel: Any, inputs: Sequence[Any], aliases: Iterable[Any]) -> KernelCall:
    """A kernel on the cores of a mesh; all its arrays are whole."""
    params = eqn.params
    is_sparse = not isinstance(mesh, TensorCoreMesh)
    compiler = params["compiler_params"]
    jaxpr, _ = open_jaxpr(kernel)
    outputs = tuple(params["out_avals"])
    arrays = [*inputs, *outputs]
    shapes = [(*(int(dim) for dim in a.shape), *key_words(a.dtype)) for a in arrays]
    return KernelCall(
        name=str(params.get("name") or getattr(jaxpr.debug_info, "func_name", "kernel")),
        jaxpr=jaxpr,
        grid=(),
        vmapped=(),
        parallel=(),
        num_prefetch=0,
        num_inputs=len(inputs),
        num_outputs=len(outputs),
        blocks=tuple(Block(shape, tuple(Dim(size, size) for size in shape), None, 2, None) for shape in shapes),
        aliases=tuple((int(a), int(b)) for a, b in aliases),
        collective_id=getattr(compiler, "collective_id", None),
        vmem_limit_bytes=getattr(compiler, "vmem_limit_bytes", None),
        skip_device_barrier=bool(getattr(compiler, "skip_device_barrier", False)),
        out_avals=outputs,
        cores=core_axes(eqn),
        is_sparse=is_sparse,
        default=MemorySpace.HBM if is_sparse else MemorySpace.ANY,  # as each mesh says
    )


def _block(mapping: Any) -> Block:
    shape = tuple(int(dim) for dim in mapping.array_aval.shape)
    index_map, _ = open_jaxpr(mapping.index_map_jaxpr)
    dims, refused = _dims(mapping.block_shape)
    mode = mapping.pipeline_mode
    windows = 2 if mode is None else getattr(mode, "buffer_count", 2)
    if getattr(mode, "use_lookahead", False):
        refused = "pl.Buffered(use_lookahead=True) outside emit_pipeline"
    elif getattr(getattr(mode, "revisit", None), "value", "immediate") not in ("immediate", "default"):
        refused = "pl.RevisitMode.ANY"
    elif not isinstance(windows, int):
        refused = f"pl.Buffered({windows}) outside emit_pipeline"
    elif mapping.transforms:
        refused = "a block with transforms"
    constant = all(isinstance(v, Literal) and int(v.val) == 0 for v in index_map.outvars)
    is_whole = constant and all(dim.size == extent and not dim.low for dim, extent in zip(dims, shape, strict=False))
    is_whole = is_whole and not any(dim.is_squeezed for dim in dims)
    words = key_words(mapping.array_aval.dtype)
    if words:
        shape, dims = (*shape, *words), (*dims, *(Dim(size, size) for size in words))
        refused = refused or (None if is_whole else "a block of typed PRNG keys")
    return Block(shape, dims, None if is_whole else index_map, windows, refused)


def _dims(block_shape: Sequence[Any]) -> tuple[tuple[Dim, ...], str | None]:
    """The dimensions of a block, and what there is no model for."""
    dims = []
    for dim in block_shape:
        if dim is None or isinstance(dim, pl.Squeezed):
            dims.append(Dim(1, 1, True))
        elif isinstance(dim, pl.Element):
            dims.append(Dim(int(dim.block_size), 1, low=int(dim.padding[0])))
        elif isinstance(dim, int | pl.Blocked):
            size = int(getattr(dim, "block_size", dim))
            dims.append(Dim(size, size))
        else:
            return (), f"a block with a {type(dim).__name__} dimension"
    return tuple(dims), None


def is_dynamic_grid(dim: Any) -> bool:
    """Whether a grid bound is an operand of the call."""
    return isinstance(dim, DynamicGridDim) or dim is _pallas_core.dynamic_grid_dim


def debug_check(eqn: Any) -> tuple[Any, str] | None:
    """The operand that is true where a ``pl.debug_check`` fails, and its message; ``None`` where checks are off."""
    if not eqn.params.get("debug"):
        raise not_modelled("a check that is not a pl.debug_check", eqn)
    if not _pallas_core.debug_checks_enabled():
        return None
    error = eqn.params["err_tree"].unflatten(list(eqn.invars))
    ((failed,), (exception,), (payload,)) = (part.values() for part in (error._pred, error._metadata, error._payload))
    return failed, str(exception.unflatten(payload).fmt_string)
