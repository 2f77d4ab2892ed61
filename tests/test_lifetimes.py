"""Copies and signals that may come before their target has entered, or after it has left."""

from __future__ import annotations

import pytest
from racing import BUFFER, let_it_pass, meet, neighbours, record
from simulating import TILE, Lines, error_of, run, tiles

from tpusim import (
    HBM,
    VMEM,
    Kernel,
    SemaphoreType,
    axis_index,
    delay,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    run_scoped,
    semaphore_signal,
    semaphore_wait,
    when,
)
from tpusim.errors import LifetimeError
from tpusim.findings import Kind

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
at = Lines(__file__)


def test_copy_that_may_come_before_its_target_has_entered():
    def kernel(x_ref, o_ref, send, recv):
        me = axis_index("x")
        semaphore_signal(get_barrier_semaphore(), device_id=me)
        semaphore_wait(get_barrier_semaphore())
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=1 - me)
        copy.start()  # nobody was met
        copy.wait()

    error = error_of(LifetimeError, kernel, tiles(2), mesh=2, scratch_shapes=(DMA, DMA), collective_id=1)
    assert str(error) == (
        "copy to o_ref on device (1,) started by device (0,): nothing makes sure that device (1,) has entered the call "
        "or run_scoped that owns it; a barrier or a signal from there has to come first.  "
        f"[{at('nobody was met')}]"
    )


def scoped_copy(meets):
    def kernel(x_ref, o_ref, send, recv):
        me = axis_index("x")

        def body(buffer):
            if meets:
                meet(1 - me)
            copy = make_async_remote_copy(x_ref, buffer, send, recv, device_id=1 - me)
            copy.start()  # into the scope
            copy.wait()
            o_ref[...] = buffer[...]

        meet(1 - me)
        run_scoped(body, BUFFER)

    return kernel


def test_copy_that_may_come_before_its_target_has_entered_the_scope():
    declared = {"mesh": 2, "scratch_shapes": (DMA, DMA), "out_specs": VMEM, "collective_id": 1}
    error = error_of(LifetimeError, scoped_copy(False), tiles(2), **declared)
    assert str(error) == (
        "a copy from x_ref on device (1,) reaches buffer on device (0,) outside the call or run_scoped that owns it: a "
        f"wait for it, or a barrier, has to keep the target there.  [{at('into the scope')}]"
    )
    run(scoped_copy(True), tiles(2), **declared)


def second_barrier(before, after, delayed=0):
    """Two devices meet, then meet again on a semaphore of a scope, with work before or after in a scope of its own."""

    def kernel(x_ref, o_ref):
        me = axis_index("x")

        def body(credit):
            semaphore_signal(credit, device_id=1 - me)
            semaphore_wait(credit)

        def work(sem):
            when(me == 0)(lambda: delay(delayed))
            make_async_copy(x_ref, o_ref, sem).start()
            make_async_copy(x_ref, o_ref, sem).wait()

        meet(1 - me)
        if before:
            run_scoped(work, DMA)
        run_scoped(body, REGULAR)
        if after:
            run_scoped(work, DMA)

    return kernel


@pytest.mark.parametrize("delayed", [0, 5000])
def test_the_scope_of_a_semaphore_need_not_be_entered_when_a_peer_signals_it(delayed):
    for after in (False, True):
        findings, _ = record(second_barrier(False, after, delayed), tiles(2), mesh=2, collective_id=1)
        assert {f.kind for f in findings} == (set() if after else {Kind.UNINITIALISED})  # nobody writes the output


@pytest.mark.parametrize("delayed", [0, 5000])
def test_signal_that_may_meet_another_scope_that_has_the_same_counter(delayed):
    findings, _ = record(second_barrier(True, False, delayed), tiles(2), mesh=2, collective_id=1)
    assert {f.kind for f in findings} == {Kind.LIFETIME}
    assert findings[0].message in {
        f"signal to credit on device ({target},) by device ({1 - target},): nothing makes sure that device "
        f"({target},) has entered the call or run_scoped that owns it; a barrier or a signal from there has to come "
        "first."
        for target in range(2)
    }


