"""Sweeps: nothing on disk is lost or run twice, workers may die, and what nobody can tell apart is a tie."""

import functools
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpusim
from tpusim.errors import OptionError
from tpusim.sweep import run_sweep
from tpusim.sweep.ranking import ranked
from tpusim.sweep.row import Request, evaluate
from tpusim.sweep.search import conversation, guided
from tpusim.sweep.space import Space, key_of
from tpusim.sweep.store import Store
from tpusim.sweep.tables import write_table
from tpusim.sweep.workers import DaskCluster, LocalProcesses

KERNEL = """
    import os
    import time
    import numpy as np
    import tpusim
    from tpusim import HBM, VMEM, SemaphoreType, ds, fori_loop, make_async_copy

    def make_kernel(rows=8, fault=""):
        def body(x_ref, o_ref, scratch, sem):
            if fault == "dies":
                os._exit(9)
            if fault == "sleeps":
                time.sleep(600)

            def step(i, _):
                make_copy = make_async_copy(x_ref.at[ds(i * rows, rows)], scratch, sem)
                make_copy.start()
                make_copy.wait()
                if fault == "wrong":
                    scratch[...] = scratch[...] + 1
                back = make_async_copy(scratch, o_ref.at[ds(i * rows, rows)], sem)
                back.start()
                back.wait()

            fori_loop(0, x_ref.shape[0] // rows, step, None)

        return tpusim.Kernel(
            body, out_shape=lambda x: x, in_specs=HBM, out_specs=HBM,
            scratch_shapes=lambda x: (VMEM((rows, x.shape[1]), x.dtype), SemaphoreType.DMA),
        )

    kernel = make_kernel()

    def inputs(devices=1, shape=(64, 128), dtype="float32", seed=0):
        return (np.random.default_rng(seed).standard_normal((devices * shape[0], shape[1])).astype(dtype),)

    def reference(x):
        return x
"""
ROWS = {"rows": [4, 8, 16, 32, 64]}


class Here:
    """Workers that are this process, count what they run, and may be interrupted."""

    def __init__(self, until=None):
        self.ran = []
        self.until = until

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def run(self, requests):
        for request in requests:
            if self.until is not None and len(self.ran) >= self.until:
                raise KeyboardInterrupt
            self.ran.append(request.point)
            yield evaluate(request)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("copies.py").write_text(textwrap.dedent(KERNEL))
    return "copies.py"


def sweep(kernel, space, workers, out="rows.jsonl", **more):
    return run_sweep(kernel, space, out, options={"slice": "v5e:1x1"}, workers=workers, **more)


def measured(rows):
    """Rows without what differs from run to run."""
    return [{name: value for name, value in row.items() if name != "wall_s"} for row in rows]


# -- what varies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("bm=128,256", [128, 256]),
        ("slice=v5e:4x4,v5e:4x8", ["v5e:4x4", "v5e:4x8"]),
        ("shape=[8,128],[16,128]", [[8, 128], [16, 128]]),
        ('mesh="x=2,y=4","x=4,y=2"', ["x=2,y=4", "x=4,y=2"]),
        ("ici.link_bandwidth=45e9, 90e9", [45e9, 90e9]),
        ("dtype=float32,bfloat16", ["float32", "bfloat16"]),
        ("data=true", [True]),
    ],
)
def test_values_are_toml_or_bare_texts(text, values):
    assert list(Space.parse([text]).values.values()) == [values]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["bm"], "--param takes NAME=VALUE,VALUE such as bm=128,256, not 'bm'"),
        (["bm=1", "bm=2"], "--param bm is given twice; put its values in one: bm=VALUE,VALUE"),
        (["bm=1,1"], "bm: the values 1, 1 hold one of them twice"),
        (["bm=[1"], "--param bm: '[1' is not a TOML value (numbers, true, false, texts, [lists])"),
        (["bm=nan"], "--param bm: nan is no number, text, true, false or list of them"),
        (["day=2020-01-01"], "--param day: 2020-01-01 is no number, text, true, false or list of them"),
        ([], "a sweep needs a parameter to vary, such as bm=128,256"),
    ],
)
def test_what_cannot_be_tried_is_refused(texts, message):
    with pytest.raises(OptionError) as caught:
        Space.parse(texts)
    assert str(caught.value) == message


def test_a_grid_has_every_combination_once():
    space = Space({"a": [1, 2], "b": ["x", "y", "z"]})
    points = list(space)
    assert len(space) == len(points) == len({key_of(point) for point in points}) == 6


