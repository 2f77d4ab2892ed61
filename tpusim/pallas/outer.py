"""What lies around the kernels of a captured program: a jaxpr evaluated step by step.

Equations that only compute are put together into compiled runs; kernel calls, collectives and the control
flow that holds them are looked at one by one.  A value is an array, or `blank` where a run carries no data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tpusim.pallas import internals
from tpusim.pallas.blank import Blank, is_blank
from tpusim.pallas.collectives import COLLECTIVES
from tpusim.pallas.shards import host_array

KERNELS = {"pallas_call", "mpmd_map"}
SPECIAL = {*KERNELS, "shard_map", "axis_index", "run_state", "core_map", *COLLECTIVES}
"""Primitives that the evaluator takes care of itself; everything else is bound on values."""


class PureRun:
    """Equations that only compute, one after the other."""

    def __init__(self, eqns: Sequence[Any], outputs: Sequence[Any]) -> None:
        made = {var for eqn in eqns for var in eqn.outvars}
        read = [v for eqn in eqns for v in eqn.invars if not isinstance(v, internals.Literal)]
        self.eqns = eqns
        self.inputs = list(dict.fromkeys(var for var in read if var not in made))
        self.outputs = list(outputs)
        self._function: Callable[..., Any] | None = None

    def evaluate(self, env: dict[Any, Any]) -> None:
        """Give ``env`` the values of the outputs."""
        values = [env[var] for var in self.inputs]
        if any(map(is_blank, values)):
            self._without_data(env)
            return
        if self._function is None:
            self._function = jax.jit(internals.callable_of(self.inputs, self.outputs, self.eqns))
        env.update(zip(self.outputs, self._function(*values), strict=True))

    def _without_data(self, env: dict[Any, Any]) -> None:
        for eqn in self.eqns:
            operands = [v.val if isinstance(v, internals.Literal) else env[v] for v in eqn.invars]
            if any(map(is_blank, operands)):
                env.update({var: Blank() for var in eqn.outvars})
            else:
                env.update(zip(eqn.outvars, internals.bind_equation(eqn, operands), strict=True))


class Plans:
    """Jaxprs of a program as steps: a `PureRun`, or an equation to look at."""

    def __init__(self) -> None:
        self._plans: dict[int, tuple[Any, list[Any]]] = {}
        self._special: dict[int, tuple[Any, bool]] = {}
        self._bodies: dict[int, tuple[Any, Any]] = {}
        self._plain: dict[int, tuple[Any, tuple[Any, Sequence[Any]] | None]] = {}

    def steps(self, jaxpr: Any) -> list[Any]:
        """The steps of a jaxpr."""
        found = self._plans.get(id(jaxpr))
        if found is None:
            found = self._plans[id(jaxpr)] = (jaxpr, self._divide(jaxpr))
        return found[1]

    def is_special(self, eqn: Any) -> bool:
        """Whether the evaluator has to look at an equation."""
        name = eqn.primitive.name
        return (
            name in SPECIAL
            or internals.is_placement(eqn)
            or any(self._holds_special(jaxpr) for jaxpr in internals.sub_jaxprs(eqn.params))
        )

    def without_refs(self, eqn: Any) -> Any:
        """The body of a ``run_state`` over arrays."""
        found = self._bodies.get(id(eqn))
        if found is None:
            found = self._bodies[id(eqn)] = (eqn, internals.without_refs(eqn.params["jaxpr"]))
        return found[1]

    def without_own_refs(self, jaxpr: Any, consts: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """A jaxpr and its constants; one that makes refs (``jax.new_ref``) as one over arrays."""
        found = self._plain.get(id(jaxpr))
        if found is None:
            makes_refs = any(internals.is_ref(var.aval) for eqn in jaxpr.eqns for var in eqn.outvars)
            body = internals.open_jaxpr(internals.without_refs(jaxpr, consts)) if makes_refs else None
            found = self._plain[id(jaxpr)] = (jaxpr, body)
        return (jaxpr, consts) if found[1] is None else found[1]

    def _holds_special(self, jaxpr: Any) -> bool:
        found = self._special.get(id(jaxpr))
        if found is None:
            found = self._special[id(jaxpr)] = (jaxpr, any(self.is_special(eqn) for eqn in jaxpr.eqns))
        return found[1]

    def _divide(self, jaxpr: Any) -> list[Any]:
        last_use = {var: len(jaxpr.eqns) for var in jaxpr.outvars if not isinstance(var, internals.Literal)}
        for position, eqn in reversed(list(enumerate(jaxpr.eqns))):
            for var in eqn.invars:
                if not isinstance(var, internals.Literal):
                    last_use.setdefault(var, position)
        steps: list[Any] = []
        pending: list[Any] = []
        for position, eqn in enumerate([*jaxpr.eqns, None]):
            if eqn is not None and not self.is_special(eqn):
                pending.append(eqn)
                continue
            outputs = [v for e in pending for v in e.outvars if last_use.get(v, -1) >= position]
            if outputs or any(e.effects for e in pending):
                steps.append(PureRun(pending, outputs))
            pending = []
            if eqn is not None:
                steps.append(eqn)
        return steps


class Evaluator:
    """Evaluates a jaxpr on values, kernel calls and collectives apart."""

    def __init__(self, plans: Plans) -> None:
        self.plans = plans

    def evaluate(self, jaxpr: Any, consts: Sequence[Any], values: Sequence[Any], into: Sequence[Any] = ()) -> list[Any]:
        """Values of the results; ``into``: arrays in which a kernel may put them, or ``None``."""
        jaxpr, consts = self.plans.without_own_refs(jaxpr, consts)
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=False))
        places = {var: place for var, place in zip(jaxpr.outvars, into, strict=False) if place is not None}
        env.update(zip(jaxpr.invars, values, strict=True))
        for step in self.plans.steps(jaxpr):
            if isinstance(step, PureRun):
                self.pure(step, env)
                continue
            operands = [v.val if isinstance(v, internals.Literal) else env[v] for v in step.invars]
            env.update(
                zip(step.outvars, self.equation(step, operands, [places.get(var) for var in step.outvars]), strict=True)
            )
        return [v.val if isinstance(v, internals.Literal) else env[v] for v in jaxpr.outvars]

    def pure(self, step: PureRun, env: dict[Any, Any]) -> None:
        """Give ``env`` the results of equations that only compute."""
        step.evaluate(env)

    def whole(self, value: Any) -> Any:
        """A value as an array of which every element is there."""
        return value

    def equation(self, eqn: Any, operands: list[Any], into: Sequence[Any]) -> list[Any]:
        """Values of one equation's results."""
        name = eqn.primitive.name
        if name in internals.CALLS:
            return self._closed(internals.called_jaxpr(eqn), operands, into)
        if internals.is_placement(eqn):
            return operands
        if name == "cond":
            branches = eqn.params["branches"]
            which = min(max(int(_known(self.whole(operands[0]), eqn)), 0), len(branches) - 1)
            return self._closed(branches[which], operands[1:])
        if name == "scan":
            return self._scan(eqn, operands)
        if name == "while":
            return self._while(eqn, operands)
        if name == "run_state":
            given = iter(operands)
            known = eqn.params.get("is_initialized", (True,) * len(eqn.outvars))
            values = [
                next(given) if is_known else np.empty(var.aval.shape, var.aval.dtype)
                for is_known, var in zip(known, eqn.outvars, strict=True)
            ]
            return self._closed(self.plans.without_refs(eqn), [self.whole(value) for value in values])
        if name not in SPECIAL:
            raise internals.not_modelled(f"primitive {name} around a kernel", eqn)
        return self.special(eqn, operands, into)

    def special(self, eqn: Any, operands: list[Any], into: Sequence[Any]) -> list[Any]:
        """A kernel call, a collective or a shard_map."""
        raise NotImplementedError

    def _closed(self, closed: Any, operands: Sequence[Any], into: Sequence[Any] = ()) -> list[Any]:
        jaxpr, consts = internals.open_jaxpr(closed)
        return self.evaluate(jaxpr, consts, operands, into)

    def _scan(self, eqn: Any, operands: list[Any]) -> list[Any]:
        parts = internals.scan_parts(eqn)
        consts = operands[: parts.num_consts]
        carry = operands[parts.num_consts : parts.num_consts + parts.num_carry]
        rest = [self.whole(x) for x in operands[parts.num_consts + parts.num_carry :]]
        xs = [None if is_blank(x) else host_array(x) for x in rest]
        length = int(eqn.params["length"])
        rows: list[list[Any]] = []
        for step in reversed(range(length)) if eqn.params.get("reverse") else range(length):
            results = self._closed(
                eqn.params["jaxpr"], [*consts, *carry, *(None if x is None else x[step] for x in xs)]
            )
            carry = results[: parts.num_carry]
            rows.append(results[parts.num_carry :])
        if eqn.params.get("reverse"):
            rows.reverse()
        if not rows:
            return [*carry, *(np.zeros(v.aval.shape, v.aval.dtype) for v in eqn.outvars[parts.num_carry :])]
        return [*carry, *(_stack([self.whole(row) for row in column]) for column in zip(*rows, strict=True))]

    def _while(self, eqn: Any, operands: list[Any]) -> list[Any]:
        params = eqn.params
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        carry = operands[second:]
        while bool(_known(self.whole(self._closed(params["cond_jaxpr"], [*operands[:first], *carry])[0]), eqn)):
            carry = self._closed(params["body_jaxpr"], [*operands[first:second], *carry])
        return carry


def _stack(rows: Sequence[Any]) -> Any:
    if any(map(is_blank, rows)):
        return Blank()
    if isinstance(rows[0], jax.Array) and not internals.is_plain(rows[0].dtype):
        return jax.numpy.stack(rows)
    return np.stack([np.asarray(row) for row in rows])


def _known(value: Any, eqn: Any) -> Any:
    if is_blank(value):
        raise internals.not_modelled(
            f"data=False: the {eqn.primitive.name} around a kernel needs a value that a kernel computes; run it with "
            "data=True",
            eqn,
        )
    return value
