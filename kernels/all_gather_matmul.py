"""``Y = all_gather(X) @ W``: the chunks of X go round the ring, each one multiplied while it travels on.

::

        device 0          device 1          device 2          device 3         X: rows sharded over x
      +----------+      +----------+      +----------+      +----------+       W, Y: columns sharded over x
    ->| X0 . W0  |----->| X1 . W1  |----->| X2 . W2  |----->| X3 . W3  |--+
    | +----------+      +----------+      +----------+      +----------+  |
    +---------------------------------------------------------------------+

    step 0    every device sends its own chunk to the right, and multiplies it by its W
    step s    it holds chunk (me - s): sends it on, multiplies it, writes block (me - s) of its Y
    step N-1  the last chunk is multiplied, not sent

Y comes in blocks of rows, one for each chunk, as an array of ``N x m x n`` a device.

A device has two chunk slots in VMEM, however long the ring: step s reads slot ``s % 2``, while the left
neighbour fills the other one.  Before a neighbour reuses a slot it waits for a *credit*, which its owner
signals when the slot has been multiplied and sent on.  Result blocks leave through two slots of their own.

Cost for N devices, a chunk of ``m x k``, ``W`` of ``k x n`` on each device::

    time = first load + (N - 1) * step + matmul(m, k, n) + write of a block
    step = max(matmul(m, k, n),  start latency + m * k * itemsize / link bandwidth + hop latency + credit)

so the copies are free where ``n`` is large enough.  Lower bound: the all-gather alone, the product alone, or
every array through HBM once, whichever takes longest.
"""

import numpy as np

import tpusim
from tpusim import (
    HBM,
    VMEM,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    axis_size,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    semaphore_signal,
    semaphore_wait,
)
from tpusim import np as jnp
from tpusim.specs import as_dtype
from tpusim.values.numerics import cast


def all_gather_matmul(x_hbm, w_hbm, y_hbm, w_vmem, chunks, results, load_sem, send_sem, recv_sem, write_sem, credit):
    me, size = axis_index("x"), axis_size("x")
    left, right = (me + size - 1) % size, (me + 1) % size

    load_w = make_async_copy(w_hbm, w_vmem, load_sem.at[0])
    load_x = make_async_copy(x_hbm, chunks.at[0], load_sem.at[1])
    load_x.start()
    load_w.start()

    barrier = get_barrier_semaphore()  # with both neighbours: one writes here, the other one is written to
    semaphore_signal(barrier, 1, device_id=left)
    semaphore_signal(barrier, 1, device_id=right)
    semaphore_wait(barrier, 2)

    writes = []
    for step in range(size):
        slot, other = step % 2, (step + 1) % 2
        if step < size - 1:
            if step > 0:
                semaphore_wait(credit, 1)  # the right neighbour has emptied that slot
            send = make_async_remote_copy(
                x_hbm if step == 0 else chunks.at[slot], chunks.at[other], send_sem.at[slot], recv_sem.at[other], right
            )
            send.start()
        if step == 0:
            load_x.wait()
            load_w.wait()
        if step >= 2:
            writes[step - 2].wait()
        product = jnp.dot(chunks[slot], w_vmem[...], preferred_element_type=jnp.float32)
        results[slot] = product.astype(results.dtype)
        source = (me + size - step) % size
        writes.append(make_async_copy(results.at[slot], y_hbm.at[source], write_sem.at[slot]))
        writes[step].start()
        if step < size - 1:
            send.wait_send()
            if step < size - 2:
                semaphore_signal(credit, 1, device_id=left)
            send.wait_recv()  # the next chunk has come from the left
    for write in writes[-2:]:
        write.wait()


def _out_shape(x, w):
    return ShapeDtypeStruct((axis_size("x"), x.shape[0], w.shape[1]), x.dtype)


def _scratch_shapes(x, w):
    return (
        VMEM(w.shape, w.dtype),
        VMEM((2, *x.shape), x.dtype),
        VMEM((2, x.shape[0], w.shape[1]), x.dtype),
        SemaphoreType.DMA((2,)),
        SemaphoreType.DMA((2,)),
        SemaphoreType.DMA((2,)),
        SemaphoreType.DMA((2,)),
        SemaphoreType.REGULAR,
    )


kernel = tpusim.Kernel(
    all_gather_matmul,
    out_shape=_out_shape,
    shard_in=(("x", None), (None, "x")),
    shard_out=(None, None, "x"),
    in_specs=(HBM, HBM),
    out_specs=HBM,
    scratch_shapes=_scratch_shapes,
    collective_id=0,
)


def inputs(devices=4, shape=(128, 256), dtype="float32", seed=0, columns=512):
    """Global ``X`` and ``W``; ``shape`` is one device's shard of X, ``columns`` the width of its shard of W."""
    rng = np.random.default_rng(seed)
    m, k = shape
    x = rng.standard_normal((devices * m, k), np.float32)
    w = rng.standard_normal((k, devices * columns), np.float32)
    return cast(x, as_dtype(dtype)), cast(w, as_dtype(dtype))


def reference(x, w, devices=4):
    """``X @ W``, summed in float32, its rows in ``devices`` blocks."""
    y = cast(x.astype(np.float32) @ w.astype(np.float32), x.dtype)
    return y.reshape(devices, -1, w.shape[1])


def lower_bound(slice, x, w):
    """The all-gather alone, the product alone, or every array through HBM once."""
    rows, k = x.shape
    m, n, item = rows // slice.num_devices, w.shape[1] // slice.num_devices, x.dtype.itemsize
    return max(
        slice.all_gather(m * k * item),
        slice.matmul(rows, k, n, x.dtype),
        slice.local_copy((m * k + k * n) * item, rows * n * item),
    )
