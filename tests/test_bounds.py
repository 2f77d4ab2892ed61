"""Lower bounds: worked by hand, monotone, and never above a schedule that is known to work."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim import bounds
from tpusim.bounds import Rates
from tpusim.chips import load_chip
from tpusim.errors import OptionError
from tpusim.topology import CHIPS, Slice, hops, mesh_devices, route
from tpusim.units import Duration

US = 10**6
GB = 10**9
RATES = Rates(
    link_bytes_per_s=50 * GB,
    hbm_bytes_per_s=800 * GB,
    flops_per_s=200 * 10**12,
    hop_latency_ps=1 * US,
    start_latency_ps=2 * US,
    local_start_latency_ps=US // 2,
    die_bytes_per_s=300 * GB,
)
MB_ON_A_LINK = 20 * US
COLLECTIVES = [bounds.all_gather, bounds.reduce_scatter, bounds.all_reduce, bounds.all_to_all]
MB = 10**6

slices = st.sampled_from(
    [
        *(Slice.parse(text) for text in ("v5e:1x1", "v5e:2x2", "v5e:2x4", "v6e:4x4", "v5e:8x16", "v7x:2x2x1")),
        Slice.parse("v5p:4x4x4"),
        Slice.parse("v7x:1x1x1"),
        Slice.parse("v4:2x2x2", cores="split"),
    ]
)


def everyone(on):
    return tuple(range(on.num_devices))


def of(text):
    on = Slice.parse(text)
    return on, everyone(on)


# --- worked by hand ---------------------------------------------------------------------------------


def test_all_gather_is_bound_by_the_corner_of_a_mesh():
    # three shards of a 2x2, fifteen of a 4x4, each through the two links of a corner; start and one hop
    assert bounds.all_gather(*of("v5e:2x2"), MB, RATES) == 3 * MB_ON_A_LINK // 2 + 3 * US
    assert bounds.all_gather(*of("v5e:4x4"), MB, RATES) == 15 * MB_ON_A_LINK // 2 + 3 * US


def test_a_torus_has_all_its_links():
    assert bounds.all_gather(*of("v5p:4x4x4"), MB, RATES) == 63 * MB_ON_A_LINK // 6 + 3 * US
    assert bounds.all_gather(*of("v5e:16x16"), MB, RATES) == 255 * MB_ON_A_LINK // 4 + 3 * US


def test_reduce_scatter_mirrors_all_gather():
    assert bounds.reduce_scatter(*of("v5e:4x4"), MB, RATES) == bounds.all_gather(*of("v5e:4x4"), MB, RATES)


def test_small_messages_are_bound_by_the_farthest_device():
    # a corner to the opposite one: six hops; on a 16x16 torus half way round both axes
    assert bounds.all_gather(*of("v5e:4x4"), 1, RATES) == 2 * US + 10 + 6 * US
    assert bounds.all_reduce(*of("v5e:16x16"), 1, RATES) == 2 * US + 5 + 16 * US


def test_all_reduce_on_a_torus_is_twice_reduce_scatter():
    on, devices = of("v5p:4x4x4")
    shards = 64 * MB
    assert bounds.all_reduce(on, devices, shards, RATES) == 2 * 63 * MB_ON_A_LINK // 6 + 3 * US


def test_all_reduce_on_a_ring_of_four():
    # each chip has two links: 2 x 3/4 of the array through each pair
    assert bounds.all_reduce(*of("v5e:2x2"), 4 * MB, RATES) == 2 * 3 * MB_ON_A_LINK // 2 + 3 * US


def test_all_to_all_is_bound_by_the_bisection():
    # 8 x 8 pairs cross four links each way
    assert bounds.all_to_all(*of("v5e:4x4"), MB, RATES) == 64 * MB_ON_A_LINK // 4 + 3 * US
    # a wrapped axis is cut at two places: 128 x 128 pairs, 2 x 16 links
    assert bounds.all_to_all(*of("v5e:16x16"), MB, RATES) == 128 * 128 * MB_ON_A_LINK // 32 + 3 * US


def test_a_mesh_smaller_than_its_slice_may_use_all_links_of_the_slice():
    on = Slice.parse("v5e:4x4")
    # a ring of the middle 2x2 block: its chips have four links each, not two
    middle = tuple(on.device_at((x, y)) for x in (1, 2) for y in (1, 2))
    assert bounds.all_gather(on, middle, MB, RATES) == 3 * MB_ON_A_LINK // 4 + 3 * US


def test_dies_share_the_links_of_their_chip():
    on, devices = of("v7x:2x2x1")
    # six shards from other chips enter once, through two links, for both dies
    assert bounds.all_gather(on, devices, MB, RATES) == 6 * MB_ON_A_LINK // 2 + 3 * US


def test_two_dies_alone_use_the_link_between_them():
    on, devices = of("v7x:1x1x1")
    assert bounds.all_gather(on, devices, 3 * MB, RATES) == 2 * US + 10 * US
    assert bounds.permute(on, [(0, 1)], 3 * MB, RATES) == 2 * US + 10 * US


def test_split_cores_share_hbm():
    on = Slice.parse("v5p:2x2x1", cores="split")
    assert bounds.all_gather(on, (0, 1), MB, RATES) == 2 * US


def test_one_copy():
    on = Slice.parse("v5e:4x4")
    assert bounds.permute(on, [(5, 6)], MB, RATES) == 2 * US + MB_ON_A_LINK // 4 + 1 * US
    assert bounds.permute(on, [(0, 15)], MB, RATES) == 2 * US + MB_ON_A_LINK // 2 + 6 * US
    assert bounds.permute(on, [(3, 3)], MB, RATES) == 0


def test_a_reversal_is_bound_by_the_cut():
    on = Slice.parse("v5e:8x8")
    pairs = [(device, on.device_at((7 - x, y))) for device in everyone(on) for x, y, *_ in [on.coords(device)]]
    # all 32 devices of one half send to the other, over eight links
    assert bounds.permute(on, pairs, MB, RATES) == 2 * US + 4 * MB_ON_A_LINK + 1 * US


def test_a_halo_exchange_on_a_torus():
    on, devices = of("v5e:16x16")
    # four halos leave each chip through its four links
    assert bounds.halo_exchange(on, devices, (16, 16), MB, RATES) == 2 * US + MB_ON_A_LINK + US
    # along one axis the links of the other are of no use: every cut across it is crossed by one halo a link
    assert bounds.halo_exchange(on, devices, (16, 16), (MB, 0), RATES) == 2 * US + MB_ON_A_LINK + US


def test_a_halo_exchange_that_does_not_wrap():
    on, devices = of("v5e:4x4")
    inner = bounds.halo_exchange(on, mesh_devices(on, (4, 4)), (4, 4), MB, RATES, periodic=False)
    assert inner == 2 * US + MB_ON_A_LINK + US
    assert inner < bounds.halo_exchange(on, devices, (4, 4), MB, RATES)


def test_local_work():
    assert bounds.local_copy(8 * MB, RATES) == US // 2 + 10 * US
    assert bounds.local_copy(8 * MB, RATES, hbm_passes=2) == US // 2 + 20 * US
    assert bounds.local_copy(0, RATES) == 0
    assert bounds.matmul(1000, 1000, 1000, 2, RATES) == 10 * US
    assert bounds.matmul(1000, 1, 1000, 2, RATES) == 2_004_000 * US // (800 * 1000)
    assert bounds.matmul(1000, 1000, 1000, 2, RATES, out_itemsize=4) == 10 * US
    assert bounds.matmul(1, 1, 1, 4, RATES, in_hbm=False) == 0


def test_combine():
    assert bounds.combine() == 0
    assert bounds.combine(Duration(3), 5) == 5
    assert str(bounds.combine(3 * US)) == "3.000 us"


# --- properties -------------------------------------------------------------------------------------


@given(slices, st.sampled_from(COLLECTIVES), st.integers(0, 10**9), st.integers(0, 10**9), st.data())
def test_more_bytes_never_take_less_time(on, collective, size, more, data):
    devices = data.draw(st.lists(st.sampled_from(everyone(on)), min_size=1, unique=True))
    least = collective(on, devices, size, RATES)
    assert isinstance(least, Duration)
    assert 0 <= least <= collective(on, devices, size + more, RATES)
    if len(devices) == 1:
        assert least == 0


@given(slices, st.sampled_from(COLLECTIVES), st.integers(1, 10**9), st.integers(1, 4))
def test_faster_chips_never_take_longer(on, collective, size, factor):
    fast = Rates(
        RATES.link_bytes_per_s * factor,
        RATES.hbm_bytes_per_s,
        RATES.flops_per_s,
        RATES.hop_latency_ps // factor,
        RATES.start_latency_ps // factor,
        die_bytes_per_s=RATES.die_bytes_per_s * factor,
    )
    assert collective(on, everyone(on), size, fast) <= collective(on, everyone(on), size, RATES)


@given(slices, st.sampled_from(COLLECTIVES), st.integers(1, 10**9), st.data())
def test_no_bound_lies_above_sending_everything_to_everyone(on, collective, size, data):
    """One round in which every device sends every other what it has: the busiest link decides."""
    devices = data.draw(
        st.lists(st.sampled_from(everyone(on)), min_size=2, unique=True) if on.num_devices > 1 else st.just([0])
    )
    load: dict[int, int] = {}
    farthest = 0
    for a in devices:
        for b in devices:
            farthest = max(farthest, hops(on, a, b))
            for index in route(on, a, b).links:
                load[index] = load.get(index, 0) + size
    slowest = min(RATES.link_bytes_per_s, RATES.die_bytes_per_s)
    busiest = -(-max(load.values(), default=0) * 10**12 // slowest)
    possible = RATES.start_latency_ps + busiest + farthest * RATES.hop_latency_ps
    assert collective(on, devices, size, RATES) <= possible


@given(slices, st.data())
def test_no_bound_of_moves_lies_above_their_routes(on, data):
    device = st.sampled_from(everyone(on))
    moves = data.draw(st.lists(st.tuples(device, device, st.integers(0, 10**9)), max_size=20))
    load: dict[int, int] = {}
    for a, b, size in moves:
        for index in route(on, a, b).links:
            load[index] = load.get(index, 0) + size
    busiest = -(-max(load.values(), default=0) * 10**12 // RATES.link_bytes_per_s)
    farthest = max((hops(on, a, b) for a, b, size in moves if size), default=0)
    possible = RATES.start_latency_ps + busiest + farthest * RATES.hop_latency_ps
    assert bounds.transfers(on, moves, RATES) <= possible


@given(slices, st.integers(1, 10**9), st.data())
def test_fewer_moves_never_take_more_time(on, size, data):
    device = st.sampled_from(everyone(on))
    pairs = data.draw(st.lists(st.tuples(device, device), max_size=20))
    assert bounds.permute(on, pairs[1:], size, RATES) <= bounds.permute(on, pairs, size, RATES)


def test_an_all_to_all_is_no_faster_as_moves():
    on, devices = of("v5e:4x8")
    moves = [(a, b, MB) for a in devices for b in devices]
    assert bounds.transfers(on, moves, RATES) == bounds.all_to_all(on, devices, MB, RATES)


@pytest.mark.parametrize("chip", CHIPS)
def test_rates_of_a_chip(chip):
    spec = load_chip(chip)
    rates = Rates.of(spec)
    assert rates.link_bytes_per_s == spec.ici.link_bandwidth.value
    assert rates.start_latency_ps == pytest.approx(spec.dma.start_latency_remote.number * 10**12)
    assert rates.hop_latency_ps == pytest.approx(spec.ici.hop_latency.number * 10**12)
    peak = spec.core.peak_bf16.number / spec.core.devices_per_chip.integer
    assert peak <= rates.flops_per_s + 1 <= 1.05 * peak
    assert Rates.of(spec, "int8").flops_per_s >= rates.flops_per_s
    assert rates.local_start_latency_ps > 0
    assert (rates.die_bytes_per_s > rates.link_bytes_per_s) == (chip == "v7x")


def test_a_pod_is_quick_enough():
    on, devices = of("v5p:16x16x24")
    assert bounds.all_gather(on, devices, MB, RATES) == 6143 * MB_ON_A_LINK // 6 + 3 * US


def rooted(collective):
    return lambda on, devices, size, rates: collective(on, devices, devices[-1], size, rates)


ROOTED = [bounds.broadcast, bounds.reduce, bounds.scatter, bounds.gather]
EVERY_SLICE = [
    Slice.parse(text)
    for text in (
        *(f"v5e:{shape}" for shape in ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")),
        *("v6e:8x16", "v4:4x4x4", "v4:4x4x8", "v5p:2x2x2", "v5p:2x4x4", "v5p:8x8x8", "v7x:2x2x2", "v7x:4x4x4"),
    )
]


@pytest.mark.parametrize("on", EVERY_SLICE, ids=str)
@pytest.mark.parametrize("collective", [*COLLECTIVES, *map(rooted, ROOTED)])
def test_every_collective_on_every_slice_has_a_certificate(on, collective):
    for size in (1, 4096, 64 * MB):
        bound = collective(on, everyone(on), size, RATES)
        if on.num_devices == 1:
            assert bound == 0
            continue
        assert bound >= RATES.start_latency_ps
        if isinstance(bound, bounds.Bound):
            assert bound == bound.bandwidth + bound.latency
            assert bound.bandwidth >= 0
            assert str(bound.latency) in bound.because
        else:  # two dies of one chip, where only the start is certain
            assert on.num_chips == 1


def test_certificates_read_well():
    on, devices = of("v5e:4x4")
    assert bounds.all_gather(on, devices, MB, RATES).because == (
        "14.3 MiB must cross the 2 links at the edge of one part of the slice, 50.0 GB/s each (150.000 us for "
        "bandwidth, 3.000 us of latency)"
    )
    assert bounds.barrier(on, devices, RATES).because == (
        "two devices are 6 hops apart and must hear of each other (6.000 us of latency)"
    )
    assert bounds.local_copy(8 * MB, RATES).because == (
        "7.6 MiB move through HBM of 800.0 GB/s (10.000 us for bandwidth, 500.000 ns of latency)"
    )


def test_a_broadcast_leaves_its_root_by_all_links_and_goes_to_the_farthest_corner():
    """The corner of a 4x4 mesh has 2 links and a corner 6 hops away; on the 16x16 torus 4 and 16."""
    on, devices = of("v5e:4x4")
    assert bounds.broadcast(on, devices, 0, 10 * MB, RATES) == 2 * US + 10 * MB_ON_A_LINK // 2 + 6 * US
    on, devices = of("v5e:16x16")
    assert bounds.broadcast(on, devices, 0, 10 * MB, RATES) == 2 * US + 10 * MB_ON_A_LINK // 4 + 16 * US
    assert bounds.barrier(on, devices, RATES) == 16 * US
    assert bounds.reduce(on, devices, 5, MB, RATES) == bounds.broadcast(on, devices, 5, MB, RATES)


@given(slices, st.sampled_from(ROOTED), st.integers(0, 10**9), st.data())
def test_no_rooted_bound_lies_above_sending_everything_directly(on, collective, size, data):
    devices = data.draw(st.lists(st.sampled_from(everyone(on)), min_size=1, unique=True))
    root = data.draw(st.sampled_from(devices))
    load: dict[int, int] = {}
    farthest = 0
    for device in devices:
        ends = (device, root) if collective in (bounds.gather, bounds.reduce) else (root, device)
        farthest = max(farthest, hops(on, *ends))
        for index in route(on, *ends).links:
            load[index] = load.get(index, 0) + size
    slowest = min(RATES.link_bytes_per_s, RATES.die_bytes_per_s)
    busiest = -(-max(load.values(), default=0) * 10**12 // slowest)
    least = collective(on, devices, root, size, RATES)
    assert 0 <= least <= RATES.start_latency_ps + busiest + farthest * RATES.hop_latency_ps
    assert least <= collective(on, devices, root, size + MB, RATES)


def test_the_bounds_of_a_mesh_are_those_of_its_devices():
    on, devices = of("v5e:4x4")
    mesh = bounds.MeshBounds(on, load_chip("v5e"), {"x": 16}, devices)
    rates = mesh.rates
    assert mesh.broadcast(MB, root=3) == bounds.broadcast(on, devices, devices[3], MB, rates)
    assert mesh.reduce(MB) == bounds.reduce(on, devices, devices[0], MB, rates)
    assert mesh.scatter(MB, 2) == bounds.scatter(on, devices, devices[2], MB, rates)
    assert mesh.gather(MB, 2) == bounds.gather(on, devices, devices[2], MB, rates)
    assert mesh.barrier() == bounds.barrier(on, devices, rates)
    assert mesh.collective_permute([(0, 1), (1, 0)], MB) == bounds.permute(on, [(0, 1), (1, 0)], MB, rates)
    everyone_alike = [[MB] * 16] * 16
    assert mesh.ragged_all_to_all(everyone_alike) == mesh.all_to_all(MB)


# --- misuse -----------------------------------------------------------------------------------------


def exactly(text):
    return f"^{re.escape(text)}$"


def test_a_device_twice():
    with pytest.raises(OptionError, match=exactly("Device 1 is in the mesh 2 times.")):
        bounds.all_gather(Slice.parse("v5e:2x2"), (0, 1, 1), MB, RATES)


def test_a_device_the_slice_does_not_have():
    message = exactly("v5e:2x2 has devices 0 to 3, not 4.")
    with pytest.raises(OptionError, match=message):
        bounds.all_gather(Slice.parse("v5e:2x2"), (0, 4), MB, RATES)
    with pytest.raises(OptionError, match=message):
        bounds.permute(Slice.parse("v5e:2x2"), [(0, 4)], MB, RATES)


def test_a_mesh_of_other_devices():
    on, devices = of("v5e:2x2")
    with pytest.raises(OptionError, match=exactly("A mesh (2, 4) has 8 devices, not 4.")):
        bounds.halo_exchange(on, devices, (2, 4), MB, RATES)
    with pytest.raises(OptionError, match=exactly("halo_bytes has 1 sizes for 2 mesh axes.")):
        bounds.halo_exchange(on, devices, (2, 2), (MB,), RATES)
