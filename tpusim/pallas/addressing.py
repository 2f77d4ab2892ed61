"""How generated code names what a ref operand means: a buffer with a region of it, or one semaphore.

A region is looked up in a dictionary of its equation by the indices that only the run knows; everything static about
it was found when it was made.
"""

from __future__ import annotations

from typing import Any, cast

from tpusim.pallas import internals, ranges
from tpusim.pallas.block import Block, Value
from tpusim.pallas.edges import has_edges
from tpusim.pallas.index_lists import IndexList, index_list
from tpusim.pallas.lowered import Lowered
from tpusim.pallas.symbols import (
    Part,
    RefSymbol,
    SemaphoreSymbol,
    Step,
    TransformError,
    View,
    compose,
    dynamic_names,
    key_code,
    region_code,
    resolve_ref,
    scalar_index,
    whole_shape,
)
from tpusim.specs import MemorySpace, SemaphoreType


class Addressing:
    """The part of :class:`tpusim.pallas.lower.Lowering` that looks at refs."""

    depth: int
    out: Lowered
    setup: list[str]
    touched: set[int]
    """Slots of buffers that the code so far loads, stores or copies."""
    views: set[str]
    """Names of regions that are not plain."""
    scalars: dict[str, str]
    """Names of regions that are one element of SMEM, and its index."""
    limits: dict[str, ranges.Range]
    """What is known of names that are assigned once."""
    accesses: dict[int, set[tuple[int, ...] | None]]
    """For each slot how it is accessed: all of it in a shape, one scalar, or otherwise (``None``)."""

    def emit(self, line: str, held: tuple[int, str] | None = None, source: int = -1) -> None:
        """Add a line to the kernel function."""
        raise NotImplementedError

    def fresh(self, prefix: str = "v") -> str:
        """A new name."""
        raise NotImplementedError

    def site(self, eqn: Any) -> str:
        """The user's line of an equation, as an entry of the site table."""
        raise NotImplementedError

    def integer(self, block: Block, value: Any) -> str:
        """An expression for a Python int or bool."""
        raise NotImplementedError

    def resolve(self, block: Block, ref: Any, eqn: Any) -> tuple[RefSymbol | SemaphoreSymbol, list[Step]]:
        """The buffer or semaphores behind a ref operand, and the indices taken of it."""
        try:
            return resolve_ref(ref, lambda value: self.integer(block, value))
        except TransformError as error:
            raise internals.not_modelled(f"{error} in {eqn.primitive.name}", eqn) from None

    def region(self, block: Block, ref: Any, eqn: Any, *, reads: bool = False) -> tuple[RefSymbol, str]:
        """A ref operand: its buffer, and an expression for the region it names; ``reads``: it is not written."""
        listed = self._index_list(block, ref, eqn)
        if listed is not None:
            return self._indexed(block, listed, eqn, reads)
        symbol, keys = self.resolve(block, ref, eqn)
        if not isinstance(symbol, RefSymbol):
            raise internals.not_modelled(f"{eqn.primitive.name} on semaphores", eqn)
        whole = f"w{symbol.slot}"
        if not reads:
            self.out.written.add(symbol.slot)
        if symbol.slot not in self.touched:
            self.touched.add(symbol.slot)
            is_store = eqn.primitive.name == "swap" and not self._is_used(block, eqn)
            if is_store and self.depth == 2 and whole_shape(symbol, keys) is not None:
                self.out.stored_first.add(symbol.slot)
        scalar = scalar_index(symbol, keys) if symbol.space is MemorySpace.SMEM else None
        self._note_access(symbol, keys, scalar, eqn)
        if not keys:
            return symbol, whole
        known = block.regions.get((symbol.slot, text := str(keys)))
        if known is not None:
            return symbol, known
        dynamic = dynamic_names(keys)
        region = region_code(whole, keys)
        if self.reaches_edge(symbol, keys, eqn):
            region = f"edge({region_code(whole, keys[:-1])}, {key_code(cast(list[Part], keys[-1]))})"
        cache, name = self.fresh("c"), self.fresh("r")
        self.setup.append(f"{cache} = {{}}")
        look_up = dynamic[0] if len(dynamic) == 1 else f"({', '.join(dynamic)})" if dynamic else "0"
        unused = None
        if scalar is not None:
            self.scalars[name] = scalar
            unused = symbol.slot, "pass"
        self.emit(f"{name} = {cache}.get({look_up})", held=unused)
        self.emit(f"if {name} is None: {name} = {cache}[{look_up}] = {region}", held=unused)
        block.regions[symbol.slot, text] = name
        if any(isinstance(key, View) for key in keys):
            self.views.add(name)
        return symbol, name

    def reaches_edge(self, symbol: RefSymbol, keys: list[Step], eqn: Any) -> bool:
        """Whether a copy of JAX's own pipeline may reach into the padding behind an array."""
        return (
            bool(keys)
            and eqn.primitive.name == "dma_start"
            and has_edges(symbol.shape, symbol.dtype)
            and not any(isinstance(key, View) for key in keys)
            and internals.is_of_pipeline(eqn)
        )

    def both_inside(self, block: Block, refs: tuple[Any, Any], regions: tuple[str, str], eqn: Any) -> tuple[str, str]:
        """Source and destination of a copy, both without what lies behind the end of one of them."""
        found = [self.resolve(block, ref, eqn) for ref in refs if self._index_list(block, ref, eqn) is None]
        if not any(isinstance(symbol, RefSymbol) and self.reaches_edge(symbol, keys, eqn) for symbol, keys in found):
            return regions
        names = self.fresh("r"), self.fresh("r")
        self.emit(f"{names[0]}, {names[1]} = both_inside({regions[0]}, {regions[1]})")
        self.views.update(names)
        return names

    def nbytes(self, block: Block, ref: Any, eqn: Any) -> str:
        """An expression for the bytes of a region that is waited for: nothing is accessed, so it may leave its ref."""
        listed = self._index_list(block, ref, eqn)
        if listed is None:
            symbol, keys = self.resolve(block, ref, eqn)
            dynamic = dynamic_names(keys)
            is_cut = bool(keys) and not isinstance(keys[-1], View)
            is_cast = any(isinstance(key, View) and key.function == "bitcast" for key in keys)
            if not isinstance(symbol, RefSymbol) or not is_cut or is_cast or (symbol.slot, str(keys)) in block.regions:
                return f"{self.region(block, ref, eqn, reads=True)[1]}.nbytes"
            return self._size(symbol, keys, dynamic, eqn)
        whole = self.region(block, listed.base, eqn, reads=True)[1]
        return f"{whole}.nbytes // {listed.extent} * {listed.length}"

    def _size(self, symbol: RefSymbol, keys: list[Step], dynamic: list[str], eqn: Any) -> str:
        """An expression for the bytes that dynamic indices take of a buffer."""
        self.touched.add(symbol.slot)
        self._note_access(symbol, keys, None, eqn)
        cache, name = self.fresh("c"), self.fresh("b")
        self.setup.append(f"{cache} = {{}}")
        look_up = dynamic[0] if len(dynamic) == 1 else f"({', '.join(dynamic)})" if dynamic else "0"
        extents = [part[1] for part in keys[-1] if isinstance(part, tuple)]
        region = region_code(f"w{symbol.slot}", keys)
        self.emit(f"{name} = {cache}.get({look_up})")
        self.emit(
            f"if {name} is None: {name} = {cache}[{look_up}] = "
            f"rt.size_of(lambda: {region}, w{symbol.slot}, ({''.join(f'{extent}, ' for extent in extents)}))"
        )
        return name

    def _index_list(self, block: Block, ref: Any, eqn: Any) -> IndexList | None:
        try:
            return index_list(ref)
        except TransformError as error:
            raise internals.not_modelled(f"{error} in {eqn.primitive.name}", eqn) from None

    def _indexed(self, block: Block, listed: IndexList, eqn: Any, reads: bool) -> tuple[RefSymbol, str]:
        """A part of a buffer that a list of indices names; the list is read here."""
        symbol, whole = self.region(block, listed.base, eqn, reads=reads)
        if isinstance(listed.indices, Value):
            code = listed.indices.code
        else:
            source, region = self.region(block, listed.indices, eqn, reads=True)
            if source.space not in (MemorySpace.SUBCORE_VMEM, MemorySpace.VMEM, MemorySpace.SMEM):
                raise internals.not_modelled(f"a list of indices in {source.space.name}", eqn)
            code = f"rt.load_list(buf[p{source.slot}], {region}, {self.site(eqn)})"
        name = self.fresh("r")
        ignored = "" if listed.ignored is None else f", {listed.ignored}"
        self.emit(f"{name} = indexed({whole}, {listed.dim}, rt.known({code}, 'a list of indices'){ignored})")
        self.views.add(name)
        return symbol, name

    def beside(self, block: Block, ref: Any, region: str, other: str, eqn: Any) -> str:
        """What a copy between ``region`` and ``other``, that of ``ref``, reaches of ``region``.

        That is all of it, but for the places at which a list of ``ref`` says to ignore an index.
        """
        listed = self._index_list(block, ref, eqn)
        if listed is None or listed.ignored is None:
            return region
        name = self.fresh("r")
        self.emit(f"{name} = beside({region}, {listed.dim}, {other})")
        self.views.add(name)
        return name

    def _note_access(self, symbol: RefSymbol, keys: list[Step], scalar: str | None, eqn: Any) -> None:
        """Remember whether an equation loads or stores all of a buffer, one scalar of it, or does something else."""
        shape: tuple[int, ...] | None = None
        if eqn.primitive.name in ("get", "swap"):
            if symbol.space is MemorySpace.VMEM:
                shape = whole_shape(symbol, keys) or None
            elif scalar is not None:
                shape = ()
        self.accesses.setdefault(symbol.slot, set()).add(shape)

    def _is_used(self, block: Block, eqn: Any) -> bool:
        return any(var in block.last_use for var in eqn.outvars)

    def semaphore(self, block: Block, ref: Any, eqn: Any, device: str | None = None) -> str:
        """An expression for one semaphore of this device, or of the device ``device``."""
        symbol, keys = self.resolve(block, ref, eqn)
        if not isinstance(symbol, SemaphoreSymbol):
            raise internals.not_modelled(f"{eqn.primitive.name} on a buffer instead of a semaphore", eqn)
        if symbol.kind is SemaphoreType.BARRIER:
            return f"rt.barrier({symbol.tag!r}, {device or 'core.device'})"
        table = "sem" if device is None else f"all_sem[{device}]"
        try:
            parts = compose(keys)
        except TransformError as error:
            raise internals.not_modelled(str(error), eqn) from None
        if any(isinstance(part, tuple) for part in parts) or len(parts) != len(symbol.shape):
            raise internals.not_modelled(f"several semaphores at once in {eqn.primitive.name}", eqn)
        flat = "0"
        for part, extent in zip(parts, symbol.shape, strict=True):
            text = str(part)
            if not ranges.within(ranges.of_code(text, self.limits), (0, extent - 1)):
                self.emit(f"if not 0 <= {text} < {extent}: rt.bad_semaphore({symbol.name!r}, {text}, {extent})")
            flat = text if flat == "0" else f"({flat}) * {extent} + {text}"
        return f"{table}[p{symbol.slot}][{flat}]"
