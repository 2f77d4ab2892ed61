"""The command line as its users meet it: `tpusim run`, what stands on which stream, the other commands."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import DEADLOCK, KERNELS, own_folder, strict_json, write

from tpusim.cli.console import plain
from tpusim.cli.new import STARTER

__all__ = ["own_folder"]  # the tests of this file run in a folder of their own


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
