"""Errors of synchronisation that the machine itself meets, each message whole: deadlock, race, lifetime.

Lifetimes are tested without the judge of the observed schedule, which is stricter and would come first.
"""

from __future__ import annotations

import pytest
from simulating import Lines, error_of, tiles

import tpusim
from tpusim import (
    VMEM,
    SemaphoreType,
    axis_index,
    axis_size,
    delay,
    make_async_copy,
    make_async_remote_copy,
    run_scoped,
    semaphore_signal,
    semaphore_wait,
    when,
)
from tpusim.errors import (
    DeadlockError,
    LifetimeError,
    RaceError,
)
from tpusim.units import Duration

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
at = Lines(__file__)
IN_VMEM = tpusim.VMEM


def ones():
    return tpusim.np.ones((8, 128), "float32")


# -- deadlock -------------------------------------------------------------------------------------------


def test_deadlock_because_nobody_sends():
    def kernel(x_ref, o_ref, sem):
        make_async_copy(x_ref, o_ref, sem).wait()  # wait without a start

    error = error_of(DeadlockError, kernel, tiles(), scratch_shapes=(DMA,))
    assert str(error) == (
        "1 of 1 devices can never proceed (t = 0 ps, default schedule).\n"
        f"  device (0,) waits for 4096 B on sem (value 0 B)                      {at('wait without a start')}\n"
        "    because no device ever starts a copy that adds to it\n"
        "No copy is in flight."
    )


def test_deadlock_because_a_sender_sends_less_than_the_wait_takes():
    def kernel(x_ref, o_ref, sem):
        make_async_copy(x_ref.at[0:4], o_ref.at[0:4], sem).start()  # half of it
        make_async_copy(x_ref, o_ref, sem).wait()  # all of it

    error = error_of(DeadlockError, kernel, tiles(), scratch_shapes=(DMA,))
    assert str(error) == (
        f"1 of 1 devices can never proceed (t = {Duration(error.finding.time_ps)}, default schedule).\n"
        f"  device (0,) waits for 4096 B on sem (value 2048 B)                   {at('all of it')}\n"
        f"    because all copies to it together bring only 2048 B; the last is   {at('half of it')}\n"
        "No copy is in flight."
    )


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

        @when(axis_index("x") == 2)
        def _():
            delay(10_000)

    error = error_of(DeadlockError, kernel, tiles(4), mesh=4, scratch_shapes=(DMA, DMA), checks="none")
    assert str(error) == (
        f"1 of 4 devices can never proceed (t = {Duration(error.finding.time_ps)}, default schedule).\n"
        f"  device (1,) waits for 4096 B on recv (value 0 B)                     {at('on device 1')}\n"
        f"    because device (0,) adds to that of device (2,) instead,           {at('to device 2')}\n"
        "    where nobody takes it (value 4096 B)\n"
        "No copy is in flight."
    )


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
    assert str(error) == (
        f"1 of 8 devices can never proceed (t = {Duration(error.finding.time_ps)}, default schedule).\n"
        f"  device (0,) waits for 4096 B on recv (value 0 B)                     {at('device 0 has no sender')}\n"
        "    because no device ever starts a copy that adds to it\n"
        "No copy is in flight."
    )


def test_deadlock_of_two_devices_in_a_cycle():
    def kernel(x_ref, o_ref, credit):
        other = 1 - axis_index("x")
        semaphore_signal(credit, device_id=other)
        semaphore_wait(credit)
        semaphore_wait(credit)  # second credit
        semaphore_signal(credit, device_id=other)  # last credit

    error = error_of(DeadlockError, kernel, tiles(2), mesh=2, scratch_shapes=(REGULAR,))
    assert str(error) == (
        f"2 of 2 devices can never proceed (t = {Duration(error.finding.time_ps)}, default schedule).\n"
        f"  devices (0,)-(1,) each wait for 1 unit on credit (value 0)           {at('second credit')}\n"
        f"    because the other device signals credit only at                    {at('last credit')}\n"
        "    after the same wait\n"
        "Cycle: (0,) -> (1,) -> (0,). No copy is in flight."
    )


# -- race -----------------------------------------------------------------------------------------------

BUFFER = VMEM((8, 128), "float32")


def test_race_of_a_load_with_the_copy_that_fills_the_place():
    def kernel(x_ref, o_ref, buffer, sem):
        copy = make_async_copy(x_ref, buffer, sem)
        copy.start()  # fill
        buffer[0, 0]  # early load
        copy.wait()

    error = error_of(RaceError, kernel, tiles(), scratch_shapes=(BUFFER, DMA))
    assert str(error) == (
        f"load of buffer[0, 0] on device (0,) meets a copy in flight that writes buffer. The copy at {at('fill')} "
        f"has to be waited for first.  [{at('early load')}]"
    )


