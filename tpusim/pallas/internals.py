"""Every use of JAX internals that captured programs need, in one place.

Checked with jax 0.10.2 (Python 3.11) and 0.12.0.1 (Python 3.13).  A newer jax gives a warning when a
program is captured, never an error at import.  What differs between the two stands beside each helper.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import core, source_info_util, state
from jax._src.pallas import core as pallas_core
from jax._src.pallas.mosaic import core as mosaic_core
from jax._src.state import indexing
from jax._src.state import types as state_types
from jax.experimental import pallas as pl

from tpusim.findings import Where
from tpusim.specs import MemorySpace, SemaphoreType, as_dtype

CHECKED = ("0.10.2", "0.12.0.1")
"""Versions of jax the suite passes on."""

NDIndexer = indexing.NDIndexer
Slice = indexing.Slice
TransformedRef = state_types.TransformedRef
Literal = core.Literal
DropVar = core.DropVar


@cache
def warn_if_newer() -> None:
    """Say once that this jax is newer than any that was checked."""
    mine = _numbers(jax.__version__)
    if mine > max(_numbers(version) for version in CHECKED):
        warnings.warn(
            f"tpusim was checked with jax up to {CHECKED[-1]}; this is {jax.__version__}. Captured programs may "
            "meet primitives or parameters it does not know.",
            stacklevel=4,
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


# -- jaxprs -----------------------------------------------------------------------------------------


def open_jaxpr(value: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr and its constants; 0.12 keeps the constants in the jaxpr itself, 0.10 in a ``ClosedJaxpr``."""
    inner = getattr(value, "jaxpr", value)
    consts = getattr(value, "consts", None)
    return inner, consts if consts is not None else ()


def is_jaxpr(value: Any) -> bool:
    """Whether a parameter of an equation is a (closed) jaxpr."""
    return hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")


def sub_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """All jaxprs in the parameters of an equation."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if is_jaxpr(item):
                yield open_jaxpr(item)[0]


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr and of those within it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in sub_jaxprs(eqn.params):
            yield from all_equations(inner)


class ScanParts(NamedTuple):
    """How the operands of a ``scan`` divide."""

    num_consts: int
    num_carry: int


def scan_parts(eqn: Any) -> ScanParts:
    """0.10: ``num_consts`` and ``num_carry``; 0.12: the tree ``ft_in`` of (consts, carry, xs)."""
    params = eqn.params
    if "num_consts" in params:
        return ScanParts(params["num_consts"], params["num_carry"])
    consts, carry, _ = params["ft_in"].update(list(range(len(eqn.invars)))).unpack()
    return ScanParts(len(list(consts)), len(list(carry)))


def callable_of(invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any]) -> Callable[..., Any]:
    """A function that evaluates equations: values of ``invars`` to the values of ``outvars``."""

    def run(*values: Any) -> list[Any]:
        env = dict(zip(invars, values, strict=True))
        for eqn in eqns:
            operands = [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars]
            bind = eqn.primitive.get_bind_params(eqn.params)
            results = _bind(eqn.primitive, bind, operands)
            for var, value in zip(eqn.outvars, results, strict=True):
                env[var] = value
        return [env[var] for var in outvars]

    return run


def bind_equation(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Evaluate one equation on values."""
    return _bind(eqn.primitive, eqn.primitive.get_bind_params(eqn.params), operands)


def _bind(primitive: Any, bind: Any, operands: Sequence[Any]) -> list[Any]:
    if isinstance(bind, tuple):  # 0.8-0.9: (functions, params)
        functions, params = bind
        results = primitive.bind(*functions, *operands, **params)
    else:
        results = primitive.bind(*operands, **bind)
    return list(results) if primitive.multiple_results else [results]


def where_of_equation(eqn: Any) -> Where | None:
    """The user's line of an equation."""
    info = eqn.source_info
    frame = source_info_util.user_frame(getattr(info, "traceback", None))
    return Where(frame.file_name, frame.start_line) if frame is not None else None


# -- refs -------------------------------------------------------------------------------------------


def is_ref(aval: Any) -> bool:
    """Whether a variable of this type is a ref."""
    return isinstance(aval, state.AbstractRef)


class RefType(NamedTuple):
    """A ref's type: a buffer (``space``, ``dtype``) or semaphores (``semaphore``)."""

    shape: tuple[int, ...]
    space: MemorySpace | None
    dtype: np.dtype[Any] | None
    semaphore: SemaphoreType | None


