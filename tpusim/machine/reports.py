"""What a machine says about faults: findings, their texts, and which of them end the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpusim.errors import error_for, finding_error
from tpusim.findings import AT_THE_END, CONTINUABLE, Finding, Kind, Severity, Where, where_of
from tpusim.units import Duration

if TYPE_CHECKING:
    from tpusim.chips import ChipSpec
    from tpusim.machine.clock import Clock
    from tpusim.machine.core import Core
    from tpusim.machine.dma import Copy
    from tpusim.machine.memory import Buffer, Region
    from tpusim.machine.semaphores import Semaphore
    from tpusim.topology import Slice


class Reporting:
    """The part of :class:`tpusim.machine.machine.Machine` that records and raises findings."""

    chip: ChipSpec
    cores: list[Core]
    devices: tuple[int, ...]
    env: Clock
    events: int
    findings: list[Finding]
    max_operations: int
    max_ps: int
    raises: bool
    routing_sites: list[Any]
    slice: Slice

    def coordinates(self, device: int) -> tuple[int, ...]:
        """Mesh coordinates of a row-major device index."""
        raise NotImplementedError

    def report(self, finding: Finding) -> None:
        """Record a finding; raise its error where it ends the run at once."""
        self.findings.append(finding)
        if finding.severity is Severity.WARNING or finding.kind in AT_THE_END:
            return
        if self.raises or finding.kind not in CONTINUABLE:
            raise error_for(finding, findings=self.findings)

    def note(self, kind: Kind, message: str, device: int | None, site: Any, **fields: Any) -> None:
        """Record a finding about an operation of a device, each place once."""
        where = where_of(site)
        for known in self.findings:
            if known.kind is kind and known.where == where and known.other == fields.get("other"):
                known.details["also"] = known.details.get("also", 0) + 1
                return  # the same place again, on another device or later
        coords = self.coordinates(device) if device is not None else None
        self.report(Finding(kind, message, device=coords, where=where, **fields))

    def report_race(self, core: Core, verb: str, buffer: Buffer, region: Region, other: Copy, site: Any) -> None:
        """An access that meets a copy in flight."""
        writes = other.dst is buffer and other.dst_region.overlaps(region)
        side = "writes" if writes else "reads"
        its = other.dst_region if writes else other.src_region
        origin = "" if other.core is core else f" by device {self.coordinates(other.core.device)}"
        due = self.what_orders(core, buffer.device, verb.split()[0], other)
        self.note(
            Kind.RACE,
            f"{verb} {region} on device {self.coordinates(buffer.device)} meets a copy in flight{origin} that {side} "
            f"{its}. {due[0].upper()}{due[1:]}",
            core.device,
            site,
            argument=str(region),
            other=where_of(other.site),
            time_ps=core.now,
        )

    def what_orders(self, core: Core, owner: int, access: str, copy: Copy) -> str:
        """What is missing between a copy that may be in flight and a later access by ``core`` to a buffer of ``owner``.

        A wait, where the core started the copy itself.  The order of two devices may be meant either way round: then
        it is a wait before the access, or a barrier (or a signal) before the copy.
        """
        place = where_of(copy.site)
        if copy.core is core:
            return f"the copy at {place} has to be waited for first."
        mine, its = f"device {self.coordinates(owner)}", f"device {self.coordinates(copy.core.device)}"
        if core.device == owner:
            return (
                f"{mine} does not wait for the copy at {place} before this {access}, and there is no barrier between "
                f"this {access} and that copy, nor another signal that lets {its} know: one of them has to be there."
            )
        return (
            f"{mine} has to wait for the copy at {place} first and then to let device {self.coordinates(core.device)} "
            "know, by a barrier or a signal, before this copy starts."
        )

    def report_overlap(self, copy: Copy) -> None:
        """A copy whose source and destination share elements."""
        self.note(
            Kind.RACE,
            f"copy from {copy.src_region} to {copy.dst_region} on device {self.coordinates(copy.dst.device)}: source "
            "and destination overlap, and nothing says in which order the bytes move.",
            copy.core.device,
            copy.site,
            argument=str(copy.dst_region),
            time_ps=copy.core.now,
        )

    def report_outside_lifetime(self, copy: Copy, ends: str = "") -> None:
        """A copy that touches a buffer outside its owner's call or scope; ``ends``: what ends meanwhile."""
        if not copy.dst_region.nbytes:
            return  # touches nothing
        source, target = self.coordinates(copy.src.device), self.coordinates(copy.dst.device)
        away = "" if source == target else f" on device {source}"
        if ends:
            text = (
                f"{ends} while a copy from {copy.src_region}{away} to {copy.dst_region} on device {target} is in "
                "flight: wait for the copy first."
            )
        else:
            text = (
                f"a copy from {copy.src_region}{away} reaches {copy.dst_region} on device {target} outside the call or "
                "run_scoped that owns it: a wait for it, or a barrier, has to keep the target there."
            )
        self.note(
            Kind.LIFETIME,
            text,
            copy.core.device,
            copy.site,
            argument=str(copy.dst_region),
            time_ps=self.env.now,
        )

    def report_gone(self, core: Core, verb: str, what: object, site: Any) -> None:
        """A core uses a buffer or semaphore of its own after the scope it belongs to, or before."""
        self.note(
            Kind.LIFETIME,
            f"{verb} {what} on device {self.coordinates(core.device)} outside the run_scoped that owns it: use it in "
            "the function that run_scoped calls.",
            core.device,
            site,
            argument=str(what),
            time_ps=core.now,
        )

    def report_uninitialised(self, copy: Copy) -> None:
        """A copy that sends memory nobody has written."""
        if not copy.src_region.nbytes:
            return
        self.note(
            Kind.UNINITIALISED,
            f"copy from {copy.src_region} on device {self.coordinates(copy.src.device)} to device "
            f"{self.coordinates(copy.dst.device)}: nothing has been written to {copy.src.spec.name} before it is sent.",
            copy.core.device,
            copy.site,
            argument=str(copy.src_region),
            time_ps=copy.core.now,
        )

    def report_routing(self, copy: Copy) -> None:
        """A route that JAX's documentation advises against on this chip; each line once."""
        if copy.site in self.routing_sites:
            return
        self.routing_sites.append(copy.site)
        self.note(
            Kind.ROUTING,
            f"copy from device {self.coordinates(copy.core.device)} to {self.coordinates(copy.dst.device)} goes "
            f"{copy.hops} hops, from chip {self._chip(copy.core.device)} to {self._chip(copy.dst.device)}; on "
            f"{self.chip.name} JAX's documentation allows only power-of-two offsets along an axis.",
            copy.core.device,
            copy.site,
            time_ps=copy.core.now,
        )

    def _chip(self, device: int) -> str:
        x, y, *_ = self.slice.coords(self.devices[device])
        return f"({x},{y})"

    def report_second_waiter(self, core: Core, semaphore: Semaphore, site: Any) -> None:
        """Two cores wait for one semaphore."""
        raise finding_error(
            Kind.NOT_MODELLED,
            f"two cores wait for {semaphore} of device {self.coordinates(semaphore.device)} at the same time.",
            where=where_of(site),
            device=self.coordinates(core.device),
        )

    def report_past_limit(self, core: Core | None = None) -> None:
        """The global clock, or that of ``core``, passed ``max_time``, or ``core`` did too much."""
        if core is not None and core.operations > self.max_operations:
            reason = f"one device alone did more than max_events = {self.max_operations} operations"
        else:
            reason = f"the run passed max_time = {Duration(self.max_ps)}"
        self.report_livelock(reason, core)

    def report_livelock(self, reason: str, core: Core | None = None) -> None:
        """The run passed a limit; ``core`` is at work, or nobody."""
        self.report(self.livelock_finding(reason, core))

    def livelock_finding(self, reason: str, at_work: Core | None = None, line: Where | None = None) -> Finding:
        """Where every core is when a run is given up; ``at_work`` is the one that was running, at ``line``."""
        now = self.env.now if at_work is None else at_work.now
        lines = [f"{reason}; t = {Duration(now)}, {self.events} events."]
        for core in self.cores[:8]:
            state = "done" if core.done else f"running, its clock at {Duration(core.now)}"
            if core is at_work and line is not None:
                state += f"  {line}"
            if core.blocked is not None:
                blocked = core.blocked
                unit = blocked.semaphore.unit
                state = (
                    f"waits for {blocked.amount}{unit} on {blocked.semaphore} (value {blocked.semaphore.value}{unit})  "
                    f"{where_of(blocked.site)}"
                )
            lines.append(f"  device {self.coordinates(core.device)}: {state}")
        if len(self.cores) > 8:
            lines.append(f"  and {len(self.cores) - 8} more devices")
        shown = at_work or next((core for core in self.cores if core.blocked is not None), None)
        waits = shown.blocked if shown is not None else None
        return Finding(
            Kind.LIVELOCK,
            "\n".join(lines),
            device=self.coordinates(shown.device) if shown is not None else None,
            where=line or (where_of(waits.site) if waits is not None else None),
            time_ps=now,
        )
