"""The generator of the shipped table of compute costs: issue slots and latencies, as the TPU compiler has them.

Each operation becomes a kernel that works on arrays in VMEM; the same kernel without the operation is subtracted.
Slots are those of the compiler's schedule at 512x512, per register or as the row says; where the static profile
shows that the transcendental or cross-lane unit is busy for longer than its slots, they are raised to the slope of
the cycles between two sizes.  Latencies are what the cycles are beyond the slots.  Nothing is measured on a TPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tpusim.pallas.compiler import Compiled, compile_programs, lower, require_compiler

CHIPS = ("v5e", "v5p", "v6e", "v7x")
_WITHOUT_CYCLES, _LIKE = "v7x", "v6e"
"""The profile's cycles are of little use for v7x; its units are taken to be busy for as long as those of v6e."""
_SIZES = (256, 512)
_ACCESS = ("VLOAD", "VLOAD:FILL", "VSTORE", "VSTORE:SPILL", "SALU")
_SLOW = ("EUP", "XLU")
_F32, _BF16, _I32, _I8 = "float32", "bfloat16", "int32", "int8"


class Operation(NamedTuple):
    """One row of the table: ``function`` of ``operands`` square arrays; ``per``: what its slots are divided by."""

    row: str
    kind: str
    function: Callable[..., Any]
    dtype: str
    operands: int = 1
    per: str = "vregs"
    out_dtype: str | None = None
    column: bool = False
    """The operand is one lane wide."""


def _operations() -> list[Operation]:
    two: dict[str, Callable[..., Any]] = {"add": lambda a, b: a + b, "mul": lambda a, b: a * b}
    one = {"exp": jnp.exp, "tanh": jnp.tanh}
    only_f32: dict[str, Callable[..., Any]] = {
        "log": jnp.log,
        "rsqrt": jax.lax.rsqrt,
        "sqrt": jnp.sqrt,
        "sin": jnp.sin,
        "logistic": jax.nn.sigmoid,
        "gelu": jax.nn.gelu,
    }
    casts = [("32>16", _F32, _BF16), ("16>32", _BF16, _F32), ("32>8", _F32, _I8), ("8>16", _I8, _BF16)]
    return [
        *(Operation(row, t, fn, t, 2) for row, fn in two.items() for t in (_F32, _I32, _BF16)),
        *(Operation(row, t, fn, t) for row, fn in one.items() for t in (_F32, _BF16)),
        *(Operation(row, _F32, fn, _F32) for row, fn in only_f32.items()),
        Operation("max", _F32, jnp.maximum, _F32, 2),
        Operation("div", _F32, lambda a, b: a / b, _F32, 2),
        Operation("shift", _I32, lambda a, b: a << b, _I32, 2),
        *(Operation("transpose", t, lambda a: a.T, t) for t in (_F32, _BF16)),
        Operation("roll_lanes", _F32, lambda a: pltpu.roll(a, 1, 1), _F32),
        Operation("roll_sublanes", _F32, lambda a: pltpu.roll(a, 1, 0), _F32),
        Operation("reduce_sum_lanes", _F32, lambda a: _tile(jnp.sum(a, axis=1)), _F32, per="groups"),
        Operation("reduce_max_lanes", _F32, lambda a: _tile(jnp.max(a, axis=1)), _F32, per="groups"),
        Operation("reduce_sublanes", _F32, lambda a: jnp.sum(a, axis=0, keepdims=True), _F32, per="columns"),
        Operation("broadcast_lanes", _F32, _spread, _F32, per="groups", column=True),
        *(Operation("cast", kind, lambda a, t=to: a.astype(t), t, out_dtype=to) for kind, t, to in casts),
        Operation("cast", "32>32", lambda a: a.astype(_F32), _I32, out_dtype=_F32),
    ]


def _tile(a: Any) -> Any:
    """One number a row, in every lane of a register: where a reduction leaves it."""
    return jnp.broadcast_to(a[:, None], (a.shape[0], 128))


def _spread(a: Any) -> Any:
    return jnp.broadcast_to(a, (a.shape[0], a.shape[0]))


def build(old: Mapping[str, Any], chips: tuple[str, ...] = CHIPS) -> dict[str, Any]:
    """A new table document; rows that the compiler cannot give are those of ``old``, as its provenance then says."""
    libtpu = require_compiler("tpusim costs build")
    document: dict[str, Any] = {**old, "chips": dict(old["chips"])}
    kept: set[str] = set()
    for chip in chips:
        made, missing = _chip(chip, old["chips"][chip])
        if chip == _WITHOUT_CYCLES:
            _raise_to(made["rows"], document["chips"][_LIKE]["rows"])
        document["chips"][chip] = made
        kept |= missing
    provenance = {**old["provenance"], "libtpu": libtpu, "jax": jax.__version__, "method": " ".join(__doc__.split())}
    provenance["date"] = date.today().isoformat()
    provenance["adjusted"] = (
        "v7x: EUP and XLU slots at least v6e's, latencies v6e's, since its cycles are a generic model's. mxu_rate of "
        "int4 and float8: ratios of peak rates in jax _src/tpu_info.py, not compiled."
    )
    provenance["kept"] = (
        f"Rows of the table before, which the generator does not make: {', '.join(sorted(kept)) or 'none'}."
    )
    return {**document, "provenance": provenance}


