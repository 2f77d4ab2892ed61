"""Run a native kernel: shard the arrays, put one greenlet on each core, collect the outputs."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import greenlet
import numpy as np

from tpusim.backend import activate
from tpusim.declare import Declared, check_returned, code_of, parameter_names, resolve, unused_collective_id
from tpusim.errors import FindingError, InterruptedRunError, OptionError
from tpusim.findings import Finding, Kind, Where, where_of
from tpusim.judges.deadlock import device_ranges
from tpusim.launch import entry_barrier, placed
from tpusim.machine.machine import no_collection
from tpusim.machine.memory import BufferSpec, fresh_array, holds_sentinel
from tpusim.machine.semaphores import SemaphoreSpec
from tpusim.native.blocks import as_index_map
from tpusim.native.charges import Piece
from tpusim.native.executor import Executor
from tpusim.native.refs import Ref, SemaphoreRef
from tpusim.native.scan import Scanned, scan
from tpusim.native.transfers import DescriptorUse
from tpusim.observe import Observer
from tpusim.options import RunOptions
from tpusim.pipeline import Pipeline, Stream, add_stream, block_dims, control_ps
from tpusim.result import Result
from tpusim.session import Session
from tpusim.specs import BlockSpec, MemoryRef, MemorySpace, ShapeDtypeStruct

if TYPE_CHECKING:
    from tpusim.program import Kernel


def simulate(
    kernel: Kernel,
    arrays: Sequence[Any],
    options: dict[str, Any],
    progress: Callable[[int, int], None] | None = None,
    detail: bool = False,
    calls: int = 1,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run ``kernel`` on GLOBAL ``arrays``; see :meth:`tpusim.Kernel.simulate`.

    ``progress`` is called now and then with simulated picoseconds and events; ``detail`` keeps
    what a report needs, ``observers`` watch (see :class:`tpusim.session.Session`).  ``calls``: so many calls on
    the same arrays, each device entering the next as soon as it has left one; the outputs are the last one's.
    """
    chosen = RunOptions.of(options)
    if chosen.compute == "exact" and calls == 1 and not observers:  # the others are not about time
        from tpusim.pallas.compiler import require_compiler

        require_compiler("compute='exact'")
        from tpusim.pallas.exact_native import simulate_exact

        return simulate_exact(kernel, arrays, options, detail)
    with no_collection():
        session = Session(chosen, kernel.axes, detail=detail, observers=observers)
        try:
            programs = [Program(kernel, arrays, session) for _ in range(calls)]
        except FindingError as error:
            session.abandon(error)
            raise
        *before, last = programs
        last.launch(before)
        try:
            result = session.finish(last.outputs, last.unused_descriptors, progress)
            if result.outputs is None or not before:
                return result
            return replace(result, repeats=tuple(program.outputs() or () for program in before))
        finally:
            last.close()


