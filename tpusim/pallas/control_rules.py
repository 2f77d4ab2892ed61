"""Control flow of a captured kernel, kept as Python control flow, and where a core stands in grid and mesh."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tpusim.pallas import internals, ranges
from tpusim.pallas.block import Block, Value, is_integer
from tpusim.pallas.internals.kernels import debug_check
from tpusim.pallas.lower import Lowering, Rule
from tpusim.pallas.lowered import ScopeDecl
from tpusim.pallas.random_rules import is_impure
from tpusim.specs import MemoryRef, MemorySpace, SemaphoreArray

SEEN_BY_OTHERS = {
    "get", "swap", "masked_load", "masked_swap", "addupdate", "dma_start", "dma_wait", "semaphore_signal",
    "semaphore_wait", "semaphore_read", "get_barrier_semaphore", "run_scoped", "program_id", "num_programs",
    "axis_index", "delay", "debug_print", "prng_seed", "prng_random_bits", "parallel_loop", "barrier",
}  # fmt: skip
"""Primitives that cannot be part of a pure array segment."""


def is_pure(eqn: Any) -> bool:
    """Whether an equation, with all that is inside it, only computes arrays from arrays."""
    if any(internals.is_ref(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        return False
    return all(
        inner.primitive.name not in SEEN_BY_OTHERS
        and not is_impure(inner)
        and not any(internals.is_ref(v.aval) for v in (*inner.invars, *inner.outvars))
        for jaxpr in internals.sub_jaxprs(eqn.params)
        for inner in internals.all_equations(jaxpr)
    )


def _stays_array(lowering: Lowering, block: Block, eqn: Any) -> bool:
    """Put a pure equation that is not about integers into the pending segment; true where it went there."""
    if not is_pure(eqn) or all(is_integer(v.aval) for v in eqn.outvars):
        return False
    lowering.defer(block, eqn)
    return True


def _inline(lowering: Lowering, closed: Any, operands: Sequence[Any], is_part: bool = False) -> list[Any]:
    """Lower a jaxpr where it is called; its results.  ``is_part``: as for :meth:`Lowering.lower_jaxpr`."""
    jaxpr, consts = internals.open_jaxpr(closed)
    for var, const in zip(jaxpr.constvars, consts, strict=False):
        lowering.env[var] = lowering.constant(const, var.aval)
    for var, value in zip(jaxpr.invars, operands, strict=True):
        lowering.env[var] = value
    return lowering.lower_jaxpr(jaxpr, is_part)


def _code(lowering: Lowering, value: Any, aval: Any) -> str:
    """The expression of a result as its type is kept: Python int, or array."""
    if is_integer(aval) and not value.is_python:
        return lowering.number(value.code, "bool" if aval.dtype == bool else "int")
    code: str = value.code
    return code


def _call(lowering: Lowering, block: Block, eqn: Any) -> None:
    if _stays_array(lowering, block, eqn):
        return
    lowering.flush(block)
    results = _inline(lowering, internals.called_jaxpr(eqn), [lowering.read(v) for v in eqn.invars])
    for var, value in zip(eqn.outvars, results, strict=True):
        if not isinstance(var, internals.DropVar):
            lowering.env[var] = value


def _codes(lowering: Lowering, values: Sequence[Any], variables: Sequence[Any]) -> list[str]:
    return [_code(lowering, value, var.aval) for value, var in zip(values, variables, strict=True)]


def _names_for(lowering: Lowering, variables: Sequence[Any]) -> list[str]:
    return [lowering.fresh() for _ in variables]


def _assign(lowering: Lowering, names: Sequence[str], codes: Sequence[str]) -> None:
    pairs = [(name, code) for name, code in zip(names, codes, strict=True) if name != code]
    if pairs:
        lowering.emit(f"{', '.join(name for name, _ in pairs)} = {', '.join(code for _, code in pairs)}")


def _is_decided(lowering: Lowering, block: Block, eqn: Any) -> bool:
    """Lower the one branch of a ``when`` that always runs, as the compiler does: together with what is around it.

    On a grid axis of one step that is the first step as well as the last.
    """
    which = lowering.read(eqn.invars[0])
    decided = ranges.literal_of(which.code) if isinstance(which, Value) and which.is_python else None
    operands = eqn.invars[1:]
    if (
        decided is None
        or eqn.outvars
        or any(getattr(v.aval, "shape", ()) and not internals.is_ref(v.aval) for v in operands)
    ):
        return False
    branches = eqn.params["branches"]
    lowering.flush(block, charge=False)
    kept = lowering.kept
    lowering.kept = kept | {var for var, last in block.last_use.items() if last > block.position}
    values = [lowering.read(v) for v in operands]
    _inline(lowering, branches[min(max(0, decided), len(branches) - 1)], values, is_part=True)
    lowering.kept = kept
    return True


def _cond(lowering: Lowering, block: Block, eqn: Any) -> None:
    if _stays_array(lowering, block, eqn):
        return
    if _is_decided(lowering, block, eqn):
        return
    lowering.flush(block)
    which = lowering.integer(block, eqn.invars[0])
    operands = [lowering.read(v) for v in eqn.invars[1:]]
    names = _names_for(lowering, eqn.outvars)
    branches = eqn.params["branches"]
    for number, branch in enumerate(branches):
        if number == 0:
            lowering.emit(f"if {which} == 0:" if len(branches) > 1 else "if True:")
        elif number == len(branches) - 1:
            lowering.emit("else:")
        else:
            lowering.emit(f"elif {which} == {number}:")
        lowering.depth += 1
        before = len(lowering.lines)
        results = _inline(lowering, branch, operands)
        codes = _codes(lowering, results, eqn.outvars)
        _assign(lowering, names, codes)
        if len(lowering.lines) == before:
            lowering.emit("pass")
        lowering.depth -= 1
    _bind_results(lowering, eqn.outvars, names)


def names_of_results(lowering: Lowering, variables: Sequence[Any], first: Sequence[Any]) -> list[str]:
    """Names for what a loop carries, with its first values."""
    names = _names_for(lowering, variables)
    _assign(lowering, names, _codes(lowering, first, variables))
    return names


def assign_results(lowering: Lowering, names: Sequence[str], results: Sequence[Any], variables: Sequence[Any]) -> None:
    """Give the names of a loop's variables the values of this turn."""
    _assign(lowering, names, _codes(lowering, results, variables))


