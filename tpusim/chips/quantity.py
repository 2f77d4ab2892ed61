"""A number that says where it comes from, and what a field may hold."""

from __future__ import annotations

from math import isfinite
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, model_validator

Confidence: TypeAlias = Literal[
    "high", "medium", "low", "measured", "fitted", "compiler", "estimate", "override", "unknown"
]
"""``measured`` by microbenchmarks on a TPU, ``fitted`` to published timings, ``compiler``: libtpu's own model,
``override``: set by the user; the first three are published."""

Value: TypeAlias = bool | int | float | str | tuple[int, ...] | None


class Quantity(BaseModel):
    """A value with its unit, source and confidence; ``low`` to ``high`` is what is plausible, where known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: Value = None
    unit: str
    source: str
    confidence: Confidence
    note: str = ""
    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.value is None) != (self.confidence == "unknown"):
            raise ValueError("confidence 'unknown' and a missing value go together")
        if self.confidence == "estimate" and not self.note:
            raise ValueError("an estimate needs its reasoning in note")
        if self.low is not None or self.high is not None:
            low, high = self.interval
            if not low <= self.number <= high:
                raise ValueError(f"{self.value} lies outside its interval {low} to {high}")
        return self

    @property
    def number(self) -> float:
        """The value as a float; ``TypeError`` where it is none."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise TypeError(f"{self.value!r} ({self.source}) is not a number")
        return float(self.value)

    @property
    def integer(self) -> int:
        """The value rounded to a whole number: bytes, bytes per second, cycles, counts."""
        return round(self.number)

    @property
    def shape(self) -> tuple[int, ...]:
        """The value as a shape; ``TypeError`` where it is none."""
        if not isinstance(self.value, tuple):
            raise TypeError(f"{self.value!r} ({self.source}) is not a shape")
        return self.value

    @property
    def interval(self) -> tuple[float, float]:
        """``(low, high)``; a side without a bound is the value itself."""
        low = self.number if self.low is None else self.low
        return low, self.number if self.high is None else self.high

    def __str__(self) -> str:
        """``4.28e+10 B/s``: the value and its unit, or ``unknown``."""
        if self.value is None:
            return "unknown"
        if isinstance(self.value, tuple):
            text = "x".join(map(str, self.value))
        elif isinstance(self.value, float):
            text = f"{self.value:g}"
        else:
            text = str(self.value)
        return f"{text} {self.unit}".rstrip()


class Measure(NamedTuple):
    """What a field may hold: its unit and kind; the annotation of every field of a group."""

    unit: str
    kind: Literal["positive", "number", "whole", "count", "flag", "text", "shape"]

    @property
    def wants(self) -> str:
        """What a value must be, for messages."""
        kinds = {
            "positive": "a number above 0",
            "number": "a number, 0 or more",
            "whole": "a whole number above 0",
            "count": "a whole number, 0 or more",
            "flag": "true or false",
            "text": "a text",
            "shape": "a list of two whole numbers above 0",
        }
        return kinds[self.kind] + (f" in {self.unit}" if self.unit and self.kind != "shape" else "")

    def accepts(self, value: Any) -> bool:
        """Whether ``value`` is of the kind."""
        if self.kind == "flag":
            return isinstance(value, bool)
        if self.kind == "text":
            return isinstance(value, str)
        if self.kind == "shape":
            is_list = isinstance(value, list | tuple) and len(value) == 2
            return is_list and all(type(size) is int and size > 0 for size in value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            return False
        if self.kind == "count":
            return value >= 0 and value == int(value)
        if self.kind == "whole":
            return value >= 1 and value == int(value)
        return value > 0 if self.kind == "positive" else value >= 0
