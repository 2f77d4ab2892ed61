"""The drawings over time: what each device did, the critical path, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.report.frame import FAINT, FONT, need_bokeh, time_figure
from tpusim.report.marks import COMPUTE_LANE, DMA_LANES, FEW_MARKS, WAIT_LANE, Mark, Marks, marks
from tpusim.report.style import LOOKS, colours
from tpusim.trace.lines import Places
from tpusim.trace.names import Names
from tpusim.trace.shares import Cause, Shares
from tpusim.units import PS_PER_US

if TYPE_CHECKING:
    from tpusim.trace.critical import ChainLink
    from tpusim.trace.steps import Steps

MOST_ROWS = 32
"""Devices in sight at first."""
_TOOLTIP = """
<div style="font: 12px/1.45 system-ui, sans-serif; max-width: 420px">
<div style="font-weight: 600; color: #1f2937">@text{custom}</div>
<div style="color: #4b5563">@begin{0.000} – @end{0.000} us &nbsp;·&nbsp; <b>@length{0.000} us</b></div>
<div style="color: #6b7280">device @device{custom} &nbsp;·&nbsp; @line{custom}</div>
</div>"""


def timeline(steps: Steps, found: Marks | None = None) -> Any:
    """A band for each device: compute, waits, copies in flight.  Zoom with the wheel, pan, hover.

    Where there are many marks, an overview of them is drawn until few enough are in sight.
    """
    need_bokeh()
    from bokeh.models import ColumnDataSource, CustomJS, CustomJSHover, HoverTool, Legend, LegendItem

    found = found or marks(steps)
    names = Names(steps.result.place)
    coords = [names.coords[device] for device in found.devices]
    rows = len(coords)
    band = 90 if rows <= 8 else 46 if rows <= 16 else 24
    height = max(260, min(900, 70 + rows * band))
    figure = time_figure(steps, name="timeline", height=height, y_range=(min(rows, MOST_ROWS) + 0.02, -0.02))
    texts = _Texts()
    close, overview = _columns(found.close, texts), _columns(found.overview or [], texts)
    items, renderers, sources = [], [], []
    for kind, own in close.items():
        if not len(own["begin"]):
            continue
        look = LOOKS[kind]
        source = ColumnDataSource(overview[kind] if found.overview is not None else own)
        drawn = figure.quad(
            left="begin", right="end", top="top", bottom="bottom", source=source, fill_color=look.colour,
            fill_alpha="share", line_color=None, hover_fill_color="#111827", hover_fill_alpha=0.85, name=kind,
        )  # fmt: skip
        renderers.append(drawn)
        sources.append({"shown": source, "close": ColumnDataSource(own), "overview": ColumnDataSource(overview[kind])})
        items.append(LegendItem(label=look.title, renderers=[drawn]))
    if found.overview is not None:
        args = {"figure": figure, "sources": sources, "most": FEW_MARKS, "state": ColumnDataSource({"close": [0]})}
        choose = CustomJS(args=args, code=(files("tpusim.report") / "closer.js").read_text(encoding="utf-8"))
        for axis in (figure.x_range, figure.y_range):
            axis.js_on_change("start", choose)
            axis.js_on_change("end", choose)
    figure.lod_threshold = None  # never few marks instead of all while it moves
    lookups = {"text": texts.all, "line": texts.all, "device": names.coords}
    hover = {
        f"@{column}": CustomJSHover(args={"table": lookup}, code="return table[value]")
        for column, lookup in lookups.items()
    }
    figure.add_tools(HoverTool(renderers=renderers, tooltips=_TOOLTIP, formatters=hover, point_policy="follow_mouse"))
    figure.add_layout(Legend(items=items, orientation="horizontal", click_policy="hide", **_LEGEND), "above")
    _device_axis(figure, coords)
    return figure


def _columns(found: list[Mark], texts: _Texts) -> dict[str, dict[str, Any]]:
    """For each kind what a drawing of its marks needs; texts and devices by number.

    The most solid one comes first: the legend shows its colour.
    """
    by_kind: dict[str, list[Mark]] = {kind: [] for kind in LOOKS}
    for mark in sorted(found, key=lambda mark: -mark.share):
        by_kind[mark.kind].append(mark)
    return {
        kind: {
            "begin": np.array([mark.from_ps for mark in own]) / PS_PER_US,
            "end": np.array([mark.to_ps for mark in own]) / PS_PER_US,
            "length": np.array([mark.to_ps - mark.from_ps for mark in own]) / PS_PER_US,
            "top": np.array([mark.top for mark in own]),
            "bottom": np.array([mark.bottom for mark in own]),
            "share": np.array([mark.share for mark in own]),
            "device": np.array([mark.device for mark in own], dtype=np.int32),
            "text": np.array([texts.number(mark.text) for mark in own], dtype=np.int32),
            "line": np.array([texts.number(mark.line) for mark in own], dtype=np.int32),
        }
        for kind, own in by_kind.items()
    }


def _device_axis(figure: Any, coords: list[str]) -> None:
    from bokeh.models import FixedTicker

    labels = {row + 0.5: name for row, name in enumerate(coords)}
    if len(coords) <= 4:
        labels = {}
        for row, name in enumerate(coords):
            for title, (top, bottom) in (("compute", COMPUTE_LANE), ("wait", WAIT_LANE), ("DMA", DMA_LANES)):
                labels[row + (top + bottom) / 2] = f"{name}  {title}"
    figure.yaxis.ticker = FixedTicker(ticks=list(labels))
    figure.yaxis.major_label_overrides = labels
    figure.ygrid.ticker = FixedTicker(ticks=list(range(1, len(coords))))
    figure.ygrid.grid_line_color = "#dfe4ea"


def chain(steps: Steps, path: list[ChainLink]) -> Any:
    """The critical path as one strip over the time of the run."""
    need_bokeh()
    from bokeh.models import ColumnDataSource, HoverTool

    names = Names(steps.result.place)
    figure = time_figure(steps, name="chain", height=104, y_range=(1.0, 0.0), tools="xpan,xwheel_zoom,reset")
    place = Places()
    rows = _thinned(path)
    source = ColumnDataSource(
        {
            "begin": [link_.from_ps / PS_PER_US for link_ in rows],
            "end": [link_.to_ps / PS_PER_US for link_ in rows],
            "length": [link_.length_ps / PS_PER_US for link_ in rows],
            "colour": [chain_colour(link_) for link_ in rows],
            "kind": [link_.kind for link_ in rows],
            "device": [names.coords[link_.device] for link_ in rows],
            "line": [str(place(link_.site) or "") for link_ in rows],
        }
    )
    drawn = figure.quad(
        left="begin", right="end", top=0.12, bottom=0.88, source=source, fill_color="colour", line_color="white",
        line_width=0.6, hover_fill_color="#111827", name="chain",
    )  # fmt: skip
    tips = [("", "@kind on @device, @length{0.000} us"), ("line", "@line"), ("at", "@begin{0.000} us")]
    figure.add_tools(HoverTool(renderers=[drawn], tooltips=tips))
    figure.yaxis.visible = False
    figure.ygrid.visible = False
    return figure


def _thinned(path: list[ChainLink], most: int = 5000) -> list[ChainLink]:
    """The longest links of a path, in order."""
    if len(path) <= most:
        return path
    least = sorted((link_.length_ps for link_ in path), reverse=True)[most]
    return [link_ for link_ in path if link_.length_ps > least]


def chain_colour(part: ChainLink) -> str:
    """The colour of a link of the critical path: as in the timeline."""
    if part.kind == "transfer":
        return LOOKS["remote" if part.event.route.kind == "remote" else "local"].colour
    kinds = {
        "compute": "compute", "load": "access", "store": "access", "latency": "latency", "hops": "hops",
        "signal flight": "signal_wait", "blocked": "copy_wait",
    }  # fmt: skip
    return LOOKS[kinds.get(part.kind, "core")].colour


def where_time_goes(steps: Steps, found: Shares, shown: Sequence[int]) -> Any:
    """A bar for each of some devices, from what it computed to what it waited for."""
    need_bokeh()
    from bokeh.models import ColumnDataSource, HoverTool

    names = Names(steps.result.place)
    causes = sorted(found.by_cause, key=_order)
    devices = [names.coords[device] for device in shown]
    columns: dict[str, list[Any]] = {"device": list(devices)}
    for cause in causes:
        columns[str(cause)] = [found.by_device[device].get(cause, 0) / PS_PER_US for device in shown]
    height = max(120, min(700, 60 + 18 * len(devices)))
    figure = time_figure(steps, name="shares", height=height, y_range=list(reversed(devices)), tools="")
    palette = colours(list(found.by_cause))
    drawn = figure.hbar_stack(
        [str(cause) for cause in causes], y="device", height=0.78, source=ColumnDataSource(columns),
        color=[palette[cause] for cause in causes],
    )  # fmt: skip
    tips = [("device", "@device"), ("", "$name"), ("us", "@$name{0.000}")]
    figure.add_tools(HoverTool(renderers=drawn, tooltips=tips))
    if len(devices) > 32:
        figure.yaxis.major_label_text_font_size = "8px"
    figure.ygrid.visible = False
    return figure


def _order(cause: Cause) -> tuple[int, str]:
    groups = ("compute", "core", "exposed copy", "wait", "idle")
    return groups.index(cause.group), cause.what


_LEGEND = {
    "label_text_font_size": "11px", "label_text_color": FAINT, "label_text_font": FONT, "border_line_color": None,
    "glyph_width": 14, "glyph_height": 12, "spacing": 10, "padding": 4, "margin": 0, "background_fill_alpha": 0,
    "inactive_fill_color": "#f3f4f6",
}  # fmt: skip


class _Texts:
    """Texts by number, each once: a run has many marks and few different texts."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.all)
            self.all.append(text)
        return found
