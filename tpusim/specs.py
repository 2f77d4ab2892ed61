"""Declarations: which arrays, buffers and semaphores a kernel has, with Pallas's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from tpusim.errors import OptionError

_EXTENSION_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "int4", "uint4")
}


def as_dtype(dtype: DTypeLike | str) -> np.dtype[Any]:
    """``dtype`` as a NumPy dtype; knows JAX's extra names such as ``"bfloat16"``."""
    if isinstance(dtype, str) and dtype in _EXTENSION_DTYPES:
        return np.dtype(_EXTENSION_DTYPES[dtype])
    return np.dtype(dtype)


def _as_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    dims = (shape,) if isinstance(shape, int) else tuple(int(dim) for dim in shape)
    if any(dim < 0 for dim in dims):
        raise OptionError(f"shape {dims} has a negative size")
    return dims


class ShapeDtypeStruct:
    """Shape and dtype of an array, without data."""

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: Sequence[int], dtype: DTypeLike | str) -> None:
        self.shape = _as_shape(shape)
        self.dtype = as_dtype(dtype)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"ShapeDtypeStruct({self.shape}, {self.dtype.name})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeDtypeStruct) and self.shape == other.shape and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))


class MemorySpace(Enum):
    """Where a buffer lives.  Called with a shape and a dtype, it declares a scratch buffer."""

    ANY = "any"
    HBM = "hbm"
    VMEM = "vmem"
    SMEM = "smem"
    SUBCORE_VMEM = "subcore_vmem"
    """The VMEM of one vector subcore of a SparseCore."""
    VMEM_SHARED = "vmem_shared"
    """Memory that the subcores of a SparseCore have in common."""

    def __call__(self, shape: Sequence[int], dtype: DTypeLike | str) -> MemoryRef:
        """A buffer to allocate in this memory."""
        return MemoryRef(self, _as_shape(shape), as_dtype(dtype))

    def __repr__(self) -> str:
        return self.name


ANY, HBM, VMEM, SMEM = MemorySpace.ANY, MemorySpace.HBM, MemorySpace.VMEM, MemorySpace.SMEM
SPARSE = (MemorySpace.SUBCORE_VMEM, MemorySpace.VMEM_SHARED)
"""Memories of a SparseCore: without tiles, moved in granules."""


@dataclass(frozen=True)
class MemoryRef:
    """A buffer to allocate: memory space, shape, dtype."""

    space: MemorySpace
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class SemaphoreType(Enum):
    """Kinds of semaphore; ``SemaphoreType.DMA`` declares one, ``SemaphoreType.DMA((2,))`` an array."""

    REGULAR = "regular"
    DMA = "dma"
    BARRIER = "barrier"

    def __call__(self, shape: int | Sequence[int]) -> SemaphoreArray:
        """An array of semaphores of this kind to allocate."""
        return SemaphoreArray(self, _as_shape(shape))

    def __repr__(self) -> str:
        return f"SemaphoreType.{self.name}"


@dataclass(frozen=True)
class SemaphoreArray:
    """Semaphores to allocate: kind and shape (``()`` for a single one)."""

    kind: SemaphoreType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class BlockSpec:
    """How a grid walks over an array, or only where the whole of it lives.

    ``block_shape`` and ``index_map`` as in Pallas; without them the whole array is one block in
    ``memory_space`` (default VMEM).
    """

    block_shape: tuple[int | None, ...] | None = None
    index_map: Callable[..., Any] | None = None
    memory_space: MemorySpace | None = None


ScratchType = MemoryRef | SemaphoreArray | SemaphoreType


def is_scratch_type(value: object) -> bool:
    """Whether ``value`` declares a buffer or a semaphore."""
    return isinstance(value, MemoryRef | SemaphoreArray | SemaphoreType)
