"""The report of one run on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from tpusim.cli.console import can_show, labelled, plain, styled
from tpusim.findings import Finding, Severity
from tpusim.job import Outcome
from tpusim.trace.terminal import ASCII, BLOCKS, timeline

_MOST_FINDINGS = 10
_MOST_PRINTED = 40
_WIDTH = 100
_STYLES = {"equal": "green", "close": "green", "different": "bold red", "unchecked": "yellow"}


def show(console: Console, outcome: Outcome) -> None:
    """Print what there is: the result check, time and bound, use of the machine, findings, a timeline."""
    result = outcome.result
    if result is not None:
        _show_printed(console, result.printed)
    head, *rest = result.summary if result is not None else [_place_line(outcome)]
    console.print(styled(head, "bold"))
    if outcome.check is not None:
        against = "" if outcome.check.verdict in ("different", "unchecked") else "   (against reference())"
        console.print(labelled(f"result       {outcome.check.text}{against}", _STYLES[outcome.check.verdict]))
    for line in rest:
        console.print(labelled(line))
    show_findings(console, outcome.findings, is_alone=result is None)
    if outcome.fault is not None:
        console.print(styled(outcome.fault, "red"))
    if result is not None:
        glyphs = BLOCKS if can_show(console, "".join(BLOCKS)) else ASCII
        width = min(console.width, 160) if console.is_terminal else _WIDTH
        lines = timeline(result, width, glyphs=glyphs)
        if lines:
            console.print()
        for line in lines:
            console.print(Text(plain(line)))


def _place_line(outcome: Outcome) -> str:
    place = outcome.place
    if place is None:
        return outcome.job.file
    mesh = ", ".join(f"{axis}={size}" for axis, size in place.axis_sizes.items())
    if outcome.job.backend == "interpret":
        return f"JAX's TPU interpret mode, mesh {mesh}: data alone, no time"
    return f"{place.slice}, mesh {mesh}"


def _show_printed(console: Console, printed: Sequence[str]) -> None:
    for line in printed[:_MOST_PRINTED]:
        console.print(styled(line))
    if len(printed) > _MOST_PRINTED:
        console.print(styled(f"... and {len(printed) - _MOST_PRINTED} more lines that the kernel printed", "dim"))


def show_findings(console: Console, findings: Sequence[Finding], *, is_alone: bool = False) -> None:
    """Each finding with its text; ``is_alone``: they come from before a run."""
    if not findings:
        if not is_alone:
            console.print(labelled("findings     none"))
        return
    for finding in findings[:_MOST_FINDINGS]:
        is_error = finding.severity is Severity.ERROR
        # before a run there is no schedule to replay
        console.print(styled(str(finding) if is_alone else finding.explain(), "red" if is_error else "yellow"))
    if len(findings) > _MOST_FINDINGS:
        console.print(styled(f"... and {len(findings) - _MOST_FINDINGS} more findings; --json has them all", "dim"))
