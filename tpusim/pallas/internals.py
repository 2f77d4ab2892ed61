"""Every use of JAX internals that captured programs need, in one place.

Checked with jax 0.10.2 (Python 3.11) and 0.12.0.1 (Python 3.13).  A newer jax gives a warning when a
program is captured, never an error at import.  What differs between the two stands beside each helper.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import config, core, source_info_util, state
from jax._src.lax import lax
from jax._src.pallas import core as pallas_core
from jax._src.pallas.mosaic import core as mosaic_core
from jax._src.state import discharge, indexing
from jax._src.state import types as state_types

from tpusim.errors import NotModelledError
from tpusim.findings import Finding, Kind, Where
from tpusim.pallas.own_values import OWN_VALUES
from tpusim.specs import MemorySpace, SemaphoreType, as_dtype

CHECKED = ("0.10.2", "0.12.0.1")
"""Versions of jax the suite passes on."""

NDIndexer = indexing.NDIndexer
Slice = indexing.Slice
TransformedRef = state_types.TransformedRef
Literal = core.Literal
DropVar = core.DropVar


_OWN_FILES = str(Path(__file__).parent.parent) + os.sep


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
    return equations_of(jaxpr.eqns)


def equations_of(eqns: Sequence[Any]) -> Iterator[Any]:
    """Equations and those within them."""
    for eqn in eqns:
        yield eqn
        for inner in sub_jaxprs(eqn.params):
            yield from equations_of(inner.eqns)


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


CALLS = {
    "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2",
    "eval_jaxpr", "remat_opt",
}  # fmt: skip
"""Primitives that only call the jaxpr they carry."""

PLACEMENTS = {
    "sharding_constraint", "reshard", "mesh_cast", "layout_constraint", "with_memory_space_constraint", "device_put",
    "optimization_barrier", "pbroadcast", "pvary", "pcast", "reduced_vary_cast", "reduced_vary_cast_p",
}  # fmt: skip
"""Primitives that only say where an array should be, or how it varies over a mesh."""


def called_jaxpr(eqn: Any) -> Any:
    """The jaxpr that one of `CALLS` carries."""
    params = eqn.params
    return params.get("jaxpr") or params.get("call_jaxpr") or params.get("fun_jaxpr")


def callable_of(invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any]) -> Callable[..., Any]:
    """A function that evaluates equations: values of ``invars`` to the values of ``outvars``."""

    def run(*values: Any) -> list[Any]:
        env = dict(zip(invars, values, strict=True))
        for eqn in eqns:
            operands = [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars]
            for var, value in zip(eqn.outvars, bind_equation(eqn, operands), strict=True):
                env[var] = value
        return [v.val if isinstance(v, Literal) else env[v] for v in outvars]

    return run


def bind_equation(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Evaluate one equation on values; calls in place, because a mesh or device they name is not there."""
    name = eqn.primitive.name
    if name in CALLS:
        jaxpr, consts = open_jaxpr(called_jaxpr(eqn))
        run = callable_of([*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns)
        results: list[Any] = run(*consts, *operands)
        return results
    if name in PLACEMENTS:
        return list(operands)
    if name in OWN_VALUES:
        return [OWN_VALUES[name](*operands, **eqn.params)]
    return _bind(eqn.primitive, eqn.primitive.get_bind_params(eqn.params), operands)


def _bind(primitive: Any, bind: Any, operands: Sequence[Any]) -> list[Any]:
    if isinstance(bind, tuple):  # 0.8-0.9: (functions, params)
        functions, params = bind
        results = primitive.bind(*functions, *operands, **params)
    else:
        results = primitive.bind(*operands, **bind)
    return list(results) if primitive.multiple_results else [results]


def not_modelled(what: str, eqn: Any) -> NotModelledError:
    """tpusim has no model for an equation."""
    return NotModelledError(Finding(Kind.NOT_MODELLED, what, where=where_of_equation(eqn)))


def where_of_equation(eqn: Any) -> Where | None:
    """The user's line of an equation; one that is met while it is compiled knows the line of its function."""
    if hasattr(eqn, "where"):
        known: Where | None = eqn.where
        return known
    for frame in source_info_util.user_frames(getattr(eqn.source_info, "traceback", None)):
        if not frame.file_name.startswith(_OWN_FILES):
            return Where(frame.file_name, frame.start_line)
    return None


def where_of_function(jaxpr: Any) -> Where | None:
    """Where the function that a jaxpr was traced from is defined."""
    _, _, place = str(getattr(jaxpr.debug_info, "func_src_info", "")).rpartition(" at ")
    file, _, line = place.rpartition(":")
    return Where(file, int(line)) if file and line.isdigit() else None


# -- values -----------------------------------------------------------------------------------------


def is_array(value: Any) -> bool:
    """Whether an argument of a program is an array, or the type of one."""
    return isinstance(value, np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct)


def type_key(value: Any) -> Any:
    """The type of an array argument as JAX sees it, hashable."""
    weak = getattr(value, "weak_type", False)
    return tuple(value.shape), str(jax.dtypes.canonicalize_dtype(value.dtype, allow_extended_dtype=True)), weak


def trace_context() -> Any:
    """What of JAX's configuration a trace depends on, hashable."""
    return config.trace_context()


def as_result(value: Any, aval: Any) -> Any:
    """A value of an outer jaxpr as the JAX array that the program would have returned."""
    result = value if isinstance(value, jax.Array) else jax.numpy.asarray(value)
    if getattr(aval, "weak_type", False) and not result.aval.weak_type:
        return lax._convert_element_type(result, aval.dtype, weak_type=True)
    return result


def is_plain(dtype: Any) -> bool:
    """Whether NumPy can hold a dtype: not that of a typed PRNG key or a semaphore."""
    return isinstance(dtype, np.dtype)


def without_refs(closed: Any) -> Any:
    """A jaxpr over refs as one over arrays, which returns the refs' last values behind its results."""
    if isinstance(closed, core.Jaxpr) and hasattr(core, "ClosedJaxpr"):
        closed = core.ClosedJaxpr(closed, ())
    return discharge.discharge_state(closed)


# -- refs -------------------------------------------------------------------------------------------


def is_ref(aval: Any) -> bool:
    """Whether a variable of this type is a ref."""
    return isinstance(aval, state.AbstractRef)


class RefType(NamedTuple):
    """A ref's type: a buffer (``space``, ``dtype``) or semaphores (``semaphore``).

    Typed PRNG keys (``key``: their kind) lie in memory as their words, in dimensions behind the others.
    """

    shape: tuple[int, ...]
    space: MemorySpace | None
    dtype: np.dtype[Any] | None
    semaphore: SemaphoreType | None
    key: str | None = None


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
        "key": MemorySpace.SMEM,
    }.get(name)
    if key_words(aval.dtype):
        return RefType((*shape, *key_words(aval.dtype)), found, np.dtype(np.uint32), None, aval.dtype._impl.name)
    return RefType(shape, found, None if found is None else as_dtype(aval.dtype), None)


