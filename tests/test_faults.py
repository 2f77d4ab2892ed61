"""Faults: what a run does with slow, late and broken parts, and the message of each that ends it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulating import Lines, error_of, run, tiles

from tpusim import SemaphoreType, axis_index, axis_size, make_async_remote_copy, semaphore_signal, semaphore_wait
from tpusim.errors import DeadlockError, LinkDownError, OptionError
from tpusim.faults import parse_fault
from tpusim.kernel_file import load_file

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
RING = load_file(str(Path(__file__).parents[1] / "kernels" / "ring_all_gather.py"))
at = Lines(__file__)


def ring(*faults, **options):
    arrays = RING.inputs(devices=4)
    result = RING.kernel.simulate(*arrays, slice="v5e:2x2", faults=faults, **options)
    np.testing.assert_array_equal(result.outputs[0], RING.reference(*arrays, devices=4))
    return result


PLAIN = ring()


def to_the_right(x_ref, o_ref, send, recv):  # begins with a barrier
    right = (axis_index("x") + 1) % axis_size("x")
    copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=right)
    copy.start()
    copy.wait()


RIGHT = {"slice": "v5e:2x2", "layout": "ring", "mesh": 4, "scratch_shapes": (DMA, DMA)}


# -- links ----------------------------------------------------------------------------------------------


def test_a_dead_link_on_the_way_is_an_error():
    error = error_of(LinkDownError, to_the_right, tiles(4), **RIGHT, faults=["link:(0,0)->(1,0):dead"])
    assert str(error) == (
        "link (0,0)->(1,0) is down (fault link:0.0-to-1.0:dead), and the way from chip (0, 0) to chip (1, 0) leads "
        f"over it; link:0.0-to-1.0:dead,reroute looks for another way.  [device (0,), {at('begins with a barrier')}]"
    )
    assert error.finding.token == "t1:default~link:0.0-to-1.0:dead"
    assert isinstance(error, ConnectionError)


def test_rerouted_copies_go_around():
    around = run(to_the_right, tiles(4), **RIGHT, faults=["link:0.0-1.0:dead,reroute"])
    plain = run(to_the_right, tiles(4), **RIGHT)
    np.testing.assert_array_equal(around.outputs[0], plain.outputs[0])
    assert around.bytes == plain.bytes
    assert max(copy.hops for copy in plain.trace.copies) == 1
    assert max(copy.hops for copy in around.trace.copies) == 3
    assert "link (0,0)->(1,0)" not in around.links
    assert around.time > plain.time


def test_no_other_way_is_an_error():
    faults = ["link:0.0-1.0:dead,reroute", "link:0.0-0.1:dead,reroute"]
    error = error_of(LinkDownError, to_the_right, tiles(4), **RIGHT, faults=faults)
    assert str(error) == (
        "link (1,0)->(0,0) is down (fault link:0.0-1.0:dead,reroute), and no other way leads from chip (1, 0) to chip "
        f"(0, 0).  [device (1,), {at('begins with a barrier')}]"
    )


def test_signals_need_a_way_too():
    def kernel(x_ref, o_ref, credit):
        semaphore_signal(credit, device_id=1 - axis_index("x"))
        semaphore_wait(credit)

    declared = {"slice": "v5e:2x2", "mesh": 2, "scratch_shapes": (REGULAR,)}
    for schedule in ("default", "eager", "lazy"):
        error_of(LinkDownError, kernel, tiles(2), **declared, schedule=schedule, faults="link:0.0-1.0:dead")
    assert run(kernel, tiles(2), **declared, faults="link:0.0-1.0:dead,reroute", on_finding="record").ok


def to_the_other_die(**options):
    declared = {"slice": "v7x:2x2x1", "mesh": 2, "scratch_shapes": (DMA, DMA)}
    return run(to_the_right, tiles(2), **declared, **options)


@pytest.mark.parametrize("name", ["(0,0,0,0)-(0,0,0,1)", "0.0.0.0-0.0.0.1", "(0,0,0) die 0->die 1"])
def test_the_link_between_two_dies_has_a_name_too(name):
    plain, slow = to_the_other_die(), to_the_other_die(faults=f"link:{name}:slow=100")
    assert set(plain.links) == {"link (0,0,0) die 0->die 1", "link (0,0,0) die 1->die 0"}
    durations = [[c.read_ps - c.begin_ps for c in result.trace.copies] for result in (plain, slow)]
    is_one_way = "->" in name
    assert [after > before for before, after in zip(*durations, strict=True)] == [True, not is_one_way]


def test_nothing_leads_around_the_link_between_two_dies():
    with pytest.raises(LinkDownError) as caught:
        to_the_other_die(faults="link:0.0.0.0-0.0.0.1:dead,reroute")
    assert str(caught.value) == (
        "link (0,0,0) die 1->die 0 is down (fault link:0.0.0.0-0.0.0.1:dead,reroute), and no other way leads from chip "
        f"(0, 0, 0) to chip (0, 0, 0).  [device (1,), {at('begins with a barrier')}]"
    )


def test_two_dies_of_different_chips_have_no_link_of_their_own():
    with pytest.raises(OptionError) as caught:
        to_the_other_die(faults="link:0.0.0.0-1.0.0.1:dead")
    assert str(caught.value) == (
        "v7x:2x2x1 has no link between dies (0, 0, 0, 0) and (1, 0, 0, 1): those of one chip are 0 and 1"
    )


# -- slow, late, jitter ---------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.floats(1, 1000), st.floats(1, 1000), st.sampled_from(["link:0.0-1.0", "chip:0.0", "chip:1.1"]))
def test_slower_is_never_faster_and_bytes_are_conserved(one, other, what):
    low, high = sorted([one, other])
    slow, slower = ring(f"{what}:slow={low:.3f}"), ring(f"{what}:slow={high:.3f}")
    assert PLAIN.time <= slow.time <= slower.time
    assert PLAIN.bytes == slow.bytes == slower.bytes
    for result in (slow, slower):
        assert sum(link.busy_bytes for link in result.links.values()) == sum(
            link.busy_bytes for link in PLAIN.links.values()
        )


def test_a_slow_link_takes_the_longer_by_its_factor():
    slow = ring("link:0.0-1.0:slow=100")
    crossing = [copy for copy in slow.trace.copies if copy.route.links]
    durations = {copy.read_ps - copy.begin_ps for copy in crossing}
    assert max(durations) == pytest.approx(100 * min(durations), rel=0.01)


def test_a_slow_chip_waits_longer_before_each_operation():
    slow = ring("chip:1.0:slow=50")
    assert slow.time > PLAIN.time


@settings(max_examples=25)
@given(st.integers(0, 1 << 20), st.integers(1, 2000))
def test_jitter_is_drawn_from_the_seed(seed, most_ns):
    first, again = (ring(f"jitter:{most_ns}ns", seed=seed) for _ in range(2))
    assert [c.written_ps for c in first.trace.copies] == [c.written_ps for c in again.trace.copies]
    assert first.token == f"t1:default~jitter:{most_ns}ns:seed={seed}" if most_ns % 1000 else True
    assert [c.written_ps for c in ring(replay=first.token).trace.copies] == [c.written_ps for c in first.trace.copies]
    steps = 4 * 3 + 2
    assert PLAIN.time <= first.time <= PLAIN.time + 2 * steps * most_ns * 1000


@given(st.integers(0, 10**9))
def test_a_late_device_makes_everything_at_most_that_much_later(late_ps):
    late = ring(f"device:2:late={late_ps}ps")
    assert PLAIN.time <= late.time <= PLAIN.time + late_ps


def test_a_device_that_never_starts_is_named_in_the_deadlock():
    error = error_of(DeadlockError, to_the_right, tiles(4), **RIGHT, faults=["device:(2,):never"], checks="none")
    first, *rest = str(error).splitlines()
    assert first.startswith("4 of 4 devices can never proceed (t = ")
    assert "  device (2,) waits to be started: device:2:never" in rest


def test_a_device_that_never_starts_is_an_error_although_nobody_waits_for_it():
    error = error_of(DeadlockError, lambda x_ref, o_ref: None, tiles(2), mesh=2, faults="device:1:never")
    assert str(error) == (
        "1 of 2 devices can never proceed (t = 0 ps, default schedule).\n"
        "  device (1,) waits to be started: device:1:never\n"
        "No copy is in flight."
    )


# -- texts ----------------------------------------------------------------------------------------------

FORMS = (
    "chip:(1,0):slow=2, link:(0,0)-(1,0):slow=4, link:(0,0)-(1,0):dead[,reroute], jitter:200ns, "
    "device:(2,):late=50us, device:(2,):never"
)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("links:0.0-1.0:dead", f"'links:0.0-1.0:dead' is no fault; forms: {FORMS}"),
        ("link:0.0-1.0:slow=0.5", f"'link:0.0-1.0:slow=0.5' is no fault; forms: {FORMS}"),
        ("jitter:200", f"'jitter:200' is no fault; forms: {FORMS}"),
        ("device:1", f"'device:1' is no fault; forms: {FORMS}"),
        ("device:9:never", "device:9:never: the mesh has no device (9,)"),
        ("chip:7.7:slow=2", "v5e:2x2 has no chip (7, 7): chips are named by 2 coordinates"),
        ("link:0.0-1.1:dead", "v5e:2x2 has no link between chips (0, 0) and (1, 1)"),
        (3, "faults is a list of texts such as 'jitter:200ns', not (3,)"),
    ],
)
def test_faults_that_cannot_be_are_refused_with_one_text(fault, text):
    with pytest.raises(OptionError) as caught:
        ring(fault)
    assert str(caught.value) == text


@given(
    st.one_of(
        st.builds("chip:{}.{}:slow={}".format, st.integers(0, 9), st.integers(0, 9), st.integers(1, 99)),
        st.builds(
            "link:{}.0-{}.0:dead{}".format, st.integers(0, 9), st.integers(0, 9), st.sampled_from(["", ",reroute"])
        ),
        st.builds("link:{}.0-to-{}.0:slow=2.5".format, st.integers(0, 9), st.integers(0, 9)),
        st.builds("jitter:{}ns:seed={}".format, st.integers(1, 999), st.integers(0, 99)),
        st.builds("device:{}:late={}us".format, st.integers(0, 9), st.integers(1, 999)),
        st.just("device:3:never"),
    )
)
def test_faults_read_back_as_written(text):
    assert parse_fault(text, 7).text == text
