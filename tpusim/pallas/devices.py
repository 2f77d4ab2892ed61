"""One run of a captured program: its host part, and every device in a greenlet of its own."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

import greenlet
import jax
import numpy as np

from tpusim.errors import error_for
from tpusim.findings import Finding, Kind
from tpusim.judges.deadlock import find_deadlock
from tpusim.machine.core import Core
from tpusim.machine.memory import holds_sentinel
from tpusim.options import RunOptions
from tpusim.pallas import internals
from tpusim.pallas.collectives import Rendezvous
from tpusim.pallas.handover import HandedArrays
from tpusim.pallas.kernels import CapturedKernel, KernelInstance
from tpusim.pallas.outer import KERNELS, Evaluator, Plans
from tpusim.pallas.shards import dimensions, gather, host_array, key_words, mesh_of, shard
from tpusim.result import Result
from tpusim.session import Session


class Program:
    """What is known of a captured program before it runs, shared by all its runs."""

    def __init__(self) -> None:
        self.plans = Plans()
        self._kernels: dict[Any, tuple[Any, CapturedKernel]] = {}

    def kernel(self, eqn: Any, axis_sizes: dict[str, int], data: bool) -> CapturedKernel:
        """The lowered kernel of an equation."""
        key = (id(eqn), tuple(axis_sizes.items()), data)
        found = self._kernels.get(key)
        if found is None:
            found = self._kernels[key] = (eqn, CapturedKernel(eqn, axis_sizes, data))
        return found[1]


class Run:
    """One run of a captured program."""

    def __init__(self, program: Program, closed: Any, options: dict[str, Any], *, detail: bool = False) -> None:
        self.program = program
        self.jaxpr, self.consts = internals.open_jaxpr(closed)
        self.axis_sizes = mesh_of(self.jaxpr)
        self.session = Session(
            RunOptions.of({**options, "mesh": self.axis_sizes}), tuple(self.axis_sizes), detail=detail
        )
        self.machine = self.session.machine
        self.values: list[Any] = []
        self.turns: dict[tuple[int, int], int] = {}
        self.instances: dict[Any, KernelInstance] = {}
        self.meetings: dict[Any, Rendezvous] = {}
        self.handed = HandedArrays()
        self.greenlets: list[greenlet.greenlet] = []

    def simulate(self, leaves: Sequence[Any]) -> Result:
        """Run to the end and judge; ``values`` then holds what the program returns."""
        host = _Host(self, greenlet.getcurrent())
        inputs = [_input(leaf, var.aval) for leaf, var in zip(leaves, self.jaxpr.invars, strict=True)]
        try:
            with np.errstate(all="ignore"):
                return self.session.finish(self._outputs, run=lambda: host.run(inputs))
        finally:
            for thread in self.greenlets:
                while thread:
                    thread.throw(greenlet.GreenletExit)

    def _outputs(self) -> tuple[Any, ...] | None:
        if self.values and all(value is None for value in self.values):
            return None
        arrays = tuple(None if value is None else host_array(value) for value in self.values)
        for number, array in enumerate(arrays):
            if array is not None and isinstance(array.dtype, np.dtype) and holds_sentinel(array):
                self.machine.report(
                    Finding(
                        Kind.UNINITIALISED,
                        f"result {number} of the program holds memory that no kernel ever wrote (shown as NaN or a "
                        "sentinel).",
                        argument=f"result {number}",
                    )
                )
        return arrays

    def turn(self, core: Core, eqn: Any) -> tuple[int, int]:
        """Identifies an equation's present execution on a device: the same on all devices for the same turn."""
        place = (core.device, id(eqn))
        turn = self.turns[place] = self.turns.get(place, -1) + 1
        return id(eqn), turn


