"""Cycles of compute: issue slots from libtpu's compiler, and the rule that turns them into cycles.

A TensorCore issues one bundle a cycle with a few slots for each unit.  An operation on whole vector registers
(vregs of 8 x 128 words of 32 bits) takes slots of each unit for every vreg; its cycles are those of the unit that
runs out first.  Slots and not the compiler's cycles of single operations are what is stored, because slots add up
when operations are fused and cycles do not.  A single operation is priced without its latency, which matters where
others wait for its result: :mod:`tpusim.costs.estimate` puts operations, loads and stores together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from math import ceil, prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tpusim.chips import ChipSpec
from tpusim.costs.ops import ELEMENTWISE, REDUCTIONS, SHAPED
from tpusim.costs.registers import broadcast_groups, ceil_div, element_bits, reduced_axes, rows_and_lanes, vregs
from tpusim.errors import NotModelledError, OptionError

Shape: TypeAlias = tuple[int, ...]
Slots: TypeAlias = dict[str, float]

VREG_BYTES = 4096
TABLE = Path(__file__).with_name("compute_costs.json")
"""The shipped table; ``tpusim costs build`` makes it."""


class CostTable:
    """Costs of compute on one chip; get it with :meth:`for_chip`.

    Every cost is in cycles of one core's clock.  Answers are remembered, so that asking again costs a dictionary
    look-up.
    """

    def __init__(self, chip: ChipSpec, table: Mapping[str, Any], provenance: Mapping[str, str]) -> None:
        """``table`` and ``provenance`` are parts of ``compute_costs.json``."""
        self.chip = chip
        self.provenance = provenance
        """Where the slots come from: libtpu version, date, method."""
        self.capacity: Mapping[str, int] = table["capacity"]
        """Slots of each unit in one cycle."""
        self.latency: Mapping[str, int] = table["latency"]
        """Cycles until a first result: ``vector``, ``transcendental``, ``lanes`` (across them), ``transpose``."""
        self._rows: Mapping[str, Mapping[str, Mapping[str, float]]] = table["rows"]
        self._has_16bit_lanes: bool = table["packed_16bit"]
        self._mxu_rate: Mapping[str, int] = table["mxu_rate"]
        self._tiles = {bits: chip.tile(bits) for bits in (4, 8, 16, 32)}
        self._memo: dict[tuple[object, ...], int] = {}
        self._special: Mapping[str, Callable[..., Slots]] = {
            "broadcast_in_dim": self._broadcast,
            "reshape": self._reshape,
            "transpose": self._transpose,
            "convert_element_type": self._convert,
        }

    def __repr__(self) -> str:
        """Name of the chip and of the table it uses."""
        return f"CostTable({self.chip.name}, table {self.chip.cost_table})"

    @classmethod
    def for_chip(cls, chip: ChipSpec) -> CostTable:
        """The table of ``chip``, one object for equal chips; ``NotModelledError`` where the chip has none."""
        return _table_of(chip)

    def known(self, op: str) -> bool:
        """Whether ``op`` has a price of its own; others are priced as ``add``."""
        return op in ELEMENTWISE or op in REDUCTIONS or op in SHAPED

    def cycles(
        self,
        op: str,
        dtype: np.dtype[Any],
        shapes: tuple[Shape, ...],
        out_shape: Shape,
        *,
        out_dtype: np.dtype[Any] | None = None,
        axes: tuple[int, ...] | None = None,
    ) -> int:
        """Cycles of one JAX primitive on vectors, at least 1.

        ``dtype`` is that of the (first numeric) operand, ``shapes`` those of all operands.  ``out_dtype`` matters to
        ``convert_element_type``.  ``axes`` are those a reduction removes, ``broadcast_dimensions`` or the
        permutation; without them they are inferred from the shapes, the dearer way where they leave a choice.
        """
        key = (op, dtype, shapes, out_shape, out_dtype, axes)
        cost = self._memo.get(key)
        if cost is None:
            if op == "dot_general":
                m, k, n = _matrix_sizes(shapes)
                cost = self._product(max(1, prod(shapes[0][:-2])), m, k, n, dtype)
            else:
                slots = self.slots(op, dtype, shapes, out_shape, out_dtype=out_dtype, axes=axes)
                cost = self.slot_cycles(slots)
            self._memo[key] = cost
        return cost

    def slots(
        self,
        op: str,
        dtype: np.dtype[Any],
        shapes: tuple[Shape, ...],
        out_shape: Shape,
        *,
        out_dtype: np.dtype[Any] | None = None,
        axes: tuple[int, ...] | None = None,
    ) -> Slots:
        """Issue slots by unit, arguments as for :meth:`cycles`; add those of fused operations up.

        A ``dot_general`` gives MXU slots for its ideal cycles, without the fill.
        """
        shape = shapes[0] if shapes else out_shape
        if op == "dot_general":
            m, k, n = _matrix_sizes(shapes)
            return {"MXU": prod(shape[:-2]) * self._ideal(m, k, n, dtype) * self.capacity["MXU"]}
        if op in REDUCTIONS:
            axes = reduced_axes(shape, out_shape) if axes is None else axes
            return self._reduce(op, element_bits(dtype), shape, axes)
        if op in self._special:
            return self._special[op](dtype, shape, out_shape, out_dtype=out_dtype, axes=axes)
        bits = element_bits(dtype)
        count = max(self._vregs(each, bits) for each in (*shapes, out_shape))
        total: Slots = {}
        for row in ELEMENTWISE.get(op, ("add",)):
            _add(total, self._row(row, dtype, operands=len(shapes)), count)
        return total

    def slot_cycles(self, slots: Mapping[str, float]) -> int:
        """Cycles of a sum of slots: those of the unit that runs out first, at least 1."""
        return max([1, *(ceil(round(count / self.capacity[unit], 6)) for unit, count in slots.items())])

    def matmul_cycles(self, m: int, k: int, n: int, dtype: np.dtype[Any], *, passes: int = 1) -> int:
        """Cycles of an ``(m, k) @ (k, n)`` product: ideal by whole tiles of the MXU, plus its fill.

        ideal = ceil(k / side) * ceil(n / side) * max(ceil16(m) / rate, min(k, side) / 4) / MXUs, where a weight
        tile takes four rows a cycle to load; narrow types go faster where the MXU has them.  Within 5 % of libtpu's
        cycles for 128-multiples.  ``passes`` is 3 or 6 for float32 at precision HIGH or HIGHEST.
        """
        return self._product(passes, m, k, n, dtype)

    def access_cycles(self, n_bytes_padded: int, store: bool) -> int:
        """Cycles of a vector load or store of that many bytes of VMEM, tile padding included; at least 1."""
        unit = "VSTORE" if store else "VLOAD"
        return max(1, ceil_div(ceil_div(n_bytes_padded, VREG_BYTES), self.capacity[unit]))

    def scalar_cycles(self) -> int:
        """Cycles of one scalar operation, SMEM access included."""
        return 1

    def vregs(self, dtype: np.dtype[Any], shape: Shape) -> int:
        """Registers an array takes, those of masks counted as 32-bit words."""
        return self._vregs(shape, element_bits(dtype))

    def _vregs(self, shape: Shape, bits: int) -> int:
        return vregs(shape, bits, self._tiles[min(bits, 32)])

    def _row(self, name: str, dtype: np.dtype[Any], *, operands: int = 1) -> Mapping[str, float]:
        """Slots of a row for one vreg of ``dtype``; types the VPU lacks are unpacked to 32 bits and packed again."""
        row, bits = self._rows[name], element_bits(dtype)
        if bits == 16 and "bfloat16" in row:
            return row["bfloat16"]
        kinds = ("int32", "float32") if dtype.kind in "iub" else ("float32", "int32")
        wide = next(row[kind] for kind in kinds if kind in row)
        if bits >= 32:
            return wide
        if bits == 16 and self._has_16bit_lanes:
            return {unit: slots * (2 if unit in ("EUP", "VPOP") else 1) for unit, slots in wide.items()}
        parts = 32 // bits
        narrow = {unit: parts * slots for unit, slots in wide.items()}
        return {**narrow, "VALU": narrow.get("VALU", 0) + parts * operands + parts - 1}

    def _reduce(self, op: str, bits: int, shape: Shape, axes: tuple[int, ...]) -> Slots:
        """Reductions run in 32 bits: one VALU slot a vreg to combine, then the part within a vreg."""
        row, times = REDUCTIONS[op]
        shift = max(0, 2 - len(shape))
        axes = tuple(axis % len(shape) + shift for axis in axes)
        shape = (1, 1, *shape)[-max(2, len(shape)) :]
        rank = len(shape)
        in_lanes, in_rows = rank - 1 in axes, rank - 2 in axes
        row_vregs, lane_vregs = rows_and_lanes(shape, self._tiles[32])
        kept = prod(size for axis, size in enumerate(shape[:-2]) if axis not in axes)
        groups = kept * (1 if in_rows else row_vregs)
        columns = kept * (1 if in_lanes else lane_vregs)
        results = kept * (1 if in_rows else row_vregs) * (1 if in_lanes else lane_vregs)
        total: Slots = {"VALU": float(times * max(0, self._vregs(shape, 32) - results))}
        if bits < 32:
            total["VALU"] += (32 // bits) * self._vregs(shape, bits)
        if in_rows:
            _add(total, self._rows["reduce_sublanes"]["float32"], times * columns)
        if in_lanes:
            _add(total, self._rows[row]["float32"], times * groups)
        return total

    def _broadcast(self, dtype: np.dtype[Any], shape: Shape, out_shape: Shape, **how: Any) -> Slots:
        """Along sublanes and leading axes a broadcast is free; along lanes each group of 8 rows takes the XLU."""
        groups = broadcast_groups(shape, out_shape, how["axes"], self._tiles[32][0])
        total: Slots = {}
        _add(total, self._rows["broadcast_lanes"]["float32"], groups)
        return total

    def _reshape(self, dtype: np.dtype[Any], shape: Shape, out_shape: Shape, **how: Any) -> Slots:
        """Free where every tile stays a tile; else rows move (same lanes) or everything moves."""
        old, new = (1, 1, *shape), (1, 1, *out_shape)
        total: Slots = {}
        if prod(shape) <= 1 or old[-2:] == new[-2:]:
            return total
        bits = element_bits(dtype)
        sublanes = self._tiles[min(bits, 32)][0]
        if old[-1] == new[-1]:
            if old[-2] % sublanes or new[-2] % sublanes:
                _add(total, self._row("roll_sublanes", dtype), self._vregs(out_shape, bits))
            return total
        _add(total, self._row("roll_lanes", dtype), max(self._vregs(shape, bits), self._vregs(out_shape, bits)))
        return total

    def _transpose(self, dtype: np.dtype[Any], shape: Shape, out_shape: Shape, **how: Any) -> Slots:
        """Free where the last two axes stay in place."""
        axes, rank = how["axes"], len(shape)
        if axes is not None:
            stays = axes[-2:] == tuple(range(rank))[-2:]
        else:
            stays = rank > 2 and shape[-2:] == out_shape[-2:] and shape[-2] != shape[-1]
        total: Slots = {}
        if not stays:
            _add(total, self._row("transpose", dtype), self._vregs(shape, element_bits(dtype)))
        return total

    def _convert(self, dtype: np.dtype[Any], shape: Shape, out_shape: Shape, **how: Any) -> Slots:
        """By the widths of both types; a width the table lacks goes through 32 bits."""
        bits = element_bits(dtype)
        to_bits = bits if how["out_dtype"] is None else element_bits(how["out_dtype"])
        source, target = max(8, min(32, bits)), max(8, min(32, to_bits))
        casts = self._rows["cast"]
        count = self._vregs(shape, bits)
        total: Slots = {}
        if source == target:
            _add(total, casts["32>32"], count)
        elif f"{source}>{target}" in casts:
            _add(total, casts[f"{source}>{target}"], count)
        elif source == 8:
            _add(total, casts["8>16"], count)
            _add(total, casts["16>32"], 2 * count)
        else:
            _add(total, casts["16>32"], count)
            _add(total, casts["32>8"], 2 * count)
        return total

    def _product(self, times: int, m: int, k: int, n: int, dtype: np.dtype[Any]) -> int:
        """``times`` products one after the other, with one fill."""
        key = (times, m, k, n, dtype)
        cost = self._memo.get(key)
        if cost is None:
            cost = ceil(times * self._ideal(m, k, n, dtype) + self.chip.core.mxu_fill.number)
            self._memo[key] = cost
        return cost

    def _ideal(self, m: int, k: int, n: int, dtype: np.dtype[Any]) -> float:
        core = self.chip.core
        side, mxus = core.mxu_size.shape[0], core.mxus.integer
        rows_per_cycle = core.mxu_flops_per_cycle.number / (2 * side * side * mxus)
        rows = max(16 * ceil_div(m, 16) / rows_per_cycle, min(k, side) / 4)
        return ceil_div(k, side) * ceil_div(n, side) * rows / mxus / self._narrow_rate(dtype)

    def _narrow_rate(self, dtype: np.dtype[Any]) -> int:
        name = dtype.name.removeprefix("u").partition("_")[0]
        return self._mxu_rate.get(name, 1)


def _add(total: Slots, row: Mapping[str, float], times: float) -> None:
    for unit, slots in row.items():
        total[unit] = total.get(unit, 0.0) + slots * times


def _matrix_sizes(shapes: tuple[Shape, ...]) -> tuple[int, int, int]:
    """``m, k, n`` of ``(..., m, k)`` and ``(..., k, n)``."""
    if len(shapes) < 2 or len(shapes[0]) < 2 or len(shapes[1]) < 2 or shapes[0][-1] != shapes[1][-2]:
        raise OptionError(f"dot_general is priced for shapes (..., m, k) and (..., k, n), not {shapes}")
    return shapes[0][-2], shapes[0][-1], shapes[1][-1]


@cache
def _document() -> Mapping[str, Any]:
    text = TABLE.read_text(encoding="utf-8")
    document: Mapping[str, Any] = json.loads(text)
    return document


@lru_cache(maxsize=64)
def _table_of(chip: ChipSpec) -> CostTable:
    tables = _document()["chips"]
    if chip.cost_table is None or not chip.simulated:
        raise NotModelledError(f"compute costs of chip {chip.name}: it is shown, not simulated")
    if chip.cost_table not in tables:
        raise OptionError(f"chip {chip.name}: no cost table '{chip.cost_table}'. Possible: {', '.join(tables)}")
    return CostTable(chip, tables[chip.cost_table], _document()["provenance"])
