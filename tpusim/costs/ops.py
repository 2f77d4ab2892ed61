"""Which rows of the cost table price which JAX primitive.

Elementwise primitives without a row of their own are priced as the sum of the rows they expand to.  Primitives that
move data within registers (reductions, broadcasts, transposes) need shapes as well and are priced in
:mod:`tpusim.costs.table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_ONE_ALU = (
    *("add", "add_any", "sub", "neg", "abs", "and", "or", "xor", "not", "eq", "ne", "lt", "le", "gt", "ge"),
    *("select_n", "iota", "is_finite", "floor", "ceil", "round", "population_count", "clz", "reduce_precision"),
)
_FREE = (
    *("copy", "copy_p", "squeeze", "expand_dims", "bitcast", "bitcast_convert_type", "optimization_barrier"),
    *("stop_gradient", "multiple_of", "unpack_elementwise", "pack_elementwise", "split"),
)
_MOVES_ROWS = ("concatenate", "slice", "dynamic_slice", "dynamic_update_slice", "pad", "tile", "repeat")
_ROLL_AND_ADD = ("roll_lanes", "add") * 7

ELEMENTWISE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    dict.fromkeys(_ONE_ALU, ("add",))
    | dict.fromkeys(_FREE, ())
    | dict.fromkeys(_MOVES_ROWS, ("roll_sublanes",))
    | {
        "sign": ("add", "add"),
        "nextafter": ("add", "add"),
        "mul": ("mul",),
        "square": ("mul",),
        "integer_pow": ("mul", "mul"),
        "max": ("max",),
        "min": ("max",),
        "clamp": ("max", "max"),
        "shift_left": ("shift",),
        "shift_right_logical": ("shift",),
        "shift_right_arithmetic": ("shift",),
        "div": ("div",),
        "rem": ("div", "mul", "add", "add"),
        "exp": ("exp",),
        "exp2": ("exp",),
        "expm1": ("exp", "add"),
        "log": ("log",),
        "log1p": ("log", "add"),
        "pow": ("log", "mul", "exp"),
        "cbrt": ("log", "mul", "exp"),
        "tanh": ("tanh",),
        "logistic": ("logistic",),
        "erf": ("gelu",),
        "erfc": ("gelu", "add"),
        "erf_inv": ("log", "gelu"),
        "rsqrt": ("rsqrt",),
        "sqrt": ("sqrt",),
        "sin": ("sin",),
        "cos": ("sin",),
        "tan": ("sin", "sin", "div"),
        "sinh": ("exp", "exp", "mul"),
        "cosh": ("exp", "exp", "mul"),
        "asin": ("sqrt", "div", "gelu"),
        "acos": ("sqrt", "div", "gelu"),
        "atan": ("div", "gelu"),
        "atan2": ("div", "gelu", "add"),
        "roll": ("roll_lanes",),
        "rev": ("roll_lanes",),
        "gather": ("gather",),
        "cumsum": _ROLL_AND_ADD,
        "cumprod": _ROLL_AND_ADD,
        "cummax": _ROLL_AND_ADD,
        "cummin": _ROLL_AND_ADD,
        "cumlogsumexp": _ROLL_AND_ADD,
    }
)
"""Primitive -> the rows whose slots it takes for each vreg."""

REDUCTIONS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "reduce_sum": ("reduce_sum_lanes", 1),
        "reduce_prod": ("reduce_sum_lanes", 1),
        "reduce_max": ("reduce_max_lanes", 1),
        "reduce_min": ("reduce_max_lanes", 1),
        "reduce_and": ("reduce_max_lanes", 1),
        "reduce_or": ("reduce_max_lanes", 1),
        "reduce_xor": ("reduce_sum_lanes", 1),
        "argmax": ("reduce_max_lanes", 2),
        "argmin": ("reduce_max_lanes", 2),
    }
)
"""Primitive -> the row for its cross-lane part, and how often it is taken (2: the value, then its index)."""

SHAPED = frozenset({"broadcast_in_dim", "reshape", "transpose", "convert_element_type", "dot_general"})
"""Primitives that :mod:`tpusim.costs.table` prices by their shapes or dtypes."""
