"""All-reduce on a ring, both ways: every device ends with the sum of all n arrays.

    reduce-scatter    dev 0 --x0[3]--> dev 1 --(+x1[3])--> dev 2 --(+x2[3])--> dev 3 (+x3[3]) = sum[3]
    all-gather        dev 3 --sum[3]--> dev 0 --sum[3]--> dev 1 --sum[3]--> dev 2

Every array has one piece for each device.  First the sum of piece i goes round the ring and gathers one
device's part at each stop, until it is whole on device i (``ring_reduce_scatter.py``: two slots in VMEM and
a credit for each send after the first); then the whole pieces go round, from place to place in the outputs
(``ring_all_gather_bidir.py``).  Upper halves of the pieces travel right, lower halves left.  A device that
has its whole piece begins the second round at once: its neighbour's output waits for it since the barrier.

Cost: signal + 2 (n - 1) x (2 issues + start + half a piece's bytes / link + hop latency) + (n - 1) x 2 additions.
"""

import numpy as np

import tpusim
from tpusim import (
    HBM,
    VMEM,
    SemaphoreType,
    axis_index,
    axis_size,
    ds,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    semaphore_signal,
    semaphore_wait,
)
from tpusim.specs import as_dtype


def scratch(x):
    """Slots and parts for both directions, each as large as the first half of a piece."""
    (_, rows), *_ = halves(x.shape[1:], x.dtype)
    half = (rows, *x.shape[2:])
    return (
        VMEM((2, 2, *half), x.dtype),
        VMEM((2, *half), x.dtype),
        SemaphoreType.DMA((2,)),
        SemaphoreType.DMA((2,)),
        SemaphoreType.DMA((2, 2)),
        SemaphoreType.REGULAR((2,)),
        SemaphoreType.DMA((2, axis_size("x"))),
    )


@tpusim.kernel(out_shape=lambda x: x, in_specs=HBM, out_specs=HBM, scratch_shapes=scratch, collective_id=4)
def kernel(x_ref, o_ref, slots, parts, local_sems, send_sems, recv_sems, credits, gather_sems):
    n, me = axis_size("x"), axis_index("x")
    left, right = (me - 1) % n, (me + 1) % n

    barrier = get_barrier_semaphore()
    semaphore_signal(barrier, device_id=left)
    semaphore_signal(barrier, device_id=right)
    semaphore_wait(barrier, 2)

    targets, senders, upstream = (right, left), (left, right), (-1, 1)
    split = halves(x_ref.shape[1:], x_ref.dtype)
    flows = [(way, ds(start, size), ds(0, size)) for way, (start, size) in enumerate(split)]
    pieces, sends, loads = [left, right], [None, None], [None, None]
    for way, half, rows in flows:  # the sum for my neighbour upstream starts with my part
        loads[way] = make_async_copy(x_ref.at[pieces[way], half], slots.at[way, 0, rows], local_sems.at[way])
        loads[way].start()
    for way, _, _ in flows:
        loads[way].wait()
    for step in range(n - 1):
        old, new = step % 2, (step + 1) % 2
        for way, half, rows in flows:
            if step > 0:
                semaphore_wait(credits.at[way])  # the target has sent on what was in its slot `new`
            sends[way] = make_async_remote_copy(
                slots.at[way, old, rows],
                slots.at[way, new, rows],
                send_sems.at[way],
                recv_sems.at[way, new],
                device_id=targets[way],
            )
            sends[way].start()
            pieces[way] = (pieces[way] + upstream[way]) % n
            loads[way] = make_async_copy(x_ref.at[pieces[way], half], parts.at[way, rows], local_sems.at[way])
            loads[way].start()
        for way, _, rows in flows:
            sends[way].wait_send()
            if step < n - 2:
                semaphore_signal(credits.at[way], device_id=senders[way])  # my slot `old` is empty
            loads[way].wait()
            sends[way].wait_recv()
            slots[way, new, rows] = slots[way, new, rows] + parts[way, rows]

    # Now pieces == [me, me], and slot (n - 1) % 2 of each way holds that half of the whole sum.
    sources = [slots.at[way, (n - 1) % 2, rows] for way, _, rows in flows]
    stores = [make_async_copy(sources[way], o_ref.at[me, half], local_sems.at[way]) for way, half, _ in flows]
    for store in stores:
        store.start()
    for step in range(n - 1):
        for way, half, _ in flows:
            sends[way] = make_async_remote_copy(
                sources[way],
                o_ref.at[pieces[way], half],
                send_sems.at[way],
                gather_sems.at[way, step],
                device_id=targets[way],
            )
            sends[way].start()
        for way, half, _ in flows:
            sends[way].wait()
            pieces[way] = (pieces[way] + upstream[way]) % n
            sources[way] = o_ref.at[pieces[way], half]
    for store in stores:
        store.wait()


def halves(shape, dtype):
    """The rows of a shard that travel right, and those that travel left, as ``(start, size)``.

    A copy cannot cut a tile (8 rows of 32 bits), so where rows are tiled the first half is rounded up to
    whole tiles; a shard of one tile goes right as a whole.
    """
    tile = 1 if len(shape) > 2 else 32 // dtype.itemsize
    first = min(shape[0], -(-shape[0] // (2 * tile)) * tile)
    return ((0, first), (first, shape[0] - first))[: 1 if first == shape[0] else 2]


def inputs(devices=4, shape=(16, 128), dtype="float32", seed=0):
    """One global array; ``shape`` is the piece of the array that one device sums up, of which every device brings n."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-100, 100, (devices * devices, *shape)).astype(as_dtype(dtype)),)


def reference(x, *, devices=4):
    """The sum of all arrays, once for each device."""
    total = x.astype(np.float64 if x.dtype.kind not in "iu" else x.dtype).reshape(devices, devices, *x.shape[1:]).sum(0)
    return np.concatenate([total.astype(x.dtype)] * devices)


def lower_bound(slice, x):
    """Every device has to send its array and receive the sum."""
    return slice.all_reduce(x.nbytes // slice.num_devices)
