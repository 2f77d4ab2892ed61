"""The HTML report: complete, escaped, self-contained, and right when a browser draws it."""

import dataclasses
import io
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulating import run

from tpusim import VMEM, SemaphoreType, axis_index, make_async_copy, when
from tpusim.errors import DeadlockError, OptionError
from tpusim.kernel_file import load_file
from tpusim.native import simulate
from tpusim.trace.devices import chosen_devices
from tpusim.trace.steps import Steps

pytest.importorskip("bokeh", reason="needs Bokeh: pip install 'tpusim[report]'")

from browser import Page, needs_chromium

from tpusim.report import Views, page, summary_html, write_report
from tpusim.report.html import cards
from tpusim.report.marks import Mark, marks
from tpusim.report.overview import cut
from tpusim.report.style import LOOKS

KERNELS = Path(__file__).parents[1] / "kernels"
DMA = SemaphoreType.DMA
EVIL = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


def simulated(name, devices, slice_, **options):
    loaded = load_file(str(KERNELS / f"{name}.py"))
    return simulate(loaded.kernel, loaded.inputs(devices=devices), {"slice": slice_, **options}, detail=True)


class Outline(HTMLParser):
    """Ids, open tags and text outside of scripts."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.open, self.loads, self.text = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        self.loads += [given[name] for name in ("src", "href") if name in given and not given[name].startswith("#")]
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def test_a_page_has_every_part_and_loads_nothing():
    result = simulated("all_gather_matmul", 4, "v5e:2x2")
    text = page(result, title="ring & co", check="equal")
    outline = Outline(text)
    assert not outline.open
    assert not outline.loads
    assert {"timeline", "time", "path", "links", "findings", "source", "memory", "verdict"} <= set(outline.ids)
    words = " ".join(outline.text)
    assert "ring & co" in words
    assert str(result.time) in words
    assert "exposed copy: transfer, ICI link" in words
    assert "semaphore_wait(barrier, 2)" in words
    assert "VMEM: 1.2 MiB of 16.0 MiB" in words
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", text)


def test_a_page_does_not_depend_on_how_quick_the_computer_is():
    """Whether a run is timed again for its interval and advice is counted."""
    quick = simulated("right_permute", 4, "v5e:2x2")
    slow = dataclasses.replace(quick, wall_s=60.0)
    texts = [" ".join(Outline(page(result)).text) for result in (quick, slow)]
    assert texts[0] == texts[1]
    assert f"{quick.interval}" in texts[0]
    assert "if there were" in texts[0]


def test_a_run_that_deadlocks_has_a_page():
    def kernel(x_ref, o_ref, sem):
        make_async_copy(x_ref, o_ref, sem).wait()

    with pytest.raises(DeadlockError) as caught:
        run(kernel, np.ones((8, 128), np.float32), scratch_shapes=(DMA,))
    words = " ".join(Outline(page(caught.value.result)).text)
    assert "1 error" in words
    assert "deadlock" in words
    assert "make_async_copy(x_ref, o_ref, sem).wait()" in words


@pytest.mark.parametrize(
    ("check", "card"),
    [
        ("equal", ["equal", "to the reference"]),
        ("equal within 1.2e-06", ["equal", "within 1.2e-06"]),
        ("not checked: no data", ["not checked", "no data"]),
        ("3 of 9 values differ; the first is o[0]: got 1, expected 2", None),
    ],
)
def test_a_card_says_what_the_comparison_found(check, card):
    words = Outline(cards(simulated("right_permute", 4, "v5e:2x2"), check)).text
    at = words.index("result") + 1
    assert words[at : at + 2] == (card or ["wrong", check])


def evil_result(folder):
    """The run of a kernel whose file name and source try to become HTML."""
    path = folder / "<img src=x onerror='window.hacked = 1'>.py"
    path.write_text(
        f"""
import numpy as np
import tpusim
def body(x_ref, o_ref, sem):
    copy = tpusim.make_async_copy(x_ref, o_ref, sem)
    copy.start()  # {EVIL}
    copy.wait()
kernel = tpusim.Kernel(
    body, out_shape=lambda x: x, in_specs=tpusim.HBM, out_specs=tpusim.HBM,
    scratch_shapes=(tpusim.SemaphoreType.DMA,), name={EVIL!r},
)
def inputs():
    return (np.ones((8, 128), np.float32),)
