"""Unmodified Pallas programs on the simulated machine: traced and evaluated by us.

The outer function is traced once for argument types; no virtual CPU devices are needed, and a mesh may
be abstract.  Each device evaluates its part of the program in a greenlet of its own and enters kernels
when it gets there: calls are not joined unless the program joins them.  XLA operations between kernels
run for their data and take no simulated time; a collective among them joins its group.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

import greenlet
import jax
import numpy as np

from tpusim.errors import NotModelledError, OptionError, error_for
from tpusim.judges.deadlock import find_deadlock
from tpusim.machine.core import Core
from tpusim.options import RunOptions
from tpusim.pallas import internals
from tpusim.pallas.collectives import COLLECTIVES, Rendezvous
from tpusim.pallas.kernels import CapturedKernel, KernelInstance
from tpusim.result import Result
from tpusim.session import Session
from tpusim.units import Duration

CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2"}
SPECIAL = {"pallas_call", "shard_map", "axis_index", *COLLECTIVES}
"""Primitives that the evaluator takes care of itself; everything else is bound on values."""


def simulate(fn: Callable[..., Any], **options: Any) -> CapturedProgram:
    """A callable with ``fn``'s signature and results that runs its Pallas kernels on the simulated machine.

    ``options`` are the run options; ``mesh`` is the program's own.  After a call, ``.result`` is its
    :class:`tpusim.Result`.
    """
    return CapturedProgram(fn, options)


class CapturedProgram:
    """``fn`` on the simulated machine; see :func:`simulate`."""

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        if "mesh" in options:
            raise OptionError("a captured program brings its own mesh: leave the option mesh out")
        RunOptions.of(options)
        internals.warn_if_newer()
        self.fn = fn
        self.options = options
        self.result: Result | None = None
        self._traces: dict[Any, Any] = {}
        self._kernels: dict[Any, CapturedKernel] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run; returns what ``fn`` returns, as NumPy arrays.  Raises the error of the first finding."""
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        closed, out_tree = self._trace(leaves, tree)
        run = _Run(self, closed)
        try:
            self.result = run.simulate(leaves)
        except Exception as error:
            self.result = getattr(error, "result", None)
            raise
        if self.result.outputs is None:
            return None
        return jax.tree_util.tree_unflatten(out_tree, self.result.outputs)

    def _trace(self, leaves: list[Any], tree: Any) -> tuple[Any, Any]:
        key = (tree, tuple((np.shape(x), np.result_type(x).name, getattr(x, "weak_type", False)) for x in leaves))
        found = self._traces.get(key)
        if found is None:
            args, kwargs = jax.tree_util.tree_unflatten(tree, leaves)
            closed, shape = jax.make_jaxpr(self.fn, return_shape=True)(*args, **kwargs)
            found = self._traces[key] = (closed, jax.tree_util.tree_structure(shape))
        return found

    def kernel(self, eqn: Any, axis_sizes: dict[str, int], data: bool) -> CapturedKernel:
        """The lowered kernel of an equation."""
        key = (id(eqn), tuple(axis_sizes.items()), data)
        found = self._kernels.get(key)
        if found is None:
            found = self._kernels[key] = CapturedKernel(eqn, axis_sizes, data)
        return found


class _Run:
    """One run of a captured program."""

    def __init__(self, program: CapturedProgram, closed: Any) -> None:
        self.program = program
        self.jaxpr, self.consts = internals.open_jaxpr(closed)
        self.axis_sizes = _mesh_of(self.jaxpr)
        options = RunOptions.of({**program.options, "mesh": self.axis_sizes})
        self.session = Session(options, tuple(self.axis_sizes))
        self.machine = self.session.machine
        self.outputs: tuple[Any, ...] | None = None
        self.instances: dict[Any, KernelInstance] = {}
        self.meetings: dict[Any, Rendezvous] = {}
        self.greenlets: list[greenlet.greenlet] = []
        self.special: dict[int, bool] = {}

    def simulate(self, leaves: Sequence[Any]) -> Result:
        """Run to the end and judge."""
        hub = greenlet.getcurrent()
        values = [np.asarray(leaf) for leaf in leaves]
        outer = _Host(self, hub)
        try:
            return self.session.finish(lambda: self.outputs, run=lambda: outer.run(values))
        finally:
            for thread in self.greenlets:
                while thread:
                    thread.throw(greenlet.GreenletExit)

    def log(self, core: Core, text: str) -> None:
        """Keep a line that a kernel printed."""
        line = f"[device {self.machine.coordinates(core.device)}, t = {Duration(core.now)}] {text}"
        self.session.printed.append(line)
        for hook in self.machine.hooks.logged:
            hook(core, line)

    def is_special(self, jaxpr: Any) -> bool:
        """Whether a jaxpr holds anything the evaluator has to see."""
        found = self.special.get(id(jaxpr))
        if found is None:
            found = any(eqn.primitive.name in SPECIAL for eqn in internals.all_equations(jaxpr))
            self.special[id(jaxpr)] = found
        return found


