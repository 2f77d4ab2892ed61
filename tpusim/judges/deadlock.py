"""Who waits for what when nothing moves any more, and why nobody will come.

For each wait that hangs one cause, from what was added to its semaphore so far and what would be added if the blocked
devices went on (:mod:`tpusim.judges.whatif`):

* ``cycle``: somebody would add enough, but hangs in a wait of its own;
* ``wrong-device``: what was meant for it went to the semaphore of that name on another device;
* ``reused``: it got enough, and an earlier wait took it;
* ``short``: all that is ever added is less than the wait takes;
* ``no-sender``: nothing is ever added;
* ``elsewhere``: the device waits for something else, a collective or its start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from tpusim.findings import Finding, Kind, Where, where_of
from tpusim.judges.wait_graph import draw_graph
from tpusim.judges.whatif import Future, Gift, future_of
from tpusim.units import Duration

if TYPE_CHECKING:
    from tpusim.machine.core import Blocked, Core
    from tpusim.machine.machine import Machine
    from tpusim.machine.semaphores import Semaphore
    from tpusim.trace.log import EventLog

_COLUMN = 70


class Stray(NamedTuple):
    """A semaphore of another device that holds something, and who added it last."""

    semaphore: Semaphore
    gift: Gift
    value: int


class Stuck(NamedTuple):
    """A device that can never proceed: its wait (``None``: it waits elsewhere), the cause, and what belongs to it.

    ``gifts``: what would be added to its semaphore (``cycle``) or was (``short``); ``stray``: a semaphore of the same
    name that got something nobody takes, and the gift; ``taken``: where an earlier wait took it.
    """

    core: Core
    blocked: Blocked | None
    cause: str
    gifts: Sequence[Gift] = ()
    stray: Stray | None = None
    taken: Where | None = None

    @property
    def givers(self) -> tuple[int, ...]:
        """The devices it waits for."""
        return tuple(dict.fromkeys(gift.giver for gift in self.gifts)) if self.cause == "cycle" else ()


def find_deadlock(
    machine: Machine, log: EventLog, elsewhere: Mapping[Core, tuple[str, Where | None]] = MappingProxyType({})
) -> Finding | None:
    """The deadlock of a machine in which nothing moves, or ``None`` where every core is done.

    ``elsewhere``: what cores wait for that is not a semaphore, and where.  ``details`` of the finding has the
    ``causes``, as in the module's text, and the wait-for ``graph`` in Graphviz's language.
    """
    cores = [core for core in machine.cores if core in elsewhere or (core.call is not None and not core.done)]
    if not cores:
        return None
    started = [core for core in machine.cores if core in elsewhere or core.call is not None or core.done]
    past = _Past(log)
    late = [(core, core.blocked, past.facts(core)) for core in cores]
    future = future_of(machine)
    stuck = [_judged(core, blocked, facts, future) for core, blocked, facts in late]
    when = f"t = {Duration(machine.ended_ps or 0)}, {machine.schedule_title}"
    lines = [f"{len(cores)} of {len(started)} devices can never proceed ({when})."]
    for group in _groups(stuck, elsewhere):
        lines += _describe(machine, group, elsewhere)
    cycle = _cycle(stuck)
    if cycle:
        lines.append(f"Cycle: {' -> '.join(str(machine.coordinates(d)) for d in [*cycle, cycle[0]])}.")
        lines[-1] += " No copy is in flight."
    else:
        lines.append("No copy is in flight.")
    first = stuck[0]
    return Finding(
        Kind.DEADLOCK,
        "\n".join(lines),
        device=machine.coordinates(first.core.device),
        where=where_of(first.blocked.site) if first.blocked else elsewhere.get(first.core, ("", None))[1],
        argument=str(first.blocked.semaphore) if first.blocked else None,
        time_ps=machine.ended_ps,
        details={
            "causes": sorted({item.cause for item in stuck}),
            "graph": draw_graph(machine, stuck, cycle, elsewhere),
        },
    )


class _Facts(NamedTuple):
    """What is known of a wait's semaphore when the run ends."""

    value: int
    added: int
    gifts: Sequence[Gift]
    strays: Sequence[Stray]
    taken: Where | None


