"""``tpusim lint FILE``: what the TPU compiler would refuse, rule by rule."""

from __future__ import annotations

import sys

import typer

from tpusim.cli.console import make_console, one_line, styled
from tpusim.cli.options import PLACE, File, JsonFile, Texts, takes
from tpusim.cli.request import check_writable, make_job
from tpusim.cli.run import quiet_for, write_json
from tpusim.findings import Severity
from tpusim.job import Status, run_job
from tpusim.judges.lint import RULES


@takes(*PLACE, "schedule", "faults", "replay")
def lint(
    file: File,
    texts: Texts,
    json_file: JsonFile = None,
) -> None:
    """Check a kernel against the rules of compiler and chip, each with its origin.

    The kernel is run to see what it does.  Exit status: 0 no rule is broken; 1 one is; 2 bad arguments; 3 not
    modelled.
    """
    check_writable(json_file)
    job = make_job(file, **texts, on_finding="record", checks="none")
    with quiet_for(json_file):
        outcome = run_job(job)
    kinds = {rule.kind for rule in RULES}
    found = [finding for finding in outcome.findings if finding.kind in kinds]
    console = make_console(sys.stderr if json_file == "-" else sys.stdout)
    for rule in RULES:
        broken = [finding for finding in found if finding.kind is rule.kind and _is_about(finding.message, rule.text)]
        word = styled("broken  ", "red") if broken else styled("kept    ", "green")
        console.print(styled(f"{rule.kind:<16}").append_text(word).append_text(styled(rule.text)))
        console.print(styled(f"{'':<24}{rule.origin}", "dim"))
        for finding in broken:
            console.print(styled(f"{'':<24}{one_line(finding)}", "red"))
    stopped = [f for f in outcome.findings if f not in found and f.severity is Severity.ERROR]
    if outcome.fault is not None or outcome.not_possible is not None or (stopped and outcome.result is None):
        console.print(styled(f"not all of the kernel was seen: {one_line(outcome.problem)}", "yellow"))
    if json_file is not None:
        write_json({"ok": not found, "findings": [finding.as_dict() for finding in found]}, json_file)
    if found:
        raise typer.Exit(Status.WRONG)
    raise typer.Exit(outcome.status if outcome.fault or outcome.not_possible else Status.RIGHT)


def _is_about(message: str, rule: str) -> bool:
    """Findings of a kind with several rules quote theirs."""
    several = [each for each in RULES if each.text in message]
    return not several or several[0].text == rule
