"""One kernel on several backends: equal data, missing backends by name, times against measured ones, both timelines."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tpusim.chips import load_chip
from tpusim.cli import _app
from tpusim.crosscheck import crosscheck
from tpusim.crosscheck.residuals import residuals
from tpusim.errors import OptionError
from tpusim.findings import where_of
from tpusim.job import Job, Status
from tpusim.kernel_file import load_file

RING = "kernels/ring_all_gather.py"
SLOWER = {"dma.start_latency_remote": 9.3e-7}
"""Half a microsecond longer than v5e's."""


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(_app(), ["crosscheck", *arguments])


def hardware(**chip: float) -> tuple[Any, list[list[Any]]]:
    """A run on a chip with other numbers, and its copies as a hardware trace would name them."""
    loaded = load_file(RING)
    result = loaded.kernel.simulate(*loaded.inputs(), slice="v5e:2x2", chip=load_chip("v5e").with_values(chip))
    events = [
        [copy.core.device, "DMA", str(where_of(copy.site)), copy.issued_ps / 1e6, copy.written_ps / 1e6]
        for copy in result.trace.copies
    ]
    return result, events


def test_the_simulator_alone() -> None:
    found = crosscheck(Job(RING, {"slice": "v5e:2x2", "on_finding": "record"}), ["sim"])
    (seen,) = found.seen
    assert (found.status, seen.state, seen.data) == (Status.RIGHT, "ok", "equal")
    assert seen.interval_us[0] < seen.time_us < seen.interval_us[1]
    assert found.ratio is None
    assert found.is_inside is None


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^--backends takes some of sim, interpret, compile, tpu, not 'gpu'$"):
        crosscheck(Job(RING), ["gpu"])  # type: ignore[list-item]


def test_missing_backends_are_named_with_what_adds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpusim.crosscheck.check.find_spec", lambda name: None)
    done = invoke(RING, "--slice", "v5e:2x2", "--json", "-")
    assert done.exit_code == 0
    values = json.loads(done.stdout)
    assert [(one["backend"], one["state"], one["text"]) for one in values["backends"]] == [
        ("sim", "ok", None),
        ("interpret", "missing", "needs jax: pip install 'tpusim[pallas]'"),
        ("compile", "missing", "needs the TPU compiler, no TPU: pip install 'tpusim[tpu]'"),
        ("tpu", "missing", "needs a TPU, jax and libtpu; on a TPU VM: pip install 'tpusim[tpu]'"),
    ]
    assert values["ok"] is True
    assert invoke(RING, "--backends", "tpu,compile").exit_code == 3


def test_measured_times_from_elsewhere(tmp_path: Path) -> None:
    result, events = hardware(**SLOWER)
    file, trace = tmp_path / "times.json", tmp_path / "both.json"
    file.write_text(json.dumps({"times_us": [result.time_us, result.time_us + 0.2], "events": events}))
    files = ["--measured", str(file), "--json", "-", "--trace", str(trace)]
    done = invoke(RING, "--slice", "v5e:2x2", "--backends", "sim,tpu", *files)
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    sim, tpu = values["backends"]
    assert tpu["time_us"] == pytest.approx(result.time_us + 0.1)
    assert values["ratio"] == pytest.approx(sim["time_us"] / tpu["time_us"])
    assert values["inside_interval"] is True
    remote = [one for one in values["residuals"] if one["measured_us"] > one["simulated_us"] + 0.1]
    assert len(values["residuals"]) == len(events)
    assert len(remote) == 12
    assert {round(one["left_us"], 3) for one in remote} == {-0.5}
    assert "simulated / measured" in done.stderr
    shown = json.loads(trace.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in shown if event["name"] == "process_name"}
    assert {"TPU 0 (measured)", "TPU 3 (measured)"} < names
    assert len([event for event in shown if event.get("cat") == "measured"]) == len(events)
    assert len({event["pid"] for event in shown if event["name"] == "process_name"}) == len(names)


def test_a_trace_that_names_no_line_leaves_no_residuals() -> None:
    result, events = hardware()
    assert residuals(result, [[0, "XLA Ops", "ring.1", 0.0, 5.0]]) == []
    assert {round(one.left_us, 9) for one in residuals(result, events)} == {0.0}


