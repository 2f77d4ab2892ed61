"""Verdicts over all schedules: what is proven, what is refuted and how it is shown, what is neither."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulating import TILE, Lines, tiles

from tpusim import (
    HBM,
    SMEM,
    VMEM,
    Kernel,
    SemaphoreType,
    axis_index,
    axis_size,
    debug_print,
    fori_loop,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    run_scoped,
    semaphore_read,
    semaphore_signal,
    semaphore_wait,
    when,
)
from tpusim import np as jnp
from tpusim.errors import NotModelledError, OptionError
from tpusim.findings import Kind, Where
from tpusim.job import Job
from tpusim.job.verify import verify_job
from tpusim.judges.proof import PREMISES, Recorder, prove
from tpusim.kernel_file import load_file
from tpusim.options import RunOptions
from tpusim.session import Session
from tpusim.verdict import Verdict

FOLDER = Path(__file__).parent.parent / "kernels"
NAMES = sorted(file.stem for file in FOLDER.glob("*.py"))
SIZES = {1: [(4, "v5e:2x2"), (5, "v5e:2x4"), (8, "v5e:2x4")], 2: [((2, 2), "v5e:2x2"), ((2, 4), "v5e:2x4")]}
DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
at = Lines(__file__)


def verify(fn: Any, *arrays: Any, scratch: Any = (), devices: int = 1, calls: int = 1, **keywords: Any) -> Verdict:
    """The verdict on a kernel, by default of one device with a tile in HBM in and out."""
    options = {name: keywords.pop(name) for name in ("data", "max_events") if name in keywords}
    declared = {"out_shape": TILE, "in_specs": HBM, "out_specs": HBM, "scratch_shapes": scratch, **keywords}
    inputs = arrays or (tiles(devices),)
    return Kernel(fn, **declared).verify(*inputs, mesh=devices, slice="v5e:4x4", calls=calls, **options)


def kinds(verdict: Verdict) -> list[str]:
    return sorted({str(finding.kind) for finding in verdict.errors})


# -- the kernels of this repository -------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_is_proven(name: str) -> None:
    file = load_file(str(FOLDER / f"{name}.py"))
    axes = file.kernel.axes
    for devices, slice_ in SIZES[len(axes)]:
        sizes = devices if isinstance(devices, tuple) else (devices,)
        mesh = dict(zip(axes, sizes, strict=True))
        for calls in (1, 2):
            verdict = file.kernel.verify(
                *file.inputs(devices=devices), slice=slice_, mesh=mesh, calls=calls, data=False
            )
            assert (verdict.answer, verdict.reasons, verdict.errors) == ("proven", (), ())
            assert verdict.calls == calls
            assert verdict.premises[: len(PREMISES)] == PREMISES


@pytest.mark.parametrize("name", NAMES)
def test_the_data_are_part_of_the_verdict(name: str) -> None:
    mesh = "x=2,y=2" if len(load_file(str(FOLDER / f"{name}.py")).kernel.axes) == 2 else 3
    job = Job(str(FOLDER / f"{name}.py"), {"slice": "v5e:2x2", "mesh": mesh}, calls=2)
    verdict, outcome = verify_job(job)
    assert verdict.answer == "proven"
    assert verdict.data.startswith("equal")
    assert outcome.result is not None
    assert len(outcome.result.repeats) == 1


@pytest.mark.jax
@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_is_proven_as_captured(name: str) -> None:
    from jax.sharding import AbstractMesh, AxisType

    import tpusim

    file = load_file(str(FOLDER / f"{name}.py"))
    axes = file.kernel.axes
    for devices, slice_ in SIZES[len(axes)]:
        sizes = devices if isinstance(devices, tuple) else (devices,)
        mesh = AbstractMesh(sizes, axes, axis_types=(AxisType.Auto,) * len(axes))
        arrays = file.inputs(devices=devices)
        for calls in (1, 2):
            program = file.kernel.pallas(mesh, interpret=True)
            verdict = tpusim.pallas.verify(program, *arrays, slice=slice_, calls=calls, data=False)
            assert (verdict.answer, verdict.reasons, verdict.errors) == ("proven", (), ())
            native = file.kernel.verify(
                *arrays, slice=slice_, mesh=dict(zip(axes, sizes, strict=True)), calls=calls, data=False
            )
            assert verdict.operations == native.operations


# -- what only a proof can tell -----------------------------------------------------------------------


def cleared_inbox(x_ref, o_ref, inbox, send_sem, recv_sem):
    n, me = axis_size("x"), axis_index("x")
    left, right = (me + n - 1) % n, (me + 1) % n
    inbox[...] = jnp.zeros((8, 128), "float32")  # clear
    barrier = get_barrier_semaphore()
    semaphore_signal(barrier, device_id=left)
    semaphore_signal(barrier, device_id=right)
    semaphore_wait(barrier, 2)  # perhaps two signals of one neighbour, which is a call ahead
    copy = make_async_remote_copy(x_ref, inbox, send_sem, recv_sem, device_id=right)
    copy.start()  # into the inbox
    copy.wait()
    o_ref[...] = inbox[...]


INBOX = {
    "scratch": (VMEM((8, 128), "float32"), DMA, DMA),
    "collective_id": 7,
    "in_specs": None,
    "out_specs": None,
}


def test_a_neighbour_barrier_is_enough_for_one_call_and_for_small_rings() -> None:
    for devices, calls in [(6, 1), (4, 3), (3, 3), (2, 3)]:
        verdict = verify(cleared_inbox, devices=devices, calls=calls, **INBOX)
        assert verdict.answer == "proven"


def test_a_neighbour_that_is_a_call_ahead_passes_the_barrier_for_another() -> None:
    kernel = Kernel(
        cleared_inbox, out_shape=TILE, scratch_shapes=INBOX["scratch"], collective_id=7,
    )  # fmt: skip
    assert kernel.simulate(tiles(6), mesh=6, slice="v5e:4x4").ok  # this schedule is fine
    verdict = verify(cleared_inbox, devices=6, calls=3, **INBOX)
    assert verdict.answer == "refuted"
    assert kinds(verdict) == ["lifetime", "race"]
    race, lifetime = verdict.errors
    wrong = "1024 of 6144 values of output 0 of call 1 are not those of the default schedule."
    assert race.message == (
        "the copy to inbox on device (2,) started by device (1,) can overlap in time with the store to inbox by device "
        f"(2,) at {at('clear')}: in some schedule device (2,) is still there when device (1,) comes here.\n"
        "  Replayed, 3 calls in a row, with device (2,) held at its wait 1 in cleared_inbox() until nothing else could "
        f"move: the other access began meanwhile, and the data are wrong: {wrong}"
    )
    assert lifetime.message == (
        "the copy to inbox on device (2,) started by device (1,) in call 1 of 3: nothing makes sure that device (2,) "
        "has entered the call that owns it; a barrier or a signal from there has to come first.\n"
        "  Replayed, 3 calls in a row, with device (2,) held at its entry 1 in cleared_inbox() until nothing else "
        f"could move: the other access began meanwhile, and the data are wrong: {wrong}"
    )
    assert lifetime.token == "t1:hold:2/cleared_inbox/enter1"
    assert race.details["devices"] == lifetime.details["devices"] == 6


@pytest.mark.jax
def test_the_same_from_a_program_that_calls_three_times() -> None:
    jax = pytest.importorskip("jax")
    from capturing import call, mesh, over_mesh
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu
    from jax.sharding import PartitionSpec

    import tpusim

    def kernel(x_ref: Any, o_ref: Any, inbox: Any, send: Any, recv: Any) -> None:
        me = jax.lax.axis_index("x")
        left, right = jax.lax.rem(me + 5, 6), jax.lax.rem(me + 1, 6)
        inbox[...] = jax.numpy.zeros_like(inbox)
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, 1, device_id=left)
        pl.semaphore_signal(barrier, 1, device_id=right)
        pl.semaphore_wait(barrier, 2)
        copy = pltpu.make_async_remote_copy(x_ref, inbox, send, recv, device_id=right)
        copy.start()
        copy.wait()
        o_ref[...] = inbox[...]

    scratch = [pltpu.VMEM((8, 128), "float32"), pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA]
    once = call(kernel, ((8, 128), np.float32), scratch, compiler_params=pltpu.CompilerParams(collective_id=7))
    spec = PartitionSpec("x", None)
    three = over_mesh(lambda x: once(once(once(x))), mesh(6), spec, spec)
    assert tpusim.pallas.verify(over_mesh(once, mesh(6), spec, spec), tiles(6), slice="v5e:4x4").answer == "proven"
    for program, calls in [(three, 1), (over_mesh(once, mesh(6), spec, spec), 3)]:
        verdict = tpusim.pallas.verify(program, tiles(6), slice="v5e:4x4", calls=calls)
        assert verdict.answer == "refuted"
        assert kinds(verdict) == ["lifetime", "race"]
        assert all("and the data are wrong" in finding.message for finding in verdict.errors)


# -- no false alarm -----------------------------------------------------------------------------------


def rebuilt(x_ref, o_ref, send_sem, recv_sem):
    def copy():
        return make_async_remote_copy(
            x_ref, o_ref, send_sem, recv_sem, device_id=(axis_index("x") + 1) % axis_size("x")
        )

    copy().start()
    copy().wait()


def shared_semaphore(wait_for_both, x_ref, o_ref, slots, recv_sem):
    copies = [make_async_copy(x_ref, slots.at[i], recv_sem) for i in range(2)]
    for copy in copies:
        copy.start()  # two to one semaphore
    copies[0].wait()
    if wait_for_both:
        copies[1].wait()
    o_ref[...] = slots[0]  # the first
    if not wait_for_both:
        copies[1].wait()


def overwrite(early, x_ref, o_ref, buffer, send_sem, recv_sem):
    buffer[...] = x_ref[...]
    copy = make_async_remote_copy(buffer, o_ref, send_sem, recv_sem, device_id=(axis_index("x") + 1) % axis_size("x"))
    copy.start()  # send
    if not early:
        copy.wait_send()
    buffer[...] = x_ref[...] * 2  # again
    if early:
        copy.wait_send()
    copy.wait_recv()


def credits(early, x_ref, o_ref, inbox, total, source, send_sem, recv_sem, credit):
    right, left = (axis_index("x") + 1) % axis_size("x"), (axis_index("x") + axis_size("x") - 1) % axis_size("x")
    total[...] = jnp.zeros((8, 128), "float32")
    for step in range(3):
        if step:
            semaphore_wait(credit)
        source[...] = x_ref[...] * float(step + 1)
        copy = make_async_remote_copy(source, inbox, send_sem, recv_sem, device_id=right)
        copy.start()  # the next
        copy.wait()
        if early and step < 2:
            semaphore_signal(credit, device_id=left)
        total[...] = total[...] + inbox[...]  # use it
        if not early and step < 2:
            semaphore_signal(credit, device_id=left)
    o_ref[...] = total[...]


def bound(fn: Any, value: bool) -> Any:
    def kernel(*refs):
        fn(value, *refs)

    return kernel


TILE_VMEM = VMEM((8, 128), "float32")
CREDITS = (TILE_VMEM, TILE_VMEM, TILE_VMEM, DMA, DMA, REGULAR)
IN_VMEM = {"in_specs": None, "out_specs": None}


def test_correct_idioms_are_proven() -> None:
    shared = (VMEM((2, 8, 128), "float32"), DMA)
    for calls in (1, 3):
        assert verify(rebuilt, devices=4, calls=calls, scratch=(DMA, DMA)).ok
        assert verify(bound(shared_semaphore, True), scratch=shared, calls=calls, **IN_VMEM).ok
        assert verify(bound(overwrite, False), devices=4, calls=calls, scratch=(TILE_VMEM, DMA, DMA), **IN_VMEM).ok
        assert verify(bound(credits, False), devices=4, calls=calls, scratch=CREDITS, **IN_VMEM).ok


def test_the_first_of_two_waits_on_a_shared_semaphore() -> None:
    verdict = verify(bound(shared_semaphore, False), scratch=(VMEM((2, 8, 128), "float32"), DMA), **IN_VMEM)
    (race,) = verdict.errors
    assert race.message == (
        "the load of scratch0[0] by device (0,) can overlap in time with the copy to scratch0[0] on device (0,) "
        f"started by device (0,) at {at('two to one semaphore')}: in some schedule that copy has not yet written its "
        "destination when device (0,) comes here.\n"
        "  Replayed with the writer of copy start 1 in shared_semaphore() on device (0,) held until nothing else could "
        "move: the other access began meanwhile, and the data are wrong: 1024 of 1024 values of output 0 are not those "
        "of the default schedule."
    )
    assert str(race.where) == at("the first")
    assert race.token == "t1:hold:0/shared_semaphore/start1/writer/arg0,scratch0"


def test_a_buffer_overwritten_before_it_is_sent() -> None:
    verdict = verify(bound(overwrite, True), devices=4, scratch=(TILE_VMEM, DMA, DMA), **IN_VMEM)
    (race,) = verdict.errors
    assert (str(race.where), str(race.other)) == (at("again"), at("send"))
    assert "with the reader of copy start 1 in overwrite() on device (" in race.message
    assert race.message.endswith("the other access began meanwhile; the data came out as on the default schedule.")


def test_a_credit_given_before_the_slot_is_free() -> None:
    verdict = verify(bound(credits, True), devices=4, scratch=CREDITS, **IN_VMEM)
    assert verdict.answer == "refuted"
    assert kinds(verdict) == ["race"]
    assert {(str(f.where), str(f.other)) for f in verdict.errors} == {(at("the next"), at("use it"))}
    assert all("behind its signal" in f.message and "the data are wrong" in f.message for f in verdict.errors)
    assert all("/signal" in str(f.token) and "/after/" in str(f.token) for f in verdict.errors)


def test_a_fault_that_needs_a_part_of_a_copy() -> None:
    def kernel(x_ref, o_ref, slots, sem):
        copies = [make_async_copy(x_ref, slots.at[i], sem) for i in range(2)]
        for copy in copies:
            copy.start()
        make_async_copy(x_ref, slots.at[0], sem).wait()
        make_async_copy(x_ref.at[:7], slots.at[0, :7], sem).wait()
        o_ref[...] = slots[0]
        make_async_copy(x_ref.at[:1], slots.at[0, :1], sem).wait()

    verdict = verify(kernel, scratch=(VMEM((2, 8, 128), "float32"), DMA), **IN_VMEM)
    (race,) = verdict.errors
    assert "with the last bytes of the writer of copy start 2 in kernel() on device (0,) held" in race.message
    assert "the other access began meanwhile, and the data are wrong" in race.message
    assert "/writer.last/" in str(race.token)


# -- other faults -------------------------------------------------------------------------------------


def test_deadlocks_and_leaks_are_the_same_in_every_schedule() -> None:
    def stuck(x_ref, o_ref, sem):
        semaphore_wait(sem)

    def left(x_ref, o_ref, sem):
        semaphore_signal(sem)

    dead = verify(stuck, scratch=(REGULAR,))
    assert (dead.answer, kinds(dead)) == ("refuted", ["deadlock"])
    leak = verify(left, scratch=(REGULAR,))
    assert (leak.answer, kinds(leak)) == ("refuted", ["leak"])
    assert leak.reasons[0].startswith("leak: sem is left at 1 on device (0,) when the kernel exits")


def test_a_copy_onto_itself() -> None:
    def kernel(x_ref, o_ref, buffer, sem):
        copy = make_async_copy(buffer.at[0:8], buffer.at[4:12], sem)
        copy.start()  # onto itself
        copy.wait()

    verdict = verify(kernel, scratch=(VMEM((16, 128), "float32"), DMA))
    (race,) = verdict.errors
    assert race.message == (
        "copy from buffer[0:8] to buffer[4:12] on device (0,): source and destination overlap, and nothing says in "
        "which order the bytes move."
    )
    assert str(race.where) == at("onto itself")


def test_a_scope_that_ends_too_early() -> None:
    def kernel(x_ref, o_ref, sem):
        def body(buffer):
            make_async_copy(x_ref, buffer, sem).start()  # into the scope

        run_scoped(body, TILE_VMEM)
        make_async_copy(x_ref, o_ref, sem).wait()
        o_ref_copy = make_async_copy(x_ref, o_ref, sem)
        o_ref_copy.start()
        o_ref_copy.wait()

    verdict = verify(kernel, scratch=(DMA,))
    assert kinds(verdict) == ["lifetime"]
    assert str(verdict.errors[0].where) == at("into the scope")
    assert verdict.errors[0].message.splitlines()[0] == (
        "the copy to buffer on device (0,) started by device (0,): device (0,) leaves the run_scoped of buffer without "
        "a wait that makes sure that the copy is over."
    )


@pytest.mark.parametrize(
    ("kind", "use", "said"),
    [
        (VMEM((8, 128), "float32"), lambda x, o, kept, sem: o.__setitem__(..., kept[...]), "load of kept"),
        (VMEM((8, 128), "float32"), lambda x, o, kept, sem: kept.__setitem__(..., x[...]), "store to kept"),
        (VMEM((8, 128), "float32"), lambda x, o, kept, sem: sync(kept, o, sem), "copy from kept"),
        (DMA, lambda x, o, kept, sem: sync(x, o, kept), "use of kept"),
        (DMA, lambda x, o, kept, sem: make_async_copy(x.at[0:0], o.at[0:0], kept).wait(), "use of kept"),
        (REGULAR, lambda x, o, kept, sem: semaphore_signal(kept, 0), "use of kept"),
        (REGULAR, lambda x, o, kept, sem: semaphore_wait(kept, 0), "use of kept"),
    ],
)
def test_what_a_scope_owned_is_gone_after_it(kind: Any, use: Any, said: str) -> None:
    def kernel(x_ref, o_ref, sem):
        o_ref[...] = x_ref[...]
        outside = []
        run_scoped(lambda kept: outside.append(kept), kind)
        use(x_ref, o_ref, outside[0], sem)

    verdict = verify(kernel, scratch=(DMA,), in_specs=VMEM, out_specs=VMEM)
    assert verdict.answer == "refuted"
    assert kinds(verdict) == ["lifetime"]
    assert verdict.errors[0].message == (
        f"{said} on device (0,) outside the run_scoped that owns it: use it in the function that run_scoped calls."
    )


def sync(source: Any, destination: Any, sem: Any) -> None:
    """Copy and wait."""
    copy = make_async_copy(source, destination, sem)
    copy.start()
    copy.wait()


def test_a_scope_that_a_neighbour_may_not_have_entered() -> None:
    def kernel(x_ref, o_ref):
        right = (axis_index("x") + 1) % axis_size("x")

        def body(buffer, send_sem, recv_sem):
            copy = make_async_remote_copy(x_ref, buffer, send_sem, recv_sem, device_id=right)
            copy.start()
            copy.wait()

        run_scoped(body, TILE_VMEM, DMA, DMA)

    verdict = verify(kernel, devices=4)
    assert kinds(verdict) == ["lifetime"]
    assert "is inside the run_scoped that owns it" in verdict.errors[0].message


def test_what_a_kernel_reads_from_a_semaphore_may_select_what_it_does() -> None:
    def kernel(x_ref, o_ref, sem):
        copy = make_async_copy(x_ref, o_ref, sem)
        copy.start()
        value = semaphore_read(sem)  # look
        when(value >= 0)(lambda: None)
        copy.wait()

    verdict = verify(kernel, scratch=(DMA,))
    assert verdict.answer == "not-proven"
    assert verdict.reasons == (
        f"P1: semaphore_read at {at('look')}: the value depends on the schedule, and the kernel may do something else "
        "with another one.",
    )


def test_what_a_kernel_prints_of_a_semaphore_selects_nothing() -> None:
    def kernel(x_ref, o_ref, sem):
        copy = make_async_copy(x_ref, o_ref, sem)
        copy.start()
        debug_print("{} bytes, {}", semaphore_read(sem), semaphore_read(sem) if doubled is None else doubled(sem))
        copy.wait()

    doubled: Any = None
    assert verify(kernel, scratch=(DMA,)).answer == "proven"
    assert verify(kernel, scratch=(DMA,)).result.printed[0].endswith("] 0 bytes, 0")
    doubled = lambda sem: semaphore_read(sem) * 2  # noqa: E731
    assert verify(kernel, scratch=(DMA,)).answer == "not-proven"


@pytest.mark.jax
@pytest.mark.parametrize("prints", [True, False])
def test_the_same_of_a_captured_kernel(prints: bool) -> None:
    pytest.importorskip("jax")
    from capturing import call
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    import tpusim

    def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(x_ref, o_ref, sem)
        copy.start()
        value = pl.semaphore_read(sem)
        pl.debug_print("{} bytes", value)
        if not prints:
            pl.delay(value)
        copy.wait()

    program = call(kernel, ((8, 128), np.float32), [pltpu.SemaphoreType.DMA], ["any"], ["any"])
    assert tpusim.pallas.verify(program, tiles()).answer == ("proven" if prints else "not-proven")


@pytest.mark.parametrize(("is_scoped", "is_set"), [(True, False), (False, False), (True, True), (False, True)])
def test_a_number_that_nobody_has_written_selects_what_a_kernel_does(is_scoped: bool, is_set: bool) -> None:
    def kernel(x_ref, o_ref, sem, *scratch):
        def body(count):
            if is_set:
                count[0] = 0
            copy = make_async_copy(x_ref, o_ref, sem)

            @when(count[0] == 0)
            def _():
                copy.start()  # once more
                copy.wait()

            count[0] = count[0] + 1  # count again
            copy.start()
            copy.wait()

        if is_scoped:
            run_scoped(body, SMEM((1,), "int32"))
        else:
            body(*scratch)

    for calls in (1, 2):
        verdict = verify(kernel, scratch=(DMA,) if is_scoped else (DMA, SMEM((1,), "int32")), calls=calls)
        if is_set:
            assert verdict.answer == "proven"
            continue
        assert verdict.answer == "not-proven"
        assert verdict.reasons == (
            f"P1: what device (0,) does at {at('count again')} depends on SMEM that nobody has written: with 0 there "
            "it is not the same.",
        )


def test_a_run_that_was_given_up_proves_nothing() -> None:
    def kernel(x_ref, o_ref, sem):
        def step(_, carry):
            copy = make_async_copy(x_ref, o_ref, sem)
            copy.start()
            copy.wait()
            return carry

        fori_loop(0, 1000, step, None)

    verdict = verify(kernel, scratch=(DMA,), max_events=50)
    assert verdict.answer == "not-proven"
    assert verdict.reasons[0].startswith("livelock: ")


def test_a_fault_before_the_run_refutes_and_a_gap_raises() -> None:
    def wrong(x_ref, o_ref, sem):
        make_async_copy(x_ref.at[0:4], o_ref, sem).start()

    verdict = verify(wrong, scratch=(DMA,))
    assert (verdict.answer, kinds(verdict)) == ("refuted", ["shape-mismatch"])

    def gap(x_ref, o_ref, sem):
        semaphore_signal(sem, core_index=1)

    with pytest.raises(NotModelledError):
        verify(gap, scratch=(REGULAR,))


def test_something_left_on_a_semaphore_of_a_scope() -> None:
    def kernel(x_ref, o_ref):
        run_scoped(lambda sem: semaphore_signal(sem), REGULAR)

    verdict = verify(kernel)
    assert (verdict.answer, kinds(verdict)) == ("refuted", ["leak"])
    assert any(
        finding.message
        == "sem is left at 1 on device (0,) when its run_scoped ends: every signal and every copy needs "
        "its wait."
        for finding in verdict.errors
    )


def test_two_cores_that_wait_for_one_semaphore() -> None:
    recorder = Recorder()
    options = RunOptions.of({"mesh": {"x": 2}, "checks": "none", "on_finding": "record"})
    machine = Session(options, ["x"], observers=[recorder]).machine
    call = machine.new_call("program")
    call.add_semaphores("shared", REGULAR, ())
    shared = call.semaphores[0][0][0]

    def steps(core: Any) -> Iterator[None]:
        call.enter(core.device)
        if core.device == 0:
            core.signal(shared, 2, Where("program", 1))
        else:
            core.delay(5_000_000, Where("program", 2))
        if not core.wait(shared, 1, Where("program", 3)):
            yield
        machine.exit(core)

    for core in machine.cores:
        machine.launch(core, partial(next, steps(core), None))
    machine.run()
    proof = prove(recorder, machine)
    assert proof.doubts == [
        "P2: several cores wait for shared of device (0,): who of them takes what depends on the schedule."
    ]
    assert [str(finding.kind) for finding, _ in proof.faults] == []


@pytest.mark.jax
def test_a_captured_program_that_a_fault_stops() -> None:
    pytest.importorskip("jax")
    from capturing import call
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    import tpusim

    def kernel(x_ref: Any, o_ref: Any) -> None:
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, 1)
        pl.semaphore_wait(barrier, 1)
        o_ref[...] = x_ref[...]

    verdict = tpusim.pallas.verify(call(kernel, ((8, 128), np.float32)), tiles(1))
    assert (verdict.answer, kinds(verdict)) == ("refuted", ["collective-id"])


@pytest.mark.parametrize("name", ["checks", "on_finding", "schedule", "faults", "replay"])
def test_options_that_a_verdict_chooses_itself_are_refused(name: str) -> None:
    kernel = Kernel(rebuilt, out_shape=TILE, in_specs=HBM, out_specs=HBM, scratch_shapes=(DMA, DMA))
    with pytest.raises(OptionError) as caught:
        kernel.verify(tiles(), **{name: "none"})
    assert str(caught.value) == f"verify looks at every schedule and replays what it finds: leave {name} out"
    with pytest.raises(OptionError) as caught:
        kernel.verify(tiles(), calls=0)
    assert str(caught.value) == "calls is a positive integer, not 0"


# -- the verdict itself -------------------------------------------------------------------------------


def test_a_verdict_in_text_and_json() -> None:
    verdict = verify(rebuilt, devices=4, scratch=(DMA, DMA))
    assert str(verdict) == (
        "proven: 22 operations of all cores on v5e:4x4; no deadlock, leak, race or lifetime fault in any schedule; "
        "data not compared: no reference."
    )
    assert verdict.explain().startswith(f"{verdict}\nrouting: copy from device (3,) to (0,) goes 3 hops")
    assert verdict.explain().endswith("\n".join(["It rests on:", *(f"  {premise}" for premise in verdict.premises)]))
    values = json.loads(verdict.to_json())
    assert (values["answer"], values["ok"], values["reasons"]) == ("proven", True, [])
    assert (values["calls"], values["operations"], values["slice"], values["mesh"]) == (1, 22, "v5e:4x4", {"x": 4})
    refuted = verify(bound(overwrite, True), devices=4, scratch=(TILE_VMEM, DMA, DMA), **IN_VMEM)
    assert refuted.explain().count("Replay: t1:hold:") == 1
    assert json.loads(refuted.to_json())["findings"][0]["token"] == refuted.findings[0].token
    assert refuted.findings[0].kind is Kind.RACE
