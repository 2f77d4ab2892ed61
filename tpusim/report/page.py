"""A run as one HTML page that needs nothing but itself.

Drawings are Bokeh's, its scripts are inlined, and a content security policy forbids the page to load
anything.  Text comes from :mod:`tpusim.report.html`, which escapes it.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpusim.explain import explain
from tpusim.judges.deadlock import device_ranges
from tpusim.report import sections
from tpusim.report.frame import need_bokeh
from tpusim.report.html import Markup, cards, element, findings, interval_is_quick, join, verdict
from tpusim.report.views import Views
from tpusim.trace.devices import Which
from tpusim.trace.memory import high_water, levels, occupants

if TYPE_CHECKING:
    from tpusim.result import Result

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
    "font-src data:"
)
_MOST_CHIPS = 1024


def write_report(
    result: Result, file: str | Path, *, title: str = "", check: str | None = None, devices: Which = None
) -> None:
    """Write the report of ``result``, of a failed run too, as one page that opens offline.

    ``title``: what ran; ``check``: what a comparison with a reference found; ``devices``: those that are drawn one by
    one, see :class:`~tpusim.report.Views`.  Raises ``OptionError`` where Bokeh is missing or a device is not there,
    ``OSError`` where the file cannot be written.
    """
    Path(file).write_text(page(result, title=title, check=check, devices=devices), encoding="utf-8")


def page(result: Result, *, title: str = "", check: str | None = None, devices: Which = None) -> str:
    """The page as text; see :func:`write_report`."""
    need_bokeh()
    from bokeh.embed import components
    from bokeh.resources import Resources

    made = _Page(result, devices)
    script, places = components(made.figures)
    scripts = Resources(mode="inline", components=["bokeh"]).js_raw
    body = made.body(title or _title(result), check, {name: Markup(div) for name, div in places.items()})
    own = files("tpusim.report")
    style, clicks = ((own / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    head = [
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        element("title", f"{title or _title(result)}: tpusim report"),
        element("style", Markup(style)),
        *(element("script", Markup(text)) for text in scripts),
    ]
    end = [element("script", Markup(clicks)), Markup(script)]
    page_ = element("html", element("head", *head), element("body", body, *end), lang="en")
    return f"<!doctype html>\n{page_}\n"


def _title(result: Result) -> str:
    return ", ".join(dict.fromkeys(call.name for call in result.calls)) or "run"


class _Page:
    """The analysis of a run, its drawings by name, and its text."""

    def __init__(self, result: Result, devices: Which) -> None:
        self.result = result
        self.views = Views(result, devices)
        self.figures = {name: figure for name, figure in self._drawn().items() if figure is not None}

    def _drawn(self) -> dict[str, Any]:
        views = self.views
        if not views.steps.end_ps:
            return {}
        chips = self.result.place.slice.num_chips
        memories = {
            f"memory_{mark.space.name}": views.memory(mark.space.name)
            for mark in high_water(self.result)
            if len(levels(occupants(self.result), mark.space)) > 2
        }
        return {
            "timeline": views.timeline,
            "chain": views.critical_path,
            "link_use": views.link_use,
            "shares": views.where_time_goes if len(views.steps.of) > 1 else None,
            "mesh": views.mesh if 1 < chips <= _MOST_CHIPS else None,
            **memories,
        }

    def body(self, title: str, check: str | None, drawn: dict[str, Markup]) -> Markup:
        """Everything that is seen."""
        place = self.result.place
        mesh_text = ", ".join(f"{axis}={size}" for axis, size in place.axis_sizes.items())
        head = element(
            "header",
            element("h1", title, verdict(self.result)),
            element("p", f"{self.result.slice}, mesh {mesh_text}, layout {place.layout}, seed {self.result.seed}"),
        )
        parts = [
            ("timeline", "Timeline", self._about_marks(), self._timeline(drawn)),
            (
                "time",
                "Where the time goes",
                _ABOUT_TIME,
                _beside(sections.where_time_goes(self.views.shares), drawn, "shares"),
            ),
            ("path", "Critical path", _ABOUT_PATH, join([drawn.get("chain", ""), self._path()])),
            ("advice", "What would help", _ABOUT_ADVICE, self._advice()),
            ("links", "Mesh and links", _ABOUT_LINKS, self._machine(drawn)),
            ("findings", "Findings", "", findings(self.result)),
            ("source", "Source", "Time of a device's core by line, in the mean; the warmer, the more.", self._source()),
            ("memory", "Memory", _ABOUT_MEMORY, self._memory(drawn)),
            ("basis", "What the time rests on", _ABOUT_BASIS, sections.basis(self.result)),
        ]
        if self.result.findings:
            parts.insert(0, parts.pop([key for key, *_ in parts].index("findings")))
        links = element("nav", *(element("a", name, href=f"#{key}") for key, name, _, _ in parts))
        blocks = [
            element("section", element("h2", name), element("p", about, class_="about") if about else "", text, id=key)
            for key, name, about, text in parts
        ]
        chip = place.chip.name
        basis = f"Times rest on the figures of {chip}; tpusim chips {chip} shows each with its source."
        return join([head, links, element("main", cards(self.result, check), *blocks, element("footer", basis))])

    def _about_marks(self) -> str:
        found = self.views.marks
        said = ["Wheel: zoom in time. Drag: move. A click on the legend hides a kind."]
        if found.merged:
            said.append(f"{found.merged:,} marks are too many to draw: those close to each other are shown as one.")
        if found.left_out:
            missing = device_ranges(self.result.cores[0].machine, found.left_out)
            said.append(f"{len(found.devices)} of {found.all_devices:,} devices are drawn; left out: {missing}.")
            said.append("tpusim report --devices chooses them.")
        return " ".join(said)

    def _timeline(self, drawn: dict[str, Markup]) -> Markup:
        devices = len(self.views.marks.devices)
        counts = sorted({count for count in (4, 16, devices) if count <= devices})
        buttons = [element("button", f"{count} devices" if count > 1 else "all", data_rows=count) for count in counts]
        return join([element("div", *buttons), drawn.get("timeline", element("p", "Nothing took any time."))])

    def _path(self) -> Markup:
        return sections.critical_path(self.views.steps, self.views.path, self.views.devices)

    def _advice(self) -> Markup:
        if not interval_is_quick(self.result):
            return element("p", "The runs for this would take too long here: tpusim explain does them.", class_="quiet")
        return sections.advice(explain(self.result))

    def _source(self) -> Markup:
        return sections.source(self.result, self.views.lines)

    def _machine(self, drawn: dict[str, Markup]) -> Markup:
        if "mesh" not in drawn and "link_use" not in drawn:
            return element("p", "No link was used.", class_="quiet")
        return _beside(drawn.get("mesh", Markup("")), drawn, "link_use")

    def _memory(self, drawn: dict[str, Markup]) -> Markup:
        over_time = [div for name, div in drawn.items() if name.startswith("memory_")]
        return join([sections.memory(self.result), *over_time])


def _beside(left: Markup, drawn: dict[str, Markup], right: str) -> Markup:
    if right not in drawn:
        return left
    return element("div", element("div", left), element("div", drawn[right]), class_="two")


_ABOUT_TIME = (
    "Every instant of every device. A copy counts only while a core waits for it, by what set its pace; a wait for "
    "another device by what that device had not done yet."
)
_ABOUT_PATH = (
    "The chain of operations that the run's time consists of. Slack: how much sooner a link could have ended before "
    "another chain had taken over."
)
_ABOUT_ADVICE = (
    "Each number comes from a run of the same operations on a machine that is different in one thing. Pale: undecided, "
    "it may save nothing as far as the numbers of the chip are known."
)
_ABOUT_LINKS = "Mean use of each directed link, and of the busiest ones over time."
_ABOUT_BASIS = "Each number of the chip that is not known exactly, and what its ends would do to the time."
_ABOUT_MEMORY = "The high-water mark of device 0 by buffer, with tile padding."
