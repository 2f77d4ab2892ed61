"""All-reduce on a 2-D torus: reduce-scatter over both axes, all-gather back, all links busy.

Every device of an X x Y mesh has an array and ends with the sum of all arrays.  The rows are cut into
quarters, and each quarter is a flow of its own: two start along x and two along y, one of each in either
direction, so the four links of a device work at the same time.  What an x-first flow does to a quarter::

      reduce over x       reduce over y       gather over y        gather over x
      X chunks            Y sub-chunks        Y sub-chunks         X chunks
      [. # . .]   --->    [#]          --->   [#####]      --->    [####################]
      sum over a row      sum over all        of this chunk        of the quarter

Reducing: a partial sum travels round the ring, and each device adds its own part.  It lands in one of two
inbox slots of the next device, which adds it and, where the slot will be used again, gives a credit back::

      device i                      device i + 1
      part s  ====copy=====>  inbox[s % 2] + part s+1  ====copy=====>  inbox[s % 2] of i + 2
              <---credit---                            <---credit---

Gathering: a block goes straight to its place in the next device's output, with a receive semaphore of its
own for each step, because a neighbour may be steps ahead.

Cost, for arrays of S bytes, directed links of B bytes/s and a step's start of L seconds, on a torus with
wraparound and X = Y

    time ~ 2 (X + Y - 2) L + 2 (X Y - 1) / (X Y) S / (4 B)

the lower bound plus the starts; adding and loading the own parts hide behind the other flows' copies.
The rows must divide by 4 X Y, for a TPU into multiples of 8.
"""

from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

import tpusim
from tpusim import axis_index, axis_size, ds, make_async_copy, make_async_remote_copy

# Of each flow: the axis it reduces over first, the axis it reduces over second, its direction.
FLOWS = (("x", "y", 1), ("x", "y", -1), ("y", "x", 1), ("y", "x", -1))
SLOTS = 2


class Scratch(NamedTuple):
    """Buffers and semaphores; the first dimension of each is the flow."""

    work: Any  # VMEM [flow, slot, rows, columns]: parts on their way round the first axis
    inbox: Any  # VMEM [flow, rows, columns]: slots of the first ring, then slots of the second
    local_sem: Any  # DMA [flow]
    send_sem: Any  # DMA [flow]
    inbox_sem: Any  # DMA [flow, ring, slot]
    gather_sem: Any  # DMA [flow, step]
    credit: Any  # REGULAR [flow, ring]


def torus_all_reduce(x_ref, o_ref, work, inbox, local_sem, send_sem, inbox_sem, gather_sem, credit):
    scratch = Scratch(work, inbox, local_sem, send_sem, inbox_sem, gather_sem, credit)
    here = {"x": axis_index("x"), "y": axis_index("y")}
    greet_neighbours(here)
    flows = [flow(number, *way, here, x_ref, o_ref, scratch) for number, way in enumerate(FLOWS)]
    for _ in zip_longest(*flows):
        pass


def greet_neighbours(here):
    """Wait until each neighbour runs this call: from then on its inbox and output may be written.

    No neighbour can greet twice before all have greeted once: it leaves the call with a sum that holds
    this device's part, which leaves this device after the barrier.
    """
    barrier = tpusim.get_barrier_semaphore()
    expected = 0
    for axis, index in here.items():
        size = axis_size(axis)
        for hop in (1, size - 1) if size > 1 else ():
            tpusim.semaphore_signal(barrier, 1, device_id={axis: (index + hop) % size})
            expected += 1
    tpusim.semaphore_wait(barrier, expected)


class Ring:
    """The devices along one axis, in the direction of a flow."""

    def __init__(self, axis, direction, here):
        """Of the device whose index along ``axis`` is ``here[axis]``."""
        self.axis, self.direction = axis, direction
        self.size, self.index = axis_size(axis), here[axis]
        self.next, self.previous = {axis: self.upstream(-1)}, {axis: self.upstream(1)}

    def upstream(self, hops):
        """Index of the device ``hops`` before this one."""
        return (self.index + 2 * self.size - self.direction * hops) % self.size


def flow(number, first, second, direction, here, x_ref, o_ref, scratch):
    """One quarter's way; yields after each start, so that the flows' copies run side by side."""
    first, second = in_order(first, second)
    quarter, chunk, block = cut(x_ref.shape[0], first, second)
    base = number * quarter
    outer, inner = Ring(first, direction, here), Ring(second, direction, here)

    def part(k):  # of the chunk that is at this device in step k, this device's part and later the sum
        return scratch.work.at[number, k % SLOTS, ds(0, chunk)]

    def load(k):
        source = x_ref.at[ds(base + outer.upstream(k + 1) * chunk, chunk)]
        return make_async_copy(source, part(k), scratch.local_sem.at[number])

    load(0).start()
    yield
    load(0).wait()
    yield from reduce(number, 0, outer, part, chunk, 0, scratch, load)

    def subpart(k):  # the same for the sub-chunks of the chunk that is summed by now
        return scratch.work.at[number, (outer.size - 1) % SLOTS, ds(inner.upstream(k + 1) * block, block)]

    yield from reduce(number, 1, inner, subpart, block, SLOTS * chunk, scratch)

    start = base + outer.index * chunk
    own = o_ref.at[ds(start + inner.index * block, block)]
    store = make_async_copy(subpart(inner.size - 1), own, scratch.local_sem.at[number])
    store.start()
    yield
    store.wait()
    yield from gather(number, 0, inner, start, block, o_ref, scratch)
    yield from gather(number, inner.size - 1, outer, base, chunk, o_ref, scratch)


