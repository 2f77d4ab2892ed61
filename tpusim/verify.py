"""One program in all schedules: run it once under the recorder, prove or refute, compare its data.

Native and captured programs and kernel files share this; they differ in how they make a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tpusim.errors import FindingError, InterruptedRunError, NotModelledError, OptionError
from tpusim.findings import Finding, Kind, Severity
from tpusim.judges.proof import Names, Proof, Recorder, ReplayRecorder, Witness, is_shown, prove
from tpusim.judges.proof.accesses import Conflict
from tpusim.judges.proof.unwritten import NUMBERS, OtherContents, first_difference, has_scalar_scratch
from tpusim.observe import Observer
from tpusim.result import Result
from tpusim.verdict import Answer, Verdict

_OWN_OPTIONS = ("checks", "on_finding", "schedule", "faults", "replay")
_RECORD = {"checks": "none", "on_finding": "record"}
_MOST_REPLAYED = 5
"""Findings whose schedule is replayed: each takes a run."""
_UNDECIDED = (Kind.LIVELOCK, Kind.NOT_MODELLED)
"""Kinds after which nobody knows how the program would have gone on."""
_ORDERED = (Kind.RACE, Kind.LIFETIME)
"""Kinds that depend on the schedule; of these the proof knows more than the run."""


@dataclass(frozen=True)
class Attempt:
    """One run: its result (``None`` where it did not begin), findings, and its data against the reference.

    ``difference``: where the data are not the reference's; ``data`` says what the comparison found, or why there
    was none.  ``fault``: what the program itself raised.
    """

    result: Result | None
    findings: tuple[Finding, ...]
    difference: str | None = None
    data: str = "not compared: no reference"
    fault: str | None = None


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
            raise OptionError(f"verify looks at every schedule and replays what it finds: leave {name} out")
    if isinstance(calls, bool) or not isinstance(calls, int) or calls < 1:
        raise OptionError(f"calls is a positive integer, not {calls!r}")


def verify_runs(run: Run, calls: int) -> Verdict:
    """The verdict on a program that ``run`` runs ``calls`` times in a row."""
    started = time.perf_counter()
    recorder = Recorder()
    made = run(_RECORD, [recorder])
    result = made.result
    proof, shown = None, set[int]()
    if result is not None and result.cores:
        proof = prove(recorder, result.cores[0].machine)
        shown = _replay(run, made, proof, recorder, calls)
    findings = _findings(made, proof)
    answer, reasons = _answer(made, proof, findings, shown)
    if answer == "proven" and result is not None:
        doubt = _depends_on_the_unwritten(run, recorder, result)
        if doubt is not None:
            answer, reasons = "not-proven", (doubt,)
    return Verdict(
        answer=answer,
        premises=() if proof is None else proof.premises,
        reasons=reasons,
        findings=findings,
        calls=calls,
        operations=0 if proof is None else proof.operations,
        wall_s=time.perf_counter() - started,
        data=made.data,
        result=result,
    )


def _depends_on_the_unwritten(run: Run, recorder: Recorder, result: Result) -> str | None:
    """Why the operations may be others with other numbers in memory that nobody has written."""
    machine = result.cores[0].machine
    for number in NUMBERS if has_scalar_scratch(machine) else ():
        watcher = OtherContents(number)
        with suppress(NotModelledError):  # then they are fewer
            run(_RECORD, [watcher])
        difference = first_difference(recorder, watcher, machine)
        if difference is not None:
            return f"P1: {difference} depends on SMEM that nobody has written: with {number} there it is not the same."
    return None


def _findings(made: Attempt, proof: Proof | None) -> tuple[Finding, ...]:
    """Those of the proof, and of the run what the proof does not say better."""
    proven = [] if proof is None else [finding for finding, _ in proof.faults]
    is_known = any(finding.kind in _ORDERED for finding in proven)
    own = [finding for finding in made.findings if not (is_known and finding.kind in _ORDERED)]
    order = {Severity.ERROR: 0, Severity.WARNING: 1}
    return tuple(sorted([*own, *proven], key=lambda finding: order[finding.severity]))


def _replay(run: Run, made: Attempt, proof: Proof, recorder: Recorder, calls: int) -> set[int]:
    """Replay the first faults, and write into them what came of it; the identities of findings that it showed."""
    result = made.result
    if result is None:
        return set()
    machine = result.cores[0].machine
    shown: set[int] = set()
    for count, (number, fault, witness) in enumerate(proof.witnesses(recorder, machine)):
        finding = replace(proof.faults[number][0], token=witness.token)
        if count < _MOST_REPLAYED:
            watcher = ReplayRecorder()
            again = run({**_RECORD, "replay": witness.token}, [watcher])
            text, has_come = _told(made, again, witness, fault, watcher, calls)
            finding = replace(finding, message=f"{finding.message}\n  {text}")
            finding.details["replay"] = text
            if has_come:
                shown.add(id(finding))
        proof.faults[number] = (finding, fault)
    return shown


def _told(
    made: Attempt, again: Attempt, witness: Witness, fault: Conflict, watcher: ReplayRecorder, calls: int
) -> tuple[str, bool]:
    """What a replay showed, and whether it was the overlap."""
    several = f", {calls} calls in a row," if calls > 1 else ""
    held = f"Replayed{several} with {witness} until nothing else could move"
    if again.result is None or not again.result.cores:
        return f"{held}: the run did not begin.", False
    has_come = is_shown(witness, fault, Names(watcher, again.result.cores[0].machine))
    text = f"{held}: {'the other access began meanwhile' if has_come else 'the other access did not begin meanwhile'}"
    difference = again.difference or _difference(made.result, again.result)
    if difference is not None:
        return f"{text}, and the data are wrong: {difference}.", has_come
    is_known = made.result is not None and made.result.outputs is not None and again.result.outputs is not None
    return f"{text}{'; the data came out as on the default schedule' if is_known else ''}.", has_come


def _difference(first: Result | None, second: Result) -> str | None:
    """How the data of two runs differ."""
    if first is None or first.outputs is None or second.outputs is None:
        return None
    wanted = [*first.repeats, first.outputs]
    for call, (outputs, expected) in enumerate(zip([*second.repeats, second.outputs], wanted, strict=False), 1):
        for number, (one, other) in enumerate(zip(outputs, expected, strict=False)):
            if one is None or other is None:
                continue
            rows = [np.ascontiguousarray(a).reshape(-1).view(np.uint8).reshape(a.size, -1) for a in (one, other)]
            count = int((rows[0] != rows[1]).any(axis=1).sum()) if one.size else 0
            if count:
                which = f" of call {call}" if len(wanted) > 1 else ""
                return f"{count} of {one.size} values of output {number}{which} are not those of the default schedule"
    return None


def _answer(
    made: Attempt, proof: Proof | None, findings: Sequence[Finding], shown: set[int]
) -> tuple[Answer, tuple[str, ...]]:
    """The answer and its reasons; ``shown``: findings that a replay has shown, which need no premise."""
    doubts = [] if proof is None else list(proof.doubts)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    certain = [
        finding
        for finding in errors
        if finding.kind not in _UNDECIDED and not (doubts and finding.kind in _ORDERED and id(finding) not in shown)
    ]
    reasons = [f"{finding.kind}: {finding.text.splitlines()[0]}" for finding in (certain or errors)]
    if made.difference is not None:
        reasons.append(f"wrong data: {made.difference}")
    if certain or made.difference is not None:
        return "refuted", tuple(reasons)
    if doubts or reasons:
        return "not-proven", (*doubts, *reasons)
    if made.fault is not None:
        return "not-proven", (f"the program raised {made.fault.splitlines()[0]}",)
    if made.result is None or not made.result.is_complete:
        return "not-proven", ("the run did not reach its end",)
    return "proven", ()
