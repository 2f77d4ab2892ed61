"""What a kernel leaves behind: semaphores that are not zero and copies nobody waited for."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tpusim.findings import Finding, Kind, where_of
from tpusim.judges.deadlock import device_ranges

if TYPE_CHECKING:
    from tpusim.machine.dma import Copy
    from tpusim.machine.machine import Machine
    from tpusim.machine.semaphores import Semaphore
    from tpusim.trace.log import EventLog


def audit_exit(machine: Machine, log: EventLog) -> list[Finding]:
    """Findings about a run in which every core is done, the same place on several devices as one."""
    brought: dict[Semaphore, list[tuple[Copy, int]]] = defaultdict(list)
    left = [semaphore for semaphore in _semaphores(machine) if semaphore.value]
    wanted = set(left)
    if not left:
        return []
    for copy in sorted(log.copies, key=lambda c: (c.written_ps, c.order)):
        if copy.dst_sem in wanted:
            brought[copy.dst_sem].append((copy, copy.dst_region.nbytes))
        if copy.src_sem is not None and copy.src_sem in wanted:
            brought[copy.src_sem].append((copy, copy.src_region.nbytes))
    groups: dict[object, list[tuple[Semaphore, list[Copy]]]] = {}
    for semaphore in left:
        copies = _unwaited(semaphore, brought.get(semaphore, []))
        places = tuple(sorted({str(where_of(copy.site)) for copy in copies}))
        groups.setdefault((str(semaphore), semaphore.value, places), []).append((semaphore, copies))
    last = {copy.src_sem: copy.site for copy in log.copies} | {copy.dst_sem: copy.site for copy in log.copies}
    last |= {signal.semaphore: signal.site for signal in log.signals}
    findings = [_finding(machine, group, last.get(group[0][0])) for group in groups.values()]
    return sorted(findings, key=lambda finding: finding.kind is not Kind.UNWAITED)


def _semaphores(machine: Machine) -> list[Semaphore]:
    found = [s for call in machine.calls for table in call.semaphores for row in table for s in row]
    return list(dict.fromkeys(found + [s for row in machine.barriers.values() for s in row]))


def _unwaited(semaphore: Semaphore, brought: list[tuple[Copy, int]]) -> list[Copy]:
    """The copies whose bytes are what is left, if waits took those of whole copies; else none."""
    taken = semaphore.added - semaphore.value
    for position, (_, size) in enumerate(brought):
        if taken == 0:
            return [copy for copy, _ in brought[position:]]
        taken -= size
        if taken < 0:
            return []
    return []


def _finding(machine: Machine, group: list[tuple[Semaphore, list[Copy]]], last: object) -> Finding:
    semaphore, copies = group[0]
    who = device_ranges(machine, [s.device for s, _ in group])
    head = f"{semaphore} is left at {semaphore.value}{semaphore.unit} on {who} when the kernel exits"
    place = machine.coordinates(semaphore.device)
    if copies:
        copy = copies[0]
        leg = "wait_send" if semaphore is copy.src_sem else "wait_recv" if copy.is_remote else "wait"
        more = f" and {len(copies) - 1} more" if len(copies) > 1 else ""
        text = (
            f"{head}: no {leg}() for the copy from {copy.src_region} to {copy.dst_region} started at "
            f"{where_of(copy.site)}{more}."
        )
        return Finding(
            Kind.UNWAITED, text, device=place, argument=str(semaphore), where=where_of(copy.site),
            details={"devices": len({s.device for s, _ in group}), "value": semaphore.value},
        )  # fmt: skip
    taken = semaphore.added - semaphore.value
    text = (
        f"{head}: it got {semaphore.added}{semaphore.unit} in all and waits took {taken}{semaphore.unit}; "
        f"last added to at {where_of(last)}."
    )
    return Finding(
        Kind.LEAK, text, device=place, argument=str(semaphore), where=where_of(last),
        details={"devices": len({s.device for s, _ in group}), "value": semaphore.value},
    )  # fmt: skip
