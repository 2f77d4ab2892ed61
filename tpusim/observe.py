"""The vocabulary of events: the only way judges and traces see a run.

The machine calls these hooks as things happen.  An observer overrides what it needs; a hook nobody
overrides is never called, so watching costs nothing where nobody listens.  ``site`` is where in the
user's kernel the operation stands (see :class:`tpusim.findings.Site`); times are integer picoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpusim.machine.core import Core
    from tpusim.machine.dma import Copy
    from tpusim.machine.memory import Buffer, Region
    from tpusim.machine.semaphores import Semaphore


WaitEvent = tuple["Core", "Semaphore", int, int, int, Any]
"""Core, semaphore, amount, when the wait began and when it was satisfied (ps), site."""


class Observer:
    """Sees one run.  Every method may be overridden; the defaults do nothing and are not called."""

    def entered(self, core: Core) -> None:
        """A core entered a call."""

    def exited(self, core: Core) -> None:
        """A core left a call."""

    def scope_entered(self, core: Core, buffers: Sequence[Buffer], semaphores: Sequence[Semaphore]) -> None:
        """A core entered a ``run_scoped``, which owns these."""

    def scope_left(self, core: Core, buffers: Sequence[Buffer], semaphores: Sequence[Semaphore]) -> None:
        """A core left a ``run_scoped``."""

    def copy_started(self, copy: Copy) -> None:
        """A core issued a copy."""

    def copy_read(self, copy: Copy) -> None:
        """The reader leg ended: the source may be overwritten."""

    def copy_written(self, copy: Copy) -> None:
        """The writer leg ended: the destination is complete."""

    def waited(self, event: WaitEvent) -> None:
        """A wait was satisfied: (core, semaphore, amount, from_ps, to_ps, site).

        One tuple and not six arguments, because this is the most frequent event: a log keeps it as it is.
        """

    def signalled(self, core: Core, semaphore: Semaphore, amount: int, sent_ps: int, site: Any) -> None:
        """A core signalled a regular or barrier semaphore, its own or another device's."""

    def peeked(self, core: Core, semaphore: Semaphore, site: Any) -> None:
        """A core read the value of a semaphore."""

    def arrived(self, core: Core, meeting: Any) -> None:
        """A core came to a meeting of devices that is no kernel: an XLA collective; ``meeting`` identifies it."""

    def released(self, core: Core, meeting: Any, others: Sequence[int]) -> None:
        """A core leaves a meeting, to which these devices (its own may be one) had to come first."""

    def loaded(self, core: Core, buffer: Buffer, region: Region, site: Any) -> None:
        """A core loaded a region."""

    def stored(self, core: Core, buffer: Buffer, region: Region, site: Any) -> None:
        """A core stored to a region."""

    def computed(self, core: Core, operation: str, from_ps: int, to_ps: int, site: Any) -> None:
        """A core computed (or did nothing for a ``delay``)."""

    def logged(self, core: Core, text: str) -> None:
        """A kernel printed."""


Hook = tuple[Callable[..., None], ...]


class Hooks:
    """For each event the bound methods of those observers that override it."""

    __slots__ = tuple(name for name in vars(Observer) if not name.startswith("_"))

    entered: Hook
    exited: Hook
    scope_entered: Hook
    scope_left: Hook
    copy_started: Hook
    copy_read: Hook
    copy_written: Hook
    waited: Hook
    signalled: Hook
    peeked: Hook
    arrived: Hook
    released: Hook
    loaded: Hook
    stored: Hook
    computed: Hook
    logged: Hook

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        for name in self.__slots__:
            default = getattr(Observer, name)
            setattr(
                self,
                name,
                tuple(getattr(o, name) for o in observers if getattr(type(o), name) is not default or name in vars(o)),
            )

    def clear(self) -> None:
        """Nobody listens any more."""
        for name in self.__slots__:
            setattr(self, name, ())
