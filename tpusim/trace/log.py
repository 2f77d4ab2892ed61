"""The event log of a run: what every picture and report is drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tpusim.observe import Observer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpusim.machine.calls import Call
    from tpusim.machine.core import Core
    from tpusim.machine.dma import Copy
    from tpusim.machine.memory import Buffer, BufferSpec, Region
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


class Stay(NamedTuple):
    """A call (``buffers`` is ``None``) or a ``run_scoped`` that a core entered or left at ``at_ps``."""

    core: Core
    call: Call
    at_ps: int
    has_entered: bool
    buffers: tuple[BufferSpec, ...] | None


class Access(NamedTuple):
    """A load or store of a core."""

    core: Core
    kind: Literal["load", "store"]
    region: Region
    from_ps: int
    to_ps: int
    site: Any


class EventLog(Observer):
    """Keeps every copy, wait, signal and compute of a run in the order in which they were executed.

    ``accesses``: keep loads and stores too, which a kernel may have many of; otherwise they are gaps.
    """

    def __init__(self, *, accesses: bool = False) -> None:
        self.stays: list[Stay] = []
        self.accesses: list[Access] = []
        if accesses:
            self.loaded = self._loaded  # type: ignore[method-assign]  # a hook is called where it is overridden
            self.stored = self._stored  # type: ignore[method-assign]
        self.copies: list[Copy] = []
        self._waits: list[Any] = []
        """The parts of every satisfied wait one after the other: so many small tuples would cost more than the rest."""
        self.signals: list[SignalSent] = []
        self.computes: list[Compute] = []
        # The hottest hooks are those of the lists themselves.
        self.copy_started = self.copies.append  # type: ignore[method-assign,assignment]
        self.waited = self._waits.extend  # type: ignore[method-assign,assignment]

    @property
    def waits(self) -> list[Wait]:
        """Every satisfied wait."""
        return list(map(Wait._make, zip(*[iter(self._waits)] * len(Wait._fields), strict=True)))

    def signalled(self, core: Core, semaphore: Semaphore, amount: int, sent_ps: int, site: Any) -> None:
        """Keep a signal."""
        self.signals.append(SignalSent(core, semaphore, amount, sent_ps, site))

    def computed(self, core: Core, operation: str, from_ps: int, to_ps: int, site: Any) -> None:
        """Keep a stretch of compute; stretches that follow on each other stay apart."""
        self.computes.append(Compute(core, operation, from_ps, to_ps, site))

    def entered(self, core: Core) -> None:
        """Keep when a core entered a call."""
        self._stay(core, True, None)

    def exited(self, core: Core) -> None:
        """Keep when a core left a call."""
        self._stay(core, False, None)

    def scope_entered(self, core: Core, buffers: Sequence[Buffer], semaphores: Sequence[Semaphore]) -> None:
        """Keep when the buffers of a scope came to life."""
        self._stay(core, True, buffers)

    def scope_left(self, core: Core, buffers: Sequence[Buffer], semaphores: Sequence[Semaphore]) -> None:
        """Keep when they ceased to be."""
        self._stay(core, False, buffers)

    def _stay(self, core: Core, has_entered: bool, buffers: Sequence[Buffer] | None) -> None:
        if core.call is not None:
            specs = None if buffers is None else tuple(buffer.spec for buffer in buffers)
            self.stays.append(Stay(core, core.call, core.now, has_entered, specs))

    def _loaded(self, core: Core, buffer: Buffer, region: Region, site: Any) -> None:
        self.accesses.append(Access(core, "load", region, core.now - region.load_ps, core.now, site))

    def _stored(self, core: Core, buffer: Buffer, region: Region, site: Any) -> None:
        self.accesses.append(Access(core, "store", region, core.now - region.store_ps, core.now, site))
