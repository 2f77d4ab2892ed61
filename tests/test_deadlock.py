"""Deadlocks by cause, each report whole; the graph; and that looking for the cause leaves no trace in the result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from simulating import Lines, error_of, run, tiles

from tpusim import (
    SemaphoreType,
    axis_index,
    axis_size,
    debug_print,
    fori_loop,
    make_async_copy,
    make_async_remote_copy,
    semaphore_signal,
    semaphore_wait,
    when,
)
from tpusim.cli import main
from tpusim.errors import DeadlockError
from tpusim.units import Duration

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
at = Lines(__file__)


def report(kernel, devices, **declared):
    error = error_of(DeadlockError, kernel, tiles(devices), mesh=devices, **declared)
    assert 0 <= error.result.time - error.finding.time_ps < 10_000  # the wait itself
    first, *rest = str(error).splitlines()
    when_ = f"t = {Duration(error.finding.time_ps)}, default schedule"
    assert re.fullmatch(rf"\d+ of {devices} devices can never proceed \({re.escape(when_)}\)\.", first)
    return error, [first.split(" can ")[0], *rest]


# -- causes ---------------------------------------------------------------------------------------------


def credits_after_the_wait(x_ref, o_ref, credit):
    left = (axis_index("x") - 1) % axis_size("x")
    semaphore_wait(credit)  # waits first
    semaphore_signal(credit, device_id=left)  # signals then


def test_cycle():
    error, lines = report(credits_after_the_wait, 4, scratch_shapes=(REGULAR,))
    assert lines == [
        "4 of 4 devices",
        f"  devices (0,)-(3,) each wait for 1 unit on credit (value 0)           {at('waits first')}",
        f"    because their right neighbour signals credit only at               {at('signals then')}",
        "    after the same wait",
        "Cycle: (0,) -> (1,) -> (2,) -> (3,) -> (0,). No copy is in flight.",
    ]
    assert error.finding.details["causes"] == ["cycle"]
    assert error.finding.explain().splitlines()[-1] == "  Replay: default. Graph: --graph deadlock.dot."


def test_cycle_of_two_different_waits():
    def kernel(x_ref, o_ref, a, b):
        me = axis_index("x")

        @when(me == 0)
        def _():
            semaphore_wait(a)  # for a
            semaphore_signal(b, device_id=1)  # gives b

        @when(me == 1)
        def _():
            semaphore_wait(b)  # for b
            semaphore_signal(a, device_id=0)  # gives a

    _, lines = report(kernel, 2, scratch_shapes=(REGULAR, REGULAR))
    assert lines == [
        "2 of 2 devices",
        f"  device (0,) waits for 1 unit on a (value 0)                          {at('for a')}",
        f"    because device (1,) signals a only at                              {at('gives a')}",
        f"    after its own wait at                                              {at('for b')}",
        f"  device (1,) waits for 1 unit on b (value 0)                          {at('for b')}",
        f"    because device (0,) signals b only at                              {at('gives b')}",
        f"    after its own wait at                                              {at('for a')}",
        "Cycle: (0,) -> (1,) -> (0,). No copy is in flight.",
    ]


def test_wait_before_start():
    def kernel(x_ref, o_ref, sem):
        copy = make_async_copy(x_ref, o_ref, sem)
        copy.wait()  # too early
        copy.start()  # too late

    error, lines = report(kernel, 2, scratch_shapes=(DMA,))
    assert lines == [
        "2 of 2 devices",
        f"  devices (0,)-(1,) each wait for 4096 B on sem (value 0 B)            {at('too early')}",
        f"    because each starts its copy only at                               {at('too late')}",
        "    after the same wait",
        "No copy is in flight.",
    ]
    assert error.finding.details["causes"] == ["cycle"]


def test_no_sender_and_who_waits_behind_it():
    def kernel(x_ref, o_ref, credit):
        me, n = axis_index("x"), axis_size("x")
        semaphore_wait(credit)  # all wait

        @when(me < n - 1)
        def _():
            semaphore_signal(credit, device_id=me + 1)  # but device 0

    error, lines = report(kernel, 4, scratch_shapes=(REGULAR,))
    assert lines == [
        "4 of 4 devices",
        f"  device (0,) waits for 1 unit on credit (value 0)                     {at('all wait')}",
        "    because no device ever signals it",
        f"  devices (1,)-(3,) each wait for 1 unit on credit (value 0)           {at('all wait')}",
        f"    because their left neighbour signals credit only at                {at('but device 0')}",
        "    after the same wait",
        "No copy is in flight.",
    ]
    assert error.finding.details["causes"] == ["cycle", "no-sender"]


def test_short():
    def kernel(x_ref, o_ref, credit):
        right = (axis_index("x") + 1) % axis_size("x")
        semaphore_signal(credit, device_id=right)  # one
        semaphore_wait(credit, 2)  # two

    error, lines = report(kernel, 4, scratch_shapes=(REGULAR,))
    assert lines == [
        "4 of 4 devices",
        f"  devices (0,)-(3,) each wait for 2 units on credit (value 1)          {at('two')}",
        f"    because all signals to it together bring only 1 unit; the last is  {at('one')}",
        "No copy is in flight.",
    ]
    assert error.finding.details["causes"] == ["short"]


def test_semaphore_reused():
    def kernel(x_ref, o_ref, sem):
        make_async_copy(x_ref, o_ref, sem).start()
        make_async_copy(x_ref, o_ref, sem).wait()  # took it
        make_async_copy(x_ref, o_ref, sem).wait()  # finds nothing

    error, lines = report(kernel, 1, scratch_shapes=(DMA,))
    assert lines == [
        "1 of 1 devices",
        f"  device (0,) waits for 4096 B on sem (value 0 B)                      {at('finds nothing')}",
        f"    because an earlier wait took what it got, 4096 B in all            {at('took it')}",
        "No copy is in flight.",
    ]
    assert error.finding.details["causes"] == ["reused"]


def test_wrong_device():
    def kernel(x_ref, o_ref, send, recv):
        me = axis_index("x")

        @when(me == 0)
        def _():
            copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=3)
            copy.start()  # astray
            copy.wait_send()

        @when(me == 1)
        def _():
            make_async_remote_copy(x_ref, o_ref, send, recv, device_id=0).wait_recv()  # in vain

        @when(me == 3)
        def _():
            fori_loop(0, 100, lambda i, c: c, 0)

    error, lines = report(kernel, 4, scratch_shapes=(DMA, DMA), checks="none")
    assert "  device (1,) waits for 4096 B on recv (value 0 B)                     " + at("in vain") in lines
    index = lines.index(f"    because device (0,) adds to that of device (3,) instead,           {at('astray')}")
    assert lines[index + 1] == "    where nobody takes it (value 4096 B)"
    assert "wrong-device" in error.finding.details["causes"]


def test_what_a_device_would_take_later_is_not_astray():
    def kernel(x_ref, o_ref, send, recv):
        me = axis_index("x")
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=(me + 1) % axis_size("x"))

        @when(me != 2)
        def _():
            copy.start()

        copy.wait()  # all of them

    _, lines = report(kernel, 8, scratch_shapes=(DMA, DMA), checks="none")
    nobody = "    because no device ever starts a copy that adds to it"
    assert lines == [
        "2 of 8 devices",
        f"  device (2,) waits for 4096 B on send (value 0 B)                     {at('all of them')}",
        nobody,
        f"  device (3,) waits for 4096 B on recv (value 0 B)                     {at('all of them')}",
        nobody,
        "No copy is in flight.",
    ]


# -- graph ----------------------------------------------------------------------------------------------


def test_the_graph_names_devices_waits_and_the_cycle():
    error, _ = report(credits_after_the_wait, 3, scratch_shapes=(REGULAR,))
    wait, signal = at("waits first"), at("signals then")
    assert error.finding.graph == "\n".join(
        [
            "digraph deadlock {",
            "  node [shape=box];",
            *(f'  d{d} [label="({d},)\\nwaits for 1 on credit\\n{wait}"];' for d in range(3)),
            f'  d0 -> d1 [label="signal at {signal}", color=red];',
            f'  d1 -> d2 [label="signal at {signal}", color=red];',
            f'  d2 -> d0 [label="signal at {signal}", color=red];',
            "}\n",
        ]
    )


def test_the_graph_of_a_wait_that_nobody_ends():
    def kernel(x_ref, o_ref, sem):
        make_async_copy(x_ref, o_ref, sem).wait()  # no start

    error, _ = report(kernel, 1, scratch_shapes=(DMA,))
    assert error.finding.graph == (
        "digraph deadlock {\n  node [shape=box];\n"
        f'  d0 [label="(0,)\\nwaits for 4096 B on sem\\n{at("no start")}"];\n'
        '  c0 [label="nobody adds to it", shape=plaintext];\n  d0 -> c0 [style=dashed];\n}\n'
    )


STUCK = """
import numpy as np
import tpusim
from tpusim import HBM, SemaphoreType, ShapeDtypeStruct, axis_index, axis_size, semaphore_signal, semaphore_wait

