"""``tpusim verify``: exit status, report and JSON, for native and captured files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

KERNELS = Path(__file__).parent.parent / "kernels"

EARLY = """
import numpy as np
import tpusim
from tpusim import HBM, VMEM, SemaphoreType, make_async_copy

@tpusim.kernel(out_shape=lambda x: x, scratch_shapes=(VMEM((2, 8, 128), "float32"), SemaphoreType.DMA))
def kernel(x_ref, o_ref, slots, sem):
    copies = [make_async_copy(x_ref, slots.at[i], sem) for i in range(2)]
    for copy in copies:
        copy.start()
    copies[0].wait()
    o_ref[...] = slots[0]
    copies[1].wait()

def inputs():
    return (np.arange(1024, dtype="float32").reshape(8, 128),)

def reference(x):
    return x
"""


def test_a_proven_kernel(tpusim: Any) -> None:
    status, out, err = tpusim("verify", str(KERNELS / "all_to_all.py"), "--slice", "v5e:2x2", "--calls", "2")
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[0] == "v5e:2x2, mesh x=4, layout auto (at most 1 hops to a neighbour)"
    assert lines[1] == (
        "verdict      proven: 120 operations of all cores in 2 calls in a row on v5e:2x2; no deadlock, leak, race or "
        "lifetime fault in any schedule; data equal (against reference())."
    )
    assert lines[2] == "It rests on:"
    assert [line[:5] for line in lines[3:11]] == [f"  P{number} " for number in range(1, 9)]


def test_a_refuted_kernel_in_text_and_json(tpusim: Any, tmp_path: Path) -> None:
    file = tmp_path / "early.py"
    file.write_text(EARLY)
    status, out, _ = tpusim("verify", str(file), "--slice", "v5e:1x1")
    assert status == 1
    assert "verdict      refuted: 8 operations of all cores on v5e:1x1." in out
    assert "  Replay: t1:hold:0/kernel/start2/writer/x_ref,slots." in out
    status, out, err = tpusim("verify", str(file), "--slice", "v5e:1x1", "--json", "-")
    values = json.loads(out)
    assert status == 1
    assert "verdict      refuted" in err
    assert (values["answer"], values["calls"], values["operations"]) == ("refuted", 1, 8)
    assert values["data"] == "equal (against reference())"
    assert "and the data are wrong: 1024 of 1024 values differ" in values["findings"][0]["message"]


def test_wrong_data_refute(tpusim: Any, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    both = EARLY.replace("    copies[0].wait()", "    copies[0].wait()\n    copies[1].wait()", 1)
    right = both.replace("slots[0]\n    copies[1].wait()", "slots[0]")
    file.write_text(right.replace("return x\n", "return x + 1\n"))
    status, out, _ = tpusim("verify", str(file), "--slice", "v5e:1x1")
    assert status == 1
    assert "  wrong data: 1024 of 1024 values differ" in out


def test_neither_proven_nor_refuted(tpusim: Any) -> None:
    status, out, _ = tpusim("verify", str(KERNELS / "all_to_all.py"), "--slice", "v5e:2x2", "--max-events", "20")
    assert status == 3
    assert "verdict      not-proven: " in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere.py"], "Error: nowhere.py: no such file\n"),
        (["--json", "no/where.json"], "Error: cannot write no/where.json: there is no directory no\n"),
    ],
)
def test_bad_arguments(tpusim: Any, arguments: list[str], text: str) -> None:
    file = [] if arguments[0].endswith(".py") else [str(KERNELS / "all_to_all.py")]
    assert tpusim("verify", *file, *arguments) == (2, "", text)


def test_an_exception_of_the_users(tpusim: Any, tmp_path: Path) -> None:
    file = tmp_path / "raises.py"
    file.write_text(EARLY.replace("    copies[0].wait()", "    raise ValueError('mine')"))
    status, out, _ = tpusim("verify", str(file), "--slice", "v5e:1x1")
    assert status == 1
    assert "the program raised ValueError: mine" in out


@pytest.mark.jax
def test_a_captured_file(tpusim: Any, tmp_path: Path) -> None:
    file = tmp_path / "captured.py"
    file.write_text("""
import jax
import numpy as np
from jax.experimental import pallas as pl

def add_one(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1

def kernel(x):
    return pl.pallas_call(add_one, out_shape=jax.ShapeDtypeStruct((8, 128), np.float32))(x)

def inputs():
    return (np.ones((8, 128), np.float32),)

def reference(x):
    return x + 1
""")
    status, out, _ = tpusim("verify", str(file), "--slice", "v5e:1x1", "--calls", "3", "--json", "-")
    values = json.loads(out)
    assert (status, values["answer"], values["calls"]) == (0, "proven", 3)
    assert values["data"] == "equal (against reference())"
