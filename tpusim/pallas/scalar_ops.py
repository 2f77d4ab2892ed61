"""Integer and boolean scalars of a kernel: JAX primitives as Python expressions, exact to the bit.

A result is wrapped only where it can leave the range of its type (see `ranges`); the test is one comparison.
JAX's modulo and floor division, half a dozen equations each, are found again and become Python's.  Floating
point scalars are not here: they stay arrays, so that they round as JAX rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.pallas import ranges

if TYPE_CHECKING:
    from tpusim.pallas.lower import Lowering


def wrap(value: int, bits: int, signed: bool) -> int:
    """``value`` modulo 2^bits, in the range of the type."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def divide(a: int, b: int) -> int:
    """``lax.div`` on integers: rounds towards zero; -1 for a division by zero, as XLA's CPU backend gives."""
    if b == 0:
        return -1
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def remainder(a: int, b: int) -> int:
    """``lax.rem`` on integers: takes the sign of the dividend; the dividend itself for a zero divisor."""
    if b == 0:
        return a
    rest = abs(a) % abs(b)
    return -rest if a < 0 else rest


def shift_left(a: int, b: int, bits: int) -> int:
    """Bits shifted out are lost; a shift by the width or more gives 0."""
    return a << b if 0 <= b < bits else 0


def shift_logical(a: int, b: int, bits: int) -> int:
    """Zeros come in from the left."""
    return (a & ((1 << bits) - 1)) >> b if 0 <= b < bits else 0


def shift_arithmetic(a: int, b: int, bits: int) -> int:
    """The sign comes in from the left; that of an unsigned type is its highest bit."""
    return wrap(a, bits, True) >> (b if 0 <= b < bits else bits - 1)


def sign(a: int) -> int:
    """-1, 0 or 1."""
    return (a > 0) - (a < 0)


RUNTIME: dict[str, Any] = {
    "wrap": wrap,
    "divide": divide,
    "remainder": remainder,
    "shift_left": shift_left,
    "shift_logical": shift_logical,
    "shift_arithmetic": shift_arithmetic,
    "sign": sign,
}
"""Names that generated code may use."""

Rule = Callable[[list[str], Any], str]


def _width(eqn: Any) -> int:
    return int(eqn.outvars[0].aval.dtype.itemsize) * 8


def _binary(text: str) -> Rule:
    return lambda operands, _eqn: text.format(*operands)


def _logical(integer: str, boolean: str) -> Rule:
    def rule(operands: list[str], eqn: Any) -> str:
        return (boolean if eqn.outvars[0].aval.dtype == np.bool_ else integer).format(*operands)

    return rule


def _convert(operands: list[str], eqn: Any) -> str:
    source, target = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    if target == np.bool_:
        return f"({operands[0]} != 0)"
    if source == np.bool_:
        return f"int({operands[0]})"
    if np.can_cast(source, target):
        return operands[0]
    return f"wrap({operands[0]}, {target.itemsize * 8}, {target.kind == 'i'})"


def _select(operands: list[str], eqn: Any) -> str:
    which, *cases = operands
    if _is_literal(which):
        return cases[int(which == "True") if which in ("True", "False") else int(which)]
    if len(cases) == 2:
        return f"({cases[1]} if {which} else {cases[0]})"
    return f"({', '.join(cases)})[{which}]"


def _power(operands: list[str], eqn: Any) -> str:
    return f"({operands[0]} ** {int(eqn.params['y'])})"


def _same(operands: list[str], _eqn: Any) -> str:
    return operands[0]


WRAPS = {
    "add", "sub", "mul", "neg", "abs", "shift_left", "shift_right_logical", "shift_right_arithmetic", "integer_pow",
    "div", "not",
}  # fmt: skip
"""Primitives whose result can leave the range of its type."""

TABLE: dict[str, Rule] = {
    "add": _binary("({} + {})"),
    "sub": _binary("({} - {})"),
    "mul": _binary("({} * {})"),
    "div": _binary("divide({}, {})"),
    "rem": _binary("({0} % {1} if {0} >= 0 and {1} > 0 else remainder({0}, {1}))"),
    "neg": _binary("(-{})"),
    "abs": _binary("abs({})"),
    "sign": _binary("sign({})"),
    "max": _logical("({0} if {0} > {1} else {1})", "({} or {})"),
    "min": _logical("({0} if {0} < {1} else {1})", "({} and {})"),
    "and": _logical("({} & {})", "({} and {})"),
    "or": _logical("({} | {})", "({} or {})"),
    "xor": _logical("({} ^ {})", "({} != {})"),
    "not": _logical("(~{})", "(not {})"),
    "shift_left": lambda operands, eqn: f"shift_left({', '.join(operands)}, {_width(eqn)})",
    "shift_right_logical": lambda operands, eqn: f"shift_logical({', '.join(operands)}, {_width(eqn)})",
    "shift_right_arithmetic": lambda operands, eqn: f"shift_arithmetic({', '.join(operands)}, {_width(eqn)})",
    "population_count": lambda operands, eqn: f"({operands[0]} & {(1 << _width(eqn)) - 1}).bit_count()",
    "clz": lambda operands, eqn: f"{_width(eqn)} - ({operands[0]} & {(1 << _width(eqn)) - 1}).bit_length()",
    "eq": _binary("({} == {})"),
    "ne": _binary("({} != {})"),
    "lt": _binary("({} < {})"),
    "le": _binary("({} <= {})"),
    "gt": _binary("({} > {})"),
    "ge": _binary("({} >= {})"),
    "clamp": _binary("max({0}, min({1}, {2}))"),
    "select_n": _select,
    "integer_pow": _power,
    "convert_element_type": _convert,
    **dict.fromkeys(ranges.UNCHANGED, _same),
}


