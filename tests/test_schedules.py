"""Schedules: every one is a legal order, the same seed gives the same one, and a token finds it again."""

from __future__ import annotations

import runpy
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulating import error_of, run, tiles

import tpusim
from tpusim import (
    HBM,
    VMEM,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    axis_size,
    fori_loop,
    make_async_copy,
    make_async_remote_copy,
    semaphore_read,
    semaphore_signal,
    semaphore_wait,
    when,
)
from tpusim.chips import load_chip
from tpusim.errors import OptionError, RaceError
from tpusim.judges.witness import name_copy, name_operation
from tpusim.kernel_file import load_file
from tpusim.schedules import Operation, Place, hold_token
from tpusim.units import ps_from_seconds

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
KERNELS = Path(__file__).parents[1] / "kernels"
TILE = VMEM((8, 128), "float32")
SCHEDULES = ("random", "shuffle", "eager", "lazy", "newest", "split", "slow-device:1", "slow-link:0.0-1.0")


def ring():
    return load_file(str(KERNELS / "ring_all_gather.py"))


# -- legal orders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [*SCHEDULES, "try-hold:1/-/start2/writer.last"])
@pytest.mark.parametrize("name", ["ring_all_gather", "all_reduce", "all_to_all", "barrier"])
def test_a_right_kernel_is_right_under_every_schedule(name, schedule):
    file = load_file(str(KERNELS / f"{name}.py"))
    arrays = file.inputs(devices=4)
    result = file.kernel.simulate(*arrays, slice="v5e:2x2", schedule=schedule, seed=3)
    expected = file.reference(*arrays, devices=4)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, wanted in zip(result.outputs, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert result.ok


@settings(max_examples=30)
@given(st.integers(0, 1 << 30), st.sampled_from(["random", "shuffle"]))
def test_equal_seeds_give_equal_events_and_bytes_are_conserved(seed, schedule):
    file = ring()
    arrays = file.inputs(devices=4)
    first, second, named = (
        file.kernel.simulate(*arrays, slice="v5e:2x2", **options)
        for options in (
            {"schedule": schedule, "seed": seed},
            {"schedule": schedule, "seed": seed},
            {"replay": f"t1:{schedule}:{seed}"},
        )
    )
    assert first.token == named.token == f"t1:{schedule}:{seed}"
    assert events(first) == events(second) == events(named)
    assert first.bytes == file.kernel.simulate(*arrays, slice="v5e:2x2").bytes


def events(result):
    copies = [(c.core.device, c.issued_ps, c.begin_ps, c.read_ps, c.written_ps) for c in result.trace.copies]
    waits = [(w.core.device, str(w.semaphore), w.amount, w.from_ps, w.to_ps) for w in result.trace.waits]
    return copies, waits, result.time


def test_a_schedule_that_delays_nothing_is_the_default_one():
    file = load_file(str(KERNELS / "all_reduce.py"))
    arrays = file.inputs(devices=4)
    plain = file.kernel.simulate(*arrays, slice="v5e:2x2")
    offered = file.kernel.simulate(*arrays, slice="v5e:2x2", schedule="try-hold:9/nowhere/start1")
    assert plain.token is None
    assert sorted(events(plain)[0]) == sorted(events(offered)[0])
    assert plain.time == offered.time


def test_different_seeds_give_different_times_within_the_chips_intervals():
    def kernel(x_ref, o_ref, send, recv):
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=1 - axis_index("x"))
        copy.start()
        copy.wait()

    chip = load_chip("v5e")
    start, hop = chip.dma.start_latency_remote.interval, chip.ici.hop_latency.interval
    rates = [quantity.interval for quantity in (chip.ici.link_bandwidth, chip.hbm.bandwidth)]
    latencies = set()
    for seed in range(20):
        result = run(kernel, tiles(2), mesh=2, scratch_shapes=(DMA, DMA), schedule="random", seed=seed)
        for copy in result.trace.copies:
            latency = copy.written_ps - copy.issued_ps
            fastest = ps_from_seconds(start[0] + hop[0] + 4096 / max(rates[0]))
            slowest = ps_from_seconds(start[1] + hop[1] + 4096 / min(rates[0])) + 20_000  # issue
            assert fastest <= latency <= slowest
            latencies.add(latency)
    assert len(latencies) > 20


def test_polling_goes_on_although_everything_else_is_held():
    def kernel(x_ref, o_ref, sem):
        copy = make_async_copy(x_ref, o_ref, sem)
        copy.start()
        fori_loop(0, 300, lambda _, seen: seen + semaphore_read(sem), 0)
        copy.wait()

    for schedule in ("lazy", "newest", "shuffle"):
        result = run(kernel, tiles(), scratch_shapes=(DMA,), schedule=schedule, max_events=10_000)
        assert result.ok


