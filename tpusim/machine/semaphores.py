"""Counting semaphores: bytes on DMA semaphores, units on regular and barrier ones."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from tpusim.specs import SemaphoreType

if TYPE_CHECKING:
    from tpusim.machine.calls import Call
    from tpusim.machine.core import Core


PIPELINE = ".window"
"""How the names of a grid pipeline's semaphores end; those a kernel declares are Python names."""


class SemaphoreSpec:
    """The static side of a semaphore (array), shared by all devices.

    ``is_scoped``: of a ``run_scoped``.  A counter of its own in the call's storage, which entering the scope does
    not reset; only scopes that are over before it begins may use the same one.  Source: libtpu 0.0.50.1, v6e.
    """

    __slots__ = ("flag", "home", "is_of_pipeline", "is_scoped", "kind", "name", "position", "shape", "size")

    def __init__(
        self, position: int, name: str, kind: SemaphoreType, shape: tuple[int, ...], *, is_scoped: bool = False
    ) -> None:
        self.is_scoped = is_scoped
        self.home: Call | None = None
        """The call with whose entry they begin to live, for those that a call hands to later ones."""
        self.flag = self
        """The semaphores with which the compiled kernel has its sync flags in common: nobody's but its own."""
        self.position = position
        self.name = name
        self.kind = kind
        self.shape = shape
        self.size = prod(shape)
        self.is_of_pipeline = name.endswith(PIPELINE)
        """Whether a grid pipeline waits on them for the copies of its blocks."""

    def element_name(self, flat: int) -> str:
        """``recv_sem[1, 0]`` for one element, the bare name for a single semaphore."""
        if not self.shape:
            return self.name
        parts = []
        for extent in reversed(self.shape):
            flat, part = divmod(flat, extent)
            parts.append(str(part))
        return f"{self.name}[{', '.join(reversed(parts))}]"


class Semaphore:
    """One counter on one device.

    ``value`` is what it holds now, ``added`` the sum of all it ever got.  At most one core waits on it;
    whoever adds the last missing unit resumes that core by a direct call.
    """

    __slots__ = ("added", "alive", "device", "flat", "need", "spec", "value", "waiter")

    def __init__(self, spec: SemaphoreSpec, device: int, flat: int) -> None:
        self.spec = spec
        self.device = device
        self.flat = flat
        self.value = 0
        self.added = 0
        self.need = 0
        self.alive = True
        self.waiter: Core | None = None

    def add(self, amount: int, now: int) -> None:
        """Count up at ``now`` (ps); resumes the waiting core where this is enough for it."""
        value = self.value + amount
        self.added += amount
        waiter = self.waiter
        if waiter is not None and value >= self.need:
            self.value = value - self.need
            self.waiter = None
            waiter.wake(now)
        else:
            self.value = value

    @property
    def unit(self) -> str:
        """``B`` for DMA semaphores, empty for the others."""
        return " B" if self.spec.kind is SemaphoreType.DMA else ""

    def __str__(self) -> str:
        return self.spec.element_name(self.flat)
