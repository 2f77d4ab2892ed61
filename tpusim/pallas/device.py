"""A function on the devices of this process, timed by JAX's profiler.

The profiler writes what each TPU did when: a plane for each device, with a line of whole programs and one of their
operations, a Pallas kernel being one.  The time of one repeat is from the last device's entry to the last one's exit:
a device that is there first waits for the others, which is no part of the kernel's time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.profiler import ProfileData

_OPERATIONS = ("XLA Ops", "XLA Modules")
"""Lines of a device's plane on which a kernel may stand, the closer one first."""


class DeviceEvent(NamedTuple):
    """Something a device did: microseconds from the first event of the profile."""

    device: int
    line: str
    name: str
    from_us: float
    to_us: float


@dataclass(frozen=True)
class Measured:
    """Outputs, the device time of each repeat in microseconds, and the events of the last one.

    ``times_us`` is empty where the profile has no device: interpret mode, for one.
    """

    outputs: tuple[Any, ...]
    times_us: tuple[float, ...]
    events: tuple[DeviceEvent, ...]


def measure(function: Callable[..., Any], arrays: Sequence[Any], *, kernel: str, repeats: int, warmup: int) -> Measured:
    """Run ``function`` ``warmup`` times, then ``repeats`` times under the profiler; ``kernel`` is its kernel's name."""
    outputs: Any = None
    for _ in range(max(1, warmup)):
        outputs = jax.block_until_ready(function(*arrays))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    if repeats < 1:
        return Measured(outputs, (), ())
    with tempfile.TemporaryDirectory(prefix="tpusim_") as folder:
        with jax.profiler.trace(folder):
            for _ in range(repeats):
                jax.block_until_ready(function(*arrays))
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        events = [event for file in files for event in events_of(ProfileData.from_file(str(file)))]
    times, last = times_of(events, kernel, repeats)
    return Measured(outputs, times, last)


def events_of(profile: Any) -> list[DeviceEvent]:
    """What the TPUs of a profile did, in order of time."""
    found = []
    planes = [plane for plane in profile.planes if plane.name.startswith("/device:TPU:")]
    for plane in planes:
        device = int(plane.name.removeprefix("/device:TPU:").split()[0])
        for line in plane.lines:
            for event in line.events:
                begin = event.start_ns / 1e3
                found.append(DeviceEvent(device, line.name, event.name, begin, begin + event.duration_ns / 1e3))
    first = min((event.from_us for event in found), default=0.0)
    moved = [e._replace(from_us=e.from_us - first, to_us=e.to_us - first) for e in found]
    return sorted(moved, key=lambda event: (event.from_us, event.device, event.line))


def times_of(
    events: Iterable[DeviceEvent], kernel: str, repeats: int
) -> tuple[tuple[float, ...], tuple[DeviceEvent, ...]]:
    """The time of each repeat, and what the devices did during the last one.

    Raises ``ValueError`` where the devices do not show the kernel once a repeat.
    """
    events = list(events)
    if not events:
        return (), ()
    for line in _OPERATIONS:
        runs = _runs(events, line, kernel if line == _OPERATIONS[0] else "")
        if runs and all(len(each) == repeats for each in runs.values()):
            break
    else:
        names = sorted({event.name for event in events})[:8]
        raise ValueError(
            f"the profile does not show {kernel} {repeats} times on each device; it has {', '.join(names)}"
        )
    turns = [[each[turn] for each in runs.values()] for turn in range(repeats)]
    times = tuple(max(e.to_us for e in turn) - max(e.from_us for e in turn) for turn in turns)
    begin, end = min(e.from_us for e in turns[-1]), max(e.to_us for e in turns[-1])
    last = [e._replace(from_us=e.from_us - begin, to_us=e.to_us - begin) for e in events if begin <= e.from_us <= end]
    return times, tuple(last)


def _runs(events: Sequence[DeviceEvent], line: str, name: str) -> dict[int, list[DeviceEvent]]:
    """By device, in order, the events of a line whose name holds ``name``."""
    runs: dict[int, list[DeviceEvent]] = {}
    for event in events:
        if event.line == line and name in event.name:
            runs.setdefault(event.device, []).append(event)
    return runs
