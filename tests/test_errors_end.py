"""Errors of how a run ends, each message whole: leak, unwaited, livelock, Ctrl-C."""

from __future__ import annotations

import re

import pytest
from simulating import TILE, Lines, error_of, tiles

import tpusim
from tpusim import (
    HBM,
    SemaphoreType,
    axis_index,
    delay,
    fori_loop,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    np,
    semaphore_signal,
    semaphore_wait,
)
from tpusim.errors import (
    InterruptedRunError,
    LeakError,
    LivelockError,
    UnwaitedError,
)
from tpusim.units import Duration

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
at = Lines(__file__)


# -- leak, unwaited -------------------------------------------------------------------------------------


def test_leak_of_a_regular_semaphore():
    def kernel(x_ref, o_ref, credit):
        semaphore_signal(credit, 3)  # three
        semaphore_wait(credit)

    error = error_of(LeakError, kernel, tiles(4), mesh=4, scratch_shapes=(REGULAR,))
    assert str(error) == (
        "credit is left at 2 on devices (0,)-(3,) when the kernel exits: it got 3 in all and waits took 1; "
        f"last added to at {at('three')}."
    )


def test_leak_of_a_barrier_semaphore():
    def kernel(x_ref, o_ref):
        semaphore_signal(get_barrier_semaphore())  # barrier signal

    error = error_of(LeakError, kernel, tiles(), collective_id=3)
    assert str(error) == (
        "barrier (collective_id 3) is left at 1 on device (0,) when the kernel exits: it got 1 in all and "
        f"waits took 0; last added to at {at('barrier signal')}."
    )


def test_unwaited_copy():
    def kernel(x_ref, o_ref, sem):
        make_async_copy(x_ref, o_ref, sem).start()  # never waited for

    error = error_of(UnwaitedError, kernel, tiles(4), mesh=4, scratch_shapes=(DMA,))
    assert str(error) == (
        "sem is left at 4096 B on devices (0,)-(3,) when the kernel exits: no wait() for the copy from "
        f"x_ref to o_ref started at {at('never waited for')}."
    )


def test_unwaited_send_leg():
    def kernel(x_ref, o_ref, send, recv):
        other = 1 - axis_index("x")
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=other)
        copy.start()  # waited for on one side
        copy.wait_recv()

    error = error_of(UnwaitedError, kernel, tiles(2), mesh=2, scratch_shapes=(DMA, DMA))
    assert str(error) == (
        "send is left at 4096 B on devices (0,)-(1,) when the kernel exits: no wait_send() for the copy "
        f"from x_ref to o_ref started at {at('waited for on one side')}."
    )


def test_leak_where_waits_took_no_whole_copies():
    def kernel(x_ref, o_ref, sem):
        make_async_copy(x_ref, o_ref, sem).start()  # eight rows
        make_async_copy(x_ref.at[0:3], o_ref.at[0:3], sem).wait()

    error = error_of(LeakError, kernel, tiles(), scratch_shapes=(DMA,))
    assert str(error) == (
        "sem is left at 2560 B on device (0,) when the kernel exits: it got 4096 B in all and waits took "
        f"1536 B; last added to at {at('eight rows')}."
    )


# -- livelock -------------------------------------------------------------------------------------------


def spin(x_ref, o_ref, credit):
    def step(_, carry):
        semaphore_signal(credit)  # its own credit
        semaphore_wait(credit)
        return carry

    fori_loop(0, 1_000_000_000, step, None)


def busy_copies(x_ref, o_ref, sem):
    def step(_, carry):
        copy = make_async_copy(x_ref, o_ref, sem)
        copy.start()
        copy.wait()  # copy after copy
        return carry

    fori_loop(0, 1_000_000_000, step, None)


