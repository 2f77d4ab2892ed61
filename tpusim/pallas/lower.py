"""A kernel jaxpr, lowered once to a Python function that all devices share.

Interpreting a jaxpr equation by equation costs a hundred times more than the machine itself, so each
kernel becomes source code: integers and booleans are Python ints, each copy, wait or signal is one call
on the core, control flow stays ``for``/``while``/``if``, and every maximal run of pure array equations is
one `Segment`.  A segment waits until something that others can see comes along (a store, copy, wait or
signal); loads go ahead of it, because nothing in between can change what they see.  What a core loads, computes
and stores between two points where others can see it, or control flow, is one `Work` with one cost.

The generated module has one function ``bind``, called once for each kernel call with the positions of
its buffers; it returns ``kernel(rt)``, run by every device.  That is a generator which yields where its core must be
suspended, so that the event loop goes on with it at the price of a call; one with no such place is a plain function
that returns nothing to iterate over.  An index map returns its block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import Any

import numpy as np

from tpusim.errors import FindingError, NotModelledError
from tpusim.pallas import internals, scalar_ops
from tpusim.pallas.addressing import Addressing
from tpusim.pallas.block import Block, Value, is_integer
from tpusim.pallas.lowered import Lowered, Origin, where_of_origin
from tpusim.pallas.ranges import Range
from tpusim.pallas.segments import Segment, known_part
from tpusim.pallas.symbols import RefSymbol, SemaphoreSymbol
from tpusim.pallas.work import Work
from tpusim.specs import SPARSE, MemorySpace

_FILES = count(1)
_NAME = re.compile(r"\b[a-z]\d+\b")

Rule = Callable[["Lowering", "Block", Any], None]
"""Lowers one equation."""


class Lowering(Addressing):
    """Lowers one kernel; see the module."""

    def __init__(
        self,
        jaxpr: Any,
        name: str,
        argument_names: Sequence[str],
        axes: dict[str, int],
        data: bool,
        rules: dict[str, Rule],
        num_integers: int = 0,
        holdable: Mapping[int, bool] | None = None,
        aliases: Mapping[int, int] | None = None,
        cores: Mapping[str, int] = MappingProxyType({}),
        is_sparse: bool = False,
        default: MemorySpace = MemorySpace.VMEM,
        grid: Sequence[int | None] = (),
    ) -> None:
        self.rules = rules
        self.grid = grid
        """Steps along each axis, where they are known."""
        self.cores = cores
        """Those of the axes that are cores of one device."""
        self.is_sparse = is_sparse
        """Whether it runs on SparseCores."""
        self.aliases = aliases or {}
        """Slots that may be the same memory as another one."""
        self.name = name
        self.axes = axes
        self.data = data
        self.lines: list[str] = []
        self.origins: list[Any] = []
        self.last_wait: tuple[int, int, str] | None = None
        """Where the last wait for a copy was written (lines so far, depth), and its arguments."""
        self.current: Origin = None
        self.setup: list[str] = []
        self.depth = 2
        self.names = count(1)
        self.env: dict[Any, Any] = {}
        self.scope: int | None = None
        self.work: Work | None = None
        """What the core has computed since others could last see it."""
        self.kept: set[Any] = set()
        """What is needed after a jaxpr that runs as a part of the one around it."""
        self.slots = 0
        self.out = Lowered("", [])
        self.touched = set()
        self.views = set()
        self.limits: dict[str, Range] = {}
        """What is known of names that are assigned once."""
        self.definitions: dict[str, scalar_ops.Definition] = {}
        """How the names of scalars came to be."""
        self.lines_of: dict[int, str] = {}
        """Lines, by number, that are there for one name alone."""
        self.copies: list[tuple[int, int]] = []
        self.choices: list[tuple[int, int, str, int]] = []
        self.scalars = {}
        self.accesses = {}
        self._constants(jaxpr)
        integers, refs = jaxpr.invars[:num_integers], jaxpr.invars[num_integers:]
        self.integers = [f"g{number}" for number in range(num_integers)]
        for var, integer in zip(integers, self.integers, strict=True):
            self.env[var] = Value(integer, True)
        for position, (var, argument) in enumerate(zip(refs, argument_names, strict=True)):
            kind = self.ref_type(var.aval, default)
            self._argument(var, argument, kind, position)
        results = self.lower_jaxpr(jaxpr)
        self.emit(f"return ({''.join(f'{value.code}, ' for value in results)})")
        for slots in self.aliases.items():
            if not self.out.written.isdisjoint(slots):
                self.out.written.update(slots)
        self._hold(holdable or {})
        for line, slot in self.copies:
            if slot not in self.out.written or slot in self.out.held:
                self._replace(line, "pass")
        self._drop_unused()
        self.out.source = self._assemble()
        self.out.filename = f"<tpusim {name} {next(_FILES)}>"

    # -- writing --------------------------------------------------------------------------------

    def _hold(self, holdable: Mapping[int, bool]) -> None:
        """Find the buffers whose arrays can be values; ``holdable``: which arguments, and whether also if written.

        SMEM of which this core alone loads and stores scalars needs no regions and no judge.
        """
        private = {slot for slot, shapes in self.accesses.items() if shapes == {()}}
        for slot, shapes in self.accesses.items():
            if not self.data or slot not in holdable or None in shapes or len(shapes) > 1 or slot in private:
                continue
            if holdable[slot] or slot not in self.out.written:
                (self.out.held[slot],) = [shape for shape in shapes if shape is not None]
        for line, slot, text, source in self.choices:
            if slot in self.out.held or slot in private:
                is_stable = source == -1 or source in self.out.held or source not in self.out.written
                self._replace(line, text if is_stable else f"{text}.copy()")

    def _replace(self, number: int, text: str) -> None:
        line = self.lines[number]
        self.lines[number] = line[: len(line) - len(line.lstrip())] + text

    def emit(self, line: str, held: tuple[int, str] | None = None, source: int = -1) -> None:
        """Add a line to the kernel function.

        ``held``: a slot, and the line instead where its buffer is held; that ends in a value which still
        looks into the buffer ``source``, if any, and is copied where that one may change.
        """
        if held is not None:
            self.choices.append((len(self.lines), *held, source))
        self.lines.append("    " * self.depth + line)
        self.origins.append(self.current)

    def drop_unless_used(self, name: str, first: int) -> None:
        """The lines from ``first`` on only give a name its value."""
        self.lines_of.update(dict.fromkeys(range(first, len(self.lines)), name))

    def _drop_unused(self) -> None:
        used: set[str] = set()
        for number in reversed(range(len(self.lines))):
            name = self.lines_of.get(number)
            if name is None or name in used:
                used.update(_NAME.findall(self.lines[number]))
            else:
                self._replace(number, "pass")

    def fresh(self, prefix: str = "v") -> str:
        """A new name."""
        return f"{prefix}{next(self.names)}"

    def site(self, eqn: Any) -> str:
        """The user's line of an equation, as an entry of the site table."""
        around = self.current[1] if self.current is not None else None
        self.out.sites.append(where_of_origin((eqn, around)))
        return f"S[{len(self.out.sites) - 1}]"

    def _assemble(self) -> str:
        head = ["def bind(P, W, SEG, S, K, C):"]
        head += [f"    p{i} = P[{i}]; w{i} = W[{i}]" for i in range(self.slots)]
        head += ["    " + line for line in self.setup]
        head += [
            f"    def kernel({', '.join(['rt', *self.integers])}):",
            "        core = rt.core; buf = core.buffers; sem = core.semaphores",
            "        all_buf = rt.call.buffers; all_sem = rt.call.semaphores",
        ]
        self.out.first_line = len(head) + 1
        self.out.origins = self.origins
        self.out.slots = self.slots
        return "\n".join([*head, *self.lines, "    return kernel", ""])

    def _constants(self, jaxpr: Any) -> None:
        if len(jaxpr.constvars):
            raise NotModelledError(f"{self.name}: a kernel with captured constants")

    def _argument(self, var: Any, name: str, kind: internals.RefType, slot: int) -> None:
        self.out.arguments.append((name, kind))
        self.add_slot(var, name, kind)

    def ref_type(self, aval: Any, default: MemorySpace = MemorySpace.VMEM) -> internals.RefType:
        """The type of a ref, without a memory space in ``default``; VMEM is a subcore's where those run the kernel."""
        kind = internals.ref_type(aval, default)
        if self.is_sparse and kind.space is MemorySpace.VMEM:
            return kind._replace(space=MemorySpace.SUBCORE_VMEM)
        return kind

    def add_slot(self, var: Any, name: str, kind: internals.RefType) -> None:
        """Give a ref of the kernel a place in the buffer or semaphore tables."""
        slot, self.slots = self.slots, self.slots + 1
        if kind.semaphore is not None:
            self.env[var] = SemaphoreSymbol(slot, name, kind.shape, kind.semaphore)
        elif kind.space is None or kind.dtype is None:
            raise NotModelledError(f"{self.name}: argument {name} lives in memory space {var.aval.memory_space}")
        else:
            self.env[var] = RefSymbol(slot, name, kind.shape, kind.dtype, kind.space, kind.key)

    # -- values ---------------------------------------------------------------------------------

    def read(self, var: Any) -> Any:
        """What the environment holds for an operand."""
        if isinstance(var, internals.Literal):
            return self.constant(var.val, var.aval)
        return self.env[var]

    def constant(self, value: Any, aval: Any) -> Value:
        """A value known now: a Python number for scalar integers, else an entry of the constant table."""
        if is_integer(aval):
            item = value.item() if hasattr(value, "item") else value
            return Value(repr(bool(item) if aval.dtype == np.bool_ else int(item)), True)
        self.out.consts.append(np.asarray(value, dtype=aval.dtype))
        return Value(f"K[{len(self.out.consts) - 1}]", False)

    def integer(self, block: Block, value: Any) -> str:
        """An expression for a Python int or bool."""
        if isinstance(value, int | np.integer):
            return repr(int(value))
        found = value if isinstance(value, Value) else self.read(value)
        if found.is_python:
            return found.code
        self.flush(block)
        name = self.fresh()  # an array of one element is no key of a dictionary
        self.emit(f"{name} = {self.number(found.code)}")
        return name

    def number(self, code: str, kind: str = "int") -> str:
        """An expression of a Python int or bool for an array of one element."""
        return f"{kind}({code})" if self.data else f"{kind}(rt.known({code}))"

    def array(self, value: Any) -> str:
        """An expression for an array or NumPy scalar."""
        found = value if isinstance(value, Value) else self.read(value)
        return found.code

    def bind_python(self, var: Any, expression: str) -> None:
        """Give a variable a Python value."""
        if isinstance(var, internals.DropVar):
            return
        if expression.isidentifier() or expression.lstrip("-").isdigit() or expression in ("True", "False"):
            self.env[var] = Value(expression, True)
            return
        name = self.fresh()
        self.emit(f"{name} = {expression}")
        self.env[var] = Value(name, True)

    # -- equations ------------------------------------------------------------------------------

    def lower_jaxpr(self, jaxpr: Any, is_part: bool = False) -> list[Any]:
        """Lower a jaxpr in place; what its results are in the environment.

        ``is_part``: the compiler schedules it together with what is before and after it.
        """
        block = Block(jaxpr, self.current)
        try:
            for position, eqn in enumerate(jaxpr.eqns):
                self._equation(block, position, eqn)
        except FindingError as error:
            if error.finding.where is not None or self.current is None:
                raise
            raise type(error)(replace(error.finding, where=where_of_origin(self.current))) from None
        self.flush(block, len(jaxpr.eqns), charge=not is_part)
        self.current = block.around or self.current
        return [self.read(var) for var in jaxpr.outvars]

    def _equation(self, block: Block, position: int, eqn: Any) -> None:
        name = eqn.primitive.name
        rule = self.rules.get(name)
        block.position = position
        self.current = eqn, block.around
        if rule is not None:
            rule(self, block, eqn)
        elif name in scalar_ops.TABLE and self._all_python(eqn):
            scalar_ops.lower(self, eqn)
        elif not eqn.outvars or any(internals.is_ref(v.aval) for v in (*eqn.invars, *eqn.outvars)):
            raise internals.not_modelled(f"primitive {name}", eqn)
        else:
            self.defer(block, eqn)

    def defer(self, block: Block, eqn: Any) -> None:
        """Put a pure equation into the pending segment."""
        block.pending.append(eqn)
        self.compute(eqn)
        for var in eqn.outvars:
            if not isinstance(var, internals.DropVar):
                self.env[var] = Value(self.fresh("a"), False)

    def compute(self, eqn: Any, ref: RefSymbol | None = None) -> None:
        """Put a load, store or array equation into the work that is charged at the next point others can see."""
        if ref is not None and ref.space is not MemorySpace.VMEM and ref.space not in SPARSE:
            return  # scalars have a price of their own
        if self.work is None:
            self.work = Work(self.name)
        self.work.add(eqn, self.env, ref)

    def _charge(self, block: Block, at: int) -> None:
        work, self.work = self.work, None
        if work is None:
            return
        work.close(self.kept | {var for var, last in block.last_use.items() if last >= at})
        self.out.works.append(work)
        self.emit(f"core.compute(C[{len(self.out.works) - 1}], 'compute', {self.site(work.last)})")

    def _all_python(self, eqn: Any) -> bool:
        if not all(is_integer(v.aval) for v in eqn.outvars):
            return False
        for var in eqn.invars:
            if isinstance(var, internals.Literal):
                if not is_integer(var.aval):
                    return False
            elif not (isinstance(found := self.env[var], Value) and found.is_python):
                return False
        return True

    def flush(self, block: Block, position: int | None = None, stored: int | None = None, charge: bool = True) -> None:
        """Compute the pending array equations now, and take copies of loads that outlive this point.

        ``stored``: the one slot that changes here; without it, others may run and write any.  ``charge``: the work
        so far ends here.
        """
        at = block.position if position is None else position
        if block.pending:
            self._emit_segment(block, at)
        for var, value in list(block.views.items()):
            if stored is None or self._home(value.slot) == self._home(stored):
                if block.last_use.get(var, -1) >= at:
                    self.copies.append((len(self.lines), value.slot))
                    self.emit(f"{value.code} = {value.code}.copy()")
                value.slot = -1
                del block.views[var]
        if stored is None and charge:
            self._charge(block, at)

    def _home(self, slot: int) -> int:
        return self.aliases.get(slot, slot)

    def _emit_segment(self, block: Block, at: int) -> None:
        eqns, block.pending = block.pending, []
        made = {var for eqn in eqns for var in eqn.outvars}
        inputs: list[Any] = []
        for eqn in eqns:
            for var in eqn.invars:
                if not isinstance(var, internals.Literal) and var not in made and var not in inputs:
                    inputs.append(var)
        outputs = [
            var
            for eqn in eqns
            for var in eqn.outvars
            if not isinstance(var, internals.DropVar) and block.last_use.get(var, -1) >= at
        ]
        segment = Segment(eqns, inputs, outputs)
        if segment.in_numpy is None:
            self.out.in_xla |= {self.env[var].slot for var in inputs if var in block.views}
        self.out.segments.append(segment)
        number = len(self.out.segments) - 1
        if not self.data:
            for var in outputs:
                self._emit_known(eqns, var, block.masks)
            return
        if not outputs:
            return
        operands = ", ".join(self.env[var].code for var in inputs)
        targets = ", ".join(self.env[var].code for var in outputs)
        self.emit(f"{targets}{',' if len(outputs) == 1 else ''} = SEG[{number}]({operands})")

    def _emit_known(self, eqns: Sequence[Any], var: Any, masks: set[Any]) -> None:
        """Without data: compute what follows from scalars alone, of arrays the masks; all else is ``None``."""
        code = self.env[var].code
        part = known_part(eqns, var, masks)
        if part is None:
            self.emit(f"{code} = None")
            return
        self.out.segments.append(part)
        operands = [f"SEG[{len(self.out.segments) - 1}]", *(self.env[v].code for v in part.inputs)]
        self.emit(f"{code} = rt.compute({', '.join(operands)})")
