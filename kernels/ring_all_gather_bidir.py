"""Ring all-gather, both ways: half of every shard travels right, the other half left.

    step 0     dev 0 --top x0--> dev 1 --top x1--> dev 2 --top x2--> dev 3 --top x3--> dev 0
               dev 0 <--low x1-- dev 1 <--low x2-- dev 2 <--low x3-- dev 3 <--low x0-- dev 0
    step s     each device sends on, in both directions, what it received in step s-1

Both directions of every link carry half the bytes, so a large gather takes half the time of the one-way
ring.  As there, halves go straight from their place in one output to the same place in the next.

Cost: signal + (n - 1) x (2 issues + start + half a shard's bytes / link + hop latency).
"""

import numpy as np

import tpusim
from tpusim import (
    HBM,
    SemaphoreType,
    ShapeDtypeStruct,
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


@tpusim.kernel(
    out_shape=lambda x: ShapeDtypeStruct((axis_size("x"), *x.shape), x.dtype),
    in_specs=HBM,
    out_specs=HBM,
    scratch_shapes=lambda x: (SemaphoreType.DMA, SemaphoreType.DMA((2,)), SemaphoreType.DMA((2, axis_size("x")))),
    collective_id=2,
)
def kernel(x_ref, o_ref, own_sem, send_sems, recv_sems):
    n, me = axis_size("x"), axis_index("x")
    left, right = (me - 1) % n, (me + 1) % n

    barrier = get_barrier_semaphore()
    semaphore_signal(barrier, device_id=left)
    semaphore_signal(barrier, device_id=right)
    semaphore_wait(barrier, 2)

    own = make_async_copy(x_ref, o_ref.at[me], own_sem)
    own.start()
    targets, upstream = (right, left), (-1, 1)
    rows = [ds(start, size) for start, size in halves(x_ref.shape, x_ref.dtype)]
    sources, slots, copies = [x_ref.at[half] for half in rows], [me, me], [None, None]
    for step in range(n - 1):
        for way, half in enumerate(rows):
            copies[way] = make_async_remote_copy(
                sources[way],
                o_ref.at[slots[way], half],
                send_sems.at[way],
                recv_sems.at[way, step],
                device_id=targets[way],
            )
            copies[way].start()
        for way, half in enumerate(rows):
            copies[way].wait()
            slots[way] = (slots[way] + upstream[way]) % n  # where the half received in this step has come to lie
            sources[way] = o_ref.at[slots[way], half]
    own.wait()


def halves(shape, dtype):
    """The rows of a shard that travel right, and those that travel left, as ``(start, size)``.

    A copy cannot cut a tile (8 rows of 32 bits), so where rows are tiled the first half is rounded up to
    whole tiles; a shard of one tile goes right as a whole.
    """
    tile = 1 if len(shape) > 2 else 32 // dtype.itemsize
    first = min(shape[0], -(-shape[0] // (2 * tile)) * tile)
    return ((0, first), (first, shape[0] - first))[: 1 if first == shape[0] else 2]


def inputs(devices=4, shape=(16, 128), dtype="float32", seed=0):
    """One global array; ``shape`` is one device's shard."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-100, 100, (devices * shape[0], *shape[1:])).astype(as_dtype(dtype)),)


def reference(x, *, devices=4):
    """All shards, once for each device."""
    shards = x.reshape(devices, x.shape[0] // devices, *x.shape[1:])
    return np.concatenate([shards] * devices)


def lower_bound(slice, x):
    """Every device has to receive the other shards."""
    return slice.all_gather(x.nbytes // slice.num_devices)
