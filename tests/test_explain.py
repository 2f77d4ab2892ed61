"""Explanations: what is said is what what-if runs and other kernels measure."""

import json
from pathlib import Path

import numpy as np
import pytest
from simulating import run, tiles

from tpusim import (
    SemaphoreType,
    axis_index,
    axis_size,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    semaphore_signal,
    semaphore_wait,
)
from tpusim.errors import DeadlockError
from tpusim.explain import explain, full_share, what_ifs
from tpusim.kernel_file import load_file
from tpusim.native import simulate

KERNELS = Path(__file__).parents[1] / "kernels"


def simulated(name, devices, slice_, shape=None, **options):
    loaded = load_file(str(KERNELS / f"{name}.py"))
    arrays = loaded.inputs(devices=devices, **({"shape": shape} if shape else {}))
    return simulate(loaded.kernel, arrays, {"slice": slice_, "data": False, "checks": "none", **options}, detail=True)


def saved(result):
    return {what.change: what for what in what_ifs(result)}


def test_both_directions_save_what_the_kernel_with_both_directions_saves():
    """The what-if of the one-way ring against a kernel that does it."""
    one_way = simulated("ring_all_gather", 16, "v5e:4x4", (512, 1024))
    both = simulated("ring_all_gather_bidir", 16, "v5e:4x4", (512, 1024))
    predicted = saved(one_way)["both directions of the links used"]
    assert int(predicted.time) == pytest.approx(int(both.time), rel=0.03)
    assert "One direction of the links is used; both would save 49%." in explain(one_way).sentences
    assert "both directions of the links used" not in saved(both)


def test_links_used_one_way_are_told_from_those_used_both_ways():
    """Both ways between the dies of a chip too; a ring with hops of two goes both ways where it turns."""
    assert "both directions of the links used" not in saved(simulated("ring_all_gather_bidir", 8, "v7x:2x2x1"))
    said = explain(simulated("ring_all_gather", 8, "v5e:2x4"))
    assert any(each.startswith("4 of the 12 links in use have nothing the other way; ") for each in said.sentences)


def test_signals_alone_have_hops():
    assert "no hop latency" in saved(simulated("barrier", 16, "v5e:4x4"))
    assert "no hop latency" not in saved(simulated("matmul_pipeline", 1, "v5e:1x1"))


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ("no hop latency", {"ici.hop_latency": 0}),
        ("no start latency of copies", {"dma.start_latency_remote": 0, "dma.start_latency_hbm_to_hbm": 0}),
        ("links without a limit", {"ici.link_bandwidth": 1e17}),
        ("no latency of signals between devices", {"ici.signal_latency": 0}),
        ("HBM without a limit", {"hbm.bandwidth": 1e17}),
    ],
)
def test_a_what_if_is_the_run_with_that_chip(change, values):
    whole = saved(simulated("ring_all_gather", 16, "v5e:4x4", (64, 256)))[change]
    assert whole.time == simulated("ring_all_gather", 16, "v5e:4x4", (64, 256), set=values).time


@pytest.mark.parametrize(
    ("name", "devices", "slice_"), [("all_to_all", 8, "v6e:2x4"), ("matmul_pipeline", 1, "v5e:1x1")]
)
def test_a_better_machine_saves_at_least_nothing_and_at_most_everything(name, devices, slice_):
    """Nothing but for a few percent: copies that come together share the memory, and the wanted one may end later."""
    runs = what_ifs(simulated(name, devices, slice_))
    assert [run.saved for run in runs] == sorted((run.saved for run in runs), reverse=True)
    assert all(-0.05 <= run.saved < 1 for run in runs)


@pytest.mark.parametrize("set_", [{}, {"ici.hop_latency": 3e-7}])
def test_what_a_saving_could_be_holds_what_it_is_at_the_ends_of_a_number(set_):
    """Against whole runs with the number at either end; a number that the user gives has none."""
    shape = (64, 256)
    result = simulated("ring_all_gather", 16, "v5e:4x4", shape, set=set_)
    what = saved(result)["no hop latency"]
    low, high = what.could_save
    assert low < what.saved < high
    hops = result.place.chip.ici.hop_latency
    for end in hops.interval:
        at_end = simulated("ring_all_gather", 16, "v5e:4x4", shape, set={"ici.hop_latency": end})
        assert low - 1e-9 <= 1 - what.time / at_end.time <= high + 1e-9
    assert what.is_decided == bool(set_)  # the shipped number may be next to nothing