def test_names_go_to_the_run_the_chip_and_the_file(kernel):
    space = {"slice": ["v5e:1x1", "v6e:1x1"], "hbm.bandwidth": [4e11, 8e11], "shape": [[64, 128]], "rows": [8]}
    found = run_sweep(kernel, space, "rows.jsonl", workers=Here())
    assert [row["status"] for row in found.rows] == ["right"] * 4
    assert [row["chip"] for row in found.rows] == ["v5e", "v5e", "v6e", "v6e"]
    assert found.rows[0]["time_us"] > found.rows[1]["time_us"]


def test_a_name_nobody_takes_is_refused(kernel):
    with pytest.raises(OptionError) as caught:
        sweep(kernel, {"cols": [1]}, Here())
    assert str(caught.value) == (
        "copies.py: nothing takes 'cols': it is no run option, no number of a chip (dma.issue), and "
        "make_kernel() has: rows, fault; inputs() has: shape, dtype, seed"
    )


# -- rows on disk -----------------------------------------------------------------------------------


def test_an_interrupted_sweep_goes_on_where_it_stopped(kernel):
    whole = sweep(kernel, ROWS, Here(), "whole.jsonl")
    with pytest.raises(KeyboardInterrupt):
        sweep(kernel, ROWS, Here(until=2))
    workers = Here()
    found = sweep(kernel, ROWS, workers)
    assert (found.reused, len(workers.ran)) == (2, 3)
    assert measured(found.rows) == measured(whole.rows)
    assert sweep(kernel, ROWS, Here(until=0)).reused == 5


@pytest.mark.parametrize("until", [1, 3, 9])
def test_an_interrupted_search_asks_for_the_same_points(kernel, until):
    space = {"rows": [2, 4, 8, 16, 32, 64], "hbm.bandwidth": [1e11, 2e11, 4e11], "dtype": ["float32", "bfloat16"]}
    whole = sweep(kernel, space, Here(), "whole.jsonl", trials=12, seed=3)
    with pytest.raises(KeyboardInterrupt):
        sweep(kernel, space, Here(until=until), trials=12, seed=3)
    found = sweep(kernel, space, Here(), trials=12, seed=3)
    assert found.reused == until
    assert measured(found.rows) == measured(whole.rows)
    assert len({key_of(row["point"]) for row in found.rows}) == 12


@settings(max_examples=40)
@given(cut=st.integers(0, 2_000), junk=st.binary(max_size=30))
def test_a_file_cut_off_anywhere_gives_its_whole_rows(tmp_path_factory, cut, junk):
    path = tmp_path_factory.mktemp("cut") / "rows.jsonl"
    rows = [{"point": {"a": i}, "status": "right", "time_us": 1.5 * i} for i in range(20)]
    with Store(path, {"file": "k.py"}) as store:
        for row in rows:
            store.add(row)
    content = path.read_bytes()
    path.write_bytes(content[:cut] + junk.replace(b"\n", b"") if cut < len(content) else content)
    if cut <= content.index(b"\n"):
        return  # the head itself: such a file holds no sweep
    with Store(path, {"file": "k.py"}) as store:
        kept = list(store.rows.values())
        assert kept == rows[: len(kept)]
        assert len(kept) >= content[:cut].count(b"\n") - 1
        for row in rows[len(kept) :]:
            store.add(row)
    with Store(path, {"file": "k.py"}) as store:
        assert (list(store.rows.values()), store.damaged) == (rows, 0)


def test_a_damaged_row_is_run_again_with_a_notice(kernel, capfd):
    sweep(kernel, ROWS, Here())
    lines = Path("rows.jsonl").read_text().splitlines()
    lines[2] = lines[2][:40] + "?" + lines[2][41:].replace('"status"', '"sta')
    Path("rows.jsonl").write_text("\n".join(lines) + "\n")
    workers = Here()
    found = sweep(kernel, ROWS, workers)
    assert (found.damaged, found.reused, len(workers.ran)) == (1, 4, 1)


def test_rows_of_another_sweep_are_never_mixed_in(kernel):
    sweep(kernel, {"rows": [8]}, Here())
    Path(kernel).write_text(Path(kernel).read_text() + "\n")
    with pytest.raises(OptionError) as caught:
        sweep(kernel, {"rows": [8]}, Here())
    message = "rows.jsonl is of another sweep (other content of FILE): remove it, or name another --out"
    assert str(caught.value) == message
    with pytest.raises(OptionError) as caught:
        run_sweep(kernel, {"rows": [8]}, kernel, workers=Here())
    assert str(caught.value) == "copies.py exists and holds no sweep; name another --out"


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_two_sweeps_do_not_write_one_file(kernel):
    with Store(Path("rows.jsonl"), {}), pytest.raises(OptionError) as caught:
        Store(Path("rows.jsonl"), {})
    assert str(caught.value) == "rows.jsonl is being written by another sweep; name another --out"


