"""Races that one observed schedule shows although its data are right, each reported once."""

from __future__ import annotations

import numpy as np
import pytest
from racing import BUFFER, MISSING, SLOTS, let_it_pass, meet, neighbours, pairs, record
from simulating import Lines, error_of, run, tiles

from tpusim import (
    HBM,
    VMEM,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    axis_size,
    delay,
    make_async_copy,
    make_async_remote_copy,
    semaphore_signal,
    semaphore_wait,
    when,
)
from tpusim import np as tnp
from tpusim.errors import OptionError, RaceError
from tpusim.findings import Kind

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
at = Lines(__file__)


def initialises_what_the_other_writes(x_ref, o_ref, send, recv):
    other = 1 - axis_index("x")
    o_ref[...] = tnp.zeros((8, 128), "float32")  # initialise
    let_it_pass(send)
    copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=other)
    copy.start()  # into the output
    copy.wait()


def test_store_and_incoming_copy_without_a_barrier_between():
    findings, outputs = record(
        initialises_what_the_other_writes, tiles(2), mesh=2, scratch_shapes=(DMA, DMA), in_specs=VMEM, out_specs=VMEM
    )
    np.testing.assert_array_equal(outputs[0], np.roll(tiles(2), 8, 0))
    assert [f.kind for f in findings] == [Kind.RACE]
    assert findings[0].message == (
        "copy to o_ref on device (1,) started by device (0,) can overlap in time with the store to o_ref by device "
        f"(1,) at {at('initialise')}: nothing that device (1,) signals or sends after it has certainly reached "
        f"device (0,); {MISSING}"
    )
    assert (str(findings[0].where), str(findings[0].other)) == (at("into the output"), at("initialise"))
    assert findings[0].details["devices"] == 2
    assert findings[0].argument == "o_ref"


def ring_without_credits(x_ref, o_ref, comm, local, send, recv):
    n, me = axis_size("x"), axis_index("x")
    left, right = neighbours()
    meet(left, right)
    for target in (o_ref.at[me], comm.at[0]):
        first = make_async_copy(x_ref, target, local)
        first.start()  # first in
        first.wait()
    for step in range(n - 1):
        here, there = step % 2, (step + 1) % 2
        copy = make_async_remote_copy(comm.at[here], comm.at[there], send.at[here], recv.at[there], device_id=right)
        copy.start()  # into a slot
        copy.wait()
        out = make_async_copy(comm.at[there], o_ref.at[(me - step - 1) % n], local)
        out.start()  # out of a slot
        out.wait()


def test_ring_slot_overwritten_without_credit_is_found_although_lock_step_hides_it():
    n = 4
    findings, outputs = record(
        ring_without_credits,
        tiles(n),
        mesh=n,
        out_shape=ShapeDtypeStruct((n, 8, 128), "float32"),
        scratch_shapes=(SLOTS, DMA, DMA((2,)), DMA((2,))),
        collective_id=1,
    )
    np.testing.assert_array_equal(outputs[0].reshape(n, n * 8, 128), [tiles(n)] * n)
    assert {f.kind for f in findings} == {Kind.RACE}
    into, out = at("into a slot"), at("out of a slot")
    assert pairs(findings) == {frozenset((into,)), frozenset((into, out)), frozenset((into, at("first in")))}
    assert [f.message for f in findings] == [
        f"copy to {slot} on device (1,) started by device (0,) can overlap in time with the copy started by device "
        f"(1,) that {verb} {slot} at {at(place)}: device (1,) waits for it, but nothing that it signals or sends after "
        f"that has certainly reached device (0,); {MISSING}"
        for slot, verb, place in [
            ("comm[0]", "writes", "first in"),
            ("comm[0]", "reads", "into a slot"),
            ("comm[1]", "reads", "out of a slot"),
        ]
    ]
    assert all(f.details["devices"] == n for f in findings)


def two_copies_one_semaphore(a_ref, b_ref, o_ref, buffer, sem):
    first = make_async_copy(a_ref, buffer.at[0], sem)
    second = make_async_copy(b_ref, buffer.at[1], sem)
    first.start()  # the first
    second.start()
    first.wait()
    let_it_pass(sem)
    value = buffer[0]  # too early
    second.wait()
    o_ref[...] = value + buffer[1]


