"""The command line as its users meet it: exit status, what stands on which stream, messages whole."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tpusim.cli.console import plain
from tpusim.cli.new import STARTER

KERNELS = Path(__file__).parents[1] / "kernels"


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def write(name, *changes):
    """The starter kernel with some of its text replaced."""
    text = STARTER
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    Path(name).write_text(text, encoding="utf-8")
    return name


def strict_json(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


# -- run: right -------------------------------------------------------------------------------------


def test_run_of_a_right_kernel_reports_everything(tpusim):
    status, out, err = tpusim("run", KERNELS / "ring_all_gather.py", "--slice", "v5e:2x2")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "v5e:2x2, mesh x=4, layout auto (at most 1 hops to a neighbour)"
    assert lines[1] == "result       equal   (against reference())"
    assert [line[:13].strip() for line in lines[2:9]] == [
        "time",
        "lower bound",
        "copies",
        "links",
        "HBM",
        "cores",
        "findings",
    ]
    trust = r"[\d.]+ to [\d.]+ us; compiler, datasheet, estimate figures, dma\.start_latency_remote above all"
    assert re.fullmatch(rf"time         [\d.]+ us   \({trust}\)", lines[2])
    assert re.fullmatch(r"lower bound  [\d.]+ [un]s   \([\d.]+x\)", lines[3])
    assert lines[4] == "copies       16, 64.0 KiB"
    assert lines[8] == "findings     none"
    assert lines[10].startswith("(0,)-(3,) |")
    assert lines[-1].strip() == "█ compute  ▓ compute and copy  ▒ own copy in flight  ░ waiting for others"


def test_every_run_option_reaches_the_run(tpusim):
    layout = "[[0,0],[1,1],[0,1],[1,0]]"
    status, out, _ = tpusim(
        *("run", write("k.py"), "--slice", "v5e:2x4", "--mesh", "x=4", "--shape", "16,256", "--dtype", "bfloat16"),
        *("--seed", "7", "--set", "ici.link_bandwidth=1e9", "--set", "dma.issue=100", "--layout", layout),
        *("--cores", "megacore", "--data", "--on-finding", "record", "--max-time", "1000", "--max-events", "100000"),
        *("--backend", "sim", "--json", "r.json"),
    )
    assert status == 0
    result = strict_json(Path("r.json").read_text())
    assert result["slice"] == "v5e:2x4"
    assert result["mesh"] == {"x": 4}
    assert result["seed"] == 7
    assert result["layout"] == [[0, 0], [1, 1], [0, 1], [1, 0]]
    assert result["bytes"] == 4 * 3 * 16 * 256 * 2
    assert result["time_us"] > 16 * 256 * 2 / 1e9 * 1e6
    assert "layout given coordinates" in out


@pytest.mark.parametrize("backend", ["sim", pytest.param("interpret", marks=pytest.mark.jax)])
def test_parameters_reach_the_kernel_and_its_inputs(tpusim, backend):
    shutil.copy(KERNELS / "matmul_pipeline.py", "mm.py")
    options = ["--mesh", "x=1", "--shape", "16,256", "--backend", backend, "--json", "-"]
    blocks = ["--param", "bm=8", "--param", "bn=128", "--param", "bk=128", "--param", "columns=256"]
    code, out, err = tpusim("run", "mm.py", *options, *blocks)
    assert (code, json.loads(out)["ok"]) == (0, True), err
    if backend == "sim":
        assert json.loads(out)["dmas"] == 2 * 2 * 2 * 2 + 2 * 2  # blocks of A and B at each step, then of C
    code, out, err = tpusim("run", "mm.py", *options, *blocks, "--param", "bm=5")
    assert code == 1
    assert "16 rows of A are not divisible into blocks of 5" in json.loads(out)["error"]


def test_mesh_may_be_a_bare_number_and_chip_an_own_file(tpusim):
    Path("mine.toml").write_text('base = "v5e"\n[ici]\nlink_bandwidth = 1e9\n')
    _, _, _ = tpusim("run", write("k.py"), "--mesh", "2", "--json", "usual.json")
    _, _, _ = tpusim("run", "k.py", "--mesh", "2", "--chip", "mine.toml", "--json", "slow.json")
    usual, slow = (strict_json(Path(name).read_text()) for name in ("usual.json", "slow.json"))
    assert usual["mesh"] == slow["mesh"] == {"x": 2}
    assert slow["chip"] == "mine"
    assert slow["time_us"] > usual["time_us"]


def test_rounding_is_named_and_right(tpusim):
    write("k.py", ("    return x + np.roll", "    return x * np.float32(1 + 3e-7) + np.roll"))
    status, out, _ = tpusim("run", "k.py")
    assert status == 0
    assert re.search(r"^result       equal within \d\.\de-0[678]   \(against reference\(\)\)$", out, re.MULTILINE)


def test_without_data_or_reference_nothing_is_checked(tpusim):
    status, out, _ = tpusim("run", write("k.py"), "--no-data")
    assert status == 0
    assert "result       not checked: no data\n" in out
    write("k.py", ("def reference", "def another"))
    status, out, _ = tpusim("run", "k.py")
    assert status == 0
    assert "result       not checked: k.py has no reference()\n" in out


def test_kernels_with_two_axes_get_a_tuple_of_devices(tpusim):
    status, out, _ = tpusim("run", KERNELS / "halo_exchange.py", "--slice", "v5e:2x4")
    assert status == 0
    assert "mesh x=2, y=4" in out


# -- run: wrong -------------------------------------------------------------------------------------


def test_a_wrong_result_names_index_values_and_device(tpusim):
    write("k.py", ("    return x + np.roll", "    x = x.copy()\n    x[17, 5] += 1\n    return x + 0 * np.roll"))
    write("k.py", ("    o_ref[...] = x_ref[...] + left_ref[...]", "    o_ref[...] = 1.0 * x_ref[...]"),
          ("    return x + np.roll", "    x = x.copy()\n    x[17, 5] = 400\n    return x + 0 * np.roll"))  # fmt: skip
    status, out, _ = tpusim("run", "k.py", "--seed", "1", "--json", "r.json")
    assert status == 1
    value = np.random.default_rng(1).integers(-100, 100, (32, 128))[17, 5]
    text = f"1 of 4096 values differs; the first is o_ref[17, 5] (device (2,)): got {value}.0, expected 400.0"
    assert f"result       {text}\n" in out
    result = strict_json(Path("r.json").read_text())
    assert result["ok"] is False
    assert result["result"] == text
    assert result["findings"] == []


def test_integers_have_no_tolerance(tpusim):
    write("k.py", ("    return x + np.roll", "    return x + 1 + np.roll"))
    status, out, _ = tpusim("run", "k.py", "--dtype", "int32")
    assert status == 1
    assert "result       4096 of 4096 values differ; the first is o_ref[0, 0] (device (0,)): got " in out


def test_shapes_and_counts_of_outputs_are_compared_first(tpusim):
    write("k.py", ("    return x + np.roll", "    return x[1:] + 0 * np.roll(x[1:], 1, axis=0)  #"))
    _, out, _ = tpusim("run", "k.py")
    assert "result       o_ref has shape (32, 128), reference() (31, 128)\n" in out
    write("k.py", ("    return x + np.roll", "    return x, x  #"))
    _, out, _ = tpusim("run", "k.py")
    assert "result       reference() returns 2 arrays, the kernel has 1 outputs\n" in out


DEADLOCK = ("    copy.start()\n", "")


def test_a_deadlock_is_reported_with_what_there_is(tpusim):
    line = (
        STARTER.replace(*DEADLOCK)
        .splitlines()
        .index("    copy.wait()  # until ours has been sent, and left's has arrived")
    )
    status, out, err = tpusim("run", write("k.py", DEADLOCK), "--trace", "t.json", "--json", "r.json")
    assert (status, err) == (1, "")
    lines = out.splitlines()
    assert lines[1] == "result       not checked: the run did not reach its end"
    assert lines[2].endswith("(where the run stopped)")
    assert re.fullmatch(r"lower bound  [\d.]+ ns", lines[3])
    found = lines[8:]
    assert re.fullmatch(r"deadlock: 4 of 4 devices can never proceed \(t = [\d.]+ us, default schedule\)\.", found[0])
    assert found[1] == (f"  devices (0,)-(3,) each wait for 4096 B on send_sem (value 0 B)       k.py:{line + 1}")
    assert any(line.startswith("(0,)-(3,) |") for line in found)
    result = strict_json(Path("r.json").read_text())
    assert result["ok"] is False
    assert result["time_us"] > 0
    assert result["ratio"] is None
    assert [finding["kind"] for finding in result["findings"]] == ["deadlock"]
    assert strict_json(Path("t.json").read_text())["otherData"]["ok"] is False


def test_a_leak_leaves_a_result_that_is_checked(tpusim):
    status, out, _ = tpusim("run", write("k.py", ("    copy.wait()", "    copy.wait_recv()")))
    assert status == 1
    assert "result       equal   (against reference())\n" in out
    assert "unwaited: send_sem is left at 4096 B" in out


def test_recorded_findings_fail_too(tpusim):
    status, out, _ = tpusim("run", write("k.py", DEADLOCK), "--on-finding", "record", "--json", "-")
    assert status == 1
    assert strict_json(out)["findings"][0]["kind"] == "deadlock"


def test_warnings_do_not_fail(tpusim):
    status, out, _ = tpusim("run", KERNELS / "torus_all_reduce.py", "--slice", "v5e:4x4", "--json", "-")
    result = strict_json(out)
    assert status == 0
    assert result["ok"] is True
    assert {finding["kind"] for finding in result["findings"]} == {"routing"}


def test_many_findings_are_cut_short_on_the_terminal_alone(tpusim):
    _, out, err = tpusim("run", KERNELS / "torus_all_reduce.py", "--slice", "v5e:4x4", "--json", "-")
    count = len(strict_json(out)["findings"])
    if count > 10:
        assert err.count("routing: ") == 10
        assert f"... and {count - 10} more findings; --json has them all\n" in err
    else:
        assert err.count("routing: ") == count


def test_limits_end_a_run(tpusim):
    status, out, _ = tpusim("run", write("k.py"), "--max-events", "20")
    assert status == 1
    assert "livelock: the run passed max_events = 20; t = " in out


# -- run: the user's code raises --------------------------------------------------------------------


def test_an_exception_in_the_kernel_shows_the_users_frames_alone(tpusim):
    write("k.py", ("    o_ref[...] = x_ref[...] + left_ref[...]", "    helper()"),
          ("# Everything here", "def helper():\n    return 1 / 0\n\n\n# Everything here"))  # fmt: skip
    lines = Path("k.py").read_text().splitlines()
    call, fault = lines.index("    helper()") + 1, lines.index("    return 1 / 0") + 1
    status, out, err = tpusim("run", "k.py", "--json", "r.json", "--trace", "t.json")
    text = (
        f"ZeroDivisionError: division by zero\n  k.py:{call} in kernel\n    helper()\n"
        f"  k.py:{fault} in helper\n    return 1 / 0"
    )
    assert status == 1
    assert out == f"v5e:2x2, mesh x=4\n{text}\n"
    assert err == "no trace in t.json: there is no run to show\n"
    result = strict_json(Path("r.json").read_text())
    assert (result["ok"], result["error"], result["time_us"], result["slice"]) == (False, text, None, "v5e:2x2")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            ("    rng = np", "    [][1]\n    rng = np"),
            "IndexError: list index out of range\n  k.py:{} in inputs\n    [][1]\n",
        ),
        (("    return x + np.roll", "    return {}[1] + np.roll"), "KeyError: 1\n  k.py:{} in reference\n"),
        (("    return slice.permute", "    return slice.nope"), "AttributeError: 'MeshBounds' object has no"),
        (("import tpusim\n", "import tpusim\n\nraise NameError('x')\n"), "NameError: x\n  k.py:{} in <module>\n"),
    ],
)
def test_exceptions_elsewhere_in_the_file(tpusim, change, text):
    write("k.py", change)
    status, out, _ = tpusim("run", "k.py")
    assert status == 1
    pattern = ".*".join(re.escape(part) for part in text.split("{}"))
    assert re.search(pattern.replace(".*", r"\d+"), out)


@pytest.mark.parametrize("status", [0, 7])
@pytest.mark.parametrize(
    ("change", "where"),
    [
        (("import tpusim\n", "import sys\n\nimport tpusim\n\nEXIT\n"), "<module>"),
        (("    o_ref[...] = x_ref", "    import sys\n\n    EXIT\n    o_ref[...] = x_ref"), "kernel"),
        (("    return x + np.roll", "    import sys\n\n    EXIT\n    return x + np.roll"), "reference"),
    ],
)
def test_a_file_cannot_choose_the_exit_status(tpusim, change, where, status):
    old, new = change
    write("k.py", (old, new.replace("EXIT", f"sys.exit({status})")))
    lines = Path("k.py").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "sys.exit" in text)
    found, out, err = tpusim("run", "k.py", "--json", "-")
    assert found == 1
    error = f"SystemExit: {status}\n  k.py:{line} in {where}\n    sys.exit({status})"
    assert error in err
    assert strict_json(out)["ok"] is False


@pytest.mark.parametrize("arguments", [("sweep", "k.py", "--param", "seed=1,2"), ("time", "k.py")])
@pytest.mark.parametrize("fault", ["raise NameError('x')", "import sys; sys.exit(0)"])
def test_a_file_that_cannot_be_run_through_is_a_fault_of_the_file(tpusim, arguments, fault):
    Path("k.py").write_text(f"{fault}\n")
    what = "NameError: x" if "NameError" in fault else "SystemExit: 0"
    assert tpusim(*arguments) == (1, "", f"Error: {what}\n  k.py:1 in <module>\n    {fault}\n")


def test_a_trace_of_some_devices_or_in_parts(tpusim):
    write("k.py")
    for options, processes in ((["--trace-devices", "0-1,3"], 3), (["--trace-parts", "10"], 4)):
        status, _, _ = tpusim("run", "k.py", "--mesh", "4", "--trace", "t.json", *options)
        assert status == 0
        events = strict_json(Path("t.json").read_text())["traceEvents"]
        assert sum(e["name"] == "process_name" and "/device:TPU:" in e["args"]["name"] for e in events) == processes
    status, _, err = tpusim("run", "k.py", "--mesh", "4", "--trace", "t.json", "--trace-devices", "4")
    assert status == 2
    assert err == "Error: --trace-devices: the mesh has devices 0 to 3\n"


def test_report_writes_a_page_for_a_run_with_findings_too(tpusim):
    status, out, err = tpusim("report", write("k.py", DEADLOCK), "--html", "k.html")
    assert status == 1, err
    assert "deadlock: 4 of 4 devices can never proceed" in out
    assert out.endswith("report       k.html\n")
    assert "can never proceed" in Path("k.html").read_text()
    status, _, err = tpusim("report", "k.py", "--html", "nowhere/k.html")
    assert (status, err) == (2, "Error: cannot write nowhere/k.html: there is no directory nowhere\n")


def test_python_branches_on_traced_values_are_explained_at_their_line(tpusim):
    write("k.py", ("    o_ref[...] = x_ref[...] + left_ref[...]", "    if me == 0:\n        o_ref[...] = x_ref[...]"))
    status, out, _ = tpusim("run", "k.py")
    assert status == 1
    assert "TracedValueError" in out
    assert re.search(r"^  k\.py:\d+ in kernel\n    if me == 0:$", out, re.MULTILINE)


def test_ctrl_c_gives_the_report(tpusim):
    interrupt = "    calls.append(1)\n    if len(calls) == 4:\n        raise KeyboardInterrupt\n    copy.start()"
    write("k.py", ("# Everything", "calls = []\n\n\n# Everything"), ("    copy.start()", interrupt))
    status, out, _ = tpusim("run", "k.py", "--json", "r.json", "--trace", "t.json")
    assert status == 1
    assert "\nlivelock: interrupted; t = " in out
    assert strict_json(Path("r.json").read_text())["findings"][0]["kind"] == "livelock"
    assert strict_json(Path("t.json").read_text())["traceEvents"]


# -- run: arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.py"], "none.py: no such file"),
        (["k.txt"], "k.txt: a kernel file is a Python file, path.py or path.py:name"),
        (["k.py:other"], "k.py has no 'other'; kernels in it: kernel"),
        (["broken.py"], "broken.py cannot be imported: SyntaxError: invalid syntax (broken.py, line 1)"),
        (["k.py", "--slice", "v5e:3x3"],
         "v5e has no slice 3x3. Slices of v5e: 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16."),
        (["k.py", "--mesh", "y=2"], "mesh needs a size for each axis of the kernel, such as 'x=2'; got 'y=2'"),
        (["k.py", "--mesh", "x"], "mesh: 'x' is not of the form axis=size, as in 'x=2,y=4'"),
        (["k.py", "--mesh", "x=²"], "mesh: 'x=²' is not of the form axis=size, as in 'x=2,y=4'"),
        (["k.py", "--mesh", "x=2,x=4"], "mesh: 'x=2,x=4' gives axis 'x' twice"),
        (["k.py", "--shape", "8,b"], "--shape takes sizes such as 8,128, not '8,b'"),
        (["k.py", "--trace", "-"], "--trace takes the path of a file, not - for the standard output"),
        (["k.py", "--shape", "0,128"], "--shape takes positive sizes, not '0,128'"),
        (["k.py", "--dtype", "float99"],
         "--dtype: there is no dtype 'float99'; float32, bfloat16, int32, int8 are some"),
        (["k.py", "--set", "nonsense"], "--set takes KEY=VALUE such as ici.link_bandwidth=90e9, not 'nonsense'"),
        (["k.py", "--layout", "[[0,0],3]"],
         "--layout takes coordinates as [[0,0],[0,1]], one for each device, not '[[0,0],3]'"),
        (["k.py", "--cores", "half"], "cores is 'megacore' or 'split', not 'half'"),
        (["k.py", "--on-finding", "ignore"], "on_finding is 'raise' or 'record', not 'ignore'"),
        (["k.py", "--max-events", "0"], "max_events is a positive integer, not 0"),
        (["k.py", "--backend", "tpu"], "--backend is sim or interpret, not 'tpu'"),
        (["k.py", "--backend", "interpret", "--trace", "t.json"],
         "--trace needs --backend sim: interpret mode has no time"),
        (["k.py", "--backend", "interpret", "--no-data"], "--data has no meaning with --backend interpret"),
        (["k.py", "--json", "no/r.json"], "cannot write no/r.json: there is no directory no"),
        (["k.py", "--trace", "."], "cannot write .: it is a directory"),
        (["k.py", "--trace-devices", "0"], "--trace-devices says what --trace writes, and there is no --trace"),
        (["k.py", "--trace-parts", "9"], "--trace-parts says what --trace writes, and there is no --trace"),
        (["k.py", "--trace", "t.json", "--trace-devices", "3-1"],
         "--trace-devices takes numbers and ranges such as 0-3,8, not '3-1'"),
        (["few.py", "--dtype", "int8"],
         "few.py: nothing takes a parameter 'dtype'; inputs() has: shape"),
        (["k.py", "--param", "bm"], "--param takes KEY=VALUE such as bm=128, not 'bm'"),
        (["k.py", "--param", "bm=128"], "k.py: nothing takes a parameter 'bm'; inputs() has: shape, dtype, seed"),
        (["axis.py"], "there is no mesh axis '[red]y'; the kernel has ('x',)  [axis.py:35]"),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_line(tpusim, arguments, message):
    write("k.py")
    write("few.py", ('shape=(8, 128), dtype="float32", seed=0):', 'shape=(8, 128)):\n    dtype, seed = "float32", 0'))
    write("axis.py", ('axis_size("x"), axis', 'axis_size("[red]y"), axis'))
    Path("broken.py").write_text("def (\n")
    Path("k.txt").write_text("")
    assert tpusim("run", *arguments) == (2, "", f"Error: {message}\n")


def test_usage_errors_are_2(tpusim):
    status, out, err = tpusim("run", "k.py", "--compile", "v5e")
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("Error: No such option: --compile")
    assert tpusim("run")[0] == 2
    assert tpusim("walk")[0] == 2
    assert tpusim("run", "k.py", "--seed", "x")[0] == 2


def test_schedules_faults_and_tokens(tpusim):
    run = "run", KERNELS / "ring_all_gather.py", "--slice", "v5e:2x2", "--json", "-"
    shuffled = tpusim(
        *run, "--schedule", "shuffle", "--seed", "5", "--fault", "jitter:1us", "--fault", "chip:1.0:slow=2"
    )
    assert (shuffled[0], shuffled[2].splitlines()[1]) == (0, "result       equal   (against reference())")
    made = strict_json(shuffled[1])
    assert made["token"] == "t1:shuffle:5~jitter:1us:seed=5~chip:1.0:slow=2"
    replayed = strict_json(tpusim(*run, "--replay", made["token"])[1])
    assert (replayed["token"], replayed["time_us"]) == (made["token"], made["time_us"])
    status, out, _ = tpusim(*run, "--fault", "link:(0,0)-(1,0):dead")
    finding = strict_json(out)["findings"][0]
    assert (status, finding["kind"], finding["token"]) == (1, "link-down", "t1:default~link:0.0-1.0:dead")
    status, _, err = tpusim(*run, "--replay", "t1:hold:1/kernel/start40/writer")
    assert (status, err) == (
        2,
        "Error: the schedule does not fit this run: there is no copy start 40 in kernel() on device (1,): kernel() has "
        "only 4 copies there\n",
    )


UNDER_WAY = """
import numpy as np
from tpusim import HBM, VMEM, Kernel, SemaphoreType, ShapeDtypeStruct, make_async_copy

