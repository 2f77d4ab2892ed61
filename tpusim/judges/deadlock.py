"""Who waits for what when nothing moves any more, and why nobody will come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from tpusim.findings import Finding, Kind, Where, where_of
from tpusim.units import Duration

if TYPE_CHECKING:
    from tpusim.machine.core import Core
    from tpusim.machine.machine import Machine
    from tpusim.machine.semaphores import Semaphore
    from tpusim.trace.log import EventLog


def find_deadlock(
    machine: Machine, log: EventLog, elsewhere: Mapping[Core, tuple[str, Where | None]] = MappingProxyType({})
) -> Finding | None:
    """The deadlock of a machine in which nothing moves, or ``None`` where every core is done.

    ``elsewhere``: what cores wait for that is not a semaphore, and where.
    """
    stuck = [core for core in machine.cores if core in elsewhere or (core.call is not None and not core.done)]
    if not stuck:
        return None
    started = [core for core in machine.cores if core in elsewhere or core.call is not None or core.done]
    when = f"t = {Duration(machine.env.now)}, {machine.schedule_title}"
    lines = [f"{len(stuck)} of {len(started)} devices can never proceed ({when})."]
    givers = _Givers(log)
    for group in _groups(stuck, elsewhere):
        if group[0] in elsewhere:
            lines.append(f"{_waits(machine, group)} {elsewhere[group[0]][0]}")
        else:
            lines += _describe(machine, group, givers)
    cycle = _cycle(stuck, givers)
    if cycle:
        text = " -> ".join(str(machine.coordinates(device)) for device in [*cycle, cycle[0]])
        lines.append(f"Cycle: {text}. No copy is in flight.")
    else:
        lines.append("No copy is in flight.")
    first = stuck[0]
    return Finding(
        Kind.DEADLOCK,
        "\n".join(lines),
        device=machine.coordinates(first.device),
        where=where_of(first.blocked.site) if first.blocked else elsewhere.get(first, ("", None))[1],
        argument=str(first.blocked.semaphore) if first.blocked else None,
        time_ps=machine.env.now,
    )


class _Givers:
    """Who added to each semaphore during the run."""

    def __init__(self, log: EventLog) -> None:
        self.by_semaphore: dict[Semaphore, list[tuple[int, object]]] = defaultdict(list)
        self.by_name: dict[str, list[tuple[int, Semaphore, object]]] = defaultdict(list)
        for copy in log.copies:
            self._add(copy.dst_sem, copy.core.device, copy.site)
            if copy.src_sem is not None:
                self._add(copy.src_sem, copy.core.device, copy.site)
        for signal in log.signals:
            self._add(signal.semaphore, signal.core.device, signal.site)

    def _add(self, semaphore: Semaphore, device: int, site: object) -> None:
        self.by_semaphore[semaphore].append((device, site))
        self.by_name[str(semaphore)].append((device, semaphore, site))


def _waits(machine: Machine, group: Sequence[Core]) -> str:
    """``  device (3,) waits``."""
    return f"  {device_ranges(machine, [core.device for core in group])} {'waits' if len(group) == 1 else 'each wait'}"


def _groups(stuck: Sequence[Core], elsewhere: Mapping[Core, tuple[str, Where | None]]) -> list[list[Core]]:
    """Cores that wait at one place for the same amount on the same semaphore name and value."""
    groups: dict[object, list[Core]] = {}
    for core in stuck:
        blocked = core.blocked
        key: object = elsewhere.get(core)
        if blocked:
            key = (blocked.site, str(blocked.semaphore), blocked.amount, blocked.semaphore.value)
        groups.setdefault(key, []).append(core)
    return list(groups.values())


def _describe(machine: Machine, group: list[Core], givers: _Givers) -> list[str]:
    blocked = group[0].blocked
    who = _waits(machine, group)
    if blocked is None:
        return [f"{who} for nothing that is known"]
    semaphore = blocked.semaphore
    amount = f"{blocked.amount}{semaphore.unit or (' unit' if blocked.amount == 1 else ' units')}"
    line = f"{who} for {amount} on {semaphore} (value {semaphore.value}{semaphore.unit})"
    lines = [f"{line:<70} {where_of(blocked.site)}"]
    lines.append(f"    {_reason(machine, group, givers)}")
    return lines


def _reason(machine: Machine, group: list[Core], givers: _Givers) -> str:
    blocked = group[0].blocked
    if blocked is None:
        return "and nothing will wake it"
    semaphore = blocked.semaphore
    elsewhere = [
        (device, other, site)
        for device, other, site in givers.by_name[str(semaphore)]
        if other is not semaphore and other.value > 0 and other.device not in {c.device for c in group}
    ]
    mine = givers.by_semaphore.get(semaphore, [])
    if elsewhere and not mine:
        device, other, site = elsewhere[0]
        return (
            f"device {machine.coordinates(device)} added to {other} of device {machine.coordinates(other.device)} "
            f"instead (value {other.value}{other.unit}, nobody takes it)  {where_of(site)}"
        )
    if not mine:
        return "nobody ever added to it: no copy or signal to it was started"
    _, site = mine[-1]
    got, taken = semaphore.added, semaphore.added - semaphore.value
    return (
        f"it got {got}{semaphore.unit} in all and earlier waits took {taken}{semaphore.unit}; "
        f"last added to at  {where_of(site)}"
    )


def _cycle(stuck: Sequence[Core], givers: _Givers) -> list[int]:
    """Devices that wait for each other in a circle, by who has been adding to what they wait for."""
    waiting = {core.device for core in stuck}
    follows: dict[int, list[int]] = {}
    for core in stuck:
        blocked = core.blocked
        names = {d for d, _ in givers.by_semaphore.get(blocked.semaphore, [])} if blocked else set()
        follows[core.device] = sorted((names & waiting) - {core.device})
    for start in sorted(follows):
        path: list[int] = []
        device = start
        while device not in path and follows.get(device):
            path.append(device)
            device = follows[device][0]
        if device in path:
            return path[path.index(device) :]
    return []


def device_ranges(machine: Machine, devices: Sequence[int]) -> str:
    """``device (3,)`` or ``devices (0,)-(3,), (7,)``, runs of mesh order compressed."""
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and runs[-1][-1] == device - 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    parts = []
    for run in runs:
        first, last = machine.coordinates(run[0]), machine.coordinates(run[-1])
        parts.append(str(first) if len(run) == 1 else f"{first}-{last}")
    return ("device " if len(devices) == 1 else "devices ") + ", ".join(parts)
