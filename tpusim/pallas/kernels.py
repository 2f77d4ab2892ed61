"""Kernel calls of a captured program: lowered once, then entered by each device in its own time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from tpusim.errors import FindingError, NotModelledError
from tpusim.findings import Finding, Kind, Where
from tpusim.launch import Suspend, entry_barrier, move_windows, placed
from tpusim.machine.core import Core
from tpusim.machine.machine import Machine
from tpusim.machine.memory import BufferSpec, fresh_array
from tpusim.machine.semaphores import SemaphoreSpec
from tpusim.pallas import control_rules, internals, memory_rules, sync_rules
from tpusim.pallas.frame import Frame
from tpusim.pallas.lower import Lowered, Lowering
from tpusim.specs import MemoryRef, MemorySpace, SemaphoreArray, SemaphoreType

RULES = {**memory_rules.RULES, **sync_rules.RULES, **control_rules.RULES}


class CapturedKernel:
    """A ``pallas_call`` equation, lowered for one mesh; shared by all devices and all its calls."""

    def __init__(self, eqn: Any, axis_sizes: dict[str, int], data: bool) -> None:
        self.contents = internals.kernel_call(eqn)
        self.where = internals.where_of_equation(eqn)
        self.axis_sizes = axis_sizes
        self.data = data
        contents = self.contents
        if contents.grid or contents.num_prefetch or not all(block.is_whole for block in contents.blocks):
            raise NotModelledError(Finding(Kind.NOT_MODELLED, "a kernel with a grid or blocks", where=self.where))
        names = argument_names(contents.jaxpr)
        self.lowered: Lowered = Lowering(contents.jaxpr, contents.name, names, axis_sizes, data, RULES).out
        self.bind = self.lowered.compile()
        self._segments: list[Any] | None = None

    def segments(self) -> list[Any]:
        """The compiled array segments, made when first needed."""
        if self._segments is None:
            self._segments = [segment.function() for segment in self.lowered.segments]
        return self._segments

    def where_in_source(self, traceback: TracebackType | None) -> Where | None:
        """The user's line behind the innermost generated line of a traceback."""
        found = None
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == self.lowered.filename:
                found = self.lowered.where_at(traceback.tb_lineno)
            traceback = traceback.tb_next
        return found or self.where


def argument_names(jaxpr: Any) -> list[str]:
    """Names of the kernel's arguments, as its author wrote them where JAX kept them."""
    names = getattr(jaxpr.debug_info, "arg_names", None) or ()
    found = [str(name) if name else f"arg{i}" for i, name in enumerate(names)]
    return (found + [f"arg{i}" for i in range(len(found), len(jaxpr.invars))])[: len(jaxpr.invars)]


