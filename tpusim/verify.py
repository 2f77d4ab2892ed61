"""One program in all schedules: run it once under the recorder, prove or refute, compare its data.

Native and captured programs and kernel files share this; they differ in how they make a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpusim.errors import FindingError, InterruptedRunError, NotModelledError, OptionError
from tpusim.findings import Finding, Kind, Severity
from tpusim.judges.proof import PREMISES, Proof, Recorder, prove
from tpusim.observe import Observer
from tpusim.result import Result
from tpusim.verdict import Answer, Verdict

_OWN_OPTIONS = ("checks", "on_finding")
_UNDECIDED = (Kind.LIVELOCK, Kind.NOT_MODELLED)
"""Kinds after which nobody knows how the program would have gone on."""
_ORDERED = (Kind.RACE, Kind.LIFETIME)
"""Kinds that depend on the schedule; of these the proof knows more than the run."""


@dataclass(frozen=True)
class Attempt:
    """One run: its result (``None`` where it did not begin), findings, and its data against the reference.

    ``difference``: where the data are not the reference's; ``data`` says what the comparison found, or why there
    was none.
    """

    result: Result | None
    findings: tuple[Finding, ...]
    difference: str | None = None
    data: str = "not compared: no reference"


Run = Callable[[Mapping[str, Any], Sequence[Observer]], Attempt]
"""Makes a run with these options besides those of the user; the observers watch it."""


def attempt(run: Callable[[], Result]) -> Attempt:
    """What a run came to, also where it raised a finding; raises what is no fault of the program."""
    try:
        result = run()
    except (NotModelledError, InterruptedRunError):
        raise
    except FindingError as error:
        return Attempt(error.result, tuple(error.findings))
    return Attempt(result, result.findings)


def check_options(options: Mapping[str, Any], calls: int) -> None:
    """Refuse run options that a verdict chooses itself."""
    for name in _OWN_OPTIONS:
        if name in options:
            raise OptionError(f"verify looks at every schedule and records what it finds: leave {name} out")
    if isinstance(calls, bool) or not isinstance(calls, int) or calls < 1:
        raise OptionError(f"calls is a positive integer, not {calls!r}")


def verify_runs(run: Run, calls: int) -> Verdict:
    """The verdict on a program that ``run`` runs ``calls`` times in a row."""
    started = time.perf_counter()
    recorder = Recorder()
    made = run({"checks": "none", "on_finding": "record"}, [recorder])
    result = made.result
    proof = None if result is None or not result.cores else prove(recorder, result.cores[0].machine)
    findings = _findings(made, proof)
    answer, reasons = _answer(made, proof, findings)
    return Verdict(
        answer=answer,
        premises=PREMISES if proof is None else proof.premises,
        reasons=reasons,
        findings=findings,
        calls=calls,
        operations=0 if proof is None else proof.operations,
        wall_s=time.perf_counter() - started,
        data=made.data,
        result=result,
    )


def _findings(made: Attempt, proof: Proof | None) -> tuple[Finding, ...]:
    """Those of the proof, and of the run what the proof does not say better."""
    proven = [] if proof is None else [finding for finding, _ in proof.faults]
    is_known = any(finding.kind in _ORDERED for finding in proven)
    own = [finding for finding in made.findings if not (is_known and finding.kind in _ORDERED)]
    order = {Severity.ERROR: 0, Severity.WARNING: 1}
    return tuple(sorted([*own, *proven], key=lambda finding: order[finding.severity]))


def _answer(made: Attempt, proof: Proof | None, findings: Sequence[Finding]) -> tuple[Answer, tuple[str, ...]]:
    doubts = [] if proof is None else list(proof.doubts)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    certain = [
        finding for finding in errors if finding.kind not in _UNDECIDED and not (doubts and finding.kind in _ORDERED)
    ]
    reasons = [f"{finding.kind}: {finding.text.splitlines()[0]}" for finding in (certain or errors)]
    if made.difference is not None:
        reasons.append(f"wrong data: {made.difference}")
    if certain or made.difference is not None:
        return "refuted", tuple(reasons)
    if doubts or reasons:
        return "not-proven", (*doubts, *reasons)
    if made.result is None or not made.result.is_complete:
        return "not-proven", ("the run did not reach its end",)
    return "proven", ()