def body(x_ref, o_ref, buffer, sem, other):
    first = make_async_copy(x_ref, buffer, sem)
    first.start()
    second = make_async_copy(buffer, o_ref, other)
    first.wait()
    second.start()
    second.wait()

TILE = ShapeDtypeStruct((8, 128), "float32")
kernel = Kernel(
    body, out_shape=TILE, in_specs=HBM, out_specs=HBM,
    scratch_shapes=(VMEM((8, 128), "float32"), SemaphoreType.DMA, SemaphoreType.DMA),
)

def inputs(devices=1):
    return np.ones((devices * 8, 128), np.float32)

def reference(x):
    return x
"""
"""A right kernel; its waits changed places, it reads what is still being written."""


@pytest.mark.parametrize(
    "command",
    ["run", "explain", "report", "lint", "explore", "verify", "crosscheck"],
)
def test_every_command_that_runs_a_file_takes_a_token(command, tpusim):
    early = UNDER_WAY.replace("first.wait()\n    second.start()", "second.start()\n    first.wait()")
    Path("k.py").write_text(early, encoding="utf-8")
    status, out, _ = tpusim("verify", "k.py", "--mesh", "x=1", "--json", "-")
    token = strict_json(out)["findings"][0]["token"]
    assert (status, token) == (1, "t1:hold:0/body/start1/writer/x_ref,buffer")
    more = {"report": ("--html", "k.html"), "crosscheck": ("--backends", "sim")}.get(command, ())
    status, _, err = tpusim(command, "k.py", "--mesh", "x=1", "--replay", token, *more)
    assert status == (0 if command == "lint" else 1), err
    Path("k.py").write_text(UNDER_WAY.replace("x_ref, buffer, sem", "x_ref, o_ref, sem"), encoding="utf-8")
    status, _, err = tpusim(command, "k.py", "--mesh", "x=1", "--replay", token, *more)
    assert status == 2
    assert "Error: the schedule does not fit this run: copy start 1 in body() on device (0,) now works on" in err


def test_a_replayed_schedule_proves_nothing(tpusim):
    Path("k.py").write_text(UNDER_WAY, encoding="utf-8")
    run = "verify", "k.py", "--mesh", "x=1", "--replay", "t1:lazy"
    status, out, _ = tpusim(*run)
    assert status == 3
    assert "verdict      not-proven: no schedule but the one replayed was tried.\n" in out
    values = strict_json(tpusim(*run, "--json", "-")[1])
    assert (values["answer"], values["ok"], values["explored"]["tried"]) == ("not-proven", False, ["t1:lazy"])


@pytest.mark.parametrize("command", ["run", "verify", "explore", "lint", "explain"])
def test_bad_arguments_are_json_too_for_who_asked(command, tpusim):
    status, out, err = tpusim(command, "absent.py", "--json", "-")
    assert status == 2
    assert strict_json(out) == {"ok": False, "error": "absent.py: no such file"}
    assert err == "Error: absent.py: no such file\n"
    assert tpusim(command, "absent.py", "--json", "out.json")[1] == ""


def test_not_modelled_is_3(tpusim):
    message = (
        "Slices of 8t chips are not modelled: their network is not published in enough detail. "
        "Slices exist for v4, v5e, v5p, v6e, v7x."
    )
    status, out, err = tpusim("run", write("k.py"), "--slice", "8t:2x2x1", "--json", "-")
    assert (status, err) == (3, f"Error: {message}\n")
    result = strict_json(out)
    assert (result["ok"], result["error"], result["slice"]) == (False, message, None)


def test_interpret_without_jax_is_3_and_names_the_command(tpusim, monkeypatch):
    monkeypatch.setattr(importlib.import_module("tpusim.job.job"), "find_spec", lambda name: None)
    status, out, err = tpusim("run", write("k.py"), "--backend", "interpret", "--json", "-")
    message = "--backend interpret needs jax in this Python: pip install 'tpusim[pallas]'"
    assert (status, err) == (3, f"Error: {message}\n")
    assert strict_json(out)["error"] == message


# -- run: streams and escaping ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("library", "arguments", "message"),
    [
        ("bokeh", ("report", "k.py", "--html", "r.html"),
         "reports are drawn with Bokeh, which is not installed: pip install 'tpusim[report]'"),
        ("pyarrow", ("sweep", "k.py", "--param", "seed=1,2", "--table", "t.parquet"),
         "a Parquet table needs pyarrow: pip install 'tpusim[sweep]', or name a .csv file"),
        ("optuna", ("sweep", "k.py", "--param", "seed=1,2", "--trials", "2"),
         "a guided search needs Optuna: pip install 'tpusim[sweep]', or leave out --trials"),
        ("distributed", ("sweep", "k.py", "--param", "seed=1,2", "--scheduler", "tcp://127.0.0.1:1"),
         "a Dask cluster needs distributed: pip install 'tpusim[cluster]'"),
    ],
)  # fmt: skip
def test_a_missing_library_is_3_and_names_the_command(tpusim, monkeypatch, library, arguments, message):
    write("k.py")
    monkeypatch.setitem(sys.modules, library, None)
    assert tpusim(*arguments) == (3, "", f"Error: {message}\n")


def test_json_on_stdout_is_alone_there(tpusim):
    write("k.py", ("    copy.start()", '    print("chatter")\n    tpusim.debug_print("value {}", 3)\n    copy.start()'))
    status, out, err = tpusim("run", "k.py", "--json", "-")
    assert status == 0
    assert len(out.splitlines()) == 1
    result = strict_json(out)
    assert "chatter" in err
    assert "] value 3\n" in err
    assert "result       equal" in err
    assert list(result) == [
        "ok", "result", "time_us", "interval_us", "basis", "lower_bound_us", "lower_bound_because", "ratio",
        "dmas", "bytes", "findings",
        "error", "file", "backend", "chip", "slice", "mesh", "layout", "seed", "token", "wall_s", "calls",
        "utilisation",
    ]  # fmt: skip
    assert (result["ok"], result["result"], result["chip"], result["slice"]) == (True, "equal", "v5e", "v5e:2x2")
    assert result["dmas"] == 12
    assert result["wall_s"] > 0


def test_user_text_is_neither_markup_nor_control_codes(tpusim):
    folder = Path("we[red]ird")
    folder.mkdir()
    write(folder / "k[bold].py", ("    copy.start()", '    tpusim.debug_print("[red]a\\x1b[31m[/red] {}", 1)'))
    status, out, _ = tpusim("run", folder / "k[bold].py")
    assert status == 1
    assert "[red]a\\x1b[31m[/red] 1\n" in out
    assert "we[red]ird/k[bold].py:" in out
    assert "\x1b" not in out


def test_plain_spells_out_what_a_terminal_would_obey():
    assert plain("a\tb\nä█ [x]") == "a\tb\nä█ [x]"
    assert plain("\x1b[31m\r\x07\x9b") == "\\x1b[31m\\r\\x07\\x9b"
    assert plain("\ud800\u202e") == "\\ud800\\u202e"


def test_output_survives_a_terminal_without_unicode():
    write("kä.py")
    command = [sys.executable, "-c", "from tpusim.cli import main; main()", "run", "kä.py"]
    child = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert child.returncode == 0
    assert child.stdout.isascii()
    assert "# compute  % compute and copy  = own copy in flight  . waiting for others" in child.stdout


def test_help_and_version(tpusim):
    status, out, _ = tpusim("--version")
    assert status == 0
    assert re.fullmatch(r"tpusim \d+\.\d+.*\n", out)
    status, out, _ = tpusim("run", "--help")
    assert status == 0
    assert "[[0,0],[0,1],...]" in out


def test_importing_tpusim_imports_no_terminal_library():
    code = "import sys, tpusim; print({'typer', 'rich', 'jax'} & set(sys.modules))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == "set()\n"


# -- the other commands -----------------------------------------------------------------------------


def test_kernels_lists_all_that_can_be_read(tpusim):
    folder = Path("mine")
    folder.mkdir()
    write(folder / "b.py")
    Path(folder, "a.py").write_text('"""Two [red]kernels."""\nimport tpusim\nfirst = tpusim.Kernel(f)\nkernel = g(1)\n')
    Path(folder, "broken.py").write_text("def (\n")
    Path(folder, "raises.py").write_text(
        '"""Never executed."""\n1 / 0\n@tpusim.kernel(out_shape=1)\ndef kernel(): ...\n'
    )
    Path(folder, "helper.py").write_text("x = 1\n")
    status, out, err = tpusim("kernels", "mine")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "mine/a.py:first  Two [red]kernels.",
        "mine/b.py        Neighbour sum: every device adds its left neighbour's shard to its own.",
        "mine/broken.py   cannot be read: line 1: invalid syntax",
        "mine/raises.py   Never executed.",
    ]


def test_kernels_of_the_repository_are_found(tpusim, monkeypatch):
    monkeypatch.chdir(KERNELS.parent)
    status, out, _ = tpusim("kernels")
    assert status == 0
    assert len(out.splitlines()) == len(list(KERNELS.glob("*.py")))
    assert "cannot be read" not in out


def test_kernels_needs_a_directory(tpusim):
    assert tpusim("kernels", "none") == (2, "", "Error: none: no such directory\n")
    Path("empty").mkdir()
    assert tpusim("kernels", "empty") == (0, "no kernel files in empty\n", "")


def test_chips_are_shown_with_their_sources(tpusim):
    status, out, _ = tpusim("chips")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[1:-1]] == ["v4", "v5e", "v5p", "v6e", "v7x", "8i", "8t"]
    status, out, _ = tpusim("chips", "v5e")
    assert status == 0
    assert re.search(r"^ici\.link_bandwidth +4\.\d+e\+10 B/s +\w+ +\S", out, re.MULTILINE)
    assert re.search(r"^ +[\d.e+]+ to [\d.e+]+ B/s$", out, re.MULTILINE)


def test_chips_as_json(tpusim):
    _, out, _ = tpusim("chips", "v6e", "--json")
    chip = strict_json(out)
    assert chip["name"] == "v6e"
    assert set(chip["quantities"]["ici.link_bandwidth"]) == {
        "value", "unit", "source", "confidence", "note", "low", "high",
    }  # fmt: skip
    _, out, _ = tpusim("chips", "--json")
    assert len(strict_json(out)) == 7
    status, _, err = tpusim("chips", "v5x")
    assert status == 2
    assert err == (
        "Error: no chip 'v5x'; did you mean 'v7x'? Possible: v4, v5e, v5p, v6e, v7x, 8i, 8t, "
        "or the path of a TOML file\n"
    )


def test_new_writes_a_file_that_runs_and_overwrites_nothing(tpusim):
    assert tpusim("new", "fresh.py") == (0, "Wrote fresh.py. Next: tpusim run fresh.py\n", "")
    assert tpusim("run", "fresh.py", "--slice", "v5e:2x4", "--dtype", "bfloat16", "--seed", "3")[0] == 0
    Path("fresh.py").write_text("mine\n")
    assert tpusim("new", "fresh.py") == (2, "", "Error: fresh.py is there already; it stays as it is\n")
    assert Path("fresh.py").read_text() == "mine\n"
    assert tpusim("new", "fresh.txt") == (2, "", "Error: fresh.txt: a kernel file is a Python file, path.py\n")
    assert tpusim("new", "no/fresh.py") == (2, "", "Error: cannot write no/fresh.py: No such file or directory\n")


def test_doctor_names_what_is_missing_and_how_to_get_it(tpusim, monkeypatch):
    doctor = importlib.import_module("tpusim.cli.doctor")
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    status, out, _ = tpusim("doctor")
    assert status == 0
    lines = out.splitlines()
    assert lines[0].startswith(f"Python {sys.version_info.major}.{sys.version_info.minor}.")
    assert lines[1].startswith("tpusim ")
    assert re.fullmatch(
        r"sim       works    4 devices in [\d.]+ us, with half the link bandwidth [\d.]+ us; data right", lines[2]
    )
    assert lines[3:] == [
        "interpret missing  needs jax",
        "                   pip install 'tpusim[pallas]'",
        "compile   missing  needs jax and libtpu, no TPU",
        "                   pip install 'tpusim[tpu]'",
        "tpu       missing  needs a TPU, jax and libtpu",
        "                   on a TPU VM: pip install 'tpusim[tpu]'",
    ]


def test_doctor_fails_where_the_simulator_does(tpusim, monkeypatch):
    doctor = importlib.import_module("tpusim.cli.doctor")
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor, "STARTER", STARTER.replace(*DEADLOCK))
    status, out, _ = tpusim("doctor")
    assert status == 1
    assert "sim       missing  TpuSimError: 4 of 4 devices can never proceed" in out


# -- with jax ---------------------------------------------------------------------------------------


@pytest.mark.jax
@pytest.mark.usefixtures("interpret_lock")
def test_doctor_tries_interpret_mode(tpusim):
    pytest.importorskip("jax")
    status, out, _ = tpusim("doctor")
    assert status == 0
    assert re.search(r"^interpret works    2 devices in [\d.]+ s; data equal$", out, re.MULTILINE)


@pytest.mark.jax
@pytest.mark.usefixtures("interpret_lock")
def test_interpret_checks_the_data_alone(tpusim):
    pytest.importorskip("jax")
    status, out, _ = tpusim("run", write("k.py"), "--mesh", "x=2", "--backend", "interpret", "--json", "-")
    result = strict_json(out)
    assert status == 0
    assert (result["ok"], result["result"], result["backend"]) == (True, "equal", "interpret")
    assert result["time_us"] is result["lower_bound_us"] is result["wall_s"] is None
    write("k.py", ("    return x + np.roll", "    return x + 1 + np.roll"))
    status, out, _ = tpusim("run", "k.py", "--mesh", "x=2", "--backend", "interpret")
    assert status == 1
    assert out.startswith("JAX's TPU interpret mode, mesh x=2: data alone, no time\nresult       2048 of 2048 values")


@pytest.mark.jax
@pytest.mark.usefixtures("interpret_lock")
def test_what_interpret_mode_raises_is_reported(tpusim):
    pytest.importorskip("jax")
    write("k.py", ("    copy.start()", "    copy.start(add=True)"))
    status, _, err = tpusim("run", "k.py", "--mesh", "2", "--backend", "interpret")
    assert status == 3
    assert "JAX's interpret mode ignores add=True: the result would be wrong." in err
    write("k.py", ("    copy.start()", "    1 / 0"))
    status, out, _ = tpusim("run", "k.py", "--mesh", "2", "--backend", "interpret")
    assert status == 1
    assert "ZeroDivisionError: division by zero" in out


CAPTURED = """
import jax, numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

