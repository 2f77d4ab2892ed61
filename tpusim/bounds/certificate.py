"""A lower bound that says why nothing can be faster."""

from __future__ import annotations

from typing import Any

from tpusim.units import Duration, format_bytes, format_rate


class Bound(Duration):
    """A lower bound in integer picoseconds, with its certificate.

    ``bandwidth`` is the part that bytes (or operations) over a rate take, the rest is ``latency``.
    """

    bandwidth: Duration
    _text: str
    _values: tuple[Any, ...]

    def __new__(cls, latency_ps: int, bandwidth_ps: int, text: str, *values: Any) -> Bound:
        """``text.format(*values)`` is the certificate, made when somebody asks for it."""
        made = super().__new__(cls, latency_ps + bandwidth_ps)
        made.bandwidth = Duration(bandwidth_ps)
        made._text = text
        made._values = values
        return made

    @property
    def latency(self) -> Duration:
        """What is left of it where there is nothing to move."""
        return self - self.bandwidth

    @property
    def because(self) -> str:
        """The certificate in one sentence."""
        parts = [f"{self.bandwidth} for bandwidth"] if self.bandwidth else []
        parts += [f"{self.latency} of latency"] if self.latency else []
        return f"{self._text.format(*self._values)} ({', '.join(parts) or 'nothing to do'})"


def crossing(latency_ps: int, bandwidth_ps: int, size_bytes: int, links: int, rate: int) -> Bound:
    """Bytes that have to cross an edge of ``links`` links."""
    text = "{0} must cross the {1} links at the edge of one part of the slice, {2} each"
    return Bound(latency_ps, bandwidth_ps, text, _Bytes(size_bytes), links, _Rate(rate))


class _Bytes(int):
    def __format__(self, spec: str) -> str:
        return format_bytes(int(self))


class _Rate(int):
    def __format__(self, spec: str) -> str:
        return format_rate(int(self))
