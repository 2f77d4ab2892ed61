"""Kernels of ``test_emit.py``: each uses one part of the language, on the simulator and through real Pallas."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpusim import (
    HBM,
    SMEM,
    VMEM,
    Kernel,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    axis_size,
    delay,
    ds,
    fori_loop,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    num_programs,
    program_id,
    run_scoped,
    semaphore_read,
    semaphore_signal,
    semaphore_wait,
    sync_copy,
    when,
    where,
)
from tpusim import np as tnp

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR


def inputs(devices: Any = 1, shape: Any = (8, 128), dtype: str = "float32", seed: int = 0) -> tuple[Any, ...]:
    count = int(np.prod(devices))
    return (np.arange(count * shape[0] * shape[1], dtype=dtype).reshape(count * shape[0], shape[1]),)


def local_copies(x_ref: Any, o_ref: Any, rows: Any, sems: Any) -> None:
    """HBM -> VMEM -> HBM, in pieces, by descriptors of every form; one waits for what another started."""
    first = make_async_copy(x_ref.at[ds(0, 4)], rows.at[0], sems.at[0])
    second = make_async_copy(x_ref.at[ds(4, 4)], rows.at[1], sems.at[1])
    first.start(priority=1)
    second.start()
    first.wait()
    make_async_copy(rows.at[0], rows.at[1], sems.at[1]).wait_recv()  # only semaphore and size count
    delay(100)
    sync_copy(rows.at[1], o_ref.at[ds(0, 4)])
    sync_copy(rows.at[0], o_ref.at[4:8])


local = Kernel(
    local_copies,
    out_shape=lambda x: x,
    in_specs=HBM,
    out_specs=HBM,
    scratch_shapes=(VMEM((2, 4, 128), "float32"), DMA((2,))),
)


def control(x_ref: Any, o_ref: Any) -> None:
    """Scopes, loops, conditions, strides and tpusim.np: 2x + 1, every second row negated and row 0 zero."""

    def scope(numbers: Any, *, twice: Any) -> None:
        def fill(i: Any, _: None) -> None:
            numbers[i] = i % 2

        fori_loop(0, 8, fill, None)
        total = fori_loop(0, 8, lambda i, carry: carry + numbers[i], 0)
        twice[...] = x_ref[...] * 2

        @when(total == 4)
        def _() -> None:
            twice[...] = twice[...] + tnp.ones((8, 128), "float32")

        @when(True)
        def _() -> None:
            o_ref[...] = twice[...]

        o_ref[ds(0, 4, 2), :] = -twice[ds(0, 4, 2), :]
        o_ref[0] = where(numbers[1] == 1, tnp.zeros((128,), "float32"), o_ref[0])

    run_scoped(scope, SMEM((8,), "int32"), twice=VMEM((8, 128), "float32"))


controlled = Kernel(control, out_shape=lambda x: x)


def gridded(x_ref: Any, o_ref: Any) -> None:
    i = program_id(0)
    o_ref[i] = x_ref[i] * num_programs(0)


grid = Kernel(gridded, out_shape=lambda x: x, grid=(8,))


def in_place(x_ref: Any, o_ref: Any, tile: Any, sem: Any) -> None:
    tile[...] = tnp.full((4, 128), 7, "float32")
    copy = make_async_copy(tile, o_ref.at[ds(4, 4)], sem)
    copy.start()
    copy.wait()


aliased = Kernel(
    in_place,
    out_shape=lambda x: x,
    in_specs=HBM,
    out_specs=HBM,
    scratch_shapes=(VMEM((4, 128), "float32"), DMA),
    input_output_aliases={0: 0},
)


def every_device_id(x_ref: Any, *rest: Any) -> None:
    """On a mesh (x, y): the same shard to four different devices, each named in another way."""
    outputs, (send_sem, recv_sems) = rest[:5], rest[5:]
    x, y = axis_index("x"), axis_index("y")
    other_x, other_y = (x + 1) % axis_size("x"), (y + 1) % axis_size("y")
    both = other_x * axis_size("y") + other_y
    device_ids = [
        (other_x, y),
        {"y": other_y},
        {("x", "y"): both},
        {("y",): other_y, "x": other_x},
        [x, y],  # itself
    ]
    barrier = get_barrier_semaphore()
    for device_id in device_ids[:4]:
        semaphore_signal(barrier, device_id=device_id)
    semaphore_wait(barrier, 4)
    for i, device_id in enumerate(device_ids):
        copy = make_async_remote_copy(x_ref, outputs[i], send_sem, recv_sems.at[i], device_id)
        copy.start()
        copy.wait_send()
        copy.wait_recv()


device_ids = Kernel(
    every_device_id,
    out_shape=lambda x: (x,) * 5,
    axes=("x", "y"),
    in_specs=HBM,
    out_specs=HBM,
    scratch_shapes=(DMA, DMA((5,))),
    collective_id=7,
)


def ring_index(x_ref: Any, o_ref: Any, index: Any, sem: Any, send_sem: Any, recv_sem: Any) -> None:
    """An int device id, a credit to a neighbour, and the row-major index over a tuple of axes."""
    n, me = axis_size(("x",)), axis_index(("x",))
    right = (me + 1) % n
    semaphore_signal(get_barrier_semaphore(), device_id=(me - 1) % n)
    semaphore_wait(get_barrier_semaphore())
    semaphore_signal(sem, 2, device_id=right)
    semaphore_wait(sem, 2)
    index[...] = x_ref[...] * 0 + me.astype("float32")
    copy = make_async_remote_copy(index, o_ref, send_sem, recv_sem, right)
    copy.start()
    copy.wait()


int_ids = Kernel(
    ring_index,
    out_shape=lambda x: x,
    scratch_shapes=lambda x: (VMEM(x.shape, x.dtype), REGULAR, DMA, DMA),
    collective_id=8,
)


def waits_forever(x_ref: Any, o_ref: Any, sem: Any) -> None:
    semaphore_wait(sem)


deadlock = Kernel(waits_forever, out_shape=lambda x: x, scratch_shapes=(REGULAR,))


def fails(x_ref: Any, o_ref: Any) -> None:
    raise RuntimeError("two lines\nof a message")


failing = Kernel(fails, out_shape=lambda x: x)


def adding(x_ref: Any, o_ref: Any, sem: Any) -> None:
    make_async_copy(x_ref, o_ref, sem).start(add=True)


def reading(x_ref: Any, o_ref: Any, sem: Any) -> None:
    o_ref[...] = x_ref[...] + semaphore_read(sem)


def numbering(x_ref: Any, o_ref: Any, sem: Any) -> None:
    make_async_remote_copy(x_ref, o_ref, sem, sem, 0).start()


def signalling(x_ref: Any, o_ref: Any, sem: Any) -> None:
    semaphore_signal(get_barrier_semaphore(), device_id={"z": 0})


def barring(x_ref: Any, o_ref: Any, sem: Any) -> None:
    get_barrier_semaphore()


def scoping(x_ref: Any, o_ref: Any, sem: Any) -> None:
    run_scoped(lambda buffer: None, HBM((8, 128), "float32"))


def two_outputs(x_ref: Any, a_ref: Any, b_ref: Any) -> None:
    a_ref[...] = x_ref[...]
    b_ref[...] = x_ref[0:4]


pair = Kernel(
    two_outputs,
    out_shape=lambda x: (x, ShapeDtypeStruct((4, 128), x.dtype)),
    shard_out=(("x", None), ()),
)
