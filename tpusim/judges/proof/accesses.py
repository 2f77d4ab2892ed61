"""Accesses and pairs of them that have to be ordered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tpusim.judges.proof.tokens import Leg, Stall

if TYPE_CHECKING:
    from tpusim.machine.memory import Buffer, Region


class Access:
    """A load or store of a core, a leg of a copy, a signal, or the entry into a call or scope or its end.

    It has begun once ``device`` has executed its operation ``after`` (-1: at once), and does not end while
    ``stall`` lasts.  ``source``: the event.  ``what`` is the semaphore or the region it touches.  ``waiter`` and
    ``settled``: for a leg, the core and its wait that certainly takes the leg's last byte; ``writer``: the leg that
    cannot end before this one.
    """

    __slots__ = ("after", "buffer", "device", "is_write", "settled", "source", "stall", "waiter", "what", "writer")

    def __init__(
        self, device: int, after: int, stall: Stall, source: Any, is_write: bool, buffer: Buffer | None, what: Any
    ) -> None:
        self.device = device
        self.after = after
        self.stall = stall
        self.source = source
        self.is_write = is_write
        self.buffer = buffer
        self.what = what
        self.waiter = -1
        self.settled = -1
        self.writer: Access | None = None

    def is_over_for(self, later: Access) -> bool:
        """Whether the core of ``later`` has waited for this leg before, for certain."""
        if self.waiter == later.device and self.settled <= later.after:
            return True
        return self.writer is not None and self.writer.is_over_for(later)

    @property
    def is_leg(self) -> bool:
        """Whether it is a leg of a copy."""
        return isinstance(self.stall, Leg)


class Conflict(NamedTuple):
    """Two accesses of which one has to end before the other begins; ``earlier`` began first in the run."""

    earlier: Access
    later: Access


class Cell:
    """One region of a buffer: its last write, what copies read since, and the owner's last load."""

    __slots__ = ("links", "load", "reads", "write")

    def __init__(self, links: dict[Region, bool]) -> None:
        self.links = links
        self.write: Access | None = None
        self.reads: list[Access] = []
        self.load: Access | None = None