def test_two_copies_on_one_semaphore_and_one_wait():
    declared = {"scratch_shapes": (SLOTS, DMA), "out_specs": VMEM, "in_specs": (HBM, HBM)}
    findings, outputs = record(two_copies_one_semaphore, tiles(), tiles(), **declared)
    np.testing.assert_array_equal(outputs[0], 2 * tiles())
    assert [str(f) for f in findings] == [
        "race: load of buffer[0] by the core of device (0,) can overlap in time with the copy started by device (0,) "
        f"that writes buffer[0] at {at('the first')}: waits took 4096 B from sem on device (0,), to which 2 copies "
        "bring 8192 B in any order, so it may be the others that they waited for.  "
        f"[{at('too early')}]"
    ]
    error = error_of(RaceError, two_copies_one_semaphore, tiles(), tiles(), **declared)
    assert error.finding == findings[0]


def sends_before_its_copy_is_over(x_ref, o_ref, buffer, local, send, recv):
    _, right = neighbours()
    fill = make_async_copy(x_ref, buffer, local)
    fill.start()  # fill
    let_it_pass(local)
    copy = make_async_remote_copy(buffer, o_ref, send, recv, device_id=right)
    copy.start()  # send what was filled
    copy.wait()
    fill.wait()


def test_local_copy_not_waited_for_before_the_send():
    declared = {"mesh": 4, "scratch_shapes": (BUFFER, DMA, DMA, DMA)}
    findings, outputs = record(sends_before_its_copy_is_over, tiles(4), **declared)
    np.testing.assert_array_equal(outputs[0], np.roll(tiles(4), 8, 0))
    assert [str(f) for f in findings] == [
        "race: copy from buffer started by device (0,) can overlap in time with the copy started by device (0,) that "
        f"writes buffer at {at('fill')}: the copy at {at('fill')} has to be waited for first.  "
        f"[{at('send what was filled')}]"
    ]
    assert findings[0].details["devices"] == 4


def reduce_scatter(credits):
    """A ring reduce-scatter with two inbox slots, with or without credits."""

    def kernel(x_ref, o_ref, total, inbox, part, local, send, recv, credit):
        n, me = axis_size("x"), axis_index("x")
        left, right = neighbours()
        meet(left, right)
        if credits:
            semaphore_signal(credit, 2, device_id=left)

        def fetch(index, target):
            copy = make_async_copy(x_ref.at[index % n], target, local)
            copy.start()
            copy.wait()

        fetch(me - 1, total)
        for step in range(n - 1):
            slot = step % 2
            if credits:
                semaphore_wait(credit)
            copy = make_async_remote_copy(total, inbox.at[slot], send, recv.at[slot], device_id=right)
            copy.start()  # into the inbox
            fetch(me - 2 - step, part)
            copy.wait()
            total[...] = part[...] + inbox[slot]  # sum
            if credits and step + 2 < n - 1:
                semaphore_signal(credit, device_id=left)
        if credits:
            semaphore_wait(credit, 2 - (n - 1) + max(0, n - 3))
        o_ref[...] = total[...]

    return kernel


def scattered(credits, n):
    x = np.random.default_rng(0).integers(-9, 9, (n * n, 8, 128)).astype("float32")
    findings, outputs = record(
        reduce_scatter(credits),
        x,
        mesh=n,
        out_specs=VMEM,
        scratch_shapes=(BUFFER, SLOTS, BUFFER, DMA, DMA, DMA((2,)), REGULAR),
        collective_id=2,
    )
    np.testing.assert_array_equal(outputs[0], x.reshape(n, n, 8, 128).sum(0).reshape(n * 8, 128))
    return findings


@pytest.mark.parametrize("n", [4, 8])
def test_reduce_scatter_without_its_credits(n):
    findings = scattered(False, n)
    places = {(str(f.where), str(f.other)) for f in findings}
    assert (at("into the inbox"), at("sum")) in places
    assert {f.kind for f in findings} == {Kind.RACE}
    assert all(f.details["devices"] == n for f in findings)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_reduce_scatter_with_credits_is_right(n):
    assert scattered(True, n) == ()


def overwrites_what_it_sends(wait_first):
    def kernel(x_ref, o_ref, send, recv):
        _, right = neighbours()
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=right)
        copy.start()  # send
        if wait_first:
            copy.wait_send()
        let_it_pass(send)
        x_ref[...] = tnp.zeros((8, 128), "float32")  # overwrite
        if not wait_first:
            copy.wait_send()
        copy.wait_recv()

    return kernel


def test_store_to_a_send_buffer_before_wait_send():
    declared = {"mesh": 4, "scratch_shapes": (DMA, DMA), "in_specs": VMEM}
    findings, outputs = record(overwrites_what_it_sends(False), tiles(4), **declared)
    np.testing.assert_array_equal(outputs[0], np.roll(tiles(4), 8, 0))
    assert [str(f) for f in findings] == [
        "race: store to x_ref by the core of device (0,) can overlap in time with the copy started by device (0,) that "
        f"reads x_ref at {at('send')}: the copy at {at('send')} has to be waited for first.  [{at('overwrite')}]"
    ]
    assert record(overwrites_what_it_sends(True), tiles(4), **declared)[0] == ()