class _Past:
    """Who added to each semaphore during the run, and which waits took it."""

    def __init__(self, log: EventLog) -> None:
        self._gifts: defaultdict[Semaphore, list[Gift]] = defaultdict(list)
        self._by_name: defaultdict[str, list[Semaphore]] = defaultdict(list)
        self._log = log
        for copy in log.copies:
            self._add(copy.dst_sem, Gift(copy.core.device, copy.site, copy.dst_region.nbytes, None, True))
            if copy.src_sem is not None:
                self._add(copy.src_sem, Gift(copy.core.device, copy.site, copy.src_region.nbytes, None, True))
        for signal in log.signals:
            self._add(signal.semaphore, Gift(signal.core.device, signal.site, signal.amount, None, False))

    def _add(self, semaphore: Semaphore, gift: Gift) -> None:
        if semaphore not in self._gifts:
            self._by_name[str(semaphore)].append(semaphore)
        self._gifts[semaphore].append(gift)

    def facts(self, core: Core) -> _Facts | None:
        """Of the wait that a core hangs in."""
        blocked = core.blocked
        if blocked is None:
            return None
        semaphore = blocked.semaphore
        gifts = self._gifts.get(semaphore, [])
        strays = [
            Stray(other, self._gifts[other][-1], other.value)
            for other in self._by_name[str(semaphore)]
            if other is not semaphore and other.value > 0 and other.waiter is None
        ]
        takers = [wait.site for wait in self._log.waits if wait.semaphore is semaphore and wait.amount]
        taken = where_of(takers[-1]) if takers else None
        return _Facts(semaphore.value, semaphore.added, gifts, strays, taken)


def _judged(core: Core, blocked: Blocked | None, facts: _Facts | None, future: Future) -> Stuck:
    """The cause of one device's wait."""
    if blocked is None or facts is None:
        return Stuck(core, None, "elsewhere")
    needed: list[Gift] = []
    total = facts.value
    for gift in future.gifts.get(blocked.semaphore, ()):
        if total >= blocked.amount:
            break
        needed.append(gift)
        total += gift.amount
    if total >= blocked.amount:
        return Stuck(core, blocked, "cycle", needed)
    stray = next((each for each in facts.strays if each.semaphore not in future.taken), None)
    if stray is not None and not facts.gifts and not needed:
        return Stuck(core, blocked, "wrong-device", stray=stray)
    if facts.taken is not None and facts.added >= blocked.amount:
        return Stuck(core, blocked, "reused", facts.gifts, taken=facts.taken)
    if facts.gifts or needed:
        return Stuck(core, blocked, "short", [*facts.gifts, *needed])
    return Stuck(core, blocked, "no-sender")


def _groups(stuck: Sequence[Stuck], elsewhere: Mapping[Core, tuple[str, Where | None]]) -> list[list[Stuck]]:
    """Devices that wait at one place for the same amount on the same semaphore name and value, for one cause."""
    groups: dict[object, list[Stuck]] = {}
    for item in stuck:
        blocked = item.blocked
        key: object = elsewhere.get(item.core)
        if blocked:
            sites = tuple((gift.site, gift.after) for gift in item.gifts[:1])
            key = (blocked.site, str(blocked.semaphore), blocked.amount, blocked.semaphore.value, item.cause, sites)
        groups.setdefault(key, []).append(item)
    return list(groups.values())


def _describe(
    machine: Machine, group: Sequence[Stuck], elsewhere: Mapping[Core, tuple[str, Where | None]]
) -> list[str]:
    first = group[0]
    who = f"  {device_ranges(machine, [item.core.device for item in group])}"
    who += " waits" if len(group) == 1 else " each wait"
    if first.blocked is None:
        return [f"{who} {elsewhere[first.core][0]}" if first.core in elsewhere else f"{who} for nothing that is known"]
    semaphore = first.blocked.semaphore
    wait = f"{who} for {_amount(first.blocked.amount, semaphore)} on {semaphore} "
    return [
        _row(f"{wait}(value {semaphore.value}{semaphore.unit})", first.blocked.site),
        *(f"    {line}" for line in _because(machine, group)),
    ]


