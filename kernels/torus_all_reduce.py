"""All-reduce on a 2-D torus: reduce-scatter over both axes, all-gather back, all links busy.

Every device of an X x Y mesh has an array, one piece for each device, and ends with the sum of all arrays.
The rows of the pieces are cut into quarters, and each quarter is a flow of its own: two start along x and
two along y, one of each in either direction, so the four links of a device work at the same time.  What an
x-first flow does, seen from device (0, 1), with pieces as a table of x by y::

      reduce over x      reduce over y      gather over y      gather over x
      + + + +            . # . .            # # # #            # # # #         . this device's own values
      . . . .     -->    . . . .     -->    . . . .     -->    # # # #         + summed over x
      . . . .            . . . .            . . . .            # # # #         # summed over all

Reducing: a partial sum travels round the ring, and each device adds its own part.  It lands in one of two
inbox slots of the next device, which adds it and, where the slot will be used again, gives a credit back::

      device i                         device i + 1
      part s  =======copy======>  inbox[s % 2] + part s+1  =======copy======>  inbox[(s+1) % 2] of i + 2
              <-----credit------                           <-----credit------

Gathering: a block goes straight to its place in the next device's output, with a receive semaphore of its
own for each step, because a neighbour may be steps ahead.

Cost, for arrays of S bytes, directed links of B bytes/s and L seconds for a step's start, hop and addition,
on a square torus with wraparound

    time ~ 2 (X + Y - 2) L + 2 (X Y - 1) / (X Y) S / (4 B)

where loading the own parts hides behind the copies.
"""

from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np

import tpusim
from tpusim import HBM, VMEM, SemaphoreType, axis_index, axis_size, ds, make_async_copy, make_async_remote_copy
from tpusim.specs import as_dtype

# Of each flow: the axis it reduces over first, the axis it reduces over second, its direction.
FLOWS = (("x", "y", 1), ("x", "y", -1), ("y", "x", 1), ("y", "x", -1))
SLOTS = 2


class Scratch(NamedTuple):
    """Buffers and semaphores of one device; flows are numbered by the first dimension of each."""

    work: Any  # VMEM [flow, slot, piece, rows, ..]: sums and parts along the first ring
    inbox: Any  # VMEM [flow, piece, rows, ..]: two slots of the first ring, then two of the second
    local_sem: Any  # DMA [flow]
    send_sem: Any  # DMA [flow]
    inbox_sem: Any  # DMA [flow, ring, slot]
    gather_sem: Any  # DMA [flow, step]
    credit: Any  # REGULAR [flow, ring]


def torus_all_reduce(x_ref, o_ref, work, inbox, local_sem, send_sem, inbox_sem, gather_sem, credit):
    scratch = Scratch(work, inbox, local_sem, send_sem, inbox_sem, gather_sem, credit)
    here = {"x": axis_index("x"), "y": axis_index("y")}
    greet_neighbours(here)
    flows = [
        flow(number, *way, start, rows, here, x_ref, o_ref, scratch)
        for number, (way, (start, rows)) in enumerate(zip(FLOWS, quarters(x_ref.shape[2:], x_ref.dtype), strict=True))
        if rows
    ]
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


def flow(number, first, second, direction, start, rows, here, x_ref, o_ref, scratch):
    """One quarter's way; yields after each start, so that the flows' copies run side by side."""
    first, second = in_order(first, second)
    outer, inner = Ring(first, direction, here), Ring(second, direction, here)
    quarter, height = ds(start, rows), ds(0, rows)

    def pieces(ref, **at):  # the quarter of the pieces at an index of one axis or two
        return ref.at[at.get("x", slice(None)), at.get("y", slice(None)), quarter]

    def part(k):  # of what is summed here in step k of the first ring: this device's part, later the sum
        return scratch.work.at[number, k % SLOTS, ds(0, inner.size), height]

    def load(k):
        return make_async_copy(pieces(x_ref, **{first: outer.upstream(k + 1)}), part(k), scratch.local_sem.at[number])

    def inbox(slot):
        return scratch.inbox.at[number, ds(slot * inner.size, inner.size), height]

    load(0).start()
    yield
    load(0).wait()
    yield from reduce(number, 0, outer, part, inbox, scratch, load)

    def subpart(k):  # the same for the second ring, of the pieces that are summed by now
        return scratch.work.at[number, (outer.size - 1) % SLOTS, inner.upstream(k + 1), height]

    def second_inbox(slot):
        return scratch.inbox.at[number, SLOTS * inner.size + slot, height]

    yield from reduce(number, 1, inner, subpart, second_inbox, scratch)

    own = subpart(inner.size - 1)
    store = make_async_copy(own, pieces(o_ref, **here), scratch.local_sem.at[number])
    store.start()
    yield
    store.wait()

    def block(k):
        return pieces(o_ref, **{first: outer.index, second: inner.upstream(k)})

    def row_of_blocks(k):
        return pieces(o_ref, **{first: outer.upstream(k)})

    yield from gather(number, 0, inner, block, scratch)
    yield from gather(number, inner.size - 1, outer, row_of_blocks, scratch)


