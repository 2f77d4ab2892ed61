"""Timelines: well-formed, complete, exact, the same every time, and there for failed runs too."""

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim.cli.new import STARTER
from tpusim.errors import FindingError
from tpusim.kernel_file import load_file
from tpusim.native import simulate as run
from tpusim.trace.flows import arrows
from tpusim.trace.lanes import pack
from tpusim.trace.names import inside
from tpusim.trace.perfetto import write_trace
from tpusim.trace.pod import covered
from tpusim.trace.terminal import ASCII, timeline

KERNELS = Path(__file__).parents[1] / "kernels"
RUNS = [
    ("ring_all_gather", 4, {"slice": "v5e:2x2"}),
    ("ring_all_gather", 16, {"slice": "v5e:4x4"}),
    ("all_to_all", 8, {"slice": "v6e:2x4"}),
    ("all_to_all", 8, {"slice": "v7x:2x2x1"}),
    ("halo_exchange", (2, 4), {"slice": "v5e:2x4"}),
    ("matmul_pipeline", 1, {"slice": "v5p:2x2x1", "mesh": 1}),
    ("ring_reduce_scatter", 4, {"slice": "v5p:2x2x1"}),
    ("barrier", 4, {"slice": "v5e:2x2"}),
]


def simulate(name, devices, options, *, detail=False):
    loaded = load_file(str(KERNELS / f"{name}.py"))
    return run(loaded.kernel, loaded.inputs(devices=devices), options, detail=detail)


def simulate_starter(folder, *changes, **options):
    text = STARTER
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = Path(folder, "k.py")
    path.write_text(text)
    loaded = load_file(str(path))
    try:
        return loaded.kernel.simulate(*loaded.inputs(), **options)
    except FindingError as error:
        return error.result


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


def read(path):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return json.load(file, parse_constant=refuse)


def traced(result, folder):
    path = Path(folder, "trace.json")
    write_trace(result, path)
    return read(path)["traceEvents"]


def ps(us):
    return round(us * 1e6)


def check_well_formed(events):
    """Every rule of the format that a viewer relies on."""
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    tracks = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    slices = defaultdict(list)
    arrows = defaultdict(list)
    for event in events:
        assert event["ph"] in "MXCsf"
        assert event["pid"] in processes
        if event["ph"] == "M":
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert (event["pid"], event["tid"]) in tracks
            begin = ps(event["ts"])
            slices[event["pid"], event["tid"]].append((begin, begin + ps(event["dur"]), event["name"]))
        elif event["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
        else:
            arrows[event["id"]].append(event)
    for stretches in slices.values():
        check_nested(stretches)
    assert sorted(arrows) == list(range(1, len(arrows) + 1))
    for pair in arrows.values():
        assert sorted(event["ph"] for event in pair) == ["f", "s"]
        start, end = sorted(pair, key=lambda event: event["ph"], reverse=True)
        assert start["ts"] <= end["ts"]
        assert start["name"] == end["name"]
        assert innermost(slices, start).startswith(("start ", "signal "))
        assert innermost(slices, end).startswith("wait ")
    for process in processes:
        assert sum(e["name"] == "process_name" and e["pid"] == process for e in events) == 1


def check_nested(stretches):
    open_ends = []
    for begin, end, name in sorted(stretches, key=lambda stretch: (stretch[0], -stretch[1])):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], name
        if end > begin:
            open_ends.append(end)


def innermost(slices, event):
    at = ps(event["ts"])
    around = [s for s in slices[event["pid"], event["tid"]] if s[0] <= at < s[1]]
    return min(around, key=lambda stretch: stretch[1] - stretch[0])[2]


# -- perfetto ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "devices", "options"), RUNS)
def test_traces_are_well_formed_and_complete(tmp_path, name, devices, options):
    result = simulate(name, devices, options)
    events = traced(result, tmp_path)
    check_well_formed(events)
    copies = [e for e in events if e.get("cat") == "copy"]
    assert len(copies) == result.dmas
    assert sum(e["args"]["bytes"] for e in copies) == result.bytes
    assert sum(e.get("cat") == "wait" for e in events) == len(result.trace.waits)
    assert sum(e.get("cat") == "compute" for e in events) == len(result.trace.computes)
    assert sum(e.get("cat") == "signal" for e in events) == len(result.trace.signals)
    assert sum(e.get("cat") == "link" for e in events) == sum(copy.hops for copy in result.trace.copies)
    ends = [e["ts"] + e["dur"] for e in events if e["ph"] == "X"]
    assert max(ends) == pytest.approx(result.time_us)


