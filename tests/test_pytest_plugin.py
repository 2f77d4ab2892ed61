"""The fixture and marker that tests of kernels take, and what a failure tells."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import numpy as np
import pytest
import tpusim
from tpusim import HBM, VMEM, SemaphoreType, ShapeDtypeStruct, axis_index, axis_size, make_async_remote_copy

DMA = SemaphoreType.DMA
X = np.arange(4096, dtype=np.float32).reshape(32, 128)

@tpusim.kernel(out_shape=ShapeDtypeStruct((8, 128), "float32"), in_specs=HBM, out_specs=HBM,
               scratch_shapes=(VMEM((8, 128), "float32"), DMA, DMA, DMA))
def kernel(x_ref, o_ref, buffer, send, recv, own):
    copy = make_async_remote_copy(x_ref, buffer, send, recv, device_id=(axis_index("x") + 1) % axis_size("x"))
    copy.start()
    copy.wait_send()
    tpusim.delay(4000)
    onward = tpusim.make_async_copy(buffer, o_ref, own)
    onward.start()
    onward.wait()
    copy.wait_recv()

def is_right(result):
    return (result.outputs[0] == np.roll(X, 8, axis=0)).all()

@pytest.mark.tpusim(slice="v5e:2x2", checks="none", on_finding="record", schedules=("default", "lazy"))
def test_data(tpusim_simulate):
    assert is_right(tpusim_simulate(kernel, X))

@pytest.mark.tpusim(slice="v5e:2x2")
def test_race(tpusim_simulate):
    tpusim_simulate(kernel, X)

def test_options_of_the_call(tpusim_simulate):
    result = tpusim_simulate(kernel, X, slice="v5e:2x2", checks="none", on_finding="record")
    assert result.seed in (0, 7)
    assert result.slice == "v5e:2x2"

def test_another():
    assert not 1
"""


def suite(folder, *arguments):
    (folder / "test_suite.py").write_text(SUITE)
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tpusim.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
    ]
    done = subprocess.run(
        [*command, "--strict-markers", "-n", "0", *arguments], cwd=folder, env=environment, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return suite(tmp_path_factory.mktemp("suite"))


def section(out, test):
    """What the report of a failed test says under the plugin's name."""
    report = out[out.index(f"_ {test} _") :]
    found = re.search(r"-+ tpusim -+\n(.*?)\n(?=[_=]{5})", report, re.DOTALL)
    return found[1].splitlines() if found else None


def test_the_marker_runs_a_test_under_each_schedule(out):
    assert "3 failed, 2 passed" in out
    assert "FAILED test_suite.py::test_data[lazy]" in out
    assert "FAILED test_suite.py::test_data[default]" not in out


def test_a_failure_tells_seed_token_and_how_to_see_it_again(out):
    assert section(out, "test_data[lazy]") == [
        "seed 0, token t1:lazy  again: pytest 'test_suite.py::test_data[lazy]' --tpusim-replay t1:lazy"
    ]


def test_a_finding_is_explained(out):
    lines = section(out, "test_race")
    assert lines[0].startswith("race: ")
    assert lines[-2:] == ["  Replay: default.", "seed 0, token default"]


def test_other_failures_say_nothing_of_it(out):
    assert "- tpusim -" not in out[out.index("_ test_another _") :]


def test_the_command_line_gives_seed_and_token(tmp_path):
    out = suite(tmp_path, "--tpusim-seed", "7", "--tpusim-replay", "t1:newest", "-k", "data or options")
    assert "FAILED test_suite.py::test_data[default]" in out
    assert section(out, "test_data[default]") == [
        "seed 7, token t1:newest  again: pytest 'test_suite.py::test_data[default]' --tpusim-seed 7 "
        "--tpusim-replay t1:newest"
    ]
    assert "1 passed" in out
