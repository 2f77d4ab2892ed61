"""What a native kernel calls: Pallas's names, argument order and meaning, on the active backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpusim.backend import active
from tpusim.descriptors import user_site

AxisName = str | tuple[str, ...]


def axis_index(axis: AxisName) -> Any:
    """This device's coordinate along a mesh axis (row-major over several); a tracked int32 scalar."""
    return active().axis_index(axis)


def axis_size(axis: AxisName) -> int:
    """Number of devices along a mesh axis; a plain int on both backends."""
    return active().axis_size(axis)


def program_id(axis: int) -> Any:
    """This step's index along a grid axis; a tracked int32 scalar."""
    return active().program_id(axis)


def num_programs(axis: int) -> int:
    """Number of steps along a grid axis."""
    return active().num_programs(axis)


def ds(start: Any, size: int, stride: int | None = None) -> Any:
    """A slice of ``size`` elements from ``start``, which may be a tracked scalar."""
    return active().ds(start, size, stride)


def semaphore_signal(sem: Any, inc: Any = 1, *, device_id: Any = None, core_index: Any = None) -> None:
    """Add ``inc`` to a regular or barrier semaphore, here or on ``device_id``."""
    active().semaphore_signal(sem, inc, device_id, core_index, user_site())


def semaphore_wait(sem: Any, value: Any = 1) -> None:
    """Block until the semaphore holds at least ``value``, then subtract it."""
    active().semaphore_wait(sem, value, user_site())


def semaphore_read(sem: Any) -> Any:
    """The semaphore's value now; a tracked int32 scalar."""
    return active().semaphore_read(sem, user_site())


def get_barrier_semaphore() -> Any:
    """The barrier semaphore that all kernels with this ``collective_id`` share; it outlives the call."""
    return active().get_barrier_semaphore(user_site())


def when(condition: Any) -> Callable[[Callable[[], None]], None]:
    """Decorate a function of no arguments: it runs at once if ``condition`` holds."""

    def decorate(body: Callable[[], None]) -> None:
        active().when(condition, body)

    return decorate


def where(condition: Any, x: Any, y: Any) -> Any:
    """``x`` where ``condition`` holds, else ``y``, element by element."""
    return active().np.where(condition, x, y)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init_val: Any, *, unroll: Any = None) -> Any:
    """``carry = body_fun(i, carry)`` for each i from ``lower`` to ``upper``; the last carry."""
    return active().fori_loop(lower, upper, body_fun, init_val, unroll)


def run_scoped(f: Callable[..., Any], *types: Any, **kw_types: Any) -> Any:
    """Call ``f`` with buffers and semaphores that live as long as the call."""
    return active().run_scoped(f, types, kw_types)


def delay(nanos: Any) -> None:
    """Let this core do nothing for ``nanos`` nanoseconds."""
    active().delay(nanos)


def debug_print(fmt: str, *args: Any) -> None:
    """Print scalars (``{}`` in ``fmt``) from inside a kernel, with device and simulated time."""
    active().debug_print(fmt, args)
