"""What a run found out about a kernel: one record for each fault or warning."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from tpusim.units import Duration

_NAMES_A_DEVICE = re.compile(r"\bdevices? \(")


class Severity(StrEnum):
    """How bad a finding is: an error fails the run, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


class Kind(StrEnum):
    """The kinds of finding; the class of an exception is the kind in CamelCase plus ``Error``."""

    DEADLOCK = "deadlock"
    RACE = "race"
    LIFETIME = "lifetime"
    LEAK = "leak"
    UNWAITED = "unwaited"
    OUT_OF_BOUNDS = "out-of-bounds"
    CAPACITY = "capacity"
    ALIGNMENT = "alignment"
    MEMORY_SPACE = "memory-space"
    DEVICE_ID = "device-id"
    COLLECTIVE_ID = "collective-id"
    SHAPE_MISMATCH = "shape-mismatch"
    SEMAPHORE_KIND = "semaphore-kind"
    DESCRIPTOR = "descriptor"
    LINK_DOWN = "link-down"
    LIVELOCK = "livelock"
    CHECK = "check"
    NOT_MODELLED = "not-modelled"
    UNINITIALISED = "uninitialised"
    UNUSED_DESCRIPTOR = "unused-descriptor"
    UNSUPPORTED = "unsupported"
    ROUTING = "routing"


WARNINGS = frozenset({Kind.UNINITIALISED, Kind.UNUSED_DESCRIPTOR, Kind.UNSUPPORTED, Kind.ROUTING})
"""Kinds that never fail a run."""

CONTINUABLE = WARNINGS | {
    Kind.RACE,
    Kind.LIFETIME,
    Kind.LEAK,
    Kind.UNWAITED,
    Kind.ALIGNMENT,
    Kind.CAPACITY,
    Kind.COLLECTIVE_ID,
}
"""Kinds after which ``on_finding="record"`` goes on; all others end the run."""

AT_THE_END = frozenset({Kind.RACE, Kind.LIFETIME, Kind.COLLECTIVE_ID})
"""Kinds whose error is raised when the run is over, with all of them that it met: a run goes on after a race or with
an id that nobody needs, and what stops it later, a device id out of range say, is the fault that a TPU would show."""


class Where(NamedTuple):
    """A line of the user's kernel."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{short_path(self.file)}:{self.line}"


class FunctionLine(Where):
    """A line that knows the function it stands in; equal to the plain one."""

    function: str

    @classmethod
    def of(cls, file: str, line: int, function: str) -> FunctionLine:
        """The line of a function."""
        made = cls(file, line)
        made.function = function
        return made


class Site(NamedTuple):
    """A place in running code, cheap to take; ``where()`` finds its line when somebody asks."""

    code: CodeType
    offset: int

    def where(self) -> Where:
        """File and line of the instruction."""
        line = self.code.co_firstlineno
        for start, end, candidate in self.code.co_lines():
            if start <= self.offset < end and candidate is not None:
                line = candidate
                break
        return Where(self.code.co_filename, line)


def where_of(site: Any) -> Where | None:
    """The line of a site: a raw (code, offset) pair, a ``Where``, or ``None``."""
    if site is None or isinstance(site, Where):
        return site
    return Site(*site).where()


def short_path(file: str) -> str:
    """``file`` relative to the working directory where it lies below it."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file


@dataclass(frozen=True)
class Finding:
    """One fault or warning.

    ``device`` holds mesh coordinates, ``argument`` a kernel argument with its slice
    (``"o_ref[8:16, 0:128]"``), ``other`` the second place of a race, ``time_ps`` simulated
    picoseconds, ``token`` what replays the schedule that showed it (``None``: the default one).
    """

    kind: Kind
    message: str
    device: tuple[int, ...] | None = None
    argument: str | None = None
    where: Where | None = None
    other: Where | None = None
    time_ps: int | None = None
    token: str | None = None
    details: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def severity(self) -> Severity:
        """``error`` or ``warning``, fixed by the kind."""
        return Severity.WARNING if self.kind in WARNINGS else Severity.ERROR

    @property
    def graph(self) -> str | None:
        """The wait-for graph of a deadlock in Graphviz's language."""
        return self.details.get("graph")

    @property
    def text(self) -> str:
        """The message, its first line ending in device and line where it does not name them itself."""
        places = []
        if self.device is not None and not _NAMES_A_DEVICE.search(self.message):
            places.append(f"device {self.device}")
        if self.where is not None and str(self.where) not in self.message:
            places.append(str(self.where))
        if not places:
            return self.message
        head, *rest = self.message.split("\n")
        return "\n".join([f"{head}  [{', '.join(places)}]", *rest])

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"

    def explain(self) -> str:
        """The whole text: what, when, where, the second place, and how to see it again."""
        lines = [str(self)]
        if self.other is not None and str(self.other) not in self.message:
            lines.append(f"  the other access: {self.other}")
        if self.time_ps is not None:
            lines.append(f"  at t = {Duration(self.time_ps)}")
        how = f"  Replay: {self.token or 'default'}."
        lines.append(f"{how} Graph: --graph deadlock.dot." if self.graph else how)
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return {
            "kind": str(self.kind),
            "severity": str(self.severity),
            "message": self.message,
            "device": list(self.device) if self.device is not None else None,
            "argument": self.argument,
            "where": self.where._asdict() if self.where else None,
            "other": self.other._asdict() if self.other else None,
            "time_ps": self.time_ps,
            "token": self.token,
        }