# -- what schedules show --------------------------------------------------------------------------------


def gives_one_wait_to_two_copies(x_ref, o_ref, a, b, sem):
    """The waits take 2 KiB each: bytes of either copy will do."""
    first = make_async_copy(x_ref.at[0:4], a, sem)
    second = make_async_copy(x_ref.at[4:8], b, sem)
    first.start()
    second.start()
    first.wait()
    o_ref[0:4, :] = a[...] + tpusim.np.zeros((4, 128), "float32")
    second.wait()
    o_ref[4:8, :] = b[...]


def test_split_copies_satisfy_a_wait_with_parts_of_two():
    declared = {"scratch_shapes": (VMEM((4, 128), "float32"),) * 2 + (DMA,), "out_specs": None, "on_finding": "record"}
    plain = run(gives_one_wait_to_two_copies, tiles(), **declared)
    split = run(gives_one_wait_to_two_copies, tiles(), **declared, schedule="newest")
    assert (plain.outputs[0] == tiles()).all()
    assert not (split.outputs[0] == tiles()).all()
    assert {finding.kind for finding in plain.findings} == {"race"}
    assert [finding.token for finding in plain.findings] == [None]
    assert [finding.token for finding in split.findings] == ["t1:newest"] * len(split.findings)


def late_neighbour(x_ref, o_ref, buffer, send, recv):
    """Reads the buffer before it waits for the neighbour's copy: right only where the copy was fast."""
    me = axis_index("x")
    copy = make_async_remote_copy(x_ref, buffer, send, recv, device_id=1 - me)
    copy.start()
    copy.wait_send()
    tpusim.delay(5000)
    o_ref[...] = buffer[...]
    copy.wait_recv()


LATE = {"mesh": 2, "in_specs": HBM, "out_specs": None, "scratch_shapes": (TILE, DMA, DMA), "checks": "none"}


def test_a_held_leg_shows_wrong_data_that_the_default_schedule_hides():
    def kernel(x_ref, o_ref, buffer, own, send, recv):
        me = axis_index("x")
        copy = make_async_remote_copy(x_ref, buffer, send, recv, device_id=1 - me)
        copy.start()
        copy.wait_send()
        tpusim.delay(5000)
        make_async_copy(buffer, o_ref, own).start()  # a copy that reads too early
        make_async_copy(buffer, o_ref, own).wait()
        copy.wait_recv()

    declared = {**LATE, "out_specs": HBM, "scratch_shapes": (TILE, DMA, DMA, DMA), "on_finding": "record"}
    plain = run(kernel, tiles(2), **declared)
    place = Place(name_copy(machine_of(plain), plain.trace, plain.trace.copies[0]), "writer")
    assert hold_token([place]) == "t1:hold:0/kernel/start1/writer/x_ref,buffer"
    held = run(kernel, tiles(2), **declared, replay=hold_token([place]))
    swapped = np.concatenate([tiles(2)[8:], tiles(2)[:8]])
    assert (plain.outputs[0] == swapped).all()
    assert (held.outputs[0][:8] == swapped[:8]).all()
    assert not (held.outputs[0][8:] == swapped[8:]).any()
    assert held.token == hold_token([place])


def machine_of(result):
    return result.cores[0].machine


def test_a_held_core_is_held_before_its_next_visible_operation():
    def kernel(x_ref, o_ref, buffer, sem, credit):
        me, n = axis_index("x"), axis_size("x")
        semaphore_signal(credit, device_id=(me + 1) % n)
        semaphore_wait(credit)

    declared = {"mesh": 4, "scratch_shapes": (TILE, DMA, REGULAR)}
    plain = run(kernel, tiles(4), **declared)
    assert name_operation(machine_of(plain), plain.trace, 2, "signal", 2) == Operation(
        (2,), "kernel", "signal", 2, "credit"
    )
    with pytest.raises(LookupError):
        name_operation(machine_of(plain), plain.trace, 2, "start", 1)
    held = run(kernel, tiles(4), **declared, replay="t1:hold:2/kernel/signal2//credit")
    left = {core.device: core.exited_ps for core in held.cores}
    assert left[0] < left[2] < left[3]
    assert left[1] < left[2]


# -- tokens ---------------------------------------------------------------------------------------------