def key_words(dtype: Any) -> tuple[int, ...]:
    """The shape of a typed PRNG key's words; empty for other types."""
    return tuple(dtype._impl.key_shape) if hasattr(dtype, "_impl") else ()


def pallas_key(aval: Any) -> str | None:
    """Whether a value is a key of Pallas's own generators: ``pallas`` or ``stateful``."""
    name = getattr(getattr(getattr(aval, "dtype", None), "_impl", None), "name", None)
    return {"pallas_tpu": "pallas", "_pallas_internal_stateful": "stateful"}.get(name) if name else None


def semaphore_kind(dtype: Any) -> SemaphoreType | None:
    """The kind of semaphore of an extended dtype, if it is one."""
    if isinstance(dtype, mosaic_core.DMASemaphore):
        return SemaphoreType.DMA
    if isinstance(dtype, pallas_core.BarrierSemaphore):
        return SemaphoreType.BARRIER
    if isinstance(dtype, pallas_core.Semaphore):
        return SemaphoreType.REGULAR
    return None


def view_of(transform: Any) -> tuple[str, Any] | None:
    """A transform other than an index as a function of ``views`` and its argument; an empty name changes nothing."""
    if isinstance(transform, state_types.ReshapeTransform):
        return "reshaped", tuple(int(dim) for dim in transform.shape)
    if isinstance(transform, state_types.TransposeTransform):
        return "transposed", tuple(int(dim) for dim in transform.permutation)
    if isinstance(transform, state_types.BitcastTransform):
        return "bitcast", np.dtype(transform.dtype).name
    if type(transform).__name__ == "MemorySpaceCastTransform":  # 0.12
        return "", None
    return None
