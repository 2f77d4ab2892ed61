"""Kernels on several cores of a device: its TensorCores, or the subcores of its SparseCores.

Each core is one position of the machine, with its own program, clock, memory and semaphores; the positions of a
device share its HBM.  The first of them is the device itself: it executes the program around the kernels, and
kernels that need no other core.  On real hardware a kernel on several cores begins and ends on all of them for
the program around it, so here it is surrounded by two barriers of its cores: no core uses what belongs to another
one before it is there, or after it is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.errors import FindingError, InternalError, NotModelledError, OptionError
from tpusim.launch import entry_barrier, placed
from tpusim.machine.core import Core
from tpusim.machine.machine import Machine
from tpusim.machine.timing import Timing
from tpusim.pallas import internals
from tpusim.pallas.internals.kernels import core_axes, lone_device
from tpusim.pallas.shards import mesh_of
from tpusim.pallas.work import Work
from tpusim.specs import MemorySpace

if TYPE_CHECKING:
    from tpusim.pallas.kernels import CapturedKernel, KernelInstance

BARRIER = "cores of a device"
"""The id of the barrier around a kernel."""


def program_axes(jaxpr: Any) -> tuple[dict[str, int], dict[str, int]]:
    """The mesh of a program, and the axes of the cores of each device: those of its kernel on the most cores."""
    sizes = mesh_of(jaxpr)
    kernels = [(eqn, axes) for eqn in internals.all_equations(jaxpr) if (axes := core_axes(eqn))]
    names = {axis for _, axes in kernels for axis in axes}
    if sizes == lone_device(()):  # no mesh at all, so it may have any name
        sizes = lone_device(names)
    for eqn, axes in kernels:
        check_axes(sizes, axes, eqn)
    return sizes, max((axes for _, axes in kernels), key=lambda axes: prod(axes.values()), default={})


def check_axes(axis_sizes: Mapping[str, int], cores: Mapping[str, int], eqn: Any) -> None:
    """Refuse axes of cores that have the name of a mesh axis."""
    names = sorted(axis_sizes.keys() & cores.keys())
    if names:
        raise internals.not_modelled(f"axes {names} both of the mesh and of the cores of a device", eqn)


def check_arguments(kernel: CapturedKernel, eqn: Any) -> None:
    """Refuse what operands and results of a kernel on several cores may not be here."""
    contents = kernel.contents
    for name, kind in kernel.lowered.arguments[: contents.num_inputs + contents.num_outputs]:
        if kind.space not in (MemorySpace.HBM, MemorySpace.ANY):
            what = kind.space.name if kind.space is not None else "semaphores"
            raise internals.not_modelled(f"argument {name} of a kernel on several cores, in {what} instead of HBM", eqn)


def check_machine(kernel: CapturedKernel, machine: Machine) -> None:
    """Refuse a kernel whose cores the machine does not have."""
    contents, chip = kernel.contents, machine.chip
    sizes = tuple(contents.cores.values())
    if not contents.cores:
        if len(machine.cores) == machine.group:
            return
        raise NotModelledError(
            f"{contents.name}: remote copies of a kernel on one core, in a program that also has kernels on several"
        )
    if contents.is_sparse:
        most, subcores = chip.sparsecore.cores, chip.sparsecore.subcores
        has: tuple[int, ...] = () if most is None or subcores is None else (most.integer, subcores.integer)
        what = "SparseCores x subcores" if len(sizes) > 1 else "SparseCores"
    else:
        has, what = (chip.core.tensorcores_per_chip.integer // machine.slice.devices_per_chip,), "TensorCores"
    if len(has) < len(sizes) or any(wanted > there for wanted, there in zip(sizes, has, strict=False)):
        wanted, there = " x ".join(map(str, sizes)), " x ".join(map(str, has[: len(sizes)])) or "none"
        raise OptionError(f"{contents.name} runs on {wanted} {what}; a device of {machine.slice} has {there}")
    if sizes != machine.cores_of_device[: len(sizes)]:
        raise NotModelledError(
            f"{contents.name}: kernels on cores of different meshes in one program, {sizes} and "
            f"{machine.cores_of_device}"
        )


def sparse_prices(works: Sequence[Work], timing: Timing) -> list[int]:
    """Picoseconds of each piece of work on a subcore, beside the issue of its accesses.

    An estimate: each equation takes a cycle for every vector of its largest operand or result.
    """
    lanes = timing.chip.sparsecore.lanes
    if lanes is None:
        raise InternalError(f"{timing.chip.name} has no SparseCore")
    return [timing.cycles(sum(_vectors(eqn, lanes.integer) for eqn in work.eqns) - work.accesses) for work in works]


def _vectors(eqn: Any, lanes: int) -> int:
    inner = list(internals.sub_jaxprs(eqn.params))
    if inner:
        times = int(eqn.params.get("length", 1)) if eqn.primitive.name == "scan" else 1
        return times * sum(_vectors(sub, lanes) for jaxpr in inner for sub in jaxpr.eqns)
    values = [v.aval for v in (*eqn.invars, *eqn.outvars) if not internals.is_ref(v.aval)]
    sizes = [
        aval.size * np.dtype(aval.dtype).itemsize / 4
        for aval in values
        if isinstance(getattr(aval, "dtype", None), np.dtype)
    ]
    return max(1, -int(-max(sizes, default=1) // lanes))


def run_on_cores(instance: KernelInstance, first: Core) -> Iterator[None]:
    """Run a kernel on all its cores of the device whose first core this is; over when all are done.

    Yields where the first core must be suspended.
    """
    return _Team(instance, first).run()


class _Team:
    """The cores of one device in one call."""

    def __init__(self, instance: KernelInstance, first: Core) -> None:
        machine = instance.machine
        stride = machine.group // prod(instance.kernel.contents.cores.values())
        self.instance = instance
        self.first = first
        self.members = range(first.device, first.device + machine.group, stride)
        self.beginners = range(0, len(machine.cores), stride) if instance.needs_entry_barrier else self.members
        """Who begins together: where a kernel reaches other devices, the cores of all."""
        self.running = len(self.members) - 1
        self.waits = False
        """Whether the first core waits for the others' end."""

    def run(self) -> Iterator[None]:
        """The first core's part, which starts the others."""
        machine = self.instance.machine
        for device in self.members[1:]:
            core = machine.cores[device]
            machine.execute(core, self._other(core), self.first.now)
        yield from self._part(self.first)

    def _other(self, core: Core) -> Iterator[None]:
        yield from self._part(core)
        self._leave(core)

    def _part(self, core: Core) -> Iterator[None]:
        instance, kernel, machine = self.instance, self.instance.kernel, self.instance.machine
        frame = instance.frame(core)
        try:
            self._enter(core)
            yield from entry_barrier(core, kernel.where, self.beginners, BARRIER)
            yield from instance.program(frame)
            yield from entry_barrier(core, kernel.where, self.members, BARRIER)
            if core is self.first and self.running:
                self.waits = True
                yield
            machine.exit(core)
        except FindingError as error:
            raise placed(error, machine, core, kernel.where_in_source(error.__traceback__)) from None

    def _enter(self, core: Core) -> None:
        call = self.instance.call
        for buffer in call.buffers[core.device]:
            if buffer.device == core.device and buffer.spec not in self.instance.scoped:
                buffer.alive = True
        call.enter(core.device)

    def _leave(self, core: Core) -> None:
        self.running -= 1
        if self.waits and not self.running:
            machine = core.machine
            machine.launch(self.first, self.first.resume, max(machine.cores[d].now for d in self.members))
