"""What a core computes between two points at which others can see it: loads, array equations, stores.

That, and not a single equation, is what has a cost: the compiler schedules all of it together, so a store goes on
beside the arithmetic and a sum of parts would be far too much.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.costs import CostTable
from tpusim.costs.estimate import Estimate, Mixture
from tpusim.pallas import internals

if TYPE_CHECKING:
    from tpusim.pallas.symbols import RefSymbol


class Work:
    """Equations of a kernel that run as one piece; `Lowering` adds them in program order and closes it.

    ``refs``: the buffer behind each variable that is a ref; ``scalars``: what comes from outside and a scalar unit
    knows; ``arrays``: values from before, which have to be loaded; ``escapes``: values that are needed after it.
    """

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.eqns: list[Any] = []
        self.refs: dict[Any, RefSymbol] = {}
        self.scalars: list[Any] = []
        self.arrays: list[Any] = []
        self.escapes: list[Any] = []
        self.views = False
        """Whether it reaches a buffer through a part with a name of its own."""
        self._made: set[Any] = set()

    def add(self, eqn: Any, env: Mapping[Any, Any], ref: RefSymbol | None) -> None:
        """Add an equation; ``ref``: the buffer it loads or stores."""
        self.eqns.append(eqn)
        for var in eqn.invars:
            if isinstance(var, internals.Literal) or var in self._made:
                continue
            if internals.is_ref(var.aval):
                if ref is None or env[var] is not ref:
                    self.views = True
                else:
                    self.refs[var] = ref
            elif not getattr(var.aval, "shape", ()):
                self.scalars.append(var)
            else:
                self.arrays.append(var)
        self._made.update(var for var in eqn.outvars if not isinstance(var, internals.DropVar))

    def close(self, needed: set[Any]) -> None:
        """Nothing more is added; ``needed`` are the variables of later equations."""
        loaded = {var for eqn in self.eqns if eqn.primitive.name == "get" for var in eqn.outvars}
        self.scalars = list(dict.fromkeys(self.scalars))
        self.arrays = list(dict.fromkeys(self.arrays))
        self.escapes = [v for eqn in self.eqns for v in eqn.outvars if v in needed and v not in loaded]

    @property
    def last(self) -> Any:
        """The equation whose line stands for all of it."""
        pure = [eqn for eqn in self.eqns if not is_access(eqn)]
        return (pure or self.eqns)[-1]

    @property
    def accesses(self) -> int:
        """How many loads and stores it has."""
        return sum(is_access(eqn) for eqn in self.eqns)

    def estimate(self, costs: CostTable) -> Estimate:
        """Cycles on a chip by the slots of all its equations together."""
        mixture = Mixture(costs)
        sources = {v: e.invars[0] for e in self.eqns if e.primitive.name == "broadcast_in_dim" for v in e.outvars}
        for var in self.arrays:
            mixture.access(_dtype(var), tuple(var.aval.shape), is_store=False)
        for eqn in self.eqns:
            _mix(mixture, eqn, 1, sources)
        for var in self.escapes:
            mixture.access(_dtype(var), tuple(var.aval.shape), is_store=True)
        return mixture.estimate()

    @property
    def text(self) -> str:
        """What the compiler's answer depends on, without names, lines and addresses."""
        names: dict[Any, str] = {}
        slots: dict[int, int] = {}
        for symbol in self.refs.values():
            slots.setdefault(symbol.slot, len(slots))

        def name(var: Any) -> str:
            if isinstance(var, internals.Literal):
                return repr(var.val)
            if var in self.refs:
                symbol = self.refs[var]
                return f"ref{slots[symbol.slot]}:{symbol.shape}:{symbol.dtype}"
            return f"{names.setdefault(var, f'v{len(names)}')}:{var.aval}"

        def names_of(variables: Sequence[Any]) -> str:
            return " ".join(map(name, variables))

        lines = [
            f"{names_of(eqn.invars)} {eqn.primitive.name} {_parameters(eqn)} {names_of(eqn.outvars)}"
            for eqn in self.eqns
        ]
        return "\n".join([*lines, names_of(self.escapes)])


