"""``tpusim report FILE``: a run as one HTML page."""

from __future__ import annotations

import typer

from tpusim.cli.console import labelled, make_console, one_line
from tpusim.cli.options import PLACE, File, Html, ReportDevices, Texts, takes
from tpusim.cli.progress import RunProgress
from tpusim.cli.request import check_writable, make_job, parse_which
from tpusim.cli.show import show_findings
from tpusim.errors import OptionError
from tpusim.job import run_job
from tpusim.report import write_report
from tpusim.report.frame import need_bokeh


@takes(*PLACE, "data", "compute", "max_time", "max_events", "schedule", "faults", "replay")
def report(
    file: File,
    texts: Texts,
    html: Html,
    devices: ReportDevices = None,
) -> None:
    """Run a kernel and write what there is to see as one HTML page that opens offline.

    Exit status: 0 right; 1 a finding of severity error or a wrong result; 2 bad arguments; 3 not modelled,
    or not possible on this computer.  The page is written for a failed run, too.
    """
    need_bokeh()
    check_writable(html)
    which = parse_which(devices)
    job = make_job(file, **texts, detail=True)
    with RunProgress() as progress:
        outcome = run_job(job, progress)
    if outcome.result is None:
        typer.echo(f"Error: no report, there is no run to show: {one_line(outcome.problem)}", err=True)
        raise typer.Exit(outcome.status)
    try:
        check = outcome.check.text if outcome.check else None
        write_report(outcome.result, html, title=file, check=check, devices=which)
    except OSError as error:
        raise OptionError(f"cannot write {html}: {error.strerror}") from None
    console = make_console()
    console.print(labelled(f"time         {outcome.result.time}"))
    if outcome.check is not None:
        console.print(labelled(f"result       {outcome.check.text}"))
    show_findings(console, outcome.findings)
    console.print(labelled(f"report       {html}"))
    raise typer.Exit(outcome.status)
