"""Kernel calls of a captured program: lowered once, then entered by each device in its own time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from types import TracebackType
from typing import Any

import numpy as np

from tpusim.declare import unused_collective_id
from tpusim.errors import FindingError
from tpusim.findings import Kind, Where
from tpusim.launch import entry_barrier, placed
from tpusim.machine.calls import Scope
from tpusim.machine.core import Core
from tpusim.machine.machine import Machine
from tpusim.machine.memory import BufferSpec, SpecCache, empty_array, fresh_array
from tpusim.machine.semaphores import SemaphoreSpec
from tpusim.machine.timing import Timing
from tpusim.pallas import control_rules, internals, memory_rules, random_rules, sparse_rules, sync_rules
from tpusim.pallas.blank import Blank, is_blank
from tpusim.pallas.cores import check_arguments, check_axes, check_machine, run_on_cores, sparse_prices
from tpusim.pallas.frame import Frame
from tpusim.pallas.handover import HandedArrays, HandedSemaphores, outlive
from tpusim.pallas.internals.kernels import KernelCall, kernel_call
from tpusim.pallas.lower import Lowering
from tpusim.pallas.lowered import Lowered
from tpusim.pallas.pipeline import Operands, lower_maps, memory
from tpusim.pallas.work import Work
from tpusim.pipeline import control_ps
from tpusim.specs import MemorySpace, SemaphoreArray

RULES = {
    **memory_rules.RULES, **sync_rules.RULES, **control_rules.RULES, **random_rules.RULES, **sparse_rules.RULES,
}  # fmt: skip


class CapturedKernel:
    """A ``pallas_call`` equation, lowered for one mesh; shared by all devices and all its calls."""

    def __init__(self, eqn: Any, axis_sizes: dict[str, int], data: bool) -> None:
        self.contents = kernel_call(eqn)
        # Traced by itself, a call has no line of the user's; then it is known by its kernel's.
        self.where = internals.where_of_equation(eqn) or internals.where_of_function(self.contents.jaxpr)
        self.axis_sizes = axis_sizes
        """The mesh of devices."""
        self.data = data
        contents = self.contents
        check_axes(axis_sizes, contents.cores, eqn)
        self.all_axes = {**axis_sizes, **contents.cores}
        names = argument_names(contents.jaxpr)
        self.maps = lower_maps(contents, names, axis_sizes, RULES, self.where)
        self.lowered: Lowered = Lowering(
            contents.jaxpr,
            contents.name,
            names,
            self.all_axes,
            data,
            RULES,
            holdable=holdable(contents),
            aliases={contents.num_prefetch + contents.num_inputs + out: source for source, out in contents.aliases},
            cores=contents.cores,
            is_sparse=contents.is_sparse,
            default=contents.default,
            grid=contents.grid,
        ).out
        if contents.cores:
            check_arguments(self, eqn)
        self.bind = self.lowered.compile()
        self.specs = SpecCache()
        """Buffers of the calls so far."""
        self._segments: list[Any] | None = None
        self._bound: tuple[list[Any], list[int], Any] = ([], [], None)

    def segments(self) -> list[Any]:
        """The compiled array segments, made when first needed."""
        if self._segments is None:
            # Without data only what follows from scalars is computed: the rest is never asked for.
            self._segments = [s.function() if self.data or s.is_known else None for s in self.lowered.segments]
        return self._segments

    def program(
        self,
        items: Sequence[BufferSpec | SemaphoreSpec],
        timing: Timing,
        share: int,
        is_exact: bool,
        ranges: dict[int, tuple[int, int]],
    ) -> Callable[[Frame], Iterable[None]]:
        """What runs on each device, for these buffers and semaphores; the last one again where they are the same."""
        lowered = self.lowered
        wholes = [item.whole if isinstance(item, BufferSpec) else None for item in items]
        positions = [item.position for item in items]
        known, at, found = self._bound
        if found is None or positions != at or any(new is not old for new, old in zip(wholes, known, strict=True)):
            if self.contents.is_sparse:
                prices = sparse_prices(lowered.works, timing)
            else:
                prices = _prices(lowered.works, timing, share, is_exact, ranges)
            found = self.bind(positions, wholes, self.segments(), lowered.sites, lowered.consts, prices)
            self._bound = wholes, positions, found
        return found  # type: ignore[no-any-return]  # made by our own source

    def where_in_source(self, traceback: TracebackType | None) -> Where | None:
        """The user's line behind the innermost generated line of a traceback."""
        sources = {lowered.filename: lowered for lowered in (self.lowered, *(m.lowered for m in self.maps if m))}
        found = None
        while traceback is not None:
            lowered = sources.get(traceback.tb_frame.f_code.co_filename)
            if lowered is not None:
                found = lowered.where_at(traceback.tb_lineno)
            traceback = traceback.tb_next
        return found or self.where


