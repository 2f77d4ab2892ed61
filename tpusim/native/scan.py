"""What a native kernel's code holds, found by running it once with nothing behind it.

Whether a kernel starts with the implicit barrier depends on its *code* (a remote copy or signal, no
barrier semaphore), not on what one device happens to execute.  A native kernel cannot branch in Python
on values a trace would not know, so one pass in which every ``when`` is taken and every loop runs once
sees all of it, as the compiler does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tpusim.backend import use
from tpusim.declare import Declared, axes_size
from tpusim.specs import MemoryRef, SemaphoreArray
from tpusim.values import Array, Scalar
from tpusim.values.simulated_numpy import SimulatedNumpy


@dataclass
class Scanned:
    """Static facts about a kernel."""

    is_complete: bool = True
    """Whether the pass saw all of the code; ``written`` may lack some otherwise."""
    is_remote: bool = False
    uses_barrier: bool = False
    written: set[int] = field(default_factory=set)
    """Positions of arguments that the kernel stores to or copies into."""
    returned: Any = None
    """What the function returned, which has to be nothing."""


class _ScanRef:
    """A shape with a name."""

    __slots__ = ("argument", "dtype", "scan", "shape")

    def __init__(self, scan: _Scan, argument: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.scan = scan
        self.argument = argument
        self.shape = shape
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def at(self) -> _ScanAt:
        return _ScanAt(self)

    def __getitem__(self, index: Any) -> Any:
        self.scan.step()
        shape = self.at[index].shape
        return Array(self.scan, None, shape, self.dtype) if shape else Scalar(self.dtype.type(1).item(), self.dtype)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.scan.step()
        self.scan.found.written.add(self.argument)


class _ScanAt:
    __slots__ = ("ref",)

    def __init__(self, ref: _ScanRef) -> None:
        self.ref = ref

    def __getitem__(self, index: Any) -> _ScanRef:
        ref = self.ref
        parts = list(index if isinstance(index, tuple) else (index,))
        if any(part is Ellipsis for part in parts):
            at = next(i for i, part in enumerate(parts) if part is Ellipsis)
            parts[at : at + 1] = [slice(None)] * (len(ref.shape) - len(parts) + 1)
        shape = []
        for part, size in zip(parts, ref.shape, strict=False):
            if isinstance(part, slice):
                shape.append(len(range(*part.indices(size))))
            elif isinstance(part, _ScanSlice):
                shape.append(part.size)
        return _ScanRef(ref.scan, ref.argument, (*shape, *ref.shape[len(parts) :]), ref.dtype)


class _ScanSlice:
    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class _ScanSemaphore:
    """A semaphore that nobody counts."""

    __slots__ = ("shape",)

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.shape = shape

    @property
    def at(self) -> _ScanSemaphore:
        return self

    def __getitem__(self, index: Any) -> _ScanSemaphore:
        return self


_MOST_STEPS = 300_000


class _EndlessError(Exception):
    """The pass has seen more operations than any kernel's code holds."""


class _Scan:
    """The backend of the pass: every operation only leaves a note."""

    def __init__(self, sizes: dict[str, int], grid: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.grid = grid
        self.found = Scanned()
        self.steps = 0
        self.np: Any = SimulatedNumpy(self, data=False)

    def step(self) -> None:
        """Count an operation; a kernel that never ends is left to the run, which has limits."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise _EndlessError

    def charge(self, op: str, dtype: Any, shapes: Any, out_shape: Any) -> None:
        self.step()

    def axis_index(self, axis: Any) -> Scalar:
        return Scalar(0)

    def axis_size(self, axis: Any) -> int:
        return axes_size(axis, self.sizes)

    def program_id(self, axis: int) -> Scalar:
        return Scalar(0)

    def num_programs(self, axis: int) -> int:
        return self.grid[axis]

    def ds(self, start: Any, size: int, stride: int | None) -> _ScanSlice:
        return _ScanSlice(size)

    def made(self, descriptor: Any, site: Any) -> None:
        self.step()

    def start(self, descriptor: Any, priority: int, add: bool, site: Any) -> None:
        self.found.is_remote |= descriptor.is_remote
        if isinstance(descriptor.dst_ref, _ScanRef):
            self.found.written.add(descriptor.dst_ref.argument)

    def wait(self, descriptor: Any, site: Any) -> None:
        self.step()

    def wait_send(self, descriptor: Any, site: Any) -> None:
        self.step()

    def wait_recv(self, descriptor: Any, site: Any) -> None:
        self.step()

    def semaphore_signal(self, sem: Any, inc: Any, device_id: Any, core_index: Any, site: Any) -> None:
        self.step()
        self.found.is_remote |= device_id is not None

    def semaphore_wait(self, sem: Any, value: Any, site: Any) -> None:
        self.step()

    def semaphore_read(self, sem: Any, site: Any) -> Scalar:
        self.step()
        return Scalar(1)

    def get_barrier_semaphore(self, site: Any) -> _ScanSemaphore:
        self.found.uses_barrier = True
        return _ScanSemaphore()

    def when(self, condition: Any, body: Callable[[], None]) -> None:
        body()

    def fori_loop(self, lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any, unroll: Any) -> Any:
        return body(lower if isinstance(lower, Scalar) else Scalar(int(lower)), init)

    def run_scoped(self, body: Callable[..., Any], types: tuple[Any, ...], kw_types: dict[str, Any]) -> Any:
        refs = [self.ref(-1, item) for item in types]
        return body(*refs, **{name: self.ref(-1, item) for name, item in kw_types.items()})

    def delay(self, nanos: Any) -> None:
        self.step()

    def debug_print(self, fmt: str, args: tuple[Any, ...]) -> None:
        self.step()

    def ref(self, argument: int, item: Any) -> Any:
        if isinstance(item, MemoryRef):
            return _ScanRef(self, argument, item.shape, item.dtype)
        return _ScanSemaphore(item.shape if isinstance(item, SemaphoreArray) else ())


def scan(fn: Callable[..., Any], declared: Declared, sizes: dict[str, int]) -> Scanned:
    """Static facts about ``fn``; where the pass itself stumbles, what it saw until then.

    The run that follows executes the same code with real values and reports the real fault.
    """
    backend = _Scan(sizes, declared.grid)
    arrays = [*declared.in_shards, *declared.out_shards]
    refs: list[Any] = []
    for number, (shard, spec) in enumerate(zip(arrays, (*declared.in_specs, *declared.out_specs), strict=True)):
        sizes_seen = shard.shape if spec.block_shape is None else spec.block_shape
        shape = tuple(size for size in sizes_seen if size is not None)
        refs.append(_ScanRef(backend, number, shape, shard.dtype))
    refs += [backend.ref(len(arrays) + i, item) for i, item in enumerate(declared.scratch)]
    try:
        with use(backend):
            backend.found.returned = fn(*refs)
    except Exception:  # noqa: BLE001  # whatever it is, the run meets it again, with real values
        backend.found.is_complete = False
    return backend.found
