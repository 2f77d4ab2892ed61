"""Every elementwise operation in one table: its jax.numpy name, JAX primitive, dtype rule and NumPy function.

Operators of scalars and arrays and the functions of ``tpusim.np`` all read this table, so an operation
has one meaning.  Operands are promoted to one dtype, computed, and converted to the result's dtype; a
rule says which dtypes those are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np

from tpusim.errors import ShapeMismatchError
from tpusim.values import numerics
from tpusim.values.numerics import NDArray, cast, working_dtype
from tpusim.values.promotion import BOOL, DType, Kind, inexact, join, kind_letter, kind_of, numeric


class Rule(Enum):
    """Which dtype an operation computes in and which it returns, given the promoted dtype."""

    SAME = "computes in and returns the promoted dtype"
    NUMERIC = "the same, bool counting as int32"
    INEXACT = "the same, bool and integers counting as float32"
    COMPARE = "computes in the promoted dtype, returns bool"
    PREDICATE = "computes in the floating dtype, returns bool"
    LOGICAL = "converts each operand to bool, returns bool"


_OPERAND_DTYPE: Final[dict[Rule, Callable[[DType], DType]]] = {
    Rule.SAME: lambda dtype: dtype,
    Rule.NUMERIC: numeric,
    Rule.INEXACT: inexact,
    Rule.COMPARE: lambda dtype: dtype,
    Rule.PREDICATE: inexact,
    Rule.LOGICAL: lambda dtype: BOOL,
}
_RETURNS_BOOL: Final = {Rule.COMPARE, Rule.PREDICATE, Rule.LOGICAL}


@dataclass(frozen=True, slots=True, eq=False)
class Ufunc:
    """One elementwise operation.

    ``function`` works on NumPy arrays of one dtype.  ``accepts`` lists the kinds of promoted dtype it
    exists for (``b``, ``i``, ``u``, ``f``); for kinds in ``keeps`` it returns its operand.  ``weak`` says
    what makes the result weak: the ``promoted`` dtype, that of the ``first`` operand, or the rule of
    ``power``.
    ``integers``, where given, is its meaning on Python integers, a shortcut for tracked scalars; where its
    result does not fit int32, ``function`` decides.
    """

    name: str
    primitive: str
    arity: int
    rule: Rule
    function: Callable[..., Any]
    accepts: str = "biuf"
    keeps: str = ""
    weak: str = "promoted"
    integers: Callable[..., int] | None = None

    def resolve(self, operands: Iterable[Any]) -> tuple[DType, DType, bool]:
        """Dtype to compute in, dtype of the result, and whether that is weak.

        Raises ``ShapeMismatchError`` for dtypes the operation does not have.
        """
        kinds = tuple(map(kind_of, operands))
        promoted, weak = join(*kinds)
        if kind_letter(promoted) not in self.accepts:
            raise ShapeMismatchError(f"{self.name} does not accept operands of dtype {promoted.name}")
        dtype = _OPERAND_DTYPE[self.rule](promoted)
        if self.rule in _RETURNS_BOOL:
            return dtype, BOOL, False
        return dtype, dtype, self._is_weak(dtype, weak, kinds)

    def _is_weak(self, dtype: DType, weak: bool, kinds: tuple[Kind, ...]) -> bool:
        if self.weak == "first":
            return kinds[0][1]
        if self.weak == "power" and kind_letter(kinds[0][0]) == "f" and kind_letter(kinds[1][0]) in "iu":
            return kinds[0][1] and kinds[1][1]
        if self.weak == "power" and kind_letter(dtype) != "f":
            return False
        return weak and dtype is not BOOL

    def compute(self, operands: Iterable[NDArray], dtype: DType, out_dtype: DType) -> NDArray:
        """The result of ``operands``, given what :meth:`resolve` returned."""
        working = working_dtype(dtype)
        with np.errstate(all="ignore"):
            converted = [cast(cast(operand, dtype), working) for operand in operands]
            return cast(np.asarray(self.function(*converted)), out_dtype)


def _identity(x: NDArray) -> NDArray:
    return x


def _left_shift(x: int, y: int) -> int:
    return x << y if 0 <= y < 32 else _NO_INT32


def _right_shift(x: int, y: int) -> int:
    return x >> y if 0 <= y < 32 else _NO_INT32


_NO_INT32: Final = 2**63


def _table() -> dict[str, Ufunc]:
    """All operations by their jax.numpy names."""
    same, num, inexact_, compare, predicate, logical = Rule
    rows: list[Ufunc] = []

    def row(name: str, primitive: str, arity: int, rule: Rule, function: Callable[..., Any], **options: Any) -> None:
        rows.append(Ufunc(name, primitive, arity, rule, function, **options))

    row("add", "add", 2, same, np.add, integers=operator.add)
    row("subtract", "sub", 2, same, np.subtract, accepts="iuf", integers=operator.sub)
    row("multiply", "mul", 2, same, np.multiply, integers=operator.mul)
    row("divide", "div", 2, inexact_, np.divide)
    row("floor_divide", "div", 2, num, numerics.floor_divide)
    row("remainder", "rem", 2, num, numerics.remainder)
    row("power", "pow", 2, num, numerics.power, weak="power")
    row("maximum", "max", 2, same, np.maximum, integers=max)
    row("minimum", "min", 2, same, np.minimum, integers=min)

    row("equal", "eq", 2, compare, np.equal)
    row("not_equal", "ne", 2, compare, np.not_equal)
    row("less", "lt", 2, compare, np.less)
    row("less_equal", "le", 2, compare, np.less_equal)
    row("greater", "gt", 2, compare, np.greater)
    row("greater_equal", "ge", 2, compare, np.greater_equal)

    row("bitwise_and", "and", 2, same, np.bitwise_and, accepts="biu", integers=operator.and_)
    row("bitwise_or", "or", 2, same, np.bitwise_or, accepts="biu", integers=operator.or_)
    row("bitwise_xor", "xor", 2, same, np.bitwise_xor, accepts="biu", integers=operator.xor)
    row("left_shift", "shift_left", 2, num, numerics.left_shift, accepts="biu", integers=_left_shift)
    row("right_shift", "shift_right_arithmetic", 2, num, numerics.right_shift, accepts="biu", integers=_right_shift)
    row("logical_and", "and", 2, logical, np.logical_and)
    row("logical_or", "or", 2, logical, np.logical_or)
    row("logical_xor", "xor", 2, logical, np.logical_xor)

    row("negative", "neg", 1, same, np.negative, accepts="iuf", integers=operator.neg)
    row("positive", "copy", 1, same, _identity, keeps="biuf")
    row("absolute", "abs", 1, same, np.absolute, keeps="bu", integers=abs)
    row("sign", "sign", 1, same, np.sign, accepts="iuf")
    row("square", "square", 1, num, np.square)
    row("reciprocal", "integer_pow", 1, inexact_, np.reciprocal)
    row("bitwise_not", "not", 1, same, np.invert, accepts="biu", integers=operator.invert)
    row("logical_not", "not", 1, logical, np.logical_not)
    row("floor", "floor", 1, same, np.floor, keeps="biu")
    row("ceil", "ceil", 1, same, np.ceil, keeps="biu")
    row("trunc", "round", 1, same, np.trunc, keeps="biu")
    row("isnan", "ne", 1, predicate, np.isnan)
    row("isinf", "eq", 1, predicate, np.isinf)
    row("isfinite", "is_finite", 1, predicate, np.isfinite)
    for name in ("exp", "exp2", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tan", "tanh"):
        row(name, name, 1, inexact_, getattr(np, name))
    row("log2", "log", 1, inexact_, np.log2)

    table = {ufunc.name: ufunc for ufunc in rows}
    for alias, name in _ALIASES.items():
        table[alias] = table[name]
    return table


_ALIASES: Final = {
    "abs": "absolute",
    "true_divide": "divide",
    "mod": "remainder",
    "invert": "bitwise_not",
    "bitwise_invert": "bitwise_not",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "pow": "power",
}

UFUNCS: Final = _table()
"""Elementwise operations by name, aliases included."""

ROUND: Final = Ufunc("round", "round", 1, Rule.SAME, np.round, accepts="iuf", keeps="iu")
"""Round half to even, without decimals."""

INTEGER_POW: Final = Ufunc("power", "integer_pow", 2, Rule.NUMERIC, numerics.integer_pow, weak="first")
"""Power with a Python integer as exponent, which JAX unrolls into multiplications."""
