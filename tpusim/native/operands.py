"""What the operands of operations may be, and what is said where they are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tpusim.errors import DescriptorError, SemaphoreKindError, ShapeMismatchError
from tpusim.machine.memory import Region
from tpusim.native.refs import Ref, SemaphoreRef
from tpusim.specs import SemaphoreType
from tpusim.values import Array, Scalar
from tpusim.values.numerics import integer_limits
from tpusim.values.promotion import canonical_dtype, kind_letter
from tpusim.values.scalars import captured_constant


def check_copy(src: Any, dst: Any, dst_sem: Any, src_sem: Any) -> None:
    """Refuse what cannot be copied, and semaphores that cannot count it."""
    for ref, name in ((src, "src_ref"), (dst, "dst_ref")):
        if type(ref) is not Ref:
            raise DescriptorError(
                f"{name} is {type(ref).__name__}, not a ref: give the kernel's argument itself or ref.at[...], "
                "not a loaded value"
            )
    if src.shape != dst.shape:
        raise ShapeMismatchError(
            f"copy from {src.region} of shape {src.shape} to {dst.region} of shape {dst.shape}: they must be equal"
        )
    if src.dtype != dst.dtype:
        raise ShapeMismatchError(
            f"copy from {src.region} of {src.dtype.name} to {dst.region} of {dst.dtype.name}: a copy does not convert"
        )
    for ref in (dst_sem,) if src_sem is None else (dst_sem, src_sem):
        if type(ref) is not SemaphoreRef:
            raise SemaphoreKindError(f"a copy needs a DMA semaphore, not {type(ref).__name__}")
        if ref.spec.kind is not SemaphoreType.DMA:
            raise SemaphoreKindError(
                f"a copy needs a DMA semaphore; {ref.spec.name} is a {ref.spec.kind.value} semaphore"
            )
        if ref.shape:
            raise SemaphoreKindError(
                f"a copy needs one semaphore; {ref.spec.name} is an array of shape {ref.shape}: pick one with .at[...]"
            )


def static(value: Any, what: str) -> int:
    """The integer behind a scalar or a number."""
    if type(value) is Scalar:
        value = value.value
    if isinstance(value, bool | np.bool_):
        return int(value)
    try:
        return int(value.__index__())
    except AttributeError:
        raise ShapeMismatchError(f"{what} must be an integer scalar, not {type(value).__name__}") from None


def plain(device_id: Any) -> Any:
    """A device id in plain Python: tracked scalars and NumPy integers as numbers, a list as a tuple."""
    if isinstance(device_id, Mapping):
        return {key: plain(value) for key, value in device_id.items()}
    if isinstance(device_id, tuple | list):
        return tuple(plain(part) for part in device_id)
    if type(device_id) is Scalar:
        return device_id.value
    return int(device_id) if isinstance(device_id, np.integer) else device_id


def storable(value: Any, region: Region) -> Any:
    """The data of a value to store; refuses what Pallas refuses: another shape, or another type, numbers included."""
    shape: tuple[int, ...] = ()
    data: Any = value
    if isinstance(value, Array):
        shape, dtype, is_weak, data = value.shape, value.dtype, value.weak, value.data
    elif isinstance(value, Scalar):
        dtype, is_weak, data = value.dtype, value.weak, value.value
    elif isinstance(value, bool | int | float):
        dtype, is_weak = np.dtype(_PYTHON_TYPES[type(value)]), True
    elif isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        dtype, is_weak = canonical_dtype(value.dtype), False
    elif isinstance(value, np.ndarray):
        raise captured_constant(value)
    else:
        raise ShapeMismatchError(f"store of a {type(value).__name__} to {region}: it is no number and no array")
    if shape != region.shape:
        hint = "" if shape else "; fill it with tpusim.np.full(shape, value, dtype)"
        raise ShapeMismatchError(
            f"store of shape {shape} to {region} of shape {region.shape}: they must be equal{hint}"
        )
    wanted = region.spec.dtype
    if dtype != wanted and not (is_weak and _family(dtype) == _family(wanted)):
        raise ShapeMismatchError(f"store of {dtype.name} to {region}, which holds {wanted.name}: use .astype(...)")
    if type(value) is int and not integer_limits(wanted)[0] <= value <= integer_limits(wanted)[1]:
        raise OverflowError(f"Python int {value} too large to convert to {wanted.name}")
    return data


_PYTHON_TYPES = {bool: np.bool_, int: np.int32, float: np.float32}


def _family(dtype: np.dtype[Any]) -> str:
    """Types to which a plain number of a kind may be stored: ``i`` for all integers, ``f``, ``b``."""
    return kind_letter(dtype).replace("u", "i")
