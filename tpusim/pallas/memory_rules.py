"""Loads and stores of a captured kernel."""

from __future__ import annotations

from typing import Any

from jax import tree_util

from tpusim.errors import MemorySpaceError
from tpusim.findings import Finding, Kind
from tpusim.pallas import internals
from tpusim.pallas.block import Block, Value, is_integer
from tpusim.pallas.lower import Lowering, Rule
from tpusim.pallas.symbols import RefSymbol
from tpusim.specs import MemorySpace


def _operand(lowering: Lowering, eqn: Any) -> tuple[Any, list[Any]]:
    """The ref operand of a get or swap with its transforms, and the operands that are not part of it."""
    has_value = eqn.primitive.name != "get"
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
    if symbol.space is MemorySpace.VMEM_SHARED:
        raise internals.not_modelled(f"vector {verb} of VMEM_SHARED ref {symbol.name}", eqn)
    if symbol.space is MemorySpace.SMEM and shape and symbol.key is None:
        raise MemorySpaceError(
            Finding(
                Kind.MEMORY_SPACE,
                f"{verb} of shape {shape} on SMEM ref {symbol.name}: SMEM holds scalars; index one element",
                where=where,
            )
        )


def _load(lowering: Lowering, eqn: Any, symbol: RefSymbol, region: str, block: Block, var: Any) -> None:
    """Load a region; what the variable is from now on."""
    site = lowering.site(eqn)
    if symbol.key is None:
        lowering.compute(eqn, symbol)
    buffer = f"buf[p{symbol.slot}]"
    is_view = region in lowering.views
    if is_integer(var.aval):
        name = lowering.fresh()
        lowering.emit(
            f"{name} = rt.load_integer{'_view' if is_view else ''}({buffer}, {region}, {site})",
            held=(symbol.slot, f"{name} = rt.load_scalar({buffer}, {lowering.scalars.get(region)}).item()"),
        )
        lowering.env[var] = Value(name, True)
        return
    name = lowering.fresh("x")
    if symbol.key is not None:
        lowering.emit(f"{name} = rt.load({buffer}, {region}, {site}).copy()")
        if internals.pallas_key(var.aval) is None:
            lowering.emit(f"{name} = wrap_key({name}, {symbol.key!r})")
        lowering.env[var] = Value(name, False)
        return
    if is_view:
        lowering.emit(f"{name} = rt.load_view({buffer}, {region}, {site})")
    else:
        lowering.emit(
            f"{name} = rt.load({buffer}, {region}, {site})",
            held=(
                symbol.slot,
                f"{name} = rt.load_scalar({buffer}, {lowering.scalars[region]})"
                if region in lowering.scalars
                else f"core.load({buffer}, {region}, {site}); {name} = {buffer}.array",
            ),
        )
    value = lowering.env[var] = Value(name, False, symbol.slot if lowering.data else -1)
    if lowering.data:
        block.views[var] = value


def _store(
    lowering: Lowering,
    block: Block,
    eqn: Any,
    symbol: RefSymbol,
    region: str,
    code: str,
    source: int = -1,
    charge: str = "",
) -> None:
    """Store a value, once it is computed; ``source``: the buffer it still looks into, if any.

    ``charge``: the line that takes the time, if it is not that of a plain store.
    """
    buffer = f"buf[p{symbol.slot}]"
    scalar = lowering.scalars.get(region)
    charge = charge or f"core.store({buffer}, {region}, {lowering.site(eqn)})"
    lowering.emit(charge, held=None if scalar is None else (symbol.slot, "pass"))
    if scalar is not None:
        line = f"rt.put({buffer}, {region}, {code})"
        lowering.emit(line, held=(symbol.slot, f"rt.store_scalar({buffer}, {scalar}, {code})"))
    elif not lowering.data:
        if symbol.space is MemorySpace.SMEM:
            lowering.emit(f"rt.put({buffer}, {region}, {code})")
    elif region in lowering.views:
        lowering.emit(f"{region}.write({buffer}.array, {code})")
    else:
        line = f"{buffer}.array[{region}.index] = {code}"
        lowering.emit(line, held=(symbol.slot, f"{buffer}.array = {code}"), source=source)


