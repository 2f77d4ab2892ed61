"""What is read from the events of a run: its critical path, where its time goes, memory, use, lines."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulating import run

from tpusim import VMEM, SemaphoreType, make_async_copy, run_scoped
from tpusim.errors import DeadlockError
from tpusim.kernel_file import load_file
from tpusim.native import simulate
from tpusim.specs import MemorySpace
from tpusim.testing import dma_programs
from tpusim.trace.critical import critical_path
from tpusim.trace.lines import line_uses
from tpusim.trace.memory import high_water, levels, occupants
from tpusim.trace.rates import Use
from tpusim.trace.shares import Cause, shares
from tpusim.trace.steps import Steps

DMA = SemaphoreType.DMA
KERNELS = Path(__file__).parents[1] / "kernels"
RUNS = [
    ("ring_all_gather", 16, "v5e:4x4"),
    ("ring_all_gather_bidir", 8, "v5e:2x4"),
    ("all_to_all", 8, "v7x:2x2x1"),
    ("halo_exchange", (2, 4), "v5e:2x4"),
    ("matmul_pipeline", 1, "v5e:1x1"),
    ("all_gather_matmul", 4, "v5e:2x2"),
    ("barrier", 4, "v5e:2x2"),
    ("ring_attention", 4, "v6e:2x2"),
    ("paged_gather", 1, "v5e:1x1"),
]
CALM = [
    ("ring_all_gather", 16, "v5e:4x4"),
    ("ring_all_gather_bidir", 16, "v5e:4x4"),
    ("ring_reduce_scatter", 4, "v5e:2x2"),
    ("right_permute", 4, "v5e:2x2"),
    ("barrier", 4, "v5e:2x2"),
]
"""Kernels whose copies do not share what they cross, so that a slower chip moves nothing but their own times."""


def simulated(name, devices, slice_, detail=True, **options):
    loaded = load_file(str(KERNELS / f"{name}.py"))
    return simulate(loaded.kernel, loaded.inputs(devices=devices), {"slice": slice_, **options}, detail=detail)


def check(result):
    """Every law that holds for every run."""
    steps = Steps(result)
    end = int(result.time)
    for mine in steps.of:
        assert [mine[0].from_ps, mine[-1].to_ps] == [0, end]
        assert all(a.to_ps == b.from_ps and a.length_ps > 0 for a, b in pairwise(mine))
    path = critical_path(steps)
    assert sum(link.length_ps for link in path) == end
    assert [path[0].from_ps, path[-1].to_ps] == [0, end]
    assert all(a.to_ps == b.from_ps for a, b in pairwise(path))
    assert all(a.slack_ps <= b.slack_ps and a.slack_ps >= 0 for a, b in pairwise(path))
    for before, after in pairwise(path):
        if before.device != after.device and before.kind not in ("outside", "idle"):
            # the chain changes devices only behind a copy or a signal that went there
            assert before.kind in ("hops", "transfer", "signal flight")
            target = before.event.dst.device if before.kind != "signal flight" else before.event.semaphore.device
            assert target == after.device
    use = Use(result)
    found = shares(steps, use)
    assert found.total_ps == end * len(result.cores) == sum(found.by_cause.values())
    assert all(sum(own.values()) == end for own in found.by_device)
    assert all(length > 0 for length in found.by_cause.values())
    for device in range(len(result.cores)):
        for mark in high_water(result, device):
            assert mark.used_bytes == sum(life.padded_bytes for life in mark.occupants)
            assert mark.used_bytes <= mark.capacity_bytes
            assert mark.used_bytes == max(used for _, used in levels(occupants(result, device), mark.space))
    lines = line_uses(steps, path).values()
    assert sum(line.core_ps for line in lines) == found.total_ps
    assert sum(line.critical_ps for line in lines) == end
    assert sum(line.copies for line in lines) == result.dmas
    assert sum(line.bytes for line in lines) == result.bytes


@pytest.mark.parametrize(("name", "devices", "slice_"), RUNS)
@pytest.mark.parametrize("detail", [True, False])
def test_the_analysis_of_a_kernel_adds_up(name, devices, slice_, detail):
    check(simulated(name, devices, slice_, detail))


@given(st.integers(1, 3).flatmap(lambda devices: dma_programs(devices=devices)))
def test_the_analysis_of_any_program_adds_up(program):
    """Right or wrong, to its end or stopped on its way."""
    result = program.simulate(on_finding="record", max_time=10_000)
    if result.time:
        check(result)


@pytest.mark.parametrize(("name", "devices", "slice_"), CALM)
def test_a_slower_chip_costs_at_least_what_the_chain_says(name, devices, slice_):
    """The chain is one that the machine has to go through: longer links make the run longer by as much."""
    before = simulated(name, devices, slice_)
    path = critical_path(Steps(before))
    starts = sum(link.kind == "start" for link in path)
    hops = sum(link.event.hops for link in path if link.kind == "hops")
    moved = [link for link in path if link.kind == "transfer"]
    slower = simulated(name, devices, slice_, set={"dma.issue": 39})  # 15 cycles of 1.5 GHz more
    assert slower.time >= before.time + starts * 10_000
    slower = simulated(name, devices, slice_, set={"ici.hop_latency": 7e-7})
    assert slower.time >= before.time + hops * 200_000
    slower = simulated(name, devices, slice_, set={"ici.link_bandwidth": 2.14e10})
    if all(link.event.hops for link in moved):
        assert slower.time >= before.time + sum(link.length_ps for link in moved) - len(moved)


def test_the_time_of_a_ring_goes_to_its_copies():
    found = shares(Steps(simulated("ring_all_gather", 16, "v5e:4x4")))
    largest = list(found.by_cause)[:3]
    assert largest == [
        Cause("exposed copy", "hop latency"),
        Cause("exposed copy", "start latency"),
        Cause("exposed copy", "transfer, ICI link"),
    ]
    assert found.share(largest[0]) > 0.4


def overlapped(times):
    """A copy of 4 MiB behind ``times`` passes over one tile."""

    def kernel(x_ref, o_ref, large, sem):
        copy = make_async_copy(large.at[0], large.at[1], sem)
        copy.start()
        for _ in range(times):
            o_ref[...] = x_ref[...] * 2.0
        copy.wait()

    scratch = (VMEM((2, 2048, 512), "float32"), DMA)
    return run(kernel, np.ones((8, 128), np.float32), in_specs=VMEM, out_specs=VMEM, scratch_shapes=scratch)


def test_only_what_compute_does_not_hide_of_a_copy_is_exposed():
    def exposed(result):
        parts = shares(Steps(result)).by_cause.items()
        return sum(length for cause, length in parts if cause.group == "exposed copy")

    all_hidden, little, none = (overlapped(times) for times in (2000, 50, 0))
    (copy,) = (copy for copy in none.trace.copies if copy.src is copy.dst)
    alone = copy.written_ps - copy.issued_ps - copy.core.issue_ps
    windows = exposed(all_hidden)  # what brings the tiles in and out
    assert exposed(none) - windows == pytest.approx(alone, rel=1e-3)
    assert windows < exposed(little) < exposed(none)
    assert next(iter(shares(Steps(none)).by_cause)) == Cause("exposed copy", "transfer, DMA engine")


def test_memory_of_scopes_is_counted_while_they_last():
    def kernel(x_ref, o_ref):
        def inner(scratch, sem):
            for source, target in ((x_ref, scratch), (scratch, o_ref)):
                copy = make_async_copy(source, target, sem)
                copy.start()
                copy.wait()

        run_scoped(inner, VMEM((8, 128), "float32"), DMA)
        run_scoped(inner, VMEM((8, 128), "float32"), DMA)

    result = run(kernel, np.ones((8, 128), np.float32))
    marks = {mark.space: mark for mark in high_water(result)}
    assert marks[MemorySpace.VMEM].used_bytes == 8 * 128 * 4
    assert len([life for life in occupants(result) if life.spec.space is MemorySpace.VMEM]) == 2
    assert [life.spec.name for life in marks[MemorySpace.HBM].occupants] == ["o_ref", "x_ref"]
    assert marks[MemorySpace.HBM].used_bytes == 2 * 8 * 128 * 4


def test_a_deadlock_has_a_path_too():
    def kernel(x_ref, o_ref, first, second):
        copy = make_async_copy(x_ref, o_ref, first)
        copy.start()
        copy.wait()
        make_async_copy(x_ref, o_ref, second).wait()

    with pytest.raises(DeadlockError) as caught:
        run(kernel, np.ones((8, 128), np.float32), scratch_shapes=(DMA, DMA))
    result = caught.value.result
    check(result)
    assert [link.kind for link in critical_path(Steps(result))] == ["start", "latency", "transfer", "blocked"]


def test_links_are_never_used_beyond_their_capacity():
    result = simulated("all_to_all", 8, "v6e:2x4", detail=True)
    use = Use(result)
    edges = np.linspace(0, int(result.time), 50)
    for link in result.links.values():
        over = use.over(link, edges)
        assert over.min() >= 0
        assert over.max() <= 1
        carried = float((over * np.diff(edges)).sum()) * link.capacity / 1e12
        assert carried == pytest.approx(link.busy_bytes, rel=1e-3)
