"""Captured kernels: array operations, also those that JAX has no CPU code for, and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from capturing import call, run

import tpusim
from tpusim.errors import NotModelledError

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
extend = pytest.importorskip("jax.extend")
jnp = jax.numpy
pl = pytest.importorskip("jax.experimental.pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu")

pytestmark = pytest.mark.jax

SHAPE = (8, 128)
RNG = np.random.default_rng(0)
X = RNG.normal(size=SHAPE).astype(np.float32)
F32 = (SHAPE, np.float32)


def same(fn: Any, *arrays: Any, rtol: float = 1e-6) -> None:
    """``fn`` in a kernel gives what it gives outside."""
    want = [np.asarray(value) for value in jax.tree.leaves(fn(*map(jnp.asarray, arrays)))]

    def kernel(*refs: Any) -> None:
        values = jax.tree.leaves(fn(*(ref[...] for ref in refs[: len(arrays)])))
        for ref, value in zip(refs[len(arrays) :], values, strict=True):
            ref[...] = value

    got = run(kernel, [(value.shape, value.dtype) for value in want], *arrays)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine.astype(np.float64), theirs.astype(np.float64), rtol=rtol, atol=rtol)


def test_reductions_and_orders() -> None:
    same(lambda x: (x.sum(1, keepdims=True), x.max(0), jnp.argmax(x, 1), jnp.argmin(x, 0)), X)
    same(lambda x: (jnp.sort(x, 1), jnp.cumsum(x, 0), jnp.cumprod(x, 1), jax.lax.top_k(x, 4)), X, rtol=1e-4)
    same(lambda x: (jnp.all(x > 0, 1), jnp.where(x > 0, x, -x), jnp.mean(x), jnp.any(x > 9)), X, rtol=1e-5)


def test_products() -> None:
    a, b = RNG.normal(size=(32, 64)).astype(np.float32), RNG.normal(size=(64, 128)).astype(np.float32)

    def products(a: Any, b: Any) -> Any:
        low = jnp.dot(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
        high = jnp.dot(a, b, precision=jax.lax.Precision.HIGHEST)
        return low, high, jnp.einsum("mk,kn->nm", a, b), jnp.einsum("hmk,hnk->hmn", a[None], b.T[None])

    same(products, a, b, rtol=1e-4)
    ints = RNG.integers(-9, 9, (32, 128)).astype(np.int8)
    same(lambda x: jnp.dot(x, x.T, preferred_element_type=jnp.int32), ints)


def test_shapes() -> None:
    same(lambda x: (x.T, x.reshape(4, 256), jnp.concatenate([x, x], 1), jnp.tile(x, (2, 1)), jnp.pad(x, 3)), X)
    same(lambda x: (jax.lax.broadcasted_iota(jnp.int32, SHAPE, 1) + jnp.arange(128), x[::2, 5:9], jnp.flip(x, 1)), X)


def test_rolls() -> None:
    same(lambda x: (jnp.roll(x, 3, 1), jnp.roll(x, -1, 0)), X)
    out = run(lambda x, o: o.__setitem__(..., pltpu.roll(x[...], 5, 1)), F32, X)
    np.testing.assert_array_equal(out, np.roll(X, 5, 1))

    def strided(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = pltpu.roll(x_ref[...], s_ref[0], 1, stride=2, stride_axis=0)

    out = run(strided, F32, np.array([3], np.int32), X, spaces=["smem", "vmem"])
    np.testing.assert_array_equal(out, np.stack([np.roll(row, 3 + 2 * i) for i, row in enumerate(X)]))


def test_bits() -> None:
    x = RNG.integers(0, 1 << 16, (16, 128)).astype(np.uint16)
    out = run(lambda x, o: o.__setitem__(..., pltpu.bitcast(x[...], jnp.uint32)), (SHAPE, np.uint32), x)
    np.testing.assert_array_equal(out, x[::2].astype(np.uint32) | x[1::2].astype(np.uint32) << 16)
    back = run(lambda x, o: o.__setitem__(..., pltpu.bitcast(x[...], jnp.uint16)), ((16, 128), np.uint16), out)
    np.testing.assert_array_equal(back, x)


def test_packing_floats() -> None:
    y = RNG.normal(size=SHAPE).astype(np.float32)

    def kernel(x_ref: Any, y_ref: Any, packed_ref: Any, o_ref: Any, p_ref: Any) -> None:
        packed = pltpu.pack_elementwise([x_ref[...], y_ref[...]], packed_dtype=jnp.bfloat16)
        packed_ref[...] = packed
        for index, ref in enumerate((o_ref, p_ref)):
            ref[...] = pltpu.unpack_elementwise(
                packed, index=index, packed_dtype=jnp.bfloat16, unpacked_dtype=jnp.float32
            )

    packed, first, second = run(kernel, [(SHAPE, np.uint32), F32, F32], X, y)
    low, high = (np.asarray(jnp.asarray(v).astype(jnp.bfloat16)) for v in (X, y))
    np.testing.assert_array_equal(packed, low.view(np.uint16) | high.view(np.uint16).astype(np.uint32) << 16)
    np.testing.assert_array_equal(first, low.astype(np.float32))
    np.testing.assert_array_equal(second, high.astype(np.float32))


@pytest.mark.parametrize("narrow", ["int8", "uint8", "int16", "int4"])
def test_packing_integers(narrow: str) -> None:
    count = {"int4": 8, "int16": 2}.get(narrow, 4)
    xs = [RNG.integers(-300, 300, SHAPE).astype(np.int32) for _ in range(count)]

    def kernel(*refs: Any) -> None:
        packed = pltpu.pack_elementwise([ref[...] for ref in refs[:count]], packed_dtype=jnp.dtype(narrow))
        for index, ref in enumerate(refs[count:]):
            ref[...] = pltpu.unpack_elementwise(
                packed, index=index, packed_dtype=jnp.dtype(narrow), unpacked_dtype=jnp.int32
            )

    for x, out in zip(xs, run(kernel, [(SHAPE, np.int32)] * count, *xs), strict=True):
        bits = 4 if narrow == "int4" else np.dtype(narrow).itemsize * 8
        want = x & ((1 << bits) - 1)
        if narrow[0] == "i":
            want = np.where(want >> (bits - 1), want - (1 << bits), want)
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("narrow", ["int2", "uint2", "int4", "uint4", "float4_e2m1fn", "int8", "int16", "float32"])
def test_bits_as_other_types(narrow: str) -> None:
    dtype = jnp.dtype(narrow)
    count = {"int2": 16, "uint2": 16, "int16": 2, "int8": 4, "float32": 1}.get(narrow, 8)
    x = RNG.integers(0, 2**31, SHAPE).astype(np.int32)

    def kernel(x_ref: Any, o_ref: Any, back_ref: Any, by_bytes_ref: Any) -> None:
        parts = pltpu.bitcast(x_ref[...], dtype)
        o_ref[...] = parts
        back_ref[...] = pltpu.bitcast(parts, jnp.int32)
        by_bytes_ref[...] = pltpu.bitcast(pltpu.bitcast(parts, jnp.int8), jnp.int32)

    rows = SHAPE[0] * count, SHAPE[1]
    parts, back, by_bytes = run(kernel, [(rows, dtype), (SHAPE, np.int32), (SHAPE, np.int32)], x)
    np.testing.assert_array_equal(back, x)
    np.testing.assert_array_equal(by_bytes, x)
    if "int" in narrow:
        bits = 32 // count
        words = np.stack([x.view(np.uint32) >> bits * n & (1 << bits) - 1 for n in range(count)], 1).astype(np.int32)
        signed = np.where(words >> bits - 1, words - (1 << bits), words) if narrow[0] == "i" else words
        np.testing.assert_array_equal(parts.astype(np.int32), signed.reshape(rows))


@pytest.mark.skipif(not hasattr(pltpu, "split_bits"), reason="this jax has no pltpu.split_bits")
def test_bits_of_two_and_four() -> None:
    x = RNG.integers(0, 64, (32, 128)).astype(np.int8)

    def kernel(x_ref: Any, o_ref: Any) -> None:
        four, two = pltpu.split_bits(x_ref[...], (4, 2))
        o_ref[...] = pltpu.join_bits(two_bits=two, four_bits=four)

    np.testing.assert_array_equal(run(kernel, ((32, 128), np.int8), x), x)


@pytest.mark.skipif(not hasattr(pltpu, "conv"), reason="this jax has no pltpu.conv")
@pytest.mark.parametrize("with_sum", [False, True])
def test_a_convolution(with_sum: bool) -> None:
    x, w = (RNG.integers(-3, 4, shape).astype(np.float32) for shape in ((1, 6, 7, 8), (3, 3, 8, 16)))
    names, around = ("NHWC", "HWIO", "NHWC"), {"window_strides": (1, 2), "padding": "SAME"}

    def kernel(x_ref: Any, w_ref: Any, o_ref: Any) -> None:
        start = (jnp.ones(o_ref.shape),) if with_sum else ()
        o_ref[...] = pltpu.conv(
            x_ref[...], w_ref[...], *start, dimension_numbers=names, window_reversal=(True, False), **around
        )

    out = run(kernel, ((1, 6, 4, 16), np.float32), x, w)
    want = jax.lax.conv_general_dilated(x, w[::-1], dimension_numbers=names, **around)
    np.testing.assert_array_equal(out, np.asarray(want) + with_sum)


def bits_kernel(s_ref: Any, o_ref: Any, p_ref: Any) -> None:
    pltpu.prng_seed(s_ref[0], s_ref[1])
    o_ref[...] = pltpu.prng_random_bits(SHAPE)

    @pl.loop(0, 8)
    def _(i: Any) -> None:
        p_ref[i] = pltpu.prng_random_bits((128,))


def test_bits_of_the_core_are_random_and_those_of_their_seed() -> None:
    outs = [(SHAPE, np.int32)] * 2

    def draw(*seeds: int) -> Any:
        return run(bits_kernel, outs, np.array(seeds, np.int32), spaces=["smem"])

    first, second = draw(1, 2)
    assert abs(np.mean(first.view(np.uint32) / 2**32) - 0.5) < 0.05
    for bit in range(32):
        assert 0.4 < np.mean(first.view(np.uint32) >> bit & 1) < 0.6
    assert len(np.unique(np.concatenate([first, second]))) > 2040
    np.testing.assert_array_equal(draw(1, 2), (first, second))
    assert (draw(1, -2)[0] != first).any()


def test_keys_of_jax_in_a_kernel() -> None:
    def kernel(s_ref: Any, key_ref: Any, o_ref: Any, n_ref: Any, u_ref: Any) -> None:
        key = jax.random.fold_in(jax.random.key(s_ref[0]), 3)

        def body(i: Any, key: Any) -> Any:
            first, second = jax.random.split(key)
            n_ref[i] = jax.random.randint(second, (128,), 0, 100)
            return first

        key = jax.lax.fori_loop(0, 8, body, key)
        o_ref[...] = jax.random.normal(key, SHAPE)
        u_ref[...] = jax.random.uniform(key_ref[...], SHAPE)

    outer = jax.random.key(7)
    normal, ints, uniform = run(
        kernel, [F32, (SHAPE, np.int32), F32], np.array([5], np.int32), outer, spaces=["smem", "smem"]
    )
    key = jax.random.fold_in(jax.random.key(5), 3)
    for i in range(8):
        key, second = jax.random.split(key)
        np.testing.assert_array_equal(ints[i], jax.random.randint(second, (128,), 0, 100))
    np.testing.assert_allclose(normal, jax.random.normal(key, SHAPE), rtol=1e-6)
    np.testing.assert_array_equal(uniform, jax.random.uniform(outer, SHAPE))


def test_keys_of_pallas_in_a_kernel() -> None:
    def kernel(key_ref: Any, o_ref: Any, p_ref: Any, q_ref: Any) -> None:
        key = key_ref[...]
        o_ref[...] = jax.random.uniform(key, SHAPE)
        p_ref[...] = jax.random.uniform(jax.random.fold_in(key, 1), SHAPE)
        pltpu.prng_seed(3)
        q_ref[...] = pltpu.stateful_uniform(SHAPE)

    key = pltpu.to_pallas_key(jax.random.key(0))
    first, second, third = run(kernel, [F32] * 3, key, spaces=["smem"])
    for out in (first, second, third):
        assert ((out >= 0) & (out < 1)).all()
        assert abs(out.mean() - 0.5) < 0.05
    assert (first != second).any()
    np.testing.assert_array_equal(run(kernel, [F32] * 3, key, spaces=["smem"])[1], second)


def test_rounding_by_chance() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        pltpu.prng_seed(0)
        bits = jax.lax.bitcast_convert_type(pltpu.prng_random_bits((64, 128)), jnp.uint32)
        o_ref[...] = pltpu.stochastic_round(x_ref[...], bits, target_dtype=jnp.bfloat16)

    x = np.full((64, 128), 1 + 1 / 512, np.float32)  # a quarter of the way between two bfloat16
    x[0, 0], x[0, 1] = np.inf, -1.5
    out = run(kernel, ((64, 128), jnp.bfloat16), x).astype(np.float32)
    assert out[0, 0] == np.inf
    assert out[0, 1] == -1.5
    assert set(np.unique(out[1:])) == {1, 1 + 1 / 128}
    assert 0.22 < (out[1:] > 1).mean() < 0.28


def test_math() -> None:
    same(lambda x: (jnp.exp(x), jnp.tanh(x), jax.lax.logistic(x), jnp.sqrt(jnp.abs(x)), jnp.sign(x)), X, rtol=1e-5)
    same(lambda x: (jax.lax.erf(x), jnp.log1p(jnp.abs(x)), jnp.power(jnp.abs(x), 1.5), jnp.floor(x) % 3), X, rtol=1e-4)
    same(lambda x: (1 / x, jax.lax.rsqrt(jnp.abs(x))), X, rtol=1e-5)
    reciprocal = pltpu.reciprocal if hasattr(pltpu, "reciprocal") else pl.reciprocal
    out = run(lambda x, o: o.__setitem__(..., reciprocal(x[...])), F32, X)
    np.testing.assert_allclose(out, 1 / X, rtol=1e-6)
    same(lambda x: (x.astype(jnp.bfloat16) * 3, x.astype(jnp.int8), (x > 0).astype(jnp.int32), x * 1e38), X)


def test_an_unknown_primitive_is_named_with_the_users_line() -> None:
    mystery = extend.core.Primitive("mystery")

    @mystery.def_abstract_eval
    def _(x: Any) -> Any:
        return x

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = mystery.bind(x_ref[...])

    with pytest.raises(NotModelledError, match=r"mystery.*test_capture_values.py"):
        run(kernel, F32, X)


def test_scalars_without_data() -> None:
    def kernel(n_ref: Any, f_ref: Any, x_ref: Any, o_ref: Any, t_ref: Any) -> None:
        scale = f_ref[0] * 2 + jnp.float32(n_ref[0])
        count = (scale + 0.5).astype(jnp.int32)
        t_ref[0] = count

        @pl.loop(0, count)
        def _(i: Any) -> None:
            o_ref[i] = x_ref[i] * scale

        t_ref[1] = t_ref[0] + jnp.where(f_ref[0] > 1, 1, 2)
        pl.run_scoped(
            lambda sem: pltpu.async_copy(o_ref.at[t_ref[1]], o_ref.at[0], sem).wait(), pltpu.SemaphoreType.DMA
        )

    fn = call(kernel, [F32, ((2,), np.int32)], (), ["smem", "smem", "vmem"], ["vmem", "smem"])
    arrays = (np.array([1], np.int32), np.array([1.25], np.float32), X)
    full, bare = tpusim.pallas.simulate(fn), tpusim.pallas.simulate(fn, data=False)
    assert full(*arrays)[1].tolist() == [4, 5]
    bare(*arrays)
    assert bare.result.time == full.result.time
    assert [str(c.src_region) for c in bare.result.trace.copies] == [
        str(c.src_region) for c in full.result.trace.copies
    ]


def test_a_scalar_that_is_not_there_without_data() -> None:
    def from_vmem(x_ref: Any, o_ref: Any) -> None:
        @pl.loop(0, x_ref[0, 0].astype(jnp.int32))
        def _(i: Any) -> None:
            o_ref[i] = x_ref[i]

    def through_smem(x_ref: Any, o_ref: Any) -> None:
        def body(s: Any, sem: Any) -> None:
            pltpu.async_copy(x_ref, s, sem).wait()
            o_ref[...] = jnp.zeros(SHAPE) + s[0].astype(jnp.float32)

            @pl.when(s[1] > 3)
            def _() -> None:
                o_ref[0] = jnp.zeros(128)

        pl.run_scoped(body, pltpu.SMEM((128,), jnp.int32), pltpu.SemaphoreType.DMA)

    def by_store(x_ref: Any, o_ref: Any) -> None:
        def body(s: Any) -> None:
            s[0] = jnp.max(x_ref[...])
            o_ref[...] = jnp.full(SHAPE, s[0])

            @pl.when(s[0] > 0)
            def _() -> None:
                o_ref[0] = jnp.zeros(128)

        pl.run_scoped(body, pltpu.SMEM((1,), jnp.float32))

    for kernel, x, space in [
        (from_vmem, np.full(SHAPE, 3, np.float32), "vmem"),
        (through_smem, np.full(128, 3, np.int32), "hbm"),
        (by_store, X, "vmem"),
    ]:
        fn = call(kernel, F32, (), [space])
        tpusim.pallas.simulate(fn)(x)
        with pytest.raises(NotModelledError, match=r"data=False.*run it with data=True.*test_capture_values.py"):
            tpusim.pallas.simulate(fn, data=False)(x)
