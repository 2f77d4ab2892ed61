"""The backend that is active while JAX traces a native kernel: every operation is Pallas's own."""

# ruff: noqa: D102 - `Backend` documents each method

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tpusim.backend import RawSite
from tpusim.declare import as_scratch, axes_size, device_id_problem, missing_collective_id
from tpusim.descriptors import AsyncCopyDescriptor
from tpusim.errors import FindingError, finding_error
from tpusim.findings import Kind, Site
from tpusim.specs import MemoryRef, MemorySpace, SemaphoreType

MEMORY_SPACES = {
    MemorySpace.ANY: pl.ANY,
    MemorySpace.HBM: pltpu.HBM,
    MemorySpace.VMEM: pltpu.VMEM,
    MemorySpace.SMEM: pltpu.SMEM,
}

_SEMAPHORES = {
    SemaphoreType.DMA: pltpu.SemaphoreType.DMA,
    SemaphoreType.REGULAR: pltpu.SemaphoreType.REGULAR,
    SemaphoreType.BARRIER: pltpu.SemaphoreType.BARRIER,
}


def scratch_type(entry: Any) -> Any:
    """A scratch declaration as Pallas writes it."""
    scratch = as_scratch(entry)
    if isinstance(scratch, MemoryRef):
        return MEMORY_SPACES[scratch.space](scratch.shape, scratch.dtype)
    kind = _SEMAPHORES[scratch.kind]
    return kind(scratch.shape) if scratch.shape else kind


class PallasBackend:
    """``tpusim.backend.Backend`` by calling Pallas; meaning and checks stay those of tpusim."""

    np: Any = jnp

    def __init__(
        self,
        name: str,
        axis_sizes: Mapping[str, int],
        grid: tuple[int, ...],
        collective_id: int | None,
        *,
        is_interpreted: bool,
    ) -> None:
        self._name = name
        self._axis_sizes = axis_sizes
        self._grid = grid
        self._collective_id = collective_id
        self._is_interpreted = is_interpreted
        self.took_barrier = False

    def axis_index(self, axis: str | tuple[str, ...]) -> Any:
        axes_size(axis, self._axis_sizes)  # an unknown axis gets tpusim's message
        return jax.lax.axis_index(axis)

    def axis_size(self, axis: str | tuple[str, ...]) -> int:
        return axes_size(axis, self._axis_sizes)

    def program_id(self, axis: int) -> Any:
        return pl.program_id(axis)

    def num_programs(self, axis: int) -> int:
        return self._grid[axis]

    def ds(self, start: Any, size: int, stride: int | None) -> Any:
        return pl.ds(start, size) if stride is None else pl.ds(start, size, stride)

    def made(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> None:
        self._device_id(descriptor.device_id, site)

    def start(self, descriptor: AsyncCopyDescriptor, priority: int, add: bool, site: RawSite) -> None:
        if add and self._is_interpreted:
            raise _at(Kind.NOT_MODELLED, site, "JAX's interpret mode ignores add=True: the result would be wrong.")
        self._copy(descriptor, site).start(priority, add=add)

    def wait(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> None:
        self._copy(descriptor, site).wait()

    def wait_send(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> None:
        self._copy(descriptor, site).wait_send()

    def wait_recv(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> None:
        self._copy(descriptor, site).wait_recv()

    def semaphore_signal(self, sem: Any, inc: Any, device_id: Any, core_index: Any, site: RawSite) -> None:
        pl.semaphore_signal(sem, inc, device_id=self._device_id(device_id, site), core_index=core_index)

    def semaphore_wait(self, sem: Any, value: Any, site: RawSite) -> None:
        pl.semaphore_wait(sem, value)

    def semaphore_read(self, sem: Any, site: RawSite) -> Any:
        if self._is_interpreted:
            raise _at(Kind.NOT_MODELLED, site, "JAX's interpret mode has no semaphore_read.")
        return pl.semaphore_read(sem)

    def get_barrier_semaphore(self, site: RawSite) -> Any:
        if self._collective_id is None:
            raise _at(Kind.COLLECTIVE_ID, site, missing_collective_id(self._name))
        self.took_barrier = True
        return pltpu.get_barrier_semaphore()

    def when(self, condition: Any, body: Callable[[], None]) -> None:
        pl.when(bool(condition) if isinstance(condition, np.bool_) else condition)(body)

    def fori_loop(self, lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any, unroll: Any) -> Any:
        return jax.lax.fori_loop(lower, upper, body, init, unroll=unroll)

    def run_scoped(self, body: Callable[..., Any], types: tuple[Any, ...], kw_types: dict[str, Any]) -> Any:
        named = {name: scratch_type(entry) for name, entry in kw_types.items()}
        return pl.run_scoped(body, *(scratch_type(entry) for entry in types), **named)

    def delay(self, nanos: Any) -> None:
        pl.delay(nanos)

    def debug_print(self, fmt: str, args: tuple[Any, ...]) -> None:
        pl.debug_print(fmt, *args)

    def _copy(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> Any:
        """Pallas's own descriptor; made for one use, since JAX logs an error about one that is never used."""
        d = descriptor
        if not d.is_remote:
            return pltpu.make_async_copy(d.src_ref, d.dst_ref, d.dst_sem)
        device_id = self._device_id(d.device_id, site)
        return pltpu.make_async_remote_copy(d.src_ref, d.dst_ref, d.src_sem, d.dst_sem, device_id)

    def _device_id(self, device_id: Any, site: RawSite) -> Any:
        """``device_id`` as every JAX version takes it without a ``device_id_type``, which 0.12 deprecates."""
        if device_id is None:
            return None
        if problem := device_id_problem(device_id, self._axis_sizes):
            raise _at(Kind.DEVICE_ID, site, problem)
        if isinstance(device_id, dict):  # pytrees need keys that compare with each other
            return {key if isinstance(key, tuple) else (key,): value for key, value in device_id.items()}
        return device_id


def _at(kind: Kind, site: RawSite, message: str) -> FindingError:
    return finding_error(kind, message, where=Site(*site).where())
