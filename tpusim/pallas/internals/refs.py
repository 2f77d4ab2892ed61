"""The types of refs and semaphores, and the views of them: JAX's internals behind a kernel's arguments.

Checked with jax 0.10.2 (Python 3.11) and 0.12.0.1 (Python 3.13); what differs stands beside each helper.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tpusim.pallas.internals.versions import PrivateModule
from tpusim.specs import MemorySpace, SemaphoreType, as_dtype

_indexing = PrivateModule("jax._src.state.indexing")
_types = PrivateModule("jax._src.state.types")
_pallas_core = PrivateModule("jax._src.pallas.core")
_mosaic_core = PrivateModule("jax._src.pallas.mosaic.core")

NDIndexer = _indexing.type("NDIndexer")
Slice = _indexing.type("Slice")
TransformedRef = _types.type("TransformedRef")
AbstractRef = _types.type("AbstractRef")
ReshapeTransform = _types.type("ReshapeTransform")
TransposeTransform = _types.type("TransposeTransform")
BitcastTransform = _types.type("BitcastTransform")
DMASemaphore = _mosaic_core.type("DMASemaphore")
BarrierSemaphore = _pallas_core.type("BarrierSemaphore")
Semaphore = _pallas_core.type("Semaphore")


def is_ref(aval: Any) -> bool:
    """Whether a variable of this type is a ref."""
    return isinstance(aval, AbstractRef)


class RefType(NamedTuple):
    """A ref's type: a buffer (``space``, ``dtype``) or semaphores (``semaphore``).

    Typed PRNG keys (``key``: their kind) lie in memory as their words, in dimensions behind the others.
    """

    shape: tuple[int, ...]
    space: MemorySpace | None
    dtype: np.dtype[Any] | None
    semaphore: SemaphoreType | None
    key: str | None = None


def ref_type(aval: Any, default: MemorySpace = MemorySpace.VMEM) -> RefType:
    """The type of a ref; one without a memory space lies in ``default``."""
    shape = tuple(int(dim) for dim in aval.shape)
    kind = semaphore_kind(aval.dtype)
    if kind is not None:
        return RefType(shape, None, None, kind)
    space = getattr(aval, "memory_space", None)
    name = getattr(space, "name", str(space)).lower() if space is not None else "none"
    found = {
        "none": default,
        "vmem": MemorySpace.VMEM,
        "smem": MemorySpace.SMEM,
        "hbm": MemorySpace.HBM,
        "any": MemorySpace.ANY,
        "default": default,
        "device": MemorySpace.HBM,
        "index": MemorySpace.SMEM,
        "key": MemorySpace.SMEM,
        "vmem_shared": MemorySpace.VMEM_SHARED,
    }.get(name)
    if key_words(aval.dtype):
        return RefType((*shape, *key_words(aval.dtype)), found, np.dtype(np.uint32), None, aval.dtype._impl.name)
    return RefType(shape, found, None if found is None else as_dtype(aval.dtype), None)


def key_words(dtype: Any) -> tuple[int, ...]:
    """The shape of a typed PRNG key's words; empty for other types."""
    return tuple(dtype._impl.key_shape) if hasattr(dtype, "_impl") else ()


def pallas_key(aval: Any) -> str | None:
    """Whether a value is a key of Pallas's own generators: ``pallas`` or ``stateful``."""
    name = getattr(getattr(getattr(aval, "dtype", None), "_impl", None), "name", None)
    return {"pallas_tpu": "pallas", "_pallas_internal_stateful": "stateful"}.get(name) if name else None


def semaphore_kind(dtype: Any) -> SemaphoreType | None:
    """The kind of semaphore of an extended dtype, if it is one."""
    if isinstance(dtype, DMASemaphore):
        return SemaphoreType.DMA
    if isinstance(dtype, BarrierSemaphore):
        return SemaphoreType.BARRIER
    if isinstance(dtype, Semaphore):
        return SemaphoreType.REGULAR
    return None


def choices(ref: Any) -> tuple[Any, list[Any]] | None:
    """The index and the refs of a ``pl.select_ref``; an index that names none of them takes the last."""
    if not isinstance(ref, TransformedRef):
        return None
    if isinstance(ref.ref, tuple | list):
        return ref.transforms[0].idx, list(ref.ref)
    inner = choices(ref.ref)
    return None if inner is None else (inner[0], [TransformedRef(option, ref.transforms) for option in inner[1]])


def view_of(transform: Any) -> tuple[str, Any] | None:
    """A transform other than an index as a function of ``views`` and its argument; an empty name changes nothing."""
    if isinstance(transform, ReshapeTransform):
        return "reshaped", tuple(int(dim) for dim in transform.shape)
    if isinstance(transform, TransposeTransform):
        return "transposed", tuple(int(dim) for dim in transform.permutation)
    if isinstance(transform, BitcastTransform):
        return "bitcast", np.dtype(transform.dtype).name
    if type(transform).__name__ in ("MemorySpaceCastTransform", "AccessAssumptionTransform"):  # 0.12
        return "", None
    return None
