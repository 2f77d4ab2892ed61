"""One run of a captured program, and the part of it that lies outside a ``shard_map``.

That part works on GLOBAL arrays in a greenlet of its own: it gives each device its tasks and goes on, and what
they compute are arrays that lie on the devices (see `distributed`).  So a fast device may be in the next
``shard_map`` while a slow one is still in the last.  Where the program needs a whole array, all devices join
and the host waits for them; a kernel outside a ``shard_map`` runs on the first device.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import greenlet
import jax
import numpy as np

from tpusim.errors import error_for
from tpusim.findings import Finding, Kind
from tpusim.machine.memory import holds_sentinel
from tpusim.observe import Observer
from tpusim.options import Place, RunOptions
from tpusim.pallas import internals
from tpusim.pallas.authors import Authors
from tpusim.pallas.blank import Blank, is_blank
from tpusim.pallas.collectives import Rendezvous
from tpusim.pallas.cores import program_axes
from tpusim.pallas.devices import Device, happen_at
from tpusim.pallas.distributed import Distributed, Mesh, elementwise
from tpusim.pallas.handover import HandedArrays
from tpusim.pallas.kernels import CapturedKernel, KernelInstance
from tpusim.pallas.outer import Evaluator, Plans, PureRun
from tpusim.pallas.shards import dimensions, host_array, shard
from tpusim.result import Result
from tpusim.session import Session


class Program:
    """What is known of a captured program before it runs, shared by all its runs."""

    def __init__(self) -> None:
        self.plans = Plans()
        self._kernels: dict[Any, tuple[Any, CapturedKernel]] = {}
        self._settings: dict[int, tuple[Any, dict[str, Any], tuple[RunOptions, Place, dict[str, int]]]] = {}

    def settings(self, jaxpr: Any, options: Mapping[str, Any]) -> tuple[RunOptions, Place, dict[str, int]]:
        """The options of a trace with its mesh, where it runs, and the sizes of the mesh axes."""
        found = self._settings.get(id(jaxpr))
        if found is None or found[1] != options:
            sizes, cores = program_axes(jaxpr)
            chosen = RunOptions.of({**options, "mesh": sizes})
            found = self._settings[id(jaxpr)] = jaxpr, dict(options), (chosen, chosen.place(tuple(sizes), cores), sizes)
        return found[2]

    def kernel(self, eqn: Any, axis_sizes: dict[str, int], data: bool) -> CapturedKernel:
        """The lowered kernel of an equation."""
        key = (id(eqn), tuple(axis_sizes.items()), data)
        found = self._kernels.get(key)
        if found is None:
            found = self._kernels[key] = (eqn, CapturedKernel(eqn, axis_sizes, data))
        return found[1]


class Run:
    """One run of a captured program."""

    def __init__(
        self,
        program: Program,
        closed: Any,
        options: Mapping[str, Any],
        *,
        detail: bool = False,
        calls: int = 1,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.program = program
        self.calls = calls
        """How often the program is executed; devices wait for each other in between only where it says so."""
        self.jaxpr, self.consts = internals.open_jaxpr(closed)
        chosen, place, self.axis_sizes = program.settings(self.jaxpr, options)
        self.session = Session(chosen, tuple(self.axis_sizes), detail=detail, observers=observers, place=place)
        self.machine = self.session.machine
        self.values: list[Any] = []
        self.repeats: list[list[Any]] = []
        """What it returned all times but the last."""
        self._results: list[Any] = []
        self._given: list[Any] = []
        """Arrays that came from outside."""
        self.is_over = False
        """Whether the program came to its end."""
        self.instances: dict[Any, KernelInstance] = {}
        self.meetings: dict[Any, Rendezvous] = {}
        self.handed = HandedArrays()
        self.authors = Authors()
        self.devices: list[Device] = []

    def simulate(self, leaves: Sequence[Any]) -> Result:
        """Run to the end and judge; ``values`` then holds what the program returns."""
        inputs = [_input(leaf, var.aval) for leaf, var in zip(leaves, self.jaxpr.invars, strict=True)]
        self._given = [array for array in (*inputs, *self.consts) if isinstance(array, np.ndarray)]
        with np.errstate(all="ignore"):  # the greenlets take this along
            hub = greenlet.getcurrent()
            for core in self.machine.cores:
                core.done = True
            self.devices = [Device(self, core, hub) for core in self.machine.cores[:: self.machine.group]]
            host = _Host(self, hub, inputs)
            try:
                result = self.session.finish(lambda: self._outputs(self.values), run=lambda: self._run(host))
                if result.outputs is None or not self.repeats:
                    return result
                return replace(result, repeats=tuple(self._outputs(values) or () for values in self.repeats))
            finally:
                host.end()
                for device in self.devices:
                    device.end()
                self.devices.clear()

    def _run(self, host: _Host) -> None:
        host.go_on()
        self.machine.run()
        if not all(core.done for core in self.machine.cores):
            waiting = {core: what for meeting in self.meetings.values() for core, what in meeting.stuck()}
            deadlock = self.session.deadlock(waiting)
            if deadlock is not None:
                raise error_for(deadlock)
        self._results = host.results[-1]
        *self.repeats, self.values = [
            [value.whole() if isinstance(value, Distributed) else value for value in results]
            for results in host.results
        ]
        self.is_over = True

    def freeze(self, value: Any) -> bool:
        """Have nobody change a result any more; false where it may be the memory of somebody outside."""
        if not isinstance(value, np.ndarray) or any(np.may_share_memory(value, given) for given in self._given):
            return False
        value.flags.writeable = False
        return True

    def _outputs(self, values: Sequence[Any]) -> tuple[Any, ...] | None:
        if not self.is_over or (values and all(map(is_blank, values))):
            return None
        arrays = tuple(None if is_blank(value) else host_array(value) for value in values)
        for number, array in enumerate(arrays if self.machine.has_blanks else ()):
            if array is not None and isinstance(array.dtype, np.dtype) and holds_sentinel(array):
                self._report_uninitialised(number)
        return arrays

    def _report_uninitialised(self, number: int) -> None:
        result = self._results[number]
        parts = result.parts if isinstance(result, Distributed) else [result]
        unwritten = [part for part in parts if isinstance(part, np.ndarray) and holds_sentinel(part)]
        author = next((found for part in unwritten if (found := self.authors.of(part))), None)
        argument, what, where = f"result {number}", f"result {number} of the program", None
        if author is not None:
            argument, where = author.argument, author.where
            what = f"{argument} of {author.kernel}, which is {what},"
        self.machine.report(
            Finding(
                Kind.UNINITIALISED,
                f"{what} holds memory that no kernel ever wrote (shown as NaN or a sentinel).",
                argument=argument,
                where=where,
            )
        )


def _input(leaf: Any, aval: Any) -> Any:
    """An argument as the program sees it, without data where only its type was given."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return Blank()
    return np.asarray(leaf, aval.dtype) if internals.is_plain(aval.dtype) else leaf


