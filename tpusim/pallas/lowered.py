"""What a lowered kernel is: source, the tables that it names, and the equation behind each of its lines."""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field
from typing import Any

from tpusim.findings import Where
from tpusim.pallas import edges, indexed, internals, random_bits, scalar_ops, views
from tpusim.pallas.segments import Segment
from tpusim.pallas.work import Work
from tpusim.specs import MemoryRef, SemaphoreArray

Origin = tuple[Any, Any] | None
"""An equation, and the origin of the equations around it: what JAX traces inside its own functions has no line."""


@dataclass
class ScopeDecl:
    """A ``run_scoped`` of the kernel: what it allocates, and the scope around it."""

    names: list[str]
    types: list[MemoryRef | SemaphoreArray]
    slots: list[int]
    outer: int | None


@dataclass
class Lowered:
    """A kernel as source and what the source refers to.

    ``arguments``: (name, type) of each kernel argument; the tables hold what the generated code names.
    """

    source: str
    arguments: list[tuple[str, internals.RefType]]
    slots: int = 0
    """Places in the buffer and semaphore tables: the arguments, then what scopes allocate."""
    written: set[int] = field(default_factory=set)
    """Slots of buffers that the kernel, here or on another device, may write."""
    stored_first: set[int] = field(default_factory=set)
    """Slots of buffers that every run of the kernel overwrites whole before it looks at them."""
    held: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Slots of buffers whose array is a value of this shape, exchanged whole and never written in place."""
    in_xla: set[int] = field(default_factory=set)
    """Held slots whose loads go into compiled segments."""
    scopes: list[ScopeDecl] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    """What is charged: the table of prices goes with it."""
    sites: list[Where | None] = field(default_factory=list)
    consts: list[Any] = field(default_factory=list)
    is_remote: bool = False
    uses_barrier: bool = False
    filename: str = ""
    first_line: int = 0
    origins: list[Any] = field(default_factory=list)
    """The equation each line of the kernel function comes from, and those around it."""

    def where_at(self, line: int) -> Where | None:
        """The user's line behind a line of the source."""
        index = line - self.first_line
        return where_of_origin(self.origins[index]) if 0 <= index < len(self.origins) else None

    def compile(self) -> Any:
        """The ``bind`` function."""
        namespace: dict[str, Any] = {
            **scalar_ops.RUNTIME, **views.RUNTIME, **indexed.RUNTIME, **edges.RUNTIME, **random_bits.RUNTIME,
        }  # fmt: skip
        lines = self.source.splitlines(keepends=True)
        linecache.cache[self.filename] = (len(self.source), None, lines, self.filename)
        exec(compile(self.source, self.filename, "exec"), namespace)  # our own source
        return namespace["bind"]


def where_of_origin(origin: Origin) -> Where | None:
    """The user's line of the innermost equation that has one."""
    while origin is not None:
        found = internals.where_of_equation(origin[0])
        if found is not None:
            return found
        origin = origin[1]
    return None
