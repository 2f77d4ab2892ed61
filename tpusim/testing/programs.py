"""Random DMA programs that mean something: a kernel, its inputs, and what it computes step by step.

A program is a list of steps that every device runs on four buffers: ``x`` (an operand) and ``h`` (an output) in HBM,
``v`` and ``w`` in VMEM.  Its meaning is that of the steps in sequence, each copy done at its start, all devices in
step.  A careful program waits for each copy at once, between barriers where it is remote: it means just that in every
schedule.  Any other may instead have a race, a leak, a deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tpusim import np as sim_np
from tpusim.descriptors import make_async_copy, make_async_remote_copy, sync_copy
from tpusim.language import (
    axis_index,
    axis_size,
    semaphore_signal,
    semaphore_wait,
)
from tpusim.program import Kernel
from tpusim.specs import HBM, VMEM, SemaphoreType, ShapeDtypeStruct

ROWS = 8
SHAPE = ShapeDtypeStruct((ROWS, 128), "float32")
BUFFERS = ("x", "h", "v", "w")
IN_VMEM = ("v", "w")
SEMAPHORES = 3
MOST_STEPS = 40


class Start(NamedTuple):
    """Copy rows to rows, ``hop`` devices to the right (0: a local copy)."""

    source: str
    source_row: int
    target: str
    target_row: int
    rows: int
    sem: int
    hop: int


class Wait(NamedTuple):
    """Wait for both legs of the copy started by an earlier step."""

    step: int


class Store(NamedTuple):
    """Fill rows with a number."""

    buffer: str
    row: int
    rows: int
    value: int


class Load(NamedTuple):
    """Add one to rows: a load and a store."""

    buffer: str
    row: int
    rows: int


class Barrier(NamedTuple):
    """All devices join; ``number`` picks a semaphore of its own, so that a fast device cannot pass twice."""

    number: int


Step = Start | Wait | Store | Load | Barrier


@dataclass(frozen=True)
class DmaProgram:
    """Steps that ``devices`` devices of a ring run."""

    steps: tuple[Step, ...]
    devices: int = 1

    @property
    def is_remote(self) -> bool:
        """Whether devices meet or send to each other."""
        return any((isinstance(step, Start) and step.hop) or isinstance(step, Barrier) for step in self.steps)

    @cached_property
    def kernel(self) -> Kernel:
        """The program; its outputs are ``h``, ``v`` and ``w``."""
        buffer = VMEM((ROWS, 128), "float32")
        dma, regular = SemaphoreType.DMA((2, SEMAPHORES)), SemaphoreType.REGULAR((MOST_STEPS + 1,))

        def program(
            x_ref: Any, h_ref: Any, v_out: Any, w_out: Any, v_ref: Any, w_ref: Any, sems: Any, joins: Any
        ) -> None:
            self._run({"x": x_ref, "h": h_ref, "v": v_ref, "w": w_ref}, sems, joins)
            sync_copy(v_ref, v_out)
            sync_copy(w_ref, w_out)

        return Kernel(
            program, out_shape=(SHAPE, SHAPE, SHAPE), in_specs=HBM, scratch_shapes=(buffer, buffer, dma, regular),
            name="dma_program",
        )  # fmt: skip

    def inputs(self) -> tuple[np.ndarray[Any, Any]]:
        """The GLOBAL ``x``."""
        return (np.arange(self.devices * ROWS * 128, dtype=np.float32).reshape(-1, 128) % 1000,)

    def simulate(self, **options: Any) -> Any:
        """Run it; ``options`` are the run options."""
        return self.kernel.simulate(*self.inputs(), mesh=self.devices, **options)

    def _run(self, refs: dict[str, Any], sems: Any, joins: Any) -> None:
        me: Any = axis_index("x") if self.is_remote else 0
        n = axis_size("x") if self.is_remote else 1
        made: dict[int, Any] = {}

        def join_all(sem: Any) -> None:
            for distance in range(1, n):
                semaphore_signal(sem, device_id=(me + distance) % n)
            semaphore_wait(sem, n - 1)

        refs["v"][...] = sim_np.full((ROWS, 128), 1.0)
        refs["w"][...] = sim_np.full((ROWS, 128), 2.0)
        sync_copy(refs["x"], refs["h"])
        for number, step in enumerate(self.steps):
            match step:
                case Start(source, row, target, target_row, rows, sem, hop):
                    ends = refs[source].at[row : row + rows], refs[target].at[target_row : target_row + rows]
                    if hop:
                        copy = make_async_remote_copy(*ends, sems.at[0, sem], sems.at[1, sem], (me + hop) % n)
                    else:
                        copy = make_async_copy(*ends, sems.at[1, sem])
                    made[number] = copy
                    copy.start()
                case Wait(started):
                    made[started].wait()
                case Store(name, row, rows, value):
                    refs[name][row : row + rows] = sim_np.full((rows, 128), float(value))
                case Load(name, row, rows):
                    refs[name][row : row + rows] = refs[name][row : row + rows] + 1.0
                case Barrier(join):
                    join_all(joins.at[join])
        if self.is_remote:
            join_all(joins.at[MOST_STEPS])

    def reference(self) -> tuple[np.ndarray[Any, Any], ...]:
        """GLOBAL ``h``, ``v``, ``w`` after the steps in sequence."""
        x = self.inputs()[0].reshape(self.devices, ROWS, 128)
        memory = [{"x": own.copy(), "h": own.copy(), "v": 0 * own + 1, "w": 0 * own + 2} for own in x]
        for step in self.steps:
            match step:
                case Start(source, row, target, target_row, rows, _, hop):
                    moved = [own[source][row : row + rows].copy() for own in memory]
                    for device, part in enumerate(moved):
                        memory[(device + hop) % self.devices][target][target_row : target_row + rows] = part
                case Store(name, row, rows, value):
                    for own in memory:
                        own[name][row : row + rows] = value
                case Load(name, row, rows):
                    for own in memory:
                        own[name][row : row + rows] += 1
                case _:
                    pass
        return tuple(np.concatenate([own[name] for own in memory]) for name in ("h", "v", "w"))