def _bind_results(lowering: Lowering, variables: Sequence[Any], names: Sequence[str]) -> None:
    for var, name in zip(variables, names, strict=True):
        if not isinstance(var, internals.DropVar):
            lowering.env[var] = Value(name, is_integer(var.aval))


def _scan(lowering: Lowering, block: Block, eqn: Any) -> None:
    if _stays_array(lowering, block, eqn):
        return
    lowering.flush(block)
    parts = internals.scan_parts(eqn)
    operands = [lowering.read(v) for v in eqn.invars]
    consts = operands[: parts.num_consts]
    init = operands[parts.num_consts : parts.num_consts + parts.num_carry]
    xs = operands[parts.num_consts + parts.num_carry :]
    jaxpr, _ = internals.open_jaxpr(eqn.params["jaxpr"])
    carried = jaxpr.invars[parts.num_consts : parts.num_consts + parts.num_carry]
    elements = jaxpr.invars[parts.num_consts + parts.num_carry :]
    names = _names_for(lowering, carried)
    _assign(lowering, names, _codes(lowering, init, carried))
    stacked = eqn.outvars[parts.num_carry :]
    lists = _names_for(lowering, stacked)
    for name in lists:
        lowering.emit(f"{name} = []")
    index = lowering.fresh("i")
    length = int(eqn.params["length"])
    order = f"range({length - 1}, -1, -1)" if eqn.params.get("reverse") else f"range({length})"
    rows = _names_for(lowering, xs)
    for name, value in zip(rows, xs, strict=True):
        lowering.emit(f"{name} = rt.rows({value.code}, {length})")
    lowering.emit(f"for {index} in {order}:")
    lowering.depth += 1
    carry = [Value(name, is_integer(v.aval)) for name, v in zip(names, carried, strict=True)]
    given = []
    for row, var in zip(rows, elements, strict=True):
        integer = is_integer(var.aval)
        name, code = lowering.fresh(), f"{row}[{index}]"
        if integer:
            code = lowering.number(code, "bool" if var.aval.dtype == bool else "int")
        lowering.emit(f"{name} = {code}")
        given.append(Value(name, integer))
    results = _inline(lowering, eqn.params["jaxpr"], [*consts, *carry, *given])
    for name, value in zip(lists, results[parts.num_carry :], strict=True):
        lowering.emit(f"{name}.append({value.code})")
    _assign(lowering, names, _codes(lowering, results[: parts.num_carry], carried))
    if not names and not lists:
        lowering.emit("pass")
    lowering.depth -= 1
    for name in lists:
        backwards = "[::-1]" if eqn.params.get("reverse") else ""
        lowering.emit(f"{name} = rt.stack({name}{backwards})")
    _bind_results(lowering, eqn.outvars[: parts.num_carry], names)
    for var, name in zip(stacked, lists, strict=True):
        if not isinstance(var, internals.DropVar):
            lowering.env[var] = Value(name, False)


def _while(lowering: Lowering, block: Block, eqn: Any) -> None:
    if _stays_array(lowering, block, eqn):
        return
    lowering.flush(block)
    params = eqn.params
    operands = [lowering.read(v) for v in eqn.invars]
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    names = _names_for(lowering, eqn.outvars)
    _assign(
        lowering,
        names,
        _codes(lowering, operands[second:], eqn.outvars),
    )
    carry = [Value(name, is_integer(v.aval)) for name, v in zip(names, eqn.outvars, strict=True)]
    lowering.emit("while True:")
    lowering.depth += 1
    (goes_on,) = _inline(lowering, params["cond_jaxpr"], [*operands[:first], *carry])
    lowering.emit(f"if not {goes_on.code}: break")
    lowering.emit("rt.turn()")
    results = _inline(lowering, params["body_jaxpr"], [*operands[first:second], *carry])
    _assign(lowering, names, _codes(lowering, results, eqn.outvars))
    lowering.depth -= 1
    _bind_results(lowering, eqn.outvars, names)


