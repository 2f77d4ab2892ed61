"""Gather pages of a pool by an index list, double-buffered through VMEM.

As paged attention reads its keys and values: an index list in SMEM says which page of a pool in HBM comes
next.  Each page is copied into one of two VMEM slots and from there to the output, so that the next page
arrives while the one before leaves; a real kernel would compute on it in between::

      indices (SMEM)   3  0  7  3 ..
                       |
      pages (HBM)      v              slots (VMEM)               output (HBM)
      [0][1][2][3]..  ==in_sem[0]==>  [0]  ==out_sem[0]==>       [3][0][7][3]..
                      ==in_sem[1]==>  [1]  ==out_sem[1]==>

      step i:  wait for out i-1,  start in i+1,  wait for in i,  start out i

A slot is filled again only after its page has left.  Each slot has a semaphore for either direction, so
that the bytes of one page never satisfy the wait for another.  No device talks to another one: on several
devices each gathers from its own pool.

Cost, for n pages of P bytes, HBM of B bytes/s, and L_in, L_out the times of one copy (start latency and
transfer)

    time ~ L_in + n max(L_out, (L_in + L_out) / 2, 2 P / B)

Small pages are bound by latency, two slots hide half of it; large ones by HBM, which reads and writes each.
"""

import numpy as np

import tpusim
from tpusim import HBM, SMEM, VMEM, SemaphoreType, ShapeDtypeStruct, fori_loop, make_async_copy, when

SLOTS = 2


def paged_gather(indices, pages, o_ref, slots, in_sem, out_sem):
    count = indices.shape[0]

    def fetch(i):
        return make_async_copy(pages.at[indices[i]], slots.at[i % SLOTS], in_sem.at[i % SLOTS])

    def store(i):
        return make_async_copy(slots.at[i % SLOTS], o_ref.at[i], out_sem.at[i % SLOTS])

    def step(i, carry):
        @when(i > 0)
        def _():
            store(i - 1).wait()  # the slot of page i + 1 is free

        @when(i + 1 < count)
        def _():
            fetch(i + 1).start()

        fetch(i).wait()
        store(i).start()
        return carry

    fetch(0).start()
    fori_loop(0, count, step, None)
    store(count - 1).wait()


def _out_shape(indices, pages):
    return ShapeDtypeStruct((indices.shape[0], *pages.shape[1:]), pages.dtype)


def _scratch_shapes(indices, pages):
    dma = SemaphoreType.DMA((SLOTS,))
    return VMEM((SLOTS, *pages.shape[1:]), pages.dtype), dma, dma


kernel = tpusim.Kernel(
    paged_gather,
    out_shape=_out_shape,
    in_specs=(SMEM, HBM),
    out_specs=HBM,
    scratch_shapes=_scratch_shapes,
)


def inputs(devices=1, shape=(16, 8, 128), dtype="float32", seed=0, count=24):
    """Global ``indices, pages``; ``shape`` is one device's pool, ``count`` how many pages it gathers."""
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, shape[0], devices * count).astype("int32")
    return indices, rng.integers(-99, 100, (devices * shape[0], *shape[1:])).astype(dtype)


def reference(indices, pages, devices=1):
    """``pages[indices]``, on each device by itself."""
    pools = pages.reshape(devices, -1, *pages.shape[1:])
    lists = indices.reshape(devices, -1)
    return np.concatenate([pool[of_device] for pool, of_device in zip(pools, lists, strict=True)])


def lower_bound(slice, indices, pages):
    """Every gathered page is read once and written once."""
    size_bytes = len(indices) // slice.num_devices * pages[0].nbytes
    return slice.local_copy(size_bytes, size_bytes)
