"""Ring attention: the sequence is sharded, K and V go round the ring, each device keeps its Q.

::

        device 0          device 1          device 2          device 3
      +----------+      +----------+      +----------+      +----------+
      | Q0       |      | Q1       |      | Q2       |      | Q3       |       stays
    ->| K0  V0   |----->| K1  V1   |----->| K2  V2   |----->| K3  V3   |--+    travels
    | +----------+      +----------+      +----------+      +----------+  |
    +---------------------------------------------------------------------+

    step s   K, V of device (me - s) are here: they go on to the right while they are used
                 scores = Q @ K^T / sqrt(dim);    top' = max(top, max(scores));    p = exp(scores - top')
                 total  = total * exp(top - top') + sum(p)
                 acc    = acc   * exp(top - top') + p @ V
    end      output = acc / total

Not causal; every head on its own.  A device has two slots in VMEM, each for a K and a V: step s reads slot
``s % 2`` while the left neighbour fills the other one.  Before a neighbour reuses a slot it waits for a
*credit*, which its owner signals when the slot has been used and sent on.  A step changes only the order in
which the softmax is summed, so the result is that of ordinary attention up to rounding.

Cost for N devices, H heads, a shard of S positions::

    time   = first load + (N - 1) * step + attend + write
    step   = max(attend,  start latency + 2 * H * S * dim * itemsize / link bandwidth + hop latency + credit)
    attend = H * (matmul(S, dim, S) + softmax(S, S) + matmul(S, S, dim))

so the copies are free where ``S`` is large enough.  Lower bound: the all-gather of K and V alone, the two
products alone, or every array through HBM once, whichever takes longest.
"""

import math

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


def ring_attention(
    q_hbm, k_hbm, v_hbm, o_hbm, q_vmem, kv, acc, top, total, o_vmem, q_sem, load_sem, send_sem, recv_sem, o_sem, credit
):
    me, size = axis_index("x"), axis_size("x")
    left, right = (me + size - 1) % size, (me + 1) % size
    heads, _, dim = q_hbm.shape

    load_q = make_async_copy(q_hbm, q_vmem, q_sem)
    load_kv = [make_async_copy(src, kv.at[0, i], load_sem.at[i]) for i, src in enumerate((k_hbm, v_hbm))]
    for load in (load_q, *load_kv):
        load.start()

    barrier = get_barrier_semaphore()  # with both neighbours: one writes here, the other one is written to
    semaphore_signal(barrier, 1, device_id=left)
    semaphore_signal(barrier, 1, device_id=right)
    semaphore_wait(barrier, 2)

    acc[...] = jnp.zeros(acc.shape, jnp.float32)
    total[...] = jnp.zeros(total.shape, jnp.float32)
    top[...] = jnp.full(top.shape, -math.inf, jnp.float32)

    def attend(head, slot):
        k, v = kv[slot, 0, head], kv[slot, 1, head]
        scores = jnp.dot(q_vmem[head], k.T, preferred_element_type=jnp.float32) * (1 / math.sqrt(dim))
        new_top = jnp.maximum(top[head], jnp.max(scores, axis=1, keepdims=True))
        rescale = jnp.exp(top[head] - new_top)
        p = jnp.exp(scores - new_top)
        total[head] = total[head] * rescale + jnp.sum(p, axis=1, keepdims=True)
        acc[head] = acc[head] * rescale + jnp.dot(p.astype(v.dtype), v, preferred_element_type=jnp.float32)
        top[head] = new_top

    for step in range(size):
        slot, other = step % 2, (step + 1) % 2
        sends = []
        if step < size - 1:
            if step > 0:
                semaphore_wait(credit, 1)  # the right neighbour has emptied that slot
            sources = (k_hbm, v_hbm) if step == 0 else (kv.at[slot, 0], kv.at[slot, 1])
            sends = [
                make_async_remote_copy(src, kv.at[other, i], send_sem.at[slot, i], recv_sem.at[other, i], right)
                for i, src in enumerate(sources)
            ]
        for send in sends:
            send.start()
        if step == 0:
            for load in (load_q, *load_kv):
                load.wait()
        for head in range(heads):
            attend(head, slot)
        for send in sends:
            send.wait_send()
        if step < size - 2:
            semaphore_signal(credit, 1, device_id=left)
        for send in sends:
            send.wait_recv()  # the next K and V have come from the left

    o_vmem[...] = (acc[...] / total[...]).astype(o_vmem.dtype)
    write = make_async_copy(o_vmem, o_hbm, o_sem)
    write.start()
    write.wait()


def _out_shape(q, k, v):
    return ShapeDtypeStruct(q.shape, q.dtype)


def _scratch_shapes(q, k, v):
    heads, positions, _ = q.shape
    return (
        VMEM(q.shape, q.dtype),
        VMEM((2, 2, *k.shape), k.dtype),
        VMEM(q.shape, "float32"),
        VMEM((heads, positions, 1), "float32"),
        VMEM((heads, positions, 1), "float32"),
        VMEM(q.shape, q.dtype),
        SemaphoreType.DMA,
        SemaphoreType.DMA((2,)),
        SemaphoreType.DMA((2, 2)),
        SemaphoreType.DMA((2, 2)),
        SemaphoreType.DMA,
        SemaphoreType.REGULAR,
    )


kernel = tpusim.Kernel(
    ring_attention,
    out_shape=_out_shape,
    shard_in=((None, "x", None),) * 3,
    shard_out=(None, "x", None),
    in_specs=(HBM, HBM, HBM),
    out_specs=HBM,
    scratch_shapes=_scratch_shapes,
    collective_id=0,
)


def inputs(devices=4, shape=(2, 128, 128), dtype="float32", seed=0):
    """Global ``Q, K, V``; ``shape`` is one device's shard of each: heads, positions, head dimension."""
    rng = np.random.default_rng(seed)
    heads, positions, dim = shape
    q, k, v = rng.standard_normal((3, heads, devices * positions, dim), np.float32)
    return tuple(cast(array, as_dtype(dtype)) for array in (q, k, v))


def reference(q, k, v, devices=4):
    """``softmax(Q @ K^T / sqrt(dim)) @ V`` for each head, in float32."""
    q32, k32, v32 = (array.astype(np.float32) for array in (q, k, v))
    scores = q32 @ k32.swapaxes(1, 2) / np.float32(math.sqrt(q.shape[2]))
    p = np.exp(scores - scores.max(axis=2, keepdims=True))
    return cast(p / p.sum(axis=2, keepdims=True) @ v32, q.dtype)


def lower_bound(slice, q, k, v):
    """The all-gather of K and V alone, the two products alone, or every array through HBM once."""
    heads, positions, dim = q.shape
    rows = heads * positions // slice.num_devices
    size_bytes = rows * dim * q.dtype.itemsize
    return max(
        slice.all_gather(2 * size_bytes),
        slice.matmul(rows, dim, 2 * positions, q.dtype),  # both products, as one of the same number of operations
        slice.local_copy(3 * size_bytes, size_bytes),
    )