@pytest.mark.parametrize(("name", "devices", "options"), RUNS)
def test_every_leg_of_a_right_kernel_has_its_arrow(name, devices, options):
    result = simulate(name, devices, options)
    log = result.trace
    legs = sum(2 if copy.is_remote else 1 for copy in log.copies) + len(log.signals)
    found = arrows(log)
    assert len(found) == legs
    for source, leg, wait in found:
        if leg == "send":
            assert source.src_sem is wait.semaphore
            assert source.read_ps <= wait.to_ps
        elif leg == "receive":
            assert source.dst_sem is wait.semaphore
            assert source.written_ps <= wait.to_ps
        else:
            assert source.semaphore is wait.semaphore
            assert source.sent_ps <= wait.to_ps


def test_slices_hold_exact_times_and_the_users_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(KERNELS.parent)
    result = simulate("ring_all_gather", 4, {"slice": "v5e:2x2"})
    events = traced(result, tmp_path)
    text = (KERNELS / "ring_all_gather.py").read_text().splitlines()
    for event, copy in zip(
        sorted((e for e in events if e.get("cat") == "copy"), key=lambda e: (e["pid"], e["args"]["issued_ps"])),
        sorted(result.trace.copies, key=lambda copy: (copy.core.device, copy.issued_ps)),
        strict=True,
    ):
        args = event["args"]
        assert (args["issued_ps"], args["begin_ps"]) == (copy.issued_ps, copy.begin_ps)
        assert (args["read_ps"], args["written_ps"]) == (copy.read_ps, copy.written_ps)
        assert ps(event["ts"]) == copy.issued_ps
        assert ps(event["ts"]) + ps(event["dur"]) == copy.written_ps
        assert args["hops"] == copy.hops
        assert args["wire_bytes"] == copy.wire_bytes
        assert args["dst"] == f"{copy.dst_region} ({copy.dst.device},)"
        file, line = args["site"].split(":")
        assert file == "kernels/ring_all_gather.py"
        assert ".start()" in text[int(line) - 1]


def test_processes_and_tracks_are_named(tmp_path):
    options = {"slice": "v5e:2x4", "layout": "row-major"}
    events = traced(simulate("halo_exchange", (2, 4), options), tmp_path)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names[1000] == "/device:TPU:0 (0, 0) chip (0,0), simulated"
    assert names[1007] == "/device:TPU:7 (1, 3) chip (1,3), simulated"
    assert names[900] == "ICI links"
    assert names[901] == "HBM"
    tracks = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert {(1000, "XLA Modules"), (1000, "XLA Ops"), (1000, "Async XLA Ops, DMA remote 0")} <= tracks
    assert (900, "(0,0)->(1,0)") in tracks
    counters = {(e["pid"], e["name"]) for e in events if e["ph"] == "C"}
    assert (900, "link (0,0)->(1,0)") in counters
    assert (901, "HBM (1,3)") in counters


def test_both_devices_of_a_chip_are_told_apart(tmp_path):
    events = traced(simulate("all_to_all", 8, {"slice": "v7x:2x2x1"}), tmp_path)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {name.split(" chip ")[1].removesuffix(", simulated") for name in names.values() if " chip " in name} == {
        f"({x},{y},0) core {core}" for x in (0, 1) for y in (0, 1) for core in (0, 1)
    }


@pytest.mark.parametrize(("name", "devices", "options"), RUNS)
@pytest.mark.parametrize("detail", [True, False])
def test_counters_carry_every_byte(tmp_path, name, devices, options, detail):
    result = simulate(name, devices, options, detail=detail)
    events = traced(result, tmp_path)
    series = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            series[event["name"]].append((ps(event["ts"]), event["args"]["B/s"]))
    moved = sum(
        copy.wire_bytes * weight
        for copy in result.trace.copies
        if copy.read_ps > copy.begin_ps
        for _, _, weight in copy.path.loads
    )
    carried = 0
    for name, points in series.items():
        assert points == sorted(points)
        assert points[-1][1] == 0
        carried += sum(rate * (after - at) for (at, rate), (after, _) in pairwise(points)) / 1e12
        chip = result.place.chip
        die = chip.ici.die_to_die_bandwidth
        limits = {"HBM": chip.hbm.bandwidth.number, "link": chip.ici.link_bandwidth.number}
        limit = die.number if "die" in name and die is not None else limits[name.split(" ")[0]]
        if detail:  # a copy's mean rate may lie above its share later on
            assert max(rate for _, rate in points) <= limit * 1.0001
    assert carried == pytest.approx(moved, rel=1e-3)


