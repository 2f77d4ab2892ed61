"""One call of a kernel on all devices: its buffers and semaphores, and how long they live.

Every device runs the same program, so each buffer and semaphore has a position that is the same on all
of them; addressing a peer's is two list look-ups.  Buffers of a scope (``run_scoped``) have storage
fixed by scope and index, so a remote copy can name a peer's even before the peer enters the scope;
whether it was allowed to is a question of lifetime.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from tpusim.findings import Finding, Kind, Where
from tpusim.machine.memory import Buffer, BufferSpec, SpecCache, fresh_array, memory_table, sentinel
from tpusim.machine.semaphores import Semaphore, SemaphoreSpec
from tpusim.specs import MemoryRef, MemorySpace, ScratchType, SemaphoreType
from tpusim.units import format_bytes

if TYPE_CHECKING:
    from tpusim.machine.machine import Machine


class Scope:
    """Buffers and semaphores of one ``run_scoped``: their positions in every device's tables."""

    __slots__ = ("chain", "items", "padded")

    def __init__(self, outer: Scope | None) -> None:
        self.items: list[BufferSpec | SemaphoreSpec] = []
        self.chain: tuple[Scope, ...] = (self, *(outer.chain if outer is not None else ()))
        self.padded: dict[MemorySpace, int] = dict(outer.padded) if outer is not None else {}


