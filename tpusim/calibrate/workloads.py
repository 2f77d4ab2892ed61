"""The kernels behind published timings, and behind the microbenchmarks: each is a native kernel, made for a size.

A published timing of a Pallas kernel is transcribed with its tiles and shapes.  One of an XLA operation is taken for
the kernel that moves the same bytes in the same way: a copy, a pipelined product with XLA's own windows, a ring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tpusim import np as jnp
from tpusim.descriptors import make_async_copy, make_async_remote_copy
from tpusim.errors import OptionError
from tpusim.language import (
    axis_index,
    axis_size,
    ds,
    get_barrier_semaphore,
    num_programs,
    program_id,
    semaphore_signal,
    semaphore_wait,
    when,
)
from tpusim.program import Kernel
from tpusim.specs import HBM, VMEM, BlockSpec, SemaphoreType, ShapeDtypeStruct

CHUNKS = 4
"""Pieces in which a ring passes a block on, so that links stay busy while the next piece is on its way."""
_COPY_ROWS = 512
_LIMIT = 110 << 20
_ROW_BYTES = 4096
"""Copies are of rows of eight by 128 words of 32 bits: whole tiles."""


class Workload(NamedTuple):
    """A kernel, the GLOBAL arrays it is run on, as shapes, and its mesh."""

    kernel: Kernel
    arrays: tuple[ShapeDtypeStruct, ...]
    mesh: dict[str, int]


def make(name: str, **parameters: Any) -> Workload:
    """A workload by its name in a file of measurements."""
    if name not in _MAKERS:
        raise OptionError(f"there is no workload {name!r}. Possible: {', '.join(_MAKERS)}")
    return _MAKERS[name](**parameters)


def matmul(
    size: Sequence[int], tiles: Sequence[int], transposed: bool = False, activation: bool = False,
    dtype: str = "bfloat16",
) -> Workload:  # fmt: skip
    """The pipelined product of JAX's Pallas guide: grid (m/bm, n/bn, k/bk), accumulator in float32.

    ``size`` is (m, k, n), ``tiles`` (bm, bk, bn); ``transposed``: the right operand is (n, k).
    """
    (m, k, n), (bm, bk, bn) = size, tiles

    def product(a: Any, b: Any, c: Any, acc: Any) -> None:
        @when(program_id(2) == 0)
        def _() -> None:
            acc[...] = jnp.zeros((bm, bn), jnp.float32)

        if transposed:
            acc[...] += jnp.einsum("mk,nk->mn", a[...], b[...], preferred_element_type=jnp.float32)
        else:
            acc[...] += jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)

        @when(program_id(2) == num_programs(2) - 1)
        def _() -> None:
            total = jnp.maximum(acc[...], 0.0) if activation else acc[...]
            c[...] = total.astype(c.dtype)

    right = BlockSpec((bn, bk), lambda i, j, d: (j, d)) if transposed else BlockSpec((bk, bn), lambda i, j, d: (d, j))
    kernel = Kernel(
        product,
        out_shape=ShapeDtypeStruct((m, n), dtype),
        grid=(-(-m // bm), -(-n // bn), -(-k // bk)),
        in_specs=(BlockSpec((bm, bk), lambda i, j, d: (i, d)), right),
        out_specs=BlockSpec((bm, bn), lambda i, j, d: (i, j)),
        scratch_shapes=(VMEM((bm, bn), "float32"),),
        shard_in=((None, None), (None, None)),
        shard_out=(None, None),
        vmem_limit_bytes=_LIMIT,
        name="matmul",
    )
    right_shape = (n, k) if transposed else (k, n)
    return Workload(kernel, (ShapeDtypeStruct((m, k), dtype), ShapeDtypeStruct(right_shape, dtype)), {"x": 1})


def resident_matmul(size: Sequence[int], tiles: Sequence[int], dtype: str = "bfloat16") -> Workload:
    """A product whose left operand is first copied into VMEM whole: XLA's way where it fits.

    The grid is (n/bn, m/bm); ``tiles`` is (bm, k, bn), and m a multiple of bm.
    """
    (m, k, n), (bm, _, bn) = size, tiles

    def product(a: Any, b: Any, c: Any) -> None:
        rows = a[ds(program_id(1) * bm, bm), :]
        c[...] = jnp.dot(rows, b[...], preferred_element_type=jnp.float32).astype(c.dtype)

    kernel = Kernel(
        product,
        out_shape=ShapeDtypeStruct((m, n), dtype),
        grid=(-(-n // bn), m // bm),
        in_specs=(BlockSpec((m, k), lambda j, i: (0, 0)), BlockSpec((k, bn), lambda j, i: (0, j))),
        out_specs=BlockSpec((bm, bn), lambda j, i: (i, j)),
        shard_in=((None, None), (None, None)),
        shard_out=(None, None),
        vmem_limit_bytes=_LIMIT,
        name="resident_matmul",
    )
    return Workload(kernel, (ShapeDtypeStruct((m, k), dtype), ShapeDtypeStruct((k, n), dtype)), {"x": 1})


def grouped_matmul(groups: int, rows: int, k: int, n: int, columns: int) -> Workload:
    """Each group's bfloat16 rows times its own float8 weights, streamed once in blocks of ``columns``."""

    def product(x: Any, w: Any, o: Any) -> None:
        o[...] = jnp.dot(x[...], w[0].astype(x.dtype), preferred_element_type=jnp.float32).astype(o.dtype)

    kernel = Kernel(
        product,
        out_shape=ShapeDtypeStruct((groups * rows, n), "bfloat16"),
        grid=(groups, n // columns),
        in_specs=(BlockSpec((rows, k), lambda g, j: (g, 0)), BlockSpec((1, k, columns), lambda g, j: (g, 0, j))),
        out_specs=BlockSpec((rows, columns), lambda g, j: (g, j)),
        shard_in=((None, None), (None, None, None)),
        shard_out=(None, None),
        vmem_limit_bytes=_LIMIT,
        name="grouped_matmul",
    )
    x, w = ShapeDtypeStruct((groups * rows, k), "bfloat16"), ShapeDtypeStruct((groups, k, n), "float8_e4m3fn")
    return Workload(kernel, (x, w), {"x": 1})


def hbm_copy(bytes_: int) -> Workload:
    """A copy in HBM as XLA makes it: through VMEM, in windows of 2 MiB (what the TPU compiler shows of it).

    One window is read, while the others' reads and writes share HBM, which is never idle, then one is written.
    """
    array = _rows(bytes_)
    window = min(array.shape[0], _COPY_ROWS)
    rest = array.shape[0] - window

    def copy(x: Any, o: Any, first: Any, sems: Any) -> None:
        stages = [make_async_copy(x.at[ds(0, window)], first, sems.at[0])]
        if rest:
            stages.append(make_async_copy(x.at[ds(window, rest)], o.at[ds(window, rest)], sems.at[1]))
        for stage in stages:
            stage.start()
        for stage in stages:
            stage.wait()
        last = make_async_copy(first, o.at[ds(0, window)], sems.at[0])
        last.start()
        last.wait()

    scratch = (VMEM((window, *array.shape[1:]), "float32"), SemaphoreType.DMA((2,)))
    return Workload(_in_hbm(copy, scratch), (array,), {"x": 1})


def permute(bytes_: int, devices: int) -> Workload:
    """Every device sends its shard to the next on a ring, when that has said that it is there."""
    shard = _rows(bytes_)

    def send(x: Any, o: Any, send_sem: Any, recv_sem: Any) -> None:
        n, me = axis_size("x"), axis_index("x")
        barrier = get_barrier_semaphore()
        semaphore_signal(barrier, device_id=(me - 1) % n)
        semaphore_wait(barrier)
        copy = make_async_remote_copy(x, o, send_sem, recv_sem, device_id=(me + 1) % n)
        copy.start()
        copy.wait()

    kernel = _in_hbm(send, (SemaphoreType.DMA, SemaphoreType.DMA), axes=("x",), collective_id=0)
    return Workload(kernel, (_global(shard, devices),), {"x": devices})


def all_gather(bytes_: int, devices: int, groups: int = 1) -> Workload:
    """Every device of a group gets the shards of all, passed on both ways round in pieces.

    ``groups``: how many rings there are, along mesh axis g.  A link carries half of all shards but one's own, and
    the first piece is on before the last has come, so that latency shows only once.
    """
    shard = _rows(bytes_)
    rows = shard.shape[0]
    if rows % (2 * CHUNKS):
        raise OptionError(f"all_gather takes a multiple of {2 * CHUNKS * _ROW_BYTES} bytes, not {bytes_}")
    size = rows // (2 * CHUNKS)

    def gather(x: Any, o: Any, own_sem: Any, send_sems: Any, recv_sems: Any) -> None:
        n, me = axis_size("x"), axis_index("x")
        own_group = axis_index("g")
        neighbours = (own_group, (me + 1) % n), (own_group, (me - 1) % n)
        barrier = get_barrier_semaphore()
        for peer in neighbours:
            semaphore_signal(barrier, device_id=peer)
        semaphore_wait(barrier, 2)
        own = make_async_copy(x, o.at[me], own_sem)
        own.start()

        def piece(step: int, way: int, chunk: int) -> Any:
            """Of the block that started ``step`` places back, to the neighbour of this way."""
            slot = (me - step) % n if way == 0 else (me + step) % n
            part = ds((way * CHUNKS + chunk) * size, size)
            source = x.at[part] if step == 0 else o.at[slot, part]
            sems = send_sems.at[way, chunk], recv_sems.at[way, step, chunk]
            return make_async_remote_copy(source, o.at[slot, part], *sems, device_id=neighbours[way])

        def pieces() -> list[tuple[int, int]]:
            return [(way, chunk) for chunk in range(CHUNKS) for way in range(2)]

        for step in range(n - 1):
            for way, chunk in pieces():
                if step:
                    piece(step - 1, way, chunk).wait()
                piece(step, way, chunk).start()
        for way, chunk in pieces():
            piece(n - 2, way, chunk).wait()
        own.wait()

    kernel = Kernel(
        gather,
        out_shape=ShapeDtypeStruct((devices, *shard.shape), shard.dtype),
        axes=("g", "x"),
        shard_in=(("g", "x"), None, None),
        shard_out=(("g", "x"), None, None, None),
        in_specs=HBM,
        out_specs=HBM,
        scratch_shapes=(
            SemaphoreType.DMA,
            SemaphoreType.DMA((2, CHUNKS)),
            SemaphoreType.DMA((2, devices - 1, CHUNKS)),
        ),
        collective_id=0,
        name="all_gather",
    )
    return Workload(kernel, (_global(shard, devices * groups),), {"g": groups, "x": devices})


def _rows(bytes_: int) -> ShapeDtypeStruct:
    if bytes_ < 1024 or (bytes_ > _ROW_BYTES and bytes_ % _ROW_BYTES) or bytes_ % 512:
        raise OptionError(f"a copy is of whole tiles of {_ROW_BYTES} bytes, or of rows of 512, not {bytes_} bytes")
    if bytes_ < _ROW_BYTES:
        return ShapeDtypeStruct((1, bytes_ // 512, 128), "float32")
    return ShapeDtypeStruct((bytes_ // _ROW_BYTES, 8, 128), "float32")


def _global(shard: ShapeDtypeStruct, devices: int) -> ShapeDtypeStruct:
    return ShapeDtypeStruct((devices * shard.shape[0], *shard.shape[1:]), shard.dtype)


def _in_hbm(fn: Any, scratch: Any, **declared: Any) -> Kernel:
    return Kernel(
        fn, out_shape=lambda x: x, in_specs=HBM, out_specs=HBM, scratch_shapes=scratch, name=fn.__name__, **declared
    )


_MAKERS: dict[str, Callable[..., Workload]] = {
    "matmul": matmul,
    "resident_matmul": resident_matmul,
    "grouped_matmul": grouped_matmul,
    "hbm_copy": hbm_copy,
    "permute": permute,
    "all_gather": all_gather,
}
