"""Tracked scalars: integers, floats and bools that a Pallas trace would not know.

Index arithmetic of a kernel runs through these, once per simulated device and step, so int32 with int32
or a Python integer takes a path without NumPy: compute, check the range, build the result.  Everything
else (overflow, other dtypes, floats, division by zero) takes the general path of the table of operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tpusim.backend import active
from tpusim.errors import OptionError, ShapeMismatchError
from tpusim.values.numerics import NDArray, cast
from tpusim.values.promotion import BOOL, INT32, INT32_MAX, INT32_MIN, DType, canonical_dtype, kind_letter
from tpusim.values.traced import Traced
from tpusim.values.ufuncs import INTEGER_POW, UFUNCS, Ufunc

Number = bool | int | float
_new: Final = object.__new__
_PYTHON_NUMBERS: Final = frozenset((int, float, bool))


class Scalar(Traced):
    """A tracked scalar: ``value`` (a Python bool, int or float), its ``dtype``, and whether that is ``weak``.

    It costs no simulated time: the scalar unit computes it.
    """

    __slots__ = ("dtype", "late", "value", "weak")
    shape: tuple[int, ...] = ()
    ndim = 0
    size = 1

    value: Any
    dtype: DType
    weak: bool
    late: tuple[Any, Callable[[], object]]
    """Of a scalar whose value nothing has used: that value, and what is called when it is."""

    def __init__(self, value: Number, dtype: Any = INT32, weak: bool = False) -> None:
        self.value = value
        self.dtype = dtype if dtype is INT32 else canonical_dtype(dtype)
        self.weak = weak

    def __getattr__(self, name: str) -> Any:
        """The ``value`` of a :func:`late_scalar`, which has none until it is used."""
        if name != "value":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.value, used = self.late
        used()
        return self.value

    def __repr__(self) -> str:
        return f"Scalar({self.value}, {self.dtype.name}{', weak' if self.weak else ''})"

    def _describe(self) -> str:
        return f"a tracked {self.dtype.name} scalar"

    @property
    def T(self) -> Scalar:
        """The scalar itself."""
        return self

    def astype(self, dtype: Any) -> Scalar:
        """The scalar converted as XLA converts: integers wrap, floats saturate to integers."""
        wanted = canonical_dtype(dtype)
        if wanted is self.dtype:
            return self if not self.weak else scalar(self.value, wanted, False)
        return from_numpy(cast(to_numpy(self), wanted), wanted)

    def reshape(self, *shape: Any) -> Any:
        """An array with this one element, or the scalar itself for shape ``()``."""
        return active().np.reshape(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Any:
        """The scalar itself."""
        return active().np.transpose(self, axes or None)

    def sum(self, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
        """The scalar itself, in the dtype of a sum."""
        return active().np.sum(self, axis, dtype, keepdims=keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """The scalar itself."""
        return active().np.max(self, axis, keepdims=keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """The scalar itself."""
        return active().np.min(self, axis, keepdims=keepdims)

    def mean(self, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
        """The scalar itself, in a floating dtype."""
        return active().np.mean(self, axis, dtype, keepdims=keepdims)

    def __getitem__(self, key: Any) -> Any:
        keys = key if type(key) is tuple else (key,)
        if any(item is not None and item is not Ellipsis for item in keys):
            raise ShapeMismatchError("a scalar has no dimension to index")
        added = sum(item is None for item in keys)
        return self.reshape((1,) * added) if added else self

    def __iter__(self) -> Any:
        self._refuse("it has no elements to iterate over. To repeat something write `tpusim.fori_loop`.")

    def __len__(self) -> int:
        self._refuse("it has no length. Use a shape or axis_size, which are Python integers.")

    def _apply(self, ufunc: Ufunc, *operands: Any) -> Any:
        for operand in operands:
            if not is_scalar(operand):
                if isinstance(operand, np.ndarray):
                    raise captured_constant(operand)
                return NotImplemented
        return apply_to_scalars(ufunc, *operands)

    # -- int32, without NumPy -----------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        if self.dtype is INT32:
            if type(other) is int:
                value, weak = self.value + other, self.weak
            elif type(other) is Scalar and other.dtype is INT32:
                value, weak = self.value + other.value, self.weak and other.weak
            else:
                return self._apply(_ADD, self, other)
            if -2147483648 <= value <= 2147483647:
                result = _new(Scalar)
                result.value, result.dtype, result.weak = value, INT32, weak
                return result
        return self._apply(_ADD, self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if self.dtype is INT32:
            if type(other) is int:
                value, weak = self.value - other, self.weak
            elif type(other) is Scalar and other.dtype is INT32:
                value, weak = self.value - other.value, self.weak and other.weak
            else:
                return self._apply(_SUBTRACT, self, other)
            if -2147483648 <= value <= 2147483647:
                result = _new(Scalar)
                result.value, result.dtype, result.weak = value, INT32, weak
                return result
        return self._apply(_SUBTRACT, self, other)

    def __rsub__(self, other: Any) -> Any:
        if self.dtype is INT32 and type(other) is int:
            value = other - self.value
            if -2147483648 <= value <= 2147483647:
                result = _new(Scalar)
                result.value, result.dtype, result.weak = value, INT32, self.weak
                return result
        return self._apply(_SUBTRACT, other, self)

    def __mul__(self, other: Any) -> Any:
        if self.dtype is INT32:
            if type(other) is int:
                value, weak = self.value * other, self.weak
            elif type(other) is Scalar and other.dtype is INT32:
                value, weak = self.value * other.value, self.weak and other.weak
            else:
                return self._apply(_MULTIPLY, self, other)
            if -2147483648 <= value <= 2147483647:
                result = _new(Scalar)
                result.value, result.dtype, result.weak = value, INT32, weak
                return result
        return self._apply(_MULTIPLY, self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        if self.dtype is INT32:
            if type(other) is int:
                divisor, weak = other, self.weak
            elif type(other) is Scalar and other.dtype is INT32:
                divisor, weak = other.value, self.weak and other.weak
            else:
                divisor, weak = 0, False
            if 0 < divisor <= 2147483647:
                result = _new(Scalar)
                result.value, result.dtype, result.weak = self.value // divisor, INT32, weak
                return result
        return self._apply(_FLOOR_DIVIDE, self, other)

    def __mod__(self, other: Any) -> Any:
        if self.dtype is INT32:
            if type(other) is int:
                divisor, weak = other, self.weak
            elif type(other) is Scalar and other.dtype is INT32:
                divisor, weak = other.value, self.weak and other.weak
            else:
                divisor, weak = 0, False
            if 0 < divisor <= 2147483647:
                result = _new(Scalar)
                result.value, result.dtype, result.weak = self.value % divisor, INT32, weak
                return result
        return self._apply(_REMAINDER, self, other)

    def __eq__(self, other: Any) -> Any:
        if self.dtype is INT32:
            if type(other) is int and -2147483648 <= other <= 2147483647:
                return TRUE if self.value == other else FALSE
            if type(other) is Scalar and other.dtype is INT32:
                return TRUE if self.value == other.value else FALSE
        return self._apply(_EQUAL, self, other)

    def __ne__(self, other: Any) -> Any:
        if self.dtype is INT32:
            if type(other) is int and -2147483648 <= other <= 2147483647:
                return TRUE if self.value != other else FALSE
            if type(other) is Scalar and other.dtype is INT32:
                return TRUE if self.value != other.value else FALSE
        return self._apply(_NOT_EQUAL, self, other)

    def __le__(self, other: Any) -> Any:
        if self.dtype is INT32:
            if type(other) is int and -2147483648 <= other <= 2147483647:
                return TRUE if self.value <= other else FALSE
            if type(other) is Scalar and other.dtype is INT32:
                return TRUE if self.value <= other.value else FALSE
        return self._apply(_LESS_EQUAL, self, other)

    def __ge__(self, other: Any) -> Any:
        if self.dtype is INT32:
            if type(other) is int and -2147483648 <= other <= 2147483647:
                return TRUE if self.value >= other else FALSE
            if type(other) is Scalar and other.dtype is INT32:
                return TRUE if self.value >= other.value else FALSE
        return self._apply(_GREATER_EQUAL, self, other)

    def __lt__(self, other: Any) -> Any:
        if self.dtype is INT32:
            if type(other) is int and -2147483648 <= other <= 2147483647:
                return TRUE if self.value < other else FALSE
            if type(other) is Scalar and other.dtype is INT32:
                return TRUE if self.value < other.value else FALSE
        return self._apply(_LESS, self, other)

    def __gt__(self, other: Any) -> Any:
        if self.dtype is INT32:
            if type(other) is int and -2147483648 <= other <= 2147483647:
                return TRUE if self.value > other else FALSE
            if type(other) is Scalar and other.dtype is INT32:
                return TRUE if self.value > other.value else FALSE
        return self._apply(_GREATER, self, other)

    def __and__(self, other: Any) -> Any:
        if self.dtype is BOOL and type(other) is Scalar and other.dtype is BOOL:
            return TRUE if self.value and other.value else FALSE
        return self._apply(_AND, self, other)

    def __or__(self, other: Any) -> Any:
        if self.dtype is BOOL and type(other) is Scalar and other.dtype is BOOL:
            return TRUE if self.value or other.value else FALSE
        return self._apply(_OR, self, other)

    def __invert__(self) -> Any:
        if self.dtype is BOOL:
            return FALSE if self.value else TRUE
        return self._apply(_INVERT, self)

    __hash__ = Traced.__hash__  # a class that defines __eq__ loses the inherited one


_ADD, _SUBTRACT, _MULTIPLY = UFUNCS["add"], UFUNCS["subtract"], UFUNCS["multiply"]
_FLOOR_DIVIDE, _REMAINDER, _POWER = UFUNCS["floor_divide"], UFUNCS["remainder"], UFUNCS["power"]
_EQUAL, _NOT_EQUAL, _LESS, _GREATER = UFUNCS["equal"], UFUNCS["not_equal"], UFUNCS["less"], UFUNCS["greater"]
_LESS_EQUAL, _GREATER_EQUAL = UFUNCS["less_equal"], UFUNCS["greater_equal"]
_AND, _OR, _INVERT = UFUNCS["bitwise_and"], UFUNCS["bitwise_or"], UFUNCS["bitwise_not"]

TRUE: Final = Scalar(True, BOOL)
FALSE: Final = Scalar(False, BOOL)


def scalar(value: Any, dtype: DType, weak: bool = False) -> Scalar:
    """A :class:`Scalar`, without checking ``dtype``."""
    result = _new(Scalar)
    result.value, result.dtype, result.weak = value, dtype, weak
    return result


def late_scalar(value: int, used: Callable[[], object]) -> Scalar:
    """An int32 scalar that calls ``used`` when anything but a print asks for its value."""
    result = _new(Scalar)
    result.late, result.dtype, result.weak = (value, used), INT32, False
    return result


def printed(value: Any) -> Any:
    """What a print shows of a tracked value."""
    if type(value) is Scalar:
        late = getattr(value, "late", None)
        return value.value if late is None else late[0]
    return getattr(value, "data", value)


def is_scalar(operand: Any) -> bool:
    """Whether ``operand`` is a Python number, a NumPy scalar or a :class:`Scalar`."""
    cls = type(operand)
    return (
        cls is Scalar
        or cls in _PYTHON_NUMBERS
        or isinstance(operand, np.generic)
        or (cls is np.ndarray and operand.ndim == 0)
    )


def to_numpy(operand: Any) -> NDArray:
    """A scalar operand as a 0-d NumPy array of its own dtype."""
    with np.errstate(all="ignore"):
        if type(operand) is Scalar:
            if kind_letter(operand.dtype) == "f":
                return np.asarray(operand.value, np.float32).astype(operand.dtype)
            return np.asarray(operand.value, operand.dtype)
        if isinstance(operand, np.generic | np.ndarray):
            return cast(np.asarray(operand), canonical_dtype(operand.dtype))
        return np.asarray(operand, INT32 if type(operand) is int else BOOL if type(operand) is bool else np.float32)


def from_numpy(array: NDArray, dtype: DType, weak: bool = False) -> Scalar:
    """A 0-d NumPy array as a :class:`Scalar`."""
    letter = kind_letter(dtype)
    value: Number = bool(array) if letter == "b" else float(array) if letter == "f" else int(array)
    return scalar(value, dtype, weak)


def power_of(base: Any, exponent: Any) -> Ufunc:
    """Which power JAX takes: with a Python integer as exponent it multiplies.

    Raises ``ShapeMismatchError`` for an integer to a negative Python integer.
    """
    if type(exponent) not in (int, bool):
        return _POWER
    if exponent < 0 and kind_letter(INTEGER_POW.resolve((base, exponent))[0]) != "f":
        raise ShapeMismatchError(f"integers cannot be raised to the negative power {exponent}; make the base a float")
    return INTEGER_POW


def apply_to_scalars(ufunc: Ufunc, *operands: Any) -> Any:
    """``ufunc`` of scalar operands, with JAX's promotion."""
    if ufunc is _POWER:
        ufunc = power_of(*operands)
    dtype, out_dtype, weak = ufunc.resolve(operands)
    if kind_letter(dtype) in ufunc.keeps:
        return operands[0] if type(operands[0]) is Scalar else from_numpy(to_numpy(operands[0]), dtype, weak)
    if ufunc.integers is not None and out_dtype is INT32:
        value = ufunc.integers(*(operand.value if type(operand) is Scalar else operand for operand in operands))
        if INT32_MIN <= value <= INT32_MAX:
            return scalar(int(value), INT32, weak)
    return from_numpy(ufunc.compute([to_numpy(operand) for operand in operands], dtype, out_dtype), out_dtype, weak)


def captured_constant(array: NDArray) -> OptionError:
    """The error for a NumPy array met inside a kernel."""
    return OptionError(
        f"a kernel cannot capture the constant array of shape {array.shape}: Pallas refuses it too. Pass it as an "
        "input, or build it from tpusim.np.arange, full and where."
    )