class Call:
    """Buffers and semaphores of one kernel call, on every device of the machine."""

    def __init__(
        self,
        machine: Machine,
        name: str,
        vmem_limit_bytes: int | None = None,
        where: Where | None = None,
        known: SpecCache | None = None,
    ) -> None:
        self.machine = machine
        self.name = name
        self.where = where
        self.specs: list[BufferSpec] = []
        self.scratch: list[BufferSpec] = []
        """Those of them that hold nothing when their call or scope begins, and never what a pipeline brings."""
        self._known = None if known is None else known.on(machine.chip)
        self.semaphore_specs: list[SemaphoreSpec] = []
        devices = len(machine.cores)
        self.buffers: list[list[Buffer]] = [[] for _ in range(devices)]
        self.semaphores: list[list[list[Semaphore]]] = [[] for _ in range(devices)]
        self.scopes: dict[Any, Scope] = {}
        self.limits = machine.capacities(vmem_limit_bytes)
        self._used: dict[MemorySpace, int] = dict.fromkeys(self.limits, 0)
        self._semaphores = 0
        self._over: list[tuple[MemorySpace, Scope | None]] = []
        """Memories that were found too small since :meth:`check_capacity`, and in which scope."""
        self.high_water: dict[MemorySpace, int] = dict.fromkeys(self.limits, 0)
        self.begin_ps: int | None = None
        """When the first device entered it."""
        self.end_ps = 0
        """When the last device that has left it so far left."""

    def add_buffer(
        self,
        name: str,
        ref: MemoryRef,
        arrays: Sequence[Any] | None = None,
        *,
        is_operand: bool = False,
        initialised: bool = False,
        scope: Scope | None = None,
        slots: int = 1,
    ) -> BufferSpec:
        """Give every device a buffer; ``arrays`` (one a device) hold its data, default fresh memory.

        ``slots``: how many of it a device has; the caller makes the others and exchanges them in the table.
        """
        machine = self.machine
        spec = self._spec(name, ref, is_operand, initialised, scope, slots)
        self.specs.append(spec)
        self._occupy(spec, scope)
        keep = (machine.data or spec.space is MemorySpace.SMEM) and not (self._over and machine.raises)
        if spec.space is not MemorySpace.HBM or arrays is None:
            machine.has_blanks = True
        for device, table in enumerate(self.buffers):
            fresh = fresh_array(spec.shape, spec.dtype) if keep and arrays is None else None
            array = fresh if arrays is None else arrays[device]
            buffer = Buffer(spec, device, array)
            buffer.alive = scope is None
            table.append(buffer)
        if machine.group > 1 and scope is None:
            self._share(spec)
        return spec

    def _share(self, spec: BufferSpec) -> None:
        """Give the cores that have a memory in common one buffer in it: HBM a device, shared VMEM a SparseCore."""
        machine = self.machine
        if spec.space is MemorySpace.HBM:
            size = machine.group
        elif spec.space is MemorySpace.VMEM_SHARED:
            size = prod(machine.cores_of_device[1:])
        else:
            return
        for device, table in enumerate(self.buffers):
            table[spec.position] = self.buffers[device - device % size][spec.position]

    def _spec(
        self, name: str, ref: MemoryRef, is_operand: bool, initialised: bool, scope: Scope | None, slots: int
    ) -> BufferSpec:
        """The static side of the next buffer, perhaps of an earlier run."""
        known = self._known if scope is None else None
        key = (len(self.specs), name, ref, is_operand, initialised, slots)
        found = known.get(key) if known is not None else None
        if found is None:
            found = BufferSpec(
                len(self.specs), name, ref.space, ref.shape, ref.dtype, self.machine.tiling,
                is_operand=is_operand, initialised=initialised, scope=scope, slots=slots,
            )  # fmt: skip
            if known is not None:
                known[key] = found
        return found

    def add_semaphores(
        self, name: str, kind: SemaphoreType, shape: tuple[int, ...], *, scoped: bool = False
    ) -> SemaphoreSpec:
        """Give every device an array of semaphores, all zero."""
        spec = SemaphoreSpec(len(self.semaphore_specs), name, kind, shape, is_scoped=scoped)
        self.semaphore_specs.append(spec)
        self._semaphores += spec.size
        limit = self.machine.timing.chip.semaphores.count.integer
        if self._semaphores > limit >= self._semaphores - spec.size:
            rows = "\n".join(f"  {item.name:<24} {item.size}" for item in self.semaphore_specs)
            message = (
                f"{self.name} uses {self._semaphores} semaphores, {self._semaphores - limit} too many; "
                f"a core of {self.machine.chip.name} has {limit}.\n{rows}"
            )
            self.machine.report(Finding(Kind.CAPACITY, message, where=None if scoped else self.where))
        for device, table in enumerate(self.semaphores):
            row = [Semaphore(spec, device, flat) for flat in range(spec.size)]
            for semaphore in row:
                semaphore.alive = not scoped
            table.append(row)
        return spec

    def scope(self, key: Any, outer: Scope | None, names: Sequence[str], types: Sequence[ScratchType]) -> Scope:
        """The scope of a key: the same storage for every device and every time it is entered."""
        found = self.scopes.get(key)
        if found is None:
            found = self.scopes[key] = Scope(outer)
            for name, declared in zip(names, types, strict=True):
                found.items.append(self._declare(name, declared, found))
            self.check_capacity()
        return found

    def enter_scope(self, scope: Scope, device: int) -> None:
        """The scope's buffers come to life, holding nothing, and its semaphores."""
        for item in scope.items:
            if isinstance(item, BufferSpec):
                buffer = self.buffers[device][item.position]
                buffer.alive = buffer.fresh = True
                if buffer.array is not None:
                    buffer.array[...] = sentinel(item.dtype)
            else:
                for semaphore in self.semaphores[device][item.position]:
                    semaphore.alive = True
        for hook in self.machine.hooks.scope_entered:
            hook(self.machine.cores[device], *self._owned(scope, device))

    def leave_scope(self, scope: Scope, device: int) -> None:
        """They cease to be; a copy still in flight on one of them is a finding."""
        for item in scope.items:
            if isinstance(item, BufferSpec):
                buffer = self.buffers[device][item.position]
                for copy in (*buffer.writing, *buffer.reading):
                    if copy.issued_ps > self.machine.cores[device].now:
                        continue  # it comes later and finds the scope gone
                    ends = f"the run_scoped of {item.name} ends on device {self.machine.coordinates(device)}"
                    self.machine.report_outside_lifetime(copy, ends)
                buffer.alive = False
            else:
                for semaphore in self.semaphores[device][item.position]:
                    semaphore.alive = False
        for hook in self.machine.hooks.scope_left:
            hook(self.machine.cores[device], *self._owned(scope, device))

    def _owned(self, scope: Scope, device: int) -> tuple[list[Buffer], list[Semaphore]]:
        """A device's buffers and semaphores of a scope."""
        buffers = [self.buffers[device][item.position] for item in scope.items if isinstance(item, BufferSpec)]
        rows = [self.semaphores[device][item.position] for item in scope.items if isinstance(item, SemaphoreSpec)]
        return buffers, [semaphore for row in rows for semaphore in row]

    def _declare(self, name: str, declared: ScratchType, scope: Scope | None) -> BufferSpec | SemaphoreSpec:
        if isinstance(declared, MemoryRef):
            self.scratch.append(self.add_buffer(name, declared, scope=scope))
            return self.scratch[-1]
        kind, shape = (declared, ()) if isinstance(declared, SemaphoreType) else (declared.kind, declared.shape)
        return self.add_semaphores(name, kind, shape, scoped=scope is not None)

    def add_scratch(self, name: str, declared: ScratchType) -> BufferSpec | SemaphoreSpec:
        """A scratch buffer or semaphore array that lives as long as the call."""
        return self._declare(name, declared, None)

    def _occupy(self, spec: BufferSpec, scope: Scope | None) -> None:
        space = spec.space
        used = self._used if scope is None else scope.padded
        used[space] = used.get(space, 0) + spec.padded_bytes
        total = used[space] if scope is None else used[space] + self._used[space]
        self.high_water[space] = max(self.high_water[space], total)
        if total - spec.padded_bytes <= self.limits[space][0] < total:  # else it fits, or something is in there already
            self._over.append((space, scope))

    def check_capacity(self) -> None:
        """Report the memories that what was declared does not fit in; called when a call or a scope is complete."""
        over, self._over = self._over, []
        for space, scope in over:
            self._report_capacity(space, scope)

    def _report_capacity(self, space: MemorySpace, scope: Scope | None) -> None:
        total = self._used[space] + (0 if scope is None else scope.padded[space])
        limit, what = self.limits[space]
        rows = [
            (
                f"{item.name} ({item.slots} buffers)" if item.slots > 1 else item.name,
                item.space,
                item.shape,
                item.dtype,
                item.padded_bytes,
            )
            for item in self.specs
            if item.space is space and (item.scope is None or (scope is not None and item.scope in scope.chain))
        ]
        message = (
            f"{self.name} needs {format_bytes(total)} of {space.name}, {format_bytes(total - limit)} too much; "
            f"{what}.\nWith tile padding:\n{memory_table(rows)}"
        )
        self.machine.report(Finding(Kind.CAPACITY, message, where=self.where if scope is None else None))

    def enter(self, device: int) -> None:
        """Begin of the call on a device."""
        core = self.machine.cores[device]
        core.call = self
        core.buffers = self.buffers[device]
        core.semaphores = self.semaphores[device]
        core.done = False
        core.entered_ps = core.now
        if self.begin_ps is None or core.now < self.begin_ps:
            self.begin_ps = core.now
        for hook in self.machine.hooks.entered:
            hook(core)
