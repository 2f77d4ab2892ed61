"""Twenty-six one-chip Pallas kernels of our own, on which times are compared with the TPU compiler's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

F32, BF16 = jnp.float32, jnp.bfloat16


class Case(NamedTuple):
    """A function of one or more kernels, and the types of its arguments."""

    name: str
    function: Callable[..., Any]
    shapes: list[Any]


def matmul(m, k, n, bm, bk, bn, dtype=BF16, epilogue=lambda x: x):
    """``(m, k) @ (k, n)`` in blocks, summed in a float32 scratch over the innermost grid axis."""

    def kernel(a, b, o, acc):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(a[...], b[...], preferred_element_type=F32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            o[...] = epilogue(acc[...]).astype(o.dtype)

    def run(a, b):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((m, n), dtype),
            grid=(m // bm, n // bn, k // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
                pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
            scratch_shapes=[pltpu.VMEM((bm, bn), F32)],
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=60 << 20),
        )(a, b)

    return run, [jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((k, n), dtype)]


def rowwise(function, shape, rows, inputs=1, dtype=F32, out_dtype=None, columns=None):
    """``function`` of blocks of ``rows`` whole rows; its result has ``columns`` columns, or as many as its operands."""
    out = jax.ShapeDtypeStruct((shape[0], columns or shape[1]), out_dtype or dtype)

    def kernel(*refs):
        refs[-1][...] = function(*(ref[...] for ref in refs[:-1])).astype(out.dtype)

    def run(*arrays):
        return pl.pallas_call(
            kernel,
            out_shape=out,
            grid=(shape[0] // rows,),
            in_specs=[pl.BlockSpec((rows, shape[1]), lambda i: (i, 0))] * inputs,
            out_specs=pl.BlockSpec((rows, out.shape[1]), lambda i: (i, 0)),
        )(*arrays)

    return run, [jax.ShapeDtypeStruct(shape, dtype)] * inputs


def transpose(m, n, block):
    """Square blocks, each transposed and put in its place."""

    def kernel(x, o):
        o[...] = x[...].T

    def run(x):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((n, m), F32),
            grid=(m // block, n // block),
            in_specs=[pl.BlockSpec((block, block), lambda i, j: (i, j))],
            out_specs=pl.BlockSpec((block, block), lambda i, j: (j, i)),
        )(x)

    return run, [jax.ShapeDtypeStruct((m, n), F32)]


def column_sum(m, n, rows):
    """Sums over rows, kept in the output's window over the grid."""

    def kernel(x, o):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o[...] = jnp.zeros_like(o)

        o[...] += jnp.sum(x[...].reshape(rows // 8, 8, n), axis=0)

    def run(x):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((8, n), F32),
            grid=(m // rows,),
            in_specs=[pl.BlockSpec((rows, n), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((8, n), lambda i: (0, 0)),
        )(x)

    return run, [jax.ShapeDtypeStruct((m, n), F32)]


def flash(heads, length, depth, bq, bk):
    """Attention with a running maximum and sum, blocks of keys innermost."""

    def kernel(q, k, v, o, high, total, acc):
        step = pl.program_id(2)

        @pl.when(step == 0)
        def _():
            high[...] = jnp.full_like(high, -1e30)
            total[...] = jnp.zeros_like(total)
            acc[...] = jnp.zeros_like(acc)

        scores = jax.lax.dot_general(q[0], k[0], (((1,), (1,)), ((), ())), preferred_element_type=F32)
        before = high[...]
        now = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
        weights = jnp.exp(scores - now[:, :1])
        scale = jnp.exp(before - now)
        total[...] = scale * total[...] + jnp.sum(weights, axis=1, keepdims=True)
        acc[...] = acc[...] * scale[:, :1] + jnp.dot(weights.astype(BF16), v[0], preferred_element_type=F32)
        high[...] = now

        @pl.when(step == pl.num_programs(2) - 1)
        def _():
            o[0] = (acc[...] / total[...][:, :1]).astype(o.dtype)

    def run(q, k, v):
        whole = jax.ShapeDtypeStruct((heads, length, depth), BF16)
        at_q = pl.BlockSpec((1, bq, depth), lambda h, i, j: (h, i, 0))
        at_k = pl.BlockSpec((1, bk, depth), lambda h, i, j: (h, j, 0))
        return pl.pallas_call(
            kernel,
            out_shape=whole,
            grid=(heads, length // bq, length // bk),
            in_specs=[at_q, at_k, at_k],
            out_specs=at_q,
            scratch_shapes=[pltpu.VMEM((bq, 128), F32), pltpu.VMEM((bq, 128), F32), pltpu.VMEM((bq, depth), F32)],
        )(q, k, v)

    return run, [jax.ShapeDtypeStruct((heads, length, depth), BF16)] * 3


def _normalised(x):
    mean = jnp.mean(x, axis=1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(jnp.mean((x - mean) ** 2, axis=1, keepdims=True) + 1e-6)


def _root_mean_square(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + 1e-6)


def _sum_in_lanes(x):
    return jnp.broadcast_to(jnp.sum(x, axis=1, keepdims=True), (x.shape[0], 128))


def _max_in_lanes(x):
    return jnp.broadcast_to(jnp.max(x, axis=1, keepdims=True), (x.shape[0], 128))


def cases() -> list[Case]:
    """All of them."""
    wide = (4096, 1024)
    made = {
        "matmul 4096^3, 512/1024/1024": matmul(4096, 4096, 4096, 512, 1024, 1024),
        "matmul 2048^3, 512/512/512": matmul(2048, 2048, 2048, 512, 512, 512),
        "matmul 2048^3, 256/1024/512": matmul(2048, 2048, 2048, 256, 1024, 512),
        "matmul 1024^3, 256/256/256": matmul(1024, 1024, 1024, 256, 256, 256),
        "matmul 1024^3, 128/128/128": matmul(1024, 1024, 1024, 128, 128, 128),
        "matmul 1024x4096x512, 256/2048/256": matmul(1024, 4096, 512, 256, 2048, 256),
        "matmul 1024^3 float32, 256/256/256": matmul(1024, 1024, 1024, 256, 256, 256, F32),
        "matmul 2048^3 + gelu, 512/512/512": matmul(2048, 2048, 2048, 512, 512, 512, BF16, jax.nn.gelu),
        "flash 2x1024x128, 256/512": flash(2, 1024, 128, 256, 512),
        "flash 4x2048x128, 512/512": flash(4, 2048, 128, 512, 512),
        "add, 256 rows": rowwise(lambda a, b: a + b, wide, 256, 2),
        "add, 8x128": rowwise(lambda a, b: a + b, (2048, 128), 8, 2),
        "scale, 32x512": rowwise(lambda a: 2 * a, (2048, 512), 32),
        "a * b + c": rowwise(lambda a, b, c: a * b + c, (2048, 1024), 128, 3),
        "exp": rowwise(jnp.exp, wide, 256),
        "gelu": rowwise(jax.nn.gelu, (2048, 1024), 256),
        "sigmoid": rowwise(jax.nn.sigmoid, (2048, 1024), 256),
        "divide": rowwise(lambda a, b: a / b, (2048, 1024), 128, 2),
        "float32 to bfloat16": rowwise(lambda a: a, wide, 256, out_dtype=BF16),
        "softmax": rowwise(lambda a: jax.nn.softmax(a, axis=1), wide, 256),
        "layer norm": rowwise(_normalised, wide, 256),
        "root mean square": rowwise(_root_mean_square, wide, 128),
        "sum of rows": rowwise(_sum_in_lanes, wide, 256, columns=128),
        "maximum of rows": rowwise(_max_in_lanes, wide, 512, columns=128),
        "transpose, 256x256": transpose(2048, 2048, 256),
        "sum of columns": column_sum(4096, 1024, 512),
    }
    return [Case(name, *value) for name, value in made.items()]