def test_overlapping_copies_get_lanes_of_their_own(tmp_path):
    events = traced(simulate("all_to_all", 8, {"slice": "v6e:2x4"}), tmp_path)
    lanes = [e for e in events if e["name"] == "thread_name" and e["pid"] == 1000 and "DMA remote" in e["args"]["name"]]
    assert len(lanes) == 7
    assert [e["args"]["name"] for e in lanes] == [f"Async XLA Ops, DMA remote {lane}" for lane in range(7)]


def test_equal_runs_give_equal_files_packed_or_not(tmp_path):
    for name in ("a.json", "b.json", "a.json.gz", "b.json.gz"):
        write_trace(simulate("all_to_all", 4, {"slice": "v5e:2x2"}), tmp_path / name)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()


def test_the_head_says_what_the_run_was(tmp_path):
    result = simulate("barrier", 4, {"slice": "v5e:2x2"})
    write_trace(result, tmp_path / "t.json")
    assert read(tmp_path / "t.json")["otherData"] == {
        "tool": "tpusim",
        "slice": "v5e:2x2",
        "chip": "v5e",
        "mesh": {"x": 4},
        "time_ps": int(result.time),
        "ok": True,
        "rates": "mean of each copy",
    }


def test_a_wait_that_never_ended_is_a_slice_to_the_end(tmp_path):
    result = simulate_starter(tmp_path, ("    copy.start()\n", ""))
    assert not result.ok
    events = traced(result, tmp_path)
    check_well_formed(events)
    stuck = [e for e in events if e["name"] == "wait send_sem for ever"]
    assert len(stuck) == 4
    for event in stuck:
        assert event["args"]["satisfied"] is False
        assert event["args"]["amount"] == 4096
        assert ps(event["ts"]) + ps(event["dur"]) == int(result.time)


def test_a_run_that_stopped_on_its_way_has_its_unfinished_copies(tmp_path):
    unfinished = set()
    for limit in range(1, 34, 4):
        result = simulate_starter(tmp_path, max_events=limit)
        assert [finding.kind for finding in result.findings] == ["livelock"]
        events = traced(result, tmp_path)
        check_well_formed(events)
        for event in events:
            if event.get("cat") == "copy" and event["args"]["written_ps"] is None:
                unfinished.add((event["args"]["begin_ps"] is None, event["args"]["read_ps"] is None))
                assert ps(event["ts"]) + ps(event["dur"]) >= event["args"]["issued_ps"]
    assert unfinished >= {(True, True), (False, True)}


def test_names_are_escaped():
    assert json.loads(f'"{inside("a" + chr(34) + chr(92) + chr(10) + "ä")}"') == 'a"\\\nä'


def test_an_unwritable_file_raises(tmp_path):
    result = simulate("barrier", 4, {"slice": "v5e:2x2"})
    with pytest.raises(OSError, match="No such file or directory"):
        write_trace(result, tmp_path / "none" / "t.json")


# -- lanes ------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20))))
def test_lanes_never_overlap_and_are_as_few_as_can_be(pairs):
    stretches = sorted((begin, begin + length) for begin, length in pairs)
    lanes = pack(stretches)
    by_lane = defaultdict(list)
    for stretch, lane in zip(stretches, lanes, strict=True):
        by_lane[lane].append(stretch)
    for row in by_lane.values():
        assert all(first[1] <= second[0] for first, second in pairwise(row))
    most = max((sum(b <= at < e for b, e in stretches) for at, _ in stretches), default=0)
    assert len(by_lane) == most


# -- terminal ---------------------------------------------------------------------------------------


def test_the_terminal_timeline_fits_and_says_what_it_means():
    result = simulate("halo_exchange", (4, 4), {"slice": "v5e:4x4"})
    lines = timeline(result, 90)
    assert all(len(line) <= 90 for line in lines)
    assert lines[0].startswith("(0, 0)        |░")
    assert set("".join(line.split("|")[1] for line in lines[:-2])) <= set("█▓▒░ ")
    assert lines[-2].split() == ["0", *str(result.time).split()]
    assert lines[-1] == "              █ compute  ▓ compute and copy  ▒ own copy in flight  ░ waiting for others"


def test_devices_in_a_row_that_look_the_same_share_a_lane():
    result = simulate("ring_all_gather", 16, {"slice": "v5e:4x4"})
    lines = timeline(result, 80)
    assert len(lines) == 1 + 2
    assert lines[0].startswith("(0,)-(15,) |░")
    lines = timeline(simulate("halo_exchange", (4, 4), {"slice": "v5e:4x4"}), 90)
    assert [line.partition("|")[0].strip() for line in lines[:3]] == ["(0, 0)", "(0, 1)-(0, 2)", "(0, 3)"]


