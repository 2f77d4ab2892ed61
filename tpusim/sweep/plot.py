"""The rows of a sweep as a picture: the best first, each with its interval, ties in one colour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tpusim.errors import OptionError
from tpusim.report.frame import need_bokeh
from tpusim.report.style import LOOKS
from tpusim.sweep.sweep import Sweep

_BEST, _SLOWER = LOOKS["compute"].colour, LOOKS["latency"].colour
_ROW_PX = 22
_MOST = 200
"""Rows drawn; the others are further from the best than anybody looks."""


def write_plot(sweep: Sweep, names: list[str], path: str | Path) -> None:
    """Write a page of its own, which opens offline; ``names`` of the points stand beside their row.

    Raises ``OptionError`` where Bokeh is missing, no row is right, or the file cannot be written.
    """
    need_bokeh()
    from bokeh.embed import file_html
    from bokeh.resources import INLINE

    places = sweep.ranking[:_MOST]
    if not places:
        raise OptionError("there is nothing to plot: no point of the sweep runs right")
    try:
        Path(path).write_text(file_html(_figure(sweep, names), INLINE, title="tpusim sweep"), encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot write {path}: {error.strerror}") from None


def _figure(sweep: Sweep, names: list[str]) -> Any:
    from bokeh.models import ColumnDataSource, HoverTool, Whisker
    from bokeh.plotting import figure

    places = sweep.ranking[:_MOST]
    by_time = sweep.objective == "time"
    labels = [
        f"{place.rank}.  " + ", ".join(f"{name}={place.row['point'][name]}" for name in names) for place in places
    ]
    scores = [place.row["time_us" if by_time else "ratio"] for place in places]
    data = ColumnDataSource(
        {
            "label": labels,
            "score": scores,
            "low": [place.row["low_us"] or place.row["time_us"] for place in places],
            "high": [place.row["high_us"] or place.row["time_us"] for place in places],
            "colour": [_BEST if place.rank == 1 or place.is_tie else _SLOWER for place in places],
            "said": ["the best" if p.rank == 1 else "may be as good" if p.is_tie else "slower" for p in places],
        }
    )
    drawn: Any = figure(
        y_range=labels[::-1],
        x_axis_label="simulated time (us)" if by_time else "time over its lower bound",
        height=_ROW_PX * len(labels) + 80,
        sizing_mode="stretch_width",
        tools="xpan,xwheel_zoom,reset",
    )
    drawn.x_range.start = 0
    dots = drawn.scatter("score", "label", source=data, size=9, color="colour")
    if by_time:
        drawn.add_layout(
            Whisker(base="label", lower="low", upper="high", dimension="width", source=data, line_color=_SLOWER)
        )
    drawn.add_tools(HoverTool(renderers=[dots], tooltips=[("", "@label"), ("", "@score{0.000}"), ("", "@said")]))
    return drawn
