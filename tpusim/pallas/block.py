"""One jaxpr while it is lowered, and what its variables are in the generated code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import tree_util

from tpusim.pallas import internals
from tpusim.pallas.lowered import Origin


@dataclass
class Value:
    """A value of the kernel in the generated code.

    ``code`` is an expression (a name or a literal); ``is_python``: an int or bool of Python, else an
    array; ``slot``: the buffer that an array still looks into, -1 for none.
    """

    code: str
    is_python: bool
    slot: int = -1


class Block:
    """Equations of one jaxpr while they are lowered: pending array equations, loads, and who is used when."""

    def __init__(self, jaxpr: Any, around: Origin) -> None:
        self.jaxpr = jaxpr
        self.around = around
        self.position = 0
        self.pending: list[Any] = []
        self.views: dict[Any, Value] = {}
        self.regions: dict[tuple[int, str], str] = {}
        """Names of regions looked up before in this block, by buffer and index; its names never change meaning."""
        self.last_use: dict[Any, int] = {}
        for position, eqn in enumerate(jaxpr.eqns):
            for var in eqn.invars:
                if not isinstance(var, internals.Literal):
                    self.last_use[var] = position
        for var in jaxpr.outvars:
            if not isinstance(var, internals.Literal):
                self.last_use[var] = len(jaxpr.eqns)
        self.masks = masks_of(jaxpr)

    def is_only_used_by(self, primitive: str, var: Any) -> bool:
        """Whether nothing but equations of this kind asks for a variable."""
        users = {eqn.primitive.name for eqn in self.jaxpr.eqns for used in eqn.invars if used is var}
        return users <= {primitive} and not any(result is var for result in self.jaxpr.outvars)


_MASK_AT = {"masked_load": 2, "masked_swap": 3}
"""Where the mask is among the operands."""


def masks_of(jaxpr: Any) -> set[Any]:
    """The variables that a mask of a load or store is computed from, itself included.

    A run without data computes them where they come from scalars alone, so that the place of the access is exact.
    """
    found: set[Any] = set()

    def add(operands: Iterable[Any]) -> None:
        found.update(v for v in operands if v is not None and not isinstance(v, internals.Literal))

    for eqn in reversed(jaxpr.eqns):
        name, operands = eqn.primitive.name, eqn.invars
        if name in _MASK_AT:
            add([tree_util.tree_unflatten(eqn.params["args_tree"], operands)[_MASK_AT[name]]])
        elif name in ("cond", "jit", "pjit"):
            for inner in internals.sub_jaxprs(eqn.params):
                masks = masks_of(inner)
                passed = operands[len(operands) - len(inner.invars) :]
                add(var for var, within in zip(passed, inner.invars, strict=True) if within in masks)
        if not found.isdisjoint(eqn.outvars):
            add(operands)
    return found


def is_integer(aval: Any) -> bool:
    """Whether a value of this type is a scalar int or bool, which the generated code keeps as a Python int."""
    dtype = getattr(aval, "dtype", None)
    if dtype is None or getattr(aval, "shape", None) != ():
        return False
    return isinstance(dtype, np.dtype) and dtype.kind in "iub"
