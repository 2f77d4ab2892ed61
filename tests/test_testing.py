"""``tpusim.testing``: strategies that shrink schedules as well as data, and a test over every schedule."""

from __future__ import annotations

import random
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import tpusim
from tpusim import HBM, VMEM, SemaphoreType, ShapeDtypeStruct, axis_index, axis_size, make_async_remote_copy, when
from tpusim.errors import OptionError, RaceError
from tpusim.kernel_file import load_file
from tpusim.schedules import make_schedule
from tpusim.specs import as_dtype
from tpusim.testing import (
    ScheduleFailure,
    Start,
    Wait,
    dma_programs,
    dtypes,
    every_schedule,
    meshes,
    places,
    register_random,
    schedules,
    shapes,
    slices,
)
from tpusim.topology import Slice

DMA = SemaphoreType.DMA
TILE = ShapeDtypeStruct((8, 128), "float32")
RING = load_file(str(Path(__file__).parents[1] / "kernels" / "ring_all_gather.py"))
X = np.arange(4 * 1024, dtype=np.float32).reshape(32, 128)
QUICK = settings(max_examples=40)
THOROUGH = settings(max_examples=2000, database=None, phases=(Phase.generate, Phase.shrink))


@tpusim.kernel(out_shape=TILE, in_specs=HBM, out_specs=HBM, scratch_shapes=(VMEM((8, 128), "float32"), DMA, DMA, DMA))
def hasty(x_ref, o_ref, buffer, send, recv, own):
    """Passes on what its left neighbour sends after a time in which it has always come."""
    copy = make_async_remote_copy(x_ref, buffer, send, recv, device_id=(axis_index("x") + 1) % axis_size("x"))
    copy.start()
    copy.wait_send()
    tpusim.delay(4000)
    onward = tpusim.make_async_copy(buffer, o_ref, own)
    onward.start()
    onward.wait()
    copy.wait_recv()


def is_wrong(schedule):
    result = hasty.simulate(X, slice="v5e:2x2", schedule=schedule, on_finding="record", checks="none")
    return not (result.outputs[0] == np.roll(X, 8, axis=0)).all()


# -- strategies -------------------------------------------------------------------------------------------


def test_a_failing_schedule_shrinks_to_one_held_leg():
    assert not is_wrong("default")
    assert find(schedules(4), is_wrong, settings=THOROUGH) == "try-hold:0/-/start1/writer"


def test_schedule_and_data_shrink_together():
    both = st.tuples(schedules(4), st.lists(st.integers(0, 100), min_size=1))
    schedule, data = find(both, lambda pair: is_wrong(pair[0]) and sum(pair[1]) > 10, settings=THOROUGH)
    assert (schedule, data) == ("try-hold:0/-/start1/writer", [11])


def test_the_least_of_everything():
    def least(strategy):
        return find(strategy, lambda _: True, settings=settings(max_examples=20, database=None))

    assert least(slices()) == "v5e:1x1"
    assert least(meshes(("x", "y"))) == {"x": 1, "y": 1}
    assert least(shapes()) == (8, 128)
    assert least(shapes(is_tiled=False)) == (1, 1)
    assert least(dtypes()) == "float32"
    assert least(schedules(4)) == "default"
    assert len(least(dma_programs()).steps) <= 1


@QUICK
@given(slices(max_devices=8))
def test_slices_exist_and_are_small_enough(text):
    assert Slice.parse(text).num_devices <= 8


@QUICK
@given(meshes(("x", "y"), max_devices=12), shapes(), shapes(is_tiled=False, max_rows=9, max_lanes=300), dtypes())
def test_meshes_shapes_and_dtypes_are_within_their_limits(mesh, tiled, loose, dtype):
    assert list(mesh) == ["x", "y"]
    assert prod(mesh.values()) <= 12
    assert (tiled[0] % 8, tiled[1] % 128) == (0, 0)
    assert tiled <= (64, 512)
    assert loose <= (9, 300)
    assert as_dtype(dtype).itemsize in (1, 2, 4)


@given(schedules(4), places(4))
def test_schedules_are_ones_the_option_takes(schedule, place):
    assert make_schedule(schedule, 0, None).text == schedule
    assert place.operation.device in [(), (0,), (1,), (2,), (3,)]


def test_no_slice_is_small_enough():
    with pytest.raises(OptionError, match=r"^slices: no chip of v7x has a slice of at most 1 devices$"):
        slices(["v7x"], max_devices=1)


@settings(max_examples=20)
@given(dma_programs(devices=2, is_careful=True, max_steps=3), schedules(2))
def test_careful_programs_mean_one_thing_in_every_schedule(program, schedule):
    result = program.simulate(schedule=schedule)
    for got, want in zip(result.outputs, program.reference(), strict=True):
        np.testing.assert_array_equal(got, want)


