"""A schedule that shows a fault, and whether a replay of it did.

One delay is enough: the access that begins first in the run that was watched is held until nothing else can move.
Then the other one begins meanwhile, and in the data whatever can go wrong has gone wrong.  What is held is named as
in replay tokens: device, function and ordinal of an operation, and a leg of its copy, or what its core does next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tpusim.judges.proof.accesses import Access, Conflict
from tpusim.judges.proof.record import Moved, Recorder, Signalled
from tpusim.machine.dma import Copy
from tpusim.schedules import Operation, Ordinals, Place, function_name, hold_token

if TYPE_CHECKING:
    from tpusim.machine.machine import Machine

_TURNS_BACK = ("wait", "enter", "exit")
"""Operations that give nothing to others: a core may as well be held in front of them as behind."""


class Witness(NamedTuple):
    """What is held, and the operation after which the other access has begun (``None``: nobody has to do anything)."""

    held: Place
    begun: Operation | None

    @property
    def token(self) -> str:
        """What replays the schedule."""
        return hold_token([self.held])

    def __str__(self) -> str:
        place, leg = self.held.operation, self.held.leg
        own = str(place).removesuffix(f" on device {place.device}")
        if leg in ("", "after"):
            return f"device {place.device} held {'behind' if leg else 'at'} its {own}"
        which, _, part = leg.partition(".")
        return f"{'the last bytes of ' if part else ''}the {which} of {place} held"


class Ended(NamedTuple):
    """A leg of a copy ended."""

    copy: Copy
    is_writer: bool


class ReplayRecorder(Recorder):
    """A recorder that also keeps when legs end."""

    def copy_read(self, copy: Copy) -> None:
        """The reader ended."""
        self.events.append(Ended(copy, False))

    def copy_written(self, copy: Copy) -> None:
        """The writer ended."""
        self.events.append(Ended(copy, True))


class Names:
    """The operations of a recorded run as replay tokens name them; ``Ended`` has that of its copy."""

    def __init__(self, recorder: Recorder, machine: Machine) -> None:
        self.events = recorder.events
        self.operations: list[Operation | None] = []
        self.index: dict[int, int] = {}
        """Place of an event by its identity."""
        self.devices: list[int] = []
        ordinals = Ordinals()
        own: dict[Copy, Operation | None] = {}
        for number, event in enumerate(self.events):
            self.index[id(event)] = number
            if isinstance(event, Ended):
                self.operations.append(own[event.copy])
                self.devices.append(-1)
                continue
            core, named = _core_and_name(event)
            self.devices.append(core.device)
            name = None if named is None else ordinals.name(machine.coordinates(core.device), *named)
            self.operations.append(name)
            if isinstance(event, Copy):
                own[event] = name

    def before(self, event: Any, device: int) -> int | None:
        """Where a device's last named operation before an event is, or the event itself if it is one."""
        for number in range(self.index[id(event)], -1, -1):
            if self.devices[number] == device and self.operations[number] is not None:
                return number
        return None

    def operation(self, number: int) -> Operation:
        """The name of an operation that has one."""
        found = self.operations[number]
        if found is None:
            raise KeyError(number)
        return found


def _core_and_name(event: Any) -> tuple[Any, tuple[str, str, tuple[str, ...]] | None]:
    """Who did it, and function, kind and what it works on."""
    if isinstance(event, Copy):
        return event.core, (function_name(event.site), "start", (event.src.spec.name, event.dst.spec.name))
    if type(event) is tuple:
        return event[0], (function_name(event[5]), "wait", (event[1].spec.name,))
    if isinstance(event, Signalled):
        return event.core, (function_name(event.site), "signal", (event.semaphore.spec.name,))
    if isinstance(event, Moved) and not event.is_scope and event.call is not None:
        return event.core, (function_name(None, event.call.name), "enter" if event.is_entry else "exit", ())
    return event.core, None


def witness_of(fault: Conflict, names: Names, *, is_partial: bool) -> Witness | None:
    """The schedule that shows a fault; ``None`` where the run that was watched shows it.

    ``is_partial``: the other access can begin only when all but the last bytes of the leg have come.
    """
    earlier, later = fault
    if id(earlier.source) not in names.index:
        return None
    at = names.before(earlier.source, earlier.device)
    begun = names.before(later.source, later.device)
    if at is None:
        return None
    operation = names.operation(at)
    if earlier.is_leg:
        leg = ("writer" if earlier.is_write else "reader") + (".last" if is_partial else "")
    elif names.events[at] is earlier.source or operation.kind in _TURNS_BACK:
        leg = ""
    else:
        leg = "after"
    return Witness(Place(operation, leg), None if begun is None else names.operation(begun))


def is_shown(witness: Witness, fault: Conflict, replayed: Names) -> bool:
    """Whether in a replay the later access began before the earlier one ended."""
    begun = -1 if witness.begun is None else _find(replayed, witness.begun, 0)
    ended = _end(witness, fault.earlier, replayed)
    return begun is not None and (ended is None or begun < ended)


def _find(names: Names, operation: Operation, start: int) -> int | None:
    """Where an operation is executed."""
    for number in range(start, len(names.events)):
        if names.operations[number] == operation and not isinstance(names.events[number], Ended):
            return number
    return None


def _end(witness: Witness, earlier: Access, names: Names) -> int | None:
    """Where the held access ends; ``None`` where it does not."""
    held = witness.held
    if earlier.is_leg:
        wanted: Sequence[int] = [
            number
            for number, event in enumerate(names.events)
            if isinstance(event, Ended)
            and event.is_writer == held.leg.startswith("writer")
            and names.operations[number] == held.operation
        ]
        return wanted[0] if wanted else None
    at = _find(names, held.operation, 0)
    if at is None or held.leg != "after":
        return at
    device = names.devices[at]
    return next((number for number in range(at + 1, len(names.events)) if names.devices[number] == device), None)
