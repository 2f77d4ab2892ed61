"""Compute cost by the TPU compiler: a piece of a kernel's work, compiled alone, in the compiler's own cycles.

The piece becomes a kernel that copies what it reads from HBM to VMEM, does the work in a loop and copies what it
wrote back; the cost is the slope between two lengths of the loop.  Without the loop the compiler would move work up
between the copies, where it hides; without the copy back it would be dead code.  Scalars from outside are constants:
as indices 0, so that an access is as aligned as the real one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tpusim.costs import CostTable
from tpusim.errors import TpuSimError
from tpusim.pallas import internals
from tpusim.pallas.compiler import Compiled, Source, compile_programs, lower
from tpusim.pallas.work import Work, is_access

_TRIPS = (2, 6)
"""The two lengths of the loop."""
_VMEM_LIMIT = 100 << 20
_LIMITS = {"v4": 15 << 20, "v5p": 60 << 20, "v7x": 60 << 20}


class UnsuitableError(TpuSimError):
    """A piece of work that cannot be compiled alone; the text says why."""


def exact_cycles(works: Sequence[Work], costs: CostTable) -> list[int]:
    """Cycles of each piece of work by the compiler; the estimate, with a warning, where it gives none."""
    chip = costs.chip.name
    table = costs.chip.cost_table or chip
    pieces = {work.text: work for work in works if not all(map(is_access, work.eqns)) or _stores(work)}
    texts = list(pieces)
    sources: list[Source] = []
    for work in pieces.values():
        sources += [_source(work, table, trips) for trips in _TRIPS]
    keys = [f"{trips} trips\n{text}" for text in texts for trips in _TRIPS]
    compiled = compile_programs(sources, table, keys=keys)
    found: dict[str, int] = {}
    for number, text in enumerate(texts):
        short, long = compiled[2 * number : 2 * number + 2]
        if short.cycles is not None and long.cycles is not None:
            found[text] = max(1, round((long.cycles - short.cycles) / (_TRIPS[1] - _TRIPS[0])))
            continue
        found[text] = pieces[text].estimate(costs).mid
        warnings.warn(_notice(pieces[text], chip, short if short.cycles is None else long), stacklevel=2)
    return [found.get(work.text, 1) for work in works]


def _stores(work: Work) -> bool:
    return any(eqn.primitive.name != "get" for eqn in work.eqns)


def _notice(work: Work, chip: str, compiled: Compiled) -> str:
    reason = compiled.error or compiled.note or "it gives no cycles for it"
    where = internals.where_of_equation(work.last)
    return (
        f"{work.kernel}{f' ({where})' if where else ''}: the compiler has no cycles for {chip}, the default cost is "
        f"used: {reason.splitlines()[0][:200]}"
    )


def _source(work: Work, chip: str, trips: int) -> Source:
    def make() -> Any:
        piece = _Piece.of(work)
        function, shapes = piece.kernel(trips, _LIMITS.get(chip, _VMEM_LIMIT))
        return lower(function, shapes, chip)

    return make


@dataclass
class _Piece:
    """Where the kernel of a piece of work keeps what it reads and writes; buffers and values in VMEM, one each."""

    work: Work
    places: dict[Any, int]
    """Place of a variable: several refs of one buffer share it."""
    types: list[jax.ShapeDtypeStruct]
    read: list[int]
    written: list[int]

    @classmethod
    def of(cls, work: Work) -> _Piece:
        if work.views:
            raise UnsuitableError("it reaches a buffer through a part with a name of its own")
        places: dict[Any, int] = {}
        types: list[jax.ShapeDtypeStruct] = []
        slots: dict[int, int] = {}
        for var, symbol in work.refs.items():
            if symbol.slot not in slots:
                slots[symbol.slot] = len(types)
                types.append(jax.ShapeDtypeStruct(symbol.shape, symbol.dtype))
            places[var] = slots[symbol.slot]
        loads = {places[v] for e in work.eqns if e.primitive.name != "swap" or _is_used(e) for v in e.invars
                 if not isinstance(v, internals.Literal) and v in work.refs}  # fmt: skip
        stores = {places[v] for e in work.eqns if e.primitive.name not in ("get", "masked_load") for v in e.invars
                  if not isinstance(v, internals.Literal) and v in work.refs}  # fmt: skip
        read, written = sorted(loads), sorted(stores)
        for var in (*work.arrays, *work.escapes):
            (read if var in work.arrays else written).append(len(types))
            places[var] = len(types)
            types.append(_memory_type(var))
        return cls(work, places, types, read, written)

    def kernel(self, trips: int, vmem_limit: int) -> tuple[Callable[..., Any], list[Any]]:
        """The kernel as a function of what it reads, and the types of its arguments."""
        count = len(self.read)

        def body(*refs: Any) -> None:
            inputs, outputs = refs[:count], refs[count : count + len(self.written)]
            vmem, semaphore = refs[count + len(self.written) : -1], refs[-1]
            for source, place in zip(inputs, self.read, strict=True):
                copy = pltpu.make_async_copy(source, vmem[place], semaphore)
                copy.start()
                copy.wait()
            jax.lax.fori_loop(0, trips, lambda trip, carry: self._evaluate(vmem, trip, carry), 0)
            for target, place in zip(outputs, self.written, strict=True):
                copy = pltpu.make_async_copy(vmem[place], target, semaphore)
                copy.start()
                copy.wait()

        hbm = pl.BlockSpec(memory_space=pltpu.HBM)
        call = pl.pallas_call(
            body,
            out_shape=[self.types[place] for place in self.written],
            in_specs=[hbm] * count,
            out_specs=[hbm] * len(self.written),
            scratch_shapes=[*(pltpu.VMEM(t.shape, t.dtype) for t in self.types), pltpu.SemaphoreType.DMA],
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=vmem_limit, has_side_effects=True),
            name="piece",
        )
        return call, [self.types[place] for place in self.read]

    def _evaluate(self, vmem: Sequence[Any], trip: Any, carry: Any) -> Any:
        work = self.work
        env: dict[Any, Any] = {var: vmem[self.places[var]] for var in work.refs}
        for var in work.arrays:
            value = vmem[self.places[var]][...].reshape(var.aval.shape)
            env[var] = value != 0 if var.aval.dtype == np.bool_ else value
        indices = {v for e in work.eqns if is_access(e) for v in e.invars if not isinstance(v, internals.Literal)}
        for var in work.scalars:
            # Pallas takes an index that is a constant for one of another kind; the compiler folds this one.
            env[var] = (trip * 0).astype(var.aval.dtype) if var in indices else _constant(var.aval.dtype)
        for eqn in work.eqns:
            operands = [v.val if isinstance(v, internals.Literal) else env[v] for v in eqn.invars]
            for var, value in zip(eqn.outvars, internals.bind_equation(eqn, operands), strict=True):
                env[var] = value
        for var in work.escapes:
            place = vmem[self.places[var]]
            place[...] = jnp.broadcast_to(env[var], var.aval.shape).astype(place.dtype).reshape(place.shape)
        return carry


def _is_used(eqn: Any) -> bool:
    return any(not isinstance(var, internals.DropVar) for var in eqn.outvars)


def _memory_type(var: Any) -> jax.ShapeDtypeStruct:
    """How a value is kept in VMEM: masks as 32-bit words, scalars and vectors as a row."""
    dtype = var.aval.dtype
    if not isinstance(dtype, np.dtype):
        raise UnsuitableError(f"a value of type {dtype}")
    shape = tuple(var.aval.shape)
    return jax.ShapeDtypeStruct(
        (1,) * max(0, 2 - len(shape)) + shape, np.dtype(np.int32) if dtype == np.bool_ else dtype
    )


def _constant(dtype: Any) -> Any:
    if not isinstance(dtype, np.dtype):
        raise UnsuitableError(f"a scalar of type {dtype}")
    return np.asarray(0 if dtype.kind in "iub" else 1.5, dtype)[()]
