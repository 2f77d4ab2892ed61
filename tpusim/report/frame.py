"""What all drawings of a report have in common: Bokeh, the axis of time, type and colours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpusim.errors import MissingExtraError
from tpusim.units import PS_PER_US

if TYPE_CHECKING:
    from tpusim.trace.steps import Steps

INK, FAINT, GRID = "#1f2937", "#6b7280", "#edf0f4"
FONT = "Inter, 'Segoe UI', system-ui, -apple-system, 'Helvetica Neue', Arial, sans-serif"


def need_bokeh() -> None:
    """Raise ``MissingExtraError`` with the command that installs it where Bokeh is missing."""
    try:
        import bokeh  # noqa: F401  # only whether it is there
    except ImportError:
        raise MissingExtraError(
            "reports are drawn with Bokeh, which is not installed: pip install 'tpusim[report]'"
        ) from None


def time_figure(steps: Steps, *, name: str, height: int, tools: str | None = None, **more: Any) -> Any:
    """A wide figure over the time of the run, in microseconds."""
    from bokeh.models import Range1d, WheelZoomTool
    from bokeh.plotting import figure as new_figure

    end = max(steps.end_ps / PS_PER_US, 1e-6)
    time = Range1d(0, end, bounds=(-0.02 * end, 1.02 * end), min_interval=max(end * 1e-6, 1e-6))
    figure = new_figure(
        name=name, height=height, x_range=time, tools="pan,box_zoom,reset" if tools is None else tools,
        sizing_mode="stretch_width", toolbar_location="right" if tools is None else None, **more,
    )  # fmt: skip
    if tools is None:
        wheel = WheelZoomTool(dimensions="width")
        figure.add_tools(wheel)
        figure.toolbar.active_scroll = wheel
        figure.toolbar.logo = None
    dress(figure)
    return figure


def dress(figure: Any) -> None:
    """Give a figure the looks of the page."""
    figure.outline_line_color = None
    figure.background_fill_color = figure.border_fill_color = "#ffffff"
    figure.grid.grid_line_color = GRID
    figure.axis.axis_line_color = figure.axis.minor_tick_line_color = None
    figure.axis.major_tick_line_color = "#d5dae1"
    figure.axis.major_label_text_color = FAINT
    figure.axis.major_label_text_font = figure.axis.axis_label_text_font = FONT
    figure.axis.major_label_text_font_size = figure.axis.axis_label_text_font_size = "11px"
    figure.axis.axis_label_text_color = FAINT
    figure.axis.axis_label_text_font_style = "normal"
    figure.xaxis.axis_label = "us"
