"""Errors of synchronisation, each message whole: deadlock, race, lifetime, leak, unwaited, livelock."""

from __future__ import annotations

import pytest
from simulating import TILE, Lines, error_of, run, tiles

from tpusim import (
    HBM,
    VMEM,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    axis_size,
    delay,
    fori_loop,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    run_scoped,
    semaphore_signal,
    semaphore_wait,
    when,
)
from tpusim.errors import (
    DeadlockError,
    InterruptedRunError,
    LeakError,
    LifetimeError,
    LivelockError,
    RaceError,
    UnwaitedError,
)

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
at = Lines(__file__)


# -- deadlock -----------------------------------------------------------------------------------------


def test_deadlock_because_nobody_sends():
    def kernel(x_ref, o_ref, sem):
        make_async_copy(x_ref, o_ref, sem).wait()  # wait without a start

    error = error_of(DeadlockError, kernel, tiles(), scratch_shapes=(DMA,))
    assert str(error) == "SHOW"


def test_deadlock_because_a_sender_sends_less_than_the_wait_takes():
    def kernel(x_ref, o_ref, sem):
        make_async_copy(x_ref.at[0:4], o_ref.at[0:4], sem).start()  # half of it
        make_async_copy(x_ref, o_ref, sem).wait()  # all of it

    error = error_of(DeadlockError, kernel, tiles(), scratch_shapes=(DMA,))
    assert str(error) == "SHOW"


def test_deadlock_because_the_copy_goes_to_another_device():
    def kernel(x_ref, o_ref, send, recv):
        @when(axis_index("x") == 0)
        def _():
            copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=2)
            copy.start()  # to device 2
            copy.wait_send()

        @when(axis_index("x") == 1)
        def _():
            make_async_remote_copy(x_ref, o_ref, send, recv, device_id=0).wait_recv()  # on device 1

    error = error_of(DeadlockError, kernel, tiles(4), mesh=4, scratch_shapes=(DMA, DMA))
    assert str(error) == "SHOW"


def test_deadlock_of_one_device_among_many():
    def kernel(x_ref, o_ref, send, recv):
        me, n = axis_index("x"), axis_size("x")
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=(me + 1) % n)

        @when(me < n - 1)
        def _():
            copy.start()
            copy.wait_send()

        copy.wait_recv()  # device 0 has no sender

    error = error_of(DeadlockError, kernel, tiles(8), mesh=8, scratch_shapes=(DMA, DMA))
    assert str(error) == "SHOW"


def test_deadlock_of_two_devices_in_a_cycle():
    def kernel(x_ref, o_ref, credit):
        other = 1 - axis_index("x")
        semaphore_signal(credit, device_id=other)
        semaphore_wait(credit)
        semaphore_wait(credit)  # second credit
        semaphore_signal(credit, device_id=other)

    error = error_of(DeadlockError, kernel, tiles(2), mesh=2, scratch_shapes=(REGULAR,))
    assert str(error) == "SHOW"


# -- race ---------------------------------------------------------------------------------------------

BUFFER = VMEM((8, 128), "float32")


def test_race_of_a_load_with_the_copy_that_fills_the_place():
    def kernel(x_ref, o_ref, buffer, sem):
        copy = make_async_copy(x_ref, buffer, sem)
        copy.start()  # fill
        buffer[0, 0]  # early load
        copy.wait()

    error = error_of(RaceError, kernel, tiles(), scratch_shapes=(BUFFER, DMA))
    assert str(error) == "SHOW"


def test_race_of_a_store_with_the_copy_that_fills_the_place():
    def kernel(x_ref, o_ref, buffer, sem):
        copy = make_async_copy(x_ref, buffer, sem)
        copy.start()  # fill 2
        buffer[4:8, :] = 0.0  # early store
        copy.wait()

    error = error_of(RaceError, kernel, tiles(), scratch_shapes=(BUFFER, DMA))
    assert str(error) == "SHOW"


