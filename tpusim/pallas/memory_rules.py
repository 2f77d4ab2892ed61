"""Loads and stores of a captured kernel."""

from __future__ import annotations

from typing import Any

from jax import tree_util

from tpusim.errors import MemorySpaceError
from tpusim.findings import Finding, Kind
from tpusim.pallas import internals
from tpusim.pallas.lower import Block, Lowering, Rule, Value, is_integer, not_modelled
from tpusim.pallas.symbols import RefSymbol
from tpusim.specs import MemorySpace


def _operand(lowering: Lowering, eqn: Any) -> tuple[Any, list[Any]]:
    """The ref operand of a get or swap with its transforms, and the operands that are not part of it."""
    has_value = eqn.primitive.name in ("swap", "addupdate")
    ref, *rest = [lowering.read(var) for var in eqn.invars]
    values, flat = (rest[:1], rest[1:]) if has_value else ([], rest)
    transforms = tree_util.tree_unflatten(eqn.params["tree"], flat)
    return internals.TransformedRef(ref, tuple(transforms)), values


def _require_vector_memory(symbol: RefSymbol, verb: str, shape: tuple[int, ...], eqn: Any) -> None:
    where = internals.where_of_equation(eqn)
    if symbol.space in (MemorySpace.HBM, MemorySpace.ANY):
        way = "from" if verb == "load" else "to"
        raise MemorySpaceError(
            Finding(
                Kind.MEMORY_SPACE,
                f"vector {verb} {way} HBM ref {symbol.name}: a core reaches VMEM and SMEM only; copy it with "
                "make_async_copy or sync_copy first",
                where=where,
            )
        )
    if symbol.space is MemorySpace.SMEM and shape:
        raise MemorySpaceError(
            Finding(
                Kind.MEMORY_SPACE,
                f"{verb} of shape {shape} on SMEM ref {symbol.name}: SMEM holds scalars; index one element",
                where=where,
            )
        )


def _load(lowering: Lowering, block: Block, eqn: Any, symbol: RefSymbol, region: str, var: Any) -> None:
    site = lowering.site(eqn)
    buffer = f"buf[p{symbol.slot}]"
    if is_integer(var.aval):
        name = lowering.fresh()
        lowering.emit(f"{name} = rt.load_integer({buffer}, {region}, {site})")
        lowering.env[var] = Value(name, True)
        return
    name = lowering.fresh("x")
    lowering.emit(
        f"{name} = rt.load({buffer}, {region}, {site})",
        held=(symbol.slot, f"core.load({buffer}, {region}, {site}); {name} = {buffer}.array"),
    )
    value = lowering.env[var] = Value(name, False, symbol.slot if lowering.data else -1)
    if lowering.data:
        block.views[var] = value


def _get(lowering: Lowering, block: Block, eqn: Any) -> None:
    ref, _ = _operand(lowering, eqn)
    var = eqn.outvars[0]
    symbol, region = lowering.region(block, ref, eqn, reads=True)
    _require_vector_memory(symbol, "load", tuple(var.aval.shape), eqn)
    _load(lowering, block, eqn, symbol, region, var)


def _swap(lowering: Lowering, block: Block, eqn: Any) -> None:
    ref, (value,) = _operand(lowering, eqn)
    out = eqn.outvars[0]
    symbol, region = lowering.region(block, ref, eqn)
    _require_vector_memory(symbol, "store", tuple(out.aval.shape), eqn)
    if out in block.last_use:
        _load(lowering, block, eqn, symbol, region, out)
    lowering.flush(block, stored=symbol.slot)
    lowering.emit(f"core.store(buf[p{symbol.slot}], {region}, {lowering.site(eqn)})")
    if lowering.data or symbol.space is MemorySpace.SMEM:
        lowering.emit(
            f"buf[p{symbol.slot}].array[{region}.index] = {value.code}",
            held=(symbol.slot, f"buf[p{symbol.slot}].array = {value.code}"),
        )


def _masked_load(lowering: Lowering, block: Block, eqn: Any) -> None:
    raise not_modelled("a masked load", eqn)


def _masked_swap(lowering: Lowering, block: Block, eqn: Any) -> None:
    ref, value, mask = _masked_operands(lowering, eqn)
    if mask is not None:
        raise not_modelled("a masked store", eqn)
    symbol, region = lowering.region(block, ref, eqn)
    out = eqn.outvars[0]
    _require_vector_memory(symbol, "store", tuple(out.aval.shape), eqn)
    if out in block.last_use:
        _load(lowering, block, eqn, symbol, region, out)
    lowering.flush(block, stored=symbol.slot)
    lowering.emit(f"core.store(buf[p{symbol.slot}], {region}, {lowering.site(eqn)})")
    if lowering.data:
        lowering.emit(f"buf[p{symbol.slot}].array[{region}.index] = {value.code}")


def _masked_operands(lowering: Lowering, eqn: Any) -> tuple[Any, Any, Any]:
    leaves = [lowering.read(var) for var in eqn.invars]
    ref, transforms, value, mask = tree_util.tree_unflatten(eqn.params["args_tree"], leaves)
    return internals.TransformedRef(ref, tuple(transforms)), value, mask


RULES: dict[str, Rule] = {
    "get": _get,
    "swap": _swap,
    "masked_load": _masked_load,
    "masked_swap": _masked_swap,
}
