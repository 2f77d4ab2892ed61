"""Halo exchange on a 2-D mesh, then a 5-point stencil.

A grid is cut into blocks, one a device, and wraps round at its edges: the device after the last one of
an axis is the first one.  Each device sends the edges of its block to its four neighbours and keeps what
it gets around its own block in VMEM; then every point becomes the sum of its four neighbours minus four
times itself (the Laplace operator)::

                  from above                          padded buffer in VMEM
                      |                                 .  | above  |  .      8 rows
                      v                               -----+--------+-----
      from the  --> block <-- from the                 left|  block |right    the block
        left          ^         right                 -----+--------+-----
                      |                                 .  | below  |  .      8 rows
                  from below                          128 columns    128

The stencil needs one row and one column, but a TPU's copies move whole tiles: so a halo is 8 rows or 128
columns.  Column halos are strided copies, made of many short runs.  The corners stay unused.

Cost, for a block of R x C elements of E bytes, directed links of B bytes/s and a copy start of L seconds:
the four copies use four different links, so

    time ~ L + max(8 C, 128 R) E / B + reading the block and the stencil's compute
"""

import numpy as np

import tpusim
from tpusim import axis_index, axis_size, make_async_copy, make_async_remote_copy

ROWS, COLUMNS = 8, 128  # of a halo: one tile


def halo_exchange(x_ref, o_ref, padded, own_sem, send_sem, recv_sem):
    here = {"x": axis_index("x"), "y": axis_index("y")}
    rows, columns = x_ref.shape
    greet_neighbours(here)
    middle_rows, middle_columns = slice(ROWS, ROWS + rows), slice(COLUMNS, COLUMNS + columns)
    copies = [make_async_copy(x_ref, padded.at[middle_rows, middle_columns], own_sem)]
    # axis, direction, edge of the block that goes there, where the neighbour keeps it
    exchanges = (
        ("x", -1, x_ref.at[:ROWS, :], padded.at[ROWS + rows :, middle_columns]),
        ("x", 1, x_ref.at[rows - ROWS :, :], padded.at[:ROWS, middle_columns]),
        ("y", -1, x_ref.at[:, :COLUMNS], padded.at[middle_rows, COLUMNS + columns :]),
        ("y", 1, x_ref.at[:, columns - COLUMNS :], padded.at[middle_rows, :COLUMNS]),
    )
    for number, (axis, direction, edge, halo) in enumerate(exchanges):
        size = axis_size(axis)
        if size == 1:
            copies.append(make_async_copy(edge, halo, recv_sem.at[number]))
        else:
            neighbour = {axis: (here[axis] + size + direction) % size}
            copies.append(make_async_remote_copy(edge, halo, send_sem.at[number], recv_sem.at[number], neighbour))
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.wait()

    def shifted(down, right):
        return padded[ROWS + down : ROWS + down + rows, COLUMNS + right : COLUMNS + right + columns]

    o_ref[...] = shifted(-1, 0) + shifted(1, 0) + shifted(0, -1) + shifted(0, 1) - 4 * shifted(0, 0)


def greet_neighbours(here):
    """Wait until each neighbour runs this call: from then on its padded buffer may be written.

    No neighbour can greet twice before all have greeted once: it leaves the call with this device's
    edge, which leaves this device after the barrier.
    """
    barrier = tpusim.get_barrier_semaphore()
    expected = 0
    for axis, index in here.items():
        size = axis_size(axis)
        for hop in (1, size - 1) if size > 1 else ():
            tpusim.semaphore_signal(barrier, 1, device_id={axis: (index + hop) % size})
            expected += 1
    tpusim.semaphore_wait(barrier, expected)


def out_shape(x):
    if x.shape[0] < ROWS or x.shape[1] < COLUMNS:
        raise ValueError(f"halo_exchange: a block of {x.shape} is smaller than a halo, {(ROWS, COLUMNS)}")
    return x


def scratch_shapes(x):
    rows, columns = x.shape
    dma = tpusim.SemaphoreType.DMA
    return tpusim.VMEM((rows + 2 * ROWS, columns + 2 * COLUMNS), x.dtype), dma, dma((4,)), dma((4,))


kernel = tpusim.Kernel(
    halo_exchange,
    out_shape=out_shape,
    axes=("x", "y"),
    shard_in=("x", "y"),
    shard_out=("x", "y"),
    in_specs=tpusim.HBM,
    scratch_shapes=scratch_shapes,
    collective_id=9,
)


def inputs(devices=(2, 2), shape=(32, 256), dtype="float32", seed=0):
    """The whole grid; ``shape`` is one device's block.  Small whole numbers: sums are exact in every dtype."""
    grid = (devices[0] * shape[0], devices[1] * shape[1])
    return (np.random.default_rng(seed).integers(-4, 5, grid).astype(dtype),)


def reference(x, devices=(2, 2)):
    """The same stencil on the whole grid, wrapping round at its edges; the same for every mesh."""
    grid = x.astype("float64")
    around = sum(np.roll(grid, shift, axis) for shift in (1, -1) for axis in (0, 1))
    return (around - 4 * grid).astype(x.dtype)


def lower_bound(slice, x):
    rows, columns = (length // slice.axis_sizes[axis] for length, axis in zip(x.shape, ("x", "y"), strict=True))
    sent = 0
    sent += 2 * ROWS * columns if slice.axis_sizes["x"] > 1 else 0
    sent += 2 * COLUMNS * rows if slice.axis_sizes["y"] > 1 else 0
    block_bytes = rows * columns * x.itemsize
    return max(slice.halo_exchange(sent * x.itemsize), slice.local_copy(block_bytes, block_bytes))
