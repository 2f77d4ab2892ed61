"""Right permute: every device sends its shard to its right neighbour on a ring.

    +-> dev 0 --x0--> dev 1 --x1--> dev 2 --x2--> dev 3 -+
    +-------------------------x3-------------------------+        o = x of the left neighbour

One remote copy a device.  It may write into its right neighbour only once that has entered the kernel, so
each device first tells its left neighbour, the only one that writes into it, that it is there.

Cost: signal + issue + start + shard bytes / link + hop latency.
"""

import numpy as np

import tpusim
from tpusim import (
    HBM,
    SemaphoreType,
    axis_index,
    axis_size,
    get_barrier_semaphore,
    make_async_remote_copy,
    semaphore_signal,
    semaphore_wait,
)
from tpusim.specs import as_dtype


@tpusim.kernel(
    out_shape=lambda x: x,
    in_specs=HBM,
    out_specs=HBM,
    scratch_shapes=(SemaphoreType.DMA, SemaphoreType.DMA),
    collective_id=0,
)
def kernel(x_ref, o_ref, send_sem, recv_sem):
    n, me = axis_size("x"), axis_index("x")
    left, right = (me - 1) % n, (me + 1) % n

    barrier = get_barrier_semaphore()
    semaphore_signal(barrier, device_id=left)  # left may now write into o_ref
    semaphore_wait(barrier)

    copy = make_async_remote_copy(x_ref, o_ref, send_sem, recv_sem, device_id=right)
    copy.start()
    copy.wait()


def inputs(devices=4, shape=(8, 128), dtype="float32", seed=0):
    """One global array; ``shape`` is one device's shard."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-100, 100, (devices * shape[0], *shape[1:])).astype(as_dtype(dtype)),)


def reference(x, *, devices=4):
    """The shards, each one place further right."""
    return np.roll(x, x.shape[0] // devices, axis=0)


def lower_bound(slice, x):
    """Every device has to send its shard to the next."""
    return slice.permute(x.nbytes // slice.num_devices)
