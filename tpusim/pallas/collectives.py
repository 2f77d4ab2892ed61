"""XLA collectives between kernels: they move data, join their group, and take no simulated time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from tpusim.errors import InternalError
from tpusim.findings import Where
from tpusim.judges.deadlock import device_ranges
from tpusim.launch import Suspend
from tpusim.machine.core import Core
from tpusim.machine.machine import Machine
from tpusim.pallas import internals

REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "psum": np.add,
    "psum_invariant": np.add,
    "pmax": np.maximum,
    "pmin": np.minimum,
}
COLLECTIVES = {
    *REDUCTIONS, "all_gather", "all_gather_invariant", "all_gather_reduced", "reduce_scatter", "all_to_all", "ppermute",
    "ragged_all_to_all", "psend", "precv", "pbroadcast_dynamic", "unreduced_psum", "unreduced_pmax", "unreduced_pmin",
    "unreduced_reduce_scatter", "preduced", "vary_unreduced_cast", "vary_unreduced_cast_p",
    *(f"{name}_{part}" for part in ("start", "done") for name in (
        "all_gather", "all_gather_reduced", "psum", "psum_invariant", "unreduced_psum", "reduce_scatter",
        "unreduced_reduce_scatter", "all_to_all", "pbroadcast", "ppermute",
    )),
}  # fmt: skip
"""Primitives over mesh axes; those that `Rendezvous` does not know raise ``NotModelledError``."""
MODELLED = {
    *REDUCTIONS, "all_gather", "all_gather_invariant", "all_gather_reduced", "reduce_scatter", "all_to_all", "ppermute",
}  # fmt: skip


class Rendezvous:
    """One collective of a program: its groups of devices, the values they brought, and who waits."""

    def __init__(self, eqn: Any, machine: Machine, axis_sizes: dict[str, int]) -> None:
        self.eqn = eqn
        self.machine = machine
        self.axis_sizes = axis_sizes
        params = eqn.params
        axes = params.get("axes", params.get("axis_name", ()))
        self.axes = (axes,) if isinstance(axes, str) else tuple(axes)
        name = eqn.primitive.name
        if name not in MODELLED:
            raise internals.not_modelled(f"the XLA collective {name}", eqn)
        if params.get("axis_index_groups") is not None:
            raise internals.not_modelled(f"{name} with axis_index_groups", eqn)
        if not all(axis in axis_sizes for axis in self.axes):
            raise internals.not_modelled(f"{name} over {self.axes}, which are not all axes of the mesh", eqn)
        self.arrived: dict[Any, dict[int, Sequence[Any]]] = {}
        self.waiting: dict[Any, list[tuple[Core, Any]]] = {}
        self.results: dict[int, list[Any]] = {}

    def join(self, core: Core, suspend: Suspend, operands: Sequence[Any]) -> list[Any]:
        """Bring this device's operands, wait for its group, and get its results."""
        names = list(self.axis_sizes)
        coords = self.machine.coordinates(core.device)
        group = tuple(c for name, c in zip(names, coords, strict=True) if name not in self.axes)
        rank = 0
        for name in self.axes:
            rank = rank * self.axis_sizes[name] + coords[names.index(name)]
        size = prod(self.axis_sizes[name] for name in self.axes)
        here = self.arrived.setdefault(group, {})
        here[rank] = operands
        if len(here) < size:
            core.done = False
            self.waiting.setdefault(group, []).append((core, core.resume))
            suspend()
        else:
            self._complete(group, core)
        return self.results[core.device]

    def stuck(self) -> Iterator[tuple[Core, tuple[str, Where | None]]]:
        """The cores that still wait for their group, and what for."""
        names = ", ".join(map(str, self.axes))
        where = internals.where_of_equation(self.eqn)
        for group, waiting in self.waiting.items():
            here = {core.device for core, _ in waiting}
            missing = [device for device in self._devices_of(group) if device not in here]
            text = (
                f"in {self.eqn.primitive.name} over {names} at {where}, which {device_ranges(self.machine, missing)} "
                f"never reach{'es' if len(missing) == 1 else ''}"
            )
            for core, _ in waiting:
                yield core, (text, where)

    def _devices_of(self, group: Any) -> list[int]:
        names = list(self.axis_sizes)
        found = []
        for device in range(len(self.machine.cores)):
            coords = self.machine.coordinates(device)
            if tuple(c for name, c in zip(names, coords, strict=True) if name not in self.axes) == group:
                found.append(device)
        return found

    def _complete(self, group: Any, last: Core) -> None:
        here = self.arrived[group]
        waiting = self.waiting.pop(group, [])
        ranks = [here[rank] for rank in range(len(here))]
        results = [
            list(column) for column in zip(*(self._values(list(v)) for v in zip(*ranks, strict=True)), strict=True)
        ]
        now = max([last.now, *(core.now for core, _ in waiting)])
        names = list(self.axis_sizes)
        for core in (last, *(core for core, _ in waiting)):
            rank = 0
            coords = self.machine.coordinates(core.device)
            for name in self.axes:
                rank = rank * self.axis_sizes[name] + coords[names.index(name)]
            self.results[core.device] = results[rank]
        last.now = now
        for core, resume in waiting:
            self.machine.launch(core, resume, now)

    def _values(self, values: list[Any]) -> list[Any]:
        """One operand of every rank to the result of every rank."""
        name, params = self.eqn.primitive.name, self.eqn.params
        if any(value is None for value in values):
            return [None] * len(values)
        arrays = [np.asarray(value) for value in values]
        if name in REDUCTIONS:
            return [_reduce(REDUCTIONS[name], arrays)] * len(arrays)
        if name in ("all_gather", "all_gather_invariant", "all_gather_reduced"):
            axis = params["all_gather_dimension"]
            whole = np.concatenate(arrays, axis) if params["tiled"] else np.stack(arrays, axis)
            return [whole] * len(arrays)
        if name == "reduce_scatter":
            axis = params["scatter_dimension"]
            pieces = np.split(_reduce(np.add, arrays), len(arrays), axis)
            return pieces if params["tiled"] else [piece.squeeze(axis) for piece in pieces]
        if name == "ppermute":
            moved = [np.zeros_like(array) for array in arrays]
            for source, target in params["perm"]:
                moved[target] = arrays[source]
            return moved
        if name == "all_to_all":
            return _all_to_all(arrays, params)
        raise InternalError(f"the XLA collective {name} has no rule")


def _reduce(operation: Callable[[Any, Any], Any], arrays: list[Any]) -> Any:
    total = arrays[0]
    for array in arrays[1:]:
        total = operation(total, array)
    return total


def _all_to_all(arrays: list[Any], params: dict[str, Any]) -> list[Any]:
    """JAX gives the form that is not tiled dimensions of size one and squeezes them itself."""
    split, concat, count = params["split_axis"], params["concat_axis"], len(arrays)
    pieces = [np.split(array, count, split) for array in arrays]
    return [np.concatenate([row[rank] for row in pieces], concat) for rank in range(count)]