# -- search and ranking -----------------------------------------------------------------------------


@settings(max_examples=15)
@given(seed=st.integers(0, 1_000), trials=st.integers(1, 40))
def test_a_guided_search_never_asks_twice_and_ends(seed, trials):
    space = Space({"a": [5, 1, 3, 2, 4], "b": ["p", "q", "r"], "c": [True, False]})
    asked = []
    for points, rows in conversation(guided(space, trials, "time", seed)):
        asked += points
        rows += [{"point": p, "status": "right" if p["c"] else "wrong", "time_us": p["a"] * 1.0} for p in points]
    assert len(asked) == len({key_of(point) for point in asked}) == min(trials, len(space))


def test_a_guided_search_finds_what_a_grid_finds_with_fewer_points():
    space = Space({"a": list(range(32)), "b": list(range(32))})
    found = []
    for points, rows in conversation(guided(space, 120, "time", 0)):
        rows += [
            {"point": p, "status": "right", "time_us": 1.0 + (p["a"] - 20) ** 2 + (p["b"] - 9) ** 2} for p in points
        ]
        found += rows
    assert min(row["time_us"] for row in found) <= 6  # of 1 to 930


def row(time_us, effects=None, chip="v5e", width=1.0, status="right"):
    interval = {"low_us": time_us - width, "high_us": time_us + width}
    return {
        "point": {},
        "status": status,
        "time_us": time_us,
        "ratio": None,
        "chip": chip,
        "effects": effects,
        **interval,
    }


def ties(*rows):
    return [place.is_tie for place in ranked(rows, "time")]


def test_an_error_that_both_share_decides_nothing():
    shared = {"ici.link_bandwidth": [4.0, 8.0]}
    assert ties(row(10.0, shared), row(11.0, shared)) == [False, False]
    # the first depends on a number the second does not: it may be longer by more than the difference
    assert ties(row(10.0, shared), row(11.0, {"dma.issue": [0, 0]})) == [False, True]
    # on other chips nothing is shared: intervals that overlap
    assert ties(row(10.0, shared), row(11.0, shared, "v6e")) == [False, True]
    assert ties(row(10.0, width=0.2), row(11.0, width=0.2)) == [False, False]


def test_no_order_is_claimed_below_four_percent_and_wrong_rows_have_none():
    places = ranked([row(10.3, {"a": [0, 0]}), row(10.0, {"a": [0, 0]}), row(1.0, status="wrong")], "time")
    assert [(place.rank, place.row["time_us"], place.is_tie) for place in places] == [(1, 10.0, False), (2, 10.3, True)]


# -- workers ----------------------------------------------------------------------------------------


def test_local_processes_give_the_same_rows(kernel):
    here = sweep(kernel, ROWS, Here(), "here.jsonl")
    assert measured(sweep(kernel, ROWS, LocalProcesses(2)).rows) == measured(here.rows)


