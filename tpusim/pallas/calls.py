"""The record of a kernel call that ran in place, and the table of many; needs no jax."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpusim.findings import Finding, Severity, Where
from tpusim.result import Result
from tpusim.units import PS_PER_US, Duration

_MOST_ROWS = 40
_HEAD = ("calls", "kernel", "devices", "time", "copies", "findings")


@dataclass(frozen=True)
class InterceptedCall:
    """One kernel call: ``devices`` are places in its mesh, ``time`` is that of its own run.

    ``error`` says what ended the call without a finding, such as devices that did not arrive.
    ``result`` is ``None`` where there was no run, and with ``keep_results=False``.
    """

    name: str
    mesh: Mapping[str, int]
    devices: tuple[int, ...]
    time: Duration
    dmas: int
    bytes: int
    findings: tuple[Finding, ...]
    where: Where | None
    error: str | None = None
    result: Result | None = None

    @property
    def ok(self) -> bool:
        """Whether the call ended without an error."""
        return self.error is None and not any(finding.severity is Severity.ERROR for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return {
            "name": self.name,
            "ok": self.ok,
            "mesh": dict(self.mesh),
            "devices": list(self.devices),
            "time_us": self.time.us,
            "dmas": self.dmas,
            "bytes": self.bytes,
            "findings": [finding.as_dict() for finding in self.findings],
            "error": self.error,
            "where": self.where._asdict() if self.where is not None else None,
        }

    def problems(self) -> list[str]:
        """What is wrong, a text for each error."""
        texts = [str(finding) for finding in self.findings if finding.severity is Severity.ERROR]
        return texts if self.error is None else [*texts, self.error]


def table(calls: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines of a table of calls, each as :meth:`InterceptedCall.as_dict`; equal ones are one row."""
    counts = Counter(_cells(call) for call in calls)
    rows = [(str(count), *cells) for cells, count in counts.items()]
    shown = [_HEAD, *rows[:_MOST_ROWS]]
    widths = [max(len(row[column]) for row in shown) for column in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
    if len(rows) > _MOST_ROWS:
        lines.append(f"... and {len(rows) - _MOST_ROWS} more rows")
    return lines


def _cells(call: Mapping[str, Any]) -> tuple[str, ...]:
    kinds = Counter(str(finding["kind"]) for finding in call["findings"])
    found = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in kinds.items())
    if call["error"] is not None:
        found = "did not run" if not call["dmas"] and not call["time_us"] else "stopped"
    time = str(Duration(round(call["time_us"] * PS_PER_US)))
    return call["name"], _ranges(call["devices"]), time, str(call["dmas"]), found or "none"


def _ranges(numbers: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` -> ``"0-2, 5"``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans) or "none"