class KernelInstance:
    """One call of a captured kernel on the machine: every device enters and leaves it on its own."""

    def __init__(self, kernel: CapturedKernel, machine: Machine, log: Callable[[Core, str], None]) -> None:
        self.kernel = kernel
        self.machine = machine
        self.log = log
        contents = kernel.contents
        self.call = call = machine.new_call(contents.name, contents.vmem_limit_bytes, kernel.where)
        self.windows_in: list[tuple[BufferSpec, BufferSpec]] = []
        self.windows_out: list[tuple[BufferSpec, BufferSpec]] = []
        self.operands: list[BufferSpec] = []
        self.window_sem: SemaphoreSpec | None = None
        items: list[BufferSpec | SemaphoreSpec] = []
        aliases = {output: source for source, output in contents.aliases}
        for position, (name, kind) in enumerate(kernel.lowered.arguments):
            if position < contents.num_inputs + contents.num_outputs:
                source = aliases.get(position - contents.num_inputs)
                items.append(items[source] if source is not None else self._operand(position, name, kind))
            elif kind.semaphore is not None:
                items.append(call.add_scratch(name, SemaphoreArray(kind.semaphore, kind.shape)))
            else:
                items.append(call.add_scratch(name, _memory(kind)))
        self.scopes = []
        for number, scope in enumerate(kernel.lowered.scopes):
            outer = self.scopes[scope.outer] if scope.outer is not None else None
            made = call.scope((number,), outer, scope.names, scope.types)
            self.scopes.append(made)
            items += made.items
        windows = max(len(self.windows_in), len(self.windows_out))
        if windows:
            self.window_sem = call.add_semaphores("window", SemaphoreType.DMA, (windows,))
        lowered = kernel.lowered
        wants_barrier = lowered.is_remote and not lowered.uses_barrier and not contents.skip_device_barrier
        self.needs_entry_barrier = wants_barrier and len(machine.cores) > 1
        for table in call.buffers:
            for buffer in table:
                buffer.alive = False
        costs = machine.timing.costs
        prices = [machine.timing.cycles(segment.cycles(costs)) for segment in lowered.segments]
        positions = [item.position for item in items]
        wholes = [item.whole if isinstance(item, BufferSpec) else None for item in items]
        segments = kernel.segments() if kernel.data else [None] * len(prices)
        self.program = kernel.bind(positions, wholes, segments, lowered.sites, lowered.consts, prices)

    def _operand(self, position: int, name: str, kind: internals.RefType) -> BufferSpec:
        """An array argument: in HBM, with a window in VMEM or SMEM where the kernel wants it there."""
        block = self.kernel.contents.blocks[position]
        is_input = position < self.kernel.contents.num_inputs
        ref = _memory(kind)
        absent = [None] * len(self.machine.cores)
        in_hbm = MemoryRef(MemorySpace.HBM, tuple(int(d) for d in block.array.shape), ref.dtype)
        outer = self.call.add_buffer(name, in_hbm, absent, is_operand=True, initialised=is_input)
        self.operands.append(outer)
        if ref.space in (MemorySpace.HBM, MemorySpace.ANY):
            return outer
        inner = self.call.add_buffer(name, ref, is_operand=True)
        (self.windows_in if is_input else self.windows_out).append((outer, inner))
        return inner

    def run(self, core: Core, suspend: Suspend, values: Sequence[Any]) -> list[Any]:
        """The kernel on one device: operand arrays in, result arrays out (``None`` without data)."""
        kernel, call, machine = self.kernel, self.call, self.machine
        contents = kernel.contents
        outputs = self._admit(core.device, values)
        frame = Frame(core, call, self.scopes, kernel.axis_sizes, contents.collective_id, suspend, self.log)
        try:
            call.enter(core.device)
            if self.needs_entry_barrier:
                entry_barrier(core, suspend, kernel.where)
            move_windows(core, suspend, self.windows_in, self.window_sem, kernel.where)
            self.program(frame)
            back = [(inner, outer) for outer, inner in self.windows_out]
            move_windows(core, suspend, back, self.window_sem, kernel.where)
            machine.exit(core)
        except FindingError as error:
            raise placed(error, machine, core, kernel.where_in_source(error.__traceback__)) from None
        return outputs

    def _admit(self, device: int, values: Sequence[Any]) -> list[Any]:
        """Give a device's buffers their arrays and life; the arrays of its outputs."""
        kernel = self.kernel
        contents = kernel.contents
        buffers = self.call.buffers[device]
        scoped = {item for scope in self.scopes for item in scope.items}
        for buffer in buffers:
            if buffer.spec not in scoped:
                buffer.alive = True
        aliased = {source for source, _ in contents.aliases}
        written = {target for _, target in contents.aliases}
        keep = self.machine.data
        arrays = iter(self.operands)
        outputs: dict[int, Any] = {}
        for position in range(contents.num_inputs):
            spec = next(arrays)
            if keep or kernel.lowered.arguments[position][1].space is MemorySpace.SMEM:
                value = np.asarray(values[position]).reshape(spec.shape)
                buffers[spec.position].array = (
                    value.copy() if position in aliased or not value.flags.writeable else value
                )
        for source, target in contents.aliases:
            outputs[target] = buffers[self.operands[source].position].array
        for number in range(contents.num_outputs):
            if number in written:
                continue
            spec = next(arrays)
            if keep:
                outputs[number] = buffers[spec.position].array = fresh_array(spec.shape, spec.dtype)
        return [outputs.get(number) for number in range(contents.num_outputs)]


def _memory(kind: internals.RefType) -> MemoryRef:
    if kind.space is None or kind.dtype is None:
        raise NotModelledError("a buffer in a memory space that is not modelled")
    return MemoryRef(kind.space, kind.shape, kind.dtype)