class _Host(Evaluator):
    """Evaluates what lies outside a ``shard_map``; ``results`` are those of the program, each time it is executed."""

    def __init__(self, run: Run, hub: greenlet.greenlet, inputs: Sequence[Any]) -> None:
        super().__init__(run.program.plans)
        self.run_ = run
        axes = len(run.axis_sizes)
        self.mesh = Mesh(run.axis_sizes, [run.machine.coordinates(d.core.device)[:axes] for d in run.devices])
        self.results: list[list[Any]] = []
        self._inputs = inputs
        self._suspend = hub.switch
        self._thread = greenlet.greenlet(self._work, hub)
        self._thread.gr_context = contextvars.copy_context()
        self.go_on = self._thread.switch
        self._now = 0
        self._given = 0
        """How many tasks were given to the devices so far."""
        self._joined = 0
        """How many of them all devices had done when they last joined."""

    def end(self) -> None:
        """Give up what is left."""
        while self._thread:
            self._thread.throw(greenlet.GreenletExit)

    def _work(self) -> None:
        for _ in range(self.run_.calls):
            self.results.append(self.evaluate(self.run_.jaxpr, self.run_.consts, self._inputs))

    def pure(self, step: PureRun, env: dict[Any, Any]) -> None:
        """Part by part where each element depends on its own place alone."""
        values = [env[var] for var in step.inputs]
        if any(isinstance(value, Distributed) for value in values):
            results = elementwise(step.eqns, step.inputs, step.outputs, values)
            if results is not None:
                env.update(zip(step.outputs, results, strict=True))
                return
            for var, value in zip(step.inputs, values, strict=True):
                env[var] = self.whole(value)
        self.run_.handed.read(self.run_.devices[0].core, step.eqns[0], values)
        step.evaluate(env)

    def whole(self, value: Any) -> Any:
        """A distributed array put together, when all devices have come that far."""
        if not isinstance(value, Distributed):
            return value
        if value.age > self._joined:
            self._wait_for_all()
        return value.whole()

    def special(self, eqn: Any, operands: list[Any], into: Sequence[Any]) -> list[Any]:
        """Give all devices a ``shard_map``, or the first one a kernel."""
        if eqn.primitive.name == "shard_map":
            return self._shard_map(eqn, operands)
        values = [self.whole(operand) for operand in operands]
        results: list[Any] = []

        def task(device: Device) -> None:
            device.participants = 1
            results.extend(device.special(eqn, values, into))
            now = device.core.now
            happen_at(self.run_.machine, now, lambda: self._resume(now))

        self.run_.devices[0].give(task, self._now)
        self._suspend()
        return results

    def _shard_map(self, eqn: Any, operands: list[Any]) -> list[Any]:
        params = eqn.params
        ranks = [len(var.aval.shape) for var in eqn.invars]
        in_specs = [dimensions(spec, rank) for spec, rank in zip(params["in_specs"], ranks, strict=True)]
        self._bring_together(eqn, operands, in_specs)
        jaxpr, consts = internals.open_jaxpr(params["jaxpr"])
        self._given += 1
        results = [
            Distributed(self.mesh, dimensions(spec, len(var.aval.shape)), var.aval, self._given)
            for spec, var in zip(params["out_specs"], eqn.outvars, strict=True)
        ]

        def task(device: Device) -> None:
            number = device.core.device // self.run_.machine.group
            device.participants = len(self.run_.devices)
            parts = [self._part(v, dims, number) for v, dims in zip(operands, in_specs, strict=True)]
            places = [result.place(number) for result in results]
            for result, part in zip(results, device.evaluate(jaxpr, consts, parts, places), strict=True):
                result.parts[number] = part

        for device in self.run_.devices:
            device.give(task, self._now)
        return list(results)

    def _part(self, value: Any, dims: Any, device: int) -> Any:
        if isinstance(value, Distributed):
            return value.cut(dims, device)
        return shard(value, dims, self.mesh.at[device], self.mesh.sizes)

    def _bring_together(self, eqn: Any, operands: Sequence[Any], in_specs: Sequence[Any]) -> None:
        """Let devices meet over those axes along which an operand is cut anew."""
        axes: list[str] = []
        for value, dims in zip(operands, in_specs, strict=True):
            if isinstance(value, Distributed) and value.age > self._joined:
                axes += value.axes_to_bring_together(dims)
        if not axes:
            return
        over = [axis for axis in self.mesh.sizes if axis in axes]
        what = f"an operand of a shard_map that is cut anew over {', '.join(over)}"
        meeting = Rendezvous(self.run_.machine, over, what, internals.where_of_equation(eqn))
        self._meet(meeting)

    def _wait_for_all(self) -> None:
        machine = self.run_.machine
        meeting = Rendezvous(machine, tuple(self.mesh.sizes), "an operation that needs a whole array", None)
        meeting.then = lambda now: happen_at(machine, now, lambda: self._resume(now))
        self._meet(meeting)
        joined = self._given
        self._suspend()
        self._joined = joined

    def _meet(self, meeting: Rendezvous) -> None:
        self._given += 1
        key = ("host", self._given)
        self.run_.meetings[key] = meeting
        for device in self.run_.devices:
            device.give(lambda device: device.meet(meeting, key, ()), self._now)

    def _resume(self, now: int) -> None:
        self._now = max(self._now, now)
        self.go_on()
