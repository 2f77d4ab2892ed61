"""What can be said of a kernel for all schedules: proven, refuted, or why neither."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tpusim.findings import Finding, Severity
from tpusim.result import Result
from tpusim.units import json_safe

Answer = Literal["proven", "refuted", "not-proven"]

_MOST_SHOWN = 10


@dataclass(frozen=True)
class Verdict:
    """The answer of :meth:`tpusim.Kernel.verify`.

    ``proven``: no schedule has a deadlock, leak, race or lifetime fault, and the data of one run, equal in all of
    them, are right where there was something to compare with.  ``refuted``: ``findings`` and ``reasons`` say what
    is wrong.  ``not-proven``: ``reasons`` say what could not be excluded.  ``premises``: what the answer rests on.
    ``calls`` in a row, ``operations``: copies, waits and signals of all cores.  ``data``: what the comparison with
    the reference found, or why there was none.  ``result``: the run that was judged.
    """

    answer: Answer
    premises: tuple[str, ...]
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    calls: int
    operations: int
    wall_s: float
    data: str = "not compared: no reference"
    result: Result | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether it is proven."""
        return self.answer == "proven"

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings of severity error."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    def __str__(self) -> str:
        return self._text(self.reasons)

    @property
    def summary(self) -> str:
        """The answer, with those reasons that are no finding."""
        told = tuple(finding.explain() for finding in self.findings)
        return self._text([why for why in self.reasons if not any(text.startswith(why) for text in told)])

    def _text(self, reasons: Sequence[str]) -> str:
        """The answer with reasons, a line each."""
        calls = "" if self.calls == 1 else f" in {self.calls} calls in a row"
        where = "" if self.result is None else f" on {self.result.slice}"
        head = f"{self.answer}: {self.operations:,} operations of all cores{calls}{where}"
        if self.answer == "proven":
            return f"{head}; no deadlock, leak, race or lifetime fault in any schedule; data {self.data}."
        return "\n".join([f"{head}.", *(f"  {reason}" for reason in reasons)])

    def explain(self) -> str:
        """The whole text: the answer, each finding, and what the answer rests on."""
        lines = [self.summary]
        if self.answer != "proven":
            lines.append(f"data: {self.data}")
        lines += [finding.explain() for finding in self.findings[:_MOST_SHOWN]]
        if len(self.findings) > _MOST_SHOWN:
            lines.append(f"... and {len(self.findings) - _MOST_SHOWN} more findings")
        return "\n".join([*lines, "It rests on:", *(f"  {premise}" for premise in self.premises)])

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        place = None if self.result is None else self.result.place
        values = {
            "answer": self.answer,
            "ok": self.ok,
            "reasons": list(self.reasons),
            "findings": [finding.as_dict() for finding in self.findings],
            "premises": list(self.premises),
            "calls": self.calls,
            "operations": self.operations,
            "data": self.data,
            "wall_s": self.wall_s,
            "slice": None if place is None else str(place.slice),
            "mesh": None if place is None else place.axis_sizes,
            "layout": None if place is None else place.layout,
        }
        safe: dict[str, Any] = json_safe(values)
        return safe

    def to_json(self) -> str:
        """The verdict as JSON; without NaN or Infinity."""
        return json.dumps(self.as_dict(), allow_nan=False)
