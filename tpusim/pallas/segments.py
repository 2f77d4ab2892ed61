"""Maximal runs of pure array equations of a kernel: one call each, one compute cost each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tpusim.costs import CostTable
from tpusim.pallas import internals


class Segment:
    """Array equations between two operations that others can see."""

    def __init__(self, eqns: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.eqns = list(eqns)
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self._function: Callable[..., Any] | None = None

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """NumPy arrays, NumPy scalars or Python ints of ``inputs`` to NumPy arrays of ``outputs``."""
        if self._function is None:
            self._function = self._compile()
        return self._function

    def _compile(self) -> Callable[..., Any]:
        run = jax.jit(internals.callable_of(self.inputs, self.outputs, self.eqns))
        dtypes = [var.aval.dtype for var in self.inputs]
        convert = [_converter(dtype) for dtype in dtypes]

        def call(*values: Any) -> tuple[Any, ...]:
            typed = [make(value) for make, value in zip(convert, values, strict=True)]
            return tuple(np.asarray(result) for result in run(*typed))

        return call

    def cycles(self, costs: CostTable) -> int:
        """Cycles on a chip: the slots of all its equations together, at least one."""
        slots: dict[str, float] = {}
        for eqn in self.eqns:
            _add_slots(slots, eqn, costs, 1)
        return max(1, costs.slot_cycles(slots))


def _converter(dtype: Any) -> Callable[[Any], Any]:
    if isinstance(dtype, np.dtype):
        kind = dtype.type

        def make(value: Any) -> Any:
            return kind(value) if isinstance(value, int | bool) else value

        return make
    return lambda value: value


def _add_slots(slots: dict[str, float], eqn: Any, costs: CostTable, times: int) -> None:
    inner = list(internals.sub_jaxprs(eqn.params))
    if inner:
        repeat = times * int(eqn.params.get("length", 1)) if eqn.primitive.name == "scan" else times
        for jaxpr in inner:
            for sub in jaxpr.eqns:
                _add_slots(slots, sub, costs, repeat)
        return
    shapes = tuple(tuple(int(dim) for dim in v.aval.shape) for v in eqn.invars if hasattr(v.aval, "shape"))
    out = eqn.outvars[0].aval
    if not hasattr(out, "shape") or not isinstance(out.dtype, np.dtype):
        return
    dtype = next((v.aval.dtype for v in eqn.invars if isinstance(getattr(v.aval, "dtype", None), np.dtype)), out.dtype)
    name = eqn.primitive.name
    if name == "dot_general":
        shapes = _matmul_shapes(eqn)
    for unit, amount in costs.slots(name, dtype, shapes, tuple(out.shape), out_dtype=out.dtype).items():
        slots[unit] = slots.get(unit, 0.0) + amount * times


def _matmul_shapes(eqn: Any) -> tuple[tuple[int, ...], ...]:
    (contract_left, contract_right), (batch_left, batch_right) = eqn.params["dimension_numbers"]
    left, right = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape
    batch = tuple(int(left[d]) for d in batch_left)
    k = int(np.prod([left[d] for d in contract_left], dtype=np.int64))
    m = int(np.prod([s for d, s in enumerate(left) if d not in (*contract_left, *batch_left)], dtype=np.int64))
    n = int(np.prod([s for d, s in enumerate(right) if d not in (*contract_right, *batch_right)], dtype=np.int64))
    return (*batch, m, k), (*batch, k, n)
