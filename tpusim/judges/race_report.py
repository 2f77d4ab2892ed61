"""What the race judge says: one finding for two lines, in either order, with the number of devices it met on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpusim.findings import Finding, Kind, Where, where_of
from tpusim.judges.clocks import NEVER, Counter
from tpusim.machine.dma import Copy

if TYPE_CHECKING:
    from tpusim.judges.ranges import Conflict
    from tpusim.machine.core import Core
    from tpusim.machine.machine import Machine
    from tpusim.machine.memory import Buffer, Region
    from tpusim.machine.semaphores import Semaphore


_MISSING = "a barrier between the two, or a signal, is missing."


class Later:
    """The access that is beginning: a core's, or one leg of the copy that it starts."""

    __slots__ = ("buffer", "copy", "core", "is_write", "region", "site")

    def __init__(
        self, core: Core, buffer: Buffer, region: Region, site: Any, *, is_write: bool, copy: Copy | None = None
    ) -> None:
        self.core = core
        self.buffer = buffer
        self.region = region
        self.site = site
        self.is_write = is_write
        self.copy = copy


class _Found:
    """A pair of lines that race, and the devices whose buffers they met on."""

    __slots__ = ("devices", "finding")

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        self.devices: set[int] = set()

    def met_on(self, device: int) -> None:
        self.devices.add(device)
        self.finding.details["devices"] = len(self.devices)


