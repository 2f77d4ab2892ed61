"""Ring all-gather, one way: every device ends with the shards of all n devices, stacked.

    step 0     dev 0 --x0--> dev 1 --x1--> dev 2 --x2--> dev 3 --x3--> dev 0
    step 1     dev 0 --x3--> dev 1 --x0--> dev 2 --x1--> dev 3 --x2--> dev 0
    step 2     dev 0 --x2--> dev 1 --x3--> dev 2 --x0--> dev 3 --x1--> dev 0        o = [x0, x1, x2, x3]

In step s a device sends on what it received in step s-1, straight from its place in the output into the
same place of its right neighbour's output: no buffer is used twice.  The left neighbour may run ahead by
several steps, so each step has a receive semaphore of its own; a core has 512, so beyond ``WINDOW`` steps they
are used again, each after a credit from the neighbour that has waited on it.

Cost: signal + (n - 1) x (issue + start + shard bytes / link + hop latency).
"""

import numpy as np

import tpusim
from tpusim import (
    HBM,
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
from tpusim.specs import as_dtype

WINDOW = 256
"""Steps that the left neighbour may be ahead."""


def _scratch_shapes(x):
    receive = SemaphoreType.DMA((min(axis_size("x"), WINDOW),))
    return SemaphoreType.DMA, SemaphoreType.DMA, receive, SemaphoreType.REGULAR


@tpusim.kernel(
    out_shape=lambda x: ShapeDtypeStruct((axis_size("x"), *x.shape), x.dtype),
    in_specs=HBM,
    out_specs=HBM,
    scratch_shapes=_scratch_shapes,
    collective_id=1,
)
def kernel(x_ref, o_ref, own_sem, send_sem, recv_sems, credit):
    n, me = axis_size("x"), axis_index("x")
    left, right = (me - 1) % n, (me + 1) % n

    barrier = get_barrier_semaphore()
    semaphore_signal(barrier, device_id=left)  # left may now write into o_ref
    semaphore_wait(barrier)

    own = make_async_copy(x_ref, o_ref.at[me], own_sem)
    own.start()
    source, slot = x_ref, me
    for step in range(n - 1):
        if step >= WINDOW:
            semaphore_wait(credit)
        place = source if step else o_ref.at[slot]
        copy = make_async_remote_copy(source, place, send_sem, recv_sems.at[step % WINDOW], device_id=right)
        copy.start()
        copy.wait()
        if step + WINDOW < n - 1:
            semaphore_signal(credit, device_id=left)
        slot = (slot - 1) % n  # where left's copy of this step has come to lie
        source = o_ref.at[slot]
    own.wait()


def inputs(devices=4, shape=(8, 128), dtype="float32", seed=0):
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