@pytest.mark.parametrize("delayed", [0, 5000])
def test_the_proof_tells_the_same_of_early_signals(delayed):
    for before, after, answer in [(False, False, "proven"), (False, True, "proven"), (True, False, "refuted")]:
        kernel = Kernel(
            second_barrier(before, after, delayed), out_shape=TILE, in_specs=HBM, out_specs=HBM, collective_id=1
        )
        verdict = kernel.verify(tiles(2), mesh=2)
        assert verdict.answer == answer
        faults = {f.kind for f in verdict.findings} - {Kind.UNINITIALISED, Kind.ROUTING}
        assert faults == ({Kind.LIFETIME} if before else set())


def sends_on_scoped_semaphores(before, delayed):
    """Copies to a buffer of the call that count on semaphores of a scope, perhaps after another scope with some."""

    def kernel(x_ref, o_ref):
        me = axis_index("x")

        def body(send, recv):
            delay(delayed)  # in the scope: then everybody has entered it before a copy starts
            copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=1 - me)
            copy.start()  # on its way
            copy.wait()

        def work(sem):
            when(me == 0)(lambda: delay(5000))
            semaphore_signal(sem)
            semaphore_wait(sem)

        meet(1 - me)
        if before:
            run_scoped(work, REGULAR)
        run_scoped(body, DMA, DMA)

    return kernel


@pytest.mark.parametrize("delayed", [0, 20000])
@pytest.mark.parametrize("before", [False, True])
def test_a_copy_may_count_on_a_semaphore_whose_scope_is_not_entered_yet(before, delayed):
    """Whatever the order of this run is; unless another scope may be using the same counter."""
    kernel = Kernel(
        sends_on_scoped_semaphores(before, delayed), out_shape=TILE, in_specs=HBM, out_specs=HBM, collective_id=1
    )
    verdict = kernel.verify(tiles(2), mesh=2)
    findings, _ = record(sends_on_scoped_semaphores(before, delayed), tiles(2), mesh=2, collective_id=1)
    if not before:
        assert (verdict.answer, findings) == ("proven", ())
        return
    assert verdict.answer == "refuted"
    (fault,) = verdict.errors
    assert (fault.kind, str(fault.where)) == (Kind.LIFETIME, at("on its way"))
    assert ", which counts on recv: nothing makes sure that device (" in fault.message
    assert "the other access began meanwhile" in fault.message
    assert {f.kind for f in findings} == {Kind.LIFETIME}
    assert findings[0].message in {
        f"copy that counts on recv on device ({target},) by device ({1 - target},): nothing makes sure that device "
        f"({target},) has entered the call or run_scoped that owns it; a barrier or a signal from there has to come "
        "first."
        for target in range(2)
    }


def test_signal_to_a_scope_that_its_target_has_left():
    def kernel(x_ref, o_ref):
        me = axis_index("x")

        def body(credit):
            @when(me == 0)
            def _():
                delay(5000)
                semaphore_signal(credit, device_id=1)

        meet(1 - me)
        run_scoped(body, REGULAR)
        when(me == 1)(lambda: delay(20000))

    findings, _ = record(kernel, tiles(2), mesh=2, collective_id=1)
    assert Kind.LIFETIME in {f.kind for f in findings}
    assert any("device (1,) has left the call or run_scoped that owns it" in f.message for f in findings)


def test_remote_copy_that_its_target_does_not_wait_for():
    def kernel(x_ref, o_ref, send, recv):
        _, right = neighbours()
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=right)
        copy.start()  # sent off
        copy.wait_send()
        let_it_pass(recv)

    error = error_of(LifetimeError, kernel, tiles(4), mesh=4, scratch_shapes=(DMA, DMA))
    assert str(error) == (
        "copy to o_ref on device (0,) started by device (3,): device (0,) leaves the kernel without a wait that makes "
        f"sure that the copy is over.  [{at('sent off')}]"
    )


def test_copy_of_a_scope_that_nobody_waited_for():
    def kernel(x_ref, o_ref, sem):
        def body(buffer):
            make_async_copy(x_ref, buffer, sem).start()  # forgotten
            let_it_pass(sem)

        run_scoped(body, BUFFER)

    error = error_of(LifetimeError, kernel, tiles(), scratch_shapes=(DMA,))
    assert str(error) == (
        "copy to buffer on device (0,) started by device (0,): device (0,) leaves the run_scoped of buffer without a "
        f"wait that makes sure that the copy is over.  [{at('forgotten')}]"
    )
