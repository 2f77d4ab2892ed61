"""All-to-all: block j of device i becomes block i of device j; every pair exchanges directly.

    dev 0: [00 01 02 03]                   dev 0: [00 10 20 30]
    dev 1: [10 11 12 13]    block ij       dev 1: [01 11 21 31]
    dev 2: [20 21 22 23]    goes to        dev 2: [02 12 22 32]
    dev 3: [30 31 32 33]    device j       dev 3: [03 13 23 33]

All n-1 remote copies of a device are in flight together, in the order of increasing distance; the network
shares its links among them.  Everybody writes into everybody, so all meet at the entry: a barrier with
one neighbour would not do.  The received blocks lie apart and are read only after the kernel, so all
of them may count on one semaphore.

Cost: (n - 1) signals + (n - 1) issues + start + bytes over the busiest link / link + the longest way's hops.
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
    make_async_remote_copy,
    semaphore_signal,
    semaphore_wait,
)
from tpusim.specs import as_dtype


@tpusim.kernel(
    out_shape=lambda x: x,
    in_specs=HBM,
    out_specs=HBM,
    scratch_shapes=(SemaphoreType.DMA, SemaphoreType.DMA, SemaphoreType.DMA),
    collective_id=5,
)
def kernel(x_ref, o_ref, own_sem, send_sem, recv_sem):
    n, me = axis_size("x"), axis_index("x")
    peers = [(me + distance) % n for distance in range(1, n)]

    barrier = get_barrier_semaphore()
    for peer in peers:
        semaphore_signal(barrier, device_id=peer)
    semaphore_wait(barrier, n - 1)

    copies = [make_async_copy(x_ref.at[me], o_ref.at[me], own_sem)]
    for peer in peers:
        copies.append(make_async_remote_copy(x_ref.at[peer], o_ref.at[me], send_sem, recv_sem, device_id=peer))
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.wait()


def inputs(devices=4, shape=(8, 128), dtype="float32", seed=0):
    """One global array; ``shape`` is the block that one device sends to one other, of which every device brings n."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-100, 100, (devices * devices, *shape)).astype(as_dtype(dtype)),)


def reference(x, *, devices=4):
    """The transpose of (sender, receiver)."""
    return x.reshape(devices, devices, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def lower_bound(slice, x):
    """Every device has to send a block to every other."""
    return slice.all_to_all(x.nbytes // slice.num_devices**2)
