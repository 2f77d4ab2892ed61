"""The command line where something is wrong with the kernel or its file: exit status, report, JSON."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import DEADLOCK, KERNELS, own_folder, strict_json, write

from tpusim.cli.new import STARTER

__all__ = ["own_folder"]  # the tests of this file run in a folder of their own


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("    return (rng", "    return 2 * (rng"),
         "k.py: lower_bound(slice, x) does not take the arrays of inputs(): too many positional arguments"),
        (("def reference(x,", "def reference(a, x,"),
         "k.py: reference(a, x, *, devices=4) does not take the arrays of inputs(): missing a required argument: 'x'"),
        (("    return (rng", "    return None\n    return (rng"),
         "k.py: inputs() gives no array of numbers as input 0: None"),
        (("    return slice.permute", "    return 'soon'\n    return slice.permute"),
         "k.py: lower_bound() returns a Duration, picoseconds or None, not 'soon'"),
        (("    o_ref[...] = x_ref[...] + left_ref[...]", "    return x_ref[...]"),
         "kernel returns a value; a kernel returns None and writes its results to its refs"),
        (("    copy.start()", "    copy.start()\n    yield"),
         "kernel is a generator; waits block by themselves, without yield or await"),
        (("def kernel(", "async def kernel("),
         "kernel is a coroutine; waits block by themselves, without yield or await"),
    ],
)  # fmt: skip
def test_functions_of_the_file_that_do_not_fit_each_other(tpusim, change, message):
    write("k.py", change)
    status, out, err = tpusim("run", "k.py", "--json", "-")
    assert (status, err) == (2, f"Error: {message}\n")
    assert strict_json(out)["error"] == message


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


def test_files_are_written_before_the_report_that_nobody_reads_to_its_end():
    write("k.py")
    main = "from tpusim.cli import main; main()"
    command = [sys.executable, "-c", main, "run", "k.py", "--trace", "t.json", "--json", "r.json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.wait(timeout=100)
    assert strict_json(Path("r.json").read_text())["ok"] is True
    assert strict_json(Path("t.json").read_text())["traceEvents"]


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


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (("    n, me = axis", "    raise KeyboardInterrupt\n    n, me = axis"), "kernel"),  # in the pass over the code
        (("    rng = np", "    raise KeyboardInterrupt\n    rng = np"), "inputs"),
        (("    return x + np.roll", "    raise KeyboardInterrupt\n    return x + np.roll"), "reference"),
    ],
)
def test_ctrl_c_outside_the_simulation_says_where_the_code_was(tpusim, change, where):
    lines = Path(write("k.py", change)).read_text().splitlines()
    line = lines.index("    raise KeyboardInterrupt") + 1
    status, out, err = tpusim("run", "k.py", "--json", "-")
    assert status == 1
    text = f"interrupted\n  k.py:{line} in {where}\n    raise KeyboardInterrupt"
    assert strict_json(out)["error"] == text
    assert text in err


def test_ctrl_c_ends_all_runs_of_explore(tpusim):
    interrupt = "    calls.append(1)\n    if len(calls) == 12:\n        raise KeyboardInterrupt\n    copy.start()"
    write("k.py", ("# Everything", "calls = []\n\n\n# Everything"), ("    copy.start()", interrupt))
    status, out, _ = tpusim("explore", "k.py", "--runs", "9")
    assert status == 130
    assert "livelock" not in out
