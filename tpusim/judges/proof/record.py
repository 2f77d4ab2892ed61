"""One run, kept as it happens: what each core did, in an order that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tpusim.observe import Observer

if TYPE_CHECKING:
    from tpusim.machine.calls import Call
    from tpusim.machine.core import Core
    from tpusim.machine.memory import Buffer, Region
    from tpusim.machine.semaphores import Semaphore


class Touched(NamedTuple):
    """A core loaded from a region, or stored to it."""

    core: Core
    buffer: Buffer
    region: Region
    site: Any
    is_write: bool


class Signalled(NamedTuple):
    """A core added to a semaphore."""

    core: Core
    semaphore: Semaphore
    amount: int
    site: Any


class Moved(NamedTuple):
    """A core entered or left a call (then there are no objects) or a scope, which owns ``buffers`` and the like."""

    core: Core
    call: Call | None
    is_entry: bool
    buffers: Sequence[Buffer] = ()
    semaphores: Sequence[Semaphore] = ()
    is_scope: bool = False


class Peeked(NamedTuple):
    """A core read a semaphore's value."""

    core: Core
    semaphore: Semaphore
    site: Any


class Met(NamedTuple):
    """A core came to an XLA collective, or leaves it after ``others`` came."""

    core: Core
    meeting: Any
    others: Sequence[int] | None


class Recorder(Observer):
    """Keeps the operations and accesses of a run; ``events`` are in the order in which cores executed them.

    A copy stands for itself, and a satisfied wait is what :class:`tpusim.observe.Observer` gives.
    """

    def __init__(self) -> None:
        self.events: list[Any] = []
        # The hottest hooks are bare appends.
        self.copy_started = self.events.append  # type: ignore[method-assign,assignment]
        self.waited = self.events.append  # type: ignore[method-assign,assignment]

    def entered(self, core: Core) -> None:
        """A call begins on a core."""
        self.events.append(Moved(core, core.call, True))

    def exited(self, core: Core) -> None:
        """A call ends on a core."""
        self.events.append(Moved(core, core.call, False))

    def scope_entered(self, core: Core, buffers: Sequence[Buffer], semaphores: Sequence[Semaphore]) -> None:
        """A scope begins on a core."""
        self.events.append(Moved(core, core.call, True, buffers, semaphores, True))

    def scope_left(self, core: Core, buffers: Sequence[Buffer], semaphores: Sequence[Semaphore]) -> None:
        """A scope ends on a core."""
        self.events.append(Moved(core, core.call, False, buffers, semaphores, True))

    def signalled(self, core: Core, semaphore: Semaphore, amount: int, sent_ps: int, site: Any) -> None:
        """A signal."""
        self.events.append(Signalled(core, semaphore, amount, site))

    def peeked(self, core: Core, semaphore: Semaphore, site: Any) -> None:
        """A look at a semaphore."""
        self.events.append(Peeked(core, semaphore, site))

    def arrived(self, core: Core, meeting: Any) -> None:
        """An XLA collective begins on a core."""
        self.events.append(Met(core, meeting, None))

    def released(self, core: Core, meeting: Any, others: Sequence[int]) -> None:
        """An XLA collective ends on a core."""
        self.events.append(Met(core, meeting, others))

    def loaded(self, core: Core, buffer: Buffer, region: Region, site: Any) -> None:
        """A load."""
        self.events.append(Touched(core, buffer, region, site, False))

    def stored(self, core: Core, buffer: Buffer, region: Region, site: Any) -> None:
        """A store."""
        self.events.append(Touched(core, buffer, region, site, True))
