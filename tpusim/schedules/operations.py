"""The name of an operation that outlives edits: device, function, kind and which one of these it is.

A line number moves with every edit above it, and an operation's number in the whole program with every new one
before it.  So an operation is named by the function it stands in and its ordinal
among the operations of its kind that this function has executed on the device.  ``what`` (the buffers of a copy,
the semaphore of a wait) does not find it; it tells whether what was found is still what was meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import CodeType
from typing import Any, NamedTuple

from tpusim.errors import OptionError
from tpusim.findings import FunctionLine
from tpusim.topology import format_coordinates, parse_coordinates

KINDS = {
    "start": ("copy start", "started a copy", "copies"),
    "wait": ("wait", "waited", "waits"),
    "signal": ("signal", "signalled", "signals"),
    "read": ("semaphore read", "read a semaphore", "reads"),
    "enter": ("entry", "entered", "entries"),
    "exit": ("exit", "left", "exits"),
}
"""Kinds of visible operation: what one is called, what a device did, several of them."""

LEGS = ("", "after", "reader", "writer", "arrival", "reader.last", "writer.last")
"""What of an operation: itself, what its core does after it (a copy start or signal), a leg of its copy, the arrival of
its signal, a leg without its last bytes."""

ANY = "-"
"""A function of any name; a device of any coordinates."""


class Operation(NamedTuple):
    """A visible operation of a core; ``ordinal`` counts from 1 over the whole run.

    In a place that is to be held, a device ``()`` is every device, and ordinal 0 every operation of the kind.
    """

    device: tuple[int, ...]
    function: str
    kind: str
    ordinal: int
    what: str = ""

    def __str__(self) -> str:
        """``copy start 3 in step() on device (1,)``."""
        which = f"{KINDS[self.kind][0]} {self.ordinal}" if self.ordinal else f"any {KINDS[self.kind][0]}"
        where = "" if self.function == ANY else f" in {self.function}()"
        return f"{which}{where} on {f'device {self.device}' if self.device else 'any device'}"


class Place(NamedTuple):
    """What is held or delayed: an operation, or a leg of it."""

    operation: Operation
    leg: str = ""

    def __str__(self) -> str:
        """``1/step/start3/writer/x_ref,o_ref``."""
        operation = self.operation
        which = f"{operation.kind}{operation.ordinal or ''}"
        device = format_coordinates(operation.device) or ANY
        parts = [device, operation.function, which, self.leg, operation.what]
        while not parts[-1]:
            parts.pop()
        return "/".join(parts)

    @classmethod
    def parse(cls, text: str) -> Place:
        """The place of a text; raises ``OptionError``."""
        device, function, which, leg, what, *rest = [*text.split("/"), "", "", "", ""]
        found = re.fullmatch(r"([a-z]+)([1-9]\d*|)", which)
        if any(rest) or not function or found is None or found[1] not in KINDS or leg not in LEGS:
            raise OptionError(
                f"{text!r} names no operation: it is DEVICE/FUNCTION/KIND[ORDINAL][/LEG[/WHAT]], such as 1/step/start3/"
                f"writer; kinds: {', '.join(KINDS)}; legs: {', '.join(filter(None, LEGS))}"
            )
        coords = () if device == ANY else parse_coordinates(device)
        return cls(Operation(coords, function, found[1], int(found[2] or 0), what), leg)


def function_name(site: Any, otherwise: str = "kernel") -> str:
    """The function an operation stands in; ``otherwise`` where its site does not know."""
    if isinstance(site, FunctionLine):
        name = site.function
    elif isinstance(site, tuple) and site and isinstance(site[0], CodeType):
        name = site[0].co_name
    else:
        name = otherwise
    return plain(name.rpartition(".")[2]) or "kernel"


def plain(name: str) -> str:
    """``name`` in characters that need no quotes in a shell."""
    if name.isidentifier() and name[0] != "_" != name[-1]:
        return name
    return re.sub(r"\W+", "_", name).strip("_")


class Ordinals:
    """Counts the operations of a run as they are named."""

    def __init__(self) -> None:
        self.counts: dict[tuple[tuple[int, ...], str, str], int] = {}
        """How many so far, by device, function and kind; ``ANY`` counts those of all functions."""

    def name(self, device: tuple[int, ...], function: str, kind: str, names: Iterable[str]) -> Operation:
        """The name of a device's next operation, which stands in ``function``; ``names``: what it works on."""
        self._count(device, ANY, kind)
        what = ",".join(plain(name) for name in names)
        return Operation(device, function, kind, self._count(device, function, kind), what)

    def any_ordinal(self, operation: Operation) -> int:
        """Which of its kind the operation just named is on its device, in whatever function."""
        return self.counts[operation.device, ANY, operation.kind]

    def _count(self, device: tuple[int, ...], function: str, kind: str) -> int:
        key = (device, function, kind)
        count = self.counts[key] = self.counts.get(key, 0) + 1
        return count

    def why_absent(self, wanted: Operation, axis_sizes: Mapping[str, int]) -> str:
        """Why a run had no such operation."""
        sizes = tuple(axis_sizes.values())
        device, function, kind = wanted.device, wanted.function, wanted.kind
        if not device:
            return f"no device ever {KINDS[kind][1]}" + ("" if function == ANY else f" in {function}()")
        if len(device) != len(sizes) or any(at >= size for at, size in zip(device, sizes, strict=True)):
            mesh = ", ".join(f"{axis}={size}" for axis, size in axis_sizes.items())
            return f"the mesh {mesh} has no device {device}"
        _, did, several = KINDS[kind]
        count = self.counts.get((device, function, kind), 0)
        if count:
            subject = "it" if function == ANY else f"{function}()"
            return f"{subject} has only {count} {several if count > 1 else KINDS[kind][0]} there"
        others = sorted(name for at, name, other in self.counts if (at, other) == (device, kind) and name != ANY)
        seen = f"; functions that did: {', '.join(others)}" if others else ""
        return f"no {function}() {did} there{seen}" if function != ANY else f"the device never {did}"
