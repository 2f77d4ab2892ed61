"""What only vector subcores of a SparseCore do: loads and stores by indices or a mask, and their barrier."""

from __future__ import annotations

from typing import Any

from jax import tree_util

from tpusim.errors import MemorySpaceError
from tpusim.findings import Finding, Kind
from tpusim.pallas import internals
from tpusim.pallas.block import Block, Value, is_integer
from tpusim.pallas.control_rules import assign_results, names_of_results
from tpusim.pallas.lower import Lowering, Rule
from tpusim.pallas.memory_rules import RULES as PLAIN
from tpusim.specs import MemorySpace


def _region(lowering: Lowering, block: Block, eqn: Any, ref: Any, transforms: Any, *, reads: bool) -> str:
    """The operands ``buffer, region`` of what a vector operation reaches, which is VMEM."""
    whole = internals.TransformedRef(ref, tuple(transforms))
    symbol, region = lowering.region(block, whole, eqn, reads=reads)
    if symbol.space is not MemorySpace.SUBCORE_VMEM:
        raise MemorySpaceError(
            Finding(
                Kind.MEMORY_SPACE,
                f"{eqn.primitive.name} of {symbol.space.name} ref {symbol.name}: a subcore reaches its VMEM only",
                where=internals.where_of_equation(eqn),
            )
        )
    lowering.compute(eqn, symbol)
    return f"buf[p{symbol.slot}], {region}"


def _code(value: Any) -> str:
    return "None" if value is None else str(value.code)


def _gather(lowering: Lowering, block: Block, eqn: Any) -> None:
    if not any(internals.is_ref(v.aval) for v in eqn.invars):
        lowering.defer(block, eqn)  # that of jax.lax
        return
    leaves = [lowering.read(v) for v in eqn.invars]
    ref, transforms, indices, mask = tree_util.tree_unflatten(eqn.params["tree"], leaves)
    lowering.flush(block)
    place = _region(lowering, block, eqn, ref, transforms or (), reads=True)
    name = lowering.fresh("x")
    listed = "".join(f"{_code(index)}, " for index in indices)
    lowering.emit(f"{name} = rt.load_gather({place}, ({listed}), {_code(mask)}, {lowering.site(eqn)})")
    lowering.env[eqn.outvars[0]] = Value(name, False)


def _scatter(lowering: Lowering, block: Block, eqn: Any) -> None:
    if not any(internals.is_ref(v.aval) for v in eqn.invars):
        lowering.defer(block, eqn)
        return
    leaves = [lowering.read(v) for v in eqn.invars]
    ref, transforms, indices, x, mask = tree_util.tree_unflatten(eqn.params["tree"], leaves)
    lowering.flush(block)
    place = _region(lowering, block, eqn, ref, transforms or (), reads=False)
    listed = "".join(f"{_code(index)}, " for index in indices)
    adds = bool(eqn.params["add"])
    lowering.emit(f"rt.store_scatter({place}, ({listed}), {_code(x)}, {_code(mask)}, {adds}, {lowering.site(eqn)})")


def _load(lowering: Lowering, block: Block, eqn: Any) -> None:
    """``load_expanded``."""
    ref, *rest = [lowering.read(v) for v in eqn.invars]
    if not eqn.params["has_mask"]:
        raise internals.not_modelled("primitive load without a mask", eqn)
    *flat, mask = rest
    lowering.flush(block)
    place = _region(lowering, block, eqn, ref, tree_util.tree_unflatten(eqn.params["tree"], flat), reads=True)
    name = lowering.fresh("x")
    lowering.emit(f"{name} = rt.load_expanded({place}, {_code(mask)}, {lowering.site(eqn)})")
    lowering.env[eqn.outvars[0]] = Value(name, False)


def _swap(lowering: Lowering, block: Block, eqn: Any) -> None:
    """``store_compressed``, ``addupdate`` and ``addupdate_compressed``; any other store is the plain one."""
    params = eqn.params
    if "has_mask" not in params:
        PLAIN["swap"](lowering, block, eqn)
        return
    ref, x, *rest = [lowering.read(v) for v in eqn.invars]
    flat, mask = (rest[:-1], rest[-1]) if params["has_mask"] else (rest, None)
    if mask is not None and not params.get("compress", True):
        raise internals.not_modelled("a masked store that is not compressed", eqn)
    lowering.flush(block)
    place = _region(lowering, block, eqn, ref, tree_util.tree_unflatten(params["tree"], flat), reads=False)
    lowering.emit(
        f"rt.store_compressed({place}, {_code(x)}, {_code(mask)}, {bool(params['add'])}, {lowering.site(eqn)})"
    )


def _parallel_loop(lowering: Lowering, block: Block, eqn: Any) -> None:
    """One turn after the other: the order is free for a program whose turns do not depend on each other."""
    lowering.flush(block)
    leaves = [lowering.read(v) for v in eqn.invars]
    lower, upper, step, consts, carry = tree_util.tree_unflatten(eqn.params["tree"], leaves)
    bounds = ", ".join(lowering.integer(block, bound) for bound in (lower, upper, step))
    jaxpr, _ = internals.open_jaxpr(eqn.params["jaxpr"])
    variables = [*jaxpr.constvars, *jaxpr.invars]  # 0.12 has the constants among the others
    names = names_of_results(lowering, eqn.outvars, carry)
    values = [Value(name, is_integer(v.aval)) for name, v in zip(names, eqn.outvars, strict=True)]
    turn = lowering.fresh()
    lowering.emit(f"for {turn} in range({bounds}):")
    lowering.depth += 1
    lowering.emit("rt.turn()")
    lowering.env.update(zip(variables, [*consts, Value(turn, True), *values], strict=True))
    results = lowering.lower_jaxpr(jaxpr)
    assign_results(lowering, names, results, eqn.outvars)
    lowering.depth -= 1
    for var, value in zip(eqn.outvars, values, strict=True):
        if not isinstance(var, internals.DropVar):
            lowering.env[var] = value


def _barrier(lowering: Lowering, block: Block, eqn: Any) -> None:
    if not lowering.is_sparse or len(lowering.cores) < 2:
        raise internals.not_modelled("primitive barrier outside a kernel on vector subcores", eqn)
    lowering.flush(block)
    lowering.emit(f"yield from rt.subcore_barrier({list(lowering.cores.values())[-1]}, {lowering.site(eqn)})")


RULES: dict[str, Rule] = {
    "gather": _gather,
    "scatter": _scatter,
    "load": _load,
    "swap": _swap,
    "parallel_loop": _parallel_loop,
    "barrier": _barrier,
}