"""
    )
    loaded = load_file(str(path))
    return simulate(loaded.kernel, loaded.inputs(), {"mesh": 1}, detail=True)


def evil_page(folder):
    file = folder / "evil.html"
    write_report(evil_result(folder), file, title=f"{folder} {EVIL}", check=EVIL)
    return file


def test_text_of_users_is_escaped(tmp_path):
    text = evil_page(tmp_path).read_text()
    assert "window.hacked = 1</script>" not in text
    assert "<img" not in text.replace("'<img", "")
    assert EVIL in "".join(Outline(text).text)


@given(data=st.data())
def test_a_lane_in_parts_shows_where_something_was_and_what_most_of_it_was(data):
    """Against the same said of each instant."""
    parts, width = data.draw(st.integers(1, 12)), 10
    end = parts * width
    lane = []
    for top in range(data.draw(st.integers(1, 3))):
        cuts = sorted(data.draw(st.sets(st.integers(0, end), max_size=10)))
        kinds = data.draw(st.lists(st.sampled_from(["latency", "remote", "hops", ""]), min_size=10, max_size=10))
        lane += [Mark(k, b, e, top, top + 1, 0, "", "") for b, e, k in zip(cuts, cuts[1:], kinds, strict=False) if k]
    if not lane:
        return
    found = list(cut(lane, parts, end))
    assert all(before.to_ps <= after.from_ps for before, after in pairwise(found))
    for part in range(parts):
        instants = range(part * width, (part + 1) * width)
        counts = Counter(mark.kind for mark in lane for at in instants if mark.from_ps <= at < mark.to_ps)
        drawn = [m for m in found if m.from_ps < (part + 1) * width and m.to_ps > part * width]
        assert bool(drawn) == bool(counts)
        if counts:
            (one,) = drawn
            assert counts[one.kind] == max(counts.values())
            assert (one.top, one.bottom) == (min(m.top for m in lane), max(m.bottom for m in lane))
            assert 0 < one.share <= 1
            # it ends where the first and last of what it stands for end
            assert any(m.from_ps == one.from_ps for m in lane) or one.from_ps % width == 0
            assert any(m.to_ps == one.to_ps for m in lane) or one.to_ps % width == 0


def test_a_large_run_is_drawn_with_fewer_marks():
    steps = Steps(simulated("all_to_all", 16, "v5e:4x4", checks="none"))
    every = marks(steps)
    assert not every.merged
    assert every.overview is None
    assert not every.left_out
    few = marks(steps, devices=[3, *range(7)], most=300, few=100)
    assert few.merged > 300 >= len(few.close)
    assert len(few.overview) <= 100
    assert few.left_out == list(range(7, 16))
    whole = [mark for mark in every.close if mark.device < 7]
    for found in (few.close, few.overview):
        assert {mark.kind for mark in found} == {mark.kind for mark in whole}
        assert min(m.from_ps for m in found) == min(m.from_ps for m in whole)
        assert max(m.to_ps for m in found) == max(m.to_ps for m in whole)
    sent = [mark for mark in every.close if mark.kind == "remote"]
    transferred = sum(c.read_ps - c.begin_ps for c in steps.result.trace.copies if c.hops)
    assert sum(mark.to_ps - mark.from_ps for mark in sent) == transferred


def test_devices_are_chosen_by_number_or_by_what_they_did():
    """Device 2 enters late and so ends last; device 0 alone computes."""

    def kernel(x_ref, o_ref, sem):
        when(axis_index("x") == 0)(lambda: o_ref.__setitem__(..., x_ref[...] * 3))
        copy = make_async_copy(x_ref, o_ref, sem)
        copy.start()
        copy.wait()

    x = np.ones((32, 128), np.float32)
    spaces = {"in_specs": VMEM, "out_specs": VMEM, "scratch_shapes": (DMA,)}
    steps = Steps(run(kernel, x, mesh=4, faults=("device:2:late=50us",), **spaces))
    assert chosen_devices(steps) == [0, 1, 2, 3]
    assert chosen_devices(steps, "slowest:2")[0] == 2
    assert chosen_devices(steps, "busiest:1") == [0]
    assert 2 in chosen_devices(steps, most=1)
    assert chosen_devices(steps, (3, 1, 3)) == [3, 1]
    for which, message in (
        ((4,), "devices: the mesh has devices 0 to 3, not 4"),
        ("fastest", "devices: slowest, busiest, slowest:16 or numbers, not 'fastest'"),
        ("slowest:0", "devices: slowest, busiest, slowest:16 or numbers, not 'slowest:0'"),
    ):
        with pytest.raises(OptionError) as caught:
            chosen_devices(steps, which)
        assert str(caught.value) == message


def test_a_page_says_which_devices_it_leaves_out():
    result = simulated("ring_all_gather", 16, "v5e:4x4", checks="none", data=False)
    words = " ".join(Outline(page(result, devices=[*range(2, 8), 12])).text)
    assert "7 of 16 devices are drawn; left out: devices (0,)-(1,), (8,)-(11,), (13,)-(15,)." in words
    assert "left out" not in " ".join(Outline(page(result)).text)


def test_without_bokeh_the_error_names_the_command(monkeypatch):
    result = simulated("right_permute", 4, "v5e:2x2")
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(OptionError) as caught:
        page(result)
    assert str(caught.value) == "reports are drawn with Bokeh, which is not installed: pip install 'tpusim[report]'"


def test_a_notebook_shows_a_run_without_any_library(monkeypatch, tmp_path):
    result = simulated("ring_all_gather", 16, "v5e:4x4")
    monkeypatch.setitem(sys.modules, "bokeh", None)
    outline = Outline(result._repr_html_())
    words = " ".join(outline.text)
    assert not outline.open
    assert "no findings" in words
    assert str(result.time) in words
    assert "exposed copy: hop latency" in words
    text = summary_html(evil_result(tmp_path))
    assert "<script" not in text
    assert "<img" not in text


def test_every_view_is_a_figure_of_its_own():
    views = Views(simulated("torus_all_gather", (4, 4), "v5e:4x4"))
    figures = [
        views.timeline,
        views.critical_path,
        views.link_use,
        views.where_time_goes,
        views.mesh,
        views.memory("HBM"),
    ]
    assert len({figure.id for figure in figures}) == 6
    assert views.critical_path.x_range is views.timeline.x_range is views.link_use.x_range
    (links,) = (renderer for renderer in views.mesh.renderers if renderer.name == "links")
    used = [share for share in links.data_source.data["use"] if share > 0]
    assert len(used) == len(views.result.links)
    assert len(links.data_source.data["use"]) == 48  # every directed link of a 4x4 mesh without wraparound


# -- in a browser -----------------------------------------------------------------------------------

READY = "Bokeh.documents.length > 0 && Bokeh.documents[0].is_idle"
FIGURE = "Bokeh.documents[0].get_model_by_name('timeline')"


def pixels(png):
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=np.int16)


def amount(picture, colour, near=12):
    """How many pixels have about this colour."""
    wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
    return int((np.abs(picture - wanted).max(axis=2) <= near).sum())


def box(tab, selector):
    """Where an element is on the screen, after it has been scrolled there."""
    tab.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
    script = "(({x, y, width, height}) => ({x, y, width, height}))(document.querySelector(%r).getBoundingClientRect())"
    return tab.run(script % selector)


def seen(tab):
    """The timeline as it is drawn now."""
    tab.wait_for(READY)
    place = tab.run(
        "(() => { const b = document.querySelector('#timeline').getBoundingClientRect(); return {x: b.x + scrollX, "
        "y: b.y + scrollY, width: b.width, height: b.height} })()"
    )
    return pixels(tab.picture(clip=place))


@pytest.mark.parametrize(
    ("slice_", "devices", "places", "has_text"),
    [("v5p:4x4x4", 64, (9, 9), True), ("v5p:2x2x2", 8, (5, 2), True), ("v5e:8x16", 128, (8, 16), True),
     ("v5e:16x16", 256, (16, 16), False)],
)  # fmt: skip
def test_chips_lie_apart_and_have_text_where_it_can_be_read(slice_, devices, places, has_text):
    """Planes of a 3-D slice lie beside and below each other."""
    drawn = Views(simulated("right_permute", devices, slice_, data=False, checks="none")).mesh
    (chips,) = (renderer for renderer in drawn.renderers if renderer.name == "chips")
    at = list(zip(chips.data_source.data["x"], chips.data_source.data["y"], strict=True))
    assert len(set(at)) == len(at)
    assert (max(x for x, _ in at) + 1, max(y for _, y in at) + 1) == places
    assert any(type(renderer.glyph).__name__ == "Text" for renderer in drawn.renderers) == has_text


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (("CMEM", 0), "memory: ANY, HBM, VMEM, SMEM, SUBCORE_VMEM, VMEM_SHARED, not 'CMEM'"),
        (("HBM", 4), "memory: the mesh has devices 0 to 3, not 4"),
    ],
)
def test_a_memory_that_is_not_there(given_, message):
    with pytest.raises(OptionError) as caught:
        Views(simulated("right_permute", 4, "v5e:2x2")).memory(*given_)
    assert str(caught.value) == message


@needs_chromium
def test_a_browser_draws_the_page_and_clicks_work(tmp_path):
    file = tmp_path / "report.html"
    write_report(simulated("all_gather_matmul", 4, "v5e:2x2"), file, title="all-gather matmul")
    with Page(file, tmp_path / "profile") as tab:
        tab.wait_for(READY)
        assert tab.run("document.title") == "all-gather matmul: tpusim report"
        whole = seen(tab)
        for kind in ("compute", "copy_wait", "signal_wait", "remote", "local", "hops"):
            assert amount(whole, LOOKS[kind].colour) > 500, kind
        # the ICI transfers are most of the run: their lanes take most of the width
        columns = (np.abs(whole - np.array([0x12, 0x85, 0x7C])).max(axis=2) <= 12).any(axis=0)
        assert 0.4 < columns.mean() < 0.9

        # what is out of sight is painted when it comes into it
        strip = "Bokeh.documents.flatMap((doc) => doc.roots()).find((each) => each.name == 'chain')"
        tab.wait_for(f"{strip}.hold_render && !{FIGURE}.hold_render")
        box(tab, "#path .bk-Figure")
        tab.wait_for(f"!{strip}.hold_render")
        box(tab, "footer")
        tab.wait_for(f"{strip}.hold_render && {FIGURE}.hold_render")

        # a link of the critical path shows itself in the timeline
        box(tab, "#chain-links summary")
        tab.run("document.querySelector('#chain-links summary').click()")
        tab.run("document.querySelector('#chain-links tr.go:nth-child(5)').click()")
        start, end = tab.run(f"[{FIGURE}.x_range.start, {FIGURE}.x_range.end]")
        row = tab.run(
            "(({from, to}) => [+from, +to])(document.querySelector('#chain-links tr.go:nth-child(5)').dataset)"
        )
        assert 0 <= start < row[0] < row[1] < end < 10
        tab.wait_for(f"!{FIGURE}.hold_render")
        closer = seen(tab)
        assert np.abs(closer[: whole.shape[0]] - whole).max() > 100

        # the wheel zooms, and the button shows everything again
        place = box(tab, "#timeline .bk-Figure")
        middle = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
        tab.mouse("mouseMoved", *middle)
        tab.mouse("mouseWheel", *middle, deltaX=0, deltaY=-240)
        tab.wait_for(f"{FIGURE}.x_range.end - {FIGURE}.x_range.start < {end - start} * 0.99")
        button = box(tab, "#timeline button")
        tab.click(button["x"] + button["width"] / 2, button["y"] + button["height"] / 2)
        tab.wait_for(f"{FIGURE}.x_range.start == 0")
        assert amount(seen(tab), LOOKS["remote"].colour) == pytest.approx(
            amount(whole, LOOKS["remote"].colour), rel=0.05
        )
        assert not tab.problems


@needs_chromium
def test_a_mark_under_the_mouse_says_what_it_is_and_nothing_runs(tmp_path):
    with Page(evil_page(tmp_path), tmp_path / "profile") as tab:
        tab.wait_for(READY)
        place = box(tab, "#timeline .bk-Figure")
        find = """(() => { const all = (root) => [...root.querySelectorAll('*')].flatMap(
            (e) => e.shadowRoot ? [e, ...all(e.shadowRoot)] : [e]);
            return all(document).filter((e) => e.className === 'bk-tooltip-content' || e.matches('.bk-Tooltip'))
            .map((e) => (e.shadowRoot || e).textContent).join(' ') })()"""
        for step in range(40):
            tab.mouse(
                "mouseMoved", place["x"] + place["width"] * (0.15 + 0.02 * step), place["y"] + place["height"] * 0.62
            )
            if "us" in (tab.run(find) or ""):
                break
        said = tab.run(find)
        assert "x_ref (0,) → o_ref (0,), 4.0 KiB" in said
        assert tab.run("window.hacked === undefined")
        assert not tab.problems


@needs_chromium
def test_sixty_four_chips_with_all_their_copies_open_and_move(tmp_path):
    result = simulated("all_to_all", 64, "v5e:8x8", checks="none", data=False)
    assert len([copy for copy in result.trace.copies if copy.hops]) == 4032
    file = tmp_path / "report.html"
    write_report(result, file)
    with Page(file, tmp_path / "profile") as tab:
        tab.wait_for(READY)
        whole = seen(tab)
        assert amount(whole, LOOKS["remote"].colour, near=60) > 5000  # lanes thinner than a pixel are mixed with white
        place = box(tab, "#timeline .bk-Figure")
        x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
        tab.mouse("mouseMoved", x, y)
        tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=-600)
        tab.wait_for(f"{FIGURE}.x_range.start > 0")
        closer = seen(tab)
        assert np.abs(closer - whole).max() > 100
        tab.run(f"{FIGURE}.x_range.setv({{start: 5, end: 9}})")
        assert np.abs(seen(tab) - closer).max() > 100

        # an overview, and every copy once few are in sight
        shown = f"{FIGURE}.renderers.find((each) => each.name == 'remote').data_source.data.text.length"
        tab.run(f"{FIGURE}.y_range.setv({{start: 32, end: 0}})")
        tab.run(f"{FIGURE}.x_range.setv({{start: 0, end: 25}})")
        assert tab.run(shown) < 1000
        tab.run(f"{FIGURE}.y_range.setv({{start: 4, end: 0}})")
        assert tab.run(shown) == 4032
        assert amount(seen(tab), LOOKS["remote"].colour) > 5000
        assert not tab.problems
