"""What tracked scalars and arrays share: their operators, and what Python may not ask of them.

A Pallas trace does not know the values a kernel computes, so a kernel that branches, loops or indexes a
list on one of them would run here and fail there.  Each such use raises ``TracedValueError`` with the
form that works on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from tpusim.errors import TracedValueError
from tpusim.values.ufuncs import ROUND, UFUNCS, Ufunc


def _unary(ufunc: Ufunc) -> Callable[[Any], Any]:
    def operate(self: Any) -> Any:
        return self._apply(ufunc, self)

    return operate


def _binary(ufunc: Ufunc) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        return self._apply(ufunc, self, other)

    return operate


def _reflected(ufunc: Ufunc) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        return self._apply(ufunc, other, self)

    return operate


class Traced:
    """Base of :class:`Scalar` and :class:`Array`: operators with jax.numpy's meaning, nothing that needs a value."""

    __slots__ = ()
    __array_ufunc__ = None
    """NumPy's own operators leave a tracked operand to its reflected one."""

    def _apply(self, ufunc: Ufunc, *operands: Any) -> Any:
        raise NotImplementedError

    def _describe(self) -> str:
        raise NotImplementedError

    __add__, __radd__ = _binary(UFUNCS["add"]), _reflected(UFUNCS["add"])
    __sub__, __rsub__ = _binary(UFUNCS["subtract"]), _reflected(UFUNCS["subtract"])
    __mul__, __rmul__ = _binary(UFUNCS["multiply"]), _reflected(UFUNCS["multiply"])
    __truediv__, __rtruediv__ = _binary(UFUNCS["divide"]), _reflected(UFUNCS["divide"])
    __floordiv__, __rfloordiv__ = _binary(UFUNCS["floor_divide"]), _reflected(UFUNCS["floor_divide"])
    __mod__, __rmod__ = _binary(UFUNCS["remainder"]), _reflected(UFUNCS["remainder"])
    __pow__, __rpow__ = _binary(UFUNCS["power"]), _reflected(UFUNCS["power"])
    __and__, __rand__ = _binary(UFUNCS["bitwise_and"]), _reflected(UFUNCS["bitwise_and"])
    __or__, __ror__ = _binary(UFUNCS["bitwise_or"]), _reflected(UFUNCS["bitwise_or"])
    __xor__, __rxor__ = _binary(UFUNCS["bitwise_xor"]), _reflected(UFUNCS["bitwise_xor"])
    __lshift__, __rlshift__ = _binary(UFUNCS["left_shift"]), _reflected(UFUNCS["left_shift"])
    __rshift__, __rrshift__ = _binary(UFUNCS["right_shift"]), _reflected(UFUNCS["right_shift"])
    __eq__, __ne__ = _binary(UFUNCS["equal"]), _binary(UFUNCS["not_equal"])
    __lt__, __le__ = _binary(UFUNCS["less"]), _binary(UFUNCS["less_equal"])
    __gt__, __ge__ = _binary(UFUNCS["greater"]), _binary(UFUNCS["greater_equal"])
    __neg__, __pos__ = _unary(UFUNCS["negative"]), _unary(UFUNCS["positive"])
    __abs__, __invert__ = _unary(UFUNCS["absolute"]), _unary(UFUNCS["bitwise_not"])

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        """``(self // other, self % other)``."""
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        """``(other // self, other % self)``."""
        return other // self, other % self

    def __round__(self, ndigits: int = 0) -> Any:
        """The nearest integer, ties to even, in the same dtype."""
        if ndigits:
            raise TracedValueError("round(x, digits) on a tracked value: write `tpusim.np.round(x, digits)`.")
        return self._apply(ROUND, self)

    def __hash__(self) -> int:
        """Refuse: equality of tracked values is itself a tracked value."""
        self._refuse(
            "it cannot be a dictionary key, a set member or a cached argument. Use a Python integer (axis_size, "
            "a shape), or compare with == and choose with `tpusim.where`."
        )

    def __bool__(self) -> bool:
        """Refuse: Python cannot branch on it."""
        self._refuse(
            "Python cannot branch on it (if, while, and, or, not, assert, a < b < c, min, max, in). Write "
            "`@tpusim.when(condition)` above a function that holds the body, or `tpusim.where(condition, x, y)` to "
            "choose a value; combine conditions with &, | and ~; for min and max write `tpusim.np.minimum` and "
            "`tpusim.np.maximum`."
        )

    def __index__(self) -> int:
        """Refuse: it is no Python integer."""
        self._refuse(
            "it cannot be a Python integer. Instead of `for i in range(n)` write "
            "`tpusim.fori_loop(0, n, body, init)`; instead of indexing a list or tuple with it put the values into a "
            "ref and read `ref[i]`, or choose with `tpusim.where`; for a slice of a ref write "
            "`ref[tpusim.ds(start, size)]`; a shape needs Python integers."
        )

    def __int__(self) -> int:
        """Refuse: the value is not known."""
        self._refuse("int(x) cannot convert it. Write `x.astype(tpusim.np.int32)`.")

    def __float__(self) -> float:
        """Refuse: the value is not known."""
        self._refuse(
            "float(x) cannot convert it, nor can functions of `math`. Write `x.astype(tpusim.np.float32)`, and "
            "`tpusim.np.sqrt(x)` instead of `math.sqrt(x)`."
        )

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: NumPy would need the value."""
        self._refuse("NumPy cannot compute with it. Write `tpusim.np.exp(x)` instead of `numpy.exp(x)`.")

    def _refuse(self, consequence: str) -> NoReturn:
        raise TracedValueError(f"{self._describe()} has a value that a Pallas trace would not know: {consequence}")
