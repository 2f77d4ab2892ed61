"""The race judge against an oracle on random programs: no false alarm, and nothing missed."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st
from race_oracle import explore, has_late_senders, observe, outside, programs, racing, reported

from tpusim.findings import Kind
from tpusim.machine.memory import BufferSpec, Tiling
from tpusim.machine.overlaps import RegionIndex
from tpusim.specs import MemorySpace


@settings(max_examples=600)
@given(program=programs())
def test_against_the_stall_rule(program):
    log, machine = observe(program)
    found = reported(machine, Kind.RACE)
    possible = racing(log, whole=True)
    assert found <= possible | {(b, a) for a, b in possible}
    so_far = racing(log, whole=False)
    assert so_far <= possible
    lifetimes = {where for where, _ in reported(machine, Kind.LIFETIME)}
    if so_far and not found | lifetimes:
        event("missed")
        assert has_late_senders(log)
    event("race" if found else "none")
    possible_lifetimes = outside(log, program)
    assert lifetimes <= possible_lifetimes
    if possible_lifetimes and not found | lifetimes:
        # It can come after the exit only: then something is left over, which the audit at exit reports.
        tables = machine.calls[0].semaphores
        assert any(semaphore.value for table in tables for row in table for semaphore in row)


@settings(max_examples=100)
@given(program=programs(most=8))
def test_against_every_interleaving(program):
    log, machine = observe(program)
    possible = explore(log)
    if possible is not None:
        by_rule = racing(log, whole=True)
        assert by_rule <= possible
        assert reported(machine, Kind.RACE) <= possible


@given(data=st.data())
def test_which_regions_overlap(data):
    shape = data.draw(st.sampled_from([(12,), (6, 8), (3, 4, 5)]))
    spec = BufferSpec(0, "b", MemorySpace.SMEM, shape, np.dtype("int32"), Tiling({32: 8}, 512))
    key = st.tuples(*(st.tuples(st.integers(0, n - 1), st.integers(1, 3), st.integers(1, 3)) for n in shape))
    fits = key.filter(lambda k: all(a + (c - 1) * s < n for (a, c, s), n in zip(k, shape, strict=True)))
    regions = [spec.whole.sub(k) for k in data.draw(st.lists(fits, min_size=2, max_size=12, unique=True))]
    numbers = np.arange(np.prod(shape)).reshape(shape)
    elements = {region: set(numbers[region.index].ravel().tolist()) for region in regions}
    index = RegionIndex()
    links = {region: index.links_of(region) for region in regions}
    for one, other in itertools.permutations(regions, 2):
        assert (other in links[one]) == bool(elements[one] & elements[other])
        if other in links[one]:
            assert links[one][other] == (elements[other] <= elements[one])
