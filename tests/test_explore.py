"""Exploration: what many schedules show of wrong kernels, and what it says of right ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tpusim.errors import OptionError
from tpusim.explore import Trial, explore
from tpusim.kernel_file import load_file

KERNELS = Path(__file__).parents[1] / "kernels"

RACY = """
import numpy as np
import tpusim
from tpusim import HBM, VMEM, SemaphoreType, ShapeDtypeStruct, axis_index, axis_size, delay, make_async_remote_copy

DMA = SemaphoreType.DMA
TILE = ShapeDtypeStruct((8, 128), "float32")

@tpusim.kernel(out_shape=TILE, in_specs=HBM, scratch_shapes=(VMEM((8, 128), "float32"), DMA, DMA))
def kernel(x_ref, o_ref, buffer, send, recv):
    right = (axis_index("x") + 1) % axis_size("x")
    copy = make_async_remote_copy(x_ref, buffer, send, recv, device_id=right)
    copy.start()
    copy.wait_send()
    delay(4000)
    o_ref[...] = buffer[...]
    copy.wait_recv()

def inputs(devices=4, seed=0):
    return np.arange(devices * 1024, dtype=np.float32).reshape(devices * 8, 128)
"""
LOCAL = """
import numpy as np
import tpusim

HBM = tpusim.HBM

@tpusim.kernel(out_shape=tpusim.ShapeDtypeStruct((8, 128), "float32"), in_specs=HBM, out_specs=HBM)
def kernel(x_ref, o_ref):
    tpusim.delay(100)

def inputs(devices=1):
    return np.ones((8 * devices, 128), np.float32)
"""


def test_races_and_wrong_data_are_reported_with_what_shows_them(tpusim, tmp_path):
    path = tmp_path / "racy.py"
    path.write_text(RACY)
    status, out, err = tpusim("explore", path, "--slice", "v5e:2x2", "--runs", 8, "--json", "-")
    assert status == 1
    made = json.loads(out)
    assert made["tried"][:5] == ["default", "t1:lazy", "t1:newest", "t1:split", "t1:eager"]
    assert len(made["tried"]) == 8
    assert (made["ok"], made["nothing_delayed"], made["seed"]) == (False, False, 0)
    kinds = {found["finding"]["kind"] for found in made["wrong"] if found["finding"]}
    assert kinds == {"race"}
    data = [found for found in made["wrong"] if found["finding"] is None]
    assert [found["token"] for found in data] == ["t1:lazy"]
    assert data[0]["text"].startswith("wrong data: not those of the default schedule: ")
    assert "explored     " in err
    assert "  Replay: t1:lazy." in err.splitlines()
    assert tpusim("explore", path, "--slice", "v5e:2x2", "--replay", "t1:lazy")[0] == 1
    assert tpusim("run", path, "--slice", "v5e:2x2", "--replay", "t1:lazy")[0] == 1


def test_a_right_kernel_is_right_and_that_is_no_proof(tpusim):
    status, out, err = tpusim("explore", KERNELS / "ring_all_gather.py", "--slice", "v5e:2x2", "--runs", 30)
    assert (status, err) == (0, "")
    assert out.splitlines()[1:] == ["explored     nothing wrong in 30 schedules, seed 0; that is no proof"]


def test_a_kernel_without_copies_has_nothing_to_explore(tpusim, tmp_path):
    path = tmp_path / "local.py"
    path.write_text(LOCAL)
    status, out, _ = tpusim("explore", path, "--slice", "v5e:1x1")
    assert status == 0
    assert out.splitlines()[1] == (
        "explored     nothing was delayed: no copy and no remote signal, so there is one schedule only"
    )


def test_what_the_default_schedule_cannot_end_is_not_tried_again(tpusim, tmp_path):
    path = tmp_path / "stuck.py"
    path.write_text(RACY.replace("    copy.start()\n", ""))
    status, out, _ = tpusim("explore", path, "--slice", "v5e:2x2", "--json", "-")
    made = json.loads(out)
    assert (status, made["tried"]) == (1, ["default"])
    assert [found["finding"]["kind"] for found in made["wrong"]] == ["deadlock"]


def test_the_same_seed_tries_the_same_schedules_and_another_seed_others():
    file = load_file(str(KERNELS / "ring_all_gather.py"))
    arrays = file.inputs(devices=4)

    def trial(schedule):
        result = file.kernel.simulate(*arrays, slice="v5e:2x2", schedule=schedule, on_finding="record")
        return Trial(result, result.findings)

    one, same, other = (explore(trial, 25, seed) for seed in (1, 1, 2))
    assert one.tried == same.tried
    assert one.ok
    assert other.ok
    assert one.tried != other.tried
    assert len({*one.tried}) == 25
    assert sum(token.startswith("t1:hold:") for token in one.tried) >= 3


def test_holding_one_leg_is_among_what_finds_wrong_data():
    def trial(schedule):
        wrong = schedule.startswith("hold:") and "/writer" in schedule
        result = file.kernel.simulate(*arrays, slice="v5e:2x2", schedule=schedule)
        return Trial(result, (), "seen" if wrong else None)

    file = load_file(str(KERNELS / "ring_all_gather.py"))
    arrays = file.inputs(devices=4)
    made = explore(trial, 60)
    assert [wrong.text for wrong in made.wrong] == ["wrong data: seen"]
    assert made.wrong[0].token.startswith("t1:hold:")
    assert np.array_equal(file.kernel.simulate(*arrays, slice="v5e:2x2", replay=made.wrong[0].token).outputs[0],
                          file.reference(*arrays, devices=4))  # fmt: skip


POLLS = """
import numpy as np
import tpusim
from tpusim import HBM, VMEM, SemaphoreType, ShapeDtypeStruct, when

TILE = ShapeDtypeStruct((8, 128), "float32")

@tpusim.kernel(out_shape=TILE, in_specs=HBM, scratch_shapes=(VMEM((8, 128), "float32"), SemaphoreType.DMA))
def kernel(x_ref, o_ref, buffer, sem):
    copy = tpusim.make_async_copy(x_ref, buffer, sem)
    copy.start()
    tpusim.delay(10_000)
    seen = tpusim.semaphore_read(sem)
    copy.wait()

    @when(seen > 0)
    def _():
        o_ref[...] = buffer[...]

    @when(seen == 0)
    def _():
        o_ref[...] = buffer[...] * 0.0

def inputs(devices=1):
    return np.ones((8 * devices, 128), np.float32)

def reference(x, *, devices=1):
    return x
"""


def test_verify_explores_what_it_cannot_prove(tpusim, tmp_path):
    path = tmp_path / "polls.py"
    path.write_text(POLLS)
    status, out, _ = tpusim("verify", path, "--slice", "v5e:1x1", "--runs", 6, "--json", "-")
    made = json.loads(out)
    assert (status, made["answer"]) == (1, "not-proven")
    assert made["explored"]["wrong"][0]["text"].startswith("wrong data: 1024 of 1024 values differ; ")
    token = made["explored"]["wrong"][0]["token"]
    assert tpusim("run", path, "--slice", "v5e:1x1", "--replay", token)[0] == 1
    assert tpusim("run", path, "--slice", "v5e:1x1")[0] == 0
    assert tpusim("verify", path, "--slice", "v5e:1x1", "--runs", 0)[0] == 3


def test_at_least_one_run():
    with pytest.raises(OptionError, match=r"^explore needs at least one run, not 0$"):
        explore(lambda schedule: Trial(None), 0)
