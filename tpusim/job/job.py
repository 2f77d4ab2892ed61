"""One run of a kernel file, from its path to an outcome that can be shown and written.

A failed run has an outcome too: whatever there is of place, result and findings.  Only arguments that
cannot be right raise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tpusim.bounds import MeshBounds
from tpusim.declare import resolve
from tpusim.errors import FindingError, InterruptedRunError, NotModelledError, OptionError
from tpusim.findings import Finding, Kind, Severity
from tpusim.job.check import Check, Sharding, compare
from tpusim.job.status import Status
from tpusim.job.userfault import UserCodeError, user_code
from tpusim.kernel_file import KernelFile, load_file, path_of
from tpusim.native import simulate
from tpusim.observe import Observer
from tpusim.options import Place, RunOptions
from tpusim.program import Kernel
from tpusim.result import Result
from tpusim.specs import ShapeDtypeStruct
from tpusim.units import Duration, json_safe

Progress = Callable[[int, int], None]

_FIELDS = (
    "ok", "result", "time_us", "interval_us", "basis", "lower_bound_us", "lower_bound_because", "ratio", "dmas",
    "bytes", "findings", "error", "file", "backend", "chip", "slice", "mesh", "layout", "seed", "token", "wall_s",
    "calls", "utilisation",
)  # fmt: skip
"""All fields, in the order in which JSON has them; null where nothing is known."""


@dataclass(frozen=True)
class Job:
    """What to run: FILE, the run options that were given, and the parameters that were given.

    A parameter goes to ``make_kernel()`` and to ``inputs()``, whichever takes one of its name.
    """

    file: str
    options: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "sim"
    detail: bool = False
    """Whether the run is for a trace or a report."""
    calls: int = 1
    """How many calls in a row."""
    observers: tuple[Observer, ...] = ()
    """Who watches the run."""


@dataclass
class Outcome:
    """What came out; a field is ``None`` where the run did not get that far."""

    job: Job
    place: Place | None = None
    result: Result | None = None
    check: Check | None = None
    findings: tuple[Finding, ...] = ()
    fault: str | None = None
    """What the user's code, or a backend, raised."""
    not_possible: str | None = None
    arrays: tuple[Any, ...] | None = None
    """GLOBAL inputs, as the file made them."""
    outputs: tuple[Any, ...] | None = None
    """GLOBAL outputs."""
    is_interrupted: bool = False
    """Whether Ctrl-C ended it; who runs many jobs ends with it."""

    @property
    def status(self) -> Status:
        """The exit status."""
        if self.not_possible is not None or any(finding.kind is Kind.NOT_MODELLED for finding in self.findings):
            return Status.NOT_POSSIBLE
        is_wrong = self.fault is not None or (self.check is not None and self.check.is_wrong)
        if is_wrong or any(finding.severity is Severity.ERROR for finding in self.findings):
            return Status.WRONG
        return Status.RIGHT

    @property
    def problem(self) -> str | None:
        """Why there is no result, or why it stopped, in one text."""
        errors = [finding.message for finding in self.findings if finding.severity is Severity.ERROR]
        return self.not_possible or self.fault or next(iter(errors), None)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready fields: those of the result, and what the result does not know."""
        values: dict[str, Any] = dict.fromkeys(_FIELDS)
        if self.place is not None:
            place = self.place
            values |= {"chip": place.chip.name, "slice": str(place.slice), "mesh": place.axis_sizes}
            values |= {"layout": place.layout}
        if self.result is not None:
            values |= self.result.as_dict()
        values |= {
            "ok": self.status is Status.RIGHT,
            "result": self.check.text if self.check is not None else None,
            "seed": self.job.options.get("seed", 0),
            "findings": [finding.as_dict() for finding in self.findings],
            "file": self.job.file,
            "backend": self.job.backend,
            "error": self.problem,
        }
        safe: dict[str, Any] = json_safe(values)
        return safe


def run_job(job: Job, progress: Progress | None = None) -> Outcome:
    """Run it; raises ``OptionError`` alone."""
    return _outcome(job, path_of(job.file), lambda: load_file(job.file), progress)


def run_loaded(loaded: KernelFile, job: Job) -> Outcome:
    """Run what is loaded already, whatever file the job names."""
    return _outcome(job, loaded.path, lambda: loaded, None)


def _outcome(job: Job, path: Path, load: Callable[[], KernelFile], progress: Progress | None) -> Outcome:
    outcome = Outcome(job)
    try:
        with user_code(path):
            _run(load(), job, outcome, progress)
    except FindingError as error:
        outcome.findings = tuple(error.findings)
    except UserCodeError as error:
        outcome.fault, outcome.is_interrupted = str(error), error.is_interrupted
    except KeyboardInterrupt:
        outcome.fault, outcome.is_interrupted = "interrupted", True
    return outcome


def _run(loaded: KernelFile, job: Job, outcome: Outcome, progress: Progress | None) -> None:
    if job.options.get("compute") == "exact":
        from tpusim.pallas.compiler import MISSING, compiler_version

        if compiler_version() is None:
            outcome.not_possible = MISSING.format("--compute exact")
            return
    kernel = loaded.made(_known(loaded, job))
    if not isinstance(kernel, Kernel):
        _run_captured(loaded, kernel, outcome)
        return
    place = outcome.place = RunOptions.of(job.options).place(kernel.axes)
    devices = _devices(place)
    arrays = outcome.arrays = _numbers(loaded, _arrays(loaded, _parameters(loaded, job, devices)))
    if job.backend == "interpret":
        outputs = _interpret(job, outcome, arrays)
    else:
        outputs = _simulate(loaded, kernel, outcome, arrays, progress)
    outcome.outputs = outputs
    shapes = [ShapeDtypeStruct(np.shape(array), np.asarray(array).dtype) for array in arrays]
    sharding = Sharding(kernel, resolve(kernel, shapes, place.axis_sizes), place.axis_sizes)
    repeats = () if outcome.result is None else outcome.result.repeats
    outcome.check = _check(loaded, job, arrays, outputs, sharding, {"devices": devices}, repeats)


def _run_captured(loaded: KernelFile, function: Callable[..., Any], outcome: Outcome) -> None:
    """A JAX function: it brings its own mesh, so ``inputs`` is told only what was given."""
    job = outcome.job
    if job.backend == "interpret":
        raise OptionError(f"--backend interpret runs native kernels; {loaded.name} is a JAX function: call it yourself")
    from tpusim.pallas import simulate as capture

    arrays = outcome.arrays = _arrays(loaded, _parameters(loaded, job, None))
    program = capture(function, detail=job.detail, **job.options)
    program.calls, program.observers = job.calls, job.observers
    try:
        returned = program(*arrays)
    except FindingError as error:
        outcome.is_interrupted = isinstance(error, InterruptedRunError)
        if error.result is None:
            raise
        returned = None
    outcome.result = result = program.result
    if result is None:
        return
    outcome.place, outcome.findings = result.place, result.findings
    outcome.result = replace(result, lower_bound=_lower_bound(loaded, result.place, arrays))
    outputs = None if returned is None else tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    outcome.outputs = outputs
    outcome.check = _check(loaded, job, arrays, outputs, None, {}, result.repeats)


def _arrays(loaded: KernelFile, parameters: Mapping[str, Any]) -> Any:
    arrays = loaded.inputs(**parameters)
    return tuple(arrays) if isinstance(arrays, tuple | list) else (arrays,)


def _numbers(loaded: KernelFile, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The inputs of a native kernel as arrays, whatever made them."""
    made = tuple(array if hasattr(array, "dtype") else np.asarray(array) for array in arrays)
    for position, array in enumerate(made):
        if array.dtype == object:
            raise OptionError(
                f"{loaded.path}: inputs() gives no array of numbers as input {position}: {arrays[position]!r:.60}"
            )
    return made


