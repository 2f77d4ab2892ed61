"""Kernels on the simulated machine in place, for programs that cannot be traced as one function.

Inside ``with intercept(...)`` each TPU kernel that a program calls on the CPU becomes one callback for each
device.  The devices of its mesh meet, the machine runs once for all of them, and each goes on with its
results.  Every call is a run of its own, beginning at time 0.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from tpusim.chips import ChipSpec
from tpusim.errors import FindingError, NotModelledError, OptionError
from tpusim.findings import Finding, Kind
from tpusim.options import RunOptions
from tpusim.pallas import internals
from tpusim.pallas.calls import InterceptedCall
from tpusim.pallas.internals import inplace as internals_inplace
from tpusim.pallas.internals.inplace import Entry, KernelEquation
from tpusim.pallas.kernels import CapturedKernel
from tpusim.pallas.meeting import ALONE_S, Gate, KernelRun, Meeting, Operands, not_arrived
from tpusim.result import Result
from tpusim.topology import Slice
from tpusim.units import Duration

_THREADS_PER_DEVICE = 2
"""A device that waits in a kernel holds one of XLA's threads; what runs meanwhile needs others."""


def intercept(
    slice: str | Slice | None = None, *, arrive_timeout_s: float = 60, keep_results: bool = True, **options: Any
) -> Interception:
    """A context manager in which Pallas TPU kernels run on the simulated machine, jitted ones too.

    ``slice`` and ``options`` are the run options; ``mesh`` is the program's own.  A program over several
    devices needs as many virtual CPU devices.  ``arrive_timeout_s``: seconds (of this computer) that a
    device waits at a kernel for the others.  ``keep_results=False`` keeps of each call the numbers alone.
    The error of a kernel is raised where the program calls it.  Raises :class:`OptionError`.
    """
    if "mesh" in options:
        raise OptionError("an intercepted program brings its own mesh: leave the option mesh out")
    if options.get("data") is False:
        raise OptionError("an intercepted program goes on with what its kernels return: data=False is not possible")
    if isinstance(arrive_timeout_s, bool) or not isinstance(arrive_timeout_s, int | float) or arrive_timeout_s <= 0:
        raise OptionError(f"arrive_timeout_s is a positive number of seconds, not {arrive_timeout_s!r}")
    given = RunOptions.of({**options, "slice": slice})
    found = Slice.parse(given.slice, given.cores) if isinstance(given.slice, str) else given.slice
    chip = given.chip_spec(found.chip if found is not None else "v5e")
    return Interception(given, found, chip, float(arrive_timeout_s), keep_results)


