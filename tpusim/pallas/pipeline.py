"""The grid pipeline of a captured kernel: its index maps, lowered, and its streams on one machine.

An index map is a jaxpr over grid indices and scalar-prefetch refs.  It goes through the same lowering as a
kernel, so it becomes a Python function of ints that reads SMEM when the pipeline calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from tpusim.errors import InternalError, NotModelledError, finding_error
from tpusim.findings import Kind, Where
from tpusim.machine.calls import Call
from tpusim.machine.memory import BufferSpec
from tpusim.machine.semaphores import SemaphoreSpec
from tpusim.machine.timing import Timing
from tpusim.pallas import internals
from tpusim.pallas.internals.kernels import KernelCall
from tpusim.pallas.lower import Lowering, Rule
from tpusim.pallas.lowered import Lowered
from tpusim.pipeline import IndexMap, Pipeline, Stream, add_stream
from tpusim.specs import MemoryRef, MemorySpace

if TYPE_CHECKING:
    from tpusim.pallas.kernels import CapturedKernel

IN_HBM = (MemorySpace.HBM, MemorySpace.ANY)


class LoweredMap:
    """The index map of one block, lowered for one mesh."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self._bind = lowered.compile()

    def on(self, scalars: Sequence[BufferSpec], timing: Timing) -> IndexMap:
        """The map of one call, whose scalar-prefetch operands are ``scalars``."""
        lowered = self.lowered
        functions = [segment.function() for segment in lowered.segments]
        prices = [timing.cycles(work.estimate(timing.costs).mid) for work in lowered.works]
        positions, wholes = [spec.position for spec in scalars], [spec.whole for spec in scalars]
        found: IndexMap = self._bind(positions, wholes, functions, lowered.sites, lowered.consts, prices)
        return found


def lower_maps(
    contents: KernelCall,
    names: Sequence[str],
    axis_sizes: dict[str, int],
    rules: dict[str, Rule],
    where: Where | None,
) -> list[LoweredMap | None]:
    """The index map of each block, ``None`` for one that is the whole array; raises for what is not modelled."""
    scalars = list(names[: contents.num_prefetch])
    maps: list[LoweredMap | None] = []
    for number, block in enumerate(contents.blocks, contents.num_prefetch):
        name = names[number]
        if block.refused:
            raise not_modelled(f"{block.refused} (argument {name})", where)
        if block.index_map is None:
            maps.append(None)
            continue
        space = internals.ref_type(contents.jaxpr.invars[number].aval).space
        if space in IN_HBM:
            raise not_modelled(f"a block of argument {name} in memory space {space.name}", where)
        title = f"{contents.name}, index map of {name}"
        lowering = Lowering(block.index_map, title, scalars, axis_sizes, True, rules, len(contents.grid))
        maps.append(LoweredMap(lowering.out))
    return maps


def not_modelled(what: str, where: Where | None) -> NotModelledError:
    """tpusim has no model for a declaration of the call at ``where``."""
    error = finding_error(Kind.NOT_MODELLED, what, where=where)
    assert isinstance(error, NotModelledError)  # noqa: S101  # by its kind
    return error


class Operands:
    """The array arguments of one call on the machine.

    ``arrays`` are in HBM, one for each operand (scalar prefetch first), then one for each output, which is
    the operand's where the two are aliased, and ``None`` for semaphores.  ``arguments`` is what the kernel
    gets for each.
    """

    def __init__(self, kernel: CapturedKernel, call: Call, timing: Timing) -> None:
        self.kernel = kernel
        self.call = call
        self.timing = timing
        contents = kernel.contents
        self.arrays: list[BufferSpec | None] = []
        self.arguments: list[BufferSpec | SemaphoreSpec] = []
        self.semaphores: dict[int, SemaphoreSpec] = {}
        self.pipeline = Pipeline(kernel.where)
        self.aliases = {contents.num_prefetch + contents.num_inputs + out: source for source, out in contents.aliases}
        self.streams: dict[int, Stream] = {}
        for position in range(contents.num_prefetch + contents.num_inputs + contents.num_outputs):
            self._add(position)

    def array(self, position: int) -> BufferSpec:
        """The array of an argument that has one."""
        found = self.arrays[position]
        if found is None:
            raise InternalError(f"argument {position} is a semaphore")
        return found

    def _add(self, position: int) -> None:
        kernel = self.kernel
        contents, lowered = kernel.contents, kernel.lowered
        name, kind = lowered.arguments[position]
        first_output = contents.num_prefetch + contents.num_inputs
        block = contents.blocks[position - contents.num_prefetch] if position >= contents.num_prefetch else None
        source = self.aliases.get(position)
        if kind.semaphore is not None:
            given = self.semaphores.get(source) if source is not None else None
            spec = self.semaphores[position] = given or self.call.add_semaphores(name, kind.semaphore, kind.shape)
            self.arrays.append(None)
            self.arguments.append(spec)
            return
        ref = memory(kind)
        if source is None:
            in_hbm = MemoryRef(MemorySpace.HBM, ref.shape if block is None else block.shape, ref.dtype)
            absent = [None] * len(self.call.machine.cores)
            is_input = position < first_output
            array = self.call.add_buffer(name, in_hbm, absent, is_operand=True, initialised=is_input)
        else:
            array = self.array(source)
        self.arrays.append(array)
        if block is None:
            self.pipeline.scalars.append(self._stream(position, array, ref, None, ()))
            return
        lowered_map = kernel.maps[position - contents.num_prefetch]
        if ref.space in IN_HBM:
            self.arguments.append(array)
            return
        index_map = None if lowered_map is None else lowered_map.on(self._scalars(), self.timing)
        stream = self._stream(position, array, ref, index_map, block.dims, block.windows)
        add_stream(self.pipeline.inputs if position < first_output else self.pipeline.outputs, stream)

    def _scalars(self) -> list[BufferSpec]:
        count = self.kernel.contents.num_prefetch
        return [spec for spec in self.arguments[:count] if isinstance(spec, BufferSpec)]

    def _stream(
        self,
        position: int,
        array: BufferSpec,
        ref: MemoryRef,
        index_map: IndexMap | None,
        dims: Any,
        windows: int = 1,
    ) -> Stream:
        lowered, contents = self.kernel.lowered, self.kernel.contents
        source = self.aliases.get(position)
        # Without a grid, an aliased pair has one window as it has one array.
        shares = self.streams.get(source) if source is not None and not contents.grid else None
        stream = Stream(
            self.call,
            lowered.arguments[position][0],
            array,
            ref,
            dims,
            index_map,
            windows,
            is_lent=position not in lowered.written
            and position not in self.aliases
            and position not in self.aliases.values(),
            convert=_to_xla if position in lowered.in_xla and position in lowered.held else None,
            keeps=position in lowered.stored_first,
            held=lowered.held.get(position),
            shares=shares,
        )
        self.streams[position] = stream
        self.arguments.append(stream.spec)
        return stream


def _to_xla(view: Any) -> Any:
    """A block as an array of XLA, which compiled segments take without a copy."""
    return jax.device_put(view)


def memory(kind: internals.RefType) -> MemoryRef:
    """The buffer a ref's type asks for."""
    if kind.space is None or kind.dtype is None:
        raise NotModelledError("a buffer in a memory space that is not modelled")
    return MemoryRef(kind.space, kind.shape, kind.dtype)
