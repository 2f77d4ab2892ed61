"""A run at a glance in a notebook: plain HTML with its styles in place, so that it needs no library and no script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpusim.findings import Severity
from tpusim.report.html import Markup, element, join
from tpusim.report.style import colours
from tpusim.trace.shares import shares
from tpusim.trace.steps import Steps

if TYPE_CHECKING:
    from tpusim.result import Result

_MOST_FINDINGS, _MOST_CAUSES = 5, 6


def summary_html(result: Result) -> Markup:
    """What the terminal says of a run, with a bar of where its time went."""
    head, *lines = result.summary
    rows = [
        element("tr", *(element("td", cell, style="text-align:left") for cell in (line[:13].strip(), line[13:])))
        for line in lines
    ]
    parts = [element("b", head), element("table", element("tbody", *rows)), _bar(result)]
    for finding in result.findings[:_MOST_FINDINGS]:
        colour = "#a3271b" if finding.severity is Severity.ERROR else "#854d0e"
        parts.append(element("pre", finding.explain(), style=f"color:{colour};white-space:pre-wrap"))
    if not result.findings:
        parts.append(element("div", "no findings", style="color:#166534"))
    elif len(result.findings) > _MOST_FINDINGS:
        parts.append(element("div", f"and {len(result.findings) - _MOST_FINDINGS} more findings"))
    return element("div", *parts, style="max-width:900px")


def _bar(result: Result) -> Markup:
    """Where the time went: a bar, and its largest parts in words."""
    found = shares(Steps(result))
    if not found.total_ps:
        return Markup("")
    palette = colours(list(found.by_cause))
    pieces = [
        element(
            "span", title=f"{cause} {found.share(cause):.1%}",
            style=f"display:inline-block;height:14px;width:{100 * found.share(cause):.2f}%;background:{palette[cause]}",
        )
        for cause in found.by_cause
    ]  # fmt: skip
    words = [
        join([element("span", "■ ", style=f"color:{palette[cause]}"), f"{cause} {found.share(cause):.0%}", "  "])
        for cause in list(found.by_cause)[:_MOST_CAUSES]
    ]
    return join(
        [
            element("div", *pieces, style="white-space:nowrap;font-size:0;margin:6px 0"),
            element("div", *words, style="font-size:90%"),
        ]
    )