class Interception:
    """What :func:`intercept` gives; ``calls`` has a record of each kernel call so far."""

    def __init__(
        self, options: RunOptions, slice_: Slice | None, chip: ChipSpec, arrive_timeout_s: float, keep_results: bool
    ) -> None:
        self.options = options
        self._slice = slice_
        self._chip = chip
        self.calls: list[InterceptedCall] = []
        self._arrive_timeout_s = arrive_timeout_s
        self._keep_results = keep_results
        self._gate = Gate()
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._has_begun = False

    @property
    def ok(self) -> bool:
        """Whether no call so far had an error."""
        return all(call.ok for call in self.calls)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all calls so far."""
        return tuple(finding for call in self.calls for finding in call.findings)

    def __enter__(self) -> Self:
        """Take over; raises :class:`OptionError` where there are too few devices."""
        if self._has_begun:
            raise OptionError("this interception has begun already: call intercept() again")
        _check_host(self._slice)
        internals.warn_if_newer()
        with ExitStack() as stack:
            per_chip = self._slice.devices_per_chip if self._slice is not None else 1
            cores = self._chip.core.tensorcores_per_chip.integer // per_chip
            stack.enter_context(internals_inplace.kernels_in_place(self._intercept, self._chip.name, cores))
            stack.enter_context(internals_inplace.executions_end_with(self._gate.check))
            self._stack = stack.pop_all()
        self._has_begun = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        """Give everything back; raises what could not be raised where the kernel was called."""
        self._stack.close()
        self._gate.is_open = False
        if error is None or isinstance(error, internals_inplace.RuntimeFailure):
            self._gate.check()

    def _intercept(self, equation: KernelEquation, axis_sizes: dict[str, int]) -> Entry:
        """Lower a kernel while the program that calls it is compiled."""
        try:
            replace(self.options, mesh=axis_sizes).place(tuple(axis_sizes))
            refused = internals_inplace.refused(equation)
            if refused is not None:
                raise NotModelledError(Finding(Kind.NOT_MODELLED, refused, where=equation.where))
            kernel = CapturedKernel(equation, axis_sizes, data=True)
        except FindingError as error:
            finding, where = error.finding, equation.where
            self._record(InterceptedCall(equation.name, axis_sizes, (), Duration(0), 0, 0, (finding,), where))
            raise error.with_traceback(None) from None
        needs_others = kernel.lowered.is_remote or kernel.lowered.uses_barrier
        patience_s = self._arrive_timeout_s if needs_others else min(ALONE_S, self._arrive_timeout_s)

        def run(operands: Mapping[int, Operands]) -> Mapping[int, Operands]:
            return self._run(kernel, operands, needs_others)

        return Meeting(self._gate, kernel, run, patience_s).enter

    def _run(self, kernel: CapturedKernel, operands: Mapping[int, Operands], needs_all: bool) -> Mapping[int, Operands]:
        """Run the machine for the devices that arrived; an error is kept for the program's thread."""
        devices = tuple(sorted(operands))
        name, mesh, where = kernel.contents.name, kernel.axis_sizes, kernel.where
        run: KernelRun | None = None
        result: Result | None = None
        problem: Exception | None = None
        try:
            if needs_all and len(devices) < internals_inplace.size_of(mesh):
                raise not_arrived(kernel, devices, self._arrive_timeout_s)
            run = KernelRun(kernel, self.options)
            result = run.simulate(operands)
        except Exception as error:  # noqa: BLE001 - this is a thread of XLA's; the program's own thread raises it
            problem, result = error, getattr(error, "result", None)
        findings = tuple(result.findings) if result is not None else ()
        if isinstance(problem, FindingError) and not findings:
            findings = tuple(problem.findings)
        self._record(
            InterceptedCall(
                name,
                mesh,
                devices,
                time=result.time if result is not None else Duration(0),
                dmas=result.dmas if result is not None else 0,
                bytes=result.bytes if result is not None else 0,
                findings=findings,
                where=where,
                error=None if problem is None or isinstance(problem, FindingError) else str(problem),
                result=result if self._keep_results else None,
            )
        )
        if problem is not None:
            self._gate.fail(problem)
            return {}
        if result is None or result.outputs is None or run is None:
            return {}
        return run.outputs

    def _record(self, call: InterceptedCall) -> None:
        with self._lock:
            self.calls.append(call)


def _check_host(slice_: Slice | None) -> None:
    """That there is a CPU device for each of the slice, and threads enough."""
    here = internals_inplace.host()
    wanted = slice_.num_devices if slice_ is not None else 1
    how = (
        f"before jax is imported call tpusim.pallas.declare_host_devices({wanted}), or start Python with "
        f"JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count={wanted} "
        f"PJRT_NPROC={2 * _THREADS_PER_DEVICE * wanted}"
    )
    if here.platform != "cpu":
        raise OptionError(f"intercept() needs jax to run on the CPU, and here it runs on {here.platform}: {how}")
    if here.devices < wanted:
        raise OptionError(f"slice {slice_} has {wanted} devices and jax has {here.devices} here: {how}")
    threads = int(os.environ.get("PJRT_NPROC") or os.cpu_count() or 1)
    if wanted > 1 and threads < _THREADS_PER_DEVICE * wanted:
        raise OptionError(
            f"slice {slice_} has {wanted} devices, each of which holds a thread of XLA while it waits in a kernel, and "
            f"XLA has {threads} here: {how}"
        )
