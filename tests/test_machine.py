"""The machine as a kernel sees it: scopes, entry, devices, copies, data, and how a run ends."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from simulating import run, tiles

import tpusim
from tpusim import (
    SMEM,
    VMEM,
    AsyncCopyDescriptor,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    axis_size,
    fori_loop,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    run_scoped,
    semaphore_signal,
    semaphore_wait,
    sync_copy,
    when,
)
from tpusim.findings import Kind

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
BUFFER = VMEM((8, 128), "float32")


def shift(x_ref, o_ref, send, recv):
    """Every device sends its tile to its right neighbour."""
    right = (axis_index("x") + 1) % axis_size("x")
    copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=right)
    copy.start()
    copy.wait()


def events(result):
    """Everything a run did, with its times."""
    return [
        (str(copy), copy.issued_ps, copy.begin_ps, copy.read_ps, copy.written_ps) for copy in result.trace.copies
    ] + [(wait.core.device, str(wait.semaphore), wait.amount, wait.from_ps, wait.to_ps) for wait in result.trace.waits]


# -- entry --------------------------------------------------------------------------------------------


def test_a_kernel_with_a_remote_copy_starts_with_a_barrier_of_all_devices():
    result = run(shift, tiles(4), mesh=4, scratch_shapes=(DMA, DMA))
    sent = [(signal.core.device, signal.semaphore.device) for signal in result.trace.signals]
    assert sorted(sent) == [(0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0)]
    passed = {wait.core.device: wait.to_ps for wait in result.trace.waits if "barrier" in str(wait.semaphore)}
    assert set(passed) == {0, 1, 2, 3}
    for copy in result.trace.copies:
        assert copy.issued_ps >= passed[copy.core.device] > 0


def test_a_kernel_that_takes_a_barrier_semaphore_is_on_its_own():
    def kernel(x_ref, o_ref, send, recv):
        barrier = get_barrier_semaphore()
        me, n = axis_index("x"), axis_size("x")
        semaphore_signal(barrier, device_id=(me - 1) % n)
        semaphore_wait(barrier)
        shift(x_ref, o_ref, send, recv)

    result = run(kernel, tiles(4), mesh=4, scratch_shapes=(DMA, DMA), collective_id=5)
    assert len(result.trace.signals) == 4
    assert np.array_equal(result.outputs[0], np.roll(tiles(4), 8, axis=0))


def test_local_kernels_and_single_devices_have_no_barrier():
    def local(x_ref, o_ref, send, recv):
        sync_copy(x_ref, o_ref)

    assert not run(local, tiles(4), mesh=4, scratch_shapes=(DMA, DMA)).trace.signals
    assert not run(shift, tiles(), mesh=1, scratch_shapes=(DMA, DMA)).trace.signals


def test_a_remote_copy_in_code_that_never_runs_still_makes_the_barrier():
    def kernel(x_ref, o_ref, send, recv):
        @when(axis_index("x") > 99)
        def _():
            shift(x_ref, o_ref, send, recv)

    assert len(run(kernel, tiles(2), mesh=2, scratch_shapes=(DMA, DMA)).trace.signals) == 2


def test_whole_operands_in_vmem_and_smem_are_copied_in_and_out():
    def kernel(table, x_ref, o_ref):
        o_ref[...] = x_ref[...] + table[1].astype("float32")

    result = run(
        kernel, np.arange(4), tiles(), in_specs=(SMEM, VMEM), out_specs=VMEM, shard_in=((), ()), shard_out=((),)
    )
    assert np.array_equal(result.outputs[0], tiles() + 1)
    assert result.dmas == 3


def test_scopes_use_their_storage_again_and_begin_with_nothing():
    seen = []

    def kernel(x_ref, o_ref):
        def body(buffer, sem):
            seen.append(buffer[0, 0].value)
            buffer[0, 0] = 1.0
            make = make_async_copy(buffer, o_ref, sem)
            make.start()
            make.wait()

        for _ in range(3):
            run_scoped(body, VMEM((1024, 1024), "float32"), DMA)
            run_scoped(lambda other: None, other=VMEM((3072, 1024), "float32"))

    result = run(kernel, tiles(), out_shape=ShapeDtypeStruct((1024, 1024), "float32"))
    assert result.ok
    assert len(seen) == 6  # a pass over the code, and the run
    assert np.isnan(seen[3:]).all()


def test_scopes_give_back_what_their_body_returns_and_may_nest():
    def kernel(x_ref, o_ref):
        def inner(outer):
            def deep(buffer):
                buffer[3, 4] = 2.0
                return buffer[3, 4]

            outer[0, 0] = 1.0
            return run_scoped(deep, BUFFER) + outer[0, 0]

        total = run_scoped(inner, BUFFER)
        run_scoped(
            lambda buffer: (buffer.__setitem__(..., tpusim.np.full((8, 128), total)), sync_copy(buffer, o_ref))[0],
            BUFFER,
        )

    assert (run(kernel, tiles()).outputs[0] == 3).all()


# -- devices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["tuple", "list", "dict", "joined"])
def test_device_ids_on_two_axes(form):
    def kernel(x_ref, o_ref, send, recv):
        x, y = axis_index("x"), axis_index("y")
        up = (y + 1) % axis_size("y")
        device_id = {"tuple": (x, up), "list": [x, up], "dict": {"y": up}, "joined": {("x", "y"): x * 4 + up}}
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=device_id[form])
        copy.start()
        copy.wait()

    result = run(kernel, tiles(8), axes=("x", "y"), slice="v5e:2x4", scratch_shapes=(DMA, DMA))
    assert np.array_equal(result.outputs[0], np.roll(tiles(8).reshape(2, 4, 8, 128), 1, axis=1).reshape(64, 128))


@pytest.mark.parametrize("device_id", [1, np.int32(1), (1,), [1], {"x": 1}, {"x": np.int64(1)}])
def test_signals_take_the_same_device_ids(device_id):
    def kernel(x_ref, o_ref, credit):
        semaphore_signal(credit, 2, device_id=device_id)

        @when(axis_index("x") == 1)
        def _():
            semaphore_wait(credit, 6)

    assert run(kernel, tiles(3), mesh=3, scratch_shapes=(REGULAR,)).ok


def test_a_remote_copy_to_oneself_crosses_no_link():
    def kernel(x_ref, o_ref, send, recv):
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=axis_index("x"))
        copy.start()
        copy.wait_send()
        copy.wait_recv()

    result = run(kernel, tiles(2), mesh=2, scratch_shapes=(DMA, DMA))
    assert result.ok
    assert not result.links
    assert np.array_equal(result.outputs[0], tiles(2))


def test_split_cores_share_the_memory_of_their_chip():
    def kernel(x_ref, o_ref):
        sync_copy(x_ref, o_ref)

    rows = 4096
    wide = ShapeDtypeStruct((8 * rows, 128), "float32")
    joined = run(
        kernel, wide, out_shape=ShapeDtypeStruct((2 * rows, 128), "float32"), slice="v5p:2x2x1", mesh=4, data=False
    )
    split = run(
        kernel,
        wide,
        out_shape=ShapeDtypeStruct((rows, 128), "float32"),
        slice="v5p:2x2x1",
        mesh=8,
        cores="split",
        data=False,
    )
    assert len(joined.hbms) == len(split.hbms) == 4
    assert split.time >= joined.time * 0.9  # the same bytes through the same four memories


def test_the_two_devices_of_a_v7x_chip_have_their_own_memory_and_a_link_between_them():
    def kernel(x_ref, o_ref, send, recv):
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=1 - axis_index("x"))
        copy.start()
        copy.wait()

    size = ShapeDtypeStruct((1 << 14, 1024), "float32")
    both = ShapeDtypeStruct((1 << 15, 1024), "float32")
    dies = run(kernel, both, out_shape=size, slice="v7x:1x1x1", mesh=2, data=False, scratch_shapes=(DMA, DMA))
    chips = run(
        kernel, both, out_shape=size, slice="v7x:2x2x1", mesh=2, layout=[(0, 0, 0, 0), (1, 0, 0, 0)], data=False,
        scratch_shapes=(DMA, DMA),
    )  # fmt: skip
    assert len(dies.hbms) == 2
    assert len(dies.links) == 2
    assert dies.time < chips.time


# -- copies -------------------------------------------------------------------------------------------


def test_priority_one_is_served_first():
    def kernel(x_ref, o_ref, sems):
        copies = [make_async_copy(x_ref.at[i], o_ref.at[i], sems.at[i]) for i in range(4)]
        for i, copy in enumerate(copies):
            copy.start(priority=int(i == 3))
        for copy in copies:
            copy.wait()

    shape = ShapeDtypeStruct((4, 1024, 1024), "float32")
    result = run(kernel, shape, out_shape=shape, data=False, scratch_shapes=(DMA((4,)),))
    assert result.ok
    written = [copy.written_ps for copy in result.trace.copies]
    assert written[3] < min(written[:3])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "int8"])
def test_add_adds(dtype):
    def kernel(x_ref, o_ref, sem):
        sync_copy(x_ref, o_ref)
        copy = make_async_copy(x_ref, o_ref, sem)
        copy.start(add=True)
        copy.wait()

    x = np.full((8, 128), 3).astype(tpusim.specs.as_dtype(dtype))
    result = run(kernel, x, out_shape=ShapeDtypeStruct((8, 128), dtype), scratch_shapes=(DMA,))
    assert (result.outputs[0] == 6).all()


def test_add_to_a_single_element():
    def kernel(x_ref, o_ref, sem):
        sync_copy(x_ref, o_ref)
        copy = make_async_copy(x_ref.at[1, 2], o_ref.at[0, 0], sem)
        copy.start(add=True)
        copy.wait()

    result = run(kernel, tiles(), scratch_shapes=(DMA,), on_finding="record")  # less than the compiler copies
    assert result.outputs[0][0, 0] == tiles()[1, 2]


@pytest.mark.parametrize("part", [(slice(0, 0),), (slice(8, 8),), (3, slice(5, 5))])
def test_copies_of_nothing_take_time_and_move_nothing(part):
    def kernel(x_ref, o_ref, sem):
        sync_copy(x_ref, o_ref)
        copy = make_async_copy(x_ref.at[part], o_ref.at[part], sem)
        copy.start()
        copy.wait()

    result = run(kernel, tiles(), scratch_shapes=(DMA,))
    assert result.ok
    assert result.bytes == 4096
    assert np.array_equal(result.outputs[0], tiles())


def test_arrays_without_elements():
    def kernel(x_ref, o_ref):
        sync_copy(x_ref, o_ref)

    empty = np.zeros((0, 128), np.float32)
    assert run(kernel, empty, out_shape=ShapeDtypeStruct((0, 128), "float32")).outputs[0].shape == (0, 128)


def test_a_descriptor_made_by_its_class_is_checked_when_it_is_used():
    def kernel(x_ref, o_ref, sem):
        AsyncCopyDescriptor(x_ref, o_ref, sem).start()
        AsyncCopyDescriptor(x_ref, o_ref, sem).wait()

    assert np.array_equal(run(kernel, tiles(), scratch_shapes=(DMA,)).outputs[0], tiles())


def test_a_racing_load_sees_sentinels_where_bytes_are_in_flight_and_nowhere_else():
    seen = []

    def kernel(x_ref, o_ref, buffer, sem):
        buffer[...] = tpusim.np.full((8, 128), 5.0)
        copy = make_async_copy(x_ref.at[0:4], buffer.at[0:4], sem)
        copy.start()
        seen[:] = [buffer[2:6, :], buffer[0, 0], buffer[4, 0]]
        copy.wait()
        sync_copy(buffer, o_ref)

    result = run(kernel, tiles(), scratch_shapes=(BUFFER, DMA), on_finding="record")
    assert {finding.kind for finding in result.findings} == {Kind.RACE}
    block, inside, outside = seen
    assert np.isnan(block.data[:2]).all()
    assert (block.data[2:] == 5).all()
    assert np.isnan(inside.value)
    assert outside.value == 5


# -- sameness -----------------------------------------------------------------------------------------


def busy(x_ref, o_ref, buffer, send, recv, credit):
    def step(_, carry):
        shift(x_ref, o_ref, send, recv)
        local = make_async_copy(o_ref, buffer, send)
        local.start()
        local.wait()
        buffer[...] = buffer[...] * 2.0
        semaphore_signal(credit, device_id=(axis_index("x") - 1) % axis_size("x"))
        semaphore_wait(credit)
        return carry

    fori_loop(0, 3, step, None)


BUSY = {"scratch_shapes": (BUFFER, DMA, DMA, REGULAR), "mesh": 8}


def test_without_data_times_and_events_are_the_same():
    assert events(run(busy, tiles(8), **BUSY)) == events(run(busy, tiles(8), data=False, **BUSY))


def test_two_runs_are_the_same():
    first, second = run(busy, tiles(8), **BUSY), run(busy, tiles(8), **BUSY)
    assert events(first) == events(second)
    assert first.time == second.time
    assert np.array_equal(first.outputs[0], second.outputs[0])


def test_runs_are_the_same_under_another_hash_seed():
    code = "import test_machine as t; print(hash('x')); print(t.events(t.run(t.busy, t.tiles(8), **t.BUSY)))"
    texts = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.path.dirname(__file__)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60
        )
        texts.append(done.stdout.splitlines())
    assert texts[0][0] != texts[1][0]
    assert texts[0][1] == texts[1][1] == str(events(run(busy, tiles(8), **BUSY)))
