"""Barrier with a double handshake: no device leaves before all have entered, call after call.

    first      everybody signals everybody on the barrier semaphore     all have entered
    second     everybody signals everybody on a semaphore of this call  all have passed the first

The barrier semaphore belongs to the collective_id and outlives the call, so one handshake alone can be
cheated: a fast device enters the next call and signals again, a slow device counts that second
signal in place of another's first, and leaves too early.  Nobody ends the second handshake before all
have taken their signals of the first, so signals of two calls never mix.  The second semaphore lives in the
call: a signal on it may be sent once its owner is known to have entered.

While it waits, the kernel copies its input to its output, so that there is data to check.

Cost: 2 x ((n - 1) signals + signal latency + the longest way's hops).
"""

import numpy as np

import tpusim
from tpusim import (
    HBM,
    SemaphoreType,
    axis_index,
    axis_size,
    get_barrier_semaphore,
    make_async_copy,
    semaphore_signal,
    semaphore_wait,
)
from tpusim.specs import as_dtype


@tpusim.kernel(
    out_shape=lambda x: x,
    in_specs=HBM,
    out_specs=HBM,
    scratch_shapes=(SemaphoreType.DMA, SemaphoreType.REGULAR),
    collective_id=6,
)
def kernel(x_ref, o_ref, copy_sem, private):
    n, me = axis_size("x"), axis_index("x")
    peers = [(me + distance) % n for distance in range(1, n)]

    copy = make_async_copy(x_ref, o_ref, copy_sem)
    copy.start()
    for semaphore in (get_barrier_semaphore(), private):
        for peer in peers:
            semaphore_signal(semaphore, device_id=peer)
        semaphore_wait(semaphore, n - 1)
    copy.wait()


def inputs(devices=4, shape=(8, 128), dtype="float32", seed=0):
    """One global array; ``shape`` is one device's shard."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-100, 100, (devices * shape[0], *shape[1:])).astype(as_dtype(dtype)),)


def reference(x, *, devices=4):
    """The input."""
    return x


def lower_bound(slice, x):
    """The copy alone, or that every device has to hear of every other."""
    shard_bytes = x.nbytes // slice.num_devices
    return max(slice.local_copy(read_bytes=shard_bytes, write_bytes=shard_bytes), slice.barrier())
