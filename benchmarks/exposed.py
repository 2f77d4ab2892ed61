"""The one free constant of the default cost of compute, chosen on pieces of work that no accuracy is reported for.

``python benchmarks/exposed.py [--chips v5e,v5p,v6e]``

Needs the ``tpu`` extra, and no TPU.  Each piece is a kernel of one step in shapes that are not among those of
``compiler_kernels.py``; the compiler's cycles for it are compared with the default cost for every value of the
constant.  The best value is the one of the least mean error; it is what ``tpusim.costs.estimate`` has.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from math import exp, log
from statistics import mean, median
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from tpusim.costs import estimate
from tpusim.pallas import simulate
from tpusim.topology import Slice

F32, BF16 = jnp.float32, jnp.bfloat16
VALUES = [step / 20 for step in range(21)]


def dot(a: Any, b: Any) -> Any:
    """A product summed in float32."""
    return jnp.dot(a, b, preferred_element_type=F32)


def attention(q: Any, k: Any, v: Any) -> Any:
    """All keys at once."""
    scores = dot(q, k.T)
    weights = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))
    return dot(weights.astype(BF16), v) / jnp.sum(weights, axis=1, keepdims=True)


def pieces() -> Iterator[tuple[str, Callable[..., Any], list[tuple[Any, tuple[int, int]]]]]:
    """Name, function and types of its operands."""
    for rows, columns in ((64, 512), (128, 256), (384, 768), (32, 2048)):
        one = [(F32, (rows, columns))]
        yield f"variance {rows}x{columns}", lambda x: jnp.var(x, axis=1, keepdims=True) + 0 * x, one
        yield f"log-sum-exp {rows}x{columns}", lambda x: jax.nn.logsumexp(x, axis=1, keepdims=True) - x, one
        yield f"centred {rows}x{columns}", lambda x: x - jnp.mean(x, axis=1, keepdims=True), one
        yield f"scaled by maximum {rows}x{columns}", lambda x: x / jnp.max(jnp.abs(x), axis=1, keepdims=True), one
        yield (
            f"range {rows}x{columns}",
            lambda x: (x - jnp.min(x, 1, keepdims=True)) * jnp.max(x, 1, keepdims=True),
            one,
        )
    for side in (128, 384, 512):
        yield f"transposed {side}", lambda x: x.T, [(F32, (side, side))]
        yield f"symmetric {side}", lambda x: x + x.T, [(F32, (side, side))]
    for m, k, n in ((128, 256, 128), (256, 256, 512), (384, 512, 256), (512, 128, 512), (64, 1024, 128)):
        two = [(BF16, (m, k)), (BF16, (k, n))]
        yield f"product {m}x{k}x{n}", dot, two
        yield f"product, rectified {m}x{k}x{n}", lambda a, b: jnp.maximum(dot(a, b), 0), two
        yield f"product, softmax {m}x{k}x{n}", lambda a, b: jax.nn.softmax(dot(a, b), axis=1), two
    for m, k, n in ((128, 256, 256), (256, 512, 256)):
        three = [(BF16, (m, k)), (BF16, (k, n)), (BF16, (k, n))]
        yield f"gated {m}x{k}x{n}", lambda x, a, b: jax.nn.silu(dot(x, a)) * dot(x, b), three
        chain = [(BF16, (m, k)), (BF16, (k, n)), (BF16, (n, k))]
        yield f"two products {m}x{k}x{n}", lambda x, a, b: dot(jnp.maximum(dot(x, a), 0).astype(BF16), b), chain
    for queries, keys in ((128, 256), (256, 256), (128, 1024)):
        yield f"attention {queries}x{keys}", attention, [(BF16, (n, 128)) for n in (queries, keys, keys)]


def cycles(function: Callable[..., Any], operands: list[Any], chip: str, compute: str) -> float:
    """Cycles that a core computes in a kernel of one step."""
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in operands]
    out = jax.eval_shape(function, *shapes)

    def kernel(*refs: Any) -> None:
        refs[-1][...] = function(*(ref[...] for ref in refs[:-1]))

    call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(out.shape, out.dtype))
    run = simulate(call, slice=str(Slice.smallest(chip, 1)), data=False, checks="none", compute=compute)
    run(*shapes)
    found = sum(c.to_ps - c.from_ps for c in run.result.trace.computes if c.operation == "compute")
    return found * run.result.place.chip.clock_hz / 1e12


def main() -> None:
    """Print the error for every value, and the best one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", default="v5e,v5p,v6e")
    options = parser.parse_args()
    warnings.simplefilter("error")
    errors: dict[float, list[float]] = {value: [] for value in VALUES}
    usual = estimate.EXPOSED
    for chip in options.chips.split(","):
        for name, function, operands in pieces():
            try:
                real = cycles(function, operands, chip, "exact")
            except UserWarning as warning:
                print(f"{chip} {name}: left out, {warning}")
                continue
            for value in VALUES:
                estimate.EXPOSED = value
                errors[value].append(log(cycles(function, operands, chip, "default") / real))
            estimate.EXPOSED = usual
            print(f"{chip} {name:<32} {real:7.0f} cycles, default {exp(errors[usual][-1]) - 1:+.0%}", flush=True)
    for value, found in errors.items():
        sizes = list(map(abs, found))
        print(f"{value:.2f}  mean error {exp(mean(sizes)) - 1:.1%}, median {exp(median(sizes)) - 1:.1%}")
    print(f"best of {len(found)} pieces: {min(VALUES, key=lambda value: mean(map(abs, errors[value]))):.2f}")


if __name__ == "__main__":
    main()