def _with_inputs(loaded: KernelFile, name: str, function: Callable[..., Any], *given: Any, **known: Any) -> Any:
    """Call ``reference`` or ``lower_bound``; raises ``OptionError`` where it does not take what ``inputs()`` makes."""
    try:
        inspect.signature(function).bind(*given, **known)
    except TypeError as error:
        raise OptionError(
            f"{loaded.path}: {name}{inspect.signature(function)} does not take the arrays of inputs(): {error}"
        ) from None
    return function(*given, **known)


def _check(
    loaded: KernelFile,
    job: Job,
    arrays: Any,
    outputs: Any,
    sharding: Sharding | None,
    known: Mapping[str, Any],
    repeats: Sequence[Any] = (),
) -> Check:
    """Outputs against the file's reference, where there are both."""
    if outputs is None:
        reason = "no data" if job.options.get("data") is False else "the run did not reach its end"
        return Check("unchecked", f"not checked: {reason}")
    if loaded.reference is None:
        return Check("unchecked", f"not checked: {loaded.path.name} has no reference()")
    expected = _with_inputs(loaded, "reference", loaded.reference, *arrays, **accepted(loaded.reference, known))
    for call, earlier in enumerate(repeats, 1):
        check = compare(earlier, expected, sharding)
        if check.is_wrong:
            return Check("different", f"call {call}: {check.text}")
    return compare(outputs, expected, sharding)