class RaceReporter:
    """Writes findings, each once, and has the machine report them (which raises, where the run raises)."""

    def __init__(self, machine: Machine, counters: dict[Semaphore, Counter]) -> None:
        self._machine = machine
        self._counters = counters
        self._by_sites: dict[Any, _Found] = {}
        self._by_lines: dict[tuple[Kind, frozenset[Where | None]], _Found] = {}

    # -- races ----------------------------------------------------------------------------------

    def is_known(self, conflict: Conflict, later: Later) -> bool:
        """Whether these two lines have been reported."""
        return self._key(conflict, later) in self._by_sites

    @staticmethod
    def _key(conflict: Conflict, later: Later) -> Any:
        source = conflict.access.source
        return frozenset((_place(source.site if isinstance(source, Copy) else source), _place(later.site)))

    def race(self, conflict: Conflict, later: Later) -> None:
        """Two accesses that can overlap in time."""
        machine = self._machine
        key = self._key(conflict, later)
        found = self._by_sites.get(key)
        if found is not None:
            found.met_on(later.buffer.device)
            return
        source = conflict.access.source
        where = where_of(later.site)
        other = where_of(source.site if isinstance(source, Copy) else source)
        finding = Finding(
            Kind.RACE,
            f"{self._later(later)} can overlap in time with {self._earlier(conflict, later.buffer)} at {other}: "
            f"{self._reason(conflict, later)}",
            device=machine.coordinates(later.core.device),
            argument=str(later.region),
            where=where,
            other=other,
            time_ps=later.core.now,
        )
        self._by_sites[key] = self._once(finding, later.buffer.device)

    def _once(self, finding: Finding, device: int) -> _Found:
        """Report a finding unless one of its kind about the same lines is there; the machine may have been first."""
        lines = _lines(finding)
        found = self._by_lines.get(lines)
        if found is None:
            known = next((f for f in self._machine.findings if _lines(f) == lines), None)
            found = self._by_lines[lines] = _Found(known or finding)
            found.met_on(device)
            if known is None:
                self._machine.report(finding)
        found.met_on(device)
        return found

    def _device(self, device: int) -> str:
        return f"device {self._machine.coordinates(device)}"

    def _later(self, later: Later) -> str:
        here = self._device(later.buffer.device)
        if later.copy is None:
            return f"{'store to' if later.is_write else 'load of'} {later.region} by the core of {here}"
        if not later.is_write or later.core.device == later.buffer.device:
            return f"copy {'to' if later.is_write else 'from'} {later.region} started by {here}"
        return f"copy to {later.region} on {here} started by {self._device(later.core.device)}"

    def _earlier(self, conflict: Conflict, buffer: Buffer) -> str:
        source = conflict.access.source
        if isinstance(source, Copy):
            verb = "writes" if conflict.is_write else "reads"
            by = self._device(source.core.device)
            return f"the copy started by {by} that {verb} {conflict.region}"
        verb = "store to" if conflict.is_write else "load of"
        return f"the {verb} {conflict.region} by {self._device(buffer.device)}"

    def _reason(self, conflict: Conflict, later: Later) -> str:
        access = conflict.access
        copy = access.source
        me = self._device(later.core.device)
        if not isinstance(copy, Copy):
            owner = self._device(access.device)
            return f"nothing that {owner} signals or sends after it has certainly reached {me}; {_MISSING}"
        if access.clock != NEVER:
            waiter = self._device(access.device)
            return (
                f"{waiter} waits for it, but nothing that it signals or sends after that has certainly reached {me}; "
                f"{_MISSING}"
            )
        semaphore = copy.src_sem if access.also is not None and copy.src_sem is not None else copy.dst_sem
        counter = self._counters[semaphore]
        sizes = [
            leg.source.dst_region.nbytes if leg.also is None else leg.source.src_region.nbytes
            for leg in counter.open_legs()
        ]
        open_bytes = sum(sizes)
        taken = open_bytes - (counter.started - counter.taken)
        if taken <= 0:
            verb = "copy" if later.copy is not None else "store" if later.is_write else "load"
            return self._machine.what_orders(later.core, later.buffer.device, verb, copy)
        return (
            f"waits took {taken} B from {semaphore} on {self._device(semaphore.device)}, to which {len(sizes)} copies "
            f"bring {open_bytes} B in any order, so it may be the others that they waited for."
        )

    # -- lifetimes ------------------------------------------------------------------------------

    def is_known_lifetime(self, site: Any, owner: int) -> bool:
        """Whether what this line touches is known to be able to fall outside; then ``owner`` is counted too."""
        found = self._by_sites.get((_place(site), Kind.LIFETIME))
        if found is not None:
            found.met_on(owner)
        return found is not None

    def copy_outside(self, copy: Copy, *, has_left: bool) -> None:
        """A remote copy that may begin before its target has entered, or after it has left."""
        target = self._device(copy.dst.device)
        self._lifetime(
            f"copy to {copy.dst_region} on {target} started by {self._device(copy.core.device)}: "
            f"{_outside(target, has_left)}",
            copy.core,
            copy.dst.device,
            copy.site,
            str(copy.dst_region),
        )

    def signal_outside(
        self, core: Core, semaphore: Semaphore, site: Any, *, has_left: bool, verb: str = "signal to"
    ) -> None:
        """A remote signal, or a copy's, that may arrive before its target has entered, or after it has left."""
        target = self._device(semaphore.device)
        self._lifetime(
            f"{verb} {semaphore} on {target} by {self._device(core.device)}: {_outside(target, has_left)}",
            core,
            semaphore.device,
            site,
            str(semaphore),
        )

    def left_too_early(self, copy: Copy, buffer: Buffer, what: str, core: Core) -> None:
        """A buffer ends while a copy that uses it may not be over; ``what`` names the scope, empty for the call."""
        ends = f"leaves {what}{buffer.spec.name}" if what else "leaves the kernel"
        region = copy.dst_region if copy.dst is buffer else copy.src_region
        self._lifetime(
            f"copy {'to' if copy.dst is buffer else 'from'} {region} on {self._device(buffer.device)} started by "
            f"{self._device(copy.core.device)}: {self._device(core.device)} {ends} without a wait that makes sure that "
            "the copy is over.",
            copy.core,
            buffer.device,
            copy.site,
            str(region),
        )

    def _lifetime(self, message: str, core: Core, owner: int, site: Any, argument: str) -> None:
        finding = Finding(
            Kind.LIFETIME,
            message,
            device=self._machine.coordinates(core.device),
            argument=argument,
            where=where_of(site),
            time_ps=core.now,
        )
        self._by_sites[_place(site), Kind.LIFETIME] = self._once(finding, owner)


def _outside(target: str, has_left: bool) -> str:
    if has_left:
        return f"{target} has left the call or run_scoped that owns it without waiting for it."
    return (
        f"nothing makes sure that {target} has entered the call or run_scoped that owns it; a barrier or a signal "
        "from there has to come first."
    )


def _lines(finding: Finding) -> tuple[Kind, frozenset[Where | None]]:
    return finding.kind, frozenset((finding.where, finding.other))


def _place(site: Any) -> Any:
    """A site as a key; a code object itself would hash its whole bytecode."""
    return (id(site[0]), site[1]) if type(site) is tuple else site