def _get(lowering: Lowering, block: Block, eqn: Any) -> None:
    ref, _ = _operand(lowering, eqn)
    var = eqn.outvars[0]
    symbol, region = lowering.region(block, ref, eqn, reads=True)
    _require_vector_memory(symbol, "load", tuple(var.aval.shape), eqn)
    _load(lowering, eqn, symbol, region, block, var)


def _swap(lowering: Lowering, block: Block, eqn: Any) -> None:
    ref, (value,) = _operand(lowering, eqn)
    out = eqn.outvars[0]
    symbol, region = lowering.region(block, ref, eqn)
    _require_vector_memory(symbol, "store", tuple(out.aval.shape), eqn)
    if out in block.last_use:
        _load(lowering, eqn, symbol, region, block, out)
    else:
        lowering.compute(eqn, symbol)
    lowering.flush(block, stored=symbol.slot)
    _store(lowering, block, eqn, symbol, region, value.code, value.slot)


def _addupdate(lowering: Lowering, block: Block, eqn: Any) -> None:
    ref, (value,) = _operand(lowering, eqn)
    symbol, region = lowering.region(block, ref, eqn)
    _require_vector_memory(symbol, "store", tuple(eqn.invars[1].aval.shape), eqn)
    lowering.flush(block, stored=symbol.slot)
    lowering.compute(eqn, symbol)
    old = lowering.fresh("x")
    lowering.emit(f"{old} = rt.load_view(buf[p{symbol.slot}], {region}, {lowering.site(eqn)})")
    sum_ = f"{old} + {value.code}" if lowering.data else f"rt.add({old}, {value.code})"
    _store(lowering, block, eqn, symbol, region, sum_)


def _masked_load(lowering: Lowering, block: Block, eqn: Any) -> None:
    leaves = [lowering.read(var) for var in eqn.invars]
    ref, transforms, mask, other = tree_util.tree_unflatten(eqn.params["args_tree"], leaves)
    var = eqn.outvars[0]
    symbol, region = lowering.region(block, internals.TransformedRef(ref, tuple(transforms)), eqn, reads=True)
    _require_vector_memory(symbol, "load", tuple(var.aval.shape), eqn)
    if mask is None:
        _load(lowering, eqn, symbol, region, block, var)
        return
    lowering.flush(block)  # the mask
    lowering.compute(eqn, symbol)
    name = lowering.fresh("x")
    lowering.emit(f"{name} = rt.load_masked(buf[p{symbol.slot}], {region}, {mask.code}, {lowering.site(eqn)})")
    lowering.emit(f"{name} = rt.where({mask.code}, {name}, {'None' if other is None else other.code}, {region})")
    if is_integer(var.aval):
        lowering.emit(f"{name} = {name}.item()")
    lowering.env[var] = Value(name, is_integer(var.aval))


def _masked_swap(lowering: Lowering, block: Block, eqn: Any) -> None:
    leaves = [lowering.read(var) for var in eqn.invars]
    ref, transforms, value, mask = tree_util.tree_unflatten(eqn.params["args_tree"], leaves)
    symbol, region = lowering.region(block, internals.TransformedRef(ref, tuple(transforms)), eqn)
    out = eqn.outvars[0]
    _require_vector_memory(symbol, "store", tuple(out.aval.shape), eqn)
    if out in block.last_use:
        _load(lowering, eqn, symbol, region, block, out)
    else:
        lowering.compute(eqn, symbol)
    lowering.flush(block, stored=symbol.slot)
    if mask is None:
        _store(lowering, block, eqn, symbol, region, value.code)
        return
    old = f"rt.peek(buf[p{symbol.slot}], {region})"
    code = f"rt.where({mask.code}, {value.code}, {old}, {region})"
    charge = f"rt.store_masked(buf[p{symbol.slot}], {region}, {mask.code}, {lowering.site(eqn)})"
    _store(lowering, block, eqn, symbol, region, code, charge=charge)


def _nothing(lowering: Lowering, block: Block, eqn: Any) -> None:
    """Orders or annotates for the compiler only."""


RULES: dict[str, Rule] = {
    "get": _get,
    "swap": _swap,
    "addupdate": _addupdate,
    "masked_load": _masked_load,
    "masked_swap": _masked_swap,
    "add_dependency": _nothing,
    "trace_value": _nothing,
}