class _Evaluator:
    """Evaluates a jaxpr on values, kernel calls and collectives apart."""

    def __init__(self, run: _Run) -> None:
        self.run_ = run
        self.counts: dict[int, int] = {}

    def evaluate(self, jaxpr: Any, consts: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """Values of the results."""
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=False))
        env.update(zip(jaxpr.invars, values, strict=True))
        for eqn in jaxpr.eqns:
            operands = [v.val if isinstance(v, internals.Literal) else env[v] for v in eqn.invars]
            for var, value in zip(eqn.outvars, self.equation(eqn, operands), strict=True):
                env[var] = value
        return [v.val if isinstance(v, internals.Literal) else env[v] for v in jaxpr.outvars]

    def equation(self, eqn: Any, operands: list[Any]) -> list[Any]:
        """Values of one equation's results."""
        name = eqn.primitive.name
        if name not in SPECIAL and not any(self.run_.is_special(j) for j in internals.sub_jaxprs(eqn.params)):
            return internals.bind_equation(eqn, operands)
        if name in CALLS:
            params = eqn.params
            closed = params.get("jaxpr") or params.get("call_jaxpr") or params.get("fun_jaxpr")
            return self._closed(closed, operands)
        if name == "cond":
            branches = eqn.params["branches"]
            which = min(max(int(operands[0]), 0), len(branches) - 1)
            return self._closed(branches[which], operands[1:])
        if name == "scan":
            return self._scan(eqn, operands)
        if name == "while":
            return self._while(eqn, operands)
        return self.special(eqn, operands)

    def special(self, eqn: Any, operands: list[Any]) -> list[Any]:
        """A kernel call, a collective or a shard_map."""
        raise NotImplementedError

    def _closed(self, closed: Any, operands: Sequence[Any]) -> list[Any]:
        jaxpr, consts = internals.open_jaxpr(closed)
        return self.evaluate(jaxpr, consts, operands)

    def _scan(self, eqn: Any, operands: list[Any]) -> list[Any]:
        parts = internals.scan_parts(eqn)
        consts = operands[: parts.num_consts]
        carry = operands[parts.num_consts : parts.num_consts + parts.num_carry]
        xs = operands[parts.num_consts + parts.num_carry :]
        length = int(eqn.params["length"])
        rows: list[list[Any]] = []
        for step in reversed(range(length)) if eqn.params.get("reverse") else range(length):
            results = self._closed(eqn.params["jaxpr"], [*consts, *carry, *(x[step] for x in xs)])
            carry = results[: parts.num_carry]
            rows.append(results[parts.num_carry :])
        if eqn.params.get("reverse"):
            rows.reverse()
        stacked = [np.stack([np.asarray(v) for v in column]) for column in zip(*rows, strict=True)]
        if not rows:
            stacked = [np.zeros(v.aval.shape, v.aval.dtype) for v in eqn.outvars[parts.num_carry :]]
        return [*carry, *stacked]

    def _while(self, eqn: Any, operands: list[Any]) -> list[Any]:
        params = eqn.params
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        carry = operands[second:]
        while bool(self._closed(params["cond_jaxpr"], [*operands[:first], *carry])[0]):
            carry = self._closed(params["body_jaxpr"], [*operands[first:second], *carry])
        return carry


class _Host(_Evaluator):
    """Evaluates what lies outside a ``shard_map``: on GLOBAL arrays; a kernel there runs on the first device."""

    def __init__(self, run: _Run, hub: greenlet.greenlet) -> None:
        super().__init__(run)
        self.hub = hub

    def run(self, values: Sequence[Any]) -> None:
        """Evaluate the whole program."""
        results = self.evaluate(self.run_.jaxpr, self.run_.consts, values)
        self.run_.outputs = tuple(None if v is None else np.asarray(v) for v in results)

    def special(self, eqn: Any, operands: list[Any]) -> list[Any]:
        """Run all devices through a ``shard_map``, or one device through a kernel."""
        if eqn.primitive.name == "shard_map":
            return self._shard_map(eqn, operands)
        results = self._devices([lambda device: device.special(eqn, operands)])
        return results[0]

    def _shard_map(self, eqn: Any, operands: list[Any]) -> list[Any]:
        params = eqn.params
        jaxpr, consts = internals.open_jaxpr(params["jaxpr"])
        sizes = self.run_.axis_sizes
        in_specs = [_dimensions(spec, np.ndim(v)) for spec, v in zip(params["in_specs"], operands, strict=True)]
        programs = []
        places = [self.run_.machine.coordinates(d) for d in range(len(self.run_.machine.cores))]
        for coords in places:
            at = dict(zip(sizes, coords, strict=True))
            shards = [_shard(v, dims, at, sizes) for v, dims in zip(operands, in_specs, strict=True)]
            programs.append(lambda device, shards=shards: device.evaluate(jaxpr, consts, shards))
        results = self._devices(programs)
        out_specs = [
            _dimensions(spec, len(var.aval.shape)) for spec, var in zip(params["out_specs"], eqn.outvars, strict=True)
        ]
        gathered = []
        for number, (dims, var) in enumerate(zip(out_specs, eqn.outvars, strict=True)):
            parts = [result[number] for result in results]
            gathered.append(_gather(parts, dims, var.aval, places, sizes))
        return gathered

    def _devices(self, programs: Sequence[Callable[[_Device], list[Any]]]) -> list[list[Any]]:
        run = self.run_
        results: list[list[Any]] = [[] for _ in programs]
        context = contextvars.copy_context()
        for number, (core, program) in enumerate(zip(run.machine.cores, programs, strict=False)):
            device = _Device(run, core, self.hub)

            def main(number: int = number, device: _Device = device, program: Any = program) -> None:
                results[number] = program(device)
                device.core.done = True

            thread = greenlet.greenlet(main)
            thread.gr_context = context.copy()
            run.greenlets.append(thread)
            core.done = False
            run.machine.launch(core, thread.switch)
        run.machine.run()
        if any(not core.done for core in run.machine.cores[: len(programs)]):
            deadlock = find_deadlock(run.machine, run.session.log)
            if deadlock is not None:
                raise error_for(deadlock)
            raise NotModelledError("devices wait for others in an XLA collective that those never reach")
        return results


