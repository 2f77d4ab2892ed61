"""A time's interval: the recorded run is timed again, exactly, and every number that matters shows in it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulating import run, tiles

import tpusim
from tpusim import VMEM, SemaphoreType, ShapeDtypeStruct, make_async_copy
from tpusim.chips import load_chip
from tpusim.errors import OptionError
from tpusim.intervals import used_numbers
from tpusim.kernel_file import load_file
from tpusim.retime import Recording

KERNELS = {
    "all_gather_matmul": {}, "all_reduce": {}, "all_to_all": {}, "barrier": {}, "matmul_pipeline": {"mesh": 1},
    "right_permute": {}, "ring_all_gather_bidir": {}, "ring_reduce_scatter": {}, "halo_exchange": {"slice": "v5e:2x2"},
    "torus_all_gather": {"slice": "v5p:2x2x1"}, "ragged_all_to_all": {},
}  # fmt: skip


def simulated(name: str, **options: Any) -> Any:
    loaded = load_file(f"kernels/{name}.py")
    return loaded.kernel.simulate(*loaded.inputs(), **KERNELS[name], **options)


def recording(result: Any) -> Recording:
    return Recording(result.trace, result.cores, result.place)


@pytest.mark.parametrize("name", KERNELS)
def test_a_recorded_run_takes_exactly_as_long_again(name: str) -> None:
    result = simulated(name)
    assert recording(result).time_ps(result.place.chip) == result.time


NUMBERS = st.sampled_from(
    ["dma.issue", "dma.start_latency_remote", "dma.start_latency_hbm_to_vmem", "hbm.bandwidth", "ici.link_bandwidth",
     "ici.hop_latency", "ici.signal_latency", "sync.wait", "sync.signal", "dma.rate_remote"]
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["all_to_all", "ring_reduce_scatter", "right_permute", "halo_exchange", "ragged_all_to_all"]),
    changes=st.dictionaries(NUMBERS, st.floats(0.25, 4), max_size=3),
)
def test_timing_again_is_running_again(name: str, changes: dict[str, float]) -> None:
    base = simulated(name)
    rows = dict(base.place.chip.rows())
    values = {path: rows[path].number * factor for path, factor in changes.items()}
    again = recording(base).time_ps(base.place.chip.with_values(values))
    assert again == simulated(name, set=values).time


def test_the_short_run_of_partial_tiles_is_timed_again() -> None:
    def kernel(x: Any, o: Any, buffer: Any, sem: Any) -> None:
        for source, target in ((x.at[0:1], buffer), (buffer, o)):
            copy = make_async_copy(source, target, sem)
            copy.start()
            copy.wait()

    row = ShapeDtypeStruct((1, 128), "float32")
    made = {"out_shape": row, "scratch_shapes": (VMEM((1, 128), "float32"), SemaphoreType.DMA)}
    result = run(kernel, tiles(), **made)
    slower = {"dma.short_run": 1 << 20}
    assert (
        recording(result).time_ps(result.place.chip.with_values(slower))
        == run(kernel, tiles(), **made, set=slower).time
    )
    assert "dma.short_run" in used_numbers(result.trace, result.place)


def double(x: Any, o: Any, buffer: Any, sem: Any) -> None:
    copy = make_async_copy(x, buffer, sem)
    copy.start()
    copy.wait()
    back = make_async_copy(buffer, o, sem)
    back.start()
    back.wait()


ROUND_TRIP = {"scratch_shapes": (VMEM((8, 128), "float32"), SemaphoreType.DMA)}


def test_the_interval_of_a_local_copy_is_that_of_its_latencies_and_the_floor() -> None:
    result = run(double, tiles(), **ROUND_TRIP)
    interval = result.interval
    assert interval is not None
    effects = {effect.name: (effect.shorter_ps, effect.longer_ps) for effect in interval.effects}
    assert effects["dma.start_latency_vmem_to_hbm"] == (130_000, 0)
    assert effects["dma.start_latency_hbm_to_vmem"] == (20_000, 15_000)
    assert interval.low <= result.time - 300_000
    assert interval.high >= result.time + 300_000
    assert result.interval_us == (interval.low.us, interval.high.us)
    assert not {name for name in effects if name.startswith("ici.")}


def test_a_number_without_an_interval_moves_nothing_and_a_given_one_loses_its() -> None:
    latency = {"dma.start_latency_vmem_to_hbm": 3e-7}
    result = run(double, tiles(), **ROUND_TRIP, set=latency)
    assert "dma.start_latency_vmem_to_hbm" not in {effect.name for effect in result.interval.effects}
    assert set(result.basis) == {"fitted", "compiler", "datasheet", "estimate", "given"}


def test_what_a_time_rests_on_is_said_with_it() -> None:
    result = simulated("right_permute")
    line = result.summary[1]
    trust = r"[\d.]+ to [\d.]+ us; compiler, datasheet, estimate figures, dma\.start_latency_remote above all"
    assert re.fullmatch(rf"time         [\d.]+ us   \({trust}\)", line)


def test_a_long_run_is_timed_with_all_numbers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    singly = simulated("all_to_all").interval
    monkeypatch.setattr("tpusim.intervals.MOST_SINGLY", 10)
    result = simulated("all_to_all")
    jointly = result.interval
    assert jointly.low <= singly.low <= result.time <= singly.high <= jointly.high
    assert jointly.effects == ()


def test_a_very_long_run_has_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpusim.intervals.MOST_AT_ALL", 10)
    result = simulated("all_to_all")
    assert result.interval is None
    assert result.interval_us is None
    assert result.summary[1].endswith("figures; no interval, too many operations)")


def test_a_run_that_stops_on_its_way_has_no_interval() -> None:
    result = run(lambda x, o, sem: make_async_copy(x, o, sem).wait(), tiles(), scratch_shapes=(SemaphoreType.DMA,),
                 on_finding="record")  # fmt: skip
    assert result.interval is None


def test_comparing_is_undecided_where_intervals_overlap() -> None:
    few, many = run(double, tiles(), **ROUND_TRIP), simulated("ring_reduce_scatter")
    same = tpusim.compare(few, run(double, tiles(), **ROUND_TRIP))
    assert (same.verdict, same.ratio) == ("undecided", 1.0)
    assert str(same) == f"undecided: {few.time} against {few.time}, {few.interval} and {few.interval} overlap"
    assert tpusim.compare(few, many).verdict == "a"
    found = tpusim.compare(many, few)
    assert (found.verdict, found.ratio) == ("b", few.time / many.time)
    reason = f"{many.interval} and {few.interval} do not overlap"
    assert str(found) == f"b is quicker: {few.time} against {many.time}, {reason}"


def test_comparing_needs_complete_runs() -> None:
    whole = run(double, tiles(), **ROUND_TRIP)
    stopped = run(lambda x, o, sem: make_async_copy(x, o, sem).wait(), tiles(), scratch_shapes=(SemaphoreType.DMA,),
                  on_finding="record")  # fmt: skip
    with pytest.raises(OptionError, match=r"^compare: run b stopped at 2\.667 ns, so it has no time to compare$"):
        tpusim.compare(whole, stopped)


def test_values_within_intervals_make_another_chip() -> None:
    chip = load_chip("v5e")
    other = chip.with_values({"dma.issue": 26, "ici.hop_latency": 0.0})
    assert (other.dma.issue.value, other.ici.hop_latency.value) == (26, 0.0)
    assert other.dma.issue.note == chip.dma.issue.note
    assert chip.dma.issue.value == 24


def test_every_interval_of_a_shipped_chip_can_be_set() -> None:
    for name in ("v4", "v5e", "v5p", "v6e", "v7x"):
        chip = load_chip(name)
        for path, quantity in chip.rows():
            if quantity.low is not None:
                for end in quantity.interval:
                    assert dict(chip.with_values({path: end}).rows())[path].number == end
