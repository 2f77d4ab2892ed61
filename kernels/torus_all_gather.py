"""All-gather on a 2-D torus that keeps the links of both axes busy.

Every device of an X x Y mesh has a shard and ends with all of them.  The rows of a shard are cut into
quarters; each quarter takes its own way through the torus, two x-first and two y-first, one of each in
either direction, so all four links of a device carry a quarter of the data in every step::

      quarter 0: x+ then y+       phase 1: own quarters         phase 2: whole columns (rows) of quarters
      quarter 1: x- then y-
      quarter 2: y+ then x+         (x,y) --q0--> (x+1,y)         (x,y)   --q2,q2,..--> (x+1,y)
      quarter 3: y- then x-           |                             |
                                      q2                          q0,q0,..
                                      v                             v
                                    (x,y+1)                       (x,y+1)

A block goes straight to its place in the neighbour's output, so nothing is ever overwritten and no
credits are needed.  Each step has a receive semaphore of its own: a neighbour may be steps ahead, and a
wait must not be satisfied by the bytes of a later block.

Cost, for shards of S bytes, directed links of B bytes/s and a copy's start and hop of L seconds: x-first
flows move (X-1) S/4 along x, then (Y-1) X S/4 along y, so on a square torus with wraparound

    time ~ (X + Y - 2) L + (X Y - 1) S / (4 B)

which is the lower bound but for the starts.  Without wraparound the copy that closes a ring crosses the
whole axis and shares its links.
"""

from itertools import pairwise, zip_longest

import numpy as np

import tpusim
from tpusim import (
    HBM,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    axis_size,
    ds,
    make_async_copy,
    make_async_remote_copy,
)
from tpusim.specs import as_dtype

# Of each flow: the axis it takes first, the axis it takes second, its direction.
FLOWS = (("x", "y", 1), ("x", "y", -1), ("y", "x", 1), ("y", "x", -1))


def torus_all_gather(x_ref, o_ref, own_sem, send_sem, recv_sem):
    here = {"x": axis_index("x"), "y": axis_index("y")}
    greet_neighbours(here)
    own = make_async_copy(x_ref, o_ref.at[here["x"], here["y"]], own_sem)
    own.start()
    flows = [
        flow(*way, ds(start, rows), here, x_ref, o_ref, send_sem.at[number], recv_sem, number)
        for number, (way, (start, rows)) in enumerate(zip(FLOWS, quarters(x_ref.shape, x_ref.dtype), strict=True))
        if rows
    ]
    rounds = zip_longest(*flows)
    next(rounds, None)  # the first copies leave from x_ref while
    own.wait()  # the own shard goes to the output, from where phase 2 sends it on
    for _ in rounds:
        pass


def greet_neighbours(here):
    """Wait until each neighbour runs this call: from then on its output may be written.

    No neighbour can greet twice before all have greeted once: it leaves the call with this device's
    shard, which leaves this device after the barrier.
    """
    barrier = tpusim.get_barrier_semaphore()
    expected = 0
    for axis, index in here.items():
        size = axis_size(axis)
        for hop in (1, size - 1) if size > 1 else ():
            tpusim.semaphore_signal(barrier, 1, device_id={axis: (index + hop) % size})
            expected += 1
    tpusim.semaphore_wait(barrier, expected)


def flow(first, second, direction, quarter, here, x_ref, o_ref, send_sem, recv_sem, number):
    """One quarter's way; yields after each start, so that the flows' copies run side by side."""
    if axis_size(first) == 1:
        first, second = second, first
    place = dict(here)
    step = 0
    for axis in (first, second):
        size = axis_size(axis)
        target = {axis: (here[axis] + size + direction) % size}
        for hop in range(size - 1):
            place[axis] = (here[axis] + size - direction * hop) % size  # it came from `hop` devices upstream
            block = o_ref.at[place["x"], place["y"], quarter]
            source = x_ref.at[quarter] if step == 0 else block
            copy = make_async_remote_copy(source, block, send_sem, recv_sem.at[number, step], device_id=target)
            copy.start()
            yield
            copy.wait()
            step += 1
        place[axis] = slice(None)  # this axis is gathered: along the next one all of it moves


def quarters(shape, dtype):
    """The rows of each flow as ``(start, size)``.

    A copy cannot cut a tile (8 rows of 32 bits), so where rows are tiled the cuts lie between tiles, and of
    fewer than four tiles some flows get none.
    """
    tile = 1 if len(shape) > 2 else 32 // dtype.itemsize
    tiles = -(-shape[0] // tile)
    cuts = [min(shape[0], -(-tiles * part // len(FLOWS)) * tile) for part in range(len(FLOWS) + 1)]
    return [(start, end - start) for start, end in pairwise(cuts)]


def _scratch_shapes(x):
    steps = max(1, axis_size("x") + axis_size("y") - 2)
    return SemaphoreType.DMA, SemaphoreType.DMA((len(FLOWS),)), SemaphoreType.DMA((len(FLOWS), steps))


kernel = tpusim.Kernel(
    torus_all_gather,
    out_shape=lambda x: ShapeDtypeStruct((axis_size("x"), axis_size("y"), *x.shape), x.dtype),
    axes=("x", "y"),
    in_specs=HBM,
    out_specs=HBM,
    scratch_shapes=_scratch_shapes,
    collective_id=7,
)


def inputs(devices=(2, 2), shape=(32, 128), dtype="float32", seed=0):
    """One global array; ``shape`` is one device's shard."""
    rng = np.random.default_rng(seed)
    rows = devices[0] * devices[1] * shape[0]
    return (rng.integers(-100, 100, (rows, *shape[1:])).astype(as_dtype(dtype)),)


def reference(x, *, devices=(2, 2)):
    """The shards at their places in the mesh, once for each device."""
    size = devices[0] * devices[1]
    return np.concatenate([x.reshape(*devices, x.shape[0] // size, *x.shape[1:])] * size)


def lower_bound(slice, x):
    """Every device has to receive the other shards."""
    return slice.all_gather(x.nbytes // slice.num_devices)
