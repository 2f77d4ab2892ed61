"""The report of 64 chips with 4,032 copies in a browser: how long it takes to open, and a frame while it is panned.

    python benchmarks/page.py [--moves 20] [PAGE.html ...]

Chromium without a window draws in software.  The figures are medians of milliseconds between frames while the mouse
drags the timeline, its devices and the whole of its run in sight at first, then a third of it and a thirtieth, and
while the mouse hovers over it.  Pages given by name are measured instead, in turn.
"""

import argparse
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from tpusim.kernel_file import load_file
from tpusim.native import simulate
from tpusim.report import write_report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from browser import CHROMIUM, Page

FIGURE = "Bokeh.documents[0].get_model_by_name('timeline')"
WATCH = """
(function poll() {
  if (window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle) window.opened = performance.now();
  else setTimeout(poll, 2);
})();
window.frames_seen = [];
(function tick() { frames_seen.push(performance.now()); requestAnimationFrame(tick) })();
"""
SPANS = {"whole": 0.98, "a third": 0.3, "a thirtieth": 0.03}


def report(file):
    """Write the page of a direct all-to-all on v5e:8x8."""
    loaded = load_file("kernels/all_to_all.py")
    options = {"slice": "v5e:8x8", "checks": "none", "data": False}
    write_report(simulate(loaded.kernel, loaded.inputs(devices=64), options, detail=True), file)


def between_frames(tab, move, moves):
    """Milliseconds between frames, the median and the largest, while ``move`` is called again and again."""
    tab.run("frames_seen.length = 0")
    for number in range(moves):
        move(number)
    seen = tab.run("frames_seen.slice()")
    gaps = [later - earlier for earlier, later in pairwise(seen)]
    return statistics.median(gaps), max(gaps)


def measure(file, folder, moves):
    """Milliseconds to open, and between frames for each thing that is done."""
    blank = folder / "blank.html"
    blank.write_text("<p>")
    with Page(blank, folder / "profile") as tab:
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        tab.call("Page.navigate", url=file.resolve().as_uri())
        tab.wait_for("window.opened")
        yield "opens", (tab.run("window.opened"), None)
        tab.run("document.querySelector('#timeline .bk-Figure').scrollIntoView({block: 'center', behavior: 'instant'})")
        x, y = 720, 500
        end = tab.run(f"{FIGURE}.x_range.bounds[1] / 1.02")
        for name, span in SPANS.items():
            edges = end * (0.5 - span / 2), end * (0.5 + span / 2)
            tab.run(f"{FIGURE}.x_range.setv({{start: {edges[0]}, end: {edges[1]}}})")
            tab.wait_for("Bokeh.documents[0].is_idle")
            tab.mouse("mouseMoved", x, y)
            tab.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)

            def drag(number):
                tab.mouse("mouseMoved", x + 8 * (number % 5), y + 4 * (number % 11), button="left", buttons=1)

            yield f"pan, {name}", between_frames(tab, drag, moves)
            tab.mouse("mouseReleased", x, y, button="left", clickCount=1)
        hover = lambda number: tab.mouse("mouseMoved", 400 + 25 * number, y)  # noqa: E731  # one expression
        yield "hover", between_frames(tab, hover, moves)


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--moves", type=int, default=20)
    options = parser.parse_args()
    if CHROMIUM is None:
        print("not run: there is no Chromium")
        return
    with tempfile.TemporaryDirectory() as folder:
        pages = options.pages
        if not pages:
            pages = [Path(folder) / "report.html"]
            report(pages[0])
        print(f"{'page':<24}{'':<20}{'median ms':>10}{'most':>7}")
        for page in pages:
            with tempfile.TemporaryDirectory() as own:
                for name, (median, most) in measure(page, Path(own), options.moves):
                    print(
                        f"{page.name:<24}{name:<20}{median:>10.0f}{'' if most is None else f'{most:.0f}':>7}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
