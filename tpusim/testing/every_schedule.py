"""A test over every schedule: proven from one run where the proof applies, else run under many."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tpusim.errors import OptionError, TpuSimError
from tpusim.explore import Trial, explore, simulate_any
from tpusim.program import Kernel
from tpusim.result import Result


class ScheduleFailure(TpuSimError, AssertionError):
    """A test that does not hold in every schedule; the text has what went wrong and the token that shows it again."""


Simulate = Callable[..., Result]
"""``simulate(kernel, *arrays, **run options)``: the :class:`tpusim.Result`; ``kernel`` may be a JAX function."""


Test = Callable[..., None]


def every_schedule(*, runs: int = 50, seed: int = 0, **options: Any) -> Callable[[Test], Test]:
    """Have a test hold in every schedule.  Its first parameter, ``simulate``, runs a kernel; see :data:`Simulate`.

    ``@every_schedule(slice="v5e:2x2")``, ``def test_ring(simulate): ...``.  The test runs once under the default
    schedule.  Each kernel that it ran is then verified: where all are proven, the test holds in every schedule, since
    a program without races computes the same in each.  A refuted one fails the test.  Where the proof does not apply
    the test runs under ``runs`` schedules drawn from ``seed``.  ``options`` are run options for every kernel.
    """
    if runs < 1:
        raise OptionError(f"every_schedule needs at least one run, not {runs}")

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def check(*args: Any, **kwargs: Any) -> None:
            _check(lambda simulate: test(simulate, *args, **kwargs), runs, seed, options)

        # pytest looks for fixtures in the signature, and ``simulate`` is none
        signature = inspect.signature(test)
        first, *others = signature.parameters.values()
        if first.name != "simulate":
            raise OptionError(f"every_schedule: the first parameter of {test.__name__} has to be called simulate")
        check.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        del check.__wrapped__
        return check

    return decorate


def _check(test: Callable[[Simulate], None], runs: int, seed: int, options: dict[str, Any]) -> None:
    used: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def first(kernel: Any, *arrays: Any, **given: Any) -> Result:
        chosen = {**options, **given}
        used.append((kernel, arrays, chosen))
        return simulate_any(kernel, arrays, chosen)

    test(first)
    if not used:
        raise OptionError("every_schedule: the test never called simulate")
    doubts: list[str] = []
    for kernel, arrays, chosen in used:
        verdict = _verify(kernel, arrays, {k: v for k, v in chosen.items() if k not in ("checks", "on_finding")})
        if verdict.answer == "refuted":
            raise ScheduleFailure("\n".join([f"{_name(kernel)} is refuted:", *_explained(verdict)]))
        if verdict.answer == "not-proven":
            doubts += verdict.reasons
    if doubts:
        _explore(test, runs, seed, options, doubts)


def _explore(
    test: Callable[[Simulate], None], runs: int, seed: int, options: dict[str, Any], doubts: list[str]
) -> None:
    """Run the test under many schedules; a failure under one tells its token."""

    def trial(schedule: str) -> Trial:
        results: list[Result] = []

        def simulate(kernel: Any, *arrays: Any, **given: Any) -> Result:
            results.append(simulate_any(kernel, arrays, {**options, **given, "schedule": schedule}))
            return results[-1]

        try:
            test(simulate)
        except Exception as error:
            token = getattr(getattr(error, "finding", None), "token", None)
            text = f"{type(error).__name__}: {error}\nnot proven ({doubts[0]}), and wrong under one of {runs} schedules"
            raise ScheduleFailure(f"{text}, seed {seed}.  Replay: {token or _token(results, schedule)}.") from error
        return Trial(results[-1] if results else None)

    explore(trial, runs, seed)


def _token(results: list[Result], schedule: str) -> str:
    return (results[-1].token if results else None) or (schedule if schedule == "default" else f"t1:{schedule}")


def _verify(kernel: Any, arrays: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if isinstance(kernel, Kernel):
        return kernel.verify(*arrays, **options)
    from tpusim.pallas import verify

    return verify(kernel, *arrays, **options)


def _name(kernel: Any) -> str:
    return str(getattr(kernel, "name", None) or getattr(kernel, "__name__", "the kernel"))


def _explained(verdict: Any) -> list[str]:
    return [finding.explain() for finding in verdict.findings] or list(verdict.reasons)