PROGRAM = """
import tpusim
from tpusim import HBM, SemaphoreType, ShapeDtypeStruct, axis_index, make_async_copy, make_async_remote_copy

DMA = SemaphoreType.DMA

def send(x_ref, buffer, sem):
    copy = make_async_copy(x_ref, buffer, sem)
    copy.start()
    copy.wait()

def kernel(x_ref, o_ref, buffer, sem):
    send(x_ref, buffer, sem)
    send(buffer, o_ref, sem)
"""


def written(tmp_path, text, name="program"):
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    return runpy.run_path(str(path))["kernel"]


SENDS = {"mesh": 1, "scratch_shapes": (TILE, DMA)}
TOKEN = "t1:hold:0/send/start2/writer/buffer,o_ref"


def test_a_token_survives_unrelated_edits(tmp_path):
    before = run(written(tmp_path, PROGRAM), tiles(), **SENDS, replay=TOKEN)
    edited = PROGRAM.replace("def send", "# a line more\n\ndef other():\n    pass\n\n\ndef send").replace(
        "    send(x_ref, buffer, sem)\n",
        "    make_async_copy(x_ref, buffer, sem).start()\n    make_async_copy(x_ref, buffer, sem).wait()\n"
        "    send(x_ref, buffer, sem)\n",
    )
    after = run(written(tmp_path, edited, "edited"), tiles(), **SENDS, replay=TOKEN)
    assert len(after.trace.copies) == len(before.trace.copies) + 1
    assert before.token == after.token == TOKEN


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (
            "t1:hold:0/send/start3/writer/buffer,o_ref",
            "there is no copy start 3 in send() on device (0,): send() has only 2 copies there",
        ),
        (
            "t1:hold:0/receive/start1/reader",
            "there is no copy start 1 in receive() on device (0,): no receive() started a copy there; functions that "
            "did: send",
        ),
        (
            "t1:hold:0/send/start1/writer/x_ref,o_ref",
            "copy start 1 in send() on device (0,) now works on x_ref,buffer, not on x_ref,o_ref",
        ),
        (
            "t1:hold:4/send/start1/writer",
            "there is no copy start 1 in send() on device (4,): the mesh x=1 has no device (4,)",
        ),
        (
            "t1:hold:-/receive/start/writer",
            "any copy start in receive() on any device never happened: no device ever started a copy in receive()",
        ),
        ("t1:hold:0/-/signal1", "there is no signal 1 on device (0,): the device never signalled"),
        ("t1:hold:0/send/start1/arrival", "copy start 1 in send() on device (0,) has no arrival that could be held"),
        ("t1:slow-device:3", "slow-device:3: no device (3,) did anything"),
        ("t1:slow-link:0.0-1.0", "slow-link:0.0-1.0: nothing crosses this link"),
    ],
)
def test_a_token_that_no_longer_fits_says_what_does_not_match(tmp_path, token, text):
    with pytest.raises(OptionError) as caught:
        run(written(tmp_path, PROGRAM), tiles(), mesh=1, slice="v5e:2x2", scratch_shapes=(TILE, DMA), replay=token)
    assert str(caught.value) == f"the schedule does not fit this run: {text}"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"schedule": "randon"},
            "there is no schedule 'randon'; did you mean 'random'?",
        ),
        (
            {"schedule": "fast"},
            "there is no schedule 'fast'; there are: default, eager, lazy, newest, split, random, shuffle, "
            "slow-device:DEVICE, slow-link:CHIP-CHIP, hold:PLACE, try-hold:PLACE",
        ),
        ({"schedule": "random:x"}, "schedule 'random:x': the seed is a whole number, as in random:7"),
        ({"schedule": "slow-device:a"}, "'a' are no coordinates, such as (1,0) or 1.0"),
        (
            {"schedule": "slow-link:0.0"},
            "'0.0' is no link, such as (0,0)-(1,0), or (0,0)->(1,0) for one direction",
        ),
        ({"schedule": "slow-link:0.0-1.1"}, "v5e:2x2 has no link between chips (0, 0) and (1, 1)"),
        ({"schedule": "slow-link:0.0-5.0"}, "v5e:2x2 has no chip (5, 0): chips are named by 2 coordinates"),
        (
            {"schedule": "hold:1/start3"},
            "'1/start3' names no operation: it is DEVICE/FUNCTION/KIND[ORDINAL][/LEG[/WHAT]], such as "
            "1/step/start3/writer; kinds: start, wait, signal, read, enter, exit; legs: after, reader, writer, "
            "arrival, reader.last, writer.last",
        ),
        ({"replay": "abc"}, "replay: 'abc' is no token; one begins with t1: and stands with each finding"),
        (
            {"replay": "t9:lazy"},
            "replay: the token 't9:lazy' is of version 9, this tpusim reads version 1: run the program again for a "
            "new one",
        ),
        ({"replay": "t1:lazy", "schedule": "lazy"}, "replay says schedule and faults itself: leave these two out"),
        ({"schedule": 3}, "schedule is a text, not 3"),
    ],
)
def test_options_that_cannot_be_are_refused_with_one_text(options, text):
    with pytest.raises(OptionError) as caught:
        run(late_neighbour, tiles(2), **{**LATE, "slice": "v5e:2x2", **options})
    assert str(caught.value) == text