def reduce(number, ring_number, ring, part, inbox, scratch, load=None):
    """Sum over a ring.  ``part(k)`` is what leaves in step k; the last one stays and is the result."""
    steps = ring.size - 1
    credit = scratch.credit.at[number, ring_number]
    for step in range(steps):
        slot = step % SLOTS
        inbox_sem = scratch.inbox_sem.at[number, ring_number, slot]
        if step >= SLOTS:  # the first time round the slots are free
            tpusim.semaphore_wait(credit, 1)
        copy = make_async_remote_copy(
            part(step), inbox(slot), scratch.send_sem.at[number], inbox_sem, device_id=ring.next
        )
        copy.start()
        if load:
            load(step + 1).start()
        yield
        copy.wait()
        if load:
            load(step + 1).wait()
        total = part(step + 1)
        total[...] = total[...] + inbox(slot)[...]
        if step + SLOTS < steps:
            tpusim.semaphore_signal(credit, 1, device_id=ring.previous)


def gather(number, first_step, ring, block, scratch):
    """Bring all blocks of a ring to every device of it.  ``block(k)`` is what leaves in step k."""
    for step in range(ring.size - 1):
        gather_sem = scratch.gather_sem.at[number, first_step + step]
        copy = make_async_remote_copy(
            block(step), block(step), scratch.send_sem.at[number], gather_sem, device_id=ring.next
        )
        copy.start()
        yield
        copy.wait()


def in_order(first, second):
    """The axes of a flow, one of a single device last."""
    return (second, first) if axis_size(first) == 1 else (first, second)


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
    flows, row = len(FLOWS), x.shape[3:]
    rows = max(size for _, size in quarters(x.shape[2:], x.dtype))
    inner = max(axis_size(in_order(first, second)[1]) for first, second, _ in FLOWS)
    steps = max(1, axis_size("x") + axis_size("y") - 2)
    return Scratch(
        work=VMEM((flows, SLOTS, inner, rows, *row), x.dtype),
        inbox=VMEM((flows, SLOTS * (inner + 1), rows, *row), x.dtype),
        local_sem=SemaphoreType.DMA((flows,)),
        send_sem=SemaphoreType.DMA((flows,)),
        inbox_sem=SemaphoreType.DMA((flows, 2, SLOTS)),
        gather_sem=SemaphoreType.DMA((flows, steps)),
        credit=SemaphoreType.REGULAR((flows, 2)),
    )


kernel = tpusim.Kernel(
    torus_all_reduce,
    out_shape=lambda x: x,
    axes=("x", "y"),
    in_specs=HBM,
    out_specs=HBM,
    scratch_shapes=_scratch_shapes,
    collective_id=8,
)


def inputs(devices=(2, 2), shape=(32, 128), dtype="float32", seed=0):
    """One global array; ``shape`` is the piece that one device sums up, of which every device brings all.

    The values are small whole numbers, so that their sums are exact in every dtype.
    """
    rng = np.random.default_rng(seed)
    size = devices[0] * devices[1]
    return (rng.integers(-4, 5, (size * devices[0], devices[1], *shape)).astype(as_dtype(dtype)),)


def reference(x, *, devices=(2, 2)):
    """The sum of all arrays, once for each device."""
    size = devices[0] * devices[1]
    total = x.astype(np.float64).reshape(size, *devices, *x.shape[2:]).sum(0).astype(x.dtype)
    return np.concatenate([total] * size)


def lower_bound(slice, x):
    """Every device has to send its array and receive the sum."""
    return slice.all_reduce(x.nbytes // slice.num_devices)
