"""The drawings of the machine: its chips and links, how full they were, and its memories."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.report.frame import FONT, INK, dress, need_bokeh, time_figure
from tpusim.report.style import heat
from tpusim.topology import links
from tpusim.trace.memory import levels, occupants
from tpusim.trace.names import Names
from tpusim.trace.rates import Use
from tpusim.units import PS_PER_US, format_bytes

if TYPE_CHECKING:
    from tpusim.result import Result
    from tpusim.specs import MemorySpace
    from tpusim.trace.steps import Steps


_COLUMN = 500
"""Pixels that the drawing of the mesh has on a page of common width."""
_LETTER, _LEAST_SIZE = 0.56, 8
"""Width of a letter in parts of its size, and the least size that can be read, in pixels."""


def link_use(steps: Steps, use: Use | None = None, most: int = 48, columns: int = 400) -> Any | None:
    """The use of the busiest links over time, a row each; ``None`` where no link was used."""
    need_bokeh()
    from bokeh.models import ColorBar, FixedTicker, HoverTool, LinearColorMapper

    result = steps.result
    use = use or Use(result)
    rows = sorted(result.links.items(), key=lambda item: -item[1].busy_bytes)[:most]
    if not rows or not steps.end_ps:
        return None
    edges = np.linspace(0, steps.end_ps, columns + 1)
    picture = np.array([use.over(resource, edges) for _, resource in reversed(rows)])
    figure = time_figure(steps, name="link_use", height=max(130, min(700, 70 + 17 * len(rows))), y_range=(0, len(rows)))
    mapper = LinearColorMapper(palette=[heat(i / 63) for i in range(64)], low=0, high=1)
    drawn = figure.image(
        image=[picture], x=0, y=0, dw=steps.end_ps / PS_PER_US, dh=len(rows), color_mapper=mapper, name="link_use"
    )
    labels = {len(rows) - row - 0.5: name.removeprefix("link ") for row, (name, _) in enumerate(rows)}
    figure.yaxis.ticker = FixedTicker(ticks=list(labels))
    figure.yaxis.major_label_overrides = labels
    figure.grid.visible = False
    figure.add_tools(HoverTool(renderers=[drawn], tooltips=[("use", "@image{0 %}"), ("us", "$x{0.000}")]))
    figure.add_layout(ColorBar(color_mapper=mapper, width=10, title=None, major_label_text_font=FONT), "right")
    return figure


def memory(steps: Steps, space: MemorySpace, device: int = 0) -> Any:
    """What lay in one memory of a device, over time."""
    need_bokeh()
    lives = occupants(steps.result, device)
    points = levels(lives, space)
    figure = time_figure(steps, name=f"memory_{space.name}", height=170)
    x = [at / PS_PER_US for at, _ in points]
    y = [used / 1024 for _, used in points]
    figure.varea_step(x=x, y1=[0] * len(x), y2=y, step_mode="after", fill_color="#2f6fde", fill_alpha=0.35)
    figure.step(x=x, y=y, mode="after", line_color="#2f6fde", line_width=1.5)
    figure.y_range.start = 0
    figure.yaxis.axis_label = f"{space.name}, KiB"
    return figure


def mesh(result: Result, use: Use | None = None) -> Any:
    """The chips of the slice, and for each directed link how full it was in the mean."""
    need_bokeh()
    from bokeh.models import ColumnDataSource, HoverTool
    from bokeh.plotting import figure as new_figure

    slice_ = result.place.slice
    use = use or Use(result)
    end = int(result.time)
    columns, rows, planes = (*slice_.shape, 1, 1)[:3]
    shape = (columns, rows, planes)
    beside = _planes_beside(planes)
    wide, tall = beside * (columns + 1), -(-planes // beside) * (rows + 1)
    # as wide as its chips need, at most the space there is; one unit is as long either way
    across, down = wide - 0.2, tall - 0.2
    scale = min(150.0, 700 / across, 620 / down)
    figure = new_figure(
        name="mesh", width=int(across * scale), height=int(down * scale), max_width=int(across * scale),
        sizing_mode="scale_width", tools="pan,wheel_zoom,reset", toolbar_location=None, min_border=0,
        x_range=(-0.9, wide - 1.1), y_range=(tall - 1.1, -0.9),
    )  # fmt: skip
    dress(figure)
    figure.axis.visible = False
    figure.grid.visible = False
    carried = _links_of(result)
    lines: dict[str, list[Any]] = {
        key: [] for key in ("x0", "y0", "x1", "y1", "colour", "width", "name", "use", "bytes")
    }
    for each in links(slice_):
        if each.kind == "d2d":
            continue
        resource = carried.get(each.index)
        share = use.mean(resource, 0, end) if resource is not None and end else 0.0
        for key, value in zip(("x0", "y0", "x1", "y1"), _ends(each, shape), strict=True):
            lines[key].append(value)
        lines["colour"].append(heat(0.12 + 0.88 * share) if resource is not None else "#e8ecf2")
        lines["width"].append(4.5 if resource is not None else 2)
        lines["name"].append(str(each))
        lines["use"].append(share)
        lines["bytes"].append(format_bytes(resource.busy_bytes) if resource is not None else "nothing")
    drawn = figure.segment(
        "x0", "y0", "x1", "y1", color="colour", line_width="width", line_cap="round", source=ColumnDataSource(lines),
        hover_line_color="#111827", name="links",
    )  # fmt: skip
    tips = [("link", "@name"), ("use", "@use{0.0 %}"), ("carried", "@bytes")]
    figure.add_tools(HoverTool(renderers=[drawn], tooltips=tips))
    _chips(figure, result, shape, min(scale, _COLUMN / across))
    return figure


def _links_of(result: Result) -> dict[int, Any]:
    return result.cores[0].machine.wiring.links if result.cores else {}


def _planes_beside(planes: int) -> int:
    """Planes of a 3-D slice in a row: as many as there are rows of them, or one more."""
    return math.ceil(math.sqrt(planes))


def _position(at: tuple[int, ...], shape: tuple[int, int, int]) -> tuple[float, float]:
    down, across = divmod(at[2], _planes_beside(shape[2]))
    return at[0] + across * (shape[0] + 1), at[1] + down * (shape[1] + 1)


def _ends(each: Any, shape: tuple[int, int, int]) -> tuple[float, float, float, float]:
    """Where a directed link is drawn: beside its way back; a stub where it wraps or leaves the plane."""
    (x0, y0), (x1, y1) = _position(each.source, shape), _position(each.target, shape)
    is_long = each.axis == 2 or abs(each.source[each.axis] - each.target[each.axis]) > 1
    if each.axis == 2:
        dx, dy = 0.33 * each.direction, 0.33 * each.direction
    else:
        dx, dy = (each.direction, 0) if each.axis == 0 else (0, each.direction)
    if is_long:
        length = 0.62 if each.axis != 2 else 1.0
        x1, y1 = x0 + dx * length, y0 + dy * length
    side_x, side_y = (0.0, 0.055 * each.direction) if each.axis == 0 else (-0.055 * each.direction, 0.0)
    gap = 0.0 if each.axis == 2 else 0.24
    back = 0.0 if is_long else gap
    return (
        x0 + dx * gap + side_x, y0 + dy * gap + side_y, x1 - dx * back + side_x, y1 - dy * back + side_y
    )  # fmt: skip


def _chips(figure: Any, result: Result, shape: tuple[int, int, int], pixels: float) -> None:
    """The chips, ``pixels`` apart, with their devices where there is room for the text."""
    from bokeh.core.properties import value
    from bokeh.models import ColumnDataSource, HoverTool

    slice_ = result.place.slice
    names = Names(result.place)
    on: dict[int, list[int]] = {}
    for device, place in enumerate(result.place.devices):
        on.setdefault(slice_.chip_of(place), []).append(device)
    columns: dict[str, list[Any]] = {key: [] for key in ("x", "y", "chip", "devices", "fill", "computes")}
    for chip in range(slice_.num_chips):
        own = on.get(chip, [])
        x, y = _position((*slice_.chip_coords(chip), 0)[:3], shape)
        busy = max((result.cores[device].compute_ps / max(int(result.time), 1) for device in own), default=0.0)
        columns["x"].append(x)
        columns["y"].append(y)
        columns["chip"].append(f"({','.join(map(str, slice_.chip_coords(chip)[: len(slice_.shape)]))})")
        columns["devices"].append(" ".join(names.coords[device] for device in own) or "not in the mesh")
        columns["fill"].append("#ffffff" if own else "#f3f4f6")
        columns["computes"].append(busy)
    source = ColumnDataSource(columns)
    drawn = figure.rect(
        "x", "y", 0.42, 0.42, source=source, fill_color="fill", line_color="#94a3b8", line_width=1.2, border_radius=5,
        name="chips",
    )  # fmt: skip
    longest = max(map(len, columns["devices"]))
    size = min(12, int(0.75 * pixels / (_LETTER * longest)))
    if size >= _LEAST_SIZE:
        figure.text(
            "x", "y", text="devices", source=source, text_align="center", text_baseline="middle",
            text_font_size=f"{size}px", text_color=INK, text_font=value(FONT),
        )  # fmt: skip
    tips = [("chip", "@chip"), ("devices", "@devices"), ("computing", "@computes{0 %}")]
    figure.add_tools(HoverTool(renderers=[drawn], tooltips=tips))