def reduce(number, ring_number, ring, part, rows, inbox_start, scratch, load=None):
    """Sum over a ring.  ``part(k)`` is what leaves in step k; the last one stays and is the result."""
    steps = ring.size - 1
    credit = scratch.credit.at[number, ring_number]
    for step in range(steps):
        slot = step % SLOTS
        inbox = scratch.inbox.at[number, ds(inbox_start + slot * rows, rows)]
        if step >= SLOTS:  # the first time round the slots are free
            tpusim.semaphore_wait(credit, 1)
        copy = make_async_remote_copy(
            part(step),
            inbox,
            scratch.send_sem.at[number],
            scratch.inbox_sem.at[number, ring_number, slot],
            device_id=ring.next,
        )
        copy.start()
        if load:
            load(step + 1).start()
        yield
        copy.wait()
        if load:
            load(step + 1).wait()
        total = part(step + 1)
        total[...] = total[...] + inbox[...]
        if step + SLOTS < steps:
            tpusim.semaphore_signal(credit, 1, device_id=ring.previous)


def gather(number, first_step, ring, start, rows, o_ref, scratch):
    """Bring every device of a ring all its blocks of the output, from row ``start`` on."""
    for step in range(ring.size - 1):
        block = o_ref.at[ds(start + ring.upstream(step) * rows, rows)]
        copy = make_async_remote_copy(
            block,
            block,
            scratch.send_sem.at[number],
            scratch.gather_sem.at[number, first_step + step],
            device_id=ring.next,
        )
        copy.start()
        yield
        copy.wait()


def in_order(first, second):
    """The axes of a flow, one of a single device last."""
    return (second, first) if axis_size(first) == 1 else (first, second)


def cut(rows, first, second):
    """Rows of a quarter, of its chunks over the first axis, of their sub-chunks over the second."""
    quarter = rows // len(FLOWS)
    chunk = quarter // axis_size(first)
    return quarter, chunk, chunk // axis_size(second)


def out_shape(x):
    parts = len(FLOWS) * axis_size("x") * axis_size("y")
    if x.shape[0] % parts:
        raise ValueError(f"torus_all_reduce: {x.shape[0]} rows cannot be cut into {parts} equal parts")
    return x


def scratch_shapes(x):
    cuts = [cut(x.shape[0], *in_order(first, second)) for first, second, _ in FLOWS]
    work_rows = max(chunk for _, chunk, _ in cuts)
    inbox_rows = max(SLOTS * (chunk + block) for _, chunk, block in cuts)
    gather_steps = max(axis_size("x") + axis_size("y") - 2, 1)
    flows = len(FLOWS)
    dma = tpusim.SemaphoreType.DMA
    return Scratch(
        work=tpusim.VMEM((flows, SLOTS, work_rows, *x.shape[1:]), x.dtype),
        inbox=tpusim.VMEM((flows, inbox_rows, *x.shape[1:]), x.dtype),
        local_sem=dma((flows,)),
        send_sem=dma((flows,)),
        inbox_sem=dma((flows, 2, SLOTS)),
        gather_sem=dma((flows, gather_steps)),
        credit=tpusim.SemaphoreType.REGULAR((flows, 2)),
    )


kernel = tpusim.Kernel(
    torus_all_reduce,
    out_shape=out_shape,
    axes=("x", "y"),
    in_specs=tpusim.HBM,
    out_specs=tpusim.HBM,
    scratch_shapes=scratch_shapes,
    collective_id=0,
)


def inputs(devices=(2, 2), shape=None, dtype="float32", seed=0):
    """The global array; ``shape`` is one device's array (default: the smallest that a TPU's tiles allow).

    The values are small whole numbers, so that their sums are exact in every dtype.
    """
    size = devices[0] * devices[1]
    rows, *rest = shape or (8 * len(FLOWS) * size, 128)
    return (np.random.default_rng(seed).integers(-4, 5, (size * rows, *rest)).astype(dtype),)


def reference(x, devices=(2, 2)):
    """Every device's output, stacked: the sum over the devices, as often as there are devices."""
    size = devices[0] * devices[1]
    total = x.reshape(size, x.shape[0] // size, *x.shape[1:]).astype("float64").sum(0).astype(x.dtype)
    return np.concatenate([total] * size)


def lower_bound(slice, x):
    return slice.all_reduce(x.nbytes // slice.num_devices)
