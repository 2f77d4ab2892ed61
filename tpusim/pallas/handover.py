"""What one kernel call hands to a later one: semaphores, and the arrays its copies are still busy with.

A call with semaphores among its results ends while its copies go on: the start of a copy in one kernel, the
wait for it in another.  Its results and operands are then the same buffers in both calls, they live from the
entry of the first, and what is left on the semaphores is audited at the end of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tpusim.machine.calls import Call
from tpusim.machine.core import Core
from tpusim.machine.memory import BufferSpec
from tpusim.machine.semaphores import SemaphoreSpec
from tpusim.pallas import internals


class HandedSemaphores(NamedTuple):
    """Semaphores as a value between two calls."""

    call: Call
    spec: SemaphoreSpec

    def put(self, call: Call, spec: SemaphoreSpec) -> None:
        """Let them be the semaphores ``spec`` of another call, on every device."""
        for table, own in zip(call.semaphores, self.call.semaphores, strict=True):
            table[spec.position] = own[self.spec.position]


class HandedArrays:
    """The arrays of calls that hand over semaphores, by the value that stands for them in the program."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Call, BufferSpec]] = {}

    def keep(self, value: Any, call: Call, spec: BufferSpec) -> None:
        """``value`` is what ``call`` has in ``spec`` on some device."""
        if value is not None:
            self._known[id(value)] = (value, call, spec)

    def put(self, value: Any, call: Call, spec: BufferSpec) -> bool:
        """If ``value`` was handed over, let its buffers be those of another call on every device."""
        found = self._known.get(id(value))
        if found is None or found[0] is not value:
            return False
        _, first, old = found
        if first is not call:
            for table, own in zip(call.buffers, first.buffers, strict=True):
                table[spec.position] = own[old.position]
            self.keep(value, call, spec)
        return True

    def read(self, core: Core, eqn: Any, values: Sequence[Any]) -> None:
        """XLA operations of a device, the first of them ``eqn``, read what a copy may still be busy with."""
        for value in values if self._known else ():
            found = self._known.get(id(value))
            if found is not None and found[0] is value:
                _, call, spec = found
                buffer = call.buffers[core.device][spec.position]
                for hook in core.machine.hooks.loaded:
                    hook(core, buffer, spec.whole, internals.where_of_equation(eqn))


def outlive(call: Call, specs: Sequence[BufferSpec | SemaphoreSpec]) -> None:
    """What ``specs`` declare does not end with the call on any device."""
    for spec in specs:
        spec.home = call
