"""Quantities: integer picoseconds inside, values that print well outside.

Time is an ``int`` number of picoseconds everywhere in the machine, so that equal inputs give equal
times on every computer.  Conversions are exact or raise; a duration that comes from a rate is
computed on the whole amount and rounded up once, never per part.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any

PS_PER_NS = 10**3
PS_PER_US = 10**6
PS_PER_S = 10**12


class Duration(int):
    """A length of time in integer picoseconds; an ``int`` that prints as ``3.412 us``."""

    __slots__ = ()

    @classmethod
    def of(cls, *, s: float = 0, us: float = 0, ns: float = 0, ps: int = 0) -> Duration:
        """The exact sum of its arguments; raises ``ValueError`` where it is no whole picosecond."""
        total = Fraction(str(s)) * PS_PER_S + Fraction(str(us)) * PS_PER_US + Fraction(str(ns)) * PS_PER_NS + ps
        if total.denominator != 1:
            raise ValueError(f"{float(total)} ps is not a whole number of picoseconds")
        return cls(total.numerator)

    @property
    def ps(self) -> int:
        """Picoseconds, exact."""
        return int(self)

    @property
    def us(self) -> float:
        """Microseconds."""
        return int(self) / PS_PER_US

    @property
    def s(self) -> float:
        """Seconds."""
        return int(self) / PS_PER_S

    def __add__(self, other: int) -> Duration:
        return Duration(int(self) + int(other))

    __radd__ = __add__

    def __sub__(self, other: int) -> Duration:
        return Duration(int(self) - int(other))

    def __str__(self) -> str:
        value = abs(int(self))
        if value >= PS_PER_S:
            return f"{int(self) / PS_PER_S:.3f} s"
        if value >= 10**9:
            return f"{int(self) / 10**9:.3f} ms"
        if value >= PS_PER_US:
            return f"{int(self) / PS_PER_US:.3f} us"
        if value >= PS_PER_NS:
            return f"{int(self) / PS_PER_NS:.3f} ns"
        return f"{int(self)} ps"

    def __repr__(self) -> str:
        return f"Duration({self})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec) if not spec or spec[-1] in "s<>^" else format(int(self), spec)


@lru_cache(maxsize=4096)
def ps_from_seconds(seconds: float | int | str) -> int:
    """Seconds to picoseconds, rounded to the nearest; for parameters, which are known to 3 digits."""
    return round(Fraction(str(seconds)) * PS_PER_S)


def transfer_ps(size_bytes: int, bandwidth_bytes_per_s: int) -> int:
    """Time to move ``size_bytes`` at a rate, rounded up once; what is within a millionth of a picosecond is whole.

    So it agrees with a fabric that works out the same rate in floats.
    """
    millionths = size_bytes * PS_PER_S * 1_000_000
    return -((bandwidth_bytes_per_s - millionths) // (bandwidth_bytes_per_s * 1_000_000))


@lru_cache(maxsize=4096)
def cycles_ps(cycles: float | int, clock_hz: int) -> int:
    """Time of ``cycles`` at a clock, rounded up once."""
    if isinstance(cycles, int):
        return -(-cycles * PS_PER_S // clock_hz)
    return ceil(Fraction(cycles) * PS_PER_S / clock_hz)


def format_bytes(size_bytes: int) -> str:
    """``4096`` -> ``4.0 KiB``; plain bytes below 1 KiB."""
    size: float = size_bytes
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_rate(bytes_per_s: float) -> str:
    """``90e9`` -> ``90.0 GB/s``."""
    return f"{bytes_per_s / 1e9:.1f} GB/s"


def json_safe(value: Any) -> Any:
    """``value`` with NaN and infinities as ``None``, recursively: JSON holds neither."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {str(k): json_safe(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(v) for v in value]
    if isinstance(value, Duration):
        return int(value)
    return value
