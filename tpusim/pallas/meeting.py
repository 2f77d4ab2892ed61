"""Where the devices of a mesh meet before a kernel runs in place, and the run once all are there.

Each device comes in a thread of XLA and is held until the kernel has run; whoever completes the mesh runs
the machine for all.  After a failure nobody is held and no kernel runs, until the program has been told:
results are then NaN or the like.  An exception in one of XLA's threads would instead leave the other
devices waiting in collectives, which XLA ends with the whole process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tpusim.errors import OptionError, TpuSimError
from tpusim.machine.core import Core
from tpusim.machine.memory import sentinel
from tpusim.options import RunOptions
from tpusim.pallas.internals.inplace import size_of
from tpusim.pallas.kernels import CapturedKernel, KernelInstance
from tpusim.result import Result
from tpusim.session import Session
from tpusim.units import Duration

ALONE_S = 1.0
"""How long the devices of a kernel that needs no other device wait for each other."""
_MOST_SKIPPED = 10_000
"""Kernels skipped after a failure before the program, perhaps in a loop that waits for a result, is ended."""

Operands = Sequence[Any]


class ArrivalTimeoutError(TpuSimError, TimeoutError):
    """Some devices of a mesh entered a kernel and the others did not do so in time."""


class Gate:
    """What all kernels of one interception share: one lock, and the failure the program has not seen yet.

    Closed when the interception ends; a program compiled ahead of time within it cannot run any more.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.failure: Exception | None = None
        self.is_open = True
        self._skipped = 0

    def fail(self, error: Exception) -> None:
        """Keep the first failure and let everybody go."""
        with self.changed:
            if self.failure is None:
                self.failure = error
                self._skipped = 0
            self.changed.notify_all()

    def check(self) -> None:
        """Raise the failure, if there is one; afterwards kernels run again."""
        with self.changed:
            error, self.failure = self.failure, None
        if error is not None:
            raise error.with_traceback(None) if isinstance(error, TpuSimError) else error

    def skip(self) -> None:
        """Count a kernel that does not run; ends a program that goes on and on."""
        self._skipped += 1
        if self._skipped > _MOST_SKIPPED and self.failure is not None:
            raise self.failure


@dataclass(eq=False)
class _Group:
    """Devices that enter a kernel together."""

    last: float
    """When the last of them came."""
    arrived: dict[int, Operands] = field(default_factory=dict)
    results: Mapping[int, Operands] = field(default_factory=dict)
    is_closed: bool = False
    is_done: bool = False


class Meeting:
    """The place before one kernel; ``run`` gets the operands of each device that came, gives their results.

    ``patience_s``: how long a device waits after the last one came.  Then ``run`` gets those who are there.
    """

    def __init__(
        self,
        gate: Gate,
        kernel: CapturedKernel,
        run: Callable[[Mapping[int, Operands]], Mapping[int, Operands]],
        patience_s: float,
    ) -> None:
        self.gate = gate
        self.kernel = kernel
        self._total = size_of(kernel.axis_sizes)
        self._run = run
        self._patience_s = patience_s
        self._groups: list[_Group] = []

    def enter(self, index: Any, *operands: Any) -> tuple[Any, ...]:
        """Come as device ``index``; returns its results when the kernel has run."""
        device, changed = int(index), self.gate.changed
        if not self.gate.is_open:
            raise OptionError(f"{self.kernel.contents.name} was compiled within intercept(), which has ended")
        with changed:
            if self.gate.failure is not None:
                self.gate.skip()
                return nothing(self.kernel)
            group = self._group_without(device)
            group.arrived[device] = operands
            group.last = time.monotonic()
            is_runner = len(group.arrived) == self._total
            changed.notify_all()
            if not is_runner:
                is_runner = self._wait(group)
            if is_runner:
                group.is_closed = True
                self._groups.remove(group)
        if is_runner:
            try:
                if self.gate.failure is None:
                    group.results = self._run(group.arrived)
            finally:
                with changed:
                    group.is_done = True
                    changed.notify_all()
        found = group.results.get(device)
        return tuple(found) if found is not None else nothing(self.kernel)

    def _group_without(self, device: int) -> _Group:
        for group in self._groups:
            if device not in group.arrived:
                return group
        self._groups.append(_Group(time.monotonic()))
        return self._groups[-1]

    def _wait(self, group: _Group) -> bool:
        """Wait for the others, and for the run; true where time is up and nobody else has noticed."""
        changed = self.gate.changed
        while not group.is_closed and self.gate.failure is None:
            left = group.last + self._patience_s - time.monotonic()
            if left <= 0:
                return True
            changed.wait(left)
        if not group.is_closed:
            return True
        while not group.is_done:
            changed.wait()
        return False


def nothing(kernel: CapturedKernel) -> tuple[Any, ...]:
    """Results of a kernel that did not run: NaN, or the largest integer."""
    avals = kernel.contents.out_avals
    return tuple(np.full(aval.shape, sentinel(np.dtype(aval.dtype)), aval.dtype) for aval in avals)


def not_arrived(kernel: CapturedKernel, arrived: Sequence[int], patience_s: float) -> ArrivalTimeoutError:
    """The error that says which devices came."""
    missing = [device for device in range(size_of(kernel.axis_sizes)) if device not in arrived]
    mesh = ", ".join(f"{axis}={size}" for axis, size in kernel.axis_sizes.items())
    came, absent = _devices(sorted(arrived)), _devices(missing)
    place = f"  [{kernel.where}]" if kernel.where is not None else ""
    return ArrivalTimeoutError(
        f"{kernel.contents.name}, mesh {mesh}: {came} arrived and {absent} did not within "
        f"{patience_s:g} s (arrive_timeout_s). Each device of the mesh has to call the kernel.{place}"
    )


def _devices(numbers: Sequence[int]) -> str:
    return f"device{'s' if len(numbers) != 1 else ''} {', '.join(map(str, numbers))}"


class KernelRun:
    """One run of the machine for one call of one kernel; ``outputs`` has the results of each device."""

    def __init__(self, kernel: CapturedKernel, options: RunOptions) -> None:
        cores = kernel.contents.cores
        chosen, axes = replace(options, mesh=kernel.axis_sizes), tuple(kernel.axis_sizes)
        self.session = Session(chosen, axes, place=chosen.place(axes, cores))
        self.kernel = kernel
        self.outputs: dict[int, list[Any]] = {}

    def simulate(self, operands: Mapping[int, Operands]) -> Result:
        """Run the devices that came to the end and judge; the others have no part in it."""
        try:
            with np.errstate(all="ignore"):
                return self.session.finish(tuple, run=lambda: self._run(operands))
        finally:
            self.session.machine.end()

    def _run(self, operands: Mapping[int, Operands]) -> None:
        machine = self.session.machine
        instance = KernelInstance(self.kernel, machine, self._log, is_exact=self.session.options.compute == "exact")
        firsts = machine.cores[:: machine.group]
        for core in machine.cores:
            core.done = core not in firsts or firsts.index(core) not in operands
        for device, values in sorted(operands.items()):
            machine.execute(firsts[device], self._device(instance, firsts[device], values))
        machine.run()

    def _device(self, instance: KernelInstance, core: Core, values: Operands) -> Iterator[None]:
        results, steps = instance.begin(core, values)
        yield from steps
        self.outputs[core.device // self.session.machine.group] = results
        core.done = True

    def _log(self, core: Core, text: str) -> None:
        machine = self.session.machine
        line = f"[device {machine.coordinates(core.device)}, t = {Duration(core.now)}] {text}"
        self.session.printed.append(line)
        for hook in machine.hooks.logged:
            hook(core, line)