class _Device(_Evaluator):
    """Evaluates one device's part of a program."""

    def __init__(self, run: _Run, core: Core, hub: greenlet.greenlet) -> None:
        super().__init__(run)
        self.core = core
        self.suspend = hub.switch

    def special(self, eqn: Any, operands: list[Any]) -> list[Any]:
        """Enter a kernel, meet the group of a collective, or say which device this is."""
        run, name = self.run_, eqn.primitive.name
        if name == "axis_index":
            return [np.int32(_axis_index(run, self.core, eqn.params["axis_name"]))]
        if name == "shard_map":
            raise NotModelledError("a shard_map inside a shard_map")
        turn = self.counts.get(id(eqn), 0)
        self.counts[id(eqn)] = turn + 1
        if name == "pallas_call":
            instance = run.instances.get((id(eqn), turn))
            if instance is None:
                kernel = run.program.kernel(eqn, run.axis_sizes, run.machine.data)
                instance = run.instances[id(eqn), turn] = KernelInstance(kernel, run.machine, run.log)
            return instance.run(self.core, self.suspend, operands)
        meeting = run.meetings.get((id(eqn), turn))
        if meeting is None:
            meeting = run.meetings[id(eqn), turn] = Rendezvous(eqn, run.machine, run.axis_sizes)
        return meeting.join(self.core, self.suspend, operands)


def _axis_index(run: _Run, core: Core, axis: Any) -> int:
    coords = dict(zip(run.axis_sizes, run.machine.coordinates(core.device), strict=True))
    index = 0
    for name in (axis,) if isinstance(axis, str) else axis:
        index = index * run.axis_sizes[name] + coords[name]
    return index


def _mesh_of(jaxpr: Any) -> dict[str, int]:
    """The mesh of a program: that of its shard_maps, which must agree; one device without any."""
    meshes = {
        tuple((str(axis), int(size)) for axis, size in eqn.params["mesh"].shape.items())
        for eqn in internals.all_equations(jaxpr)
        if eqn.primitive.name == "shard_map"
    }
    if len(meshes) > 1:
        raise NotModelledError(f"shard_maps over different meshes: {sorted(meshes)}")
    return dict(meshes.pop()) if meshes else {"x": 1}


def _dimensions(spec: Any, rank: int) -> list[tuple[str, ...]]:
    """Mesh axes of each dimension of a PartitionSpec."""
    parts = [(part,) if isinstance(part, str) else tuple(part or ()) for part in spec]
    return parts + [()] * (rank - len(parts))


def _block(dims: list[tuple[str, ...]], at: dict[str, int], sizes: dict[str, int]) -> list[tuple[int, int]]:
    """For each dimension which block of how many a device holds."""
    blocks = []
    for names in dims:
        index, count = 0, 1
        for name in names:
            index, count = index * sizes[name] + at[name], count * sizes[name]
        blocks.append((index, count))
    return blocks


def _shard(value: Any, dims: list[tuple[str, ...]], at: dict[str, int], sizes: dict[str, int]) -> Any:
    array = np.asarray(value)
    index = tuple(
        slice(block * (extent // count), (block + 1) * (extent // count))
        for (block, count), extent in zip(_block(dims, at, sizes), array.shape, strict=True)
    )
    return array[index]


def _gather(parts: Sequence[Any], dims: Any, aval: Any, places: Sequence[Any], sizes: dict[str, int]) -> Any:
    if any(part is None for part in parts):
        return None
    whole = np.empty(aval.shape, np.asarray(parts[0]).dtype)
    for part, coords in reversed(list(zip(parts, places, strict=True))):
        array = np.asarray(part)
        at = dict(zip(sizes, coords, strict=True))
        index = tuple(
            slice(block * extent, (block + 1) * extent)
            for (block, _), extent in zip(_block(dims, at, sizes), array.shape, strict=True)
        )
        whole[index] = array
    return whole
