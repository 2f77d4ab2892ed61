"""Matrix product ``C = A @ B`` on one device, its blocks pipelined by hand from HBM through VMEM.

::

    step    0     1     2     3     4     5      one step = (row block, column block, k block), k innermost
    fetch  [0]   [1]   [2]   [3]   [4]   [5]     a block of A and one of B, HBM -> VMEM slot (step % 2)
    MXU          [0]   [1]   [2]   [3]   [4]     acc += A block @ B block, in float32
    write                          [C0]          result block, VMEM slot (tile % 2) -> HBM   (here 3 k blocks)

While the MXU works on one slot, the copies of the next step fill the other.  A result block has the time of
a whole tile to leave before its slot is needed again.

The operands may lie on several devices: rows of A (and of C) are sharded over x, B is replicated, and every
device runs the same pipeline on its rows; nothing is communicated.

Cost of ``m x k @ k x n`` with blocks ``bm, bn, bk``, in steady state for each of the
``m/bm * n/bn * k/bk`` steps::

    step  = max(c, (L + c) / 2, (bm * bk + bk * bn) * itemsize / HBM bandwidth)
    c     = core cycles of a step (the MXU's, and issue and control)
    L     = start latency of a copy + its transfer
    bytes = m * k * (n / bn) + k * n * (m / bm) + m * n, in items: A is read once for each column of blocks

Lower bound: every operand moves once, or the MXU is never idle, whichever takes longer.
"""

import numpy as np

import tpusim
from tpusim import HBM, VMEM, SemaphoreType, ShapeDtypeStruct, ds, fori_loop, make_async_copy, when
from tpusim import np as jnp
from tpusim.specs import as_dtype
from tpusim.values.numerics import cast


def _blocks(a, b, bm, bn, bk):
    """Block sizes, none larger than its array, and the number of blocks along m, n, k."""
    (m, k), (_, n) = a.shape, b.shape
    sizes = min(bm, m), min(bn, n), min(bk, k)
    for name, size, block in zip(("rows of A", "columns of B", "columns of A"), (m, n, k), sizes, strict=True):
        if size % block:
            raise ValueError(f"matmul_pipeline: {size} {name} are not divisible into blocks of {block}")
    return sizes, (m // sizes[0], n // sizes[1], k // sizes[2])


def make_kernel(bm=256, bn=256, bk=256):
    """The kernel with blocks of ``bm x bk`` (A), ``bk x bn`` (B) and ``bm x bn`` (C)."""

    def matmul_pipeline(a_hbm, b_hbm, c_hbm, a_vmem, b_vmem, c_vmem, acc, a_sem, b_sem, c_sem):
        (rows, cols, depth), (_, n_blocks, k_blocks) = _blocks(a_hbm, b_hbm, bm, bn, bk)
        tiles = (a_hbm.shape[0] // rows) * n_blocks
        steps = tiles * k_blocks

        def fetch(step):
            i, j, k = step // k_blocks // n_blocks, step // k_blocks % n_blocks, step % k_blocks
            slot = step % 2
            a_block = a_hbm.at[ds(i * rows, rows), ds(k * depth, depth)]
            b_block = b_hbm.at[ds(k * depth, depth), ds(j * cols, cols)]
            return (
                make_async_copy(a_block, a_vmem.at[slot], a_sem.at[slot]),
                make_async_copy(b_block, b_vmem.at[slot], b_sem.at[slot]),
            )

        def write(tile):
            c_block = c_hbm.at[ds(tile // n_blocks * rows, rows), ds(tile % n_blocks * cols, cols)]
            return make_async_copy(c_vmem.at[tile % 2], c_block, c_sem.at[tile % 2])

        def one_tile(tile, _):
            acc[...] = jnp.zeros((rows, cols), jnp.float32)

            def one_step(k, _):
                step = tile * k_blocks + k

                @when(step + 1 < steps)
                def _():
                    for copy in fetch(step + 1):
                        copy.start()

                for copy in fetch(step):
                    copy.wait()
                slot = step % 2
                acc[...] += jnp.dot(a_vmem[slot], b_vmem[slot], preferred_element_type=jnp.float32)

            fori_loop(0, k_blocks, one_step, None)

            @when(tile >= 2)
            def _():
                write(tile - 2).wait()  # the slot's last result has left

            c_vmem[tile % 2] = acc[...].astype(c_vmem.dtype)
            write(tile).start()

        for copy in fetch(0):
            copy.start()
        fori_loop(0, tiles, one_tile, None)
        for tile in range(max(0, tiles - 2), tiles):
            write(tile).wait()

    def out_shape(a, b):
        return ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype)

    def scratch_shapes(a, b):
        (rows, cols, depth), _ = _blocks(a, b, bm, bn, bk)
        return (
            VMEM((2, rows, depth), a.dtype),
            VMEM((2, depth, cols), b.dtype),
            VMEM((2, rows, cols), a.dtype),
            VMEM((rows, cols), "float32"),
            SemaphoreType.DMA((2,)),
            SemaphoreType.DMA((2,)),
            SemaphoreType.DMA((2,)),
        )

    return tpusim.Kernel(
        matmul_pipeline,
        out_shape=out_shape,
        shard_in=(("x", None), (None, None)),
        shard_out=("x", None),
        in_specs=(HBM, HBM),
        out_specs=HBM,
        scratch_shapes=scratch_shapes,
    )


kernel = make_kernel()


def inputs(devices=1, shape=(512, 1024), dtype="float32", seed=0, columns=512):
    """Global ``A`` and ``B``; ``shape`` is one device's rows of A, ``columns`` the width of B."""
    rng = np.random.default_rng(seed)
    m, k = shape
    a = rng.standard_normal((devices * m, k), np.float32)
    b = rng.standard_normal((k, columns), np.float32)
    return cast(a, as_dtype(dtype)), cast(b, as_dtype(dtype))


def reference(a, b, devices=1):
    """``A @ B``, summed in float32."""
    return cast(a.astype(np.float32) @ b.astype(np.float32), a.dtype)


def lower_bound(slice, a, b):
    """Every operand moves once, or the MXU is never idle."""
    m, (k, n) = a.shape[0] // slice.num_devices, b.shape
    item = a.dtype.itemsize
    return max(slice.local_copy((m * k + k * n) * item, m * n * item), slice.matmul(m, k, n, a.dtype))