def _input(leaf: Any, aval: Any) -> Any:
    """An argument as the program sees it: ``None`` where only its type was given."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return None
    return np.asarray(leaf, aval.dtype) if internals.is_plain(aval.dtype) else leaf


class _Host(Evaluator):
    """Evaluates what lies outside a ``shard_map``: on GLOBAL arrays; a kernel there runs on the first device."""

    def __init__(self, run: Run, hub: greenlet.greenlet) -> None:
        super().__init__(run.program.plans)
        self.run_ = run
        self.hub = hub

    def run(self, values: Sequence[Any]) -> None:
        """Evaluate the whole program."""
        self.run_.values = self.evaluate(self.run_.jaxpr, self.run_.consts, values)

    def special(self, eqn: Any, operands: list[Any]) -> list[Any]:
        """Run all devices through a ``shard_map``, or one device through a kernel."""
        if eqn.primitive.name == "shard_map":
            return self._shard_map(eqn, operands)
        return self._devices([lambda device: device.special(eqn, operands)])[0]

    def _shard_map(self, eqn: Any, operands: list[Any]) -> list[Any]:
        params = eqn.params
        jaxpr, consts = internals.open_jaxpr(params["jaxpr"])
        sizes = self.run_.axis_sizes
        ranks = [len(var.aval.shape) for var in eqn.invars]
        in_specs = [dimensions(spec, rank) for spec, rank in zip(params["in_specs"], ranks, strict=True)]
        places = [self.run_.machine.coordinates(d) for d in range(len(self.run_.machine.cores))]
        programs = []
        for coords in places:
            at = dict(zip(sizes, coords, strict=True))
            shards = [shard(v, dims, at, sizes) for v, dims in zip(operands, in_specs, strict=True)]
            programs.append(lambda device, shards=shards: device.evaluate(jaxpr, consts, shards))
        results = self._devices(programs)
        gathered = []
        for number, (spec, var) in enumerate(zip(params["out_specs"], eqn.outvars, strict=True)):
            parts = [result[number] for result in results]
            gathered.append(gather(parts, dimensions(spec, len(var.aval.shape)), var.aval, places, sizes))
        return gathered

    def _devices(self, programs: Sequence[Callable[[_Device], list[Any]]]) -> list[list[Any]]:
        run, machine = self.run_, self.run_.machine
        results: list[list[Any]] = [[] for _ in programs]
        context = contextvars.copy_context()
        for number, (core, program) in enumerate(zip(machine.cores, programs, strict=False)):
            device = _Device(run, core, self.hub)

            def main(number: int = number, device: _Device = device, program: Any = program) -> None:
                results[number] = program(device)
                device.core.done = True

            thread = greenlet.greenlet(main)
            thread.gr_context = context.copy()
            run.greenlets.append(thread)
            core.done = False
            machine.launch(core, thread.switch, machine.env.now)
        machine.run()
        self._require_all(machine.cores[: len(programs)])
        run.greenlets.clear()
        run.instances.clear()
        run.meetings.clear()
        return results

    def _require_all(self, cores: Sequence[Core]) -> None:
        """Raise the deadlock of devices that cannot go on."""
        if all(core.done for core in cores):
            return
        waiting = {core: what for meeting in self.run_.meetings.values() for core, what in meeting.stuck()}
        machine = self.run_.machine
        deadlock = find_deadlock(machine, self.run_.session.log, {**machine.absent(), **waiting})
        if deadlock is not None:
            raise error_for(deadlock)


class _Device(Evaluator):
    """Evaluates one device's part of a program."""

    def __init__(self, run: Run, core: Core, hub: greenlet.greenlet) -> None:
        super().__init__(run.program.plans)
        self.run_ = run
        self.core = core
        self.suspend = hub.switch

    def special(self, eqn: Any, operands: list[Any]) -> list[Any]:
        """Enter a kernel, meet the group of a collective, or say which device this is."""
        run, name = self.run_, eqn.primitive.name
        if name == "axis_index":
            return [np.int32(_axis_index(run, self.core, eqn.params["axis_name"]))]
        if name == "shard_map":
            raise internals.not_modelled("a shard_map inside a shard_map", eqn)
        key = run.turn(self.core, eqn)
        if name in KERNELS:
            instance = run.instances.get(key)
            if instance is None:
                kernel = run.program.kernel(eqn, run.axis_sizes, run.machine.data)
                instance = run.instances[key] = KernelInstance(kernel, run.machine, run.session.printed_by, run.handed)
            results = instance.run(self.core, self.suspend, [key_words(value) for value in operands])
            if instance.is_over:
                del run.instances[key]
            return results
        meeting = run.meetings.get(key)
        if meeting is None:
            meeting = run.meetings[key] = Rendezvous(eqn, run.machine, run.axis_sizes)
        return meeting.join(self.core, self.suspend, operands)


def _axis_index(run: Run, core: Core, axis: Any) -> int:
    coords = dict(zip(run.axis_sizes, run.machine.coordinates(core.device), strict=True))
    index = 0
    for name in (axis,) if isinstance(axis, str) else axis:
        index = index * run.axis_sizes[name] + coords[name]
    return index