def body(x_ref, o_ref, send_sem, recv_sem):
    n, me = jax.lax.axis_size("x"), jax.lax.axis_index("x")
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, device_id=((me - 1) % n,))
    pl.semaphore_wait(barrier, 1)
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, send_sem, recv_sem, device_id=((me + 1) % n,))
    copy.start()
    copy.wait()

def shift(x):
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), in_specs=[anywhere], out_specs=anywhere,
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2, compiler_params=pltpu.CompilerParams(collective_id=0),
    )(x)

mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
kernel = jax.jit(jax.shard_map(shift, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))

def inputs(seed=0):
    return (np.arange(32 * 128, dtype=np.float32).reshape(32, 128),)

def reference(x):
    return np.roll(x, ROWS, axis=0)

def lower_bound(slice, x):
    return slice.permute(x.nbytes // slice.num_devices)
"""


@pytest.mark.jax
@pytest.mark.parametrize(("rows", "status"), [(8, 0), (16, 1)])
def test_a_file_with_a_jax_function_is_captured(tpusim, tmp_path, rows, status):
    path = tmp_path / "shift.py"
    path.write_text(CAPTURED.replace("ROWS", str(rows)))
    code, out, _ = tpusim("run", path, "--slice", "v5e:2x2", "--json", "-")
    assert code == status
    values = strict_json(out)
    assert (values["dmas"], values["slice"], values["mesh"]) == (4, "v5e:2x2", {"x": 4})
    assert values["lower_bound_us"] < values["time_us"]
    assert values["ok"] is (status == 0)


@pytest.mark.jax
def test_a_captured_function_is_reported_and_explained(tpusim, tmp_path):
    path = tmp_path / "captured.py"
    path.write_text(CAPTURED.replace("ROWS", "8"))
    status, out, err = tpusim("report", path, "--slice", "v5e:2x2", "--html", "page.html")
    assert status == 0, err
    assert out.endswith("report       page.html\n")
    page = Path("page.html").read_text()
    assert "The critical path lies on captured.py:" in page
    status, out, err = tpusim("explain", path, "--slice", "v5e:2x2", "--json", "-")
    assert status == 0, err
    said = strict_json(out)
    assert said["sentences"][0].startswith("It takes ")
    assert said["what_ifs"][0]["time_us"] <= said["time_us"]
