"""Maximal runs of pure array equations of a kernel: one call each."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import cached_property
from typing import Any

import jax
import numpy as np

from tpusim.errors import NotModelledError
from tpusim.pallas import internals


class Segment:
    """Array equations between two operations that others can see."""

    def __init__(self, eqns: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.eqns = list(eqns)
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.is_known = False
        """Whether it has a result even where a run carries no data."""
        self._function: Callable[..., Any] | None = None

    @cached_property
    def in_numpy(self) -> Callable[..., Any] | None:
        """The segment as a few NumPy calls, where that is faster than a compiled one."""
        return _in_numpy(self)

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """Arrays, NumPy scalars or Python ints of ``inputs`` to arrays of ``outputs``; large ones stay with XLA."""
        if self._function is None:
            self._function = self._compile()
        return self._function

    def _compile(self) -> Callable[..., Any]:
        if self.in_numpy is not None:
            return self.in_numpy
        run = jax.jit(internals.callable_of(self.inputs, self.outputs, self.eqns), compiler_options=_AS_WRITTEN)
        dtypes = [var.aval.dtype for var in self.inputs]
        convert = [_converter(dtype) for dtype in dtypes]
        is_large = sum(var.aval.size for var in self.outputs) >= _LARGE
        kept = [is_large or not internals.is_plain(var.aval.dtype) for var in self.outputs]

        def call(*values: Any) -> Sequence[Any]:
            try:
                results = run(*[make(value) for make, value in zip(convert, values, strict=True)])
            except NotImplementedError as error:
                raise self._unknown(error) from None
            if is_large and not any(type(value) is np.ndarray for value in values):
                return results  # type: ignore[no-any-return]
            # A NumPy input may be a view of a buffer that is written next.
            return tuple(
                result.block_until_ready() if stays else np.asarray(result)
                for result, stays in zip(results, kept, strict=True)
            )

        if self.inputs:
            return call
        known = call()
        return lambda: known

    def _unknown(self, error: NotImplementedError) -> NotModelledError:
        """What JAX cannot compute here is not modelled, unless it is said already."""
        if isinstance(error, NotModelledError) and error.finding.where is not None:
            return error
        named = [eqn for eqn in internals.equations_of(self.eqns) if f"'{eqn.primitive.name}'" in str(error)]
        eqn = named[0] if named else self.eqns[0]
        what = str(error).splitlines()[0] if not named else f"primitive {eqn.primitive.name}"
        return internals.not_modelled(what, eqn)


_SMALL = 1 << 16
_AS_WRITTEN = {"xla_allow_excess_precision": False}
"""Round to bfloat16 wherever the kernel does, as the TPU's vector unit does."""


def known_part(eqns: Sequence[Any], var: Any, masks: Set[Any] = frozenset()) -> Segment | None:
    """Those of a segment's equations that give ``var``, if they start from scalars alone; else ``None``.

    ``masks``: variables that may have any shape, and of which those from other segments may be known.
    """
    if var not in masks and (len(var.aval.shape) > 1 or var.aval.size > _SMALL):
        return None
    wanted, part = {var}, []
    for eqn in reversed(eqns):
        if wanted.isdisjoint(eqn.outvars):
            continue
        if any(v.aval.size > _SMALL and v not in masks for v in eqn.outvars):
            return None
        part.append(eqn)
        wanted.update(v for v in eqn.invars if not isinstance(v, internals.Literal))
    made = {v for eqn in part for v in eqn.outvars}
    inputs = [v for eqn in part for v in eqn.invars if not isinstance(v, internals.Literal) and v not in made]
    if any(v.aval.shape and v not in masks for v in inputs):
        return None
    segment = Segment(part[::-1], list(dict.fromkeys(inputs)), [var])
    segment.is_known = True
    return segment


_NUMPY = {
    "add": "np.add({}, {})",
    "sub": "np.subtract({}, {})",
    "mul": "np.multiply({}, {})",
    "max": "np.maximum({}, {})",
    "min": "np.minimum({}, {})",
    "neg": "np.negative({})",
    "abs": "np.abs({})",
}
"""Primitives that NumPy computes to the same bits for float32 and int32."""
_LARGE = 1 << 14
"""Results of so many elements stay arrays of XLA until something else needs them."""
_FEW = 5
"""A segment of more equations is worth a call into XLA, which costs as much as a few NumPy calls."""


def _in_numpy(segment: Segment) -> Callable[..., Any] | None:
    """The segment as a few NumPy calls, if it is one of those that a jitted call only slows down."""
    if len(segment.eqns) > _FEW:
        return None
    names = {var: f"i{n}" for n, var in enumerate(segment.inputs)}
    constants: list[Any] = []
    lines = []
    for number, eqn in enumerate(segment.eqns):
        operands = []
        for var in eqn.invars:
            if getattr(var.aval, "dtype", None) not in (np.float32, np.int32):
                return None
            if isinstance(var, internals.Literal):
                constants.append(np.asarray(var.val, var.aval.dtype))
                operands.append(f"k[{len(constants) - 1}]")
            else:
                operands.append(names[var])
        out = eqn.outvars[0]
        if eqn.primitive.name not in _NUMPY or out.aval.dtype != eqn.invars[0].aval.dtype:
            return None
        if not out.aval.shape and out.aval.dtype != np.float32:  # Python's integers would become wider ones
            return None
        names[out] = f"o{number}"
        lines.append(f"    o{number} = {_NUMPY[eqn.primitive.name].format(*operands)}")
    parameters = ", ".join(f"i{n}" for n in range(len(segment.inputs)))
    results = "".join(f"{names[var]}, " for var in segment.outputs)
    source = "\n".join([f"def segment({parameters}):", *lines, f"    return ({results})", ""])
    namespace: dict[str, Any] = {"np": np, "k": constants}
    exec(source, namespace)  # our own source
    function: Callable[..., Any] = namespace["segment"]
    return function


def _converter(dtype: Any) -> Callable[[Any], Any]:
    if isinstance(dtype, np.dtype):
        kind = dtype.type

        def make(value: Any) -> Any:
            return kind(value) if isinstance(value, int | bool) else value

        return make
    return lambda value: value
