"""``tpusim new FILE``: a kernel file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpusim.cli.console import make_console, styled
from tpusim.errors import OptionError

STARTER = '''\
"""Neighbour sum: every device adds its left neighbour's shard to its own.

    dev 0 --x0--> dev 1 --x1--> dev 2 --x2--> dev 3 --x3--> dev 0

Run it with `tpusim run FILE`, on more devices with `--slice v5e:4x4`, through real Pallas with
`--backend interpret`, with a timeline for ui.perfetto.dev with `--trace trace.json`.

Cost: barrier + issue + start + shard bytes / link + hop latency + the sum.
"""

import numpy as np

import tpusim
from tpusim import (
    VMEM,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    axis_size,
    get_barrier_semaphore,
    make_async_remote_copy,
    semaphore_signal,
    semaphore_wait,
)
from tpusim.specs import as_dtype


# Everything here is about ONE device; x is what it gets of the input.
@tpusim.kernel(
    out_shape=lambda x: ShapeDtypeStruct(x.shape, x.dtype),
    scratch_shapes=lambda x: (VMEM(x.shape, x.dtype), SemaphoreType.DMA, SemaphoreType.DMA),
    collective_id=0,  # a kernel that calls get_barrier_semaphore() needs one
)
def kernel(x_ref, o_ref, left_ref, send_sem, recv_sem):
    n, me = axis_size("x"), axis_index("x")
    left, right = (me - 1) % n, (me + 1) % n

    # A remote copy may only start once its target is in the kernel: tell left, hear from right.
    barrier = get_barrier_semaphore()
    semaphore_signal(barrier, device_id=left)
    semaphore_wait(barrier)

    # Push only: the source is here, the destination and its semaphore are on the right neighbour.
    copy = make_async_remote_copy(x_ref, left_ref, send_sem, recv_sem, device_id=right)
    copy.start()
    copy.wait()  # until ours has been sent, and left's has arrived

    o_ref[...] = x_ref[...] + left_ref[...]


def inputs(devices=4, shape=(8, 128), dtype="float32", seed=0):
    """The global arrays; `shape` is one device's shard. Every parameter needs a default."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-100, 100, (devices * shape[0], *shape[1:])).astype(as_dtype(dtype)),)


def reference(x, *, devices=4):
    """What the global output has to be."""
    return x + np.roll(x, x.shape[0] // devices, axis=0)


def lower_bound(slice, x):
    """No run on this slice can be faster: every device has to receive one shard."""
    return slice.permute(x.nbytes // slice.num_devices)
'''
"""What ``tpusim new`` writes; also what ``tpusim doctor`` runs."""


def new(
    file: Annotated[str, typer.Argument(help="The kernel file to write, path.py.", show_default=False)],
) -> None:
    """Write a kernel file to start from.

    It has comments and runs at once.
    """
    path = Path(file)
    if path.suffix != ".py":
        raise OptionError(f"{file}: a kernel file is a Python file, path.py")
    try:
        with path.open("x", encoding="utf-8") as out:
            out.write(STARTER)
    except FileExistsError:
        raise OptionError(f"{file} is there already; it stays as it is") from None
    except OSError as error:
        raise OptionError(f"cannot write {file}: {error.strerror}") from None
    make_console().print(styled(f"Wrote {file}. Next: tpusim run {file}"))