def _run_scoped(lowering: Lowering, block: Block, eqn: Any) -> None:
    shared = eqn.params.get("collective_axes") or ()
    if any(axis in lowering.axes for axis in ((shared,) if isinstance(shared, str) else shared)):
        raise internals.not_modelled("run_scoped with collective_axes of the mesh", eqn)
    lowering.flush(block)
    jaxpr, _ = internals.open_jaxpr(eqn.params["jaxpr"])
    for var, operand in zip(jaxpr.constvars, eqn.invars, strict=True):
        lowering.env[var] = lowering.read(operand)
    names: list[str] = []
    types: list[MemoryRef | SemaphoreArray] = []
    slots: list[int] = []
    for position, var in enumerate(jaxpr.invars):
        kind = lowering.ref_type(var.aval)
        name = f"scoped{position}"
        if kind.space is MemorySpace.VMEM_SHARED:
            raise internals.not_modelled("run_scoped of VMEM_SHARED", eqn)
        slots.append(lowering.slots)
        lowering.add_slot(var, name, kind)
        names.append(name)
        if kind.semaphore is not None:
            types.append(SemaphoreArray(kind.semaphore, kind.shape))
        elif kind.space is not None and kind.dtype is not None:
            types.append(MemoryRef(kind.space, kind.shape, kind.dtype))
    outer = lowering.scope
    number = len(lowering.out.scopes)
    lowering.out.scopes.append(ScopeDecl(names, types, slots, outer))
    lowering.scope = number
    lowering.emit(f"rt.enter_scope({number})")
    results = lowering.lower_jaxpr(jaxpr)
    lowering.emit(f"rt.leave_scope({number})")
    lowering.scope = outer
    for var, value in zip(eqn.outvars, results, strict=True):
        if not isinstance(var, internals.DropVar):
            lowering.env[var] = value


def _axis_index(lowering: Lowering, block: Block, eqn: Any) -> None:
    axes = eqn.params["axis_name"]
    names = tuple(name for name in ((axes,) if isinstance(axes, str) else axes) if name in lowering.axes)
    # An axis that the mesh does not have is that of the kernel's own cores, of which there is one.
    lowering.bind_python(eqn.outvars[0], f"rt.axis_index({names!r})" if names else "0")
    found = lowering.env.get(eqn.outvars[0])
    if found is not None:
        lowering.limits[found.code] = 0, prod(lowering.axes[name] for name in names) - 1


def _program_id(lowering: Lowering, block: Block, eqn: Any) -> None:
    axis = eqn.params["axis"]
    is_one = axis < len(lowering.grid) and lowering.grid[axis] == 1
    lowering.bind_python(eqn.outvars[0], "0" if is_one else f"rt.grid_index[{axis}]")


def _num_programs(lowering: Lowering, block: Block, eqn: Any) -> None:
    axis = eqn.params["axis"]
    known = lowering.grid[axis] if axis < len(lowering.grid) else None
    lowering.bind_python(eqn.outvars[0], f"rt.grid[{axis}]" if known is None else repr(known))


def _delay(lowering: Lowering, block: Block, eqn: Any) -> None:
    lowering.flush(block)
    lowering.emit(f"core.delay({lowering.integer(block, eqn.invars[0])} * 1000, {lowering.site(eqn)})")


def _debug_print(lowering: Lowering, block: Block, eqn: Any) -> None:
    lowering.flush(block)
    values = ", ".join(lowering.read(v).code for v in eqn.invars)
    lowering.emit("if not core.join(): yield")
    lowering.emit(f"rt.debug_print({str(eqn.params['fmt'])!r}, [{values}])")


def _check(lowering: Lowering, block: Block, eqn: Any) -> None:
    """A ``pl.debug_check``, which does nothing unless ``pl.enable_debug_checks`` is set."""
    found = debug_check(eqn)
    if found is None:
        return
    failed, message = found
    is_known = lowering.data or isinstance(failed, internals.Literal) or lowering.read(failed).is_python
    lowering.flush(block)
    if is_known:
        lowering.emit(f"if {lowering.integer(block, failed)}: rt.failed_check({message!r})")


RULES: dict[str, Rule] = {
    **dict.fromkeys(internals.CALLS, _call),
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "run_scoped": _run_scoped,
    "axis_index": _axis_index,
    "program_id": _program_id,
    "num_programs": _num_programs,
    "delay": _delay,
    "debug_print": _debug_print,
    "check": _check,
}
