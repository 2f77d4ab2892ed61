"""Exceptions: one class for each kind of finding, a few for misuse of tpusim itself.

An exception that reports a fault of the user's kernel carries the ``finding``, all ``findings`` of the
run so far and the partial ``result``.  Where Python has a builtin a caller would expect (``IndexError``
for an access out of bounds), the class derives from it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpusim.findings import Finding, Kind, Where

if TYPE_CHECKING:
    from collections.abc import Sequence


class TpuSimError(Exception):
    """Base of everything tpusim raises on purpose."""


class FindingError(TpuSimError):
    """A fault of a kernel, raised.  ``finding`` says what; ``findings`` and ``result`` the rest of the run."""

    kind: Kind

    def __init__(self, finding: Finding | str, *, findings: Sequence[Finding] = (), result: Any = None) -> None:
        if isinstance(finding, str):
            finding = Finding(self.kind, finding)
        self.finding = finding
        self.findings: list[Finding] = list(findings) or [finding]
        self.result = result
        super().__init__(finding.message)

    def __str__(self) -> str:
        return self.finding.text


class DeadlockError(FindingError):
    """Cores wait for semaphores that nobody will ever signal."""

    kind = Kind.DEADLOCK


class RaceError(FindingError):
    """Two conflicting accesses overlap in time; start the second only after the first was waited for."""

    kind = Kind.RACE


class LifetimeError(FindingError):
    """A remote copy or signal reached a buffer or semaphore outside its owner's call; add a barrier."""

    kind = Kind.LIFETIME


class LeakError(FindingError):
    """A semaphore is not zero when the kernel exits; every signal needs its wait."""

    kind = Kind.LEAK


class UnwaitedError(LeakError):
    """A copy was started and nobody waited for one of its legs; call ``wait()`` on a descriptor."""

    kind = Kind.UNWAITED


class OutOfBoundsError(FindingError, IndexError):
    """An index or slice leaves its buffer."""

    kind = Kind.OUT_OF_BOUNDS


class CapacityError(FindingError, MemoryError):
    """Buffers need more of a memory than the chip has; the message lists each of them."""

    kind = Kind.CAPACITY


class AlignmentError(FindingError, ValueError):
    """A slice starts or ends where the chip's tiling does not allow it."""

    kind = Kind.ALIGNMENT


class MemorySpaceError(FindingError, TypeError):
    """An operation on a memory space that does not have it, such as a vector load from HBM."""

    kind = Kind.MEMORY_SPACE


class DeviceIdError(FindingError, ValueError):
    """A device id names no device of the mesh, or has the wrong form for it."""

    kind = Kind.DEVICE_ID


class CollectiveIdError(FindingError, ValueError):
    """A barrier semaphore without a ``collective_id``, or the reverse."""

    kind = Kind.COLLECTIVE_ID


class ShapeMismatchError(FindingError, ValueError):
    """Shapes or dtypes of source and destination, or of operands, do not fit."""

    kind = Kind.SHAPE_MISMATCH


class SemaphoreKindError(FindingError, TypeError):
    """An operation on the wrong kind of semaphore, such as a signal on a DMA semaphore."""

    kind = Kind.SEMAPHORE_KIND


class DescriptorError(FindingError, ValueError):
    """A copy descriptor that means nothing; checked when it is made."""

    kind = Kind.DESCRIPTOR


class LinkDownError(FindingError, ConnectionError):
    """A copy has no way to its target because a link is down."""

    kind = Kind.LINK_DOWN


class LivelockError(FindingError, RuntimeError):
    """The run went past ``max_events`` or ``max_time``, or turns without time moving."""

    kind = Kind.LIVELOCK


class InterruptedRunError(LivelockError, KeyboardInterrupt):
    """Ctrl-C during a run; the report says where every core was."""


class CheckError(FindingError, AssertionError):
    """A ``pl.debug_check`` of the kernel does not hold; the message is the kernel's own."""

    kind = Kind.CHECK


class NotModelledError(FindingError, NotImplementedError):
    """tpusim has a gap here: the message names the feature."""

    kind = Kind.NOT_MODELLED


class OptionError(TpuSimError, ValueError):
    """An argument of tpusim's own functions or commands that cannot be right; exit status 2."""


class MissingExtraError(OptionError):
    """What was asked for needs a library that is not installed; the message has the command; exit status 3."""


class TracedValueError(TpuSimError, TypeError):
    """Python control flow on a value that a Pallas trace would not know; use ``when``, ``fori_loop``, ``where``."""


class InternalError(TpuSimError):
    """A law of the machine was broken inside tpusim: our bug.  Please report it with the kernel."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}\nThis is a bug in tpusim, not in the kernel; please report it with the kernel.")


_CLASSES: list[type[FindingError]] = [*FindingError.__subclasses__(), UnwaitedError]
_BY_KIND: dict[Kind, type[FindingError]] = {cls.kind: cls for cls in _CLASSES}


def error_for(finding: Finding, **context: Any) -> FindingError:
    """The exception that reports ``finding``; ``context`` as for :class:`FindingError`."""
    return _BY_KIND[finding.kind](finding, **context)


def finding_error(kind: Kind, message: str, *, where: Where | None = None, **fields: Any) -> FindingError:
    """Shorthand: build the finding and its exception at once."""
    return error_for(Finding(kind, message, where=where, **fields))
