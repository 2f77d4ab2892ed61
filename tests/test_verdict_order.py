"""A verdict is about all schedules, so it is the same whatever run it was made from: delays change no answer."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tpusim import (
    HBM,
    Kernel,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    axis_size,
    delay,
    make_async_copy,
    make_async_remote_copy,
    run_scoped,
    semaphore_signal,
    semaphore_wait,
    when,
)
from tpusim.findings import Kind

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
PARTS = 8


class Part(NamedTuple):
    """What a device does in one scope: ``signal`` or ``send`` over some hops, or ``copy``; perhaps in one more scope.

    ``before`` and ``after``: hops of a handshake outside of the scope's semaphores, 0 for none.
    """

    kind: str
    hops: int
    is_nested: bool
    before: int
    after: int


HOPS = st.sampled_from([0, 0, 1, -1])
PROGRAMS = st.lists(
    st.builds(
        Part, st.sampled_from(["signal", "send", "copy"]), st.sampled_from([1, 2, -1]), st.booleans(), HOPS, HOPS
    ),
    min_size=1,
    max_size=4,
)
DELAYS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([None, None, 0, 1]), st.just(20_000)), min_size=1, max_size=3
)


def kernel_of(parts: list[Part], delays: list[tuple[int, int | None, int]]) -> Kernel:
    """``delays``: before which step, on which device or on all, how many nanoseconds."""

    def kernel(x_ref: Any, o_ref: Any, handshakes: Any, own_sem: Any) -> None:
        n, me = axis_size("x"), axis_index("x")
        steps = iter(range(1_000))

        def there(hops: int) -> Any:
            return (me + hops + 2 * n) % n

        def wait_a_while() -> None:
            """Cores run ahead of time until something blocks them, so a copy to be waited for belongs to a delay."""
            step = next(steps)
            own = make_async_copy(x_ref, o_ref.at[PARTS - 1], own_sem)

            def pause(nanos: int) -> None:
                delay(nanos)
                own.start()
                own.wait()

            for at, device, nanos in delays:
                if at == step:
                    when((me == device) if device is not None else me >= 0)(partial(pause, nanos))

        def meet(hops: int) -> None:
            if hops:
                wait_a_while()
                semaphore_signal(handshakes, device_id=there(hops))
                semaphore_wait(handshakes)

        for number, part in enumerate(parts):

            def body(one: Any, other: Any, count: Any, number: int = number, part: Part = part) -> None:
                meet(part.before)
                wait_a_while()
                place = o_ref.at[number]
                if part.kind == "signal":
                    semaphore_signal(count, device_id=there(part.hops))
                    wait_a_while()
                    semaphore_wait(count)
                else:
                    copy = make_async_copy(x_ref, place, one)
                    if part.kind == "send":
                        copy = make_async_remote_copy(x_ref, place, one, other, device_id=there(part.hops))
                    copy.start()
                    wait_a_while()
                    copy.wait()
                meet(part.after)

            wait_a_while()
            if part.is_nested:
                run_scoped(lambda _, body=body: run_scoped(body, DMA, DMA, REGULAR), REGULAR)
            else:
                run_scoped(body, DMA, DMA, REGULAR)

    out_shape = ShapeDtypeStruct((PARTS, 8, 128), "float32")
    return Kernel(kernel, out_shape=out_shape, in_specs=HBM, out_specs=HBM, scratch_shapes=(REGULAR, DMA))


@settings(max_examples=60, deadline=None)
@given(PROGRAMS, st.integers(2, 4), DELAYS)
def test_the_answer_does_not_depend_on_the_run(
    parts: list[Part], devices: int, delays: list[tuple[int, int | None, int]]
) -> None:
    x = np.zeros((devices * 8, 128), np.float32)
    answers = []
    everywhere = [(step, None, 20_000) for step in range(40)]
    for chosen in ([], delays, everywhere):
        verdict = kernel_of(parts, chosen).verify(x, mesh=devices, slice="v5e:4x4", data=False)
        kinds = {finding.kind for finding in verdict.errors} - {Kind.LEAK}  # one follows from a lifetime fault, or not
        answers.append((verdict.answer, kinds))
        assert not any("did not begin meanwhile" in finding.message for finding in verdict.errors)
    assert answers[1:] == answers[:1] * 2
