"""Ranges of a kernel's integers: never narrower than what they may be, and what is left out because of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from capturing import mesh, over_mesh
from hypothesis import given
from hypothesis import strategies as st

import tpusim

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
pl = pytest.importorskip("jax.experimental.pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu")
jnp = jax.numpy
lax = jax.lax

pytestmark = pytest.mark.jax

from tpusim.pallas import ranges  # noqa: E402  # after the check for jax
from tpusim.pallas.scalar_ops import divide, remainder, sign  # noqa: E402

DEVICES = 8
MEANING: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "max": max,
    "min": min,
    "rem": remainder,
    "div": divide,
    "%": lambda a, b: a % b,
    "//": lambda a, b: a // b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "neg": lambda a: -a,
    "sign": sign,
    "select_n": lambda which, *cases: cases[which],
    "clamp": lambda least, a, most: max(least, min(a, most)),
}
SMALL = st.integers(-9, 9)
PAIRS = st.tuples(SMALL, SMALL).map(sorted).map(tuple)


@pytest.mark.parametrize("name", MEANING)
@given(data=st.data())
def test_a_result_is_in_its_range(name: str, data: st.DataObject) -> None:
    meaning = MEANING[name]
    count = {"neg": 1, "sign": 1, "select_n": 3, "clamp": 3}.get(name, 2)
    limits = data.draw(st.lists(PAIRS, min_size=count, max_size=count))
    if name in ("%", "//"):
        limits[1] = data.draw(st.tuples(st.integers(1, 5), st.integers(5, 9)))
    if name == "select_n":
        limits[0] = data.draw(st.sampled_from([(0, 0), (1, 1), (0, 1)]))
    found = ranges.of_result(name, limits)
    values = [data.draw(st.integers(*limit)) for limit in limits]
    if found is not None:
        assert found[0] <= meaning(*values) <= found[1]
    if all(low == high for low, high in limits) and name not in ("and", "or", "rem", "div"):
        assert found == (meaning(*values),) * 2


def expression(rng: random.Random, depth: int) -> Any:
    """A random function of two int32."""
    if depth == 0:
        constant = rng.choice([0, 1, 2, 3, 7, 8, 100, -1, -5, 2**31 - 1, -(2**31)])
        return rng.choice([lambda i, x: i, lambda i, x: i, lambda i, x: x, lambda i, x: jnp.int32(constant)])
    a, b = expression(rng, depth - 1), expression(rng, rng.randrange(depth))
    n = rng.choice([1, 2, 3, 7, 8, 2**31 - 1, -3])
    return rng.choice(
        [
            lambda i, x: a(i, x) + b(i, x),
            lambda i, x: a(i, x) - b(i, x),
            lambda i, x: a(i, x) * b(i, x),
            lambda i, x: a(i, x) % n,
            lambda i, x: a(i, x) % n,
            lambda i, x: a(i, x) // n,
            lambda i, x: lax.rem(a(i, x), jnp.int32(n)),
            lambda i, x: lax.div(a(i, x), jnp.int32(n)),
            lambda i, x: jnp.where(a(i, x) < b(i, x), a(i, x) + 1, b(i, x)),
            lambda i, x: jnp.where((a(i, x) != 0) & (b(i, x) < 0), a(i, x) + n, a(i, x)),
            lambda i, x: lax.clamp(jnp.int32(-3), a(i, x), jnp.int32(5)),
            lambda i, x: jnp.sign(a(i, x)) * jnp.minimum(jnp.maximum(a(i, x), b(i, x)), 12),
            lambda i, x: (a(i, x) & b(i, x)) | jnp.int32(n & 5),
            lambda i, x: a(i, x).astype(jnp.int8).astype(jnp.int32),
            lambda i, x: lax.fori_loop(0, 3, lambda k, c: (c + k) % 7, a(i, x)),
        ]
    )


@pytest.mark.parametrize("seed", range(6))
def test_what_follows_from_a_devices_index_is_what_jax_computes(seed: int) -> None:
    rng = random.Random(seed)
    fns = [expression(rng, rng.randint(1, 4)) for _ in range(12)]
    x = np.array([0, 1, -1, 5, -7, 2**31 - 1, -(2**31), 100], np.int32)

    def kernel(x_ref: Any, o_ref: Any) -> None:
        i = lax.axis_index("x")
        for number, fn in enumerate(fns):
            o_ref[number] = fn(i, x_ref[0])

    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    call = pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct((len(fns),), jnp.int32), in_specs=[smem], out_specs=smem
    )
    spec = jax.sharding.PartitionSpec("x")
    mapped = over_mesh(call, mesh(DEVICES), spec, spec)
    got = np.asarray(tpusim.pallas.simulate(mapped, slice="v5e:2x4")(x)).reshape(DEVICES, len(fns))
    want = [[int(fn(jnp.int32(i), jnp.int32(x[i]))) for fn in fns] for i in range(DEVICES)]
    np.testing.assert_array_equal(got, want)


def source_of(fn: Any) -> str:
    """The Python that a kernel of one device's index becomes."""
    from tpusim.pallas.kernels import RULES
    from tpusim.pallas.lower import Lowering

    jaxpr = jax.make_jaxpr(lambda: fn(lax.axis_index("x")), axis_env=[("x", DEVICES)])().jaxpr
    return str(Lowering(jaxpr, "k", [], {"x": DEVICES}, True, RULES).out.source)


def test_a_neighbour_is_one_operator_and_no_wrap() -> None:
    for fn, text in [
        (lambda i: (i + 1) % DEVICES, "% 8)"),
        (lambda i: (i - 1) % DEVICES, "% 8)"),
        (lambda i: (i - 3) // 2, "// 2)"),
        (lambda i: lax.rem(i + 1, DEVICES), "% 8)"),
    ]:
        body = [line.strip() for line in source_of(fn).splitlines() if line.startswith("        v")]
        assert [line.split(" = ")[1] for line in body][:1] == ["rt.axis_index(('x',))"]
        assert len(body) == 3
        assert body[-1].endswith(text)
    assert "wrap" not in source_of(lambda i: (i * 1000 - 5) % DEVICES)
    assert "wrap" in source_of(lambda i: i * (1 << 29))
    assert "remainder" in source_of(lambda i: lax.rem(i - 1, DEVICES))