def test_the_rest_of_many_devices_is_counted():
    result = simulate("halo_exchange", (4, 4), {"slice": "v5e:4x4"})
    assert timeline(result, 80, lanes=2)[2] == "              |and 13 more devices"
    assert timeline(result, 80, lanes=1)[1] == "              |and 15 more devices"


def test_compute_copies_and_waits_are_told_apart(tmp_path):
    wait, compute = "    semaphore_wait(barrier)", "    o_ref[...] = x_ref[...] + left_ref[...]"
    late = "    tpusim.when(me == 1)(lambda: tpusim.delay(100_000))\n"
    result = simulate_starter(
        tmp_path, (wait, late + wait), ("semaphore_signal(barrier", late.strip() + "\n    semaphore_signal(barrier")
    )
    lanes = [line.split("|")[1] for line in timeline(result, 60, glyphs=ASCII)[:-2]]
    assert "." * 20 in lanes[0]  # waits for its right neighbour, which sleeps
    assert " " * 20 in lanes[1].rstrip()  # sleeps
    busy = (compute, "    for _ in range(400):\n        o_ref[...] = tpusim.np.exp(x_ref[...]) + left_ref[...]")
    result = simulate_starter(tmp_path, busy)
    assert "#" * 15 in timeline(result, 60, glyphs=ASCII)[0]
    early = ("    copy.wait()", "    for _ in range(400):\n        y = tpusim.np.exp(x_ref[...])\n    copy.wait()")
    longer = {"set": {"ici.hop_latency": 2e-6}}
    result = simulate_starter(tmp_path, early, **longer)
    assert "%" * 3 in timeline(result, 60, glyphs=ASCII)[0]


def test_a_deadlock_is_seen_waiting_to_the_end(tmp_path):
    result = simulate_starter(tmp_path, ("    copy.start()\n", ""))
    for line in timeline(result, 60)[:-2]:
        assert line.endswith("░░░")


def test_a_trace_of_some_devices_is_a_part_of_the_whole_with_the_same_numbers(tmp_path):
    result = simulate("all_to_all", 8, {"slice": "v6e:2x4"})
    whole = traced(result, tmp_path)
    write_trace(result, tmp_path / "some.json", devices=[2, 5])
    some = read(tmp_path / "some.json")["traceEvents"]
    kinds = ("call", "compute", "wait", "signal", "start", "copy", "leg")

    def of(events, *pids):
        return [e for e in events if e["pid"] in pids and e.get("cat") in kinds]

    assert of(some, 1002, 1005) == of(whole, 1002, 1005)
    assert {e["pid"] for e in some} == {900, 901, 1002, 1005}
    ids = {e["id"] for e in some if e["ph"] in "sf"}
    assert [e for e in whole if e["ph"] in "sf" and e["id"] in ids] == [e for e in some if e["ph"] in "sf"]


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 100)), max_size=30), st.integers(1, 40))
def test_parts_of_a_run_cover_what_its_stretches_cover(found, parts):
    stretches = [(begin, begin + length) for begin, length in found]
    edges = np.linspace(0.0, 1000.0, parts + 1)
    share = covered(stretches, edges)
    assert (share * np.diff(edges)).sum() == pytest.approx(sum(length for _, length in found))
    for low, high, value in zip(edges, edges[1:], share, strict=False):
        inside = sum(max(0.0, min(high, end) - max(low, begin)) for begin, end in stretches)
        assert value == pytest.approx(inside / (high - low), abs=1e-9)


def test_a_trace_in_parts_is_small_and_says_how_busy_everything_was(tmp_path):
    result = simulate("ring_all_gather", 16, {"slice": "v5e:4x4"})
    write_trace(result, tmp_path / "t.json", parts=20)
    events = read(tmp_path / "t.json")["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "C"}
    names = {(e["pid"], e["name"]) for e in events if e["ph"] == "C"}
    assert {(1000, "compute"), (1015, "waiting"), (1003, "copies in flight"), (901, "HBM (0,0)")} <= names
    for pid, name in names:
        points = [(ps(e["ts"]), e["args"]["value"]) for e in events if (e["pid"], e["name"]) == (pid, name)]
        assert len(points) <= 21
        assert all(value >= 0 for _, value in points)
        assert points == sorted(points)
    busy = sum(
        a[1] * (b[0] - a[0])
        for a, b in pairwise(
            [(ps(e["ts"]), e["args"]["value"]) for e in events if (e["pid"], e["name"]) == (1000, "waiting")]
        )
    )
    waits = sum(w.to_ps - w.from_ps for w in result.trace.waits if w.core.device == 0)
    assert busy == pytest.approx(waits, rel=1e-2)
