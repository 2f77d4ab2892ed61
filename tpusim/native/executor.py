"""One core executing a native kernel: the backend behind the kernel language on the simulated machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.declare import parameter_names
from tpusim.descriptors import user_site
from tpusim.errors import NotModelledError, OptionError
from tpusim.machine.core import Core
from tpusim.machine.memory import Region, sentinel
from tpusim.native.operands import static, storable
from tpusim.native.refs import DynamicSlice, require_vector_memory
from tpusim.native.transfers import Transfers
from tpusim.specs import is_scratch_type
from tpusim.values import Array, Scalar
from tpusim.values.scalars import printed
from tpusim.values.simulated_numpy import SimulatedNumpy

if TYPE_CHECKING:
    from tpusim.native.simulate import Program


class Executor(Transfers):
    """Executes one device's kernel; implements :class:`tpusim.backend.Backend`."""

    __slots__ = ("cores", "np", "scope_path")

    def __init__(self, program: Program, core: Core, suspend: Callable[[], object]) -> None:
        super().__init__(program, core, suspend)
        self.cores = core.machine.cores
        self.scope_path: tuple[Any, ...] = ()
        self.np: Any = SimulatedNumpy(self, self.machine.data)

    def ds(self, start: Any, size: int, stride: int | None) -> DynamicSlice:
        """A slice with its start resolved."""
        if type(start) is Scalar:
            start = start.value
        if type(start) is not int or type(size) is not int:
            start, size = static(start, "ds start"), static(size, "ds size")
        return DynamicSlice((start, size)) if stride is None or stride == 1 else DynamicSlice((start, size, stride))

    # -- memory ---------------------------------------------------------------------------------

    def load(self, region: Region) -> Any:
        """The value of a region now."""
        require_vector_memory(region, "load")
        site = user_site()
        buffer = self.core.buffers[region.spec.position]
        if not buffer.alive:
            self.machine.report_gone(self.core, "load of", region, site)
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
        site = user_site()
        if not buffer.alive:
            self.machine.report_gone(self.core, "store to", region, site)
        self.core.store(buffer, region, site)
        if region.shape:
            self._piece = self._piece.access(region.spec.dtype, region.shape, True)
        data = storable(value, region)
        if buffer.array is not None and data is not None:
            buffer.array[region.index] = data

    def charge(self, op: str, dtype: np.dtype[Any], shapes: Any, out_shape: Any) -> None:
        """Charge one array operation to the core."""
        self._piece, cost = self._piece.operation(op, dtype, shapes, out_shape)
        self.core.compute(cost, op, user_site())
        if self._piece.is_long:
            self.end_piece()

    # -- control --------------------------------------------------------------------------------

    def when(self, condition: Any, body: Callable[[], None]) -> None:
        """Run ``body`` if the condition holds."""
        if condition.value if type(condition) is Scalar else static(condition, "condition"):
            self.end_piece()
            body()
        self.end_piece()

    def fori_loop(self, lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any, unroll: Any) -> Any:
        """Run the loop; each index is a tracked scalar."""
        carry = init
        is_weak = type(lower) is int and type(upper) is int  # as in jax.lax.fori_loop
        for index in range(static(lower, "lower"), static(upper, "upper")):
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
        self.core.delay(static(nanos, "nanos") * 1000, user_site())

    def debug_print(self, fmt: str, args: tuple[Any, ...]) -> None:
        """Log a line with device and time."""
        if self._piece is not self._idle:
            self.end_piece()
        if not self.core.join():
            self.suspend()
        values = [printed(value) for value in args]
        text = fmt.format(*values) if "{" in fmt else " ".join([fmt, *map(str, values)])
        self.program.session.printed_by(self.core, text)
