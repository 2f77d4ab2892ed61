"""Around a run: recorded findings, exceptions of the kernel, the next run, and the user's arrays."""

from __future__ import annotations

import gc
import traceback

import greenlet
import numpy as np
import pytest
from simulating import TILE, error_of, run, tiles

from tpusim import (
    SMEM,
    VMEM,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    axis_size,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    run_scoped,
    semaphore_signal,
    semaphore_wait,
    sync_copy,
    when,
)
from tpusim.errors import DeadlockError, InterruptedRunError, LeakError, LivelockError, OutOfBoundsError, RaceError
from tpusim.findings import CONTINUABLE, Kind
from tpusim.specs import as_dtype

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
BUFFER = VMEM((8, 128), "float32")


def right(x_ref, o_ref, *scratch):
    sync_copy(x_ref, o_ref)


def races(x_ref, o_ref, buffer, sem):
    copy = make_async_copy(x_ref, buffer, sem)
    copy.start()
    buffer[0, 0] = 1.0
    copy.wait()
    sync_copy(x_ref, o_ref)


def leaks(x_ref, o_ref, credit):
    semaphore_signal(credit)
    sync_copy(x_ref, o_ref)


def leaves_a_copy(x_ref, o_ref, sem):
    make_async_copy(x_ref, o_ref, sem).start()


def outlives_its_scope(x_ref, o_ref, sem):
    run_scoped(lambda buffer: make_async_copy(x_ref, buffer, sem).start(), BUFFER)
    make_async_copy(x_ref, o_ref, sem).wait()
    sync_copy(x_ref, o_ref)


def takes_a_barrier(x_ref, o_ref):
    barrier = get_barrier_semaphore()
    semaphore_signal(barrier)
    semaphore_wait(barrier)
    sync_copy(x_ref, o_ref)


def waits_for_ever(x_ref, o_ref, sem):
    make_async_copy(x_ref, o_ref, sem).wait()


def leaves_its_buffer(x_ref, o_ref):
    sync_copy(x_ref.at[axis_index("x") + 8], o_ref.at[0])


MANY = VMEM((8192, 1024), "float32")


@pytest.mark.parametrize(
    ("kernel", "kind", "declared"),
    [
        (races, Kind.RACE, {"scratch_shapes": (BUFFER, DMA)}),
        (leaks, Kind.LEAK, {"scratch_shapes": (REGULAR,)}),
        (leaves_a_copy, Kind.UNWAITED, {"scratch_shapes": (DMA,)}),
        (outlives_its_scope, Kind.LIFETIME, {"scratch_shapes": (DMA,)}),
        (takes_a_barrier, Kind.COLLECTIVE_ID, {}),
        (right, Kind.COLLECTIVE_ID, {"collective_id": 1}),
        (right, Kind.CAPACITY, {"scratch_shapes": (MANY,)}),
        (right, Kind.CAPACITY, {"scratch_shapes": (DMA((600,)),)}),
    ],
)
def test_record_goes_on_after_a_finding(kernel, kind, declared):
    assert kind in CONTINUABLE
    result = run(kernel, tiles(), on_finding="record", **declared)
    assert [finding.kind for finding in result.findings] == [kind]
    assert not result.ok
    assert np.array_equal(result.outputs[0], tiles())


@pytest.mark.parametrize(
    ("kernel", "kind", "keywords"),
    [
        (waits_for_ever, Kind.DEADLOCK, {"scratch_shapes": (DMA,)}),
        (leaves_its_buffer, Kind.OUT_OF_BOUNDS, {}),
        (right, Kind.LIVELOCK, {"max_events": 1}),
    ],
)
def test_record_ends_at_a_finding_that_ends_the_run(kernel, kind, keywords):
    result = run(kernel, tiles(), on_finding="record", **keywords)
    assert [finding.kind for finding in result.findings] == [kind]
    assert result.outputs is None
    assert result.as_dict()["findings"][0]["kind"] == kind


def test_max_events_is_the_number_of_events_a_run_may_take():
    needed = next(count for count in range(1, 100) if run(right, tiles(), max_events=count, on_finding="record").ok)
    assert needed > 1
    error_of(LivelockError, right, tiles(), max_events=needed - 1)


