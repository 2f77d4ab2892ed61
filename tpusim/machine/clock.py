"""The event loop as the machine uses it: SimPy's public ``now``, ``schedule``, ``peek`` and ``step``, in integers.

The machine's events are duck-typed slotted objects that are scheduled again in every phase of their life;
SimPy only asks for ``callbacks`` and ``_ok``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import simpy


class Clock(Protocol):
    """A ``simpy.Environment`` whose time is an integer number of picoseconds."""

    @property
    def now(self) -> int:
        """Picoseconds since the start."""

    def schedule(self, event: Any, priority: Any = 1, delay: int = 0) -> None:
        """Run ``event.callbacks`` at ``now + delay``; among equal times the lower ``priority`` first."""

    def peek(self) -> float:
        """Time of the next event, infinity where there is none."""

    def step(self) -> None:
        """Run the next event; raises ``simpy.core.EmptySchedule`` where there is none."""


def make_clock() -> Clock:
    """A SimPy environment that starts at 0 ps."""
    return cast("Clock", simpy.Environment(initial_time=0))


class Later:
    """Something that happens at the time it is scheduled for; its own event."""

    __slots__ = ("_action", "_ok", "callbacks")

    def __init__(self, action: Callable[[], object]) -> None:
        self._ok = True
        self._action = action
        self.callbacks: Any = [Later._happen]

    def _happen(self) -> None:
        self._action()