def test_race_of_a_store_with_the_copy_that_fills_the_place():
    def kernel(x_ref, o_ref, buffer, sem):
        copy = make_async_copy(x_ref, buffer, sem)
        copy.start()  # fill 2
        buffer[4, 0] = 0.0  # early store
        copy.wait()

    error = error_of(RaceError, kernel, tiles(), scratch_shapes=(BUFFER, DMA))
    assert str(error) == (
        "store to buffer[4, 0] on device (0,) meets a copy in flight that writes buffer. The copy at "
        f"{at('fill 2')} has to be waited for first.  [{at('early store')}]"
    )


def test_race_of_a_store_with_a_copy_that_still_reads_the_place():
    def kernel(x_ref, o_ref, buffer, sem):
        buffer[...] = ones()
        copy = make_async_copy(buffer, o_ref, sem)
        copy.start()  # drain
        buffer[0, 0] = 2.0  # store under the reader
        copy.wait()

    error = error_of(RaceError, kernel, tiles(), scratch_shapes=(BUFFER, DMA))
    assert str(error) == (
        f"store to buffer[0, 0] on device (0,) meets a copy in flight that reads buffer. The copy at {at('drain')} has "
        f"to be waited for first.  [{at('store under the reader')}]"
    )


def test_race_of_two_copies_to_one_place():
    def kernel(x_ref, o_ref, sems):
        first = make_async_copy(x_ref.at[0:4], o_ref.at[0:4], sems.at[0])
        second = make_async_copy(x_ref.at[2:6], o_ref.at[2:6], sems.at[1])
        first.start()  # first
        second.start()  # second
        first.wait()
        second.wait()

    error = error_of(RaceError, kernel, tiles(), scratch_shapes=(DMA((2,)),))
    assert str(error) == (
        "copy to o_ref[2:6] on device (0,) meets a copy in flight that writes o_ref[0:4]. The copy at "
        f"{at('first')} has to be waited for first.  [{at('second')}]"
    )


def test_race_of_two_devices_that_send_to_one_place():
    def kernel(x_ref, o_ref, send, recv):
        me = axis_index("x")
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=0)

        @when(me > 1)
        def _():
            copy.start()  # both send
            copy.wait_send()

        @when(me == 0)
        def _():
            copy.wait_recv()
            copy.wait_recv()

    error = error_of(RaceError, kernel, tiles(4), mesh=4, scratch_shapes=(DMA, DMA))
    assert str(error) == (
        "copy to o_ref on device (0,) meets a copy in flight by device (3,) that writes o_ref. Device (0,) has to wait "
        f"for the copy at {at('both send')} first and then to let device (2,) know, by a barrier or a signal, before "
        "this copy starts."
    )


@pytest.mark.parametrize("access", ["load", "store"])
def test_race_of_an_access_that_a_neighbour_was_not_told_of(access):
    """What is missing may be the wait, or the barrier that keeps the neighbour from starting."""

    def kernel(x_ref, o_ref, send, recv):
        me = axis_index("x")
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=1 - me)

        @when(me == 0)
        def _():
            copy.start()  # comes unasked
            copy.wait_send()

        @when(me == 1)
        def _():
            delay(1250)
            if access == "store":
                o_ref[0, :] = ones()[0]  # access
            else:
                o_ref[0, :]  # access
            copy.wait_recv()

    declared = {"mesh": 2, "scratch_shapes": (DMA, DMA), "in_specs": IN_VMEM, "out_specs": IN_VMEM}
    error = error_of(RaceError, kernel, tiles(2), **declared)
    way = "store to" if access == "store" else "load of"
    assert str(error).rpartition("  [")[0] == (
        f"{way} o_ref[0] on device (1,) meets a copy in flight by device (0,) that writes o_ref. Device (1,) does not "
        f"wait for the copy at {at('comes unasked')} before this {access}, and there is no barrier between this "
        f"{access} and that copy, nor another signal that lets device (0,) know: one of them has to be there."
    )


def test_race_of_a_copy_from_the_place_that_another_fills():
    def kernel(x_ref, o_ref, buffer, sem):
        make_async_copy(x_ref, buffer, sem).start()  # fill 3
        make_async_copy(buffer, o_ref, sem).start()  # pass on too early

    error = error_of(RaceError, kernel, tiles(), scratch_shapes=(BUFFER, DMA))
    assert str(error) == (
        f"copy from buffer on device (0,) meets a copy in flight that writes buffer. The copy at {at('fill 3')} "
        f"has to be waited for first.  [{at('pass on too early')}]"
    )


