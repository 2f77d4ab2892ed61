"""The arguments of the command line: bad ones are one line, and those of one command mean the same in all."""

import importlib
from pathlib import Path

import pytest
from command_line import KERNELS, own_folder, strict_json, write

__all__ = ["own_folder"]  # the tests of this file run in a folder of their own


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
        (["bare.py", "--dtype", "int8"],
         "bare.py: nothing takes a parameter 'dtype'; inputs() has: none"),
        (["k.py", "--param", "bm"], "--param takes KEY=VALUE such as bm=128, not 'bm'"),
        (["k.py", "--param", "bm=128"], "k.py: nothing takes a parameter 'bm'; inputs() has: shape, dtype, seed"),
        (["axis.py"], "there is no mesh axis '[red]y'; the kernel has ('x',)  [axis.py:35]"),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_line(tpusim, arguments, message):
    write("k.py")
    write("few.py", ('shape=(8, 128), dtype="float32", seed=0):', 'shape=(8, 128)):\n    dtype, seed = "float32", 0'))
    write("bare.py", ('shape=(8, 128), dtype="float32", seed=0):', '):\n    shape, dtype, seed = (8,), "int8", 0'))
    write("axis.py", ('axis_size("x"), axis', 'axis_size("[red]y"), axis'))
    Path("broken.py").write_text("def (\n")
    Path("k.txt").write_text("")
    assert tpusim("run", *arguments) == (2, "", f"Error: {message}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),  # click's words, which are not the same in all versions
    [
        (("run", "k.py", "--walk", "v5e"), "No such option: --walk"),
        (("run",), "Missing argument 'file'."),
        (("walk",), "No such command 'walk'."),
        (("run", "k.py", "b.py"), "Got unexpected extra argument"),
        (("run", "k.py", "--seed"), "Option '--seed' requires an argument."),
    ],
)
def test_usage_errors_are_2_and_one_line(tpusim, arguments, message):
    status, out, err = tpusim(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"Error: {message}")
    assert err.endswith("-h)\n")
    assert err.count("\n") == 1


def test_a_usage_error_is_json_where_json_is_asked_for(tpusim):
    status, out, err = tpusim("run", "k.py", "--seed", "x", "--json", "-")
    assert status == 2
    assert err == f"Error: {strict_json(out)['error']}\n"
    assert strict_json(out)["ok"] is False


def test_a_group_of_commands_shows_its_help(tpusim):
    for arguments in ((), ("costs",)):
        status, _, err = tpusim(*arguments)
        assert status in (0, 2)  # what click says
        assert err.startswith("Usage: tpusim") or status == 0


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