def argument_names(jaxpr: Any) -> list[str]:
    """Names of the kernel's arguments, as its author wrote them where JAX kept them."""
    names = getattr(jaxpr.debug_info, "arg_names", None) or ()
    found = [str(name) if name else f"arg{i}" for i, name in enumerate(names)]
    return (found + [f"arg{i}" for i in range(len(found), len(jaxpr.invars))])[: len(jaxpr.invars)]


def holdable(contents: KernelCall) -> dict[int, bool]:
    """Arguments whose arrays may be values instead of storage, and whether also where the kernel writes them.

    Not those of an aliased pair: their window may be one.
    """
    outputs = contents.num_prefetch + contents.num_inputs
    aliased = {source for source, _ in contents.aliases} | {outputs + target for _, target in contents.aliases}
    count = len(contents.jaxpr.invars)
    return {slot: slot >= outputs for slot in range(contents.num_prefetch, count) if slot not in aliased}


def _prices(
    works: Sequence[Work], timing: Timing, share: int, is_exact: bool, ranges: dict[int, tuple[int, int]]
) -> list[int]:
    """Picoseconds of each piece of work beside the issue of its accesses; ``ranges`` gets those of estimates."""
    if is_exact:
        from tpusim.pallas.exact import exact_cycles

        cycles = exact_cycles(works, timing.costs)
        return [timing.cycles((n - work.accesses) / share) for n, work in zip(cycles, works, strict=True)]
    prices = []
    for work in works:
        low, mid, high = (timing.cycles((n - work.accesses) / share) for n in work.estimate(timing.costs))
        ranges[mid] = (low, high)
        prices.append(mid)
    return prices