def _simulate(
    loaded: KernelFile, kernel: Kernel, outcome: Outcome, arrays: Any, progress: Progress | None
) -> tuple[Any, ...] | None:
    job = outcome.job
    lower_bound = _lower_bound(loaded, outcome.place, arrays)
    try:
        result = simulate(kernel, arrays, dict(job.options), progress, job.detail, job.calls, job.observers)
    except FindingError as error:
        outcome.is_interrupted = isinstance(error, InterruptedRunError)
        if error.result is None:
            raise
        result = error.result
    outcome.result = replace(result, lower_bound=lower_bound)
    outcome.findings = result.findings
    return result.outputs


def _interpret(job: Job, outcome: Outcome, arrays: Any) -> tuple[Any, ...] | None:
    from tpusim.pallas import InterpretError, interpret_in_subprocess

    if find_spec("jax") is None:
        outcome.not_possible = "--backend interpret needs jax in this Python: pip install 'tpusim[pallas]'"
        return None
    mesh = outcome.place.axis_sizes if outcome.place is not None else {}
    try:
        return interpret_in_subprocess(job.file, mesh, arrays, parameters=job.parameters)
    except InterpretError as error:
        if f"{NotModelledError.__name__}:" in str(error):
            outcome.not_possible = str(error)
        else:
            outcome.fault = str(error)
        return None


def _devices(place: Place) -> int | tuple[int, ...]:
    """What ``inputs`` and ``reference`` are told: the mesh's size, or its sizes."""
    sizes = tuple(place.axis_sizes.values())
    return sizes[0] if len(sizes) == 1 else sizes


def _parameters(loaded: KernelFile, job: Job, devices: int | tuple[int, ...] | None) -> dict[str, Any]:
    """Arguments of ``inputs()``: the devices where they are known, and what was given."""
    return accepted(loaded.inputs, ({} if devices is None else {"devices": devices}) | dict(job.parameters))


def _known(loaded: KernelFile, job: Job) -> Mapping[str, Any]:
    """The given parameters; raises ``OptionError`` for one that neither function of FILE takes."""
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(loaded.inputs).parameters.values())
    known = {name for names in loaded.parameters.values() for name in names} | {"seed"}
    for name in job.parameters:
        if name not in known and not takes_any:
            of = loaded.parameters.items()
            has = "; ".join(f"{function}() has: {', '.join(names) or 'none'}" for function, names in of)
            raise OptionError(f"{loaded.path}: nothing takes a parameter {name!r}; {has}")
    return job.parameters


def accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``arguments`` that a function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(arguments)
    names = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    return {name: value for name, value in arguments.items() if name in names}


def _lower_bound(loaded: KernelFile, place: Place | None, arrays: Any) -> Duration | None:
    if loaded.lower_bound is None or place is None:
        return None
    bounds = MeshBounds(place.slice, place.chip, place.axis_sizes, place.devices)
    bound = _with_inputs(loaded, "lower_bound", loaded.lower_bound, bounds, *arrays)
    if bound is None or isinstance(bound, Duration):
        return bound
    if isinstance(bound, bool) or not isinstance(bound, int | float | np.integer) or not 0 <= bound < np.inf:
        raise OptionError(f"{loaded.path}: lower_bound() returns a Duration, picoseconds or None, not {bound!r:.60}")
    return Duration(int(bound))