class Program:
    """One call of a native kernel on every device of a machine."""

    def __init__(self, kernel: Kernel, arrays: Sequence[Any], session: Session) -> None:
        self.kernel = kernel
        self.session = session
        self.machine = session.machine
        self.axis_sizes = session.place.axis_sizes
        self.sizes = tuple(self.axis_sizes.values())
        self.axes = {
            axis: (size, prod(self.sizes[position + 1 :]))
            for position, (axis, size) in enumerate(self.axis_sizes.items())
        }
        """Size of each mesh axis, and how far apart in row-major order neighbours along it are."""
        self.mesh_text = ", ".join(f"{axis}={size}" for axis, size in self.axis_sizes.items())
        self.idle = Piece(self.machine.timing, self.machine.compute_ranges)
        """The work of a core that has done nothing since others could see it."""
        self.one_axis_size = self.sizes[0] if len(self.sizes) == 1 else 0
        """Devices that one integer names; 0 on several axes."""
        self._refs: dict[Any, Ref | SemaphoreRef] = {}
        self.descriptor_uses: dict[int, DescriptorUse] = {}
        self.inputs = [_as_input(array, position) for position, array in enumerate(arrays)]
        shapes = [ShapeDtypeStruct(array.shape, array.dtype) for array in self.inputs]
        self.declared: Declared = resolve(kernel, shapes, self.axis_sizes)
        self.scanned: Scanned = scan(kernel.fn, self.declared, self.axis_sizes)
        check_returned(kernel.name, self.scanned.returned)
        self._check_collective_id()
        self.call = self.machine.new_call(kernel.name, kernel.vmem_limit_bytes, _definition(kernel.fn), kernel.specs)
        self.code: Any = code_of(kernel.fn)
        self.names = parameter_names(kernel.fn)
        self.pipeline = Pipeline((self.code, 0))
        self.streams: dict[int, Stream] = {}
        self.operands: list[BufferSpec] = []
        """In HBM: the inputs, then the outputs, which may be an input's."""
        self.globals: list[np.ndarray[Any, Any] | None] = []
        self.greenlets: list[greenlet.greenlet] = []
        self.executors: list[Executor] = []
        self.arguments: list[BufferSpec | SemaphoreSpec] = []
        self._build()

    # -- building -------------------------------------------------------------------------------

    def _check_collective_id(self) -> None:
        kernel = self.kernel
        if kernel.collective_id is not None and self.scanned.is_complete and not self.scanned.uses_barrier:
            self.machine.report(
                Finding(
                    Kind.COLLECTIVE_ID,
                    unused_collective_id(kernel.name, kernel.collective_id),
                    where=_definition(kernel.fn),
                )
            )

    def _build(self) -> None:
        declared, call = self.declared, self.call
        count = len(self.inputs)
        names = self.names + [f"arg{i}" for i in range(len(self.names), count + len(declared.out_shards))]
        outputs: list[BufferSpec] = []
        for position, shard in enumerate(declared.in_shards):
            self.arguments.append(self._input(names[position], position, shard, declared.in_specs[position]))
        for position, shard in enumerate(declared.out_shards):
            name = names[count + position]
            outputs.append(self._output(name, position, shard, declared.out_specs[position]))
        self.arguments += outputs
        offset = count + len(outputs)
        for position, item in enumerate(declared.scratch):
            index = offset + position
            name = names[index] if index < len(names) else f"scratch{position}"
            self.arguments.append(call.add_scratch(name, item))
        call.check_capacity()

    def _input(self, name: str, position: int, shard: ShapeDtypeStruct, block: BlockSpec) -> BufferSpec:
        array, space = self.inputs[position], _memory(block.memory_space)
        aliased = position in self.declared.aliases
        writes = position in self.scanned.written or aliased or not self.scanned.is_complete
        keep = self.machine.data or space is MemorySpace.SMEM
        if keep and isinstance(array, ShapeDtypeStruct):
            raise OptionError(
                f"{self.kernel.name}: input {position} ({name}) "
                + (
                    "lives in SMEM and needs real values even with data=False"
                    if space is MemorySpace.SMEM
                    else "is a shape without data: give an array or data=False"
                )
            )
        shards: list[Any] = [None] * len(self.machine.cores)
        if keep:
            indices = self._shard_indices(self.declared.shard_in[position], shard)
            shards = [array[index].copy() if writes else array[index] for index in indices]
        in_hbm = MemoryRef(MemorySpace.HBM, shard.shape, shard.dtype)
        operand = self.call.add_buffer(name, in_hbm, shards, is_operand=True, initialised=True)
        self.operands.append(operand)
        return self._argument(name, operand, block, is_lent=not writes)

    def _output(self, name: str, position: int, shard: ShapeDtypeStruct, block: BlockSpec) -> BufferSpec:
        source = next((i for i, o in self.declared.aliases.items() if o == position), None)
        if source is not None:
            self.globals.append(None)
            self.operands.append(self.operands[source])
            # Without a grid, an aliased pair has one window as it has one array.
            return self._argument(
                name, self.operands[source], block, is_input=False,
                shares=None if self.declared.grid else self.streams.get(source),
            )  # fmt: skip
        shape = self.declared.out_globals[position]
        shards: list[Any] = [None] * len(self.machine.cores)
        if self.machine.data:
            whole = fresh_array(shape.shape, shape.dtype)
            self.globals.append(whole)
            seen: set[Any] = set()
            for device, index in enumerate(self._shard_indices(self.declared.shard_out[position], shard)):
                key = tuple(part.start for part in index)
                shards[device] = whole[index] if key not in seen else fresh_array(shard.shape, shard.dtype)
                seen.add(key)
        else:
            self.globals.append(None)
        in_hbm = MemoryRef(MemorySpace.HBM, shard.shape, shard.dtype)
        operand = self.call.add_buffer(name, in_hbm, shards, is_operand=True)
        self.operands.append(operand)
        return self._argument(name, operand, block, is_input=False)

    def _argument(
        self,
        name: str,
        operand: BufferSpec,
        block: BlockSpec,
        *,
        is_input: bool = True,
        is_lent: bool = False,
        shares: Stream | None = None,
    ) -> BufferSpec:
        """What the kernel gets for an array in HBM: itself, or a window through which its blocks pass."""
        index_map = as_index_map(self.kernel.name, operand, block, self.declared.grid)
        space = _memory(block.memory_space)
        if space is MemorySpace.HBM:
            return operand
        shape = operand.shape if block.block_shape is None else block.block_shape
        window = MemoryRef(space, tuple(size for size in shape if size is not None), operand.dtype)
        stream = Stream(self.call, name, operand, window, block_dims(shape), index_map, is_lent=is_lent, shares=shares)
        if is_input:
            self.streams[len(self.operands) - 1] = stream
        add_stream(self.pipeline.inputs if is_input else self.pipeline.outputs, stream)
        return stream.spec

    def _shard_indices(self, dims: tuple[tuple[str, ...], ...], shard: ShapeDtypeStruct) -> list[tuple[slice, ...]]:
        """For each device the part of a global array it holds."""
        axes = list(self.axis_sizes)
        found = []
        for coords in product(*(range(size) for size in self.sizes)):
            index = []
            for names, extent in zip(dims, shard.shape, strict=True):
                block = 0
                for name in names:
                    block = block * self.axis_sizes[name] + coords[axes.index(name)]
                index.append(slice(block * extent, (block + 1) * extent))
            found.append(tuple(index))
        return found

    @property
    def needs_entry_barrier(self) -> bool:
        """Whether the compiler would put a barrier of all devices at the start."""
        return self.scanned.is_remote and not self.scanned.uses_barrier and len(self.machine.cores) > 1

    # -- running --------------------------------------------------------------------------------

    def launch(self, before: Sequence[Program] = ()) -> None:
        """Put a greenlet with the kernel on each core; the calls ``before`` it come first."""
        context = contextvars.copy_context()
        hub = greenlet.getcurrent()
        for core in self.machine.cores:
            bodies = []
            for program in (*before, self):
                executor = Executor(program, core, hub.switch)
                self.executors.append(executor)
                bodies.append(program._body(executor))
            thread = greenlet.greenlet(_in_turn(bodies))
            thread.gr_context = context.copy()
            self.greenlets.append(thread)
            self.machine.launch(core, thread.switch)

    def close(self) -> None:
        """End the greenlets of a run that stopped early, whatever their clean-up code does or raises."""
        for executor in self.executors:
            executor.suspend = _end
        for thread in self.greenlets:
            while thread:
                with contextlib.suppress(Exception):
                    thread.throw(greenlet.GreenletExit)
        for executor in self.executors:
            executor.np = None  # which holds the executor
        self.greenlets.clear()
        self.executors.clear()

    def _body(self, executor: Executor) -> Callable[[], None]:
        core = executor.core
        refs = [self.ref_to(item) for item in self.arguments]
        grid = self.declared.grid
        control = control_ps(self.machine.timing, len(grid)) if grid else 0

        def step(index: tuple[int, ...]) -> Iterable[None]:
            executor.grid_index = index
            try:
                self.kernel.fn(*refs)
            except StopIteration as error:  # no generator lets it through
                raise _StoppedError(error) from None
            executor.end_piece()
            return ()  # it suspends the greenlet itself

        def run() -> None:
            try:
                activate(executor)  # in the greenlet's own context, which ends with it
                self.call.enter(core.device)
                if self.needs_entry_barrier:
                    for _ in entry_barrier(core, self.pipeline.site):
                        executor.suspend()
                for _ in self.pipeline.run(core, executor, grid, step, control):
                    executor.suspend()
                self.machine.exit(core)
            except _StoppedError as error:
                raise error.args[0] from None
            except KeyboardInterrupt as error:
                line = user_line(error.__traceback__, self.code.co_filename)
                raise InterruptedRunError(self.machine.livelock_finding("interrupted", core, line)) from error
            except FindingError as error:
                where = user_line(error.__traceback__) or _definition(self.kernel.fn)
                raise placed(error, self.machine, core, where, executor.grid_index) from None

        return run

    def ref_to(self, item: BufferSpec | SemaphoreSpec) -> Ref | SemaphoreRef:
        """The ref, shared by all devices, to a buffer or to semaphores of this call."""
        found = self._refs.get(item)
        if found is None:
            made = Ref(item.whole) if isinstance(item, BufferSpec) else SemaphoreRef(item, 0, item.shape)
            found = self._refs[item] = made
        return found

    # -- the end --------------------------------------------------------------------------------

    def unused_descriptors(self) -> list[Finding]:
        """Lines that make descriptors of which no device ever used one."""
        return [
            Finding(
                Kind.UNUSED_DESCRIPTOR,
                "the descriptor made here was never started or waited for, on any device.",
                where=where_of(use.site),
            )
            for use in self.descriptor_uses.values()
            if not use.is_used
        ]

    def outputs(self) -> tuple[Any, ...] | None:
        """GLOBAL output arrays."""
        if not self.machine.data:
            return None
        count = len(self.inputs)
        made = []
        for position, whole in enumerate(self.globals):
            if whole is None:
                whole = self._assemble(position)
            name = self.names[count + position] if count + position < len(self.names) else f"output {position}"
            if holds_sentinel(whole):
                shards = self._shard_indices(self.declared.shard_out[position], self.declared.out_shards[position])
                devices = [device for device, index in enumerate(shards) if holds_sentinel(whole[index])]
                self.machine.report(
                    Finding(
                        Kind.UNINITIALISED,
                        f"output {name} of {device_ranges(self.machine, devices)} holds memory that nobody ever wrote "
                        "(shown as NaN or a sentinel).",
                        device=self.machine.coordinates(devices[0]),
                        argument=name,
                    )
                )
            made.append(whole)
        return tuple(made)

    def _assemble(self, position: int) -> np.ndarray[Any, Any]:
        """The global array of an output that shares its buffer with an input."""
        shape = self.declared.out_globals[position]
        outer = self.operands[len(self.inputs) + position]
        whole = np.empty(shape.shape, shape.dtype)
        indices = self._shard_indices(self.declared.shard_out[position], self.declared.out_shards[position])
        for device in reversed(range(len(indices))):
            whole[indices[device]] = self.call.buffers[device][outer.position].array
        return whole


