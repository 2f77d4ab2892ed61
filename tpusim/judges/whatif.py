"""What blocked cores would have done next: the run goes on after its end, with every failed wait granted.

Why nobody signals can only be told by who *would*.  A device that signals its neighbour after the very wait it hangs
in closes a cycle; where nobody ever signals, the sender is missing.  The cores are there, suspended in their waits, so
they are let go on for a while with only a probe listening; then everything that a result shows is put back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from tpusim.observe import Hooks, Observer, WaitEvent

if TYPE_CHECKING:
    from tpusim.machine.core import Core
    from tpusim.machine.dma import Copy
    from tpusim.machine.flows import Path
    from tpusim.machine.machine import Machine
    from tpusim.machine.semaphores import Semaphore

_EVENTS = 4000
_EVENTS_A_DEVICE = 40
_ROUNDS = 50
_MORE_OPERATIONS = 1000


class Gift(NamedTuple):
    """Something that would have been added to a semaphore: by which device, where, how much.

    ``after``: where the giver hangs; ``is_copy``: whether a copy would bring it.
    """

    giver: int
    site: Any
    amount: int
    after: Any
    is_copy: bool


class Future(NamedTuple):
    """What would be added to each semaphore, and those that a wait would take something from."""

    gifts: Mapping[Semaphore, Sequence[Gift]]
    taken: frozenset[Semaphore]


class _Probe(Observer):
    """Notes who adds to which semaphore, and which are taken from."""

    def __init__(self, hanging: dict[int, Any]) -> None:
        self.gifts: defaultdict[Semaphore, list[Gift]] = defaultdict(list)
        self.taken: set[Semaphore] = set()
        self._hanging = hanging

    def is_short(self, semaphore: Semaphore, missing: int) -> bool:
        """Whether less than what is missing would have been added so far."""
        return sum(gift.amount for gift in self.gifts.get(semaphore, ())) < missing

    def waited(self, event: WaitEvent) -> None:
        """A wait took its amount."""
        self.taken.add(event[1])

    def copy_started(self, copy: Copy) -> None:
        """A copy brings bytes to one or two semaphores."""
        device = copy.core.device
        after = self._hanging.get(device)
        self.gifts[copy.dst_sem].append(Gift(device, copy.site, copy.dst_region.nbytes, after, True))
        if copy.src_sem is not None:
            self.gifts[copy.src_sem].append(Gift(device, copy.site, copy.src_region.nbytes, after, True))

    def signalled(self, core: Core, semaphore: Semaphore, amount: int, sent_ps: int, site: Any) -> None:
        """A signal."""
        self.gifts[semaphore].append(Gift(core.device, site, amount, self._hanging.get(core.device), False))


def future_of(machine: Machine) -> Future:
    """What would happen to the semaphores if no wait ever failed again, for as long as is worth looking."""
    hanging = {core.device: core.blocked.site for core in machine.cores if core.blocked is not None}
    probe = _Probe(hanging)
    wanted = [
        (core.blocked.semaphore, core.blocked.amount - core.blocked.semaphore.value)
        for core in machine.cores
        if core.blocked is not None
    ]
    with _restored(machine):
        listen(machine.hooks, Hooks([probe]))
        machine.max_events = machine.events + _EVENTS + _EVENTS_A_DEVICE * len(machine.cores)
        for core in machine.cores:
            core.max_operations = core.operations + _MORE_OPERATIONS
        for _ in range(_ROUNDS):
            stuck = [core for core in machine.cores if core.blocked is not None]
            missing = [probe.is_short(semaphore, amount) for semaphore, amount in wanted]
            if not stuck or not any(missing) or machine.events >= machine.max_events:
                break
            for core in stuck:
                with suppress(Exception):  # a kernel that goes on where it should not may raise anything
                    _grant(core)
            with suppress(Exception):
                machine.run()
    return Future(dict(probe.gifts), frozenset(probe.taken))


def _grant(core: Core) -> None:
    blocked = core.blocked
    if blocked is None:
        return
    blocked.semaphore.waiter = None
    blocked.semaphore.value = max(0, blocked.semaphore.value - blocked.amount)
    core.wake(core.env.now)


def listen(hooks: Hooks, instead: Hooks) -> None:
    """Have ``hooks``, which many hold, call what ``instead`` calls."""
    for name in Hooks.__slots__:
        setattr(hooks, name, getattr(instead, name))


@contextmanager
def _restored(machine: Machine) -> Iterator[None]:
    """Put back what a result or report reads: cores, semaphores that are waited for, loads of links, findings."""
    cores = [(core, _slots(core)) for core in machine.cores]
    waited = [core.blocked.semaphore for core in machine.cores if core.blocked is not None]
    counts = [(semaphore, semaphore.value, semaphore.added, semaphore.waiter) for semaphore in waited]
    moved = {path: path.moved_bytes for path in _paths(machine)}
    links, hbms = dict(machine.wiring.links), dict(machine.wiring.hbms)
    calls = [(call, call.begin_ps, call.end_ps) for call in machine.calls]
    findings, limits = list(machine.findings), (machine.max_events, machine.events)
    heard = Hooks()
    listen(heard, machine.hooks)
    rates, machine.fabric.rate_log = machine.fabric.rate_log, None
    machine.ended_ps = machine.env.now
    try:
        yield
    finally:
        listen(machine.hooks, heard)
        machine.fabric.rate_log = rates
        machine.findings[:] = findings
        machine.max_events, machine.events = limits
        for call, begin, end in calls:
            call.begin_ps, call.end_ps = begin, end
        del machine.calls[len(calls) :]
        for known, before in ((machine.wiring.links, links), (machine.wiring.hbms, hbms)):
            known.clear()
            known.update(before)
        for path in _paths(machine):
            path.moved_bytes = moved.get(path, 0)
        for semaphore, value, added, waiter in counts:
            semaphore.value, semaphore.added, semaphore.waiter = value, added, waiter
        for core, values in cores:
            for name, value in values.items():
                setattr(core, name, value)


def _paths(machine: Machine) -> list[Path]:
    resources = [*machine.wiring.links.values(), *machine.wiring.hbms.values()]
    return list(dict.fromkeys(path for resource in resources for path, _ in resource.paths))


def _slots(core: Core) -> dict[str, Any]:
    names = [name for cls in type(core).__mro__ for name in getattr(cls, "__slots__", ())]
    return {name: getattr(core, name) for name in names if hasattr(core, name)}