@tpusim.kernel(out_shape=ShapeDtypeStruct((8, 128), "float32"), in_specs=HBM, out_specs=HBM,
               scratch_shapes=(SemaphoreType.REGULAR,))
def kernel(x_ref, o_ref, credit):
    semaphore_wait(credit)
    semaphore_signal(credit, device_id=(axis_index("x") - 1) % axis_size("x"))

def inputs(devices=4):
    return np.zeros((8 * devices, 128), np.float32)
"""


def test_the_graph_is_written_on_request(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stuck.py").write_text(STUCK)
    Path("right.py").write_text(STUCK.replace("    semaphore_wait(credit)\n", ""))
    with pytest.raises(SystemExit) as exit_:
        main(["run", "stuck.py", "--mesh", "4", "--graph", "deadlock.dot"])
    assert exit_.value.code == 1
    assert Path("deadlock.dot").read_text().count("color=red") == 4
    assert "  Replay: default. Graph: --graph deadlock.dot." in capfd.readouterr().out.splitlines()
    with pytest.raises(SystemExit):
        main(["run", "right.py", "--mesh", "4", "--graph", "none.dot"])
    assert capfd.readouterr().err == "no graph in none.dot: there is no deadlock\n"
    assert not Path("none.dot").exists()


# -- no trace of the search -------------------------------------------------------------------------------


def test_the_search_for_the_cause_changes_nothing_that_a_result_shows():
    def kernel(x_ref, o_ref, buffer_sem, credit):
        copy = make_async_copy(x_ref, o_ref, buffer_sem)
        copy.start()
        copy.wait()
        semaphore_wait(credit)
        debug_print("never printed")
        copy.start()
        copy.wait()
        semaphore_signal(credit, device_id=1 - axis_index("x"))

    declared = {"mesh": 2, "scratch_shapes": (DMA, REGULAR), "on_finding": "record"}
    result = run(kernel, tiles(2), **declared)
    assert [finding.kind for finding in result.findings] == ["deadlock"]
    assert result.printed == ()
    assert result.outputs is None
    assert result.dmas == 2
    assert not result.is_complete
    assert all(core.blocked is not None and core.blocked.semaphore.value == 0 for core in result.cores)
    assert sum(hbm.busy_bytes for hbm in result.hbms.values()) == 2 * 2 * 4096
    assert 0 <= result.time - result.findings[0].time_ps < 10_000


def test_a_kernel_that_would_run_on_for_ever_is_left_there():
    def kernel(x_ref, o_ref, credit):
        semaphore_wait(credit)

        def step(_, carry):
            semaphore_signal(credit)
            semaphore_wait(credit)
            return carry

        fori_loop(0, 1_000_000_000, step, None)

    _, lines = report(kernel, 2, scratch_shapes=(REGULAR,))
    assert lines[0] == "2 of 2 devices"


def test_a_kernel_that_would_fail_after_its_wait_is_reported_all_the_same():
    runs = []

    def kernel(x_ref, o_ref, credit):
        runs.append(1)
        semaphore_wait(credit)
        if len(runs) > 1:  # not in the pass over the code
            raise ZeroDivisionError

    _, lines = report(kernel, 2, scratch_shapes=(REGULAR,))
    assert lines[2] == "    because no device ever signals it"