def ref_type(aval: Any, default: MemorySpace = MemorySpace.VMEM) -> RefType:
    """The type of a ref; one without a memory space lies in ``default``."""
    shape = tuple(int(dim) for dim in aval.shape)
    kind = semaphore_kind(aval.dtype)
    if kind is not None:
        return RefType(shape, None, None, kind)
    space = getattr(aval, "memory_space", None)
    name = getattr(space, "name", str(space)).lower() if space is not None else "none"
    found = {
        "none": default,
        "vmem": MemorySpace.VMEM,
        "smem": MemorySpace.SMEM,
        "hbm": MemorySpace.HBM,
        "any": MemorySpace.ANY,
        "default": default,
        "device": MemorySpace.HBM,
        "index": MemorySpace.SMEM,
    }.get(name)
    return RefType(shape, found, None if found is None else as_dtype(aval.dtype), None)


def semaphore_kind(dtype: Any) -> SemaphoreType | None:
    """The kind of semaphore of an extended dtype, if it is one."""
    if isinstance(dtype, mosaic_core.DMASemaphore):
        return SemaphoreType.DMA
    if isinstance(dtype, pallas_core.BarrierSemaphore):
        return SemaphoreType.BARRIER
    if isinstance(dtype, pallas_core.Semaphore):
        return SemaphoreType.REGULAR
    return None


# -- pallas_call ------------------------------------------------------------------------------------


class Block(NamedTuple):
    """One array of a kernel call: its whole type, its block, and the map from grid indices to blocks."""

    array: Any
    shape: tuple[int | None, ...]
    ref: RefType
    index_map: Any
    is_whole: bool
    mode: Any
    origin: str


class KernelCall(NamedTuple):
    """What a ``pallas_call`` equation holds."""

    name: str
    jaxpr: Any
    grid: tuple[Any, ...]
    num_dynamic_grid: int
    num_prefetch: int
    num_inputs: int
    num_outputs: int
    blocks: tuple[Block, ...]
    aliases: tuple[tuple[int, int], ...]
    collective_id: int | None
    vmem_limit_bytes: int | None
    skip_device_barrier: bool
    out_avals: tuple[Any, ...]


def kernel_call(eqn: Any) -> KernelCall:
    """The contents of a ``pallas_call`` equation."""
    params = eqn.params
    mapping = params["grid_mapping"]
    compiler = params["compiler_params"]
    jaxpr, _ = open_jaxpr(params["jaxpr"])
    name = params.get("name") or getattr(jaxpr.debug_info, "func_name", "kernel")
    return KernelCall(
        name=str(name),
        jaxpr=jaxpr,
        grid=tuple(mapping.grid),
        num_dynamic_grid=mapping.num_dynamic_grid_bounds,
        num_prefetch=mapping.num_index_operands,
        num_inputs=mapping.num_inputs,
        num_outputs=mapping.num_outputs,
        blocks=tuple(_block(block) for block in mapping.block_mappings),
        aliases=tuple((int(a), int(b)) for a, b in params["input_output_aliases"]),
        collective_id=getattr(compiler, "collective_id", None),
        vmem_limit_bytes=getattr(compiler, "vmem_limit_bytes", None),
        skip_device_barrier=bool(getattr(compiler, "skip_device_barrier", False)),
        out_avals=tuple(params["out_avals"]),
    )


def _block(mapping: Any) -> Block:
    sizes = tuple(_block_size(dim) for dim in mapping.block_shape)
    array = mapping.array_aval
    shape = tuple(int(dim) for dim in array.shape)
    index_map, _ = open_jaxpr(mapping.index_map_jaxpr)
    constant = all(isinstance(v, Literal) and int(v.val) == 0 for v in index_map.outvars)
    whole = sizes == shape and constant
    ref = ref_type(mapping.transformed_block_aval)
    return Block(array, sizes, ref, index_map, whole, mapping.pipeline_mode, str(mapping.origin))


def _block_size(dim: Any) -> int | None:
    if isinstance(dim, pl.Squeezed) or dim is None:
        return None
    return int(getattr(dim, "block_size", dim))


def is_dynamic_grid(dim: Any) -> bool:
    """Whether a grid bound is an operand of the call."""
    return isinstance(dim, pallas_core.DynamicGridDim) or dim is pallas_core.dynamic_grid_dim
