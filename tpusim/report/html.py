"""HTML out of text: everything a user wrote is escaped here, and nowhere else."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from tpusim.findings import Severity
from tpusim.intervals import effort_of
from tpusim.units import Duration, format_bytes

if TYPE_CHECKING:
    from tpusim.findings import Finding, Where
    from tpusim.result import Result


MOST_TIMED_AGAIN = 100_000
"""Operations and solves of a run that a page times again, some 30 times for its interval and the advice: half a minute.

Counted and not measured, so that a page is the same wherever it is written."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """``<tag attributes>children</tag>``, what is no `Markup` escaped; ``class_`` is ``class``, ``_`` is ``-``."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{given}>{join(children)}</{tag}>")


def join(children: Iterable[object]) -> Markup:
    """The children one after the other, what is no `Markup` escaped."""
    return Markup("".join(child if isinstance(child, Markup) else escape(str(child)) for child in children))


def table(head: Iterable[object], rows: Iterable[Iterable[object]], numbers: frozenset[int] = frozenset()) -> Markup:
    """A table; the columns ``numbers`` are right-aligned.  A row may be an element of its own."""
    cells = [element("th", cell, class_="n" if at in numbers else None) for at, cell in enumerate(head)]
    body = [
        row
        if isinstance(row, Markup)
        else element("tr", *(element("td", c, class_="n" if at in numbers else None) for at, c in enumerate(row)))
        for row in rows
    ]
    return element("table", element("thead", element("tr", *cells)), element("tbody", *body))


def bar(parts: Iterable[tuple[float, str, str]]) -> Markup:
    """A bar of ``(share, colour, title)``."""
    pieces = [
        element("i", style=f"width:{100 * share:.3f}%;background:{colour}", title=title)
        for share, colour, title in parts
        if share > 0
    ]
    return element("div", *pieces, class_="bar")


def cards(result: Result, check: str | None = None) -> Markup:
    """Time with its interval, lower bound, ratio, verdict, copies and use, a card each."""
    use = result.utilisation()
    spread = interval_text(result)
    bound = result.lower_bound
    found = [
        ("time", str(result.time), spread if result.is_complete else "where the run stopped"),
        (
            "lower bound",
            str(bound) if bound is not None else "–",
            "of the same operation" if bound is not None else "none is known",
        ),
        ("ratio", f"{result.ratio:.2f}×" if result.ratio is not None else "–", "time over lower bound"),
        ("copies", f"{result.dmas:,}", format_bytes(result.bytes)),
        ("busiest link", f"{use.links_max:.0%}", (use.busiest_link or "not used").removeprefix("link ")),
        ("HBM", f"{use.hbm_max:.0%}", "at most, of its bandwidth"),
        ("computing", f"{use.core_mean:.0%}", "of the time of a core"),
    ]
    if check is not None:
        word, rest = _headline(check)
        found.insert(3, ("result", word, rest))
    made = [
        element("div", element("h3", name), element("b", value), element("small", note), class_="card", id=f"card-{at}")
        for at, (name, value, note) in enumerate(found)
    ]
    because = result.lower_bound_because
    why = element("p", f"Nothing is faster than the lower bound: {because}.", class_="quiet") if because else ""
    return join([element("div", *made, class_="cards"), why])


def _headline(check: str) -> tuple[str, str]:
    """What a comparison found in a word or two, and the rest of it."""
    if check.startswith("equal"):
        return "equal", check.removeprefix("equal").strip() or "to the reference"
    if check.startswith("not checked"):
        return "not checked", check.removeprefix("not checked").strip(": ")
    return "wrong", check


def interval_is_quick(result: Result) -> bool:
    """Whether a page may wait for the interval of the run's time."""
    return effort_of(result.trace, result.cores) <= MOST_TIMED_AGAIN


def interval_text(result: Result) -> str:
    """How far the time can be trusted; timing a run again costs about as much as the run, many times over."""
    if not interval_is_quick(result):
        return "its interval would take too long here"
    interval = result.interval
    return "no interval known" if interval is None else str(interval)


def verdict(result: Result) -> Markup:
    """One word on the run."""
    errors = sum(finding.severity is Severity.ERROR for finding in result.findings)
    warnings = len(result.findings) - errors
    if errors:
        return element("span", f"{errors} error{'s' if errors > 1 else ''}", class_="pill bad", id="verdict")
    if warnings:
        return element("span", f"ok, {warnings} warning{'s' if warnings > 1 else ''}", class_="pill warn", id="verdict")
    return element("span", "no findings", class_="pill good", id="verdict")


def findings(result: Result) -> Markup:
    """Each finding with its text and both lines."""
    if not result.findings:
        return element("p", "None.", class_="quiet")
    return join(_finding(finding) for finding in result.findings)


def _finding(finding: Finding) -> Markup:
    head, _, rest = finding.text.partition("\n")
    lines = [_excerpt(title, where) for title, where in (("here", finding.where), ("other", finding.other)) if where]
    at = f"t = {Duration(finding.time_ps)}" if finding.time_ps is not None else ""
    return element(
        "article",
        element("h4", element("span", str(finding.kind), class_="kind"), element("small", at)),
        element("p", head),
        element("pre", rest) if rest else "",
        *lines,
        element("small", f"Replay: {finding.token or 'default'}"),
        class_=f"finding {finding.severity}",
    )


def _excerpt(title: str, where: Where) -> Markup:
    """The line of a finding with its neighbours."""
    rows = []
    for number in range(max(1, where.line - 1), where.line + 2):
        text = linecache.getline(where.file, number).rstrip("\n")
        if text or number == where.line:
            rows.append(
                element(
                    "div",
                    element("span", number, class_="no"),
                    text or " ",
                    class_="hit" if number == where.line else None,
                )
            )
    return element("div", element("small", f"{title}: {where}"), element("pre", *rows, class_="code"), class_="excerpt")
