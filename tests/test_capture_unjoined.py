"""Calls are not joined unless the program joins them: a fast device may be a call ahead of a slow one."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from capturing import call, mesh, over_mesh
from hypothesis import given, settings
from hypothesis import strategies as st

import tpusim
from tpusim.errors import DeadlockError, LifetimeError, RaceError

jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
jnp = jax.numpy
lax = jax.lax
pl = pytest.importorskip("jax.experimental.pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu")
P = jax.sharding.PartitionSpec

pytestmark = pytest.mark.jax

SHAPE = (8, 128)
X = np.arange(4 * 1024, dtype=np.float32).reshape(32, 128)
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR
CYCLES = 100_000


def slow_on(device: int, x: Any) -> Any:
    """Add 1, and be slow about it on one device."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        @pl.when(lax.axis_index("x") == device)
        def _() -> None:
            pl.delay(CYCLES)

        o_ref[...] = x_ref[...] + 1

    return call(kernel, (x.shape, x.dtype))(x)


def mapped(fn: Any) -> Any:
    return over_mesh(fn, mesh(4), P("x"), P("x"))


SLOW = [mapped(partial(slow_on, device)) for device in range(4)]


def time_and_calls(fn: Any, x: Any = X) -> tuple[Any, int, list[Any]]:
    """Result, time in ps, and the machine's calls."""
    run = tpusim.pallas.simulate(fn)
    out = run(x)
    assert run.result.findings == ()
    return out, int(run.result.time), run.result.cores[0].machine.calls


ONE = time_and_calls(SLOW[0])[1]
"""Time of one call with a slow device."""


@pytest.mark.parametrize(
    "fn",
    [
        mapped(lambda x: slow_on(1, slow_on(0, x))),
        lambda x: SLOW[1](SLOW[0](x)),
        jax.jit(lambda x: SLOW[1](jnp.where(SLOW[0](x) > 2, 1, -1.0) * 2 + x)),
    ],
    ids=["one shard_map", "two shard_maps", "elementwise between"],
)
def test_a_device_goes_on_while_another_is_slow(fn: Any) -> None:
    _, time, (first, second) = time_and_calls(fn)
    assert second.begin_ps < first.end_ps
    assert time < 1.1 * ONE


@pytest.mark.parametrize(
    "between",
    [lambda y: jnp.roll(y, 8, 0), lambda y: y + y.sum(), lambda y: y[::-1], mapped(lambda y: lax.psum(y, "x"))],
)
def test_what_needs_all_of_an_array_joins(between: Any) -> None:
    _, time, (first, second) = time_and_calls(lambda x: SLOW[1](between(SLOW[0](x))))
    assert second.begin_ps >= first.end_ps
    assert time > 1.9 * ONE


def test_results_are_those_of_joined_calls() -> None:
    def fn(x: Any) -> Any:
        y = SLOW[1](SLOW[0](x) * 2)
        return y, SLOW[2](y + y.sum()), y[0], jnp.where(y > 3, y, 0)

    y = (X + 1) * 2 + 1
    for got, want in zip(time_and_calls(fn)[0], (y, y + y.sum() + 1, y[0], np.where(y > 3, y, 0)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_collective_joins_its_group_alone() -> None:
    def body(x: Any) -> Any:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            @pl.when((lax.axis_index("x") == 0) & (lax.axis_index("y") == 0))
            def _() -> None:
                pl.delay(CYCLES)

            o_ref[...] = x_ref[...]

        y = lax.psum(call(kernel, (x.shape, x.dtype))(x), "y")
        return call(lambda a, o: o.__setitem__(..., a[...] + 1), (x.shape, x.dtype))(y)

    run = tpusim.pallas.simulate(over_mesh(body, mesh(2, 2), P(("x", "y")), P(("x", "y"))))
    run(X)
    ends = [core.exited_ps for core in run.result.cores]
    assert ends[0] == ends[1] > 2 * ends[2]
    assert ends[2] == ends[3]


def test_an_array_that_is_cut_anew_joins_those_it_is_cut_over() -> None:
    slow = over_mesh(partial(slow_on, 0), mesh(2, 2), P("x", "y"), P("x", "y"))
    then = over_mesh(lambda x: slow_on(1, x), mesh(2, 2), P(None, "y"), P(None, "y"))
    wide = np.arange(16 * 256, dtype=np.float32).reshape(16, 256)
    out, _, (first, second) = time_and_calls(lambda x: then(slow(x)), wide)
    np.testing.assert_array_equal(out, wide + 2)
    assert second.begin_ps >= first.end_ps  # x=0 is slow on both y, and x=1 needs its part
    kept = over_mesh(lambda x: slow_on(1, x), mesh(2, 2), P("x", "y"), P("x", "y"))
    assert time_and_calls(lambda x: kept(slow(x)), wide)[1] < 1.1 * ONE


SPECS = [P(), P("x"), P("y"), P(None, "x"), P(("x", "y")), P(("y", "x")), P("x", "y"), P("y", "x"), P(None, ("y", "x"))]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(SPECS), st.sampled_from(["none", "add", "roll"])), min_size=2, max_size=4))
def test_arrays_are_cut_anew_as_shard_maps_want_them(steps: list[tuple[Any, str]]) -> None:
    x = np.arange(64, dtype=np.float32).reshape(8, 8)

    def fn(x: Any) -> Any:
        for spec, then in steps:
            x = over_mesh(lambda v: v * 2 + 1, mesh(2, 2), spec, spec)(x)
            x = {"none": x, "add": x + jnp.ones(x.shape), "roll": jnp.roll(x, 3, 1)}[then]
        return x

    want = x
    for _, then in steps:
        want = want * 2 + 1
        want = {"none": want, "add": want + 1, "roll": np.roll(want, 3, 1)}[then]
    np.testing.assert_array_equal(tpusim.pallas.simulate(fn)(x), want)


