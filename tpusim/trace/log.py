"""The event log of a run: what every picture and report is drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tpusim.observe import Observer, WaitEvent

if TYPE_CHECKING:
    from tpusim.machine.core import Core
    from tpusim.machine.dma import Copy
    from tpusim.machine.semaphores import Semaphore


class Wait(NamedTuple):
    """A satisfied wait: blocked from ``from_ps`` to ``to_ps`` (one wait cost apart where it did not block)."""

    core: Core
    semaphore: Semaphore
    amount: int
    from_ps: int
    to_ps: int
    site: Any


class SignalSent(NamedTuple):
    """A signal: who sent how much to which semaphore, and when."""

    core: Core
    semaphore: Semaphore
    amount: int
    sent_ps: int
    site: Any


class Compute(NamedTuple):
    """A stretch of compute or delay on a core."""

    core: Core
    operation: str
    from_ps: int
    to_ps: int
    site: Any


class EventLog(Observer):
    """Keeps every copy, wait, signal and compute of a run in the order in which they were executed."""

    def __init__(self) -> None:
        self.copies: list[Copy] = []
        self._waits: list[WaitEvent] = []
        self.signals: list[SignalSent] = []
        self.computes: list[Compute] = []
        # The hottest hooks are bare appends.
        self.copy_started = self.copies.append  # type: ignore[method-assign,assignment]
        self.waited = self._waits.append  # type: ignore[method-assign,assignment]

    @property
    def waits(self) -> list[Wait]:
        """Every satisfied wait."""
        return [Wait._make(event) for event in self._waits]

    def signalled(self, core: Core, semaphore: Semaphore, amount: int, sent_ps: int, site: Any) -> None:
        """Keep a signal."""
        self.signals.append(SignalSent(core, semaphore, amount, sent_ps, site))

    def computed(self, core: Core, operation: str, from_ps: int, to_ps: int, site: Any) -> None:
        """Keep a stretch of compute; stretches that follow on each other stay apart."""
        self.computes.append(Compute(core, operation, from_ps, to_ps, site))