def test_race_of_a_store_with_a_copy_that_still_reads_the_place():
    def kernel(x_ref, o_ref, buffer, sem):
        buffer[...] = 1.0
        copy = make_async_copy(buffer, o_ref, sem)
        copy.start()  # drain
        buffer[...] = 2.0  # store under the reader
        copy.wait()

    error = error_of(RaceError, kernel, tiles(), scratch_shapes=(BUFFER, DMA))
    assert str(error) == "SHOW"


def test_race_of_two_copies_to_one_place():
    def kernel(x_ref, o_ref, sems):
        first = make_async_copy(x_ref.at[0:4], o_ref.at[0:4], sems.at[0])
        second = make_async_copy(x_ref.at[2:6], o_ref.at[2:6], sems.at[1])
        first.start()  # first
        second.start()  # second
        first.wait()
        second.wait()

    error = error_of(RaceError, kernel, tiles(), scratch_shapes=(DMA((2,)),))
    assert str(error) == "SHOW"


def test_race_of_two_devices_that_send_to_one_place():
    def kernel(x_ref, o_ref, send, recv):
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=0)
        copy.start()  # both send
        copy.wait_send()

        @when(axis_index("x") == 0)
        def _():
            copy.wait_recv()
            copy.wait_recv()

    error = error_of(RaceError, kernel, tiles(2), mesh=2, scratch_shapes=(DMA, DMA))
    assert str(error) == "SHOW"


def test_race_of_a_copy_from_the_place_that_another_fills():
    def kernel(x_ref, o_ref, buffer, sem):
        make_async_copy(x_ref, buffer, sem).start()  # fill 3
        make_async_copy(buffer, o_ref, sem).start()  # pass on too early

    error = error_of(RaceError, kernel, tiles(), scratch_shapes=(BUFFER, DMA))
    assert str(error) == "SHOW"


@pytest.mark.parametrize(("source", "target"), [((0, 4), (2, 6)), ((0, 8), (0, 8))])
def test_race_of_a_copy_that_overlaps_itself(source, target):
    def kernel(x_ref, o_ref, buffer, sem):
        buffer[...] = 1.0
        a, b = buffer.at[slice(*source)], buffer.at[slice(*target)]
        make_async_copy(a, b, sem).start()  # onto itself

    error = error_of(RaceError, kernel, tiles(), scratch_shapes=(BUFFER, DMA))
    assert str(error) == "SHOW"


# -- lifetime -----------------------------------------------------------------------------------------


def test_lifetime_of_a_remote_copy_to_a_device_that_has_left():
    def kernel(x_ref, o_ref, send, recv):
        @when(axis_index("x") == 0)
        def _():
            delay(10_000)
            copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=1)
            copy.start()  # to a device that has left
            copy.wait_send()

    error = error_of(LifetimeError, kernel, tiles(2), mesh=2, scratch_shapes=(DMA, DMA))
    assert str(error) == "SHOW"


def test_lifetime_of_a_remote_copy_whose_target_leaves_before_it_lands():
    def kernel(x_ref, o_ref, send, recv):
        @when(axis_index("x") == 0)
        def _():
            copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=1)
            copy.start()  # target leaves meanwhile
            copy.wait_send()

    error = error_of(LifetimeError, kernel, tiles(2), mesh=2, scratch_shapes=(DMA, DMA))
    assert str(error) == "SHOW"


def test_lifetime_of_a_signal_to_a_device_that_has_left():
    def kernel(x_ref, o_ref, credit):
        @when(axis_index("x") == 0)
        def _():
            semaphore_signal(credit, device_id=1)  # signal nobody takes

    error = error_of(LifetimeError, kernel, tiles(2), mesh=2, scratch_shapes=(REGULAR,))
    assert str(error) == "SHOW"


def test_lifetime_of_a_copy_in_flight_when_its_scope_ends():
    def kernel(x_ref, o_ref, sem):
        def body(buffer):
            make_async_copy(x_ref, buffer, sem).start()  # into the scope

        run_scoped(body, BUFFER)  # the scope ends

    error = error_of(LifetimeError, kernel, tiles(), scratch_shapes=(DMA,))
    assert str(error) == "SHOW"


