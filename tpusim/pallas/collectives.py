"""Where devices meet between kernels: XLA collectives, and arrays that are cut anew.

They move data, join their group and no other device, and take no simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from tpusim.errors import InternalError
from tpusim.findings import Where
from tpusim.judges.deadlock import device_ranges
from tpusim.machine.core import Core
from tpusim.machine.machine import Machine
from tpusim.pallas import internals
from tpusim.pallas.blank import Blank, is_blank

REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "psum": np.add,
    "psum_invariant": np.add,
    "pmax": np.maximum,
    "pmin": np.minimum,
}
COLLECTIVES = {
    *REDUCTIONS, "all_gather", "all_gather_invariant", "all_gather_reduced", "reduce_scatter", "all_to_all", "ppermute",
    "pbroadcast", "ragged_all_to_all", "psend", "precv", "pbroadcast_dynamic", "unreduced_psum", "unreduced_pmax",
    "unreduced_pmin", "unreduced_reduce_scatter", "preduced", "vary_unreduced_cast", "vary_unreduced_cast_p",
    *(f"{name}_{part}" for part in ("start", "done") for name in (
        "all_gather", "all_gather_reduced", "psum", "psum_invariant", "unreduced_psum", "reduce_scatter",
        "unreduced_reduce_scatter", "all_to_all", "pbroadcast", "ppermute",
    )),
}  # fmt: skip
"""Primitives over mesh axes; those that `Collective` does not know raise ``NotModelledError``."""
MODELLED = {
    *REDUCTIONS, "all_gather", "all_gather_invariant", "all_gather_reduced", "reduce_scatter", "all_to_all", "ppermute",
    "pbroadcast",
}  # fmt: skip


class Rendezvous:
    """One place of a program where groups of devices meet: what each brought, and who waits.

    ``axes``: mesh axes over which a group extends; ``subgroups``: ranks along them that meet apart.
    """

    def __init__(
        self,
        machine: Machine,
        axes: Sequence[str],
        what: str,
        where: Where | None,
        subgroups: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.machine = machine
        self.axes = tuple(axes)
        self.what = what
        self.where = where
        size = prod(machine.axis_sizes[axis] for axis in self.axes)
        self.subgroups = [list(ranks) for ranks in subgroups or [range(size)]]
        self.arrived: dict[Any, dict[int, Sequence[Any]]] = {}
        self.waiting: dict[Any, list[tuple[Core, Any]]] = {}
        self.results: dict[int, list[Any]] = {}
        self.left = 0
        """Devices that met their group."""
        self.then: Callable[[int], object] | None = None
        """Called when a group has met, with the time (ps)."""

    def join(self, core: Core, suspend: Callable[[], object], operands: Sequence[Any]) -> list[Any]:
        """Bring this device's operands, wait for its group, and get its results."""
        group, rank, size = self.place(core.device)
        here = self.arrived.setdefault(group, {})
        here[rank] = operands
        for hook in self.machine.hooks.arrived:
            hook(core, (self, group))
        if len(here) < size:
            core.done = False
            self.waiting.setdefault(group, []).append((core, core.resume))
            suspend()
        else:
            self._complete(group, core)
        return self.results.pop(core.device)

    def place(self, device: int) -> tuple[Any, int, int]:
        """The group of a device, its rank in it, and how many there are."""
        coords = dict(zip(self.machine.axis_sizes, self.machine.coordinates(device), strict=True))
        rank = 0
        for axis in self.axes:
            rank = rank * self.machine.axis_sizes[axis] + coords.pop(axis)
        number = next(number for number, ranks in enumerate(self.subgroups) if rank in ranks)
        ranks = self.subgroups[number]
        return (*coords.values(), number), ranks.index(rank), len(ranks)

    def values(self, operands: list[Any]) -> list[Any]:
        """One operand of every rank to the result of every rank."""
        raise InternalError(f"{self.what} has no rule for {len(operands)} operands")

    def stuck(self) -> Iterator[tuple[Core, tuple[str, Where | None]]]:
        """The cores that still wait for their group, and what for."""
        for group, waiting in self.waiting.items():
            here = {core.device for core, _ in waiting}
            devices = range(0, len(self.machine.cores), self.machine.group)
            missing = [device for device in devices if self.place(device)[0] == group and device not in here]
            place = f" at {self.where}" if self.where is not None else ""
            text = (
                f"in {self.what}{place}, which {device_ranges(self.machine, missing)} "
                f"never reach{'es' if len(missing) == 1 else ''}"
            )
            for core, _ in waiting:
                yield core, (text, self.where)

    def _complete(self, group: Any, last: Core) -> None:
        here = self.arrived.pop(group)
        waiting = self.waiting.pop(group, [])
        ranks = [here[rank] for rank in range(len(here))]
        columns = [self.values(list(column)) for column in zip(*ranks, strict=True)]
        cores = [last, *(core for core, _ in waiting)]
        now = max(core.now for core in cores)
        devices = sorted(core.device for core in cores)
        for core in cores:
            rank = self.place(core.device)[1]
            self.results[core.device] = [column[rank] for column in columns]
            for hook in self.machine.hooks.released:
                hook(core, (self, group), devices)
        self.left += len(cores)
        last.now = now
        for core, resume in waiting:
            self.machine.launch(core, resume, now)
        if self.then is not None:
            self.then(now)


class Collective(Rendezvous):
    """An XLA collective."""

    def __init__(self, eqn: Any, machine: Machine) -> None:
        self.eqn = eqn
        name, params = eqn.primitive.name, eqn.params
        axes = params.get("axes", params.get("axis_name", ()))
        axes = (axes,) if isinstance(axes, str) else tuple(axes)
        if name not in MODELLED:
            raise internals.not_modelled(f"the XLA collective {name}", eqn)
        if not all(axis in machine.axis_sizes for axis in axes):
            raise internals.not_modelled(f"{name} over {axes}, which are not all axes of the mesh", eqn)
        what = f"{name} over {', '.join(map(str, axes))}"
        where = internals.where_of_equation(eqn)
        super().__init__(machine, axes, what, where, params.get("axis_index_groups"))

    def values(self, operands: list[Any]) -> list[Any]:
        """What the collective makes of one operand."""
        name, params = self.eqn.primitive.name, self.eqn.params
        if any(map(is_blank, operands)):
            return [Blank() for _ in operands]
        arrays = [np.asarray(value) for value in operands]
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
        if name == "pbroadcast":
            return [arrays[params["source"]]] * len(arrays)
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
