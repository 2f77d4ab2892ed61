"""What the kernel language asks of whoever executes it.

A kernel is written once.  While it runs, one backend is *active*: the simulated machine, or a Pallas
trace.  ``tpusim.language`` and the descriptors hand every operation to it.  The active backend lives in
a context variable, so each simulated core (a greenlet with its own context) sees its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol

from tpusim.errors import OptionError

if TYPE_CHECKING:
    from tpusim.descriptors import AsyncCopyDescriptor

RawSite = tuple[CodeType, int]
"""Code object and instruction offset of a call in the user's kernel; ``findings.Site`` finds the line."""


class Backend(Protocol):
    """One executor of kernels.  Every method means what the function of the same name in Pallas means."""

    np: Any
    """The ``jax.numpy`` of this backend."""

    def axis_index(self, axis: str | tuple[str, ...]) -> Any:
        """This device's coordinate along mesh axes."""

    def axis_size(self, axis: str | tuple[str, ...]) -> int:
        """Number of devices along mesh axes."""

    def program_id(self, axis: int) -> Any:
        """This step's index along a grid axis."""

    def num_programs(self, axis: int) -> int:
        """Number of steps along a grid axis."""

    def ds(self, start: Any, size: int, stride: int | None) -> Any:
        """A slice with a start that may be dynamic."""

    def made(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> object:
        """A descriptor was made; what it returns is the backend's."""

    def start(self, descriptor: AsyncCopyDescriptor, priority: int, add: bool, site: RawSite) -> None:
        """Start its copy."""

    def wait(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> None:
        """Wait until the source of a remote copy has been read, then until the destination has been written."""

    def wait_send(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> None:
        """Wait until the source has been read."""

    def wait_recv(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> None:
        """Wait until the destination has been written."""

    def semaphore_signal(self, sem: Any, inc: Any, device_id: Any, core_index: Any, site: RawSite) -> None:
        """Add to a semaphore here or on another device."""

    def semaphore_wait(self, sem: Any, value: Any, site: RawSite) -> None:
        """Block until the semaphore holds ``value``, then subtract it."""

    def semaphore_read(self, sem: Any, site: RawSite) -> Any:
        """The semaphore's value now."""

    def get_barrier_semaphore(self, site: RawSite) -> Any:
        """The barrier semaphore of the kernel's ``collective_id``."""

    def when(self, condition: Any, body: Callable[[], None]) -> None:
        """Run ``body`` if ``condition``."""

    def fori_loop(self, lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any, unroll: Any) -> Any:
        """``for i in range(lower, upper): carry = body(i, carry)``."""

    def run_scoped(self, body: Callable[..., Any], types: tuple[Any, ...], kw_types: dict[str, Any]) -> Any:
        """Run ``body`` with buffers that live as long as it."""

    def delay(self, nanos: Any) -> None:
        """Do nothing for a time."""

    def debug_print(self, fmt: str, args: tuple[Any, ...]) -> None:
        """Print values with device and time."""


_ACTIVE: ContextVar[Backend] = ContextVar("tpusim_backend")


def active() -> Backend:
    """The backend that executes the current kernel; raises ``OptionError`` outside a kernel."""
    try:
        return _ACTIVE.get()
    except LookupError:
        raise OptionError(
            "this function works inside a kernel only: call it from a function run by Kernel.simulate(...) "
            "or Kernel.pallas(...)"
        ) from None


def activate(backend: Backend) -> None:
    """Make ``backend`` the active one of the present context from now on."""
    _ACTIVE.set(backend)


@contextmanager
def use(backend: Backend) -> Iterator[None]:
    """Make ``backend`` the active one within a ``with`` block."""
    token = _ACTIVE.set(backend)
    try:
        yield
    finally:
        _ACTIVE.reset(token)
