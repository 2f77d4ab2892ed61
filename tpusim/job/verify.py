"""The verdict on a kernel file, for all schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tpusim.job.check import Check
from tpusim.job.job import Job, Outcome, run_job, run_loaded
from tpusim.kernel_file import KernelFile
from tpusim.observe import Observer
from tpusim.verdict import Verdict
from tpusim.verify import Attempt, check_options, verify_runs


def verify_job(job: Job) -> tuple[Verdict, Outcome]:
    """Prove or refute what the job's file holds, and its first run; raises ``OptionError`` alone."""
    return _verify(job, run_job)


def verify_loaded(loaded: KernelFile, job: Job) -> tuple[Verdict, Outcome]:
    """The same of what is loaded already, whatever file the job names."""
    return _verify(job, partial(run_loaded, loaded))


def _verify(job: Job, run_one: Callable[[Job], Outcome]) -> tuple[Verdict, Outcome]:
    check_options(job.options, job.calls)
    outcomes: list[Outcome] = []

    def run(more: Mapping[str, object], observers: Sequence[Observer]) -> Attempt:
        options = {**job.options, **more}
        outcomes.append(run_one(replace(job, options=options, observers=tuple(observers))))
        return _attempt(outcomes[-1])

    return verify_runs(run, job.calls), outcomes[0]


def _attempt(outcome: Outcome) -> Attempt:
    check = outcome.check
    return Attempt(
        outcome.result,
        outcome.findings,
        difference=check.text if check is not None and check.is_wrong else None,
        data=_said(check),
        fault=outcome.fault or outcome.not_possible,
    )


def _said(check: Check | None) -> str:
    if check is None:
        return "not compared: there was no run"
    return f"{check.text} (against reference())" if check.verdict in ("equal", "close") else check.text
