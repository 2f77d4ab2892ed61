"""Block specs of native kernels: checked, and their index maps as the pipeline calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpusim.errors import OptionError
from tpusim.machine.memory import BufferSpec
from tpusim.pipeline import IndexMap
from tpusim.specs import BlockSpec, MemorySpace
from tpusim.values.scalars import Scalar


def as_index_map(kernel: str, array: BufferSpec, block: BlockSpec, grid: tuple[int, ...]) -> IndexMap | None:
    """The map from the steps of ``grid`` to blocks of an array, ``None`` where the whole array is one block.

    Raises :class:`OptionError` for a block that cannot be.
    """
    shape = block.block_shape
    if shape is None or tuple(shape) == array.shape:
        return None
    who = f"{kernel}: the block shape {tuple(shape)} of {array.name}"
    if len(shape) != len(array.shape):
        raise OptionError(f"{who} has {len(shape)} dimensions, the array has shape {array.shape}")
    if not all(size is None or (type(size) is int and size > 0) for size in shape):
        raise OptionError(f"{who} must hold positive sizes, or None for a dimension to leave out")
    if block.memory_space in (MemorySpace.ANY, MemorySpace.HBM):
        raise OptionError(f"{who}: an array in {block.memory_space!r} is passed whole; blocks are for VMEM and SMEM")
    if not grid:
        raise OptionError(f"{who} is not all of {array.shape}, and without a grid there is one step only")
    written = block.index_map
    if written is None:
        first = (0,) * len(shape)
        return lambda _executor, *_step: first
    return _checked(written, who, len(shape))


def _checked(written: Callable[..., Any], who: str, rank: int) -> IndexMap:
    def index_map(_executor: object, *step: int) -> tuple[int, ...]:
        found = written(*map(Scalar, step))
        index = found if isinstance(found, tuple | list) else (found,)
        if len(index) != rank:
            raise OptionError(f"{who}: its index_map gives {len(index)} indices")
        return tuple([part.value if type(part) is Scalar else part.__index__() for part in index])

    return index_map
