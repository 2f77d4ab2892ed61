"""Random DMA programs: each means what its sequential order means, or fails with the right error.

A program is a list of steps that every device runs.  The sequential meaning is a plain NumPy interpreter
here that performs each copy at its start.  A program that waits for each copy at once must end well with
that data; any other may instead raise one of the errors that a missing or misplaced wait deserves, and
nothing else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st
from simulating import run

import tpusim
from tpusim import (
    HBM,
    VMEM,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    axis_size,
    make_async_copy,
    make_async_remote_copy,
    semaphore_signal,
    semaphore_wait,
    sync_copy,
    when,
)
from tpusim.errors import DeadlockError, FindingError, LeakError, LifetimeError, RaceError, UnwaitedError
from tpusim.findings import CONTINUABLE, Kind
from tpusim.result import Result

EXPECTED = {DeadlockError, LeakError, LifetimeError, RaceError, UnwaitedError}
DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
ROWS = 8
SHAPE = ShapeDtypeStruct((ROWS, 128), "float32")
BUFFERS = ("x", "h", "v", "w")
"""An operand in HBM, an output in HBM, and two scratch buffers in VMEM."""
IN_VMEM = ("v", "w")
SEMAPHORES = 3
MOST_STEPS = 40


class Start(NamedTuple):
    """Copy rows to rows, ``hop`` devices to the right (0: a local copy)."""

    source: str
    source_row: int
    target: str
    target_row: int
    rows: int
    sem: int
    hop: int


class Wait(NamedTuple):
    """Wait for both legs of the copy started by an earlier step."""

    step: int


class Store(NamedTuple):
    """Fill rows with a number."""

    buffer: str
    row: int
    rows: int
    value: int


class Load(NamedTuple):
    """Add one to rows: a load and a store."""

    buffer: str
    row: int
    rows: int


class Barrier(NamedTuple):
    """All devices join; ``number`` picks a semaphore of its own, so that a fast device cannot pass twice."""

    number: int


Step = Start | Wait | Store | Load | Barrier


@st.composite
def places(draw: Any, buffers: tuple[str, ...]) -> tuple[str, int, int]:
    row = draw(st.integers(0, ROWS - 1))
    return draw(st.sampled_from(buffers)), row, draw(st.integers(1, ROWS - row))


@st.composite
def starts(draw: Any, hops: int) -> Start:
    """A copy that does not overlap itself."""
    source, row, rows = draw(places(BUFFERS))
    target = draw(st.sampled_from([name for name in BUFFERS if name != source]))
    target_row = draw(st.integers(0, ROWS - rows))
    return Start(
        source, row, target, target_row, rows, draw(st.integers(0, SEMAPHORES - 1)), draw(st.integers(0, hops))
    )


stores = places(IN_VMEM).flatmap(lambda place: st.integers(-9, 9).map(lambda value: Store(*place, value)))
loads = places(IN_VMEM).map(lambda place: Load(*place))


@st.composite
def programs(draw: Any, hops: int) -> list[Step]:
    """Steps with waits at random places, or missing."""
    steps: list[Step] = []
    open_: list[int] = []
    for _ in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from(("start", "start", "wait", "wait", "store", "load", "barrier")))
        if kind == "start":
            open_.append(len(steps))
            steps.append(draw(starts(hops)))
        elif kind == "wait" and open_:
            position = draw(st.integers(0, len(open_) - 1))
            steps.append(Wait(open_[position]))
            if draw(st.integers(0, 5)):  # else it may be waited for once more
                del open_[position]
        elif kind == "store":
            steps.append(draw(stores))
        elif kind == "load":
            steps.append(draw(loads))
        elif kind == "barrier" and hops:
            steps.append(Barrier(len(steps)))
    if draw(st.booleans()):
        steps += [Wait(step) for step in open_]
    return steps


@st.composite
def careful_programs(draw: Any, hops: int) -> list[Step]:
    """Every copy is waited for at once; between devices, a barrier stands before and after each remote copy."""
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 8))):
        step = draw(st.one_of(starts(hops), stores, loads))
        if isinstance(step, Start):
            if step.hop:
                steps.append(Barrier(len(steps)))
            steps += [step, Wait(len(steps))]
            if step.hop:
                steps.append(Barrier(len(steps)))
        else:
            steps.append(step)
    return steps


def simulate(steps: list[Step], devices: int, **options: Any) -> Result:
    remote = any((isinstance(step, Start) and step.hop) or isinstance(step, Barrier) for step in steps)

    def kernel(x_ref, h_ref, v_out, w_out, v_ref, w_ref, sems, joins):
        refs = {"x": x_ref, "h": h_ref, "v": v_ref, "w": w_ref}
        me, n = (axis_index("x"), axis_size("x")) if remote else (0, 1)
        made = {}

        def join_all(sem):
            for distance in range(1, n):
                semaphore_signal(sem, device_id=(me + distance) % n)
            semaphore_wait(sem, n - 1)

        v_ref[...] = tpusim.np.full((ROWS, 128), 1.0)
        w_ref[...] = tpusim.np.full((ROWS, 128), 2.0)
        sync_copy(x_ref, h_ref)
        for number, step in enumerate(steps):
            match step:
                case Start(source, row, target, target_row, rows, sem, hop):
                    ends = refs[source].at[row : row + rows], refs[target].at[target_row : target_row + rows]
                    if hop:
                        copy = make_async_remote_copy(*ends, sems.at[0, sem], sems.at[1, sem], (me + hop) % n)
                    else:
                        copy = make_async_copy(*ends, sems.at[1, sem])
                    made[number] = copy
                    copy.start()
                case Wait(started):
                    made[started].wait()
                case Store(name, row, rows, value):
                    refs[name][row : row + rows] = tpusim.np.full((rows, 128), float(value))
                case Load(name, row, rows):
                    refs[name][row : row + rows] = refs[name][row : row + rows] + 1.0
                case Barrier(join):
                    join_all(joins.at[join])
        if remote:
            join_all(joins.at[MOST_STEPS])
        sync_copy(v_ref, v_out)
        sync_copy(w_ref, w_out)

    buffer = VMEM((ROWS, 128), "float32")
    return run(
        kernel, _input(devices), mesh=devices, out_shape=(SHAPE, SHAPE, SHAPE), in_specs=HBM,
        scratch_shapes=(buffer, buffer, DMA((2, SEMAPHORES)), REGULAR((MOST_STEPS + 1,))), **options,
    )  # fmt: skip


def _input(devices: int) -> np.ndarray[Any, Any]:
    return np.arange(devices * ROWS * 128, dtype=np.float32).reshape(-1, 128) % 1000


def sequential(steps: list[Step], devices: int) -> list[np.ndarray[Any, Any]]:
    """h, v, w of all devices after the steps, each copy at its start, all devices in step."""
    x = _input(devices).reshape(devices, ROWS, 128)
    memory = [
        {"x": x[d].copy(), "h": x[d].copy(), "v": np.ones_like(x[d]), "w": 2 * np.ones_like(x[d])}
        for d in range(devices)
    ]
    for step in steps:
        match step:
            case Start(source, row, target, target_row, rows, _, hop):
                moved = [own[source][row : row + rows].copy() for own in memory]
                for device, rows_ in enumerate(moved):
                    memory[(device + hop) % devices][target][target_row : target_row + rows] = rows_
            case Store(name, row, rows, value):
                for own in memory:
                    own[name][row : row + rows] = value
            case Load(name, row, rows):
                for own in memory:
                    own[name][row : row + rows] += 1
            case _:
                pass
    return [np.concatenate([own[name] for own in memory]) for name in ("h", "v", "w")]


def check_right(result: Result, steps: list[Step], devices: int) -> None:
    assert result.ok
    for got, want in zip(result.outputs, sequential(steps, devices), strict=True):
        np.testing.assert_array_equal(got, want)


def check_conserved(result: Result) -> None:
    """Bytes in equal bytes out, legs end in order, and nothing is faster than its engine."""
    chip = result.place.chip
    for copy in result.trace.copies:
        assert copy.src_region.nbytes == copy.dst_region.nbytes
        assert copy.issued_ps < copy.begin_ps <= copy.read_ps <= copy.written_ps <= result.time
        fastest = max(chip.hbm.bandwidth.number, chip.dma.rate_vmem_to_vmem.number, chip.dma.rate_remote.number)
        assert (copy.read_ps - copy.begin_ps) * 1e-12 >= copy.src_region.nbytes / fastest * (1 - 1e-9) - 1e-12
    for resource in [*result.links.values(), *result.hbms.values()]:
        assert resource.busy_bytes <= resource.capacity * result.time.s * (1 + 1e-9)
    assert sum(resource.busy_bytes for resource in result.links.values()) == sum(
        copy.wire_bytes * copy.hops for copy in result.trace.copies
    )
    assert sum(resource.busy_bytes for resource in result.hbms.values()) == sum(
        copy.wire_bytes * ((copy.src.spec.space is HBM) + (copy.dst.spec.space is HBM)) for copy in result.trace.copies
    )


@given(careful_programs(0))
def test_on_one_device_waiting_at_once_means_the_sequential_order(steps):
    result = simulate(steps, 1)
    check_right(result, steps, 1)
    check_conserved(result)


@given(careful_programs(2), st.integers(2, 3))
def test_on_several_devices_waiting_at_once_means_the_sequential_order(steps, devices):
    result = simulate(steps, devices)
    check_right(result, steps, devices)
    check_conserved(result)


def run_or_fail_as_expected(steps: list[Step], devices: int) -> Result | None:
    failure = None
    try:
        result = simulate(steps, devices, max_time=10_000)
    except FindingError as error:
        failure = error
    if failure is None:
        event("ok")
        check_conserved(result)
        return result
    event(str(failure.finding.kind))
    assert type(failure) in EXPECTED
    assert failure.finding.device is not None
    assert failure.result.outputs is None or failure.finding.kind in CONTINUABLE
    return None


# What orders two accesses (waits, barriers) never leads to an earlier step, so a program of several devices in
# which every conflict is ordered means what it means step by step too.


@given(programs(0))
def test_on_one_device_any_program_is_right_or_fails_as_expected(steps):
    result = run_or_fail_as_expected(steps, 1)
    if result is not None:
        check_right(result, steps, 1)


@given(programs(2), st.integers(2, 3))
def test_on_several_devices_any_program_is_right_or_fails_as_expected(steps, devices):
    result = run_or_fail_as_expected(steps, devices)
    if result is not None:
        check_right(result, steps, devices)


@given(programs(2), st.integers(2, 3))
def test_recorded_runs_take_the_same_way_with_and_without_data(steps, devices):
    with_data, without = (
        simulate(steps, devices, max_time=10_000, on_finding="record", data=data) for data in (True, False)
    )
    assert [copy.written_ps for copy in with_data.trace.copies] == [copy.written_ps for copy in without.trace.copies]
    kinds = [{f.kind for f in result.findings} - {Kind.UNINITIALISED} for result in (with_data, without)]
    assert kinds[0] == kinds[1]


# -- laws of time -------------------------------------------------------------------------------------


def one_copy(shape: tuple[int, ...], hops: int, **options: Any) -> int:
    """How long one copy takes, over ``hops`` links of a row of 4 (0: HBM to VMEM on one device)."""

    def kernel(x_ref, o_ref, send, recv):
        @when(axis_index("x") == 0)
        def _():
            if hops:
                make_async_remote_copy(x_ref, o_ref, send, recv, device_id=hops).start()
                make_async_remote_copy(x_ref, o_ref, send, recv, device_id=hops).wait_send()
            else:
                sync_copy(x_ref, o_ref)

        @when(axis_index("x") == max(hops, 1))
        def _():
            if hops:
                make_async_remote_copy(x_ref, o_ref, send, recv, device_id=0).wait_recv()

    shard = ShapeDtypeStruct(shape, "float32")
    whole = ShapeDtypeStruct((4 * shape[0], *shape[1:]), "float32")
    result = run(
        kernel, whole, mesh=4, slice="v6e:4x4", layout="row-major", data=False, out_shape=shard, in_specs=HBM,
        out_specs=HBM, scratch_shapes=(DMA, DMA), **options,
    )  # fmt: skip
    (copy,) = result.trace.copies
    assert copy.hops == hops
    return copy.written_ps - copy.issued_ps


sizes = st.tuples(st.integers(1, 3000), st.integers(1, 600))
RATES = ("ici.link_bandwidth", "hbm.bandwidth", "dma.rate_remote", "dma.rate_hbm_to_hbm")


@given(sizes, st.integers(0, 500), st.integers(0, 300), st.integers(0, 3))
def test_a_larger_copy_is_never_faster(size, rows, columns, hops):
    assert one_copy(size, hops) <= one_copy((size[0] + rows, size[1] + columns), hops)


@given(sizes, st.integers(1, 2))
def test_more_hops_are_never_faster(size, hops):
    assert one_copy(size, hops) < one_copy(size, hops + 1)


@given(sizes, st.integers(0, 3), st.sampled_from(RATES), st.floats(1e9, 1e12), st.floats(1, 10))
def test_more_bandwidth_is_never_slower(size, hops, name, rate, factor):
    slow, fast = (one_copy(size, hops, set={name: int(value)}) for value in (rate, rate * factor))
    assert fast <= slow


@given(sizes, st.integers(0, 3), st.sampled_from(("ici.hop_latency", "dma.start_latency_remote")), st.floats(0, 1e-5))
def test_more_latency_is_never_faster(size, hops, name, latency):
    assert one_copy(size, hops, set={name: latency}) <= one_copy(size, hops, set={name: latency * 1.5})
