"""What the proof says of a fault: one finding for two lines, with the number of devices it was found on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tpusim.findings import Finding, Kind, Where, where_of
from tpusim.judges.proof.accesses import Access, Conflict
from tpusim.judges.proof.record import Moved, Signalled
from tpusim.machine.calls import Call
from tpusim.machine.dma import Copy

if TYPE_CHECKING:
    from tpusim.machine.machine import Machine
    from tpusim.machine.semaphores import Semaphore


class ProofReport:
    """Writes the findings of one proof."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._numbers = {call: number for number, call in enumerate(machine.calls, 1)}

    def findings(self, faults: Iterable[Conflict]) -> list[tuple[Finding, Conflict]]:
        """A finding for every two lines, and the first of its faults."""
        found: dict[Any, tuple[Finding, Conflict, set[int]]] = {}
        for fault in faults:
            kind = Kind.LIFETIME if _is_lifetime(fault) else Kind.RACE
            key = (kind, frozenset((_place(fault.earlier), _place(fault.later))))
            if key not in found:
                found[key] = (self._finding(kind, fault), fault, set())
            finding, _, devices = found[key]
            devices.add(self._owner(fault))
            finding.details["devices"] = len(devices)
        return [(finding, fault) for finding, fault, _ in found.values()]

    def overlaps(self, copies: Iterable[Copy]) -> list[Finding]:
        """A finding for each line that starts a copy onto itself."""
        found: dict[Any, Finding] = {}
        for copy in copies:
            place = where_of(copy.site)
            if place not in found:
                found[place] = Finding(
                    Kind.RACE,
                    f"copy from {copy.src_region} to {copy.dst_region} on {self.device(copy.dst.device)}: source and "
                    "destination overlap, and nothing says in which order the bytes move.",
                    device=self._machine.coordinates(copy.core.device),
                    argument=str(copy.dst_region),
                    where=place,
                )
        return list(found.values())

    def leaving(self, left: Iterable[tuple[Moved, Semaphore, int]]) -> list[Finding]:
        """A finding for each semaphore on which something is left when its scope ends."""
        found: dict[str, Finding] = {}
        for _, semaphore, value in left:
            if str(semaphore) not in found:
                found[str(semaphore)] = Finding(
                    Kind.LEAK,
                    f"{semaphore} is left at {value}{semaphore.unit} on {self.device(semaphore.device)} when its "
                    "run_scoped ends: every signal and every copy needs its wait.",
                    device=self._machine.coordinates(semaphore.device),
                    argument=str(semaphore),
                )
        return list(found.values())

    def device(self, device: int) -> str:
        """``device (2,)``."""
        return f"device {self._machine.coordinates(device)}"

    # -- texts ----------------------------------------------------------------------------------

    def _owner(self, fault: Conflict) -> int:
        """The device on whose memory, or into whose call, the fault falls."""
        buffer = fault.later.buffer or fault.earlier.buffer
        return fault.earlier.device if buffer is None else buffer.device

    def _finding(self, kind: Kind, fault: Conflict) -> Finding:
        earlier, later = fault
        text = self._lifetime(fault) if kind is Kind.LIFETIME else self._race(fault)
        return Finding(
            kind,
            text,
            device=self._machine.coordinates(later.device if not _is_end(later) else earlier.device),
            argument=str(later.what if later.what is not None else earlier.what),
            where=_where(later) or _where(earlier),
            other=_where(earlier) if _where(later) is not None else None,
        )

    def _race(self, fault: Conflict) -> str:
        earlier, later = fault
        return (
            f"{self.name(later)} can overlap in time with {self.name(earlier)} at {_where(earlier)}: in some schedule "
            f"{self._reason(earlier, later)}"
        )

    def _reason(self, earlier: Access, later: Access) -> str:
        if earlier.is_leg:
            verb = "written its destination" if earlier.is_write else "read its source"
            return f"that copy has not yet {verb} when {self.device(later.device)} comes here."
        return f"{self.device(earlier.device)} is still there when {self.device(later.device)} comes here."

    def _lifetime(self, fault: Conflict) -> str:
        earlier, later = fault
        if _is_end(later):
            buffer = earlier.buffer
            name = "" if buffer is None else buffer.spec.name
            owner = f"run_scoped of {name}" if later.source.is_scope else "kernel"
            return (
                f"{self.name(earlier)}: {self.device(later.device)} leaves the {owner} without a wait that makes sure "
                "that the copy is over."
            )
        owner = earlier.source  # where the target never came that far in this run, the call or scoped object itself
        call = owner.call if isinstance(owner, Moved) else owner
        is_scope = owner.is_scope if isinstance(owner, Moved) else not isinstance(owner, Call)
        device = self.device(earlier.device)
        if is_scope:
            source = later.source
            is_counted = isinstance(source, Copy) and source.dst.spec.scope is None  # else it may be the buffer
            counts = f", which counts on {source.dst_sem}" if is_counted else ""
            return (
                f"{self.name(later)}{counts}: nothing makes sure that {device} is inside the run_scoped that owns it; "
                "it has to tell that it has entered it, and to wait before it leaves."
            )
        return (
            f"{self.name(later)}{self._during(call)}: nothing makes sure that {device} has entered the call that owns "
            "it; a barrier or a signal from there has to come first."
        )

    def _during(self, call: Call | None) -> str:
        number = self._numbers.get(call) if call is not None else None
        return f" in call {number} of {len(self._numbers)}" if number is not None and len(self._numbers) > 1 else ""

    def name(self, access: Access) -> str:
        """An access in words."""
        source = access.source
        if isinstance(source, Copy):
            by = f"started by {self.device(access.device)}"
            if not access.is_write:
                return f"the copy from {source.src_region} {by}"
            return f"the copy to {source.dst_region} on {self.device(source.dst.device)} {by}"
        if isinstance(source, Signalled):
            target = self.device(source.semaphore.device)
            return f"the signal to {source.semaphore} on {target} by {self.device(access.device)}"
        verb = "store to" if access.is_write else "load of"
        return f"the {verb} {access.what} by {self.device(access.device)}"


def _is_end(access: Access) -> bool:
    """Whether it is the end of a scope."""
    return isinstance(access.source, Moved) and not access.source.is_entry


def _is_lifetime(fault: Conflict) -> bool:
    earlier, later = fault
    return _is_end(later) or (earlier.what is None and not earlier.is_leg)


def _where(access: Access) -> Where | None:
    return where_of(getattr(access.source, "site", None))


def _place(access: Access) -> Any:
    """A line as a key; a code object itself would hash its whole bytecode."""
    site = getattr(access.source, "site", None)
    return (id(site[0]), site[1]) if type(site) is tuple else site