def _because(machine: Machine, group: Sequence[Stuck]) -> list[str]:
    """Why nobody will come, in a line or two."""
    first = group[0]
    blocked = first.blocked
    if blocked is None:
        return []
    semaphore, column = blocked.semaphore, _COLUMN - 4
    if first.cause == "cycle":
        return _because_of_others(machine, group)
    if first.cause == "wrong-device" and first.stray is not None:
        other, gift, value = first.stray
        return [
            _row(
                f"because device {machine.coordinates(gift.giver)} adds to that of device "
                f"{machine.coordinates(other.device)} instead,",
                gift.site,
                column,
            ),
            f"where nobody takes it (value {value}{other.unit})",
        ]
    if first.cause == "reused":
        got = _amount(semaphore.added, semaphore)
        return [_row(f"because an earlier wait took what it got, {got} in all", first.taken, column)]
    if first.cause == "short":
        total = _amount(sum(gift.amount for gift in first.gifts), semaphore)
        what = "copies" if first.gifts[-1].is_copy else "signals"
        return [
            _row(f"because all {what} to it together bring only {total}; the last is", first.gifts[-1].site, column)
        ]
    if semaphore.unit:
        return ["because no device ever starts a copy that adds to it"]
    return ["because no device ever signals it"]


def _because_of_others(machine: Machine, group: Sequence[Stuck]) -> list[str]:
    """``because their right neighbour signals credit only at``, and after which wait."""
    first = group[0]
    blocked, gift = first.blocked, first.gifts[-1]
    subject, is_one = _subject(machine, group)
    verb = ("starts" if is_one else "start") + " its copy" if gift.is_copy else "signals" if is_one else "signal"
    verb += "" if gift.is_copy else f" {blocked.semaphore}" if blocked else ""
    lines = [_row(f"because {subject} {verb} only at", gift.site, _COLUMN - 4)]
    if blocked is not None and gift.after == blocked.site:
        lines.append("after the same wait")
    elif gift.after is not None:
        lines.append(_row(f"after {'its' if is_one else 'their'} own wait at", gift.after, _COLUMN - 4))
    return lines


def _subject(machine: Machine, group: Sequence[Stuck]) -> tuple[str, bool]:
    """Who would add, as seen by all of a group, and whether the verb is in the singular."""
    devices = len(machine.cores)
    steps = {(giver - item.core.device) % devices for item in group for giver in item.givers}
    if steps == {0}:
        return ("it" if len(group) == 1 else "each"), True
    is_ring = len(machine.axis_sizes) == 1 and len(group) > 1
    if is_ring and steps == {1} and devices > 2:
        return "their right neighbour", True
    if is_ring and steps == {devices - 1} and devices > 2:
        return "their left neighbour", True
    if is_ring and steps == {1}:
        return "the other device", True
    givers = sorted({giver for item in group for giver in item.givers})
    return device_ranges(machine, givers), len(givers) == 1


def _amount(amount: int, semaphore: Semaphore) -> str:
    return f"{amount}{semaphore.unit or (' unit' if amount == 1 else ' units')}"


def _row(text: str, site: object, column: int = _COLUMN) -> str:
    return f"{text:<{column}} {where_of(site)}"


def _cycle(stuck: Sequence[Stuck]) -> list[int]:
    """Devices that wait for each other in a circle; empty where each waits for something else, or for itself."""
    waiting = {item.core.device for item in stuck}
    follows = {item.core.device: [d for d in item.givers if d in waiting] for item in stuck}
    for start in sorted(follows):
        path: list[int] = []
        device = start
        while device not in path and follows.get(device):
            path.append(device)
            device = follows[device][0]
        if device in path and path[path.index(device) :] != [device]:
            return path[path.index(device) :]
    return []


def device_ranges(machine: Machine, devices: Sequence[int]) -> str:
    """``device (3,)`` or ``devices (0,)-(3,), (7,)``, runs of mesh order compressed."""
    runs: list[list[int]] = []
    for device in sorted(set(devices)):
        if runs and runs[-1][-1] == device - 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    parts = []
    for run in runs:
        first, last = machine.coordinates(run[0]), machine.coordinates(run[-1])
        parts.append(str(first) if len(run) == 1 else f"{first}-{last}")
    return ("device " if len(set(devices)) == 1 else "devices ") + ", ".join(parts)
