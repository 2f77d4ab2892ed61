"""Schedules and faults as text: the run options, and the token that replays both.

A token is ``t1:SCHEDULE[~FAULT...]``: a version, what the option ``schedule`` takes with its seed written out, and
each fault.  It needs no quotes in a shell.  It says nothing of the program, slice and inputs: these are the command's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence

from tpusim.errors import OptionError
from tpusim.faults import Fault, link_text, parse_fault
from tpusim.schedules.operations import Place
from tpusim.schedules.policies import (
    Eager,
    Hold,
    Lazy,
    Newest,
    Random,
    Schedule,
    Shuffle,
    SlowDevice,
    SlowLink,
    Split,
)
from tpusim.topology import Slice, links_named, parse_coordinates

VERSION = "t1"

_PLAIN: dict[str, Callable[[], Schedule]] = {
    "default": Schedule, "eager": Eager, "lazy": Lazy, "newest": Newest, "split": Split,
}  # fmt: skip
_SEEDED: dict[str, Callable[[int], Schedule]] = {"random": Random, "shuffle": Shuffle}

NAMES = (*_PLAIN, *_SEEDED, "slow-device:DEVICE", "slow-link:CHIP-CHIP", "hold:PLACE", "try-hold:PLACE")
"""All schedules, as a message lists them."""


def check_schedule(text: str) -> None:
    """Raise ``OptionError`` for a schedule that cannot be on any slice."""
    make_schedule(text, 0, None)


def make_schedule(text: str, seed: int, slice_: Slice | None) -> Schedule:
    """The schedule of a text; ``seed`` where it names none; without a slice, links are not looked up."""
    name, colon, rest = text.partition(":")
    if name in _PLAIN and not colon:
        return _PLAIN[name]()
    if name in _SEEDED:
        if colon and not re.fullmatch(r"\d+", rest):
            raise OptionError(f"schedule {text!r}: the seed is a whole number, as in {name}:7")
        return _SEEDED[name](int(rest) if colon else seed)
    if name == "slow-device" and rest:
        return SlowDevice(parse_coordinates(rest))
    if name == "slow-link" and rest:
        name = link_text(rest)
        return SlowLink(() if slice_ is None else links_named(slice_, rest), name)
    if name in ("hold", "try-hold") and rest:
        return Hold([Place.parse(part) for part in rest.split("+")], strict=name == "hold")
    names = [known.partition(":")[0] for known in NAMES]
    close = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]!r}?" if close and close[0] != name else f"there are: {', '.join(NAMES)}"
    raise OptionError(f"there is no schedule {text!r}; {hint}")


def token_of(schedule: Schedule, faults: Sequence[Fault]) -> str | None:
    """What replays a run; ``None`` for the default schedule without faults."""
    if schedule.text == "default" and not faults:
        return None
    return "~".join([f"{VERSION}:{schedule.text}", *(fault.text for fault in faults)])


def hold_token(places: Sequence[Place]) -> str:
    """What replays a run in which these places are held until nothing else can move."""
    return f"{VERSION}:{Hold(places).text}"


def split_token(token: str) -> tuple[str, tuple[str, ...]]:
    """The schedule and the faults of a token, as texts; raises ``OptionError``."""
    if token == "default":
        return "default", ()
    version, colon, rest = token.partition(":")
    if not colon or not re.fullmatch(r"t\d+", version):
        raise OptionError(f"replay: {token!r} is no token; one begins with {VERSION}: and stands with each finding")
    if version != VERSION:
        raise OptionError(
            f"replay: the token {token!r} is of version {version[1:]}, this tpusim reads version {VERSION[1:]}: "
            "run the program again for a new one"
        )
    schedule, *faults = rest.split("~")
    check_schedule(schedule)
    for fault in faults:
        parse_fault(fault, 0)
    return schedule, tuple(faults)