def sends_twice(acknowledge):
    """Device 0 sends twice to one place of device 1, which reads it in between."""

    def kernel(x_ref, o_ref, buffer, send, recv, seen):
        me = axis_index("x")
        meet(1 - me)
        copy = make_async_remote_copy(x_ref, buffer, send, recv, device_id=1)

        @when(me == 0)
        def _():
            copy.start()  # the first time
            copy.wait_send()
            if acknowledge:
                semaphore_wait(seen)
            let_it_pass(send)
            copy.start()  # the second time
            copy.wait_send()

        @when(me == 1)
        def _():
            copy.wait_recv()
            delay(1_000)
            o_ref[...] = buffer[...]  # read between
            if acknowledge:
                semaphore_signal(seen, device_id=0)
            copy.wait_recv()

    return kernel


def test_overwritten_while_the_receiver_reads():
    declared = {
        "mesh": 2,
        "scratch_shapes": (BUFFER, DMA, DMA, REGULAR),
        "out_specs": VMEM,
        "collective_id": 1,
    }
    findings, _ = record(sends_twice(False), tiles(2), **declared)
    assert [str(f) for f in findings if f.kind is Kind.RACE] == [
        "race: copy to buffer on device (1,) started by device (0,) can overlap in time with the copy started by "
        f"device (0,) that writes buffer at {at('the first time')}: device (1,) waits for it, but nothing that it "
        f"signals or sends after that has certainly reached device (0,); {MISSING}  [{at('the second time')}]",
        "race: copy to buffer on device (1,) started by device (0,) can overlap in time with the load of buffer by "
        f"device (1,) at {at('read between')}: nothing that device (1,) signals or sends after it has certainly "
        f"reached device (0,); {MISSING}  [{at('the second time')}]",
    ]
    run(sends_twice(True), tiles(2), **declared)


def test_a_late_second_sender_could_have_come_first():
    def kernel(x_ref, o_ref, buffer, send, recv):
        me = axis_index("x")
        meet((me + 1) % 3, (me + 2) % 3)

        @when(me > 0)
        def _():
            delay(me * 50_000)
            copy = make_async_remote_copy(x_ref, buffer.at[me - 1], send, recv, device_id=0)
            copy.start()  # one of two senders
            copy.wait_send()

        @when(me == 0)
        def _():
            arrived = make_async_copy(x_ref, buffer.at[0], recv)
            arrived.wait()
            let_it_pass(recv)
            o_ref[...] = buffer[0]  # perhaps the other came
            arrived.wait()

    error = error_of(
        RaceError, kernel, tiles(3), mesh=3, scratch_shapes=(SLOTS, DMA, DMA), out_specs=VMEM, collective_id=1
    )
    assert str(error) == (
        "load of buffer[0] by the core of device (0,) can overlap in time with the copy started by device (1,) that "
        f"writes buffer[0] at {at('one of two senders')}: waits took 4096 B from recv on device (0,), to which 2 "
        "copies bring 8192 B in any order, so it may be the others that they waited for.  "
        f"[{at('perhaps the other came')}]"
    )


# -- each race once -----------------------------------------------------------------------------------


def test_a_race_with_a_copy_in_flight_is_reported_once():
    def kernel(x_ref, o_ref, buffer, sem):
        copy = make_async_copy(x_ref, buffer, sem)
        copy.start()  # in flight
        o_ref[...] = buffer[...]  # load
        copy.wait()

    findings, _ = record(kernel, tiles(4), mesh=4, scratch_shapes=(BUFFER, DMA), out_specs=VMEM)
    races = [f for f in findings if f.kind is Kind.RACE]
    assert [(str(f.where), str(f.other)) for f in races] == [(at("load"), at("in flight"))]
    assert races[0].details["devices"] == 4


def test_without_checks_only_copies_in_flight_are_seen():
    declared = {"scratch_shapes": (SLOTS, DMA), "out_specs": VMEM, "in_specs": (HBM, HBM), "checks": "none"}
    assert record(two_copies_one_semaphore, tiles(), tiles(), **declared)[0] == ()
    with pytest.raises(OptionError, match=r"^checks is 'observed' or 'none', not 'all'$"):
        run(two_copies_one_semaphore, tiles(), tiles(), **{**declared, "checks": "all"})