# -- what only calls that are not joined reveal --------------------------------------------------------


def permit_kernel(x_ref: Any, o_ref: Any, send: Any, receive: Any) -> None:
    """Devices 0 and 2 tell device 1 that they are there; device 1 counts to two and copies to device 2."""
    here = lax.axis_index("x")
    barrier = pltpu.get_barrier_semaphore()

    @pl.when((here == 0) | (here == 2))
    def _() -> None:
        pl.semaphore_signal(barrier, 1, device_id={"x": 1})

    copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, receive, device_id={"x": 2})

    @pl.when(here == 1)
    def _() -> None:
        pl.semaphore_wait(barrier, 2)
        copy.start()
        copy.wait_send()

    @pl.when(here == 2)
    def _() -> None:
        copy.wait_recv()


def permit(x: Any) -> Any:
    fn = call(
        permit_kernel, (x.shape, x.dtype), [DMA(())] * 2, ["any"], ["any"],
        compiler_params=pltpu.CompilerParams(collective_id=3),
    )  # fmt: skip
    return fn(x)


@pytest.mark.parametrize("maps", [1, 2])
def test_a_fast_device_of_the_next_call_stands_in_for_a_slow_one(maps: int) -> None:
    if maps == 1:
        fn = mapped(lambda x: permit(permit(slow_on(2, x))))
    else:
        fn = lambda x: mapped(permit)(mapped(permit)(SLOW[2](x)))  # noqa: E731
    run = tpusim.pallas.simulate(fn)
    with pytest.raises(LifetimeError) as caught:
        run(X)
    # Device 0 has signalled twice, from two calls, before device 2 came to the first.
    assert re.search(r"a copy to o_ref on device \(2,\)|o_ref.*device \(2,\)", str(caught.value)), str(caught.value)
    # What the slow device shows here by its time, a verdict finds without it.
    assert tpusim.pallas.verify(mapped(lambda x: permit(permit(x))), X).answer == "refuted"
    joined = mapped(lambda x: permit(lax.psum(permit(lax.psum(slow_on(2, x), "x")), "x")))
    tpusim.pallas.simulate(joined)(X)
    assert tpusim.pallas.verify(joined, X).answer == "proven"


def neighbour_kernel(x_ref: Any, y_ref: Any, send: Any, receive: Any, o_ref: Any) -> None:
    here = lax.axis_index("x")
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, receive, device_id={"x": (here + 1) % 4})
    copy.start()
    copy.wait()


@pytest.mark.parametrize("joined", [True, False])
def test_a_collective_is_an_order_that_later_calls_may_rely_on(joined: bool) -> None:
    """A buffer that a first call hands on is there for other devices once all of them have been in that call."""

    def body(x: Any) -> Any:
        y, send, receive = call(
            lambda x_ref, o_ref, *_: pltpu.sync_copy(x_ref, o_ref),
            [(x.shape, x.dtype), DMA(()), DMA(())], (), ["any"], ["any", "sem", "sem"],
        )(x)  # fmt: skip
        if joined:
            x = x + 0 * lax.psum(x, "x")
        fn = call(
            neighbour_kernel, (y.shape, y.dtype), (), ["any", "any", "sem", "sem"], ["any"],
            input_output_aliases={1: 0}, compiler_params=pltpu.CompilerParams(skip_device_barrier=True),
        )  # fmt: skip
        return fn(x, y, send, receive)

    verdict = tpusim.pallas.verify(mapped(body), X, calls=2)
    assert verdict.answer == ("proven" if joined else "refuted")
    assert any("XLA collectives" in premise for premise in verdict.premises) == joined
    run = tpusim.pallas.simulate(mapped(body))
    if joined:
        np.testing.assert_array_equal(run(X), np.roll(X, 8, 0))
        assert run.result.findings == ()
    else:
        with pytest.raises((LifetimeError, RaceError)):  # the first call may still be copying into it
            run(X)


def test_devices_that_need_an_array_of_one_that_is_stuck() -> None:
    def stuck(x: Any) -> Any:
        def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
            @pl.when(lax.axis_index("x") == 2)
            def _() -> None:
                pl.semaphore_wait(sem, 1)

            o_ref[...] = x_ref[...]

        return call(kernel, (x.shape, x.dtype), [REGULAR(())])(x)

    run = tpusim.pallas.simulate(lambda x: SLOW[0](jnp.roll(mapped(stuck)(x), 8, 0)))
    with pytest.raises(DeadlockError) as caught:
        run(X)
    text = str(caught.value)
    assert "4 of 4 devices can never proceed" in text
    assert "device (2,) waits for 1 unit on sem (value 0)" in text
    assert (
        "devices (0,)-(1,), (3,) each wait in an operation that needs a whole array, which device (2,) never reaches"
        in text
    )


def test_every_schedule_knows_meetings_and_unjoined_calls() -> None:
    unjoined = tpusim.pallas.verify(lambda x: mapped(permit)(mapped(permit)(SLOW[2](x))), X)
    assert unjoined.answer == "refuted"
    assert any("lifetime" in reason and "in call 2 of 3" in reason for reason in unjoined.reasons)
    joined = mapped(lambda x: permit(lax.psum(permit(lax.psum(slow_on(2, x), "x")), "x")))
    assert tpusim.pallas.verify(joined, X).answer == "proven"
    assert tpusim.pallas.verify(lambda x: SLOW[1](jnp.roll(SLOW[0](x), 8, 0)), X).answer == "proven"
