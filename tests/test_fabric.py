"""The fabric against a naive solver that starts from nothing at every begin and end, in exact fractions."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import ceil

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tpusim.errors import InternalError
from tpusim.machine.fabric import Fabric
from tpusim.machine.flows import Flow, Path, Resource
from tpusim.machine.waterfill import check_delivered, fill_few
from tpusim.units import PS_PER_S, transfer_ps

BEGIN = 1 << 40
SOLVE = 1 << 60
GB = 10**9
FEW, MANY = 10**9, 1
"""Crowd sizes that force the plain solver and the numpy solver."""


@dataclass(frozen=True)
class Case:
    """A flow to be: resource numbers, the engine's rate, bytes, priority and the begin in ps."""

    crossed: tuple[int, ...]
    limit: int
    size: int
    priority: int = 0
    begin: int = 0


@dataclass
class Run:
    """What came of it."""

    ends: list[int]
    resources: list[Resource]
    fabric: Fabric
    ended: list[int] = field(default_factory=list)


class Recorded(Flow):
    __slots__ = ("run", "which")

    def transferred(self):
        assert self.run.ends[self.which] == -1, "ended twice"
        self.run.ends[self.which] = self.run.fabric._env.now
        self.run.ended.append(self.which)


def run(capacities, cases, *, crowd_size, shuffle=None, log=None):
    env = simpy.Environment()
    fabric = Fabric(env, SOLVE, crowd_size=crowd_size)
    fabric.rate_log = log
    resources = [Resource(f"r{i}", c) for i, c in enumerate(capacities)]
    result = Run([-1] * len(cases), resources, fabric)
    order = list(range(len(cases)))
    if shuffle is not None:
        random.Random(shuffle).shuffle(order)
    paths: dict[tuple[tuple[int, ...], int], Path] = {}
    for i in order:
        case = cases[i]
        path = paths.get((case.crossed, case.limit))
        if path is None:  # copies from one memory to another share theirs
            path = paths[case.crossed, case.limit] = Path(tuple(resources[r] for r in case.crossed), case.limit)
        flow = Recorded(path, case.size, i, case.priority)
        flow.run, flow.which = result, i
        start = simpy.Event(env)
        start._ok, start._value = True, None
        start.callbacks = [lambda _, flow=flow: fabric.begin(flow, env.now)]
        # All begins of an instant have one key, so the heap keeps the order of insertion.
        env.schedule(start, BEGIN, case.begin)
    env.run()
    assert -1 not in result.ends
    fabric.rate_log = []  # from now on paths keep no share of their resources for later flows
    assert all(not r.flows and r.peak_sum == 0 and r.crowd is None for r in resources)
    return result


def fair_rates(flows, capacities, number):
    """Weighted max-min rates by textbook filling, in fractions or floats; ``flows`` are (crossed, peak, priority)."""
    same = 1 if number is Fraction else 1 + 1e-12
    rates = [None] * len(flows)
    spare = [number(c) for c in capacities]
    for priority in (1, 0):
        spare = [s if s > c * (same - 1) else number(0) for s, c in zip(spare, capacities, strict=True)]
        open_ = [i for i, flow in enumerate(flows) if flow[2] == priority]
        while open_:
            weight = [sum(flows[i][0].count(r) for i in open_) for r in range(len(spare))]
            share = min([spare[r] / w for r, w in enumerate(weight) if w], default=None)
            low = [i for i in open_ if share is None or flows[i][1] <= share]
            if low:
                for i in low:
                    rates[i] = number(flows[i][1])
            else:
                full = {r for r, w in enumerate(weight) if w and spare[r] / w <= share * same}
                low = [i for i in open_ if full & set(flows[i][0])]
                for i in low:
                    rates[i] = share
            for i in low:
                for r in flows[i][0]:
                    spare[r] -= rates[i]
            open_ = [i for i in open_ if i not in low]
    return rates


