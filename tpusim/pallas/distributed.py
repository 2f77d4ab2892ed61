"""GLOBAL arrays of a captured program that lie in parts on the devices, each there when its device has come that far.

What one ``shard_map`` hands to the next stays where it is, so a device goes on without the others.  Elementwise
operations between them work on each part alone.  An array that is cut anew is put together from the parts of
those devices that hold what is needed; anything else needs all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import jax
import numpy as np

from tpusim.machine.memory import empty_array
from tpusim.pallas import internals
from tpusim.pallas.blank import is_blank
from tpusim.pallas.shards import Axes, block_slices, gather, shard

ELEMENTWISE = {
    "abs", "add", "and", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "cos", "cosh", "div", "eq", "erf",
    "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p",
    "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or", "pow", "rem", "round", "rsqrt",
    "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square",
    "stop_gradient", "sub", "tan", "tanh", "xor",
}  # fmt: skip
"""Primitives whose results have the shape of their operands, each element made of those in the same place."""


class Mesh:
    """The devices of a run by their place in the mesh."""

    def __init__(self, sizes: dict[str, int], places: Sequence[tuple[int, ...]]) -> None:
        self.sizes = sizes
        self.places = places
        self.at = [dict(zip(sizes, coords, strict=True)) for coords in places]

    def group(self, device: int, axes: Sequence[str]) -> list[int]:
        """The devices that differ from one at most along some axes."""
        mine = self.at[device]
        return [
            other
            for other, at in enumerate(self.at)
            if all(at[axis] == index for axis, index in mine.items() if axis not in axes)
        ]


class Distributed:
    """A GLOBAL array in parts; ``age`` counts what devices were given to do before it is complete."""

    def __init__(self, mesh: Mesh, dims: Axes, aval: Any, age: int) -> None:
        self.mesh = mesh
        self.dims = [tuple(axis for axis in names if mesh.sizes[axis] > 1) for names in dims]
        self.aval = aval
        self.age = age
        self.parts: list[Any] = [None] * len(mesh.places)
        self._whole: Any = None
        """All of it, if the devices put their parts into ``_places``."""
        self._places: list[Any] = [None] * len(mesh.places)

    def part(self, device: int) -> Any:
        """What a device holds, once it has come that far."""
        return self.parts[device]

    def place(self, device: int) -> Any:
        """Where a device may put its part so that nobody has to move it; ``None`` where that is no piece of memory."""
        if not self._lies_in_pieces():
            return None
        if self._whole is None:
            self._whole = empty_array(tuple(self.aval.shape), self.aval.dtype)
        rows, *_ = block_slices(self.dims, self.mesh.at[device], self.mesh.sizes, self.aval.shape)
        found = self._places[device] = self._whole[rows]
        return found

    def _lies_in_pieces(self) -> bool:
        """Whether every device has some rows of its own."""
        if not self.dims or not internals.is_plain(self.aval.dtype):
            return False
        first, *rest = self.dims
        return not any(rest) and math.prod(self.mesh.sizes[axis] for axis in first) == len(self.parts)

    def whole(self) -> Any:
        """All of it, once all devices have come that far."""
        parts = [self.part(device) for device in range(len(self.parts))]
        if self._whole is not None and all(map(is_, parts, self._places)):
            return self._whole
        return gather(parts, self.dims, self.aval, self.mesh.places, self.mesh.sizes)

    def axes_to_bring_together(self, dims: Axes) -> list[str]:
        """The mesh axes over which devices have to meet before each holds its part for another cut."""
        wanted = [tuple(axis for axis in names if self.mesh.sizes[axis] > 1) for names in dims]
        return [axis for old, new in zip(self.dims, wanted, strict=True) if new[: len(old)] != old for axis in old]

    def cut(self, dims: Axes, device: int) -> Any:
        """What a device holds under another cut, once those have come that far which hold it now."""
        axes = self.axes_to_bring_together(dims)
        mesh = self.mesh
        here = self.part(device)
        if is_blank(here) or dims == self.dims:
            return here
        if not internals.is_plain(self.aval.dtype):
            return shard(self.whole(), dims, mesh.at[device], mesh.sizes)
        wanted = block_slices(dims, mesh.at[device], mesh.sizes, self.aval.shape)
        result = np.empty([part.stop - part.start for part in wanted], self.aval.dtype)
        for other in mesh.group(device, axes) if axes else [device]:
            held = block_slices(self.dims, mesh.at[other], mesh.sizes, self.aval.shape)
            low = [max(a.start, b.start) for a, b in zip(wanted, held, strict=True)]
            high = [min(a.stop, b.stop) for a, b in zip(wanted, held, strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            into = tuple(slice(a - w.start, b - w.start) for a, b, w in zip(low, high, wanted, strict=True))
            of = tuple(slice(a - h.start, b - h.start) for a, b, h in zip(low, high, held, strict=True))
            result[into] = np.asarray(self.part(other))[of]
        return result


class Elementwise(Distributed):
    """One result of elementwise operations on distributed arrays; ``compute``: all results for a device."""

    def __init__(self, like: Distributed, aval: Any, age: int, position: int, compute: Callable[[int], Any]) -> None:
        super().__init__(like.mesh, like.dims, aval, age)
        self.position = position
        self.compute = compute

    def part(self, device: int) -> Any:
        """Computed when it is needed."""
        results = self.compute(device)
        return None if results is None else results[self.position]


def elementwise(
    eqns: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], values: Sequence[Any]
) -> list[Distributed] | None:
    """The results of equations over distributed arrays, part by part; ``None`` where they need more than that.

    ``values`` are those of ``inputs``: distributed arrays cut alike, whole ones of the same shape, and scalars.
    """
    cut = [value for value in values if isinstance(value, Distributed)]
    first = cut[0]
    mesh = first.mesh
    shape = tuple(first.aval.shape)
    if any(other.dims != first.dims for other in cut) or not _keeps_places(eqns, inputs, outputs, shape):
        return None
    local = tuple(
        part.stop - part.start for part in block_slices(first.dims, first.mesh.at[0], first.mesh.sizes, shape)
    )
    function = jax.jit(lambda *operands: _evaluate(inputs, outputs, eqns, local, operands))
    known: dict[int, Any] = {}

    def compute(device: int) -> Any:
        if device not in known:
            operands = [
                value.part(device)
                if isinstance(value, Distributed)
                else shard(value, first.dims if np.ndim(value) else [], mesh.at[device], mesh.sizes)
                for value in values
            ]
            known[device] = None if any(map(is_blank, operands)) else function(*operands)
        return known[device]

    age = max(value.age for value in cut)
    return [Elementwise(first, var.aval, age, position, compute) for position, var in enumerate(outputs)]


def _keeps_places(eqns: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], shape: tuple[int, ...]) -> bool:
    """Whether every array in equations has one shape, or is a scalar, and each element comes from its place alone."""
    if any(tuple(var.aval.shape) not in (shape, ()) for var in inputs):
        return False
    if any(tuple(var.aval.shape) != shape for var in outputs):
        return False
    return all(_keeps_place(eqn, shape) for eqn in eqns)


def _keeps_place(eqn: Any, shape: tuple[int, ...]) -> bool:
    name = eqn.primitive.name
    if any(tuple(var.aval.shape) not in (shape, ()) for var in (*eqn.invars, *eqn.outvars)):
        return False
    if name == "broadcast_in_dim":
        return not eqn.invars[0].aval.shape
    if name in internals.CALLS:
        jaxpr, consts = internals.open_jaxpr(internals.called_jaxpr(eqn))
        return not len(consts) and all(_keeps_place(inner, shape) for inner in jaxpr.eqns)
    return name in ELEMENTWISE


def _evaluate(
    invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any], local: tuple[int, ...], values: Sequence[Any]
) -> list[Any]:
    """Equations on parts of shape ``local``."""
    env = dict(zip(invars, values, strict=True))
    for eqn in eqns:
        operands = [var.val if isinstance(var, internals.Literal) else env[var] for var in eqn.invars]
        if eqn.primitive.name == "broadcast_in_dim":
            results: Sequence[Any] = [jax.numpy.broadcast_to(operands[0], local)]
        elif eqn.primitive.name in internals.CALLS:
            inner, _ = internals.open_jaxpr(internals.called_jaxpr(eqn))
            results = _evaluate(inner.invars, inner.outvars, inner.eqns, local, operands)
        else:
            results = internals.bind_equation(eqn, operands)
        env.update(zip(eqn.outvars, results, strict=True))
    return [var.val if isinstance(var, internals.Literal) else env[var] for var in outvars]