def test_a_saving_below_what_can_be_told_is_undecided():
    """Signals take 0.2 of 16 us, and 0.3 us is what a run is off by whatever its numbers."""
    result = simulated("ring_all_gather", 16, "v5e:4x4")
    said = explain(result)
    (undecided,) = (sentence for sentence in said.sentences if sentence.startswith("Undecided"))
    signals = next(what for what in said.what_ifs if "signals" in what.change)
    assert not signals.is_decided
    assert f"{signals.change} {signals.saving}" in undecided
    (certain,) = (sentence for sentence in said.sentences if sentence.startswith("What holds it back most"))
    first = next(what for what in said.what_ifs if what.is_decided)
    assert f"with {first.change} it would take {first.time}, {first.saving} less." in certain
    for what in said.what_ifs:
        assert what.is_decided == (what.could_save[0] > 0 or what.could_save[1] < 0)
    assert said.as_dict()["what_ifs"][0]["could_save"] == said.what_ifs[0].could_save


def test_how_full_a_link_is():
    """One copy of the link's bandwidth times its transfer time."""
    result = simulated("right_permute", 4, "v5e:2x2", (2048, 1024))
    (remote, *_) = (copy for copy in result.trace.copies if copy.hops)
    link = max(result.links.values(), key=lambda each: each.busy_bytes)
    assert full_share(result, link) == pytest.approx((remote.read_ps - remote.begin_ps) / int(result.time))


def test_a_run_that_stopped_is_explained_without_what_ifs():
    def kernel(x_ref, o_ref, sem):
        make_async_copy(x_ref, o_ref, sem).start()
        make_async_copy(x_ref, o_ref, sem).wait()
        make_async_copy(x_ref, o_ref, sem).wait()

    with pytest.raises(DeadlockError) as caught:
        run(kernel, np.ones((8, 128), np.float32), scratch_shapes=(SemaphoreType.DMA,))
    said = explain(caught.value.result)
    assert not said.what_ifs
    assert said.sentences[0].startswith("The run stopped after ")
    assert said.sentences[0].endswith(": deadlock.")


def test_what_stopped_a_run_is_said_and_not_what_it_went_on_after():
    def kernel(x_ref, o_ref, send, recv):
        right = (axis_index("x") + 1) % axis_size("x")
        semaphore_signal(get_barrier_semaphore(), device_id=right)  # has to be left
        semaphore_wait(get_barrier_semaphore())
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=right)
        copy.start()
        copy.wait()
        copy.wait()

    with pytest.raises(DeadlockError) as caught:
        run(kernel, tiles(4), mesh=4, collective_id=0, scratch_shapes=(SemaphoreType.DMA,) * 2)
    assert {finding.kind for finding in caught.value.result.findings} == {"lifetime", "deadlock"}
    assert explain(caught.value.result).sentences[0].endswith(": deadlock.")


def test_the_command_says_it_in_words_and_in_json(tpusim):
    status, out, err = tpusim("explain", KERNELS / "ring_all_gather.py", "--slice", "v5e:4x4", "--json", "-")
    assert status == 0
    values = json.loads(out)
    us, bound, ratio = (values[name] for name in ("time_us", "lower_bound_us", "ratio"))
    assert values["sentences"][0] == f"It takes {us:.3f} us, {ratio:.2f} times its lower bound of {bound:.3f} us."
    assert values["what_ifs"][0]["change"] == "no hop latency"
    for sentence in values["sentences"]:
        assert sentence in " ".join(err.split("\n"))


def test_a_bound_of_nothing_is_not_said_to_be_unknown(tpusim):
    status, out, _ = tpusim("explain", KERNELS / "ring_all_gather.py", "--slice", "v5e:1x1")
    assert status == 0
    assert out.splitlines()[1].endswith("; its lower bound is 0, no device has to send anything.")
