"""The parts of a report that are text and tables."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpusim.findings import Where, short_path
from tpusim.report.html import Markup, bar, element, interval_is_quick, interval_text, join, table
from tpusim.report.style import colours
from tpusim.report.timeline import chain_colour
from tpusim.trace.lines import LineUse, Places
from tpusim.trace.memory import high_water
from tpusim.trace.names import Names
from tpusim.units import PS_PER_US, Duration, format_bytes

if TYPE_CHECKING:
    from tpusim.explain import Explanation, WhatIf
    from tpusim.result import Result
    from tpusim.trace.critical import ChainLink
    from tpusim.trace.shares import Shares
    from tpusim.trace.steps import Steps

_MOST_ROWS = 400
_AROUND = 3


def where_time_goes(found: Shares) -> Markup:
    """A bar of the whole, and a table that is its legend."""
    palette = colours(list(found.by_cause))
    parts = [(found.share(cause), palette[cause], f"{cause} {found.share(cause):.1%}") for cause in found.by_cause]
    devices = max(1, len(found.by_device))
    rows = [
        (
            join([element("i", class_="dot", style=f"background:{palette[cause]}"), str(cause)]),
            f"{found.share(cause):.1%}",
            f"{length / devices / PS_PER_US:.3f}",
        )
        for cause, length in found.by_cause.items()
    ]
    return join([bar(parts), table(("cause", "share", "us a device"), rows, frozenset({1, 2}))])


def advice(said: Explanation) -> Markup:
    """The sentences, and a bar for each what-if run."""
    rows = [
        (
            run.change,
            element("div", bar([(max(run.saved, 0.0), _decided_colour(run), str(run))]), class_="saving"),
            f"{run.saved:.1%}",
            _could_save(run),
            f"{run.time.us:.3f}",
        )
        for run in said.what_ifs
    ]
    found = table(("if there were", "", "saved", "could be", "us"), rows, frozenset({2, 3, 4})) if rows else ""
    return join([element("ul", *(element("li", sentence) for sentence in said.sentences)), found])


def _decided_colour(run: WhatIf) -> str:
    return "#2f6fde" if run.is_decided or run.could_save is None else "#b9c2cf"


def _could_save(run: WhatIf) -> str:
    if run.could_save is None:
        return "–"
    least, most = (round(100 * part) for part in run.could_save)
    return f"{least} to {most}%"


def basis(result: Result) -> Markup:
    """The kinds of figures the time rests on, and the numbers that its interval comes from."""
    said = element("p", f"Figures: {', '.join(result.basis)}. Interval: {interval_text(result)}.")
    if not interval_is_quick(result) or result.interval is None or not result.interval.effects:
        return said
    rows = [
        (element("code", effect.name), effect.basis, _us(effect.shorter_ps), _us(effect.longer_ps))
        for effect in result.interval.effects
    ]
    return join([said, table(("number", "basis", "us shorter", "us longer"), rows, frozenset({2, 3}))])


def critical_path(steps: Steps, path: list[ChainLink], devices: Sequence[int]) -> Markup:
    """What the path consists of by line, then its links, longest where there are too many.

    ``devices``: the rows of the timeline, which a click on a link of theirs shows.
    """
    place, names = Places(), Names(steps.result.place)
    sums: dict[tuple[str, str], list[int]] = {}
    for link in path:
        own = sums.setdefault((str(place(link.site) or "–"), link.kind), [0, 0, link.slack_ps])
        own[0] += link.length_ps
        own[1] += 1
        own[2] = min(own[2], link.slack_ps)
    total = max(steps.end_ps, 1)
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])
    summary = table(
        ("line", "what", "times", "us", "share", "slack, us"),
        [
            (element("code", line), kind, count, f"{length / PS_PER_US:.3f}", f"{length / total:.1%}", _us(slack))
            for (line, kind), (length, count, slack) in ordered
        ],
        frozenset({2, 3, 4, 5}),
    )
    shown = path
    if len(path) > _MOST_ROWS:
        least = sorted((link.length_ps for link in path), reverse=True)[_MOST_ROWS]
        shown = [link for link in path if link.length_ps > least]
    at = {device: row for row, device in enumerate(devices)}
    rows = [
        _link_row(link, names.coords[link.device], str(place(link.site) or ""), at.get(link.device)) for link in shown
    ]
    note = f"{len(path)} links" + (f"; the {len(shown)} longest are listed" if len(shown) < len(path) else "")
    links = table(("", "device", "what", "line", "from, us", "us", "slack, us"), rows, frozenset({4, 5, 6}))
    head = element("summary", f"The chain, link by link ({note}). A click shows a link in the timeline.")
    return join([summary, element("details", head, element("div", links, class_="scroll"), id="chain-links")])


def _link_row(link: ChainLink, device: str, line: str, row: int | None) -> Markup:
    cells = (
        element("td", element("i", class_="dot", style=f"background:{chain_colour(link)}")),
        element("td", device),
        element("td", link.kind),
        element("td", element("code", line)),
        element("td", f"{link.from_ps / PS_PER_US:.3f}", class_="n"),
        element("td", f"{link.length_ps / PS_PER_US:.3f}", class_="n"),
        element("td", _us(link.slack_ps), class_="n"),
    )
    return element(
        "tr", *cells, class_="go" if row is not None else None, data_from=link.from_ps / PS_PER_US,
        data_to=link.to_ps / PS_PER_US, data_row=row,
    )  # fmt: skip


def _us(time_ps: int) -> str:
    return f"{time_ps / PS_PER_US:.3f}"


_SHADES = ("#2f6fde", "#12857c", "#e8912d", "#8a63d2", "#d9604c", "#54627a", "#55a868", "#c2853b")


def memory(result: Result) -> Markup:
    """The high-water mark of each memory of device 0, by buffer."""
    parts: list[object] = []
    for mark in high_water(result):
        full = mark.used_bytes / mark.capacity_bytes if mark.capacity_bytes else 0.0
        shades = [_SHADES[at % len(_SHADES)] for at in range(len(mark.occupants))]
        of_used = [
            (life.padded_bytes / max(mark.used_bytes, 1), shade, f"{life.spec.name} {format_bytes(life.padded_bytes)}")
            for life, shade in zip(mark.occupants, shades, strict=True)
        ]
        title = (
            f"{mark.space.name}: {format_bytes(mark.used_bytes)} of {format_bytes(mark.capacity_bytes)}, {full:.1%}, "
            f"at t = {Duration(mark.at_ps)}"
        )
        rows = [
            (
                join([element("i", class_="dot", style=f"background:{shade}"), element("code", life.spec.name)]),
                f"{life.spec.dtype.name}{list(life.spec.shape)}"
                + (f" × {life.spec.slots}" if life.spec.slots > 1 else ""),
                life.call,
                format_bytes(life.padded_bytes),
            )
            for life, shade in list(zip(mark.occupants, shades, strict=True))[:40]
        ]
        parts += [
            element("h3", title),
            bar(of_used),
            table(("buffer", "type", "call", "with padding"), rows, frozenset({3})),
        ]
    return join(parts) if parts else element("p", "Nothing was allocated.", class_="quiet")


def source(result: Result, uses: dict[Where | None, LineUse]) -> Markup:
    """The kernel's source, each line with what it cost a device in the mean."""
    devices = max(1, len(result.cores))
    by_file: dict[str, dict[int, LineUse]] = {}
    for where, use in uses.items():
        if where is not None:
            by_file.setdefault(where.file, {})[where.line] = use
    most = max((use.core_ps for own in by_file.values() for use in own.values()), default=1) or 1
    parts: list[object] = []
    for file, own in sorted(by_file.items(), key=lambda item: -sum(use.core_ps for use in item[1].values())):
        rows = list(_source_rows(file, own, devices, most))
        head = ("line", "us a device", "of it blocked", "on the path, us", "copies", "bytes", "")
        parts += [
            element("h3", element("code", short_path(file))),
            element("div", table(head, rows, frozenset(range(6))), class_="scroll source"),
        ]
    rest = uses.get(None)
    if rest is not None and rest.core_ps:
        us = rest.core_ps / devices / PS_PER_US
        parts.append(
            element("p", f"{us:.3f} us a device belong to no line: outside of calls or not kept.", class_="quiet")
        )
    return join(parts)


