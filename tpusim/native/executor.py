"""One core executing a native kernel: the backend behind the kernel language on the simulated machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.backend import RawSite
from tpusim.declare import device_id_problem, parameter_names
from tpusim.descriptors import AsyncCopyDescriptor, user_site
from tpusim.errors import (
    DescriptorError,
    DeviceIdError,
    NotModelledError,
    OptionError,
    SemaphoreKindError,
    ShapeMismatchError,
)
from tpusim.findings import Kind
from tpusim.machine.core import Core
from tpusim.machine.memory import Region, sentinel
from tpusim.machine.semaphores import Semaphore
from tpusim.native.refs import BarrierRef, DynamicSlice, Ref, SemaphoreRef, require_vector_memory
from tpusim.specs import SemaphoreType, is_scratch_type
from tpusim.values import Array, Scalar
from tpusim.values.numerics import integer_limits
from tpusim.values.promotion import canonical_dtype, kind_letter
from tpusim.values.scalars import captured_constant
from tpusim.values.simulated_numpy import SimulatedNumpy

if TYPE_CHECKING:
    from tpusim.native.simulate import Program


class DescriptorUse:
    """A line that makes descriptors, and whether any device ever used one of them."""

    __slots__ = ("is_used", "site")

    def __init__(self, site: RawSite) -> None:
        self.site = site
        self.is_used = False


class Executor:
    """Executes one device's kernel; implements :class:`tpusim.backend.Backend`."""

    __slots__ = (
        "_axis_index",
        "_idle",
        "_piece",
        "buffers_of",
        "call",
        "coords",
        "core",
        "cores",
        "grid_index",
        "machine",
        "np",
        "program",
        "scope_path",
        "semaphores_of",
        "suspend",
    )  # fmt: skip

    def __init__(self, program: Program, core: Core, suspend: Callable[[], object]) -> None:
        self.program = program
        self.core = core
        self.machine = core.machine
        self.cores = core.machine.cores
        self.call = program.call
        self.buffers_of = program.call.buffers
        self.semaphores_of = program.call.semaphores
        self.coords = core.machine.coordinates(core.device)
        self.suspend = suspend
        self.grid_index: tuple[int, ...] = ()
        self.scope_path: tuple[Any, ...] = ()
        self.np: Any = SimulatedNumpy(self, self.machine.data)
        self._idle = self._piece = program.idle
        self._axis_index: dict[Any, Scalar] = {}

    # -- places ---------------------------------------------------------------------------------

    def axis_index(self, axis: str | tuple[str, ...]) -> Scalar:
        """This device's coordinate, row-major over several axes."""
        found = self._axis_index.get(axis)
        if found is None:
            index = 0
            sizes = self.program.axis_sizes
            for name in self._axis_names(axis):
                index = index * sizes[name] + self.coords[list(sizes).index(name)]
            found = self._axis_index[axis] = Scalar(index)
        return found

    def axis_size(self, axis: str | tuple[str, ...]) -> int:
        """Number of devices along the axes."""
        return prod(self.program.axis_sizes[name] for name in self._axis_names(axis))

    def _axis_names(self, axis: str | tuple[str, ...]) -> tuple[str, ...]:
        names = (axis,) if isinstance(axis, str) else tuple(axis)
        for name in names:
            if name not in self.program.axis_sizes:
                raise OptionError(f"there is no mesh axis {name!r}; the kernel has {tuple(self.program.axis_sizes)}")
        return names

    def program_id(self, axis: int) -> Scalar:
        """This step's index along a grid axis."""
        self._check_grid_axis(axis)
        return Scalar(self.grid_index[axis])

    def num_programs(self, axis: int) -> int:
        """Steps along a grid axis."""
        self._check_grid_axis(axis)
        return self.program.declared.grid[axis]

    def _check_grid_axis(self, axis: int) -> None:
        if not 0 <= axis < len(self.program.declared.grid):
            raise OptionError(f"grid axis {axis} of a kernel with grid {self.program.declared.grid}")

    def ds(self, start: Any, size: int, stride: int | None) -> DynamicSlice:
        """A slice with its start resolved."""
        if type(start) is Scalar:
            start = start.value
        if type(start) is not int or type(size) is not int:
            start, size = _static(start, "ds start"), _static(size, "ds size")
        return DynamicSlice((start, size)) if stride is None or stride == 1 else DynamicSlice((start, size, stride))

    # -- memory ---------------------------------------------------------------------------------

    def load(self, region: Region) -> Any:
        """The value of a region now."""
        require_vector_memory(region, "load")
        site = user_site()
        buffer = self.core.buffers[region.spec.position]
        racing = self.core.load(buffer, region, site)
        array = buffer.array
        if not region.shape:
            return self._scalar_of(region, array, is_known=racing is None)
        self._piece = self._piece.access(region.spec.dtype, region.shape, False)
        if array is None:
            return Array(self, None, region.shape, region.spec.dtype)
        value = array[region.index].copy()
        if racing is not None:
            buffer.hide_in_flight(region, value)
        return Array(self, value, region.shape, region.spec.dtype)

    def _scalar_of(self, region: Region, array: np.ndarray[Any, Any] | None, *, is_known: bool) -> Scalar:
        if array is None:
            raise NotModelledError(f"data=False: the kernel needs the value of {region}; run it with data=True")
        value = array[region.index] if is_known else sentinel(region.spec.dtype)
        return Scalar(value.item(), region.spec.dtype)

    def store(self, region: Region, value: Any) -> None:
        """Write a value to a region."""
        require_vector_memory(region, "store")
        buffer = self.core.buffers[region.spec.position]
        self.core.store(buffer, region, user_site())
        if region.shape:
            self._piece = self._piece.access(region.spec.dtype, region.shape, True)
        data = _storable(value, region)
        if buffer.array is not None and data is not None:
            buffer.array[region.index] = data

    def charge(self, op: str, dtype: np.dtype[Any], shapes: Any, out_shape: Any) -> None:
        """Charge one array operation to the core."""
        self._piece, cost = self._piece.operation(op, dtype, shapes, out_shape)
        self.core.compute(cost, op, user_site())
        if self._piece.is_long:
            self.end_piece()

    def end_piece(self) -> None:
        """From here on others can see what the core has done: pay what its work still owes."""
        piece, self._piece = self._piece, self._idle
        if piece.owed_ps:
            self.core.compute(piece.owed_ps, "load and store", self.program.pipeline.site)

    # -- copies ---------------------------------------------------------------------------------

    def made(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> None:
        """Check a descriptor and remember its line until some device uses one made there."""
        program = self.program
        src, dst, dst_sem, src_sem = descriptor.src_ref, descriptor.dst_ref, descriptor.dst_sem, descriptor.src_sem
        try:
            is_fit = (
                (src, dst) in program.fitting and dst_sem.counts_bytes and (src_sem is None or src_sem.counts_bytes)
            )
        except (TypeError, AttributeError):  # something that is no ref
            is_fit = False
        if not is_fit:
            _check_copy(src, dst, dst_sem, src_sem)
            program.fitting.add((src, dst))
        # Not the site itself as the key: a code object hashes its whole bytecode, every time.
        key = (id(site[0]) << 24) + site[1]
        use = program.descriptor_uses.get(key)
        if use is None:
            use = program.descriptor_uses[key] = DescriptorUse(site)
        descriptor.use = use

    def start(self, descriptor: AsyncCopyDescriptor, priority: int, add: bool, site: RawSite) -> None:
        """Start its copy."""
        if self._piece is not self._idle:
            self.end_piece()
        if descriptor.use is None:
            self.made(descriptor, site)
        descriptor.use.is_used = True
        core = self.core
        src, dst, receive, send = descriptor.src_ref, descriptor.dst_ref, descriptor.dst_sem, descriptor.src_sem
        if send is None:
            buffers, semaphores, src_sem = core.buffers, core.semaphores, None
        else:
            device_id = descriptor.device_id
            target = device_id.value if type(device_id) is Scalar else device_id
            if type(target) is not int or not 0 <= target < self.program.one_axis_size:
                target = self.resolve_device(device_id)
            buffers, semaphores = self.buffers_of[target], self.semaphores_of[target]
            src_sem = core.semaphores[send.position][send.flat]
        if priority or add:
            self._check_start(priority, add, send is not None, site)
        core.start(
            core.buffers[src.position],
            src.region,
            buffers[dst.position],
            dst.region,
            src_sem,
            semaphores[receive.position][receive.flat],
            site,
            priority,
            add,
        )

    def _check_start(self, priority: Any, add: bool, remote: bool, site: RawSite) -> None:
        if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
            raise DescriptorError(f"priority is 0 or 1, not {priority!r}")
        if priority > 1 or (priority and remote):
            what = "on a remote copy" if remote else "above 1"
            self.machine.note(
                Kind.UNSUPPORTED, f"priority={priority} {what} is not supported on TPU.", self.core.device, site
            )
        if add:
            self.machine.note(Kind.UNSUPPORTED, "add=True is not supported on a TensorCore.", self.core.device, site)

    def wait(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> None:
        """Wait for both legs of a remote copy, or for a local one."""
        if self._piece is not self._idle:
            self.end_piece()
        if descriptor.src_sem is None:
            self.wait_recv(descriptor, site)
            return
        if descriptor.use is None:
            self.made(descriptor, site)
        descriptor.use.is_used = True
        send, receive, core = descriptor.src_sem, descriptor.dst_sem, self.core
        table = core.semaphores
        if not core.wait_both(
            table[send.position][send.flat],
            descriptor.src_ref.region.nbytes,
            site,
            table[receive.position][receive.flat],
            descriptor.dst_ref.region.nbytes,
            site,
        ):
            self.suspend()

    def wait_send(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> None:
        """Wait until its source has been read."""
        if self._piece is not self._idle:
            self.end_piece()
        if descriptor.use is None:
            self.made(descriptor, site)
        descriptor.use.is_used = True
        ref = descriptor.src_sem
        core = self.core
        if not core.wait(core.semaphores[ref.position][ref.flat], descriptor.src_ref.region.nbytes, site):
            self.suspend()

    def wait_recv(self, descriptor: AsyncCopyDescriptor, site: RawSite) -> None:
        """Wait until its destination has been written on this device."""
        if self._piece is not self._idle:
            self.end_piece()
        if descriptor.use is None:
            self.made(descriptor, site)
        descriptor.use.is_used = True
        ref = descriptor.dst_sem
        core = self.core
        if not core.wait(core.semaphores[ref.position][ref.flat], descriptor.dst_ref.region.nbytes, site):
            self.suspend()

    # -- devices --------------------------------------------------------------------------------

    def resolve_device(self, device_id: Any) -> int:
        """The row-major mesh index a device id names; raises ``DeviceIdError``."""
        sizes = self.program.sizes
        parts = device_id if type(device_id) is tuple else (device_id,)
        index = 0
        if len(parts) == len(sizes):
            for part, size in zip(parts, sizes, strict=True):
                value = part.value if type(part) is Scalar else part
                if type(value) is not int or not 0 <= value < size:
                    break
                index = index * size + value
            else:
                return index
        return self._resolve_with_care(_plain(device_id))

    def _resolve_with_care(self, device_id: Any) -> int:
        axis_sizes = self.program.axis_sizes
        problem = device_id_problem(device_id, axis_sizes)
        if problem is not None:
            raise DeviceIdError(problem)
        if not isinstance(device_id, dict):
            return self.resolve_device(device_id)
        coords = dict(zip(axis_sizes, self.coords, strict=True))
        for key, index in device_id.items():
            for name in reversed(key if isinstance(key, tuple) else (key,)):
                index, coords[name] = divmod(index, axis_sizes[name])
        return self.resolve_device(tuple(coords.values()))

    # -- semaphores -----------------------------------------------------------------------------

    def _counter(self, ref: Any, device: int, verb: str) -> Semaphore:
        if type(ref) is BarrierRef:
            return self.machine.barrier_semaphore(ref.collective_id, device)
        if type(ref) is not SemaphoreRef:
            raise SemaphoreKindError(f"semaphore_{verb} needs a semaphore, not {type(ref).__name__}")
        if ref.shape:
            raise SemaphoreKindError(
                f"semaphore_{verb} needs one semaphore; {ref.spec.name} is an array of shape {ref.shape}: pick one "
                "with .at[...]"
            )
        if ref.spec.kind is SemaphoreType.DMA and verb != "read":
            raise SemaphoreKindError(
                f"semaphore_{verb} on DMA semaphore {ref.spec.name}: use a descriptor's start and wait, or declare "
                "SemaphoreType.REGULAR"
            )
        return self.call.semaphores[device][ref.spec.position][ref.flat]

    def semaphore_signal(self, sem: Any, inc: Any, device_id: Any, core_index: Any, site: RawSite) -> None:
        """Add to a semaphore."""
        if self._piece is not self._idle:
            self.end_piece()
        if core_index is not None and _static(core_index, "core_index") != 0:
            raise NotModelledError("semaphore_signal(core_index=...): each device has one core here")
        device = self.core.device if device_id is None else self.resolve_device(device_id)
        amount = _static(inc, "inc")
        if amount < 0:
            raise SemaphoreKindError(f"semaphore_signal adds a non-negative amount, not {amount}")
        self.core.signal(self._counter(sem, device, "signal"), amount, site)

    def semaphore_wait(self, sem: Any, value: Any, site: RawSite) -> None:
        """Take from a semaphore."""
        if self._piece is not self._idle:
            self.end_piece()
        amount = _static(value, "value")
        if amount < 0:
            raise SemaphoreKindError(f"semaphore_wait takes a non-negative value, not {amount}")
        if not self.core.wait(self._counter(sem, self.core.device, "wait"), amount, site):
            self.suspend()

    def semaphore_read(self, sem: Any, site: RawSite) -> Scalar:
        """Its value now, in global time."""
        if self._piece is not self._idle:
            self.end_piece()
        if not self.core.join():
            self.suspend()
        return Scalar(self.core.peek(self._counter(sem, self.core.device, "read"), site))

    def get_barrier_semaphore(self, site: RawSite) -> BarrierRef:
        """The barrier semaphore of the kernel's collective id."""
        if self._piece is not self._idle:
            self.end_piece()
        collective_id = self.program.kernel.collective_id
        if collective_id is None:
            self.machine.note(
                Kind.COLLECTIVE_ID,
                f"{self.program.kernel.name} uses the barrier semaphore and has no collective_id: give the kernel "
                "collective_id=0 (another number for each kernel that synchronises differently).",
                self.core.device,
                site,
                time_ps=self.core.now,
            )
        self.core.compute(self.machine.timing.barrier_ps, "barrier lookup", site)
        return BarrierRef(collective_id)

    # -- control --------------------------------------------------------------------------------

    def when(self, condition: Any, body: Callable[[], None]) -> None:
        """Run ``body`` if the condition holds."""
        if condition.value if type(condition) is Scalar else _static(condition, "condition"):
            self.end_piece()
            body()
        self.end_piece()

    def fori_loop(self, lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any, unroll: Any) -> Any:
        """Run the loop; each index is a tracked scalar."""
        carry = init
        is_weak = type(lower) is int and type(upper) is int  # as in jax.lax.fori_loop
        for index in range(_static(lower, "lower"), _static(upper, "upper")):
            self.end_piece()
            carry = body(Scalar(index, weak=is_weak), carry)
        self.end_piece()
        return carry

    def run_scoped(self, body: Callable[..., Any], types: tuple[Any, ...], kw_types: dict[str, Any]) -> Any:
        """Run ``body`` with the scope's buffers, whose storage is fixed by the place of the call."""
        names = parameter_names(body)[: len(types)]
        names += [*(f"scoped{i}" for i in range(len(names), len(types))), *kw_types]
        declared = [*types, *kw_types.values()]
        for name, item in zip(names, declared, strict=True):
            if not is_scratch_type(item):
                raise OptionError(f"run_scoped: {name} is {item!r}; give VMEM(shape, dtype) or a SemaphoreType")
        outer_path = self.scope_path
        code, offset = user_site()
        key = (*outer_path, (id(code), offset), tuple(declared))
        call, device = self.call, self.core.device
        outer = call.scopes.get(outer_path)
        scope = call.scope(key, outer, names, declared)
        call.enter_scope(scope, device)
        self.scope_path = key
        try:
            refs = [self.program.ref_to(item) for item in scope.items]
            result = body(*refs[: len(types)], **dict(zip(kw_types, refs[len(types) :], strict=True)))
        finally:
            self.scope_path = outer_path
        call.leave_scope(scope, device)  # not where the body failed: its own error is the one to see
        return result

    def delay(self, nanos: Any) -> None:
        """Do nothing for a while."""
        if self._piece is not self._idle:
            self.end_piece()
        self.core.delay(_static(nanos, "nanos") * 1000, user_site())

    def debug_print(self, fmt: str, args: tuple[Any, ...]) -> None:
        """Log a line with device and time."""
        if self._piece is not self._idle:
            self.end_piece()
        if not self.core.join():
            self.suspend()
        values = [getattr(value, "value", getattr(value, "data", value)) for value in args]
        text = fmt.format(*values) if "{" in fmt else " ".join([fmt, *map(str, values)])
        self.program.session.printed_by(self.core, text)


def _check_copy(src: Any, dst: Any, dst_sem: Any, src_sem: Any) -> None:
    """Refuse what cannot be copied, and semaphores that cannot count it."""
    for ref, name in ((src, "src_ref"), (dst, "dst_ref")):
        if type(ref) is not Ref:
            raise DescriptorError(
                f"{name} is {type(ref).__name__}, not a ref: give the kernel's argument itself or ref.at[...], "
                "not a loaded value"
            )
    if src.shape != dst.shape:
        raise ShapeMismatchError(
            f"copy from {src.region} of shape {src.shape} to {dst.region} of shape {dst.shape}: they must be equal"
        )
    if src.dtype != dst.dtype:
        raise ShapeMismatchError(
            f"copy from {src.region} of {src.dtype.name} to {dst.region} of {dst.dtype.name}: a copy does not convert"
        )
    for ref in (dst_sem,) if src_sem is None else (dst_sem, src_sem):
        if type(ref) is not SemaphoreRef:
            raise SemaphoreKindError(f"a copy needs a DMA semaphore, not {type(ref).__name__}")
        if ref.spec.kind is not SemaphoreType.DMA:
            raise SemaphoreKindError(
                f"a copy needs a DMA semaphore; {ref.spec.name} is a {ref.spec.kind.value} semaphore"
            )
        if ref.shape:
            raise SemaphoreKindError(
                f"a copy needs one semaphore; {ref.spec.name} is an array of shape {ref.shape}: pick one with .at[...]"
            )


def _static(value: Any, what: str) -> int:
    if type(value) is Scalar:
        value = value.value
    if isinstance(value, bool | np.bool_):
        return int(value)
    try:
        return int(value.__index__())
    except AttributeError:
        raise ShapeMismatchError(f"{what} must be an integer scalar, not {type(value).__name__}") from None


def _plain(device_id: Any) -> Any:
    """A device id in plain Python: tracked scalars and NumPy integers as numbers, a list as a tuple."""
    if isinstance(device_id, Mapping):
        return {key: _plain(value) for key, value in device_id.items()}
    if isinstance(device_id, tuple | list):
        return tuple(_plain(part) for part in device_id)
    if type(device_id) is Scalar:
        return device_id.value
    return int(device_id) if isinstance(device_id, np.integer) else device_id


def _storable(value: Any, region: Region) -> Any:
    """The data of a value to store; refuses what Pallas refuses: another shape, or another type, numbers included."""
    shape: tuple[int, ...] = ()
    data: Any = value
    if isinstance(value, Array):
        shape, dtype, is_weak, data = value.shape, value.dtype, value.weak, value.data
    elif isinstance(value, Scalar):
        dtype, is_weak, data = value.dtype, value.weak, value.value
    elif isinstance(value, bool | int | float):
        dtype, is_weak = np.dtype(_PYTHON_TYPES[type(value)]), True
    elif isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        dtype, is_weak = canonical_dtype(value.dtype), False
    elif isinstance(value, np.ndarray):
        raise captured_constant(value)
    else:
        raise ShapeMismatchError(f"store of a {type(value).__name__} to {region}: it is no number and no array")
    if shape != region.shape:
        hint = "" if shape else "; fill it with tpusim.np.full(shape, value, dtype)"
        raise ShapeMismatchError(
            f"store of shape {shape} to {region} of shape {region.shape}: they must be equal{hint}"
        )
    wanted = region.spec.dtype
    if dtype != wanted and not (is_weak and _family(dtype) == _family(wanted)):
        raise ShapeMismatchError(f"store of {dtype.name} to {region}, which holds {wanted.name}: use .astype(...)")
    if type(value) is int and not integer_limits(wanted)[0] <= value <= integer_limits(wanted)[1]:
        raise OverflowError(f"Python int {value} too large to convert to {wanted.name}")
    return data


_PYTHON_TYPES = {bool: np.bool_, int: np.int32, float: np.float32}


def _family(dtype: np.dtype[Any]) -> str:
    """Types to which a plain number of a kind may be stored: ``i`` for all integers, ``f``, ``b``."""
    return kind_letter(dtype).replace("u", "i")