@pytest.mark.parametrize("text", ["[]", "{", '{"times_us": 3}', '{"events": []}'])
def test_other_json_is_no_measurement(tmp_path: Path, text: str) -> None:
    file = tmp_path / "times.json"
    file.write_text(text)
    done = invoke(RING, "--backends", "tpu", "--measured", str(file))
    assert str(done.exception) == f"{file} is no JSON of `tpusim time --json`: it needs times_us"


def test_a_kernel_that_deadlocks_fails_on_the_simulator_and_says_so(tmp_path: Path) -> None:
    text = Path(RING).read_text()
    assert "semaphore_wait(barrier)" in text
    file = tmp_path / "stuck.py"
    file.write_text(text.replace("semaphore_wait(barrier)", "semaphore_wait(barrier, 9)"))
    done = invoke(str(file), "--slice", "v5e:2x2", "--backends", "sim", "--json", "-")
    assert done.exit_code == 1
    values = json.loads(done.stdout)
    assert values["backends"][0]["state"] == "failed"
    assert values["findings"][0]["kind"] == "deadlock"
    assert values["backends"][0]["time_us"] is None


@pytest.mark.jax
@pytest.mark.usefixtures("interpret_lock")
def test_interpret_mode_agrees_with_the_simulator() -> None:
    found = crosscheck(Job(RING, {"slice": "v5e:2x2", "mesh": 2, "on_finding": "record"}), ["sim", "interpret"])
    assert [(seen.backend, seen.state, seen.data) for seen in found.seen] == [
        ("sim", "ok", "equal"),
        ("interpret", "ok", "equal"),
    ]


CAPTURED = """
import functools
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

def body(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2.0

def kernel(x):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

def inputs():
    return (np.arange(1024, dtype=np.float32).reshape(8, 128),)

def reference(x):
    return x * 2
"""


@pytest.mark.jax
@pytest.mark.usefixtures("interpret_lock")
def test_a_captured_program_is_crosschecked_too(tmp_path: Path) -> None:
    file = tmp_path / "twice.py"
    file.write_text(CAPTURED)
    found = crosscheck(Job(str(file), {"on_finding": "record"}), ["sim", "interpret"])
    assert [(seen.state, seen.data) for seen in found.seen] == [("ok", "equal"), ("ok", "equal")], found.seen
    assert np.array_equal(found.outcome.outputs[0], found.outcome.arrays[0] * 2)


@pytest.mark.jax
def test_the_compiler_s_verdict_is_shown() -> None:
    pytest.importorskip("libtpu")
    found = crosscheck(Job(RING, {"slice": "v5e:2x2", "on_finding": "record"}), ["compile"])
    assert found.seen[0].state == "ok", found.seen[0].text


def test_libtpu_is_quiet_where_there_is_no_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from tpusim.pallas import host

    environment = {"TPU_ACCELERATOR_TYPE": "mine"}
    monkeypatch.setattr(host.os, "environ", environment)
    monkeypatch.setattr(host, "has_tpu", lambda: True)
    host.quiet_libtpu()
    assert environment == {"TPU_ACCELERATOR_TYPE": "mine"}
    monkeypatch.setattr(host, "has_tpu", lambda: False)
    host.quiet_libtpu()
    assert environment == host.NO_TPU | {"TPU_ACCELERATOR_TYPE": "mine"}  # what somebody has set stays


@pytest.mark.jax
def test_a_process_that_is_killed_leaves_its_signal_and_what_it_had_done(monkeypatch: pytest.MonkeyPatch) -> None:
    from tpusim.pallas import remote

    def killed(command: list[str], **how: Any) -> Any:
        Path(command[-1]).write_text('[{"times_us": [2.0], "events": []}]', encoding="utf-8")
        return SimpleNamespace(returncode=-9, stderr="")

    monkeypatch.setattr(remote.subprocess, "run", killed)
    first, second = remote.run_all([remote.Run("a.py", {"x": 1}), remote.Run("b.py", {"x": 1})])
    assert first.median_us == 2.0
    assert second.error == "the process ended early, by signal 9:"
