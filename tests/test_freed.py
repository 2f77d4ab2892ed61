"""A run is freed with its result: whoever runs thousands of them in a process needs the memory of one."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

import tpusim
from tpusim.errors import LivelockError
from tpusim.kernel_file import load_file
from tpusim.machine.machine import Machine

FILE = load_file("kernels/ring_all_gather.py")
INPUTS = FILE.inputs(devices=4)
PLACE = {"slice": "v5e:2x2"}


def fails() -> None:
    with pytest.raises(LivelockError):
        FILE.kernel.simulate(*INPUTS, **PLACE, max_time=3e-6)


def captured() -> None:
    jax = pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")
    from capturing import mesh

    del jax
    tpusim.pallas.simulate(FILE.kernel.pallas(mesh(4)), **PLACE)(*INPUTS)


RUNS: dict[str, Callable[[], object]] = {
    "native": lambda: FILE.kernel.simulate(*INPUTS, **PLACE),
    "recorded": lambda: FILE.kernel.simulate(*INPUTS, **PLACE, max_time=3e-6, on_finding="record"),
    "fails": fails,
    "scheduled": lambda: FILE.kernel.simulate(*INPUTS, **PLACE, schedule="random:1"),
    "verify": lambda: FILE.kernel.verify(*INPUTS, **PLACE),
    "interval": lambda: FILE.kernel.simulate(*INPUTS, **PLACE).interval,
    "captured": captured,
}


def machines() -> list[Machine]:
    """All that there are."""
    return [thing for thing in gc.get_objects() if isinstance(thing, Machine)]


@pytest.fixture
def alive() -> Callable[[], list[Machine]]:
    """The machines that were not there at the start: other tests may keep some."""
    gc.collect()
    before = machines()
    return lambda: [machine for machine in machines() if not any(machine is other for other in before)]


@pytest.mark.parametrize("name", RUNS)
def test_nothing_of_a_run_stays(name: str, alive: Callable[[], list[Machine]]) -> None:
    for _ in range(3):
        RUNS[name]()
    gc.collect()
    assert not alive()


@pytest.mark.parametrize("name", ["native", "scheduled", "captured"])
def test_a_run_goes_with_its_result_before_the_collector_comes(name: str, alive: Callable[[], list[Machine]]) -> None:
    RUNS[name]()
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            RUNS[name]()
        assert not any(machine.cores for machine in alive())
    finally:
        gc.enable()
