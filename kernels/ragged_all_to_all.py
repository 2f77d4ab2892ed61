"""Ragged all-to-all: every device sends a different number of rows to every other one.

As a mixture-of-experts layer sends its tokens to the devices of their experts.  How much goes where is
data: four tables in SMEM, one entry a peer, all in blocks of 8 rows (a TPU's copies need a static size,
so the loops over blocks are what is dynamic)::

      device 1's operand                          device 1's output
      +------+                                    +------+
      | to 0 |  input_offsets[0], send_sizes[0]   |from 0|  recv_sizes[0]
      | to 1 |  input_offsets[1], send_sizes[1]   |from 1|  recv_sizes[1]
      | to 1 |                                    |from 1|
      | to 3 |  input_offsets[3], send_sizes[3]   |from 2|  recv_sizes[2]
      +------+                                    | 0000 |  nobody's: the device clears it itself
                                                  +------+
      output_offsets[p]: where my rows start in the output of device p

The tables must agree: ``recv_sizes[p]`` here is ``send_sizes[me]`` on device p, and so a device knows how
many bytes to wait for.  All blocks arrive on one semaphore: nothing is read before all of them are there,
so it does not matter which came first.

Every device may write to every other one, so all greet all at entry.  It does not matter that two devices
may exchange no data, so that one of them runs ahead into the next call and greets twice: whoever passes
first has been greeted by each of the others, and from then on all of them run this call.

Cost, for devices that send S bytes in blocks of b, an issue time i of one copy, and directed links of
B bytes/s of which a device has d

    time ~ barrier + max(S / b i, S / (d B)) + start and hops;  far peers share links on the way
"""

import numpy as np

import tpusim
from tpusim import (
    HBM,
    SMEM,
    VMEM,
    SemaphoreType,
    axis_index,
    axis_size,
    ds,
    fori_loop,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    semaphore_signal,
    semaphore_wait,
)
from tpusim import np as jnp

ROWS = 8  # of a block


def ragged_all_to_all(
    operand, input_offsets, send_sizes, output_offsets, recv_sizes, o_ref, zeros, own_sem, send_sem, recv_sem
):
    me, size = axis_index("x"), axis_size("x")

    def block(ref, number):
        return ref.at[ds(number * ROWS, ROWS)]

    def of_peers(action):
        """``action(peer)`` for every other device, the next one first."""

        def body(k, carry):
            action((me + k) % size)
            return carry

        fori_loop(1, size, body, None)

    def times(count, action):
        def body(i, carry):
            action(i)
            return carry

        fori_loop(0, count, body, None)

    barrier = get_barrier_semaphore()
    of_peers(lambda peer: semaphore_signal(barrier, 1, device_id=peer))
    semaphore_wait(barrier, size - 1)

    def own(i):
        source, target = block(operand, input_offsets[me] + i), block(o_ref, output_offsets[me] + i)
        return make_async_copy(source, target, own_sem)

    def remote(peer, i):
        source, target = block(operand, input_offsets[peer] + i), block(o_ref, output_offsets[peer] + i)
        return make_async_remote_copy(source, target, send_sem, recv_sem, device_id=peer)

    of_peers(lambda peer: times(send_sizes[peer], lambda i: remote(peer, i).start()))
    times(send_sizes[me], lambda i: own(i).start())

    received = fori_loop(0, size, lambda peer, total: total + recv_sizes[peer], 0)
    rest = o_ref.shape[0] // ROWS - received

    def clear(i):
        return make_async_copy(zeros, block(o_ref, received + i), own_sem)

    zeros[...] = jnp.zeros(zeros.shape, zeros.dtype)
    times(rest, lambda i: clear(i).start())
    times(rest, lambda i: clear(i).wait())
    times(send_sizes[me], lambda i: own(i).wait())

    of_peers(lambda peer: times(send_sizes[peer], lambda i: remote(peer, i).wait_send()))

    def arrived():  # to wait for a block takes a semaphore and a size; where it lies does not matter
        return make_async_copy(block(operand, 0), block(o_ref, 0), recv_sem)

    of_peers(lambda peer: times(recv_sizes[peer], lambda i: arrived().wait()))


def _out_shape(operand, *tables):
    if operand.shape[0] % ROWS:
        raise ValueError(f"ragged_all_to_all: {operand.shape[0]} rows are no whole number of blocks of {ROWS}")
    return operand


def _scratch_shapes(operand, *tables):
    zeros = VMEM((ROWS, *operand.shape[1:]), operand.dtype)
    return zeros, SemaphoreType.DMA, SemaphoreType.DMA, SemaphoreType.DMA


kernel = tpusim.Kernel(
    ragged_all_to_all,
    out_shape=_out_shape,
    in_specs=(HBM, SMEM, SMEM, SMEM, SMEM),
    out_specs=HBM,
    scratch_shapes=_scratch_shapes,
    collective_id=10,
)


def inputs(devices=4, shape=(64, 128), dtype="float32", seed=0):
    """Global operand, ``input_offsets, send_sizes, output_offsets, recv_sizes``; ``shape`` is one operand.

    Each block goes to a device of its own choice, some to nobody, and no output gets more than it holds.
    """
    rng = np.random.default_rng(seed)
    sizes = np.zeros((devices, devices), "int32")  # [from, to]
    senders = np.arange(devices)
    for _ in range(shape[0] // ROWS):
        sizes[senders, rng.permutation(devices)] += rng.random(devices) < 0.8
    operand = rng.integers(-99, 100, (devices * shape[0], *shape[1:])).astype(dtype)
    input_offsets = np.cumsum(sizes, axis=1, dtype="int32") - sizes
    output_offsets = np.cumsum(sizes, axis=0, dtype="int32") - sizes
    return operand, *(table.ravel() for table in (input_offsets, sizes, output_offsets, sizes.T))


def reference(operand, input_offsets, send_sizes, output_offsets, recv_sizes, devices=4):
    """What each device gets, in the order of the senders, then zeros."""
    source = operand.reshape(devices, -1, ROWS, *operand.shape[1:])
    output = np.zeros_like(source)
    tables = [table.reshape(devices, devices) for table in (input_offsets, send_sizes, output_offsets)]
    for sender, receiver in np.ndindex(devices, devices):
        start, size, place = (table[sender, receiver] for table in tables)
        output[receiver, place : place + size] = source[sender, start : start + size]
    return output.reshape(operand.shape)


def lower_bound(slice, operand, input_offsets, send_sizes, output_offsets, recv_sizes):
    """Every pair exchanges at least what the smallest pair does; every device fills its output."""
    devices = slice.num_devices
    sizes = send_sizes.reshape(devices, devices)
    block_bytes = operand[:ROWS].nbytes
    pairs = sizes[~np.eye(devices, dtype=bool)]
    smallest = int(pairs.min()) if pairs.size else 0
    return max(
        slice.all_to_all(smallest * block_bytes),
        slice.local_copy(int(sizes.sum(1).max()) * block_bytes, operand.nbytes // devices),
    )
