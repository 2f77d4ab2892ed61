"""A small kernel for each primitive that Pallas TPU kernels use, captured, beside the same function in plain JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from capturing import call, mesh, over_mesh

import tpusim

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
jnp = jax.numpy
lax = jax.lax
pl = pytest.importorskip("jax.experimental.pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu")
P = jax.sharding.PartitionSpec

pytestmark = pytest.mark.jax

SHAPE = (8, 128)
RANDOM = np.random.default_rng(7)
X = RANDOM.uniform(0.1, 0.9, SHAPE).astype(np.float32)
N = RANDOM.integers(-50, 50, SHAPE).astype(np.int32)
M = RANDOM.integers(1, 9, SHAPE).astype(np.int32)
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR

COMPUTE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda x, n, m: x + 1.5,
    "select_n": lambda x, n, m: jnp.where(n > 0, x, -x),
    "convert_element_type": lambda x, n, m: n.astype(jnp.bfloat16).astype(jnp.float32),
    "eq": lambda x, n, m: (n == m).astype(jnp.int32),
    "mul": lambda x, n, m: n * m,
    "and": lambda x, n, m: n & m,
    "sub": lambda x, n, m: n - m,
    "broadcast_in_dim": lambda x, n, m: jnp.broadcast_to(x[:, 0:1], SHAPE),
    "ne": lambda x, n, m: (n != m).astype(jnp.int32),
    "or": lambda x, n, m: n | m,
    "rem": lambda x, n, m: lax.rem(n, m),
    "shift_right_logical": lambda x, n, m: lax.shift_right_logical(n, m),
    "lt": lambda x, n, m: (n < m).astype(jnp.int32),
    "ge": lambda x, n, m: (n >= m).astype(jnp.int32),
    "dot_general": lambda x, n, m: jnp.dot(x, x.T, preferred_element_type=jnp.float32),
    "iota": lambda x, n, m: lax.broadcasted_iota(jnp.int32, SHAPE, 1) + n,
    "div": lambda x, n, m: lax.div(n, m),
    "exp": lambda x, n, m: jnp.exp(x),
    "gt": lambda x, n, m: (x > 0.5).astype(jnp.int32),
    "tile": lambda x, n, m: jnp.tile(x, (2, 1)),
    "sign": lambda x, n, m: jnp.sign(n),
    "xor": lambda x, n, m: n ^ m,
    "not": lambda x, n, m: ~n,
    "max": lambda x, n, m: jnp.maximum(n, m),
    "reshape": lambda x, n, m: x.reshape(2, 4, 128),
    "reduce_sum": lambda x, n, m: x.sum(axis=1, keepdims=True),
    "reduce_max": lambda x, n, m: x.max(axis=0, keepdims=True),
    "shift_left": lambda x, n, m: lax.shift_left(n, m),
    "slice": lambda x, n, m: lax.slice(x, (2, 0), (6, 128)),
    "transpose": lambda x, n, m: x.T,
    "min": lambda x, n, m: jnp.minimum(x, 0.5),
    "tanh": lambda x, n, m: jnp.tanh(x),
    "le": lambda x, n, m: (n <= 3).astype(jnp.int32),
    "log": lambda x, n, m: jnp.log(x),
    "bitcast_convert_type": lambda x, n, m: lax.bitcast_convert_type(x, jnp.int32),
    "squeeze": lambda x, n, m: lax.squeeze(x[:, None, :], (1,)),
    "clamp": lambda x, n, m: lax.clamp(jnp.float32(0.3), x, jnp.float32(0.6)),
    "concatenate": lambda x, n, m: jnp.concatenate([x, n.astype(jnp.float32)], 0),
    "argmax": lambda x, n, m: jnp.argmax(x, axis=1).reshape(8, 1),
    "argmin": lambda x, n, m: jnp.argmin(x, axis=1).reshape(8, 1),
    "reduce_min": lambda x, n, m: x.min(axis=1, keepdims=True),
    "gather": lambda x, n, m: jnp.take_along_axis(x, jnp.abs(n) % 8, axis=0),
    "logistic": lambda x, n, m: jax.nn.sigmoid(x),
    "erf_inv": lambda x, n, m: lax.erf_inv(x),
    "cumsum": lambda x, n, m: jnp.cumsum(x, axis=0),
    "sort": lambda x, n, m: jnp.sort(x, axis=1),
    "integer_pow": lambda x, n, m: x**3,
    "rsqrt": lambda x, n, m: lax.rsqrt(x),
    "custom_jvp_call": lambda x, n, m: jax.nn.relu(x - 0.5),
    "scan": lambda x, n, m: lax.fori_loop(0, 3, lambda i, v: v * 0.5 + i, x),
    "while": lambda x, n, m: lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] * 2), (m[0, 0] * 0, x))[1],
    "cond": lambda x, n, m: lax.cond(n[0, 0] > 0, lambda: x * 2, lambda: x + 1),
    "jit": lambda x, n, m: jax.jit(lambda v: v * 2 + 1)(x),
}
"""By primitive: a function of floats in (0, 1), integers, and small positive integers."""

PALLAS: dict[str, tuple[Callable[[Any, Any, Any], Any], Callable[[Any, Any, Any], Any]]] = {
    "multiple_of": (
        lambda x, n, m: x * pl.multiple_of(8 * m[0, 0], 8).astype(jnp.float32),
        lambda x, n, m: x * np.float32(8 * m[0, 0]),
    ),
    "roll": (lambda x, n, m: pltpu.roll(x, 3, 1), lambda x, n, m: jnp.roll(x, 3, 1)),
}
"""Pallas's own: the kernel's function and what it means."""


def primitives(jaxpr: Any) -> Iterator[str]:
    from tpusim.pallas import internals

    for eqn in internals.all_equations(jaxpr):
        yield eqn.primitive.name


def traced(fn: Any, *arrays: Any) -> set[str]:
    closed = jax.make_jaxpr(fn)(*arrays)
    return set(primitives(getattr(closed, "jaxpr", closed)))


def kernel_of(function: Callable[..., Any], like: Any) -> Any:
    def kernel(x_ref: Any, n_ref: Any, m_ref: Any, o_ref: Any) -> None:
        o_ref[...] = function(x_ref[...], n_ref[...], m_ref[...])

    return call(kernel, (like.shape, like.dtype))


@pytest.mark.parametrize("name", COMPUTE)
def test_primitives_that_compute(name: str) -> None:
    function = COMPUTE[name]
    want = jax.jit(function)(X, N, M)
    fn = kernel_of(function, want)
    assert name in traced(fn, X, N, M)
    run = tpusim.pallas.simulate(fn)
    np.testing.assert_allclose(run(X, N, M), want, rtol=2e-6, atol=1e-6)
    assert run.result.findings == ()
    assert run.result.time > 0


@pytest.mark.parametrize("name", PALLAS)
def test_primitives_of_pallas_that_compute(name: str) -> None:
    function, meaning = PALLAS[name]
    want = meaning(X, N, M)
    fn = kernel_of(function, want)
    np.testing.assert_allclose(tpusim.pallas.simulate(fn)(X, N, M), want, rtol=1e-6)


def everything_else(x_ref: Any, n_ref: Any, o_ref: Any, p_ref: Any, v: Any, sem: Any, send: Any, receive: Any) -> None:
    """Copies, semaphores, memory and control in one kernel of a ring."""
    here, size = lax.axis_index("x"), lax.axis_size("x")
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1, device_id={"x": (here - 1) % size})
    pl.semaphore_wait(barrier, 1)
    pltpu.sync_copy(x_ref, v)
    v[...] = v[...] * 2
    pltpu.store(v.at[...], v[...] + 1, mask=lax.broadcasted_iota(jnp.int32, SHAPE, 1) < 64)
    v[0:1] = pltpu.load(v.at[0:1], mask=lax.broadcasted_iota(jnp.int32, (1, 128), 1) >= 0)
    copy = pltpu.make_async_remote_copy(v, o_ref, send, receive, device_id={"x": (here + 1) % size})
    copy.start()
    copy.wait()
    pl.semaphore_signal(sem, 3)
    pl.delay(10)
    p_ref[0] = pl.semaphore_read(sem) + pl.program_id(0) + pl.num_programs(0)
    pl.semaphore_wait(sem, 3)
    pl.debug_print("here {}", here)

    @pl.when(n_ref[0] > 0)
    def _() -> None:
        def scoped(w: Any) -> None:
            w[...] = jnp.zeros(SHAPE)
            p_ref[1] = n_ref[0]

        pl.run_scoped(scoped, pltpu.VMEM(SHAPE, jnp.float32))

    p_ref[2] = 0


def test_primitives_of_memory_copies_semaphores_and_control() -> None:
    fn = call(
        everything_else,
        [(SHAPE, np.float32), ((3,), np.int32)],
        [pltpu.VMEM(SHAPE, jnp.float32), REGULAR(()), DMA(()), DMA(())],
        ["hbm", "smem"],
        ["hbm", "smem"],
        grid=(1,),
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )
    whole = over_mesh(fn, mesh(4), (P("x"), P()), (P("x"), P("x")))
    x, n = np.tile(X, (4, 1)) + np.arange(32, dtype=np.float32)[:, None], np.array([5], np.int32)
    met = traced(whole, x, n)
    assert met >= {
        "get", "swap", "run_scoped", "masked_swap", "masked_load", "dma_start", "dma_wait", "semaphore_signal",
        "semaphore_wait", "get_barrier_semaphore", "semaphore_read", "delay", "cond", "program_id",
        "axis_index", "debug_print",
    }  # fmt: skip
    run = tpusim.pallas.simulate(whole)
    out, numbers = run(x, n)
    want = x * 2
    want[:, :64] += 1
    np.testing.assert_array_equal(out, np.roll(want, 8, 0))
    assert np.asarray(numbers).tolist() == [4, 5, 0] * 4
    assert run.result.findings == ()
    assert len(run.result.printed) == 4
