"""Who knows what: vector clocks of cores, and what a wait on a counting semaphore makes certain.

A core's clock is the number of starts, waits and signals it has executed.  An access of a core is complete
for whoever knows a later or equal clock of that core; an access by a leg of a copy is complete for whoever
knows the wait that took the leg's last byte.  So a copy in flight is an agent of its own, and the vectors
still have one entry a device however many copies there are.

A wait proves only what must have come before it: a signal (or a byte) is certain where all others that were
sent to the semaphore so far could not have satisfied the wait without it.  Signals of one core to one
semaphore come in program order, so the first ones are certain before the later ones; bytes of copies come in
any order, so a copy is certain to be complete only when the semaphore is empty and nothing is on its way to it.
When a core that cannot know of that wait starts another copy to the same semaphore later, the copy could as
well have come earlier: then the legs that the wait had settled are open again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy import maximum

if TYPE_CHECKING:
    from tpusim.machine.dma import Copy
    from tpusim.machine.semaphores import Semaphore

NEVER = 1 << 62
"""The clock of what nobody knows to be complete."""

_SETTLED_MOST = 256


class Access:
    """Something that read or wrote: a core, or one leg of a copy.

    It is complete for whoever knows ``clock`` of ``device``.  ``source`` is the copy, or the site of a core's
    load or store.  ``also``: the writer leg, for the reader leg of a remote copy; what was written has been read.
    """

    __slots__ = ("also", "clock", "device", "source")

    def __init__(self, device: int, clock: int, source: Any, also: Access | None = None) -> None:
        self.device = device
        self.clock = clock
        self.source = source
        self.also = also


Operation: TypeAlias = "Copy | tuple[Semaphore, int]"
"""A copy started, a signal (semaphore, amount), or a wait (semaphore, -amount)."""


class CoreClock:
    """One core: the operations it has executed, and what it knows of the others.

    ``others[d]`` is the latest clock of device d that is certainly past, -1 for none; the entry of the core
    itself means nothing.  The array is handed out with every release and copied before the next change.
    ``entries[d]`` is the clock at which device d entered the call that this core is in; ``inside[d]`` the one of
    these that the core was found to know, which it never unlearns.
    """

    __slots__ = ("device", "entries", "inside", "operations", "others", "shared")

    def __init__(self, device: int, others: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self.device = device
        self.operations: list[Operation] = []
        self.others = others
        self.shared = True
        self.entries: list[int] = []
        self.inside: dict[int, int] = {}

    def knows(self, access: Access) -> bool:
        """Whether an access is certainly complete for what this core does next."""
        device = access.device
        if device == self.device:
            if access.clock <= len(self.operations):
                return True
        elif self.others[device] >= access.clock:
            return True
        return access.also is not None and self.knows(access.also)

    def learn(self, device: int, clock: int, others: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Join what another core knew when it released at ``clock``."""
        mine = self.others
        if device == self.device or mine[device] >= clock:
            return
        if self.shared:
            mine = self.others = maximum(mine, others) if others is not mine else mine.copy()
            self.shared = False
        elif others is not mine:
            maximum(mine, others, out=mine)
        mine[device] = clock


Contribution = tuple[int, int, int, "np.ndarray[Any, np.dtype[np.int64]]", "Access | None"]
"""Amount, sender, the sender's clock and knowledge, and the leg that brings it (``None``: a signal)."""


class Leftovers:
    """What waits on one semaphore left behind: signals and bytes that may or may not have been taken.

    ``chains`` holds contributions, one a sender in program order, ``sums`` their amounts, ``total`` the sum
    of these and ``largest`` the largest; ``legs`` are those of copies whose sender the owner knows all about.
    """

    __slots__ = ("chains", "largest", "legs", "sums", "total")

    def __init__(self) -> None:
        self.chains: dict[int, deque[Contribution]] = {}
        self.sums: dict[int, int] = {}
        self.total = 0
        self.largest = 0
        self.legs: list[Access] = []


class Counter:
    """One semaphore as the waits on it see it.

    ``started`` is the sum of all that was signalled or is to be brought by copies started so far, ``taken``
    the sum of all waits, ``base`` the sum of those contributions that no longer tell the owner anything.
    ``fresh`` holds what came since the last wait; only a wait that leaves something behind sorts it.
    """

    __slots__ = ("base", "fresh", "left", "owner", "settled", "started", "taken")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.started = 0
        self.taken = 0
        self.base = 0
        self.fresh: list[Contribution] = []
        self.left: Leftovers | None = None
        self.settled: list[Access] = []

    def add(self, contribution: Contribution) -> None:
        """A signal was sent or a copy started."""
        self.started += contribution[0]
        self.fresh.append(contribution)
        settled = self.settled
        if settled and contribution[1] != self.owner:
            known = contribution[3][self.owner]
            if settled[-1].clock > known:
                self._reopen(known)

    def take(self, amount: int, core: CoreClock) -> None:
        """A wait of the owner is over; call it before the wait is counted as an operation."""
        self.taken += amount
        if self.started != self.taken:
            self._take_some(core)
            return
        # Nothing is left and nothing on its way: all of it must have come.
        self.base = self.taken
        now = len(core.operations) + 1
        fresh, owner, settled = self.fresh, self.owner, self.settled
        if self.left is not None:
            left, self.left = self.left, None
            for chain in left.chains.values():
                fresh.extend(chain)
            for open_leg in left.legs:
                open_leg.clock = now
            settled += left.legs
        for _, device, clock, others, leg in fresh:
            if device != owner:
                core.learn(device, clock, others)
            if leg is not None:
                leg.clock = now
                settled.append(leg)
        fresh.clear()
        if len(settled) > _SETTLED_MOST:
            del settled[: -_SETTLED_MOST // 2]

    def _take_some(self, core: CoreClock) -> None:
        """Learn of those contributions without which all others are less than was taken so far."""
        left = self._sorted()
        need, total, sums = self.taken - self.base, left.total, left.sums
        if need <= total - left.largest:
            return
        for device, chain in left.chains.items():
            rest = need - total + sums[device]
            if rest <= 0:
                continue
            while rest > 0:
                amount, _, clock, others, leg = chain.popleft()
                rest -= amount
                self.base += amount
                left.total -= amount
                sums[device] -= amount
                if leg is not None:
                    left.legs.append(leg)
            core.learn(device, clock, others)
        left.largest = max(sums.values(), default=0)

    def _sorted(self) -> Leftovers:
        left = self.left
        if left is None:
            left = self.left = Leftovers()
        for contribution in self.fresh:
            amount, device, _, _, leg = contribution
            if device == self.owner:
                self.base += amount
                if leg is not None:
                    left.legs.append(leg)
                continue
            if device not in left.chains:
                left.chains[device] = deque()
                left.sums[device] = 0
            left.chains[device].append(contribution)
            left.sums[device] += amount
            left.total += amount
            left.largest = max(left.largest, left.sums[device])
        self.fresh.clear()
        return left

    def _reopen(self, known: int) -> None:
        """Legs settled by waits later than the owner's clock ``known`` are no longer certain."""
        settled = self.settled
        left = self.left
        if left is None:
            left = self.left = Leftovers()
        while settled and settled[-1].clock > known:
            leg = settled.pop()
            leg.clock = NEVER
            left.legs.append(leg)

    def open_legs(self) -> list[Access]:
        """The legs of copies that no wait has settled."""
        left = self.left or Leftovers()
        chained = [contribution for chain in left.chains.values() for contribution in chain]
        return left.legs + [c[4] for c in (*chained, *self.fresh) if c[4] is not None]
