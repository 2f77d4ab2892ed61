"""All-gather on a 2-D torus that keeps the links of both axes busy.

Every device of an X x Y mesh has a shard and ends with all of them.  The rows of a shard are cut into
quarters; each quarter takes its own way through the torus, two x-first and two y-first, one of each in
either direction, so all four links of a device carry a quarter of the data in every step::

      quarter 0: x+ then y+          phase 1: own quarter         phase 2: a column (row) of quarters
      quarter 1: x- then y-
      quarter 2: y+ then x+            (x,y) --q0--> (x+1,y)        (x,y)   --q2,q2,..--> (x+1,y)
      quarter 3: y- then x-              |                            |
                                        q2                          q0,q0,..
                                         v                            v
                                      (x,y+1)                      (x,y+1)

A block goes straight to its place in the neighbour's output, so nothing is ever overwritten and no
credits are needed.  Each step has a receive semaphore of its own: a neighbour may be steps ahead, and a
wait must not be satisfied by the bytes of a later block.

Cost, for shards of S bytes, directed links of B bytes/s and a copy start of L seconds: x-first flows
move (X-1) S/4 along x, then (Y-1) X S/4 along y, so on a square torus with wraparound

    time ~ (X + Y - 2) L + (X Y - 1) S / (4 B)

which is the lower bound plus the starts.  Without wraparound the copy that closes a ring crosses the
whole axis and shares its links.
"""

from itertools import zip_longest

import numpy as np

import tpusim
from tpusim import axis_index, axis_size, ds, make_async_copy, make_async_remote_copy

# Of each flow: the axis it takes first, the axis it takes second, its direction.
FLOWS = (("x", "y", 1), ("x", "y", -1), ("y", "x", 1), ("y", "x", -1))


def torus_all_gather(x_ref, o_ref, own_sem, send_sem, recv_sem):
    here = {"x": axis_index("x"), "y": axis_index("y")}
    greet_neighbours(here)
    own = make_async_copy(x_ref, o_ref.at[here["x"], here["y"]], own_sem)
    own.start()
    rounds = zip_longest(
        *(flow(number, *route, here, x_ref, o_ref, send_sem, recv_sem) for number, route in enumerate(FLOWS))
    )
    next(rounds, None)  # the first copies leave from x_ref while
    own.wait()  # the own shard goes to the output, from where phase 2 sends it on
    for _ in rounds:
        pass


def greet_neighbours(here):
    """Wait until each neighbour runs this call: from then on its output may be written.

    That a neighbour cannot greet twice before all have greeted once is due to the data: it leaves the
    call with this device's shard, which leaves after this barrier.
    """
    barrier = tpusim.get_barrier_semaphore()
    expected = 0
    for axis, index in here.items():
        size = axis_size(axis)
        for hop in (1, size - 1) if size > 1 else ():
            tpusim.semaphore_signal(barrier, 1, device_id={axis: (index + hop) % size})
            expected += 1
    tpusim.semaphore_wait(barrier, expected)


def flow(number, first, second, direction, here, x_ref, o_ref, send_sem, recv_sem):
    """One quarter's way; yields after each start, so that the flows' copies run side by side."""
    if axis_size(first) == 1:
        first, second = second, first
    rows = x_ref.shape[0] // len(FLOWS)
    quarter = ds(number * rows, rows)
    place = dict(here)
    step = 0
    for axis in (first, second):
        size = axis_size(axis)
        target = {axis: (here[axis] + size + direction) % size}
        for hop in range(size - 1):
            place[axis] = (here[axis] + size - direction * hop) % size  # came from `hop` devices upstream
            block = o_ref.at[place["x"], place["y"], quarter]
            copy = make_async_remote_copy(
                x_ref.at[quarter] if step == 0 else block,
                block,
                send_sem.at[number],
                recv_sem.at[number, step],
                device_id=target,
            )
            copy.start()
            yield
            copy.wait()
            step += 1
        place[axis] = slice(None)  # this axis is gathered: the next one moves all of it


def out_shape(x):
    if x.shape[0] % len(FLOWS):
        raise ValueError(f"torus_all_gather: {x.shape[0]} rows cannot be cut into {len(FLOWS)} equal parts")
    return tpusim.ShapeDtypeStruct((axis_size("x"), axis_size("y"), *x.shape), x.dtype)


def scratch_shapes(x):
    steps = axis_size("x") + axis_size("y") - 2
    dma = tpusim.SemaphoreType.DMA
    return dma, dma((len(FLOWS),)), dma((len(FLOWS), max(steps, 1)))


kernel = tpusim.Kernel(
    torus_all_gather,
    out_shape=out_shape,
    axes=("x", "y"),
    in_specs=tpusim.HBM,
    out_specs=tpusim.HBM,
    scratch_shapes=scratch_shapes,
    collective_id=0,
)


def inputs(devices=(2, 2), shape=(32, 128), dtype="float32", seed=0):
    """The global array; ``shape`` is one device's shard (a multiple of 32 rows for TPU tiles)."""
    size = devices[0] * devices[1]
    return (np.random.default_rng(seed).integers(-99, 100, (size * shape[0], *shape[1:])).astype(dtype),)


def reference(x, devices=(2, 2)):
    """Every device's output, stacked: shard (i, j) of the input at [:, i, j]."""
    size = devices[0] * devices[1]
    gathered = x.reshape(*devices, x.shape[0] // size, *x.shape[1:])
    return np.concatenate([gathered] * size)


def lower_bound(slice, x):
    return slice.all_gather(x.nbytes // slice.num_devices)