def _as_input(array: Any, position: int) -> Any:
    """An array or its shape, 64-bit types made 32-bit as in JAX."""
    if not isinstance(array, ShapeDtypeStruct):
        if hasattr(array, "shape") and hasattr(array, "dtype") and not hasattr(array, "__array__"):
            array = ShapeDtypeStruct(array.shape, array.dtype)
        else:
            array = np.asarray(array)
    if array.dtype == object:
        raise OptionError(f"input {position} is no array of numbers: {array!r:.60}")
    narrow = {"float64": "float32", "int64": "int32", "uint64": "uint32"}.get(array.dtype.name)
    if narrow is None:
        return array
    return ShapeDtypeStruct(array.shape, narrow) if isinstance(array, ShapeDtypeStruct) else array.astype(narrow)


def _in_turn(bodies: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """One after the other."""

    def run() -> None:
        for body in bodies:
            body()

    return run if len(bodies) > 1 else bodies[0]


class _StoppedError(Exception):
    """The kernel raised ``StopIteration``."""


def _end() -> NoReturn:
    """Instead of waiting, once a run has ended."""
    raise greenlet.GreenletExit


def _memory(space: MemorySpace | None) -> MemorySpace:
    return MemorySpace.HBM if space is MemorySpace.ANY or space is None else space


def _definition(fn: Any) -> Where | None:
    code = code_of(fn)
    return Where(code.co_filename, code.co_firstlineno) if code is not None else None


def user_line(traceback: TracebackType | None, file: str | None = None) -> Where | None:
    """The innermost line of a traceback that is not tpusim's, or that is in ``file``."""
    found = None
    while traceback is not None:
        name = traceback.tb_frame.f_globals.get("__name__", "")
        if not name.startswith("tpusim.") if file is None else traceback.tb_frame.f_code.co_filename == file:
            found = Where(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found