@pytest.mark.parametrize("record", ["raise", "record"])
def test_ctrl_c_is_never_swallowed(record):
    runs = []

    def kernel(x_ref, o_ref):
        runs.append(1)
        if len(runs) == 2:  # the first is the pass over the code
            raise KeyboardInterrupt

    assert error_of(InterruptedRunError, kernel, tiles(), on_finding=record).result.outputs is None


def test_errors_carry_the_result_so_far():
    error = error_of(OutOfBoundsError, leaves_its_buffer, tiles())
    assert list(error.result.findings) == error.findings
    assert error.result.outputs is None
    assert error.result.dmas == 0
    assert error_of(RaceError, races, tiles(), scratch_shapes=(BUFFER, DMA)).result.dmas >= 1


# -- exceptions of the kernel -------------------------------------------------------------------------


def live_greenlets():
    gc.collect()
    return sum(isinstance(thing, greenlet.greenlet) and bool(thing) for thing in gc.get_objects())


def raises_on_device_one(x_ref, o_ref, sem):
    def body(buffer):
        make_async_copy(x_ref, buffer, sem).start()

        @when(axis_index("x") == 1)
        def _():
            raise ValueError("mine")

        make_async_copy(x_ref, buffer, sem).wait()

    run_scoped(body, BUFFER)


@pytest.mark.parametrize("mesh", [2, 4])
def test_exceptions_of_the_kernel_come_out_as_they_are(mesh):
    before = live_greenlets()
    with pytest.raises(ValueError, match="mine") as caught:
        run(raises_on_device_one, tiles(mesh), mesh=mesh, scratch_shapes=(DMA,))
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].line == 'raise ValueError("mine")'
    del caught
    assert live_greenlets() == before


@pytest.mark.parametrize("exception", [AssertionError, RuntimeError, ZeroDivisionError, StopIteration, RecursionError])
def test_every_exception_of_the_kernel_comes_out(exception):
    def kernel(x_ref, o_ref):
        raise exception("mine")

    with pytest.raises(exception, match="mine"):
        run(kernel, tiles(2), mesh=2)


def test_clean_up_code_of_a_kernel_that_is_ended_cannot_go_on():
    def kernel(x_ref, o_ref, sem):
        try:
            make_async_copy(x_ref, o_ref, sem).wait()
        finally:
            make_async_copy(x_ref, o_ref, sem).wait()

    before = live_greenlets()
    error_of(DeadlockError, kernel, tiles(2), mesh=2, scratch_shapes=(DMA,))
    assert live_greenlets() == before


def test_a_good_run_follows_every_kind_of_bad_one():
    bad = [(races, (BUFFER, DMA)), (leaks, (REGULAR,)), (waits_for_ever, (DMA,)), (leaves_its_buffer, ())]
    for kernel, scratch in bad:
        with pytest.raises((RaceError, LeakError, DeadlockError, OutOfBoundsError)):
            run(kernel, tiles(2), mesh=2, scratch_shapes=scratch)
        result = run(right, tiles(2), mesh=2)
        assert result.ok
        assert np.array_equal(result.outputs[0], tiles(2))


# -- arrays -------------------------------------------------------------------------------------------


def test_inputs_are_never_modified():
    def kernel(x_ref, y_ref, o_ref, send, recv):
        sync_copy(x_ref, y_ref)  # overwrites its input
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=1 - axis_index("x"))
        copy.start()
        copy.wait()

    x, y = tiles(2), np.zeros((16, 128), np.float32)
    run(kernel, x, y, mesh=2, scratch_shapes=(DMA, DMA))
    assert np.array_equal(x, tiles(2))
    assert not y.any()


def test_inputs_are_never_modified_even_where_the_pass_over_the_code_fails():
    passes = []

    def kernel(x_ref, o_ref):
        passes.append(1)
        if len(passes) == 1:
            raise RuntimeError("only in the first pass")
        sync_copy(x_ref.at[0:4], x_ref.at[4:8])
        sync_copy(x_ref, o_ref)

    x = tiles()
    result = run(kernel, x)
    assert np.array_equal(x, tiles())
    assert np.array_equal(result.outputs[0][4:], tiles()[:4])


