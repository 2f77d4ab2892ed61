"""Random DMA programs: each means what its sequential order means, or fails with the right error.

A program is a list of steps that every device runs.  Its sequential meaning performs each copy at its start
(:mod:`tpusim.testing.programs`).  A program that waits for each copy at once must end well with that data; any
other may instead raise one of the errors that a missing or misplaced wait deserves, and nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st
from simulating import run

from tpusim import (
    HBM,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    make_async_remote_copy,
    sync_copy,
    when,
)
from tpusim.errors import DeadlockError, FindingError, LeakError, LifetimeError, RaceError, UnwaitedError
from tpusim.findings import CONTINUABLE, Kind
from tpusim.result import Result
from tpusim.testing import DmaProgram, dma_programs

EXPECTED = {DeadlockError, LeakError, LifetimeError, RaceError, UnwaitedError}
DMA = SemaphoreType.DMA


def check_right(result: Result, program: DmaProgram) -> None:
    assert result.ok
    for got, want in zip(result.outputs, program.reference(), strict=True):
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


@given(dma_programs(is_careful=True))
def test_on_one_device_waiting_at_once_means_the_sequential_order(program):
    result = program.simulate()
    check_right(result, program)
    check_conserved(result)


@given(st.integers(2, 3).flatmap(lambda devices: dma_programs(devices=devices, is_careful=True, max_steps=8)))
def test_on_several_devices_waiting_at_once_means_the_sequential_order(program):
    result = program.simulate()
    check_right(result, program)
    check_conserved(result)


def run_or_fail_as_expected(program: DmaProgram) -> Result | None:
    failure = None
    try:
        result = program.simulate(max_time=10_000)
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


@given(dma_programs())
def test_on_one_device_any_program_is_right_or_fails_as_expected(program):
    result = run_or_fail_as_expected(program)
    if result is not None:
        check_right(result, program)


@given(st.integers(2, 3).flatmap(lambda devices: dma_programs(devices=devices)))
def test_on_several_devices_any_program_is_right_or_fails_as_expected(program):
    result = run_or_fail_as_expected(program)
    if result is not None:
        check_right(result, program)


@given(st.integers(2, 3).flatmap(lambda devices: dma_programs(devices=devices)))
def test_recorded_runs_take_the_same_way_with_and_without_data(program):
    with_data, without = (program.simulate(max_time=10_000, on_finding="record", data=data) for data in (True, False))
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