def is_access(eqn: Any) -> bool:
    """Whether an equation loads or stores."""
    return eqn.primitive.name in ("get", "swap", "addupdate", "masked_load", "masked_swap")


def _parameters(eqn: Any) -> str:
    return re.sub(r"0x[0-9a-f]+", "", str(sorted((key, str(value)) for key, value in eqn.params.items())))


def _dtype(var: Any) -> np.dtype[Any]:
    dtype = getattr(var.aval, "dtype", None)
    return dtype if isinstance(dtype, np.dtype) else np.dtype(np.int32)


def _shape(var: Any) -> tuple[int, ...]:
    return tuple(int(dim) for dim in getattr(var.aval, "shape", ()))


def _mix(mixture: Mixture, eqn: Any, times: int, sources: Mapping[Any, Any]) -> None:
    """Add an equation, as often as it runs; ``sources``: what variables were broadcast from."""
    name = eqn.primitive.name
    if name in ("get", "masked_load"):
        mixture.access(_dtype(eqn.outvars[0]), _shape(eqn.outvars[0]), is_store=False)
        return
    if name in ("swap", "masked_swap", "addupdate"):
        values = [v for v in eqn.invars if not internals.is_ref(v.aval)]
        value = next((v for v in reversed(values) if _shape(v)), values[-1])
        stored = eqn.outvars[0] if eqn.outvars else value
        if name != "swap":
            mixture.access(_dtype(stored), _shape(stored), is_store=False)
        mixture.access(_dtype(stored), _shape(stored), is_store=True)
        if name == "addupdate":
            mixture.operation("add", _dtype(stored), (_shape(stored),) * 2, _shape(stored))
        return
    inner = list(internals.sub_jaxprs(eqn.params))
    if inner:
        repeat = times * int(eqn.params.get("length", 1)) if name == "scan" else times
        for jaxpr in inner:
            for sub in jaxpr.eqns:
                _mix(mixture, sub, repeat, {})
        return
    out = eqn.outvars[0].aval
    if not hasattr(out, "shape") or not isinstance(out.dtype, np.dtype):
        return
    dtype = next((v.aval.dtype for v in eqn.invars if isinstance(getattr(v.aval, "dtype", None), np.dtype)), out.dtype)
    if name == "div" and not isinstance(eqn.invars[1], internals.Literal) and eqn.invars[1] in sources:
        # equal registers are divided by once: reciprocals of what was broadcast, and a product
        divisor = _shape(sources[eqn.invars[1]])
        mixture.operation("div", dtype, (divisor, divisor), divisor, times=times)
        name = "mul"
    shapes = matmul_shapes(eqn) if name == "dot_general" else tuple(_shape(v) for v in eqn.invars)
    axes = eqn.params.get("axes") or eqn.params.get("broadcast_dimensions") or eqn.params.get("permutation")
    mixture.operation(
        name, dtype, shapes, _shape(eqn.outvars[0]), out_dtype=out.dtype, axes=axes and tuple(axes), times=times
    )


def matmul_shapes(eqn: Any) -> tuple[tuple[int, ...], ...]:
    """A ``dot_general`` as ``(..., m, k)`` times ``(..., k, n)``."""
    (contract_left, contract_right), (batch_left, batch_right) = eqn.params["dimension_numbers"]
    left, right = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape
    batch = tuple(int(left[d]) for d in batch_left)
    k = int(np.prod([left[d] for d in contract_left], dtype=np.int64))
    m = int(np.prod([s for d, s in enumerate(left) if d not in (*contract_left, *batch_left)], dtype=np.int64))
    n = int(np.prod([s for d, s in enumerate(right) if d not in (*contract_right, *batch_right)], dtype=np.int64))
    return (*batch, m, k), (*batch, k, n)
