"""Which devices of a large run to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpusim.errors import OptionError

if TYPE_CHECKING:
    from tpusim.trace.steps import Steps

Which = str | Sequence[int] | None
"""``slowest`` (ends last) or ``busiest`` (waits least), as ``slowest:16`` so many of them; or row-major numbers."""

_WAITING = frozenset({"blocked", "wait", "outside", "idle"})


def chosen_devices(steps: Steps, which: Which = None, most: int = 64) -> list[int]:
    """The numbers of the devices to show, at most ``most`` where they are not given one by one.

    Words put the slowest or the busiest first; without a choice it is the slowest in order of their numbers.  Raises
    ``OptionError`` for a device that is not there and for another word.
    """
    total = len(steps.of)
    if which is None:
        return sorted(_slowest(steps)[:most])
    if not isinstance(which, str):
        absent = [device for device in which if not 0 <= device < total]
        if absent:
            raise OptionError(f"devices: the mesh has devices 0 to {total - 1}, not {absent[0]}")
        return list(dict.fromkeys(which))
    word, _, count = which.partition(":")
    orders = {"slowest": _slowest, "busiest": _busiest}
    if word not in orders or (count and not (count.isascii() and count.isdecimal() and int(count))):
        raise OptionError(f"devices: slowest, busiest, slowest:16 or numbers, not {which!r}")
    return orders[word](steps)[: int(count) if count else most]


def _slowest(steps: Steps) -> list[int]:
    def end(device: int) -> int:
        return next((step.from_ps for step in reversed(steps.of[device]) if step.doing == "idle"), steps.end_ps)

    return sorted(range(len(steps.of)), key=lambda device: (-end(device), device))


def _busiest(steps: Steps) -> list[int]:
    def busy(device: int) -> int:
        return sum(step.length_ps for step in steps.of[device] if step.doing not in _WAITING)

    return sorted(range(len(steps.of)), key=lambda device: (-busy(device), device))
