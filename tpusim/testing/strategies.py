"""Hypothesis strategies for what a run takes: slices, meshes, shapes, element types, schedules, DMA programs.

All shrink towards the least: the smallest slice, one device, the default schedule, one held leg of the first copy of
device 0.  So the example that Hypothesis reports is a schedule in which as little as possible is delayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tpusim.errors import MissingExtraError, OptionError
from tpusim.schedules import ANY, Operation, Place
from tpusim.testing.programs import (
    BUFFERS,
    IN_VMEM,
    ROWS,
    SEMAPHORES,
    Barrier,
    DmaProgram,
    Load,
    Start,
    Step,
    Store,
    Wait,
)
from tpusim.topology import CHIPS, Slice

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise MissingExtraError("tpusim.testing needs Hypothesis: pip install 'tpusim[testing]'") from error

_DTYPES = ("float32", "bfloat16", "int32", "int8", "uint8", "float16")
_HELD = (
    ("start", "writer"), ("start", "reader"), ("signal", "arrival"), ("wait", ""), ("signal", ""), ("start", ""),
    ("enter", ""), ("exit", ""), ("start", "writer.last"), ("start", "reader.last"),
)  # fmt: skip
"""Kinds of operation and their legs, those whose delay shows most first."""
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def slices(chips: Sequence[str] = CHIPS, *, max_devices: int = 16) -> st.SearchStrategy[str]:
    """Texts of slices with at most ``max_devices`` devices, the smallest first."""
    found: dict[str, int] = {}
    for chip in chips:
        for devices in _SIZES:
            if devices <= max_devices:
                slice_ = Slice.smallest(chip, devices)
                if slice_.num_devices <= max_devices:
                    found[str(slice_)] = slice_.num_devices
    if not found:
        raise OptionError(f"slices: no chip of {', '.join(chips)} has a slice of at most {max_devices} devices")
    return st.sampled_from(sorted(found, key=lambda text: (found[text], text)))


@st.composite
def meshes(draw: st.DrawFn, axes: Sequence[str] = ("x",), *, max_devices: int = 8) -> dict[str, int]:
    """Sizes of a kernel's axes, together at most ``max_devices`` devices."""
    sizes: dict[str, int] = {}
    for axis in axes:
        sizes[axis] = draw(st.integers(1, max(1, max_devices // prod(sizes.values()))))
    return sizes


@st.composite
def shapes(draw: st.DrawFn, *, max_rows: int = 64, max_lanes: int = 512, is_tiled: bool = True) -> tuple[int, ...]:
    """Shapes of one device's shard: whole tiles of 8 rows and 128 lanes, or with ``is_tiled=False`` any."""
    row, lane = (8, 128) if is_tiled else (1, 1)
    rows = draw(st.integers(1, max(1, max_rows // row)))
    return rows * row, draw(st.integers(1, max(1, max_lanes // lane))) * lane


def dtypes() -> st.SearchStrategy[str]:
    """Names of element types that a TPU has, ``float32`` first."""
    return st.sampled_from(_DTYPES)


@st.composite
def places(draw: st.DrawFn, devices: int, *, operations: int = 8) -> Place:
    """What to hold on a row of ``devices``: one of the first ``operations`` of a kind, or all of them."""
    kind, leg = draw(st.sampled_from(_HELD))
    device = draw(st.sampled_from([*((device,) for device in range(devices)), (), ()]))
    number = draw(st.sampled_from([*range(1, operations + 1), 0, 0, 0]))
    return Place(Operation(device, ANY, kind, number), leg)


def schedules(devices: int, *, operations: int = 8, max_holds: int = 6) -> st.SearchStrategy[str]:
    """Texts for the run option ``schedule`` of a kernel with one mesh axis: places held until nothing else can move.

    From all of a kind on every device to single ones; no place is the default schedule.
    """
    held = st.lists(places(devices, operations=operations), max_size=max_holds, unique=True)
    return held.map(lambda found: f"try-hold:{'+'.join(map(str, found))}" if found else "default")


# -- DMA programs -----------------------------------------------------------------------------------------


@st.composite
def _rows(draw: st.DrawFn, buffers: Sequence[str]) -> tuple[str, int, int]:
    row = draw(st.integers(0, ROWS - 1))
    return draw(st.sampled_from(buffers)), row, draw(st.integers(1, ROWS - row))


@st.composite
def _starts(draw: st.DrawFn, hops: int) -> Start:
    """A copy that does not overlap itself."""
    source, row, rows = draw(_rows(BUFFERS))
    target = draw(st.sampled_from([name for name in BUFFERS if name != source]))
    target_row = draw(st.integers(0, ROWS - rows))
    sem = draw(st.integers(0, SEMAPHORES - 1))
    return Start(source, row, target, target_row, rows, sem, draw(st.integers(0, hops)))


def _stores() -> st.SearchStrategy[Store]:
    return _rows(IN_VMEM).flatmap(lambda place: st.integers(-9, 9).map(lambda value: Store(*place, value)))


def _loads() -> st.SearchStrategy[Load]:
    return _rows(IN_VMEM).map(lambda place: Load(*place))


@st.composite
def dma_programs(draw: st.DrawFn, *, devices: int = 1, max_steps: int = 10, is_careful: bool = False) -> DmaProgram:
    """Programs of copies, waits, loads, stores and barriers for ``devices`` devices.

    ``is_careful``: each copy is waited for at once, and a remote one stands between barriers; else waits stand
    anywhere or nowhere, so that some programs have races, leaks and deadlocks.
    """
    hops = devices - 1
    make: Any = _careful_steps if is_careful else _any_steps
    return DmaProgram(tuple(draw(make(hops, max_steps))), devices)


@st.composite
def _any_steps(draw: st.DrawFn, hops: int, max_steps: int) -> list[Step]:
    steps: list[Step] = []
    open_: list[int] = []
    for _ in range(draw(st.integers(1, max_steps))):
        kind = draw(st.sampled_from(("start", "start", "wait", "wait", "store", "load", "barrier")))
        if kind == "start":
            open_.append(len(steps))
            steps.append(draw(_starts(hops)))
        elif kind == "wait" and open_:
            position = draw(st.integers(0, len(open_) - 1))
            steps.append(Wait(open_[position]))
            if draw(st.integers(0, 5)):  # else it may be waited for once more
                del open_[position]
        elif kind == "store":
            steps.append(draw(_stores()))
        elif kind == "load":
            steps.append(draw(_loads()))
        elif kind == "barrier" and hops:
            steps.append(Barrier(len(steps)))
    if draw(st.booleans()):
        steps += [Wait(step) for step in open_]
    return steps


@st.composite
def _careful_steps(draw: st.DrawFn, hops: int, max_steps: int) -> list[Step]:
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, max_steps))):
        step: Step = draw(st.one_of(_starts(hops), _stores(), _loads()))
        if not isinstance(step, Start):
            steps.append(step)
            continue
        around = [Barrier(len(steps))] if step.hop else []
        steps += [*around, step]
        steps.append(Wait(len(steps) - 1))
        steps += [Barrier(len(steps))] if step.hop else []
    return steps