def test_replicated_and_partly_sharded_arrays():
    def kernel(x_ref, w_ref, o_ref, p_ref):
        sync_copy(w_ref, p_ref)
        sync_copy(x_ref, o_ref)

    x = np.arange(16 * 256, dtype=np.float32).reshape(16, 256)
    w = np.arange(8 * 512, dtype=np.float32).reshape(8, 512)
    result = run(
        kernel, x, w, axes=("x", "y"), slice="v5e:2x2", shard_in=(("x", "y"), (None, "y")),
        out_shape=(TILE, ShapeDtypeStruct((8, 256), "float32")), shard_out=(("x", "y"), (None, "y")),
    )  # fmt: skip
    assert np.array_equal(result.outputs[0], x)
    assert np.array_equal(result.outputs[1], w)


def test_one_dimension_over_two_axes():
    def kernel(x_ref, o_ref):
        sync_copy(x_ref, o_ref)

    for dims in ((("x", "y"), None), (("y", "x"), None), (None, ("y", "x"))):
        whole = np.arange(32 * 512, dtype=np.float32).reshape(32, 512)
        shard = (8, 512) if dims[0] else (32, 128)
        result = run(
            kernel, whole, axes=("x", "y"), slice="v5e:2x2", shard_in=(dims,), shard_out=(dims,),
            out_shape=ShapeDtypeStruct(shard, "float32"),
        )  # fmt: skip
        assert np.array_equal(result.outputs[0], whole)


@pytest.mark.parametrize("space", ["hbm", "vmem", "smem"])
def test_an_input_and_an_output_in_one_buffer(space):
    def kernel(x_ref, o_ref, *scratch):
        if space == "hbm":
            sync_copy(x_ref.at[0], o_ref.at[1])
        else:
            for i in range(4):
                o_ref[1, i] = x_ref[0, i]

    spaces = {"hbm": None, "vmem": VMEM, "smem": SMEM}[space]
    keywords = {} if spaces is None else {"in_specs": spaces, "out_specs": spaces}
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    out = ShapeDtypeStruct((2, 4), "float32")
    result = run(kernel, x, out_shape=out, input_output_aliases={0: 0}, **keywords)
    assert np.array_equal(result.outputs[0], [[0, 1, 2, 3], [0, 1, 2, 3]])
    assert np.array_equal(x, np.arange(8).reshape(2, 4))
    assert not result.findings


@pytest.mark.parametrize(("given", "used"), [("float64", "float32"), ("int64", "int32"), ("uint64", "uint32")])
def test_wide_inputs_become_narrow_as_in_jax(given, used):
    def kernel(x_ref, o_ref):
        assert x_ref.dtype == used
        sync_copy(x_ref, o_ref)

    out = ShapeDtypeStruct((8, 128), used)
    assert run(kernel, tiles(dtype=given), out_shape=out).outputs[0].dtype == used
    assert run(kernel, ShapeDtypeStruct((8, 128), given), out_shape=out, data=False).ok


TYPES = ("bool", "int8", "uint8", "int16", "uint32", "bfloat16", "float16", "float8_e4m3fn", "int4")


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_travels(dtype):
    def kernel(x_ref, o_ref, send, recv):
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=(axis_index("x") + 1) % axis_size("x"))
        copy.start()
        copy.wait()

    x = (np.arange(2 * 8 * 128).reshape(16, 128) % 7).astype(as_dtype(dtype))
    out = ShapeDtypeStruct((8, 128), dtype)
    result = run(kernel, x, mesh=2, out_shape=out, scratch_shapes=(DMA, DMA))
    assert np.array_equal(result.outputs[0].astype(np.float32), np.roll(x.astype(np.float32), 8, axis=0))


def test_lists_and_scalars_are_arrays_too():
    out = ShapeDtypeStruct((2,), "int32")
    assert run(right, [3, 4], out_shape=out).outputs[0].tolist() == [3, 4]
