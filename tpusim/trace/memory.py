"""What lay in the memories of a device, when, and the high-water mark of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tpusim.specs import MemorySpace

if TYPE_CHECKING:
    from tpusim.machine.memory import BufferSpec
    from tpusim.result import Result


class Occupant(NamedTuple):
    """A buffer's life on a device; ``padded_bytes`` with tile padding, all its slots."""

    spec: BufferSpec
    call: str
    from_ps: int
    to_ps: int

    @property
    def padded_bytes(self) -> int:
        """What it occupies."""
        return self.spec.padded_bytes


class HighWater(NamedTuple):
    """The most that a memory held at once, when first, and the buffers that lay in it then, largest first."""

    space: MemorySpace
    used_bytes: int
    capacity_bytes: int
    at_ps: int
    occupants: tuple[Occupant, ...]


def occupants(result: Result, device: int = 0) -> list[Occupant]:
    """Every stay of a buffer in a memory of a device, in order of its begin."""
    end = int(result.time)
    alive: dict[BufferSpec, tuple[int, str]] = {}
    found: list[Occupant] = []
    for stay in result.trace.stays:
        if stay.core.device != device:
            continue
        own = stay.buffers
        if own is None:
            own = tuple(spec for spec in stay.call.specs if spec.scope is None)
        for spec in own:
            if stay.has_entered:
                alive.setdefault(spec, (stay.at_ps, stay.call.name))
            elif spec in alive and spec.home is None:
                since, call = alive.pop(spec)
                found.append(Occupant(spec, call, since, stay.at_ps))
    found += [Occupant(spec, call, since, max(end, since)) for spec, (since, call) in alive.items()]
    return sorted(found, key=lambda occupant: (occupant.from_ps, -occupant.padded_bytes, occupant.spec.name))


def levels(lives: list[Occupant], space: MemorySpace) -> list[tuple[int, int]]:
    """(time in ps, bytes in use from then on) of one memory."""
    changes: dict[int, int] = {}
    for life in lives:
        if life.spec.space is space and life.to_ps > life.from_ps:
            changes[life.from_ps] = changes.get(life.from_ps, 0) + life.padded_bytes
            changes[life.to_ps] = changes.get(life.to_ps, 0) - life.padded_bytes
    steps: list[tuple[int, int]] = []
    total = 0
    for at in sorted(changes):
        total += changes[at]
        steps.append((at, total))
    return steps


def high_water(result: Result, device: int = 0) -> list[HighWater]:
    """The high-water mark of every memory that a device used."""
    if not result.cores:
        return []
    lives = occupants(result, device)
    limits = _limits(result)
    marks = []
    for space, capacity in limits.items():
        steps = levels(lives, space)
        if not steps:
            continue
        at, used = max(steps, key=lambda step: (step[1], -step[0]))
        there = [life for life in lives if life.spec.space is space and life.from_ps <= at < life.to_ps]
        there.sort(key=lambda life: (-life.padded_bytes, life.spec.name))
        marks.append(HighWater(space, used, capacity, at, tuple(there)))
    return marks


def _limits(result: Result) -> dict[MemorySpace, int]:
    """The largest limit that any call of the run had, for each memory."""
    limits: dict[MemorySpace, int] = {}
    for call in result.cores[0].machine.calls:
        for space, (limit, _) in call.limits.items():
            limits[space] = max(limit, limits.get(space, 0))
    return limits
