"""A chip's numbers from microbenchmarks: what to run, and what follows from the times.

``measure`` gives the device time of one run.  On a TPU it is the profiler's; a test lets the simulator play the
hardware with numbers of its own, which then have to come back.  Only what the times determine is fitted: on one chip
nothing of the links, and on neighbours alone a hop cannot be told from the latency it comes on top of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tpusim.calibrate.fit import Observation, Solution, fit
from tpusim.calibrate.microbenchmarks import COUNTS, inputs, make_kernel
from tpusim.chips import ChipSpec, Quantity
from tpusim.intervals import used_numbers
from tpusim.retime import Recording
from tpusim.specs import ShapeDtypeStruct

Parameters = Mapping[str, Any]
Measure = Callable[[Parameters], tuple[float, float]]
"""From a microbenchmark's parameters, its count among them, to microseconds of device time and how sure they are."""

_KIB, _MIB = 1 << 10, 1 << 20
_ON_ONE = (
    "dma.start_latency_hbm_to_vmem", "dma.start_latency_vmem_to_hbm", "dma.start_latency_vmem_to_vmem",
    "dma.start_latency_hbm_to_hbm", "dma.rate_vmem_to_vmem", "dma.issue", "hbm.bandwidth",
)  # fmt: skip
_ON_SEVERAL = ("dma.start_latency_remote", "ici.link_bandwidth", "ici.signal_latency")
_FARTHER = ("ici.hop_latency",)


def plan(devices: int) -> list[dict[str, Any]]:
    """The microbenchmarks for a mesh of so many devices, without their counts."""
    ways = [("hbm", "vmem"), ("vmem", "hbm"), ("vmem", "vmem"), ("hbm", "hbm")]
    found: list[dict[str, Any]] = [
        {"name": "copy", "source": source, "target": target, "bytes_": size}
        for source, target in ways
        for size in (4 * _KIB, 64 * _KIB, _MIB)
    ]
    found += [
        {"name": "copy", "source": "hbm", "target": "vmem", "bytes_": s, "in_flight": 4} for s in (4 * _KIB, _MIB)
    ]
    found += [{"name": "strided", "bytes_": 64 * _KIB}, {"name": "pipeline", "bytes_": 64 * _KIB}]
    if devices > 1:
        far = range(1, min(devices // 2, 4) + 1)
        found += [{"name": "shift", "bytes_": size, "hops": 1} for size in (4 * _KIB, 64 * _KIB, _MIB)]
        found += [{"name": "shift", "bytes_": 4 * _KIB, "hops": hops} for hops in far if hops > 1]
        found += [{"name": "shift", "bytes_": _MIB, "hops": 1, "both": True}, {"name": "barrier"}]
        found += [{"name": "ping", "hops": hops} for hops in far]
    return found


def numbers_for(devices: int) -> tuple[str, ...]:
    """What a mesh of so many devices determines."""
    return _ON_ONE + (_ON_SEVERAL if devices > 1 else ()) + (_FARTHER if devices > 3 else ())


def calibrate_device(
    chip: ChipSpec,
    slice_: str,
    devices: int,
    measure: Measure,
    progress: Callable[[str], None] = lambda text: None,
    counts: tuple[int, int] = COUNTS,
) -> tuple[dict[str, Quantity], Solution]:
    """Numbers of ``chip`` from microbenchmarks on ``devices`` of a slice, as quantities, and the fit behind them."""
    observations = []
    for parameters in plan(devices):
        progress(title(parameters))
        observations.append(observe(chip, slice_, devices, parameters, measure, counts))
    solution = fit(chip, numbers_for(devices), observations)
    old = dict(chip.rows())
    note = f"{len(observations)} microbenchmarks on {slice_}"
    said = {"source": "tpusim calibrate", "confidence": "measured", "note": note}
    numbers = {
        path: old[path].model_copy(update={"value": found.value, "low": found.low, "high": found.high, **said})
        for path, found in solution.numbers.items()
    }
    return numbers, solution


def title(parameters: Parameters) -> str:
    """``copy source=hbm target=vmem bytes_=4096``."""
    rest = (f"{name}={value}" for name, value in parameters.items() if name != "name")
    return " ".join([str(parameters["name"]), *rest])


def observe(
    chip: ChipSpec,
    slice_: str,
    devices: int,
    parameters: Parameters,
    measure: Measure,
    counts: tuple[int, int] = COUNTS,
) -> Observation:
    """The difference between two counts, measured and predicted."""
    timed = [measure({**parameters, "count": count}) for count in counts]
    recordings: list[Recording] = []
    used: dict[str, Quantity] = {}
    for count in counts:
        recording, numbers = record(chip, slice_, devices, {**parameters, "count": count})
        recordings.append(recording)
        used |= numbers
    (few, few_sigma), (many, many_sigma) = timed
    sigma = max(few_sigma, many_sigma, 0.005 * (many - few), 1e-3)
    first, second = recordings

    def time_ps(other: ChipSpec) -> float:
        return second.time_ps(other) - first.time_ps(other)

    return Observation(title(parameters), many - few, sigma, time_ps, used)


def record(chip: ChipSpec, slice_: str, devices: int, parameters: Parameters) -> tuple[Recording, dict[str, Quantity]]:
    """A microbenchmark simulated on a chip, and the numbers its time depends on."""
    result = simulate(chip, slice_, devices, parameters)
    return Recording(result.trace, result.cores, result.place), used_numbers(result.trace, result.place)


def simulate(chip: ChipSpec, slice_: str, devices: int, parameters: Parameters) -> Any:
    """One run of a microbenchmark, without data."""
    own = {name: parameters[name] for name in ("name", "bytes_", "in_flight", "count") if name in parameters}
    shapes = [ShapeDtypeStruct(array.shape, array.dtype) for array in inputs(devices, **own)]
    options = {"slice": slice_, "mesh": devices, "chip": chip, "data": False, "checks": "none", "on_finding": "record"}
    return make_kernel(**parameters).simulate(*shapes, **options)


def simulated_hardware(chip: ChipSpec, slice_: str, devices: int) -> Measure:
    """The simulator in place of a TPU, with the numbers of ``chip``."""

    def measure(parameters: Parameters) -> tuple[float, float]:
        return simulate(chip, slice_, devices, parameters).time_us, 0.0

    return measure
