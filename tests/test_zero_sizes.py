"""What moves or adds nothing touches nothing: no race, no lifetime, no crash, and the right data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulating import TILE, tiles

from tpusim import (
    HBM,
    VMEM,
    Kernel,
    SemaphoreType,
    axis_index,
    axis_size,
    ds,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    semaphore_signal,
    semaphore_wait,
    when,
)

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR


def answers(fn: Any, devices: int, expected: Any, **declared: Any) -> None:
    """It is proven, nothing is found in its run, and its data are ``expected``."""
    kernel = Kernel(fn, **{"out_shape": TILE, "in_specs": VMEM, "out_specs": VMEM, **declared})
    verdict = kernel.verify(tiles(devices), mesh=devices, slice="v5e:2x2")
    assert (verdict.answer, verdict.reasons, verdict.findings) == ("proven", (), ())
    result = kernel.simulate(tiles(devices), mesh=devices, slice="v5e:2x2")
    assert result.findings == ()
    np.testing.assert_array_equal(result.outputs[0], expected)


def neighbours() -> tuple[Any, Any]:
    """Meet the next device; this one and that one."""
    me, n = axis_index("x"), axis_size("x")
    barrier = get_barrier_semaphore()
    semaphore_signal(barrier, device_id=(me - 1) % n)
    semaphore_wait(barrier)
    return me, (me + 1) % n


@pytest.mark.parametrize("is_waited", [True, False])
def test_a_remote_copy_of_nothing_may_come_after_its_target_has_left(is_waited: bool) -> None:
    def fn(x_ref: Any, o_ref: Any, send_sem: Any, recv_sem: Any) -> None:
        _, right = neighbours()
        o_ref[...] = x_ref[...]
        copy = make_async_remote_copy(x_ref.at[ds(0, 0)], o_ref.at[ds(0, 0)], send_sem, recv_sem, device_id=right)
        copy.start()
        if is_waited:
            copy.wait()

    answers(fn, 4, tiles(4), scratch_shapes=(DMA, DMA), collective_id=0)


def test_a_signal_of_nothing_may_come_after_its_target_has_left() -> None:
    def fn(x_ref: Any, o_ref: Any, sem: Any) -> None:
        me, right = neighbours()
        semaphore_signal(sem, 1 - (me + 3) // 4, device_id=right)  # 1 from device 0, else 0

        @when(me == 1)
        def _() -> None:
            semaphore_wait(sem)

        semaphore_wait(sem, 0)
        o_ref[...] = x_ref[...]

    answers(fn, 4, tiles(4), scratch_shapes=(REGULAR,), collective_id=0)


def test_a_signal_of_something_is_still_found() -> None:
    def fn(x_ref: Any, o_ref: Any, sem: Any) -> None:
        _, right = neighbours()
        semaphore_signal(sem, 1, device_id=right)
        o_ref[...] = x_ref[...]

    kernel = Kernel(fn, out_shape=TILE, in_specs=VMEM, out_specs=VMEM, scratch_shapes=(REGULAR,), collective_id=0)
    verdict = kernel.verify(tiles(4), mesh=4, slice="v5e:2x2")
    assert verdict.answer == "refuted"
    assert {str(finding.kind) for finding in verdict.errors} == {"leak", "lifetime"}


@given(st.integers(0, 8), st.sampled_from([1, 2, 3]), st.booleans())
def test_parts_of_no_rows_touch_nothing(start: int, stride: int, is_copied: bool) -> None:
    def fn(x_ref: Any, o_ref: Any, buffer: Any, sem: Any, other_sem: Any) -> None:
        nothing = ds(start, 0, stride)
        whole = make_async_copy(x_ref, buffer, sem)
        whole.start()
        if is_copied:
            none = make_async_copy(x_ref.at[ds(start, 0)], buffer.at[ds(start, 0)], other_sem)
            none.start()
            none.wait()
        else:
            buffer[nothing] = buffer[nothing]
        whole.wait()
        o_ref[...] = buffer[...]

    answers(fn, 1, tiles(1), in_specs=HBM, scratch_shapes=(VMEM((8, 128), "float32"), DMA, DMA))
