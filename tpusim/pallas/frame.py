"""What generated kernel code calls while it runs on one device: the rare operations, and the messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tpusim.errors import (
    CheckError,
    CollectiveIdError,
    DeviceIdError,
    NotModelledError,
    OutOfBoundsError,
    ShapeMismatchError,
    error_for,
)
from tpusim.findings import Kind
from tpusim.machine.core import Core
from tpusim.machine.memory import Buffer, Region, sentinel
from tpusim.machine.semaphores import Semaphore
from tpusim.pallas.random_bits import CoreRandom, stack_keys
from tpusim.pallas.subcore_frame import SubcoreOperations
from tpusim.pallas.views import ViewRegion, masked

if TYPE_CHECKING:
    from tpusim.machine.calls import Call, Scope


class Frame(SubcoreOperations):
    """One device inside one kernel call."""

    __slots__ = (
        "axis_sizes",
        "call",
        "collective_id",
        "coords",
        "core",
        "grid",
        "grid_index",
        "log",
        "own_random",
        "scopes",
        "stride",
    )

    def __init__(
        self,
        core: Core,
        call: Call,
        scopes: Sequence[Scope],
        axis_sizes: dict[str, int],
        collective_id: Any,
        log: Callable[[Core, str], None],
        stride: int = 1,
    ) -> None:
        self.core = core
        self.stride = stride
        """Positions of the machine for each of the kernel's: cores of a device that have no part in it."""
        self.call = call
        self.scopes = scopes
        self.axis_sizes = axis_sizes
        self.coords = core.machine.coordinates(core.device)[: len(axis_sizes)]
        self.collective_id = collective_id
        self.log = log
        self.own_random: Any = None
        self.grid: tuple[int, ...] = ()
        self.grid_index: tuple[int, ...] = ()

    # -- memory ---------------------------------------------------------------------------------

    def load(self, buffer: Buffer, region: Region, site: Any) -> Any:
        """A view of a region; a copy of it where a copy in flight is writing there."""
        racing = self.core.load(buffer, region, site)
        if buffer.array is None:
            return None
        value = buffer.array[region.index]
        if racing is not None and racing.dst is buffer:
            value = np.full_like(value, sentinel(region.spec.dtype))
        return value

    def load_scalar(self, buffer: Buffer, index: tuple[int, ...]) -> Any:
        """One element of SMEM that nobody else touches."""
        core = self.core
        core.operations += 1
        core.now += core.machine.timing.cycle_ps
        array = self.known(buffer.array, buffer.spec.name)
        for part, extent in zip(index, array.shape, strict=True):
            if not 0 <= part < extent:
                buffer.spec.whole.sub(index)  # says so
        return array[index]

    def store_scalar(self, buffer: Buffer, index: tuple[int, ...], value: Any) -> None:
        """Write one element of SMEM that nobody else touches; without data it may be unknown."""
        core = self.core
        core.operations += 1
        core.now += core.machine.timing.cycle_ps
        buffer.fresh = False
        for part, extent in zip(index, buffer.spec.shape, strict=True):
            if not 0 <= part < extent:
                buffer.spec.whole.sub(index)  # says so
        if value is None:
            buffer.array = None
        elif buffer.array is not None:
            buffer.array[index] = value

    def load_view(self, buffer: Buffer, region: Region, site: Any) -> Any:
        """The values of a region of any kind."""
        racing = self.core.load(buffer, region, site)
        value = self.peek(buffer, region)
        if value is not None and racing is not None and racing.dst is buffer:
            value = np.full_like(value, sentinel(value.dtype))
        return value

    def load_list(self, buffer: Buffer, region: Region, site: Any) -> Any:
        """A list of indices; one that is still on its way ends the run, for it may name anything."""
        if self.core.load(buffer, region, site) is not None:
            raise error_for(self.core.machine.findings[-1])
        return self.peek(buffer, region)

    def size_of(self, region: Callable[[], Region], whole: Region, extents: Sequence[int]) -> int:
        """The bytes of a region; those of its extents where it leaves the buffer, as one that is waited for may."""
        try:
            return region().nbytes
        except OutOfBoundsError:
            if min(extents, default=0) < 0:
                raise
            return -(-prod(extents) * whole.spec.bits // 8)

    def load_masked(self, buffer: Buffer, region: Region, mask: Any, site: Any) -> Any:
        """The values of a region of which only those under a mask are looked at; under one that is not known, all."""
        part = self._masked(region, mask)
        racing = self.core.load(buffer, part, site) if part is not None else None
        value = self.peek(buffer, region)
        if value is not None and racing is not None and racing.dst is buffer:
            value = np.full_like(value, sentinel(value.dtype))
        return value

    def store_masked(self, buffer: Buffer, region: Region, mask: Any, site: Any) -> None:
        """Charge a store of the elements under a mask."""
        part = self._masked(region, mask)
        if part is not None:
            self.core.store(buffer, part, site)

    def _masked(self, region: Region, mask: Any) -> Region | None:
        """What a mask leaves of a region, at the price of all of it; where that is nothing, the price is paid here."""
        price = self.core.machine.price_access(region)
        part = region if mask is None else masked(region, mask)
        if part is None:
            self.core.operations += 1
            self.core.now += max(price)
        elif part is not region:
            part.load_ps, part.store_ps = price
        return part

    def peek(self, buffer: Buffer, region: Region) -> Any:
        """The values of a region, at no cost."""
        return None if buffer.array is None else region.read(buffer.array)

    def put(self, buffer: Buffer, region: Region, value: Any) -> None:
        """Store without data: what nobody knows makes its whole buffer unknown."""
        if value is None:
            buffer.array = None
        elif buffer.array is not None:
            region.write(buffer.array, value)

    def where(self, mask: Any, value: Any, other: Any, region: Region) -> Any:
        """``value`` in the lanes of ``mask``, else ``other``; what memory never written holds where that is None."""
        if mask is None or value is None:
            return None
        dtype = region.dtype if isinstance(region, ViewRegion) else region.spec.dtype
        chosen = np.where(mask, value, sentinel(dtype) if other is None else other)
        return chosen if chosen.dtype == dtype else chosen.astype(dtype)

    def add(self, left: Any, right: Any) -> Any:
        """The sum, if both are known."""
        return None if left is None or right is None else left + right

    def load_integer_view(self, buffer: Buffer, region: Region, site: Any) -> int:
        """A scalar int or bool of a region of any kind."""
        value: int = self.known(self.load_view(buffer, region, site), region).item()
        return value

    def known(self, value: Any, what: Any = "a scalar that comes from arrays") -> Any:
        """A value that the program needs; raises where the run carries no data."""
        if value is None:
            raise NotModelledError(f"data=False: the kernel needs the value of {what}; run it with data=True")
        return value

    def load_integer(self, buffer: Buffer, region: Region, site: Any) -> int:
        """A scalar int or bool."""
        self.core.load(buffer, region, site)
        array = buffer.array if buffer.array is not None else self.known(None, region)
        value: int = array[region.index].item()
        return value

    def compute(self, function: Callable[..., Any], *values: Any) -> Any:
        """The one result of a segment, if all it needs is known."""
        return None if any(value is None for value in values) else function(*values)[0]

    def rows(self, value: Any, length: int) -> Any:
        """What a scan goes over; keys of JAX stay what they are."""
        if value is None:
            return [None] * length
        return value if hasattr(value, "dtype") and not isinstance(value.dtype, np.dtype) else np.asarray(value)

    def stack(self, values: list[Any]) -> Any:
        """The results of a loop as one array; ``None`` without data."""
        if any(value is None for value in values):
            return None
        if values and not isinstance(getattr(values[0], "dtype", None), np.dtype | None):
            return stack_keys(values)
        return np.stack([np.asarray(value) for value in values])

    def enter_scope(self, number: int) -> None:
        """Begin of a ``run_scoped``."""
        self.call.enter_scope(self.scopes[number], self.core.device)

    def leave_scope(self, number: int) -> None:
        """End of a ``run_scoped``."""
        self.call.leave_scope(self.scopes[number], self.core.device)

    # -- places ---------------------------------------------------------------------------------

    def axis_index(self, axis: str | tuple[str, ...]) -> int:
        """This device's coordinate, row-major over several axes."""
        index = 0
        names = list(self.axis_sizes)
        for name in (axis,) if isinstance(axis, str) else axis:
            index = index * self.axis_sizes[name] + self.coords[names.index(name)]
        return index

    def device(self, coords: tuple[int, ...]) -> int:
        """The row-major index of mesh coordinates."""
        index = 0
        for part, size in zip(coords, self.axis_sizes.values(), strict=True):
            if not 0 <= part < size:
                self.bad_device(coords)
            index = index * size + part
        return index * self.stride

    def named_device(self, parts: Sequence[tuple[tuple[str, ...], int]]) -> int:
        """The device at some coordinates, the others being this device's own."""
        coords = dict(zip(self.axis_sizes, self.coords, strict=True))
        for names, index in parts:
            rest = index
            for name in reversed(names):
                if name not in coords:
                    raise DeviceIdError(f"device_id names axis {name!r}; the mesh has {tuple(self.axis_sizes)}")
                rest, coords[name] = divmod(rest, self.axis_sizes[name])
            if rest:
                self.bad_device({"+".join(names): index})
        return self.device(tuple(coords.values()))

    def core_of(self, device: int, core: int, total: int) -> int:
        """Core number ``core`` of the ``total`` that run the kernel on a device."""
        group = self.core.machine.group
        return device // group * group + core * (group // total)

    def bad_device(self, device_id: Any) -> NoReturn:
        """A device id outside the mesh."""
        mesh = ", ".join(f"{axis}={size}" for axis, size in self.axis_sizes.items())
        total = prod(self.axis_sizes.values())
        raise DeviceIdError(f"device_id {device_id} names no device: the mesh is {mesh} ({total} devices)")

    # -- semaphores -----------------------------------------------------------------------------

    def bad_semaphore(self, name: str, index: int, extent: int) -> NoReturn:
        """An index outside a semaphore array."""
        raise OutOfBoundsError(f"out-of-bounds: semaphore {name} index {index} of {extent}")

    def barrier_lookup(self, tag: Any, site: Any) -> None:
        """Charge the look-up of the barrier semaphore, which needs an id."""
        if tag is None and self.collective_id is None:
            raise CollectiveIdError(
                f"{self.call.name} uses the barrier semaphore and has no collective_id: set it in "
                "pltpu.CompilerParams(collective_id=...)"
            )
        core = self.core
        core.compute(core.machine.timing.barrier_ps, "barrier lookup", site)

    def barrier(self, tag: Any, device: int) -> Semaphore:
        """The barrier semaphore of this kernel's id, or of a tag, on a device."""
        return self.core.machine.barrier_semaphore(self.collective_id if tag is None else tag, device)

    # -- the rest -------------------------------------------------------------------------------

    @staticmethod
    def different_shapes(source: Any, target: Any) -> None:
        """Refuse a copy between regions whose shapes differ in more than dimensions of one element."""
        if [size for size in source.shape if size != 1] != [size for size in target.shape if size != 1]:
            raise ShapeMismatchError(
                f"copy from {source} of shape {source.shape} to {target} of shape {target.shape}: they must be equal"
            )

    def unsupported(self, message: str, site: Any) -> None:
        """A warning about something TPUs do not have."""
        self.core.machine.note(Kind.UNSUPPORTED, message, self.core.device, site)

    def failed_check(self, message: str) -> NoReturn:
        """A check of the kernel's own that does not hold."""
        raise CheckError(message)

    def random(self) -> Any:
        """The core's generator."""
        if self.own_random is None:
            self.own_random = CoreRandom(self.core.device)
        return self.own_random

    def seed(self, seeds: Sequence[int]) -> None:
        """Seed the core's generator."""
        self.random().seed(seeds)

    def random_ps(self, shape: tuple[int, ...]) -> int:
        """Time for random bits: a cycle a vector register."""
        return self.core.machine.timing.cycles(-(-int(np.prod(shape, dtype=np.int64)) // 1024) or 1)

    def turn(self) -> None:
        """One turn of a ``while`` loop: at least a cycle, so that time moves."""
        core = self.core
        core.compute(core.machine.timing.cycle_ps, "loop", None)

    def debug_print(self, fmt: str, values: list[Any]) -> None:
        """Print with device and time; ``join`` first."""
        plain = [value.item() if hasattr(value, "item") and np.ndim(value) == 0 else value for value in values]
        text = fmt.format(*plain) if "{" in fmt else " ".join([fmt, *map(str, plain)])
        self.log(self.core, text)
