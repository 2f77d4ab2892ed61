"""One kernel on the simulator, in JAX's interpret mode, through the TPU compiler and on a TPU.

The simulator runs first: its place (mesh, devices) and its inputs are everybody's, and its outputs are what the others
are compared with.  A backend that is missing here is no error: it is named, with the command that adds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from tpusim.crosscheck.residuals import Residual, residuals
from tpusim.errors import OptionError
from tpusim.job import Job, Outcome, Status, run_job
from tpusim.job.check import compare
from tpusim.kernel_file import load_file
from tpusim.program import Kernel
from tpusim.result import Result
from tpusim.specs import MemorySpace
from tpusim.units import json_safe

Backend = Literal["sim", "interpret", "compile", "tpu"]
BACKENDS: tuple[Backend, ...] = ("sim", "interpret", "compile", "tpu")
State = Literal["ok", "differs", "failed", "rejected", "missing"]


@dataclass
class Seen:
    """What one backend showed.

    ``state``: ``ok``; ``differs``: its data is not the simulator's; ``failed``: it raised, or found an error;
    ``rejected``: the compiler's verdict; ``missing``: it is not here.  ``data``: how its outputs compare with the
    simulator's (the simulator's own: with ``reference()``).
    """

    backend: Backend
    state: State
    data: str | None = None
    text: str | None = None
    """The error, or how to add a missing backend."""
    time_us: float | None = None
    interval_us: tuple[float, float] | None = None
    vmem_bytes: int | None = None
    cycles: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return dict(vars(self))


@dataclass
class CrossCheck:
    """A kernel file on several backends."""

    file: str
    outcome: Outcome
    seen: list[Seen] = field(default_factory=list)
    residuals: list[Residual] = field(default_factory=list)
    device_events: tuple[tuple[Any, ...], ...] = ()
    """Of a TPU: (device, line, name, from, to) in microseconds."""

    @property
    def result(self) -> Result | None:
        """The simulator's."""
        return self.outcome.result

    @property
    def status(self) -> Status:
        """The exit status: wrong where a backend that is here failed, refused or differs."""
        if any(one.state in ("differs", "failed", "rejected") for one in self.seen):
            return Status.WRONG
        if all(one.state == "missing" for one in self.seen) or self.outcome.not_possible:
            return Status.NOT_POSSIBLE
        return Status.RIGHT

    @property
    def ratio(self) -> float | None:
        """Simulated over measured time."""
        times = {one.backend: one.time_us for one in self.seen}
        simulated, measured = times.get("sim"), times.get("tpu")
        return simulated / measured if simulated and measured else None

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured time lies within the simulated one's interval."""
        by_name = {one.backend: one for one in self.seen}
        sim, tpu = by_name.get("sim"), by_name.get("tpu")
        if sim is None or tpu is None or sim.interval_us is None or tpu.time_us is None:
            return None
        return sim.interval_us[0] <= tpu.time_us <= sim.interval_us[1]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        place = self.outcome.place
        values = {
            "file": self.file,
            "slice": str(place.slice) if place else None,
            "mesh": place.axis_sizes if place else None,
            "ok": self.status is Status.RIGHT,
            "backends": [one.as_dict() for one in self.seen],
            "ratio": self.ratio,
            "inside_interval": self.is_inside,
            "findings": [finding.as_dict() for finding in self.outcome.findings],
            "residuals": [one.as_dict() for one in self.residuals],
        }
        safe: dict[str, Any] = json_safe(values)
        return safe


def crosscheck(
    job: Job,
    backends: Sequence[Backend] = BACKENDS,
    *,
    measured: Any = None,
    repeats: int = 20,
    progress: Callable[[str], None] = lambda text: None,
) -> CrossCheck:
    """Run ``job`` on each backend; the simulator runs in every case.

    ``measured``: times from elsewhere (:class:`tpusim.pallas.remote.Timed`) in place of a TPU here.  Raises
    ``OptionError`` for an unknown backend and for arguments that cannot be right.
    """
    for name in backends:
        if name not in BACKENDS:
            raise OptionError(f"--backends takes some of {', '.join(BACKENDS)}, not {name!r}")
    progress("sim")
    found = CrossCheck(job.file, run_job(job))
    runs = _Backends(job, found, measured, repeats)
    for name in dict.fromkeys(backends):
        if name != "sim":
            progress(name)
        found.seen.append(getattr(runs, name)())
    return found