def test_lifetime_of_a_copy_out_of_a_scope_that_ends():
    def kernel(x_ref, o_ref, sem):
        def body(buffer):
            buffer[...] = 1.0
            make_async_copy(buffer, o_ref, sem).start()  # out of the scope

        run_scoped(body, BUFFER)  # the other scope ends

    error = error_of(LifetimeError, kernel, tiles(), scratch_shapes=(DMA,))
    assert str(error) == "SHOW"


def test_lifetime_of_a_remote_copy_to_a_scope_that_its_owner_has_left():
    def kernel(x_ref, o_ref, send, recv):
        me = axis_index("x")

        def body(buffer):
            @when(me == 0)
            def _():
                buffer[...] = 1.0
                delay(10_000)
                copy = make_async_remote_copy(buffer, buffer, send, recv, device_id=1)
                copy.start()  # into a scope of the past
                copy.wait_send()

        run_scoped(body, BUFFER)

        @when(me == 1)
        def _():
            make_async_copy(x_ref, o_ref, recv).wait()

    error = error_of(LifetimeError, kernel, tiles(2), mesh=2, scratch_shapes=(DMA, DMA))
    assert str(error) == "SHOW"


# -- leak, unwaited -----------------------------------------------------------------------------------


def test_leak_of_a_regular_semaphore():
    def kernel(x_ref, o_ref, credit):
        semaphore_signal(credit, 3)  # three
        semaphore_wait(credit)

    error = error_of(LeakError, kernel, tiles(4), mesh=4, scratch_shapes=(REGULAR,))
    assert str(error) == "SHOW"


def test_leak_of_a_barrier_semaphore():
    def kernel(x_ref, o_ref):
        semaphore_signal(get_barrier_semaphore())  # barrier signal

    error = error_of(LeakError, kernel, tiles(), collective_id=3)
    assert str(error) == "SHOW"


def test_unwaited_copy():
    def kernel(x_ref, o_ref, sem):
        make_async_copy(x_ref, o_ref, sem).start()  # never waited for

    error = error_of(UnwaitedError, kernel, tiles(4), mesh=4, scratch_shapes=(DMA,))
    assert str(error) == "SHOW"


def test_unwaited_send_leg():
    def kernel(x_ref, o_ref, send, recv):
        other = 1 - axis_index("x")
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=other)
        copy.start()  # waited for on one side
        copy.wait_recv()

    error = error_of(UnwaitedError, kernel, tiles(2), mesh=2, scratch_shapes=(DMA, DMA))
    assert str(error) == "SHOW"


def test_leak_where_waits_took_no_whole_copies():
    def kernel(x_ref, o_ref, sem):
        make_async_copy(x_ref, o_ref, sem).start()  # eight rows
        make_async_copy(x_ref.at[0:3], o_ref.at[0:3], sem).wait()

    error = error_of(LeakError, kernel, tiles(), scratch_shapes=(DMA,))
    assert str(error) == "SHOW"


# -- livelock -----------------------------------------------------------------------------------------


def spin(x_ref, o_ref, credit):
    def step(_, carry):
        semaphore_signal(credit)
        semaphore_wait(credit)  # turn
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
    assert str(error) == "SHOW"


def test_livelock_past_max_time():
    error = error_of(LivelockError, busy_copies, tiles(), scratch_shapes=(DMA,), max_time=20)
    assert str(error) == "SHOW"


def test_livelock_of_a_core_that_never_leaves_its_own_clock():
    error = error_of(LivelockError, spin, tiles(), scratch_shapes=(REGULAR,), max_time=20)
    assert str(error) == "SHOW"


def test_interrupt_tells_where_every_device_is():
    def kernel(x_ref, o_ref, sem):
        me = axis_index("x")

        @when(me == 1)
        def _():
            delay(5_000)
            make_async_copy(x_ref, o_ref, sem).start()
            make_async_copy(x_ref, o_ref, sem).wait()
            raise KeyboardInterrupt

        make_async_copy(x_ref, o_ref, sem).wait()  # meanwhile

    error = error_of(InterruptedRunError, kernel, tiles(2), mesh=2, scratch_shapes=(DMA,))
    assert isinstance(error, KeyboardInterrupt)
    assert str(error) == "SHOW"