def test_a_process_that_dies_takes_its_point_alone(kernel):
    found = sweep(kernel, {"fault": ["", "dies", "wrong"], "rows": [8, 16]}, LocalProcesses(2))
    assert [row["status"] for row in found.rows] == ["right"] * 2 + ["not-possible"] * 2 + ["wrong"] * 2
    assert {row["error"] for row in found.rows[2:4]} == {"the process that ran it died each time; out of memory?"}
    assert "the first is o_ref[0, 0] (device (0,)): got" in found.rows[4]["result"]
    assert found.best["point"] == {"fault": "", "rows": 16}


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="not run: looks for processes in /proc")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_a_sweep_that_is_stopped(kernel, sent):
    """Also where a pool's processes hold its pipes open for each other."""
    command = ["sweep", kernel, "--param", "fault='',sleeps", "--param", "rows=8,16", "--slice", "v5e:1x1"]
    started = subprocess.Popen(
        [sys.executable, "-c", "from tpusim.cli import main; main()", *command, "--jobs", "2", "--out", "rows.jsonl"],
        start_new_session=True, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def its_group():
        stats = [Path(f"/proc/{each}/stat") for each in os.listdir("/proc") if each.isdigit()]
        found = [stat.read_text().rpartition(")")[2].split() for stat in stats if stat.exists()]
        return [state for state, _, group, *_ in found if int(group) == started.pid and state != "Z"]

    rows = Path("rows.jsonl")
    wait_until(lambda: rows.exists() and len(rows.read_text().splitlines()) == 3)
    started.send_signal(sent)
    _, err = started.communicate(timeout=60)
    if sent == signal.SIGINT:
        assert err == "Interrupted: 2 of 4 points are in rows.jsonl; the same command goes on from there.\n"
        assert started.returncode == 130
    wait_until(lambda: not its_group())


def wait_until(is_so, seconds=60):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "distributed.cli." + arguments[0], *arguments[1:]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture
def cluster(tmp_path):
    """A scheduler and two worker processes, all on the loopback interface."""
    pytest.importorskip("distributed")
    where = tmp_path / "scheduler.json"
    loopback = ("--host", "127.0.0.1", "--no-dashboard")
    processes = [start("dask_scheduler", "--port", "0", "--scheduler-file", str(where), *loopback)]
    try:
        for _ in range(2):
            worker = ("--no-nanny", "--nthreads", "1", "--scheduler-file", str(where), *loopback)
            processes.append(start("dask_worker", *worker))
        deadline = time.monotonic() + 60
        while not where.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        address = json.loads(where.read_text())["address"]
        yield address, processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_for_workers(address, count):
    import distributed

    with distributed.Client(address, set_as_default=False, timeout=30) as client:
        client.wait_for_workers(count, timeout=60)


def test_a_worker_of_the_cluster_is_killed_midway_and_nothing_is_lost(kernel, cluster):
    address, workers = cluster
    wait_for_workers(address, 2)
    killed = []

    def kill_one(row, done, total):
        if done == 3 and not killed:
            os.kill(workers[0].pid, signal.SIGKILL)
            killed.append(done)

    space = {"rows": [2, 4, 8, 16, 32, 64], "seed": list(range(4))}
    found = sweep(kernel, space, DaskCluster(address), progress=kill_one)
    assert killed
    assert workers[0].wait(timeout=30) == -signal.SIGKILL
    assert measured(found.rows) == measured(sweep(kernel, space, Here(), "here.jsonl").rows)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("localhost:8786", "a scheduler's address is tcp://host:8786 or tls://host:8786, not 'localhost:8786'"),
        ("tls://127.0.0.1:1", "no Dask scheduler at tls://127.0.0.1:1: "),
    ],
)
def test_a_scheduler_that_is_none(address, message):
    pytest.importorskip("distributed")
    with pytest.raises(OptionError) as caught:
        DaskCluster(address)
    assert str(caught.value).startswith(message)


def test_a_scheduler_that_must_be_asked_in_cipher():
    distributed = pytest.importorskip("distributed")
    import dask

    assert distributed
    with dask.config.set({"distributed.comm.require-encryption": True}), pytest.raises(OptionError) as caught:
        DaskCluster("tcp://127.0.0.1:1")
    assert str(caught.value) == (
        "no Dask scheduler at tcp://127.0.0.1:1: encryption required by Dask configuration, refusing communication "
        "from/to 'tcp://127.0.0.1:1'"
    )
    gc.collect()  # a client that was made in vain would say so now


class Gone:
    """A client of a scheduler that goes away."""

    loop = None

    def submit(self, *request, pure):
        return self

    def result(self):
        raise CancelledError


