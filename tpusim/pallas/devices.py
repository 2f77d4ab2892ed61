"""The devices of a captured program: each in a greenlet of its own, doing what the program gives it one by one.

The control flow around kernels recurses, so it needs a stack that can be left anywhere.  A kernel needs none: it is a
generator, which the event loop goes on with at the price of a call, and the greenlet waits for its end.  Only where
operations suspend a core themselves does all of it stay in the greenlet.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import greenlet
import numpy as np

from tpusim.machine.clock import Later
from tpusim.machine.core import Core
from tpusim.machine.dma import CORE
from tpusim.machine.machine import Machine
from tpusim.pallas import internals
from tpusim.pallas.collectives import Collective, Rendezvous
from tpusim.pallas.kernels import KernelInstance
from tpusim.pallas.outer import KERNELS, Evaluator, PureRun
from tpusim.pallas.shards import key_words

if TYPE_CHECKING:
    from tpusim.pallas.host_part import Run

Task = Callable[["Device"], object]
"""A part of the program for one device."""


class Device(Evaluator):
    """One device's part of a program: a queue of tasks, each begun when the one before it is over."""

    def __init__(self, run: Run, core: Core, hub: greenlet.greenlet) -> None:
        super().__init__(run.program.plans)
        self.run_ = run
        self.core = core
        self.suspend = hub.switch
        self.turns: dict[int, int] = {}
        self.participants = len(run.machine.cores) // run.machine.group
        """How many devices execute the present task."""
        self._tasks: deque[Task] = deque()
        self._is_idle = core.done = True
        self._is_over = False
        self._thread = greenlet.greenlet(self._work, hub)
        self._thread.gr_context = contextvars.copy_context()

    def give(self, task: Task, now: int) -> None:
        """Add a task; an idle device begins it at ``now`` (ps), or when it came to be idle if that was later."""
        self._tasks.append(task)
        if self._is_idle:
            self._is_idle = self.core.done = False
            self.run_.machine.launch(self.core, self._thread.switch, now)

    def end(self) -> None:
        """Give up what is left."""
        self._is_over = True
        if self._thread and self._is_idle:
            self._thread.switch()  # it returns, which is cheaper than an exception
        while self._thread:
            self._thread.throw(greenlet.GreenletExit)

    def _work(self) -> None:
        while not self._is_over:
            while self._tasks:
                self._tasks.popleft()(self)
            self._is_idle = self.core.done = True
            self.suspend()

    def pure(self, step: PureRun, env: dict[Any, Any]) -> None:
        """Compute, on arrays that must be there."""
        self.run_.handed.read(self.core, step.eqns[0], [env[var] for var in step.inputs])
        step.evaluate(env)

    def special(self, eqn: Any, operands: list[Any], into: Sequence[Any]) -> list[Any]:
        """Enter a kernel, meet the group of a collective, or say which device this is."""
        run, name = self.run_, eqn.primitive.name
        if name == "axis_index":
            return [np.int32(self._axis_index(eqn.params["axis_name"]))]
        if name == "shard_map":
            raise internals.not_modelled("a shard_map inside a shard_map", eqn)
        turn = self.turns[id(eqn)] = self.turns.get(id(eqn), -1) + 1
        key = id(eqn), turn  # the same on all devices
        if name in KERNELS:
            instance = run.instances.get(key)
            if instance is None:
                kernel = run.program.kernel(eqn, run.axis_sizes, run.machine.data)
                instance = run.instances[key] = KernelInstance(
                    kernel,
                    run.machine,
                    run.session.printed_by,
                    run.handed,
                    self.participants,
                    run.session.options.compute == "exact",
                )
            results, steps = instance.begin(self.core, [key_words(value) for value in operands], into)
            self._execute(steps)
            run.authors.keep(instance, results)
            if instance.is_over:
                del run.instances[key]
            return results
        meeting = run.meetings.get(key)
        if meeting is None:
            meeting = run.meetings[key] = Collective(eqn, run.machine)
        run.handed.read(self.core, eqn, operands)
        return self.meet(meeting, key, operands)

    def _execute(self, steps: Iterator[None]) -> None:
        """A kernel, to its end."""
        switch = self._thread.switch

        def go_on() -> None:
            for _ in steps:
                return
            switch()

        try:
            for _ in steps:
                if not self.run_.machine.suspends_inside:
                    self.core.resume = go_on
                self.suspend()
        finally:
            self.core.resume = switch

    def meet(self, meeting: Rendezvous, key: Any, operands: Sequence[Any]) -> list[Any]:
        """Meet the group; a meeting that all groups had is forgotten."""
        results = meeting.join(self.core, self.suspend, operands)
        if meeting.left == len(self.run_.machine.cores) // self.run_.machine.group:
            self.run_.meetings.pop(key, None)
        return results

    def _axis_index(self, axis: Any) -> int:
        sizes = self.run_.axis_sizes
        coords = dict(zip(sizes, self.run_.machine.coordinates(self.core.device), strict=False))
        index = 0
        for name in (axis,) if isinstance(axis, str) else axis:
            index = index * sizes[name] + coords[name]
        return index


def happen_at(machine: Machine, now: int, action: Callable[[], object]) -> None:
    """Have ``action`` happen at a time (ps), behind all cores."""
    machine.env.schedule(Later(action), CORE + (len(machine.cores) << 34), now - machine.env.now)