@settings(max_examples=20)
@given(dma_programs(devices=2, is_careful=True, max_steps=4))
def test_careful_programs_are_proven(program):
    verdict = program.kernel.verify(*program.inputs(), mesh=2)
    assert verdict.answer == "proven", verdict.reasons


def test_a_program_without_its_wait_shrinks_to_the_copy():
    def is_racy(program):
        try:
            program.simulate()
        except RaceError:
            return True
        except tpusim.errors.FindingError:
            return False
        return False

    program = find(dma_programs(), is_racy, settings=THOROUGH)
    assert sum(isinstance(step, Start) for step in program.steps) <= 2
    assert len(program.steps) <= 3
    assert not any(isinstance(step, Wait) for step in program.steps[:-2])


# -- randomness -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [random.Random(5), np.random.default_rng(5)])
def test_registered_generators_start_each_example_alike(source):
    managed = register_random(source)
    drawn = []

    @settings(max_examples=5, database=None)
    @given(st.integers())
    def test(_):
        drawn.append(float(source.random()))

    before = managed.getstate()
    test()
    assert len(drawn) == 5
    assert len(set(drawn)) == 1
    assert str(managed.getstate()) == str(before)


def test_what_is_no_generator_is_refused():
    with pytest.raises(OptionError, match=r"^register_random takes a random.Random or .* not 3$"):
        register_random(3)


# -- every schedule ---------------------------------------------------------------------------------------


def test_a_proven_kernel_runs_once():
    runs = []

    @every_schedule(slice="v5e:2x2")
    def check(simulate):
        result = simulate(RING.kernel, X)
        runs.append(result)
        np.testing.assert_array_equal(result.outputs[0], RING.reference(X, devices=4))

    check()
    assert len(runs) == 1


def test_a_refuted_kernel_fails_with_what_replays_it():
    @every_schedule(slice="v5e:2x2", checks="none", on_finding="record")
    def check(simulate):
        assert (simulate(hasty, X).outputs[0] == np.roll(X, 8, axis=0)).all()

    with pytest.raises(ScheduleFailure) as caught:
        check()
    first, second, *rest = str(caught.value).splitlines()
    assert first == "hasty is refuted:"
    assert second.startswith(("race: ", "lifetime: "))
    assert any(line.startswith("  Replay: ") for line in rest)


def polls(wrong_after):
    """A kernel to which the proof does not apply, since a read selects what it does."""

    @tpusim.kernel(out_shape=TILE, in_specs=HBM, scratch_shapes=(VMEM((8, 128), "float32"), DMA))
    def kernel(x_ref, o_ref, buffer, sem):
        copy = tpusim.make_async_copy(x_ref, buffer, sem)
        copy.start()
        tpusim.delay(wrong_after)
        seen = tpusim.semaphore_read(sem)
        copy.wait()

        @when(seen > 0)
        def _():
            o_ref[...] = buffer[...]

        @when(seen == 0)
        def _():
            o_ref[...] = buffer[...] * 0.0

    return kernel


def test_where_nothing_is_proven_the_test_runs_under_many_schedules():
    kernel, seen = polls(10_000), []

    @every_schedule(runs=12, seed=3, slice="v5e:1x1")
    def check(simulate):
        result = simulate(kernel, X[:8])
        seen.append(result.token)
        np.testing.assert_array_equal(result.outputs[0], X[:8])

    assert kernel.verify(X[:8], slice="v5e:1x1").answer == "not-proven"
    with pytest.raises(ScheduleFailure) as caught:
        check()
    assert str(caught.value).startswith("AssertionError: ")
    assert str(caught.value).endswith(f" one of 12 schedules, seed 3.  Replay: {seen[-1]}.")
    replayed = kernel.simulate(X[:8], slice="v5e:1x1", replay=seen[-1])
    assert not (replayed.outputs[0] == X[:8]).all()


def test_a_test_that_holds_under_many_schedules_passes():
    tokens = []

    @every_schedule(runs=10, slice="v5e:1x1")
    def check(simulate):
        result = simulate(polls(10_000), X[:8])
        tokens.append(result.token)
        assert result.ok

    check()
    assert len(tokens) == 11  # once before the proof was asked
    assert len(set(tokens)) == 10


def test_what_the_decorator_cannot_take():
    with pytest.raises(OptionError, match=r"^every_schedule needs at least one run, not 0$"):
        every_schedule(runs=0)
    with pytest.raises(OptionError, match=r"^every_schedule: the first parameter of wrong has to be called simulate$"):

        @every_schedule()
        def wrong(run):
            pass

    with pytest.raises(OptionError, match=r"^every_schedule: the test never called simulate$"):
        every_schedule()(lambda simulate: None)()


@every_schedule(slice="v5e:2x2")
def test_fixtures_and_arguments_reach_a_decorated_test(simulate, tmp_path):
    assert tmp_path.is_dir()
    assert simulate(RING.kernel, X).ok