def _raise_to(rows: dict[str, Any], like: Mapping[str, Any]) -> None:
    for row, kinds in rows.items():
        for kind, slots in kinds.items():
            for unit in set(slots) & set(_SLOW):
                slots[unit] = max(slots[unit], like[row].get(kind, {}).get(unit, 0.0))


def _chip(chip: str, old: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    operations = _operations()
    sources = [
        (lambda o=o, n=n, w=w: lower(*_kernel(o, n, w), chip))
        for o in operations
        for n in _SIZES
        for w in (True, False)
    ]
    answers = iter(compile_programs(sources, chip))
    rows: dict[str, dict[str, dict[str, float]]] = {}
    intercepts: dict[str, float] = {}
    capacity = old["capacity"]
    for operation in operations:
        small, large = ((next(answers), next(answers)) for _ in _SIZES)
        found = _row(operation, small, large, capacity)
        if found is None:
            continue
        slots, intercept = found
        rows.setdefault(operation.row, {})[operation.kind] = slots
        if intercept is not None and operation.kind == _F32:
            intercepts[operation.row] = intercept
    names = {"vector": "add", "transcendental": "exp", "lanes": "reduce_sum_lanes", "transpose": "transpose"}
    latency = {
        name: max(0, round(intercepts[row])) if row in intercepts and chip != _WITHOUT_CYCLES else old["latency"][name]
        for name, row in names.items()
    }
    missing = {row for row in old["rows"] if row not in rows}
    merged = {row: {**kinds, **rows.get(row, {})} for row, kinds in old["rows"].items()}
    return {**old, "latency": latency, "rows": merged}, missing


def _row(
    operation: Operation,
    small: tuple[Compiled, Compiled],
    large: tuple[Compiled, Compiled],
    capacity: Mapping[str, int],
) -> tuple[dict[str, float], float | None] | None:
    """Slots by unit and the latency of an operation, from answers with and without it."""
    whole, copies = large
    if not whole.slots or (copies.slots is None and not copies.is_accepted):
        return None
    before = copies.slots or {}
    units = [_units(operation, size) for size in _SIZES]
    extra = {unit: count - before.get(unit, 0) for unit, count in whole.slots.items() if unit not in _ACCESS}
    if operation.per == "columns":
        extra["VALU"] = extra.get("VALU", 0) - (_vregs(_SIZES[1]) - units[1])
    if operation.per == "groups":
        extra = {unit: count for unit, count in extra.items() if unit in ("XLU", "VPOP")}
    slots = {unit: round(count / units[1], 3) for unit, count in extra.items() if count > 0}
    cycles = [None if a.cycles is None or b.cycles is None else a.cycles - b.cycles for a, b in (small, large)]
    if cycles[0] is None or cycles[1] is None:
        return slots, None
    slope = (cycles[1] - cycles[0]) / (units[1] - units[0])
    bound = _bound(whole, {}, 0, capacity) / units[1]
    slow = next((unit for unit in _SLOW if unit in slots), None)
    if slow is not None and operation.per == "vregs" and slope > 1.15 * bound:
        slots[slow] = round(slope * capacity[slow], 3)
    measured = [float(count) for count in cycles if count is not None]
    bounds = [_bound(answer[0], slots, count, capacity) for answer, count in zip((small, large), units, strict=True)]
    return slots, sum(found - least for found, least in zip(measured, bounds, strict=True)) / 2


def _bound(whole: Compiled, slots: Mapping[str, float], units: int, capacity: Mapping[str, int]) -> float:
    """Cycles by the unit that runs out first, in the whole kernel or in the row's own slots."""
    all_units = [(unit.partition(":")[0], count) for unit, count in (whole.slots or {}).items() if unit != "SALU"]
    own = [(unit, count * units) for unit, count in slots.items()]
    return max([0.0, *(count / capacity[unit] for unit, count in [*all_units, *own])])


def _vregs(size: int) -> int:
    return size * size // 1024


def _units(operation: Operation, size: int) -> int:
    if operation.per == "groups":
        return size // 8
    if operation.per == "columns":
        return size // 128
    bits = {_BF16: 16, _I8: 8}.get(operation.dtype, 32)
    return _vregs(size) * bits // 32


def _kernel(operation: Operation, size: int, works: bool) -> tuple[Callable[..., Any], list[Any]]:
    """HBM to VMEM, the operation or nothing, VMEM to HBM."""
    shape = (size, 1) if operation.column else (size, size)
    operand = jax.ShapeDtypeStruct(shape, operation.dtype)
    rolls = operation.row.startswith("roll")  # which have no shape outside a kernel
    result = operand if rolls else jax.eval_shape(operation.function, *[operand] * operation.operands)
    count = operation.operands

    def body(*refs: Any) -> None:
        inputs, output, scratch, (out, semaphore) = refs[:count], refs[count], refs[count + 1 : -2], refs[-2:]
        for source, target in zip(inputs, scratch, strict=True):
            pltpu.sync_copy(source, target)
        if works:
            out[...] = operation.function(*(ref[...] for ref in scratch))
        copy = pltpu.make_async_copy(out, output, semaphore)
        copy.start()
        copy.wait()

    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    memory = [pltpu.VMEM(shape, operation.dtype)] * count
    call = pl.pallas_call(
        body,
        out_shape=result,
        in_specs=[hbm] * count,
        out_specs=hbm,
        scratch_shapes=[*memory, pltpu.VMEM(result.shape, result.dtype), pltpu.SemaphoreType.DMA],
        name="operation",
    )
    return call, [operand] * count