@given(
    st.sampled_from([(), (3,), (0, 20)]),
    st.from_regex(r"[a-z_][a-z_0-9]{0,8}", fullmatch=True),
    st.sampled_from(["start", "wait", "signal", "read", "enter", "exit"]),
    st.integers(0, 10**6),
    st.sampled_from(["", "after", "reader", "writer", "arrival", "reader.last", "writer.last"]),
    st.sampled_from(["", "x_ref", "x_ref,o_ref"]),
)
def test_places_read_back_as_written(device, function, kind, ordinal, leg, what):
    place = Place(Operation(device, function, kind, ordinal, what), leg)
    assert Place.parse(str(place)) == place


def test_an_error_of_a_run_with_a_schedule_tells_its_token():
    error = error_of(RaceError, late_neighbour, tiles(2), **{**LATE, "checks": "observed"}, schedule="shuffle", seed=4)
    assert error.finding.token == error.result.token == "t1:shuffle:4"
    assert error.finding.explain().splitlines()[-1] == "  Replay: t1:shuffle:4."
    assert "schedule     t1:shuffle:4" in error.result.report.splitlines()


def test_the_default_schedule_has_no_token():
    result = run(lambda x_ref, o_ref: None, tiles(), on_finding="record")
    assert result.token is None
    assert all(finding.token is None for finding in result.findings)


def test_a_replayed_shuffle_of_a_racy_kernel_gives_the_same_bytes():
    racy = {**LATE, "on_finding": "record"}
    first = run(late_neighbour, tiles(2), **racy, schedule="shuffle", seed=11)
    again = run(late_neighbour, tiles(2), **racy, replay=first.token)
    np.testing.assert_array_equal(first.outputs[0], again.outputs[0])


def test_kernels_with_conditional_copies_and_no_data_run_under_schedules():
    def kernel(x_ref, o_ref, sem):
        @when(axis_index("x") == 1)
        def _():
            make_async_copy(x_ref, o_ref, sem).start()
            make_async_copy(x_ref, o_ref, sem).wait()

    shape = ShapeDtypeStruct((16, 128), "float32")
    for schedule in SCHEDULES[:6]:
        assert run(kernel, shape, mesh=2, scratch_shapes=(DMA,), schedule=schedule, data=False).ok


@pytest.mark.jax
def test_captured_kernels_take_schedules_and_name_functions():
    code = textwrap.dedent(
        """
        import jax, numpy as np
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import tpu as pltpu
        import tpusim.pallas

        def body(x_ref, o_ref, sem):
            copy = pltpu.make_async_copy(x_ref, o_ref, sem)
            copy.start()
            copy.wait()

        def program(x):
            return pl.pallas_call(
                body, out_shape=x, in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
                out_specs=pl.BlockSpec(memory_space=pl.ANY), scratch_shapes=[pltpu.SemaphoreType.DMA],
            )(x)
        """
    )
    names = {}
    exec(compile(code, __file__ + ".captured", "exec"), names)
    x = np.ones((8, 128), np.float32)
    for schedule in ("random", "shuffle", "eager", "lazy", "split", "hold:0/body/start1/writer"):
        captured = tpusim.pallas.simulate(names["program"], slice="v5e:1x1", schedule=schedule)
        np.testing.assert_array_equal(captured(x), x)
        assert captured.result.ok


@pytest.mark.jax
@pytest.mark.parametrize("schedule", [*SCHEDULES, "try-hold:-/-/start2/writer"])
def test_a_captured_ring_is_right_under_every_schedule(schedule):
    from jax.sharding import AbstractMesh, AxisType

    file = ring()
    arrays = file.inputs(devices=4)
    program = file.kernel.pallas(AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,)), interpret=True)
    captured = tpusim.pallas.simulate(program, slice="v5e:2x2", schedule=schedule, seed=2)
    np.testing.assert_array_equal(captured(*arrays), file.reference(*arrays, devices=4))
    assert captured.result.ok
    assert captured.result.token.startswith("t1:")
