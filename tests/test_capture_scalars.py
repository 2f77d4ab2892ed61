"""Scalars of captured kernels: each operation and type, bit for bit what JAX computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from capturing import call, run

import tpusim

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
jnp = jax.numpy
lax = jax.lax
pl = pytest.importorskip("jax.experimental.pallas")

pytestmark = pytest.mark.jax

INTEGERS = ["int8", "int16", "int32", "uint8", "uint16", "uint32"]
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lax.add,
    "sub": lax.sub,
    "mul": lax.mul,
    "div": lax.div,
    "rem": lax.rem,
    "max": lax.max,
    "min": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
    "shift_left": lax.shift_left,
    "shift_right_logical": lax.shift_right_logical,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "floor_divide": jnp.floor_divide,
    "mod": jnp.mod,
    "eq": lax.eq,
    "ne": lax.ne,
    "lt": lax.lt,
    "le": lax.le,
    "gt": lax.gt,
    "ge": lax.ge,
    "where": lambda a, b: jnp.where(a > b, a, b + 1),
    "clamp": lambda a, b: lax.clamp(jnp.minimum(a, b), a * b, jnp.maximum(a, b)),
}
UNARY: dict[str, Callable[..., Any]] = {
    "neg": lax.neg,
    "abs": lax.abs,
    "sign": lax.sign,
    "not": lax.bitwise_not,
    "square": lambda a: lax.integer_pow(a, 2),
    "cube": lambda a: lax.integer_pow(a, 3),
    "population_count": lax.population_count,
    "clz": lax.clz,
    "to bool": lambda a: a.astype(jnp.bool_),
    **{f"to {to}": (lambda a, to=to: a.astype(to)) for to in [*INTEGERS, "float32", "bfloat16"]},
}


def operands(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    info = np.iinfo(dtype)
    edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, info.bits - 1, info.bits, info.max // 3]
    if info.min < 0:
        edges += [-1, -2, -3, -7]
    rng = np.random.default_rng(1)
    edges += list(rng.integers(info.min, info.max, 8, dtype=dtype, endpoint=True))
    left, right = np.meshgrid(np.array(edges, dtype), np.array(edges, dtype))
    return left.ravel(), right.ravel()


def elementwise(fns: list[Callable[..., Any]], *arrays: np.ndarray) -> list[np.ndarray]:
    """Each function of one scalar after the other, in a captured kernel."""
    types = [jax.ShapeDtypeStruct((), a.dtype) for a in arrays]
    outs = [(arrays[0].shape, jax.eval_shape(fn, *types).dtype) for fn in fns]

    def kernel(*refs: Any) -> None:
        ins, out_refs = refs[: len(arrays)], refs[len(arrays) :]

        @pl.loop(0, arrays[0].size)
        def _(i: Any) -> None:
            values = [ref[i] for ref in ins]
            for fn, o_ref in zip(fns, out_refs, strict=True):
                o_ref[i] = fn(*values)

    spaces = {"spaces": ["smem"] * len(arrays), "out_spaces": ["smem"] * len(outs)}
    return run(kernel, outs, *arrays, **spaces)


def same(fns: dict[str, Callable[..., Any]], *arrays: np.ndarray) -> None:
    for (name, fn), got in zip(fns.items(), elementwise(list(fns.values()), *arrays), strict=True):
        want = np.asarray(fn(*map(jnp.asarray, arrays)))
        assert got.dtype == want.dtype
        different = (got != want) & ((got == got) | (want == want))
        wrong = [(name, *(a[i] for a in arrays), got[i], want[i]) for i in np.flatnonzero(different)]
        assert not wrong[:5]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_two_integers(dtype: str) -> None:
    same(ARITHMETIC, *operands(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_one_integer(dtype: str) -> None:
    ops = {name: fn for name, fn in UNARY.items() if name != "abs" or dtype[0] == "i"}
    same(ops, np.unique(operands(dtype)[0]))


def test_booleans() -> None:
    names = ["and", "or", "xor", "max", "min", "eq", "ne", "lt", "le", "gt", "ge"]
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    same({name: ARITHMETIC[name] for name in names}, a, b)
    same({name: UNARY[name] for name in ("not", "to int32", "to float32", "to uint8")}, a)


def test_floats() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([[0.0, -0.0, 1e38, -1e38, np.inf, 0.1], rng.normal(size=20)]).astype(np.float32)
    y = np.roll(x, 3)
    ops: dict[str, Callable[..., Any]] = {
        "arithmetic": lambda a, b: (a + b) * (jnp.abs(b) - a),
        "where": lambda a, b: jnp.where(a < b, a, jnp.minimum(b, 2.5)),
        "overflow": lambda a, b: jnp.maximum(a, b) * 1e30,
        "to int": lambda a, _: (jnp.clip(a, -100, 100) * 7).astype(jnp.int32) + 1,
        "bf16": lambda a, b: (a.astype(jnp.bfloat16) * b.astype(jnp.bfloat16)).astype(jnp.float32),
        "isnan": lambda a, _: jnp.isnan(a - a) | (jnp.floor(a) == a),
        "bits": lambda a, b: lax.bitcast_convert_type(a, jnp.int32) ^ lax.bitcast_convert_type(b, jnp.int32),
    }
    same(ops, x, y)
    (got,) = elementwise([lambda a: jnp.exp(-jnp.abs(a)) + jnp.tanh(a)], x)
    np.testing.assert_allclose(got, np.exp(-np.abs(x)) + np.tanh(x), rtol=1e-5)


def test_a_loop_carries_integers_floats_and_booleans() -> None:
    def fn(n: Any, x: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            count, total, flag = carry
            return count * 3 + i, total * 0.5 + x, ~flag & (i < 5)

        count, total, flag = lax.fori_loop(0, n, body, (n, x, True))
        return total + count + flag

    n = np.array([0, 1, 2, 9], np.int32)
    x = np.array([1, 2, 0.5, 3], np.float32)
    (got,) = elementwise([fn], n, x)
    np.testing.assert_array_equal(got, [np.asarray(fn(a, b)) for a, b in zip(n, x, strict=True)])


def test_int32_wraps_where_a_long_loop_leaves_its_range() -> None:
    def kernel(o_ref: Any) -> None:
        o_ref[0] = lax.fori_loop(0, 100, lambda i, h: h * 1664525 + 1013904223 + i, jnp.int32(42))
        o_ref[1] = lax.fori_loop(0, 40, lambda _, h: h + h, jnp.int32(1))

    got = tpusim.pallas.simulate(call(kernel, ((2,), np.int32), out_spaces=["smem"]))()
    h = 42
    for i in range(100):
        h = (h * 1664525 + 1013904223 + i) & 0xFFFFFFFF
    assert got[0] == np.array(h, np.uint32).view(np.int32)
    assert got[1] == 0
