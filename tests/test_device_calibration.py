"""Calibration on a TPU, with the simulator as the hardware, whose hidden numbers come back; and real calls."""

from __future__ import annotations

import random
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tpusim.calibrate import microbenchmarks
from tpusim.calibrate.microbenchmarks import inputs, make_kernel
from tpusim.calibrate.on_device import calibrate_device, numbers_for, plan, simulate, simulated_hardware, title
from tpusim.chips import ChipSpec, load_chip
from tpusim.cli import _app
from tpusim.errors import OptionError
from tpusim.kernel_file import load_file

COUNTS = (2, 6)
HIDDEN = {
    "dma.start_latency_hbm_to_vmem": 5.1e-7,
    "dma.start_latency_vmem_to_hbm": 2.1e-7,
    "dma.start_latency_vmem_to_vmem": 1.3e-7,
    "dma.start_latency_hbm_to_hbm": 6e-7,
    "dma.rate_vmem_to_vmem": 2e12,
    "dma.issue": 25,
    "hbm.bandwidth": 7.1e11,
    "dma.start_latency_remote": 7e-7,
    "ici.link_bandwidth": 4.4e10,
    "ici.signal_latency": 4e-7,
    "ici.hop_latency": 3e-7,
}


def hidden(devices: int) -> ChipSpec:
    return load_chip("v5e").with_values({name: HIDDEN[name] for name in numbers_for(devices)})


def calibrated(devices: int, slice_: str, noise: float = 0.0) -> Any:
    exact, draw = simulated_hardware(hidden(devices), slice_, devices), random.Random(7)

    def measure(parameters: Any) -> tuple[float, float]:
        us, _ = exact(parameters)
        return us * (1 + draw.gauss(0, noise)), us * noise

    return calibrate_device(load_chip("v5e"), slice_, devices, measure, counts=COUNTS)


@pytest.fixture(scope="module")
def on_four() -> Any:
    return calibrated(4, "v5e:2x2")


def test_the_hidden_numbers_of_a_slice_come_back(on_four: Any) -> None:
    numbers, solution = on_four
    assert set(numbers) == set(HIDDEN)
    for name, value in HIDDEN.items():
        assert numbers[name].number == pytest.approx(value, rel=2e-3), name
        assert numbers[name].low <= value <= numbers[name].high, name
        assert numbers[name].confidence == "measured"
    assert max(map(abs, solution.residuals_us.values())) < 0.01


@pytest.mark.parametrize(
    ("name", "options"),
    [("ring_all_gather", {}), ("matmul_pipeline", {"mesh": 1}), ("all_reduce", {}), ("ragged_all_to_all", {})],
)
def test_kernels_kept_out_of_the_fit_are_predicted(on_four: Any, name: str, options: dict[str, Any]) -> None:
    loaded = load_file(f"kernels/{name}.py")
    times = [
        loaded.kernel.simulate(*loaded.inputs(), slice="v5e:2x2", chip=chip, **options).time_us
        for chip in (on_four[1].chip, hidden(4), load_chip("v5e"))
    ]
    assert times[0] == pytest.approx(times[1], rel=5e-3)
    assert abs(times[2] / times[1] - 1) > 0.01  # the shipped numbers would not do


def test_one_chip_determines_nothing_of_the_links() -> None:
    numbers, _ = calibrated(1, "v5e:1x1")
    assert not [name for name in numbers if name.startswith("ici.") or "remote" in name]
    assert numbers["dma.start_latency_hbm_to_vmem"].number == pytest.approx(5.1e-7, rel=2e-3)


def test_noise_is_in_the_intervals() -> None:
    numbers, _ = calibrated(1, "v5e:1x1", noise=0.01)
    inside = [name for name in numbers if numbers[name].low <= HIDDEN[name] <= numbers[name].high]
    assert len(inside) >= len(numbers) - 2
    assert numbers["hbm.bandwidth"].low < numbers["hbm.bandwidth"].number < numbers["hbm.bandwidth"].high


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_every_microbenchmark_is_right_on_the_simulator(devices: int) -> None:
    slices = {1: "v5e:1x1", 2: "v5e:2x2", 4: "v5e:2x2", 8: "v5e:2x4"}
    for parameters in plan(devices):
        result = simulate(load_chip("v5e"), slices[devices], devices, {**parameters, "count": 3})
        assert result.ok, (title(parameters), result.findings)
        own = {name: parameters[name] for name in ("name", "bytes_", "in_flight") if name in parameters}
        again = make_kernel(**parameters, count=3).simulate(
            *inputs(devices, **own, count=3), slice=slices[devices], mesh=devices
        )
        assert again.time == result.time
        assert {finding.kind.value for finding in again.findings} <= {"routing"}  # mesh neighbours may lie apart


