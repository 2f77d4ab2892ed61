"""Faults as inputs of a run: what is slow, late or broken.

    chip:(1,0):slow=2                 the cores of a chip take twice as long, its HBM gives half (mesh of the slice)
    link:(0,0)-(1,0):slow=4           a quarter of the bandwidth, both directions; -> for one
    link:(0,0,0,0)-(0,0,0,1):slow=4   the same between the two dies of a v7x chip
    link:(0,0)-(1,0):dead             whatever has to cross it is a `link-down` error
    link:(0,0)-(1,0):dead,reroute     it goes another way, where there is one
    jitter:200ns                      each leg and each remote signal takes up to that much longer, drawn from the seed
    device:(2,):late=50us             a device (mesh coordinates) begins later
    device:(2,):never                 it never begins

Coordinates may be written ``1.0`` for ``(1,0)``, which needs no quotes in a shell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from tpusim.errors import OptionError
from tpusim.topology import Slice, chip_named, format_coordinates, links_named, parse_coordinates, parse_link


@dataclass(frozen=True)
class SlowChip:
    """Everything a chip's cores do takes ``factor`` times as long, and its HBM gives the same share less."""

    chip: tuple[int, ...]
    factor: float

    @property
    def text(self) -> str:
        """As an option writes it."""
        return f"chip:{format_coordinates(self.chip)}:slow={self.factor:g}"


@dataclass(frozen=True)
class BadLink:
    """A link with its bandwidth divided by ``factor``, or down (``None``); copies may be routed around it."""

    name: str
    factor: float | None
    reroutes: bool = False

    @property
    def text(self) -> str:
        """As an option writes it."""
        state = "dead" if self.factor is None else f"slow={self.factor:g}"
        return f"link:{self.name}:{state}{',reroute' if self.reroutes else ''}"


@dataclass(frozen=True)
class Jitter:
    """Each leg of a copy and each remote signal takes up to ``most_ps`` longer."""

    most_ps: int
    seed: int

    @property
    def text(self) -> str:
        """As an option writes it."""
        return f"jitter:{_short(self.most_ps)}:seed={self.seed}"


@dataclass(frozen=True)
class LateDevice:
    """A device that begins ``by_ps`` late, or never (``None``)."""

    device: tuple[int, ...]
    by_ps: int | None

    @property
    def text(self) -> str:
        """As an option writes it."""
        state = "never" if self.by_ps is None else f"late={_short(self.by_ps)}"
        return f"device:{format_coordinates(self.device)}:{state}"


Fault: TypeAlias = SlowChip | BadLink | Jitter | LateDevice

_FORMS = (
    "chip:(1,0):slow=2, link:(0,0)-(1,0):slow=4, link:(0,0)-(1,0):dead[,reroute], jitter:200ns, "
    "device:(2,):late=50us, device:(2,):never"
)
_UNITS = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9}


def parse_fault(text: str, seed: int) -> Fault:
    """The fault of a text; ``seed`` for one that draws and names none.  Raises ``OptionError``."""
    kind, _, rest = text.partition(":")
    what, _, state = rest.partition(":")
    fault: Fault | None = None
    if kind == "chip" and (factor := _factor(state)) is not None:
        fault = SlowChip(parse_coordinates(what), factor)
    elif kind == "link" and state in ("dead", "dead,reroute"):
        fault = BadLink(link_text(what), None, state != "dead")
    elif kind == "link" and (factor := _factor(state)) is not None:
        fault = BadLink(link_text(what), factor)
    elif kind == "jitter" and (most := _duration(what)) is not None and re.fullmatch(r"|seed=\d+", state):
        fault = Jitter(most, int(state[5:]) if state else seed)
    elif kind == "device" and state == "never":
        fault = LateDevice(parse_coordinates(what), None)
    elif kind == "device" and state.startswith("late=") and (by := _duration(state[5:])) is not None:
        fault = LateDevice(parse_coordinates(what), by)
    if fault is None:
        raise OptionError(f"{text!r} is no fault; forms: {_FORMS}")
    return fault


def _factor(state: str) -> float | None:
    found = re.fullmatch(r"slow=(\d+(?:\.\d+)?)", state)
    return float(found[1]) if found and float(found[1]) >= 1 else None


def _duration(text: str) -> int | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ps|ns|us|ms)", text)
    return round(Fraction(found[1]) * _UNITS[found[2]]) if found else None


def _short(ps: int) -> str:
    unit = next(unit for unit, size in reversed(_UNITS.items()) if ps % size == 0)
    return f"{ps // _UNITS[unit]}{unit}"


def link_text(text: str) -> str:
    """A link in the form that needs no quotes: ``0.0-1.0``, or ``0.0-to-1.0`` for one direction."""
    first, second, is_directed = parse_link(text)
    return f"{format_coordinates(first)}-{'to-' if is_directed else ''}{format_coordinates(second)}"


class Impairments:
    """All faults of a run, looked up by what they concern; raises ``OptionError`` for what is not on the slice."""

    def __init__(
        self, faults: Sequence[Fault], slice_: Slice, devices: Sequence[int], mesh: Sequence[tuple[int, ...]]
    ) -> None:
        self.slow_chips: dict[int, float] = {}
        self.slow_links: dict[int, float] = {}
        self.dead_links: dict[int, BadLink] = {}
        self.late: dict[int, LateDevice] = {}
        self.jitters: list[Jitter] = []
        for fault in faults:
            if isinstance(fault, SlowChip):
                self.slow_chips[chip_named(slice_, fault.chip)] = fault.factor
            elif isinstance(fault, BadLink):
                for index in links_named(slice_, fault.name):
                    if fault.factor is None:
                        self.dead_links[index] = fault
                    else:
                        self.slow_links[index] = fault.factor
            elif isinstance(fault, LateDevice):
                if fault.device not in mesh:
                    raise OptionError(f"{fault.text}: the mesh has no device {fault.device}")
                self.late[mesh.index(fault.device)] = fault
            else:
                self.jitters.append(fault)
        self._chips = [slice_.chip_of(device) for device in devices]

    def slowness(self, device: int) -> float:
        """How much slower a device's core is; 1 without a fault."""
        return self.slow_chips.get(self._chips[device], 1.0)

    def never_starts(self, device: int) -> bool:
        """Whether a device stays away."""
        return device in self.late and self.late[device].by_ps is None

    def lateness_ps(self, device: int) -> int:
        """By how much a device begins late."""
        return (self.late[device].by_ps or 0) if device in self.late else 0


def parse_faults(faults: str | Sequence[str | Fault], seed: int) -> tuple[Fault, ...]:
    """The option ``faults``: one text or several, or faults; raises ``OptionError``."""
    given = (faults,) if isinstance(faults, str | SlowChip | BadLink | Jitter | LateDevice) else faults
    if not isinstance(given, Sequence):
        raise OptionError(f"faults is a list of texts such as 'jitter:200ns', not {faults!r}")
    found: list[Fault] = []
    for fault in given:
        if isinstance(fault, str):
            found.append(parse_fault(fault, seed))
        elif isinstance(fault, SlowChip | BadLink | Jitter | LateDevice):
            found.append(fault)
        else:
            raise OptionError(f"faults is a list of texts such as 'jitter:200ns', not {faults!r}")
    return tuple(found)