class _Backends:
    """Each backend as a method; all use what the simulator's run has found out."""

    def __init__(self, job: Job, found: CrossCheck, measured: Any, repeats: int) -> None:
        self.job = job
        self.found = found
        self.outcome = found.outcome
        self.measured = measured
        self.repeats = repeats

    def sim(self) -> Seen:
        """What the simulator's run showed."""
        outcome, result = self.outcome, self.outcome.result
        check = outcome.check
        state: State = "ok" if outcome.status is Status.RIGHT else "failed"
        if outcome.status is Status.NOT_POSSIBLE:
            state = "missing"
        elif check is not None and check.is_wrong:
            state = "differs"
        seen = Seen("sim", state, check.text if check else None, outcome.problem)
        if result is not None and result.is_complete:
            seen.time_us, seen.interval_us = result.time_us, result.interval_us
            machine = result.cores[0].machine
            seen.vmem_bytes = max((call.high_water[MemorySpace.VMEM] for call in machine.calls), default=0)
        return seen

    def interpret(self) -> Seen:
        """JAX's TPU interpret mode, in a process of its own."""
        if find_spec("jax") is None:
            return Seen("interpret", "missing", text="needs jax: pip install 'tpusim[pallas]'")
        return self._real("interpret", repeats=0)

    def compile(self) -> Seen:
        """The TPU compiler, ahead of time."""
        if find_spec("jax") is None or find_spec("libtpu") is None:
            return Seen("compile", "missing", text="needs the TPU compiler, no TPU: pip install 'tpusim[tpu]'")
        nothing = self._nothing("compile")
        if nothing is not None:
            return nothing
        from tpusim.pallas.compiler import compile_function
        from tpusim.pallas.emit import abstract_mesh, shapes_of

        place, arrays = self.outcome.place, self.outcome.arrays
        kernel = load_file(self.job.file).made(self.job.parameters)
        if place is None or arrays is None:
            return Seen("compile", "failed", text="the simulator did not get as far as the inputs")
        function = kernel.pallas(abstract_mesh(place.axis_sizes)) if isinstance(kernel, Kernel) else kernel
        found = compile_function(function, shapes_of(arrays), place.slice.chip, place.chip.cores_per_device)
        state: State = "ok" if found.is_accepted else "rejected" if found.verdict == "rejected" else "failed"
        text = None if found.is_accepted else f"{found.verdict}: {found.error}"
        return Seen("compile", state, text=text, vmem_bytes=found.vmem_bytes, cycles=found.cycles)

    def tpu(self) -> Seen:
        """A TPU, timed by the profiler."""
        if self.measured is not None:
            return self._timed("tpu", self.measured)
        if find_spec("jax") is None:
            return Seen("tpu", "missing", text="needs a TPU, jax and libtpu; on a TPU VM: pip install 'tpusim[tpu]'")
        from tpusim.pallas.remote import tpu_missing

        missing = tpu_missing()
        return Seen("tpu", "missing", text=missing) if missing is not None else self._real("tpu", repeats=self.repeats)

    def _nothing(self, backend: Backend) -> Seen | None:
        if self.outcome.place is None or self.outcome.arrays is None:
            return Seen(backend, "failed", text="not run: the simulator did not get as far as the kernel")
        return None

    def _real(self, backend: Literal["interpret", "tpu"], repeats: int) -> Seen:
        nothing = self._nothing(backend)
        if nothing is not None or self.outcome.place is None:
            return nothing or Seen(backend, "failed")
        from tpusim.pallas.remote import Run, run_all

        run = Run(self.job.file, self.outcome.place.axis_sizes, self.job.parameters, self.outcome.arrays)
        return self._timed(backend, run_all([run], on=backend, repeats=repeats)[0])

    def _timed(self, backend: Backend, timed: Any) -> Seen:
        if timed.error is not None:
            return Seen(backend, "failed", text=timed.error)
        mine = self.outcome.outputs
        seen = Seen(backend, "ok")
        if timed.outputs is not None and mine is not None:
            check = compare(timed.outputs, tuple(np.asarray(array) for array in mine))
            seen.data = check.text.replace("reference()", "the simulator").replace("the kernel", backend)
            seen.state = "differs" if check.is_wrong else "ok"
        if timed.times_us:
            seen.time_us = timed.median_us
            seen.interval_us = min(timed.times_us), max(timed.times_us)
            self.found.device_events = timed.events
            if self.outcome.result is not None:
                self.found.residuals = residuals(self.outcome.result, timed.events)
        return seen