def test_a_microbenchmark_takes_whole_tiles() -> None:
    with pytest.raises(OptionError, match=r"^a microbenchmark moves whole tiles of 4096 bytes, not 100 bytes$"):
        make_kernel(bytes_=100)
    with pytest.raises(OptionError, match=r"^there is no microbenchmark 'sleep'\. Possible: copy, .*pipeline$"):
        make_kernel("sleep")


@pytest.mark.jax
def test_every_microbenchmark_runs_through_real_pallas() -> None:
    from tpusim.pallas.remote import Run, run_all

    wanted = [{**p, "count": 2} | ({"bytes_": 4096} if "bytes_" in p else {}) for p in plan(2)]
    runs = [Run(microbenchmarks.__file__, {"x": 2}, parameters) for parameters in wanted]
    found = run_all(runs, on="interpret", repeats=1, warmup=1, timeout_s=300)
    for parameters, timed in zip(wanted, found, strict=True):
        assert timed.error is None, title(parameters)
        assert timed.times_us == ()  # interpret mode has no time


def profile(*planes: tuple[str, dict[str, list[tuple[str, float, float]]]]) -> Any:
    """A profile as the profiler's reader shows it; times in nanoseconds."""
    return SimpleNamespace(
        planes=[
            SimpleNamespace(
                name=name,
                lines=[
                    SimpleNamespace(
                        name=line,
                        events=[SimpleNamespace(name=n, start_ns=b, duration_ns=d) for n, b, d in events],
                    )
                    for line, events in lines.items()
                ],
            )
            for name, lines in planes
        ]
    )


@pytest.mark.jax
def test_device_time_is_from_the_last_entry_to_the_last_exit() -> None:
    from tpusim.pallas.device import events_of, times_of

    found = events_of(
        profile(
            ("/host:CPU", {"python": [("ring", 0.0, 9.0)]}),
            ("/device:TPU:0", {"XLA Ops": [("ring.1", 1000.0, 5000.0), ("ring.1", 20000.0, 4000.0)]}),
            ("/device:TPU:1", {"XLA Ops": [("ring.1", 2000.0, 4500.0), ("copy", 7e3, 10.0), ("ring.1", 21e3, 4e3)]}),
        )
    )
    times, last = times_of(found, "ring", 2)
    assert times == pytest.approx((4.5, 4.0))
    assert [(event.device, event.name, event.from_us) for event in last] == [(0, "ring.1", 0.0), (1, "ring.1", 1.0)]
    missing = r"^the profile does not show sort 2 times on each device; it has copy, ring\.1$"
    with pytest.raises(ValueError, match=missing):
        times_of(found, "sort", 2)
    assert times_of([], "ring", 2) == ((), ())


def test_without_a_tpu_the_commands_say_what_adds_one() -> None:
    if find_spec("libtpu") is not None:
        pytest.skip("the text differs where libtpu is installed")
    done = CliRunner().invoke(_app(), ["calibrate", "--slice", "v5e:2x2"])
    assert done.exit_code == 3
    remedy = "needs a TPU, jax and libtpu; on a TPU VM: pip install 'tpusim[tpu]'"
    assert done.stderr == f"Error: calibrate --slice v5e:2x2: {remedy}\n"
    done = CliRunner().invoke(_app(), ["time", "kernels/barrier.py", "--slice", "v5e:2x2"])
    assert (done.exit_code, done.stderr) == (3, f"Error: time kernels/barrier.py: {remedy}\n")
    assert isinstance(CliRunner().invoke(_app(), ["calibrate"]).exception, OptionError)


@pytest.mark.jax
@pytest.mark.parametrize(("chip", "devices"), [("v4", 4), ("v5e", 4), ("v5p", 4), ("v6e", 4), ("v7x", 8)])
def test_every_microbenchmark_compiles_for_every_chip(chip: str, devices: int) -> None:
    pytest.importorskip("libtpu")
    from tpusim.pallas.compiler import compile_programs, lower
    from tpusim.pallas.emit import abstract_mesh, shapes_of

    programs = []
    for parameters in plan(devices):
        own = {name: parameters[name] for name in ("name", "bytes_", "in_flight") if name in parameters}
        function = make_kernel(**parameters, count=8).pallas(abstract_mesh({"x": devices}))
        programs.append(lower(function, shapes_of(inputs(devices, **own, count=8)), chip))
    for parameters, compiled in zip(plan(devices), compile_programs(programs, chip), strict=True):
        assert compiled.is_accepted, (title(parameters), compiled.error)
