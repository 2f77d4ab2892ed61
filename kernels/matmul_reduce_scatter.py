"""``Y = reduce_scatter(X @ W)``: partial products are added up round the ring while the next one is computed.

::

    X: columns sharded over x     W: rows sharded over x     Y: rows sharded over x
    device d has the partial product  P_d = X_d @ W_d  of the whole of Y; device d wants block d of sum(P)
    X comes in blocks of rows, one for each device's block of Y, as an array of N x m x k a device

    step      device 0      device 1      device 2      device 3      N = 4; the number is the block of Y
     0        P0[3] -->     P1[0] -->     P2[1] -->     P3[2] -->     (the ring closes on the right)
     1      + P0[2] -->   + P1[3] -->   + P2[0] -->   + P3[1] -->
     2      + P0[1] -->   + P1[2] -->   + P2[3] -->   + P3[0] -->
     3      + P0[0] = Y0  + P1[1] = Y1  + P2[2] = Y2  + P3[3] = Y3

In step s device d computes block ``(d - 1 - s) mod N`` of its partial product while the running sum of that
block is still on its way from the left neighbour; then it adds the two and passes the sum on.  Sums travel
as float32 whatever the operands' dtype, from two send slots into two receive slots.  Before a neighbour
reuses a receive slot it waits for a *credit*, which the slot's owner signals when it has added the sum.  The
rows of X for the next step are fetched meanwhile.

Cost for N devices, a shard of X of ``N x m x k``, of W of ``k x n``::

    time = first load + matmul(m, k, n) + (N - 1) * step + write
    step = max(matmul(m, k, n),  start latency + m * n * 4 / link bandwidth + hop latency + credit) + add(m, n)

so the copies are free where ``k`` is large enough.  Lower bound: the reduce-scatter alone (of Y's dtype, which
for bfloat16 is half of what travels here), the product alone, or every array through HBM once, whichever
takes longest.
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


def matmul_reduce_scatter(
    x_hbm, w_hbm, y_hbm, w_vmem, x_vmem, outbox, inbox, y_vmem, w_sem, x_sem, send_sem, recv_sem, y_sem, credit
):
    me, size = axis_index("x"), axis_size("x")
    left, right = (me + size - 1) % size, (me + 1) % size

    def load(step):
        block = (me + 2 * size - 1 - step) % size
        return make_async_copy(x_hbm.at[block], x_vmem.at[step % 2], x_sem.at[step % 2])

    loads = [load(step) for step in range(size)]
    load_w = make_async_copy(w_hbm, w_vmem, w_sem)
    loads[0].start()
    load_w.start()

    barrier = get_barrier_semaphore()  # with both neighbours: one writes here, the other one is written to
    semaphore_signal(barrier, 1, device_id=left)
    semaphore_signal(barrier, 1, device_id=right)
    semaphore_wait(barrier, 2)
    load_w.wait()

    sends = []
    for step in range(size):
        slot, last = step % 2, (step + 1) % 2  # of this step, and of the step before
        if step + 1 < size:
            loads[step + 1].start()
        loads[step].wait()
        total = jnp.dot(x_vmem[slot], w_vmem[...], preferred_element_type=jnp.float32)
        if step > 0:
            sends[step - 1].wait_recv()  # the running sum has come from the left
            total = total + inbox[last]
            if step + 1 < size - 1:  # the left neighbour will fill that slot again
                semaphore_signal(credit, 1, device_id=left)
        if step < size - 1:
            if step >= 2:
                sends[step - 2].wait_send()
                semaphore_wait(credit, 1)  # the right neighbour has emptied that slot
            outbox[slot] = total
            sends.append(
                make_async_remote_copy(outbox.at[slot], inbox.at[slot], send_sem.at[slot], recv_sem.at[slot], right)
            )
            sends[step].start()
        else:
            y_vmem[...] = total.astype(y_vmem.dtype)
    for send in sends[-2:]:
        send.wait_send()
    write = make_async_copy(y_vmem, y_hbm, y_sem)
    write.start()
    write.wait()


def _out_shape(x, w):
    return ShapeDtypeStruct((x.shape[1], w.shape[1]), x.dtype)


def _scratch_shapes(x, w):
    y = _out_shape(x, w)
    return (
        VMEM(w.shape, w.dtype),
        VMEM((2, *x.shape[1:]), x.dtype),
        VMEM((2, *y.shape), "float32"),
        VMEM((2, *y.shape), "float32"),
        VMEM(y.shape, y.dtype),
        SemaphoreType.DMA,
        SemaphoreType.DMA((2,)),
        SemaphoreType.DMA((2,)),
        SemaphoreType.DMA((2,)),
        SemaphoreType.DMA,
        SemaphoreType.REGULAR,
    )


kernel = tpusim.Kernel(
    matmul_reduce_scatter,
    out_shape=_out_shape,
    shard_in=((None, None, "x"), ("x", None)),
    shard_out=("x", None),
    in_specs=(HBM, HBM),
    out_specs=HBM,
    scratch_shapes=_scratch_shapes,
    collective_id=0,
)


def inputs(devices=4, shape=(128, 512), dtype="float32", seed=0, columns=256):
    """Global ``X`` and ``W``; ``shape`` is one block of a device's shard of X, which has ``devices`` of them.

    ``columns`` is the width of W and of Y.
    """
    rng = np.random.default_rng(seed)
    m, k = shape
    x = rng.standard_normal((devices, m, devices * k), np.float32)
    w = rng.standard_normal((devices * k, columns), np.float32)
    return cast(x, as_dtype(dtype)), cast(w, as_dtype(dtype))


def reference(x, w, devices=4):
    """``X @ W``, summed in float32; the blocks of rows one below the other."""
    rows = x.reshape(-1, x.shape[2])
    return cast(rows.astype(np.float32) @ w.astype(np.float32), x.dtype)


def lower_bound(slice, x, w):
    """The reduce-scatter alone, the product alone, or every array through HBM once."""
    (blocks, m, _), n, item = x.shape, w.shape[1], x.dtype.itemsize
    rows, k = blocks * m, w.shape[0] // slice.num_devices
    return max(
        slice.reduce_scatter(m * n * item),
        slice.matmul(rows, k, n, x.dtype),
        slice.local_copy((rows * k + k * n) * item, m * n * item),
    )
