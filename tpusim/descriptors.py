"""Copy descriptors: the object both backends share.

A descriptor names source, destination, semaphores and target.  It is validated when made; starting it
and waiting for it go to the active backend, the simulated machine or a Pallas trace.  Fields stand in
JAX's positional order.  Equality is identity: two descriptors of the same copy are two objects, and a
wait on one may serve a start on the other, because waiting needs only a semaphore and a byte count.
"""

from __future__ import annotations

import operator
import sys
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from tpusim.backend import Backend, RawSite, active
from tpusim.errors import DescriptorError
from tpusim.specs import SemaphoreType
from tpusim.values.scalars import Scalar

_getframe = sys._getframe
PAIR_MESSAGE = "Either both or neither `src_sem` and `device_id` can be set."


def _as_index(value: Any) -> Any:
    """A plain int for every integer; values that only a trace knows pass untouched."""
    if type(value) is int or type(value) is Scalar:
        return value
    if isinstance(value, bool | float | str):
        raise ValueError(f"a device id holds integers, not {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        if hasattr(value, "dtype"):
            return value  # a JAX tracer: no concrete integer, but an integer
        raise ValueError(f"a device id holds integers, not {value!r}") from None


def _as_device_id(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_as_index(coordinate) for coordinate in value)
    if isinstance(value, dict):
        return {key: _as_index(coordinate) for key, coordinate in value.items()}
    return _as_index(value)


@dataclass(eq=False, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
class _Fields:
    src_ref: Any
    dst_ref: Any
    dst_sem: Any
    src_sem: Any = None
    device_id: Annotated[Any, BeforeValidator(_as_device_id)] = None


_validate = _Fields.__pydantic_validator__.validate_python  # type: ignore[attr-defined]  # pydantic adds it


class AsyncCopyDescriptor(_Fields):
    """An asynchronous copy: ``src_ref`` -> ``dst_ref``, here or on ``device_id``.

    ``dst_sem`` counts bytes written at the destination, ``src_sem`` (remote copies) bytes read at the
    source.  ``device_id``: one coordinate per mesh axis, an int on a one-axis mesh, or a dict from axis
    to coordinate, where axes not named keep the caller's own.  Raises :class:`DescriptorError` where
    ``src_sem`` and ``device_id`` are not given together, or a device id is no integer.
    """

    use: Any = None
    """A note of the active backend about the line it was made at."""
    backend: Backend | None = None
    """The backend that was active when it was made by one of the functions below, and still is where it is used."""

    def __init__(self, src_ref: Any, dst_ref: Any, dst_sem: Any, src_sem: Any = None, device_id: Any = None) -> None:
        if (src_sem is None) is not (device_id is None):
            raise DescriptorError(PAIR_MESSAGE)
        kind = type(device_id)
        if kind is Scalar or kind is int or device_id is None:
            # Valid as it is, as the refs are for the backend to say: this is the hottest constructor of native kernels.
            self.src_ref = src_ref
            self.dst_ref = dst_ref
            self.dst_sem = dst_sem
            self.src_sem = src_sem
            self.device_id = device_id
            return
        try:
            _validate(ArgsKwargs((src_ref, dst_ref, dst_sem, src_sem, device_id)), self_instance=self)
        except ValidationError as error:
            raise DescriptorError(f"{error.errors()[0]['ctx']['error']}.") from None

    @property
    def is_remote(self) -> bool:
        """Whether the destination may lie on another device."""
        return self.src_sem is not None

    def start(self, priority: int = 0, *, add: bool = False) -> None:
        """Start the copy.  ``priority`` 1 is served first; ``add`` adds to the destination."""
        frame = _getframe(1)
        (self.backend or active()).start(self, priority, add, (frame.f_code, frame.f_lasti))

    def wait(self) -> None:
        """Wait until the source has been read (remote copies), then until the destination is written."""
        frame = _getframe(1)
        (self.backend or active()).wait(self, (frame.f_code, frame.f_lasti))

    def wait_send(self) -> None:
        """Wait until the source of a remote copy has been read."""
        if self.src_sem is None:
            raise DescriptorError("Cannot `wait_send` on a local copy.")
        frame = _getframe(1)
        (self.backend or active()).wait_send(self, (frame.f_code, frame.f_lasti))

    def wait_recv(self) -> None:
        """Wait until a copy of this size has been written to *this* device's ``dst_ref``."""
        frame = _getframe(1)
        (self.backend or active()).wait_recv(self, (frame.f_code, frame.f_lasti))


def user_site() -> RawSite:
    """Where in the user's code the calling tpusim function was called."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__", "").startswith("tpusim.") and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def make_async_copy(src_ref: Any, dst_ref: Any, sem: Any) -> AsyncCopyDescriptor:
    """Describe a copy on this device; ``sem`` counts the bytes written.  Nothing starts yet."""
    descriptor = AsyncCopyDescriptor(src_ref, dst_ref, sem)
    frame = _getframe(1)
    descriptor.backend = backend = active()
    backend.made(descriptor, (frame.f_code, frame.f_lasti))
    return descriptor


def make_async_remote_copy(
    src_ref: Any, dst_ref: Any, send_sem: Any, recv_sem: Any, device_id: Any
) -> AsyncCopyDescriptor:
    """Describe a copy from this device to ``dst_ref`` and ``recv_sem`` of the device ``device_id``."""
    descriptor = AsyncCopyDescriptor(src_ref, dst_ref, recv_sem, send_sem, device_id)
    frame = _getframe(1)
    descriptor.backend = backend = active()
    backend.made(descriptor, (frame.f_code, frame.f_lasti))
    return descriptor


def async_copy(src_ref: Any, dst_ref: Any, sem: Any, *, priority: int = 0, add: bool = False) -> AsyncCopyDescriptor:
    """Make a local copy and start it."""
    return _start_at(AsyncCopyDescriptor(src_ref, dst_ref, sem), user_site(), priority, add)


def async_remote_copy(src_ref: Any, dst_ref: Any, send_sem: Any, recv_sem: Any, device_id: Any) -> AsyncCopyDescriptor:
    """Make a remote copy and start it."""
    return _start_at(AsyncCopyDescriptor(src_ref, dst_ref, recv_sem, send_sem, device_id), user_site())


def _start_at(
    descriptor: AsyncCopyDescriptor, site: RawSite, priority: int = 0, add: bool = False
) -> AsyncCopyDescriptor:
    backend = active()
    backend.made(descriptor, site)
    backend.start(descriptor, priority, add, site)
    return descriptor


def sync_copy(src_ref: Any, dst_ref: Any) -> None:
    """Copy on this device and wait until it is done."""
    site = user_site()
    backend = active()

    def body(sem: Any) -> None:
        backend.wait_recv(_start_at(AsyncCopyDescriptor(src_ref, dst_ref, sem), site), site)

    backend.run_scoped(body, (SemaphoreType.DMA,), {})