def test_livelock_past_max_events():
    error = error_of(LivelockError, busy_copies, tiles(2), mesh=2, scratch_shapes=(DMA,), max_events=500)
    assert str(error) == (
        f"the run passed max_events = 500; t = {Duration(error.finding.time_ps)}, 500 events.\n"
        f"  device (0,): waits for 4096 B on sem (value 0 B)  {at('copy after copy')}\n"
        f"  device (1,): waits for 4096 B on sem (value 0 B)  {at('copy after copy')}"
    )


def _endless_delay(x_ref, o_ref):
    while True:
        delay(1)


def _endless_load(x_ref, o_ref):
    while True:
        x_ref[...]


def _endless_store(x_ref, o_ref):
    while True:
        o_ref[...] = np.full((8, 128), 1.0, "float32")


def _endless_self_signal(x_ref, o_ref, sem):
    while True:
        semaphore_signal(sem, 1)
        semaphore_wait(sem, 1)


@pytest.mark.parametrize(
    ("kernel", "declared"),
    [
        (_endless_delay, {}),
        (_endless_load, {}),
        (_endless_store, {}),
        (_endless_self_signal, {"scratch_shapes": (REGULAR,)}),
    ],
)
def test_a_loop_that_only_its_own_device_sees_is_given_up_at_both_limits(kernel, declared):
    declared = {"in_specs": None, "out_specs": None, **declared}
    past_events = error_of(LivelockError, kernel, tiles(), max_events=300, **declared)
    assert str(past_events).startswith("one device alone did more than max_events = 300 operations; t = ")
    past_time = error_of(LivelockError, kernel, tiles(), max_time=20, **declared)
    assert str(past_time).startswith("the run passed max_time = 20.000 us; t = 20.0")


def test_livelock_past_max_time():
    error = error_of(LivelockError, busy_copies, tiles(), scratch_shapes=(DMA,), max_time=20)
    assert re.sub(r"\b\d+ events", "N events", str(error)) == (
        f"the run passed max_time = 20.000 us; t = {Duration(error.finding.time_ps)}, N events.\n"
        f"  device (0,): waits for 4096 B on sem (value 0 B)  {at('copy after copy')}"
    )


def test_livelock_of_a_core_that_never_leaves_its_own_clock():
    error = error_of(LivelockError, spin, tiles(), scratch_shapes=(REGULAR,), max_time=20)
    now = Duration(error.finding.time_ps)
    assert str(error) == (
        f"the run passed max_time = 20.000 us; t = {now}, 0 events.  [{at('its own credit')}]\n"
        f"  device (0,): running, its clock at {now}"
    )


def test_interrupt_tells_where_every_device_is():
    runs = []

    def kernel(x_ref, o_ref, sem):
        runs.append(1)
        copy = make_async_copy(x_ref, o_ref, sem)
        copy.start()
        copy.wait()  # both
        if len(runs) == 3:  # one pass over the code, then a run on each of two devices
            raise KeyboardInterrupt  # here

    error = error_of(InterruptedRunError, kernel, tiles(2), mesh=2, scratch_shapes=(DMA,))
    assert isinstance(error, KeyboardInterrupt)
    now = Duration(error.finding.time_ps)
    assert re.sub(r"\b\d+ events", "N events", str(error)) == (
        f"interrupted; t = {now}, N events.\n"
        f"  device (0,): running, its clock at {now}  {at('here')}\n"
        f"  device (1,): waits for 4096 B on sem (value 0 B)  {at('both')}"
    )


def test_a_leak_of_several_calls_names_each_device_once():
    def kernel(x_ref, o_ref, credit):
        semaphore_signal(credit)  # left in each call

    declared = tpusim.Kernel(kernel, out_shape=TILE, in_specs=HBM, out_specs=HBM, scratch_shapes=(REGULAR,))
    verdict = declared.verify(tiles(4), mesh=4, calls=2)
    leaks = [finding for finding in verdict.findings if finding.kind == "leak"]
    assert [leak.message for leak in leaks] == [
        "credit is left at 1 on devices (0,)-(3,) when the kernel exits: it got 1 in all and waits took 0; "
        f"last added to at {at('left in each call')}."
    ]
    assert leaks[0].details["devices"] == 4