def _source_rows(file: str, own: dict[int, LineUse], devices: int, most: int) -> list[Markup]:
    wanted = sorted({line + near for line in own for near in range(-_AROUND, _AROUND + 1) if line + near > 0})
    rows = []
    before = wanted[0] - 1
    for number in wanted:
        text = linecache.getline(file, number)
        if not text and number not in own:
            continue
        if number != before + 1:
            rows.append(element("tr", element("td", "⋯", colspan=7), class_="skip"))
        before = number
        use = own.get(number)
        heat = f"--heat:{use.core_ps / most:.3f}" if use is not None else None
        rows.append(
            element(
                "tr",
                element("td", number, class_="n no"),
                *(element("td", cell, class_="n cost") for cell in _costs(use, devices)),
                element("td", element("code", text.rstrip("\n"))),
                class_="hot" if use is not None else None,
                style=heat,
                id=f"line-{number}",
            )
        )
    return rows


def _costs(use: LineUse | None, devices: int) -> tuple[str, ...]:
    if use is None:
        return ("", "", "", "", "")
    mean, blocked = use.core_ps / devices / PS_PER_US, use.blocked_ps / max(use.core_ps, 1)
    return (
        f"{mean:.3f}" if use.core_ps else "",
        f"{blocked:.0%}" if use.blocked_ps else "",
        f"{use.critical_ps / PS_PER_US:.3f}" if use.critical_ps else "",
        f"{use.copies:,}" if use.copies else "",
        format_bytes(use.bytes) if use.bytes else "",
    )