def oracle(capacities, cases, number=Fraction):
    """End times in ps, solved from nothing over all resources at every begin and end.

    An end is the first whole picosecond at which nothing is left but what a millionth of one would move.
    """
    peaks = [min([c.limit, *(capacities[r] // c.crossed.count(r) for r in c.crossed)]) for c in cases]
    left = {}
    ends = [-1] * len(cases)
    coming = sorted(range(len(cases)), key=lambda i: cases[i].begin)
    tiny = number(1e-6)
    now = 0
    while left or coming:
        flying = sorted(left)
        rates = fair_rates([(cases[i].crossed, peaks[i], cases[i].priority) for i in flying], capacities, number)
        dues = {
            i: now + max(ceil(left[i] * PS_PER_S / rate - tiny), 0)
            for i, rate in zip(flying, rates, strict=True)
            if rate or not left[i]
        }
        then = min([*dues.values(), *(cases[i].begin for i in coming[:1])])
        for i, rate in zip(flying, rates, strict=True):
            left[i] -= rate * (then - now) / PS_PER_S
            # Floats stand in for the long tail of exact fractions: 2e-16 of the bytes.
            left[i] = max(number(float(left[i])), number(0))
        now = then
        for i in [i for i, due in dues.items() if due == now]:
            ends[i] = now
            del left[i]
        while coming and cases[coming[0]].begin == now:
            i = coming.pop(0)
            if cases[i].size:
                left[i] = number(cases[i].size)
            else:
                ends[i] = now
    return ends


def close(ends, expected, begins):
    return all(abs(a - b) <= 2 + 1e-9 * (b - begin) for a, b, begin in zip(ends, expected, begins, strict=True))


@st.composite
def flow_sets(draw, *, most=14, priorities=(0,)):
    capacities = draw(st.lists(st.sampled_from([1 * GB, 3 * GB, 7 * GB, 10 * GB, 86 * GB]), min_size=1, max_size=6))
    case = st.builds(
        Case,
        crossed=st.lists(st.integers(0, len(capacities) - 1), min_size=1, max_size=4).map(tuple),
        limit=st.sampled_from([GB // 2, 2 * GB, 10 * GB, 200 * GB]),
        size=st.sampled_from([0, 32, 512, 4096, 4096, 65_536]) | st.integers(1, 10_000),
        priority=st.sampled_from(priorities),
        begin=st.sampled_from([0, 0, 1000, 16_000]) | st.integers(0, 2_000_000),
    )
    return capacities, draw(st.lists(case, min_size=1, max_size=most))


@pytest.mark.parametrize("crowd_size", [FEW, MANY, 4])
@given(flow_sets())
@settings(max_examples=150, deadline=None)
def test_ends_are_those_of_the_naive_solver(crowd_size, drawn):
    capacities, cases = drawn
    result = run(capacities, cases, crowd_size=crowd_size)
    assert close(result.ends, oracle(capacities, cases), [c.begin for c in cases])


@pytest.mark.parametrize("crowd_size", [FEW, MANY, 4])
@given(flow_sets(priorities=(0, 0, 1)))
@settings(max_examples=100, deadline=None)
def test_priority_one_is_served_first(crowd_size, drawn):
    capacities, cases = drawn
    result = run(capacities, cases, crowd_size=crowd_size)
    assert close(result.ends, oracle(capacities, cases), [c.begin for c in cases])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("crowd_size", [48, MANY])
def test_a_crowd_ends_as_in_the_naive_solver(seed, crowd_size):
    """Some hundred flows on a grid of links, most of which end at an instant of their own."""
    draw = random.Random(seed)
    capacities = [draw.choice([43 * GB, 86 * GB]) for _ in range(24)]
    cases = [
        Case(
            tuple(draw.sample(range(24), draw.randint(1, 4))), 86 * GB, 32 * draw.randint(1, 2000),
            int(seed == 3 and draw.random() < 0.1), draw.choice([0, 16_000, draw.randint(0, 500_000)]),
        )
        for _ in range(120)
    ]  # fmt: skip
    result = run(capacities, cases, crowd_size=crowd_size)
    assert close(result.ends, oracle(capacities, cases, float), [c.begin for c in cases])
    assert len(set(result.ends)) > 100


@pytest.mark.parametrize("crowd_size", [FEW, MANY])
@given(flow_sets(priorities=(0, 1)))
@settings(max_examples=60, deadline=None)
def test_every_byte_is_carried_and_no_resource_goes_above_its_capacity(crowd_size, drawn):
    capacities, cases = drawn
    log = []
    result = run(capacities, cases, crowd_size=crowd_size, log=log)
    for number, (resource, capacity) in enumerate(zip(result.resources, capacities, strict=True)):
        carried = sum(case.size * case.crossed.count(number) for case in cases)
        assert resource.busy_bytes == carried
        steps = [(time, rate) for time, where, rate in log if where is resource]
        assert all(rate <= capacity * (1 + 1e-9) for _, rate in steps)
        if carried:
            assert steps[-1][1] == 0
            area = sum(rate * (b - a) for (a, rate), (b, _) in pairwise(steps)) / PS_PER_S
            # Each end rounds up by less than a picosecond at no more than the capacity.
            assert carried * (1 - 1e-9) <= area <= carried * (1 + 1e-9) + len(cases) * 4 * capacity / PS_PER_S


@pytest.mark.parametrize("crowd_size", [FEW, MANY, 4])
@given(flow_sets(priorities=(0, 1)), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_the_order_of_begins_within_an_instant_does_not_matter(crowd_size, drawn, shuffle):
    capacities, cases = drawn
    first = run(capacities, cases, crowd_size=crowd_size)
    again = run(capacities, cases, crowd_size=crowd_size, shuffle=shuffle)
    assert first.ends == again.ends
    # A copy of nothing ends between the begins of its own instant.
    assert [i for i in first.ended if cases[i].size] == [i for i in again.ended if cases[i].size]


@given(flow_sets(priorities=(0, 1)))
@settings(max_examples=60, deadline=None)
def test_a_log_changes_nothing(drawn):
    capacities, cases = drawn
    assert run(capacities, cases, crowd_size=4).ends == run(capacities, cases, crowd_size=4, log=[]).ends


@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.integers(0, 500_000)), min_size=1, max_size=10),
    st.integers(1, 90),
    st.integers(0, 30),
)
@settings(max_examples=100, deadline=None)
def test_more_bandwidth_of_a_single_bottleneck_is_never_slower(flows, capacity, more):
    cases = [Case((0,), 200 * GB, size, 0, begin) for size, begin in flows]
    slow = run([capacity * GB], cases, crowd_size=FEW)
    fast = run([(capacity + more) * GB], cases, crowd_size=FEW)
    assert all(a <= b + 1 for a, b in zip(fast.ends, slow.ends, strict=True))


def test_flows_that_no_resource_binds_take_exactly_their_own_time_and_no_solve():
    # 86 GB/s twice through 3.6 TB/s of HBM; the engine is the limit of the second.
    cases = [Case((0, 1, 2), 200 * GB, 4097), Case((2, 3, 0), 50 * GB, 12_345, begin=777)]
    result = run([3600 * GB, 86 * GB, 3600 * GB, 86 * GB], cases, crowd_size=48)
    assert result.ends == [transfer_ps(4097, 86 * GB), 777 + transfer_ps(12_345, 50 * GB)]
    assert result.fabric.solves == 0


def test_rounding_is_the_same_alone_and_shared():
    # 32 B at 10 GB/s / 3 take 9,600.000001 ps.
    cases = [Case((0,), GB // 2, 0), Case((0,), GB // 2, 32), Case((0, 0, 0), 10 * GB, 32, priority=1)]
    for shuffle in range(6):
        assert run([10 * GB], cases, crowd_size=FEW, shuffle=shuffle).ends == [0, 73_600, 9600]


def test_a_share_kept_for_later_flows_holds_nobody_back():
    """Over one link at full rate one after the other, by two ways; then both at once, and one after the other again."""
    ways = [(0, 1), (0, 2)]
    begins = [(0, 0), (1, 200_000), (0, 400_000), (0, 600_000), (1, 600_000), (1, 1_000_000), (0, 1_200_000)]
    cases = [Case(ways[way], 10 * GB, 1000, begin=begin) for way, begin in begins]
    for crowd_size in (FEW, MANY):
        result = run([10 * GB, 86 * GB, 86 * GB], cases, crowd_size=crowd_size)
        lasted = [end - case.begin for end, case in zip(result.ends, cases, strict=True)]
        assert lasted == [100_000, 100_000, 100_000, 200_000, 200_000, 100_000, 100_000]
        assert result.fabric.solves == 1


def test_resource_listed_twice_weighs_two():
    # HBM to HBM at 10 GB/s: 5 in and 5 out; beside it a read gets as much as each of its halves.
    alone = run([10 * GB], [Case((0, 0), 100 * GB, 5000)], crowd_size=48)
    assert alone.ends == [1_000_000]
    shared = run([9 * GB], [Case((0, 0), 100 * GB, 3000), Case((0,), 100 * GB, 3000)], crowd_size=48)
    assert shared.ends == [1_000_000, 1_000_000]
    assert shared.resources[0].busy_bytes == 9000


def test_zero_bytes_end_in_their_instant_even_on_a_full_resource():
    cases = [Case((0,), 10 * GB, 10_000), Case((0,), 10 * GB, 10_000), Case((0,), 10 * GB, 0, begin=5)]
    for crowd_size in (FEW, MANY):
        assert run([10 * GB], cases, crowd_size=crowd_size).ends == [2_000_000, 2_000_000, 5]


def test_a_flow_returns_to_its_peak_when_its_company_has_gone():
    # 1000 B each at 5 GB/s until 200 ns, then the long one alone at 10 GB/s.
    cases = [Case((0,), 10 * GB, 1000), Case((0,), 10 * GB, 3000)]
    for crowd_size in (FEW, MANY):
        assert run([10 * GB], cases, crowd_size=crowd_size).ends == [200_000, 400_000]


def test_a_flow_of_priority_zero_waits_while_one_takes_everything():
    cases = [Case((0,), 10 * GB, 1000), Case((0,), 10 * GB, 1000, priority=1, begin=50_000)]
    for crowd_size in (FEW, MANY):
        assert run([10 * GB], cases, crowd_size=crowd_size).ends == [200_000, 150_000]


def test_ends_of_one_instant_come_in_their_order_whatever_their_component():
    cases = [Case((i % 3, i % 3), 10 * GB, 1000) for i in range(12)]
    for crowd_size in (FEW, MANY):
        for shuffle in range(3):
            assert run([20 * GB] * 3, cases, crowd_size=crowd_size, shuffle=shuffle).ended == list(range(12))


@pytest.mark.parametrize("crowd_size", [FEW, MANY, 8])
def test_a_flow_may_begin_again_from_its_own_end(crowd_size):
    env = simpy.Environment()
    fabric = Fabric(env, SOLVE, crowd_size=crowd_size)
    link = Resource("link", 10 * GB)
    ends = []

    class Again(Flow):
        __slots__ = ("left",)

        def transferred(self):
            ends.append(env.now)
            self.left -= 1
            if self.left:
                fabric.begin(self, env.now)

    for order in range(20):
        flow = Again(Path((link,), 10 * GB), 1000, order)
        flow.left = 5
        fabric.begin(flow, env.now)
    env.run()
    assert ends == [2_000_000 * (1 + i // 20) for i in range(100)]
    assert fabric.solves == 5


@pytest.mark.parametrize("crowd_size", [FEW, MANY])
def test_no_entry_of_the_fabric_reaches_a_flow_after_its_end(crowd_size):
    """A copy goes on as another event of its own; late entries of its transfer must not ring that."""
    env = simpy.Environment()
    fabric = Fabric(env, SOLVE, crowd_size=crowd_size)
    links = [Resource(f"link {i}", 10 * GB) for i in range(4)]
    rung = []

    class TwoLegs(Flow):
        __slots__ = ("then",)

        def transferred(self):
            self.then = env.now + 10_000_000
            self.callbacks = [lambda flow: rung.append((env.now, flow.then))]
            env.schedule(self, self.order, 10_000_000)

    def begin(event):
        fabric.begin(event.value, env.now)

    draw = random.Random(1)
    for order in range(60):
        path = Path(tuple(draw.sample(links, 2)), 10 * GB)
        env.timeout(draw.randint(0, 100_000), TwoLegs(path, draw.randint(1, 3000), order)).callbacks.append(begin)
    env.run()
    assert len(rung) == 60
    assert all(now == then for now, then in rung)


def test_components_that_do_not_touch_are_not_solved_again():
    # Two pairs on two links; the second pair's ends are far away and each link is solved for its own events only.
    cases = [Case((0,), 10 * GB, size) for size in (100, 200, 300)] + [Case((1,), 10 * GB, 10**6)] * 2
    result = run([10 * GB, 10 * GB], cases, crowd_size=48)
    # Link 0: the begin and two ends that leave company (the last of these one flow, untight); link 1: its begin.
    assert result.fabric.solves == 3


def test_a_crowd_splits_when_its_bridge_has_gone():
    cases = [Case((link,), 10 * GB, 4000 + 100 * i) for link in (0, 1) for i in range(6)]
    cases.append(Case((0, 1), 10 * GB, 10))
    for crowd_size in (FEW, MANY, 5):
        result = run([10 * GB, 10 * GB], cases, crowd_size=crowd_size)
        assert close(result.ends, oracle([10 * GB, 10 * GB], cases), [0] * 13)


def test_rates_are_logged_where_they_change():
    log = []
    result = run([10 * GB], [Case((0,), 4 * GB, 4000), Case((0,), 4 * GB, 8000, begin=500_000)], crowd_size=48, log=log)
    link = result.resources[0]
    assert log == [(0, link, 4e9), (500_000, link, 8e9), (1_000_000, link, 4e9), (2_500_000, link, 0)]


def test_fill_few_serves_the_urgent_first():
    assert fill_few([["a"], ["a", "b"], ["b"]], [4, 9, 9], {"a": 10.0, "b": 8.0}, 1) == [4.0, 4.0, 4.0]


def test_a_flow_that_ends_with_bytes_to_go_is_our_bug():
    with pytest.raises(InternalError, match=r"^a copy of 4096 bytes ended with 1 bytes to go\n"):
        check_delivered(1.0, 4096, 1e9)