def _is_literal(code: str) -> bool:
    return ranges.literal_of(code) is not None


def _fold(expression: str, dtype: Any) -> int | bool:
    """The value of an expression of literals, wrapped as its type wraps."""
    value = eval(expression, dict(RUNTIME))  # an expression of our own table
    return bool(value) if dtype == np.bool_ else wrap(int(value), dtype.itemsize * 8, dtype.kind == "i")


Definition = tuple[str, tuple[str, ...]]
"""How a name came to be: a primitive and its operands."""


def _python_operator(lowering: Lowering, which: str, plain: str, corrected: str) -> tuple[str, str, str] | None:
    """``("%", a, n)`` or ``("//", a, n)`` where a select corrects a rounding towards zero, for a positive literal n.

    ``plain`` is the remainder or quotient, ``corrected`` n more or 1 less, taken where the signs of a and n differ
    and there is a remainder.
    """
    definitions = lowering.definitions
    name, operands = definitions.get(plain, ("", ()))
    both, conditions = definitions.get(which, ("", ()))
    if name not in ("rem", "div") or both != "and":
        return None
    a, n = operands
    if (ranges.literal_of(n) or 0) <= 0:
        return None
    tests = {definitions.get(condition) for condition in conditions}
    change = definitions.get(corrected)
    if name == "rem":
        found = change == ("add", (plain, n)) and tests == {("lt", (plain, "0")), ("ne", (plain, "0"))}
        return ("%", a, n) if found else None
    negated = {d[1][1]: definitions.get(d[1][0]) for d in tests if d is not None and d[0] == "ne"}
    found = change == ("sub", (plain, "1")) and negated == {"1": ("sign", (a,)), "0": ("rem", (a, n))}
    return ("//", a, n) if found else None


def _expression(eqn: Any, operands: list[str], limits: list[ranges.Range]) -> str:
    name = eqn.primitive.name
    if name == "rem" and limits[0][0] >= 0 and limits[1][0] > 0:
        return f"({operands[0]} % {operands[1]})"
    if name == "ne" and operands[1] == "False":
        return operands[0]
    return TABLE[name](operands, eqn)


def _limits(lowering: Lowering, code: str, dtype: Any) -> ranges.Range:
    return ranges.of_code(code, lowering.limits) or ranges.of_type(dtype)


def lower(lowering: Lowering, eqn: Any) -> None:
    """Emit one equation all of whose operands are Python numbers."""
    name, var = eqn.primitive.name, eqn.outvars[0]
    dtype = var.aval.dtype
    operands = [lowering.read(operand).code for operand in eqn.invars]
    limits = [_limits(lowering, code, v.aval.dtype) for code, v in zip(operands, eqn.invars, strict=True)]
    exact, whole = ranges.of_result(name, limits), ranges.of_type(dtype)
    rounded = _python_operator(lowering, *operands) if name == "select_n" and len(operands) == 3 else None
    if rounded is not None:
        operator, a, n = rounded
        exact = ranges.of_result(operator, [_limits(lowering, a, dtype), _limits(lowering, n, dtype)])
    is_inside = ranges.within(exact, whole)
    if all(map(_is_literal, operands)):
        expression = repr(_fold(TABLE[name](operands, eqn), dtype))
    elif exact is not None and is_inside and exact[0] == exact[1]:
        expression = repr(bool(exact[0]) if dtype == np.bool_ else exact[0])
    elif rounded is not None:
        expression = f"({a} {operator} {n})"
    else:
        expression = _expression(eqn, operands, limits)
    first = len(lowering.lines)
    lowering.bind_python(var, expression)
    found = lowering.env.get(var)
    if found is None:
        return
    code = found.code
    if name in WRAPS and dtype.kind in "iu" and not _is_literal(code) and not is_inside:
        low, high = whole
        lowering.emit(f"if not {low} <= {code} <= {high}: {code} = wrap({code}, {_width(eqn)}, {dtype.kind == 'i'})")
    if len(lowering.lines) > first:
        lowering.definitions[code] = name, tuple(operands)
        lowering.drop_unless_used(code, first)
        if exact is not None and is_inside:
            lowering.limits[code] = exact
