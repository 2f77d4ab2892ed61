"""Random numbers of a captured kernel; see `random_bits` for what they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpusim.pallas import internals
from tpusim.pallas.block import Block, Value, is_integer
from tpusim.pallas.lower import Lowering, Rule


def is_impure(eqn: Any) -> bool:
    """Whether an equation works on a Pallas key, which only the rules here understand."""
    return any(internals.pallas_key(v.aval) for v in (*eqn.invars, *eqn.outvars))


def _bind(lowering: Lowering, eqn: Any, code: str) -> None:
    var = eqn.outvars[0]
    if isinstance(var, internals.DropVar):
        return
    name = lowering.fresh("r")
    lowering.emit(f"{name} = {code}")
    lowering.env[var] = Value(name, False)


def _seed(lowering: Lowering, block: Block, eqn: Any) -> None:
    lowering.flush(block)
    seeds = [
        f"*map(int, {lowering.read(v).code}.ravel())" if not is_integer(v.aval) else lowering.integer(block, v)
        for v in eqn.invars
    ]
    lowering.emit(f"rt.seed([{', '.join(seeds)}])")


def _bits(lowering: Lowering, eqn: Any, shape: Any) -> None:
    var = eqn.outvars[0]
    dtype = np.dtype(var.aval.dtype).name
    sizes = tuple(int(dim) for dim in shape)
    lowering.emit(f"core.compute(rt.random_ps({sizes!r}), 'random bits', {lowering.site(eqn)})")
    code = f"rt.random().bits({sizes!r}, '{dtype}')"
    if is_integer(var.aval):
        lowering.bind_python(var, f"int({code})")
    else:
        _bind(lowering, eqn, code if lowering.data else "None")


def _prng_random_bits(lowering: Lowering, block: Block, eqn: Any) -> None:
    lowering.flush(block)
    _bits(lowering, eqn, eqn.params["shape"])


def _on_keys(lowering: Lowering, block: Block, eqn: Any) -> None:
    """Equations on keys: those of Pallas here, JAX's own in a segment."""
    if not is_impure(eqn):
        lowering.defer(block, eqn)
        return
    lowering.flush(block)
    name = eqn.primitive.name
    kind = next(k for v in (*eqn.invars, *eqn.outvars) if (k := internals.pallas_key(v.aval)))
    if any(getattr(v.aval, "shape", ()) for v in eqn.invars if internals.pallas_key(v.aval)):
        raise internals.not_modelled(f"{name} on several Pallas keys", eqn)
    if kind == "stateful":
        if name == "random_bits":
            _bits(lowering, eqn, eqn.params["shape"])
        else:
            _bind(lowering, eqn, "None")
        return
    first = lowering.read(eqn.invars[0])
    if name == "random_seed":
        _bind(lowering, eqn, f"make_key({lowering.integer(block, eqn.invars[0])})")
    elif name == "random_fold_in":
        _bind(lowering, eqn, f"fold_in({first.code}, {lowering.integer(block, eqn.invars[1])})")
    elif name == "random_bits":
        lowering.emit(f"rt.seed([*map(int, {first.code}.ravel())])")
        _bits(lowering, eqn, eqn.params["shape"])
    elif name in ("random_wrap", "random_unwrap"):
        _bind(lowering, eqn, first.code)
    elif name == "prng_split":
        for number, var in enumerate(eqn.outvars):
            lowering.bind_python(var, f"int({first.code}[0, {number}])")
    elif name == "prng_join":
        _bind(lowering, eqn, f"join_key({', '.join(lowering.integer(block, v) for v in eqn.invars)})")
    else:
        raise internals.not_modelled(f"{name} on a Pallas key", eqn)


RULES: dict[str, Rule] = {
    "prng_seed": _seed,
    "prng_random_bits": _prng_random_bits,
    **dict.fromkeys(
        ("random_seed", "random_fold_in", "random_bits", "random_wrap", "random_unwrap", "random_split", "random_clone",
         "prng_split", "prng_join"), _on_keys,
    ),
}  # fmt: skip