@pytest.mark.parametrize(
    ("rows", "says"), [((0, 4, 2, 6), "buffer[0:4] to buffer[2:6]"), ((0, 8, 0, 8), "buffer to buffer")]
)
def test_race_of_a_copy_that_overlaps_itself(rows, says):
    def kernel(x_ref, o_ref, buffer, sem):
        buffer[...] = ones()
        a, b, c, d = rows
        make_async_copy(buffer.at[a:b], buffer.at[c:d], sem).start()  # onto itself

    error = error_of(RaceError, kernel, tiles(), scratch_shapes=(BUFFER, DMA))
    assert str(error) == (
        f"copy from {says} on device (0,): source and destination overlap, and nothing says in "
        f"which order the bytes move.  [{at('onto itself')}]"
    )


# -- lifetime -------------------------------------------------------------------------------------------


def test_lifetime_of_a_remote_copy_to_a_device_that_has_left():
    def kernel(x_ref, o_ref, send, recv):
        @when(axis_index("x") == 0)
        def _():
            delay(10_000)
            copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=1)
            copy.start()  # to a device that has left
            copy.wait_send()

    error = error_of(LifetimeError, kernel, tiles(2), mesh=2, scratch_shapes=(DMA, DMA), checks="none")
    assert str(error) == (
        "a copy from x_ref on device (0,) reaches o_ref on device (1,) outside the call or run_scoped that "
        f"owns it: a wait for it, or a barrier, has to keep the target there.  [{at('to a device that has left')}]"
    )


def test_lifetime_of_a_remote_copy_whose_target_leaves_before_it_lands():
    def kernel(x_ref, o_ref, send, recv):
        @when(axis_index("x") == 0)
        def _():
            copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=1)
            copy.start()  # target leaves meanwhile
            copy.wait_send()

    error = error_of(LifetimeError, kernel, tiles(2), mesh=2, scratch_shapes=(DMA, DMA), checks="none")
    assert str(error) == (
        "device (1,) leaves the kernel while a copy from x_ref on device (0,) to o_ref on device (1,) is "
        f"in flight: wait for the copy first.  [{at('target leaves meanwhile')}]"
    )


def test_lifetime_of_a_signal_to_a_device_that_has_left():
    def kernel(x_ref, o_ref, credit):
        @when(axis_index("x") == 0)
        def _():
            semaphore_signal(credit, device_id=1)  # signal nobody takes

    error = error_of(LifetimeError, kernel, tiles(2), mesh=2, scratch_shapes=(REGULAR,), checks="none")
    assert str(error) == (
        "a signal from device (0,) reaches credit on device (1,) outside the call or run_scoped that owns "
        f"it: a wait for it, or a barrier, has to keep the target there.  [{at('signal nobody takes')}]"
    )


def test_lifetime_of_a_copy_in_flight_when_its_scope_ends():
    def kernel(x_ref, o_ref, sem):
        def body(buffer):
            make_async_copy(x_ref, buffer, sem).start()  # into the scope

        run_scoped(body, BUFFER)  # the scope ends

    error = error_of(LifetimeError, kernel, tiles(), scratch_shapes=(DMA,), checks="none")
    assert str(error) == (
        "the run_scoped of buffer ends on device (0,) while a copy from x_ref to buffer on device (0,) is "
        f"in flight: wait for the copy first.  [{at('into the scope')}]"
    )


def test_lifetime_of_a_copy_out_of_a_scope_that_ends():
    def kernel(x_ref, o_ref, sem):
        def body(buffer):
            buffer[...] = ones()
            make_async_copy(buffer, o_ref, sem).start()  # out of the scope

        run_scoped(body, BUFFER)  # the other scope ends

    error = error_of(LifetimeError, kernel, tiles(), scratch_shapes=(DMA,), checks="none")
    assert str(error) == (
        "the run_scoped of buffer ends on device (0,) while a copy from buffer to o_ref on device (0,) is "
        f"in flight: wait for the copy first.  [{at('out of the scope')}]"
    )


def test_lifetime_of_a_remote_copy_to_a_scope_that_its_owner_has_left():
    def kernel(x_ref, o_ref, send, recv):
        me = axis_index("x")

        def body(buffer):
            @when(me == 0)
            def _():
                buffer[...] = ones()
                delay(10_000)
                copy = make_async_remote_copy(buffer, buffer, send, recv, device_id=1)
                copy.start()  # into a scope of the past
                copy.wait_send()

        run_scoped(body, BUFFER)

        @when(me == 1)
        def _():
            make_async_copy(x_ref, o_ref, recv).wait()

    error = error_of(LifetimeError, kernel, tiles(2), mesh=2, scratch_shapes=(DMA, DMA), checks="none")
    assert str(error) == (
        "a copy from buffer on device (0,) reaches buffer on device (1,) outside the call or run_scoped "
        "that owns it: a wait for it, or a barrier, has to keep the target there.  "
        f"[{at('into a scope of the past')}]"
    )
