"""Names for the operations of a run that is over, so that a token can hold one of them in the next run.

Nothing is named while a run goes on.  ``number`` counts from 1 the operations of one kind on one device in program
order, whatever function they stand in, as the event log has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpusim.schedules import Operation, Ordinals, function_name

if TYPE_CHECKING:
    from tpusim.machine.dma import Copy
    from tpusim.machine.machine import Machine
    from tpusim.trace.log import EventLog


def name_copy(machine: Machine, log: EventLog, copy: Copy) -> Operation:
    """The name of a copy's start; ``Place(name, "writer")`` is then its writer leg.  Linear in the copies."""
    mine = [other for other in log.copies if other.core is copy.core]
    return name_operation(machine, log, copy.core.device, "start", 1 + mine.index(copy))


def name_operation(machine: Machine, log: EventLog, device: int, kind: str, number: int) -> Operation:
    """The name of the ``number``-th ``start``, ``wait`` or ``signal`` of a device; ``LookupError`` if it has fewer."""
    found: list[tuple[Any, tuple[str, ...]]]
    if kind == "start":
        copies = [copy for copy in log.copies if copy.core.device == device]
        found = [(copy.site, (copy.src.spec.name, copy.dst.spec.name)) for copy in copies[:number]]
    else:
        events = [event for event in (log.waits if kind == "wait" else log.signals) if event.core.device == device]
        found = [(event.site, (event.semaphore.spec.name,)) for event in events[:number]]
    if len(found) < number:
        raise LookupError(f"device {device} did {len(found)} operations of kind {kind}, not {number}")
    ordinals = Ordinals()
    names = [ordinals.name(machine.coordinates(device), function_name(site), kind, what) for site, what in found]
    return names[-1]
