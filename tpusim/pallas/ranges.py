"""What is known of the integers of a kernel when it is lowered: the least and the most each may be.

A device's index on its mesh has a range, and so has what is computed from it: a result that cannot leave the range of
its type needs no wrap, a device id or index that is always in bounds no check, and a comparison with one outcome no
code at all.  What comes out of memory or a loop may be anything its type holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Range = tuple[int, int]
"""The least and the most, both included; ``False`` and ``True`` are 0 and 1."""


UNCHANGED = (
    "squeeze", "reshape", "broadcast_in_dim", "copy", "copy_p", "stop_gradient", "multiple_of", "optimization_barrier",
    "reduce_precision",
)  # fmt: skip
"""Primitives that leave an integer as it is."""


def of_type(dtype: np.dtype[Any]) -> Range:
    """All values of an integer or boolean type."""
    if dtype == np.bool_:
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def of_code(code: str, known: Mapping[str, Range]) -> Range | None:
    """What is known of an expression in the generated code: a name or a literal."""
    literal = literal_of(code)
    return known.get(code) if literal is None else (literal, literal)


def literal_of(code: str) -> int | None:
    """The number that an expression spells, if it does."""
    if code in ("True", "False"):
        return int(code == "True")
    return int(code) if code.lstrip("-").isdigit() else None


def of_result(name: str, operands: Sequence[Range]) -> Range | None:
    """The range of a primitive's result before it is wrapped; ``None`` where nothing is known.

    Also of Python's ``%`` and ``//`` by what is positive.
    """
    rule = _RULES.get(name)
    return None if rule is None else rule(*operands)


def within(inner: Range | None, outer: Range) -> bool:
    """Whether a range is known and lies in another."""
    return inner is not None and outer[0] <= inner[0] and inner[1] <= outer[1]


def _corners(operation: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    def rule(a: Range, b: Range) -> Range:
        found = [operation(x, y) for x in a for y in b]
        return min(found), max(found)

    return rule


def _remainder(a: Range, n: Range) -> Range | None:
    if n[0] <= 0:
        return None
    least = 0 if a[0] >= 0 else max(a[0], 1 - n[1])
    return least, max(0, min(a[1], n[1] - 1))


def _divide(a: Range, n: Range) -> Range | None:
    if n[0] <= 0:
        return None
    found = [abs(x) // y * (1 if x >= 0 else -1) for x in a for y in n]
    return min(found), max(found)


def _modulo(a: Range, n: Range) -> Range:
    if n[0] == n[1] and a[0] // n[0] == a[1] // n[0]:
        return a[0] % n[0], a[1] % n[0]
    return 0, n[1] - 1


def _both(a: Range, b: Range) -> Range | None:
    if a[1] <= 1 and b[1] <= 1:
        return (a[0] & b[0], a[1] & b[1]) if a[0] >= 0 <= b[0] else None
    return (0, min(a[1], b[1])) if a[0] >= 0 <= b[0] else None


def _either(a: Range, b: Range) -> Range | None:
    return (a[0] | b[0], a[1] | b[1]) if a[0] >= 0 <= b[0] and a[1] <= 1 >= b[1] else None


def _less(a: Range, b: Range) -> Range:
    return int(a[1] < b[0]), int(a[0] < b[1])


def _equal(a: Range, b: Range) -> Range:
    return int(a[0] == a[1] == b[0] == b[1]), int(a[0] <= b[1] and b[0] <= a[1])


def _not(a: Range) -> Range:
    return 1 - a[1], 1 - a[0]


def _select(which: Range, *cases: Range) -> Range:
    chosen = cases[max(which[0], 0) : which[1] + 1] or cases
    return min(low for low, _ in chosen), max(high for _, high in chosen)


def _clamp(least: Range, a: Range, most: Range) -> Range:
    return max(least[0], min(a[0], most[0])), max(least[1], min(a[1], most[1]))


def _same(a: Range) -> Range:
    return a


_RULES: dict[str, Callable[..., Range | None]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _corners(lambda x, y: x * y),
    "neg": lambda a: (-a[1], -a[0]),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "rem": _remainder,
    "div": _divide,
    "%": _modulo,
    "//": _corners(lambda x, y: x // y),
    "and": _both,
    "or": _either,
    "sign": lambda a: ((a[0] > 0) - (a[0] < 0), (a[1] > 0) - (a[1] < 0)),
    "lt": _less,
    "gt": lambda a, b: _less(b, a),
    "ge": lambda a, b: _not(_less(a, b)),
    "le": lambda a, b: _not(_less(b, a)),
    "eq": _equal,
    "ne": lambda a, b: _not(_equal(a, b)),
    "select_n": _select,
    "clamp": _clamp,
    "convert_element_type": _same,
    **dict.fromkeys(UNCHANGED, _same),
}