def test_a_scheduler_that_goes_away_is_one_line(monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(distributed, "as_completed", lambda futures, loop: futures)
    workers = DaskCluster.__new__(DaskCluster)
    workers.address, workers._client = "tcp://127.0.0.1:1", Gone()
    with pytest.raises(OptionError) as caught:
        list(workers.run([Request("f.py", "", {}, {})]))
    assert str(caught.value) == (
        "the Dask scheduler at tcp://127.0.0.1:1 went away; the rows so far are kept, the same command goes on"
    )


# -- the command line, tables, autotune --------------------------------------------------------------


@pytest.fixture
def command(tpusim):
    return functools.partial(tpusim, "sweep")


def test_the_command_ranks_and_says_what_failed(kernel, command):
    options = ["--slice", "v5e:1x1", "--jobs", "2", "--out", "o.jsonl", "--table", "o.csv"]
    code, out, err = command(kernel, "--param", "rows=8,64", "--param", "fault='',wrong", *options)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["rows", "fault", "time", "interval", "x", "bound"]
    assert [line.split()[:2] for line in lines[1:3]] == [["1", "64"], ["2", "8"]]
    assert lines[3].startswith("wrong: 8192 of 8192 values differ; the first is o_ref[0, 0] (device (0,)): got")
    assert lines[-1] == "4 points; rows in o.jsonl"
    code, out, _ = command(kernel, "--param", "rows=8,64", "--param", "fault='',wrong", *options, "--json", "-")
    assert [each["point"]["rows"] for each in json.loads(out)["ranking"]] == [64, 8]
    assert len(Path("o.csv").read_text().splitlines()) == 5


def test_the_ranking_is_drawn_in_a_page_of_its_own(kernel, command):
    pytest.importorskip("bokeh")
    code, _, err = command(kernel, "--param", "rows=8,64", "--slice", "v5e:1x1", "--jobs", "1", "--plot", "o.html")
    assert (code, err) == (0, "")
    page = Path("o.html").read_text()
    assert '"1.  rows=64","2.  rows=8"' in page
    assert "<script src=" not in page  # nothing is fetched
    assert "<link" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--param", "rows=8", "--objective", "cost"], "--objective is time or ratio, not 'cost'"),
        (["--param", "rows=8", "--table", "t.txt"], "a table is a .csv or a .parquet file, not t.txt"),
        (["--param", "rows=8", "--out", "no/t"], "cannot write no/t: there is no directory no"),
    ],
)
def test_bad_arguments_are_one_line(kernel, command, arguments, message):
    assert command(kernel, *arguments) == (2, "", f"Error: {message}\n")


def test_tables_hold_every_row(kernel, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    found = sweep(kernel, {"rows": [8, 64], "shape": [[64, 128]]}, Here())
    write_table(found.rows, "t.parquet")
    table = parquet.read_table("t.parquet").to_pylist()
    assert [each["param.rows"] for each in table] == [8, 64]
    assert [each["param.shape"] for each in table] == ["[64, 128]"] * 2
    assert [each["time_us"] for each in table] == [each["time_us"] for each in found.rows]


def native_copies(rows, is_right=True):
    def body(x_ref, o_ref, scratch, sem):
        def step(i, _):
            here = tpusim.ds(i * rows, rows)
            for source, target in ((x_ref.at[here], scratch), (scratch, o_ref.at[here])):
                copy = tpusim.make_async_copy(source, target, sem)
                copy.start()
                copy.wait()

        tpusim.fori_loop(0, x_ref.shape[0] // rows if is_right else 1, step, None)

    return tpusim.Kernel(
        body,
        out_shape=lambda x: x,
        in_specs=tpusim.HBM,
        out_specs=tpusim.HBM,
        scratch_shapes=lambda x: (tpusim.VMEM((rows, 128), x.dtype), tpusim.SemaphoreType.DMA),
    )


def test_autotune_chooses_the_fastest_that_is_right():
    x = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    space = {"rows": [8, 16, 32], "is_right": [True, False]}
    tuned = tpusim.autotune(native_copies, space, "v5e:1x1", inputs=(x,), reference=lambda x: x)
    assert tuned.best == {"rows": 32, "is_right": True}
    assert [each["status"] for each in tuned.rows] == ["right", "wrong"] * 3
    assert tuned.result.time == tuned.kernel.simulate(x, slice="v5e:1x1").time
    assert tuned.result.time_us == min(place.row["time_us"] for place in tuned.ranking)


def test_autotune_says_why_nothing_runs():
    with pytest.raises(OptionError) as caught:
        tpusim.autotune(native_copies, {"rows": [8], "slice": ["v5e:3x3"]}, inputs=(np.zeros((64, 128), "f4"),))
    assert str(caught.value).startswith("autotune: none of 1 points runs right: v5e has no slice 3x3. Slices of v5e: ")


@pytest.mark.jax
def test_autotune_of_a_captured_kernel():
    jax = pytest.importorskip("jax")
    from jax.experimental import pallas as pl

    def make(rows):
        def add(x_ref, y_ref, o_ref):
            o_ref[...] = x_ref[...] + y_ref[...]

        spec = pl.BlockSpec((rows, 128), lambda i: (i, 0))
        shape = jax.ShapeDtypeStruct((256, 128), "float32")
        return pl.pallas_call(add, grid=(256 // rows,), in_specs=[spec] * 2, out_specs=spec, out_shape=shape)

    x, y = np.ones((256, 128), np.float32), np.full((256, 128), 2, np.float32)
    tuned = tpusim.autotune(make, {"rows": [8, 64, 128]}, "v5e:1x1", inputs=(x, y), reference=lambda x, y: x + y)
    assert [each["status"] for each in tuned.rows] == ["right"] * 3
    assert tuned.best["rows"] > 8
