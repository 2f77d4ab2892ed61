"""Microbenchmarks: small kernels that do one thing many times, so that two counts give the time of one.

The module is itself a FILE, as every command takes: ``make_kernel(name=..., count=...)`` and ``inputs(...)`` make one
of them, for the simulator, interpret mode, the TPU compiler or a TPU alike.

::

    copy      HBM <-> VMEM, VMEM <-> VMEM, HBM <-> HBM: start, wait; several in flight: start all, wait for all
    strided   a column of tiles out of a wide array
    shift     a copy over some hops to the right, then a signal back that it has come; or both ways at once
    ping      a signal over some hops to the right, and a wait for the one from the left
    barrier   a signal to both neighbours, and a wait for both
    pipeline  a grid step: the next block in, one added to it, the last one out
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tpusim.descriptors import make_async_copy, make_async_remote_copy
from tpusim.errors import OptionError
from tpusim.language import (
    axis_index,
    axis_size,
    ds,
    fori_loop,
    get_barrier_semaphore,
    semaphore_signal,
    semaphore_wait,
)
from tpusim.program import Kernel
from tpusim.specs import HBM, VMEM, BlockSpec, MemorySpace, SemaphoreType, ShapeDtypeStruct

COUNTS = (8, 40)
"""How often a microbenchmark does its thing; the difference is taken."""
_TILE = (8, 128)
_TILE_BYTES = 4096
_WIDE = 1024
_SPACES = {"hbm": HBM, "vmem": VMEM}


def make_kernel(name: str = "copy", count: int = 8, bytes_: int = _TILE_BYTES, **how: Any) -> Kernel:
    """One microbenchmark; ``how``: ``source``, ``target``, ``in_flight`` of a copy, ``hops``, ``both`` of a shift."""
    if name not in _MAKERS:
        raise OptionError(f"there is no microbenchmark {name!r}. Possible: {', '.join(_MAKERS)}")
    if bytes_ % _TILE_BYTES:
        raise OptionError(f"a microbenchmark moves whole tiles of {_TILE_BYTES} bytes, not {bytes_} bytes")
    return _MAKERS[name](count, bytes_ // _TILE_BYTES, **how)


def inputs(
    devices: int = 1, name: str = "copy", bytes_: int = _TILE_BYTES, in_flight: int = 1, count: int = 8, seed: int = 0
) -> tuple[Any, ...]:
    """The GLOBAL array a microbenchmark is run on."""
    tiles = bytes_ // _TILE_BYTES
    shape: tuple[int, ...] = (in_flight, tiles, *_TILE)
    if name == "strided":
        shape = (tiles * _TILE[0], _WIDE)
    elif name == "pipeline":
        shape = (count * tiles * _TILE[0], _TILE[1])
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((devices * shape[0], *shape[1:]), np.float32),)


def _copy(count: int, tiles: int, source: str = "hbm", target: str = "vmem", in_flight: int = 1) -> Kernel:
    shape = (in_flight, tiles, *_TILE)

    def copy(x: Any, o: Any, a: Any, b: Any, sems: Any, sem: Any) -> None:
        first = make_async_copy(x, a, sem)
        first.start()
        first.wait()
        source_ref = x if source == "hbm" else a
        target_ref = o if target == "hbm" else b

        def once(_i: Any, _: None) -> None:
            copies = [
                make_async_copy(source_ref.at[each], target_ref.at[each], sems.at[each]) for each in range(in_flight)
            ]
            for one in copies:
                one.start()
            for one in copies:
                one.wait()

        fori_loop(0, count, once, None)
        last = make_async_copy(a if target == "hbm" else b, o, sem)
        last.start()
        last.wait()

    scratch = (VMEM(shape, "float32"), VMEM(shape, "float32"), SemaphoreType.DMA((in_flight,)), SemaphoreType.DMA)
    return _kernel(copy, scratch)


def _strided(count: int, tiles: int) -> Kernel:
    def strided(x: Any, o: Any, a: Any, sem: Any) -> None:
        column = x.at[ds(0, tiles * _TILE[0]), ds(_TILE[1], _TILE[1])]

        def once(_i: Any, _: None) -> None:
            one = make_async_copy(column, a, sem)
            one.start()
            one.wait()

        fori_loop(0, count, once, None)
        last = make_async_copy(a, o, sem)
        last.start()
        last.wait()

    shape = (tiles * _TILE[0], _TILE[1])
    return _kernel(strided, (VMEM(shape, "float32"), SemaphoreType.DMA), ShapeDtypeStruct(shape, "float32"))


def _shift(count: int, tiles: int, hops: int = 1, both: bool = False) -> Kernel:
    def shift(x: Any, o: Any, sends: Any, recvs: Any, credits: Any) -> None:
        n, me = axis_size("x"), axis_index("x")
        ways = [((me + hops) % n, (me - hops) % n)] + [((me - hops) % n, (me + hops) % n)] * both
        barrier = get_barrier_semaphore()
        for _, source in ways:
            semaphore_signal(barrier, device_id=source)  # it may now write here
        semaphore_wait(barrier, len(ways))

        def once(_i: Any, _: None) -> None:
            copies = [
                make_async_remote_copy(x, o.at[way], sends.at[way], recvs.at[way], device_id=to)
                for way, (to, _) in enumerate(ways)
            ]
            for one in copies:
                one.start()
            for way, (_, source) in enumerate(ways):
                copies[way].wait()
                semaphore_signal(credits.at[way], device_id=source)
            for way in range(len(ways)):
                semaphore_wait(credits.at[way])

        fori_loop(0, count, once, None)

    ways = 2 if both else 1
    scratch = (SemaphoreType.DMA((ways,)), SemaphoreType.DMA((ways,)), SemaphoreType.REGULAR((ways,)))
    return _kernel(shift, scratch, ShapeDtypeStruct((ways, 1, tiles, *_TILE), "float32"), collective_id=0)


def _ping(count: int, tiles: int, hops: int = 1) -> Kernel:
    def ping(x: Any, o: Any, sem: Any, done: Any) -> None:
        n, me = axis_size("x"), axis_index("x")
        barrier = get_barrier_semaphore()
        semaphore_signal(barrier, device_id=(me - hops) % n)  # it may now signal here
        semaphore_wait(barrier)

        def once(_i: Any, _: None) -> None:
            semaphore_signal(done, device_id=(me + hops) % n)
            semaphore_wait(done)

        fori_loop(0, count, once, None)
        whole = make_async_copy(x, o, sem)
        whole.start()
        whole.wait()

    return _kernel(ping, (SemaphoreType.DMA, SemaphoreType.REGULAR), collective_id=0)


def _barrier(count: int, tiles: int) -> Kernel:
    def barrier(x: Any, o: Any, sem: Any) -> None:
        n, me = axis_size("x"), axis_index("x")
        both = get_barrier_semaphore()

        def once(_i: Any, _: None) -> None:
            semaphore_signal(both, device_id=(me + 1) % n)
            semaphore_signal(both, device_id=(me - 1) % n)
            semaphore_wait(both, 2)

        fori_loop(0, count, once, None)
        whole = make_async_copy(x, o, sem)
        whole.start()
        whole.wait()

    return _kernel(barrier, (SemaphoreType.DMA,), collective_id=0)


def _pipeline(count: int, tiles: int) -> Kernel:
    def pipeline(x: Any, o: Any) -> None:
        o[...] = x[...] + 1.0

    block = BlockSpec((tiles * _TILE[0], _TILE[1]), lambda i: (i, 0))
    return Kernel(pipeline, out_shape=lambda x: x, grid=(count,), in_specs=block, out_specs=block, name="pipeline")


def _kernel(fn: Any, scratch: tuple[Any, ...], out: ShapeDtypeStruct | None = None, **declared: Any) -> Kernel:
    space: MemorySpace = HBM
    shape: Any = out if out is not None else lambda x: x
    return Kernel(
        fn, out_shape=shape, in_specs=space, out_specs=space, scratch_shapes=scratch, name=fn.__name__, **declared
    )


_MAKERS: dict[str, Callable[..., Kernel]] = {
    "copy": _copy,
    "strided": _strided,
    "shift": _shift,
    "ping": _ping,
    "barrier": _barrier,
    "pipeline": _pipeline,
}

kernel = make_kernel()
