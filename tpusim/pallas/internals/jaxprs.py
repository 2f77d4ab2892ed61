"""What jaxprs, their equations and their values hold.

Checked with jax 0.10.2 (Python 3.11) and 0.12.0.1 (Python 3.13); what differs stands beside each helper.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from tpusim.errors import NotModelledError
from tpusim.findings import Finding, FunctionLine, Kind, Where
from tpusim.pallas.internals.versions import PrivateModule
from tpusim.pallas.own_values import OWN_VALUES

_core = PrivateModule("jax._src.core")
_config = PrivateModule("jax._src.config")
_lax = PrivateModule("jax._src.lax.lax")
_discharge = PrivateModule("jax._src.state.discharge")
_pxla = PrivateModule("jax._src.interpreters.pxla")
_source_info_util = PrivateModule("jax._src.source_info_util")

Literal = _core.type("Literal")
DropVar = _core.type("DropVar")


_JAX_FILES = str(Path(jax.__file__).parent) + os.sep
_PIPELINE_FILE = os.path.join("pallas", "mosaic", "pipeline.py")
_OWN_FILES = str(Path(__file__).parent.parent.parent) + os.sep


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


def is_placement(eqn: Any) -> bool:
    """Whether an equation only says where an array should be, or how it varies over a mesh.

    A ``pbroadcast`` with a source is a collective.
    """
    return eqn.primitive.name in PLACEMENTS and "source" not in eqn.params


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
    if is_placement(eqn):
        return list(operands)
    if name in OWN_VALUES:
        own = OWN_VALUES[name](*operands, **eqn.params)
        return list(own) if isinstance(own, tuple) else [own]
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
    for frame in _source_info_util.user_frames(getattr(eqn.source_info, "traceback", None)):
        if not frame.file_name.startswith(_OWN_FILES):
            return FunctionLine.of(frame.file_name, frame.start_line, frame.function_name)
    return None


def is_of_pipeline(eqn: Any) -> bool:
    """Whether JAX's own ``emit_pipeline`` issues an equation, and not the code that it calls."""
    traceback = getattr(eqn.source_info, "traceback", None)
    for frame in () if traceback is None else traceback.frames:
        if frame.file_name.endswith(_PIPELINE_FILE):
            return True
        if not frame.file_name.startswith(_JAX_FILES):
            return False
    return False


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
    return _config.trace_context()


def as_result(value: Any, aval: Any, is_frozen: bool) -> Any:
    """A value of an outer jaxpr as the JAX array that the program would have returned.

    ``is_frozen``: nobody changes the value any more, so the result may be the same memory.
    """
    if isinstance(value, jax.Array):
        result = value
    elif is_frozen and value.dtype == aval.dtype:
        result = _adopted(value, aval)
    else:
        result = jax.numpy.asarray(value)
    if getattr(aval, "weak_type", False) and not result.aval.weak_type:
        return _lax._convert_element_type(result, aval.dtype, weak_type=True)
    return result


def _adopted(value: Any, aval: Any) -> Any:
    """``jax.device_put(value, may_alias=True)``; without its checks, a tenth of the time, where that is simple."""
    if jax.config.jax_default_device is not None:
        return jax.device_put(value, may_alias=True)
    device = jax.local_devices()[0]
    plain = _core.ShapedArray(aval.shape, aval.dtype)
    return _pxla.batched_device_put(plain, jax.sharding.SingleDeviceSharding(device), [value], [device], False)


def is_plain(dtype: Any) -> bool:
    """Whether NumPy can hold a dtype: not that of a typed PRNG key or a semaphore."""
    return isinstance(dtype, np.dtype)


def without_refs(closed: Any, consts: Sequence[Any] = ()) -> Any:
    """A jaxpr over refs as one over arrays, which returns the refs' last values behind its results."""
    if isinstance(closed, _core.Jaxpr) and _core.has("ClosedJaxpr"):
        closed = _core.ClosedJaxpr(closed, consts)
    return _discharge.discharge_state(closed)