class KernelInstance:
    """One call of a captured kernel on the machine: every device enters and leaves it on its own.

    ``devices``: how many do, all of the machine by default.
    """

    def __init__(
        self,
        kernel: CapturedKernel,
        machine: Machine,
        log: Callable[[Core, str], None],
        handed: HandedArrays | None = None,
        devices: int | None = None,
        is_exact: bool = False,
    ) -> None:
        self.kernel = kernel
        self.devices = len(machine.cores) // machine.group if devices is None else devices
        self.handed = handed or HandedArrays()
        self.left = 0
        self.machine = machine
        self.log = log
        contents, lowered, timing = kernel.contents, kernel.lowered, machine.timing
        if contents.cores or (lowered.is_remote and machine.group > 1):
            check_machine(kernel, machine)
        first_output = contents.num_prefetch + contents.num_inputs
        hands_over = any(
            kind.semaphore is not None for _, kind in lowered.arguments[first_output:][: contents.num_outputs]
        )
        known = None if hands_over else kernel.specs
        self.call = call = machine.new_call(contents.name, contents.vmem_limit_bytes, kernel.where, known)
        if contents.collective_id is not None and not lowered.uses_barrier:
            message = unused_collective_id(contents.name, contents.collective_id)
            machine.note(Kind.COLLECTIVE_ID, message, None, kernel.where)
        self.operands = operands = Operands(kernel, call, timing)
        if hands_over:
            outlive(call, [*operands.semaphores.values(), *(array for array in operands.arrays if array is not None)])
        items: list[BufferSpec | SemaphoreSpec] = list(self.operands.arguments)
        for name, kind in lowered.arguments[len(items) :]:
            declared = memory(kind) if kind.semaphore is None else SemaphoreArray(kind.semaphore, kind.shape)
            items.append(call.add_scratch(name, declared))
        call.check_capacity()
        for slot, shape in lowered.held.items():
            item = items[slot]
            if slot >= len(self.operands.arguments) and isinstance(item, BufferSpec):
                blank = fresh_array(shape, item.dtype)  # nobody writes it in place
                for table in call.buffers:
                    table[item.position].array = blank
        self.scopes: list[Scope] = []
        for number, scope in enumerate(lowered.scopes):
            outer = self.scopes[scope.outer] if scope.outer is not None else None
            made = call.scope((number,), outer, scope.names, scope.types)
            self.scopes.append(made)
            items += made.items
        wants_barrier = lowered.is_remote and not lowered.uses_barrier and not contents.skip_device_barrier
        self.needs_entry_barrier = wants_barrier and self.devices > 1
        for table in call.buffers:
            for buffer in table:
                buffer.alive = False
        # Two cores that act as one device share the steps of a parallel dimension: each takes half of the time.
        cores = timing.chip.core.tensorcores_per_chip.integer // machine.slice.devices_per_chip
        self.share = cores if any(contents.parallel) else 1
        self.control_ps = control_ps(timing, len(contents.grid), self.share)
        self.program = kernel.program(items, timing, self.share, is_exact, machine.compute_ranges)
        self.stride = machine.group // prod(contents.cores.values())
        self.scoped = {item for scope in self.scopes for item in scope.items}

    def begin(self, core: Core, values: Sequence[Any], into: Sequence[Any] = ()) -> tuple[list[Any], Iterator[None]]:
        """The kernel on one device: operand arrays in, result arrays out (blank without data), and its execution.

        That fills the arrays; it yields where the core must be suspended.  ``into``: arrays in which results shall be,
        ``None`` for those that may be anywhere.
        """
        bounds = iter(values)
        grid = tuple(int(next(bounds)) if bound is None else bound for bound in self.kernel.contents.grid)
        outputs = self._admit(core.device, list(bounds), into)
        return outputs, self._on_cores(core) if self.kernel.contents.cores else self._run(core, grid)

    def _on_cores(self, core: Core) -> Iterator[None]:
        yield from run_on_cores(self, core)
        self._over()

    def _run(self, core: Core, grid: tuple[int, ...]) -> Iterator[None]:
        kernel, call, machine = self.kernel, self.call, self.machine
        contents, program = kernel.contents, self.program
        frame = self.frame(core)
        seen = [axis for axis in range(len(grid)) if axis not in contents.vmapped]
        frame.grid = tuple(grid[axis] for axis in seen)

        def body(step: tuple[int, ...]) -> Iterable[None]:
            frame.grid_index = step
            return program(frame)

        def mapped(step: tuple[int, ...]) -> Iterable[None]:
            frame.grid_index = tuple(step[axis] for axis in seen)
            return program(frame)

        try:
            call.enter(core.device)
            if self.needs_entry_barrier:
                yield from entry_barrier(core, kernel.where)
            run = mapped if contents.vmapped else body
            yield from self.operands.pipeline.run(core, frame, grid, run, self.control_ps)
            machine.exit(core)
            self._complete(core.device)
            self._over()
        except FindingError as error:
            where = kernel.where_in_source(error.__traceback__)
            raise placed(error, machine, core, where, frame.grid_index) from None

    def frame(self, core: Core) -> Frame:
        """The kernel as one core sees it."""
        kernel = self.kernel
        collective_id = kernel.contents.collective_id
        return Frame(core, self.call, self.scopes, kernel.all_axes, collective_id, self.log, self.stride)

    def _over(self) -> None:
        self.left += 1
        if self.is_over:
            self._release()

    @property
    def is_over(self) -> bool:
        """Whether every device has left it."""
        return self.left == self.devices

    def _release(self) -> None:
        """Forget the arrays that nothing can reach any more: a program may call a kernel often."""
        for table in self.call.buffers:
            for buffer in table:
                if not (buffer.writing or buffer.reading) and buffer.spec.home is None:
                    buffer.array = None

    def _complete(self, device: int) -> None:
        """A device has left: from now on its results are looked at."""
        for buffer in self.call.buffers[device]:
            if buffer.written is not None:
                self.machine.fill(buffer)

    def _admit(self, device: int, values: Sequence[Any], into: Sequence[Any]) -> list[Any]:
        """Give a device's buffers their arrays and life; the arrays of its outputs."""
        kernel, arrays = self.kernel, self.operands.arrays
        contents, lowered = kernel.contents, kernel.lowered
        buffers = self.call.buffers[device]
        for buffer in buffers:
            if buffer.spec not in self.scoped:
                buffer.alive = True
        aliased = {source for source, _ in contents.aliases}
        keep = self.machine.data
        hands_over = not self.operands.semaphores.keys().isdisjoint(range(len(values), len(arrays)))
        for position, value in enumerate(values):
            spec = arrays[position]
            if spec is None:
                value.put(self.call, self.operands.semaphores[position])
                continue
            if self.handed.put(value, self.call, spec):
                continue
            if not is_blank(value) and (keep or lowered.arguments[position][1].space is MemorySpace.SMEM):
                array = np.asarray(value).reshape(spec.shape)
                in_place = spec is self.operands.arguments[position] and position in lowered.written
                buffers[spec.position].array = array.copy() if position in aliased or in_place or hands_over else array
            if hands_over:
                self.handed.keep(value, self.call, spec)
        outputs: list[Any] = []
        places = iter(into)
        for position in range(len(values), len(arrays)):
            spec, place = arrays[position], next(places, None)
            if spec is None:
                outputs.append(HandedSemaphores(self.call, self.operands.semaphores[position]))
                continue
            buffer = buffers[spec.position]
            if keep and position not in self.operands.aliases:
                if hands_over or contents.cores or not self.machine.follows_writes:
                    self.machine.has_blanks = True
                    buffer.array = fresh_array(spec.shape, spec.dtype)
                else:
                    fits = place is not None and place.shape == spec.shape and place.dtype == spec.dtype
                    buffer.array = place if fits else empty_array(spec.shape, spec.dtype)
                    buffer.written = {}
            outputs.append(buffer.array if keep else Blank())
            if hands_over:
                self.handed.keep(outputs[-1], self.call, spec)
        return outputs
