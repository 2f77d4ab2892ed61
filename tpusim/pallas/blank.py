"""Arrays of a run without data: nothing but that they are this array and no other."""

from __future__ import annotations

from typing import Any


class Blank:
    """An array of which nobody keeps the elements; what shares memory with it is told by its identity."""

    __slots__ = ()


def is_blank(value: Any) -> bool:
    """Whether the elements of a value are not known."""
    return value is None or type(value) is Blank
