"""Which step of a run is delayed, and for how long.

A *step* is what another order could bring later: a core's next visible operation, the end of a leg of a copy, the
arrival of a remote signal.  A policy says for each step how long it is delayed, or that it is *held*: then it
happens when nothing else can move any more, and where several are held the one of lowest ``rank`` goes first.
Signals only add and each semaphore has one waiter, so every such delay is a legal order of the same program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from tpusim.schedules.operations import ANY, Operation, Ordinals, Place
from tpusim.topology import format_coordinates

HOLD = -1
"""Instead of a delay: until nothing else can move."""


class Step(NamedTuple):
    """One step before it happens.  ``leg``: empty (the core's operation itself), after, reader, writer or arrival.

    ``number``: which of its kind on its device; ``slack_ps``: by how much the chip's numbers leave its time open;
    ``links``: those on its way; ``nbytes``: what the leg counts.
    """

    operation: Operation
    leg: str
    number: int
    slack_ps: int = 0
    links: Sequence[int] = ()
    nbytes: int = 0


class Choice(NamedTuple):
    """``delay_ps`` (or ``HOLD``) of a step; of a leg perhaps of its last ``last_bytes`` alone (0: of all)."""

    delay_ps: int = 0
    last_bytes: int = 0


NOW = Choice()
_HELD = Choice(HOLD)
GRANULE = 32
"""Bytes in which the hardware counts on a DMA semaphore, `dma.granule` of the chips."""


class Schedule:
    """The default: nothing is delayed.  ``text`` is what chooses it, such as ``random:7``."""

    text = "default"
    pace: Literal["nominal", "fast", "instant"] = "nominal"
    """How fast everything not delayed goes: as the chip's numbers say, at their fast end, or at once."""
    looks_after = False
    """Whether a core may be held after an operation, before the loads and stores that follow on it."""

    @property
    def title(self) -> str:
        """As reports name it."""
        return f"schedule {self.text}" if self.text != "default" else "default schedule"

    def choose(self, step: Step) -> Choice:
        """What is to become of a step."""
        return NOW

    def rank(self, step: Step, arrival: int) -> int:
        """When a held step, the ``arrival``-th of the run, happens: that of lowest rank goes first."""
        return arrival

    def misfit(self, ordinals: Ordinals, axis_sizes: Mapping[str, int]) -> str | None:
        """What of it did not fit the run that is over."""
        return None


class Random(Schedule):
    """Every step takes a time drawn within the interval of the chip's numbers it depends on."""

    pace = "fast"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.text = f"random:{seed}"

    def choose(self, step: Step) -> Choice:
        """Between the fast and the slow end."""
        return Choice(step.slack_ps * draw(self.seed, step, 1 << 16) >> 16)


class Shuffle(Schedule):
    """Any legal order, drawn step by step; half of the legs come in two parts."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.text = f"shuffle:{seed}"

    def choose(self, step: Step) -> Choice:
        """Held, so that ``rank`` decides."""
        split = step.nbytes > GRANULE and draw(self.seed, step, 2)
        return Choice(HOLD, GRANULE if split else 0)

    def rank(self, step: Step, arrival: int) -> int:
        """Drawn: steps keep their order among themselves when others come and go."""
        return draw(self.seed + 1, step, 1 << 32)


class Eager(Schedule):
    """Whatever is started is over before its core goes on."""

    text = "eager"
    pace = "instant"


class Lazy(Schedule):
    """Legs and signals end only when nothing else can move, the oldest first."""

    text = "lazy"

    def choose(self, step: Step) -> Choice:
        """Everything but the cores' own operations waits."""
        return _HELD if step.leg else NOW


class Newest(Lazy):
    """As ``lazy``, the newest first: copies overtake each other wherever they can."""

    text = "newest"

    def rank(self, step: Step, arrival: int) -> int:
        """The last to be held."""
        return -arrival


class Split(Schedule):
    """Each leg is counted in two parts, the last bytes when nothing else can move."""

    text = "split"

    def choose(self, step: Step) -> Choice:
        """The last granule waits; a copy of one granule as a whole."""
        return Choice(HOLD, GRANULE if step.nbytes > GRANULE else 0) if step.nbytes else NOW


class SlowDevice(Schedule):
    """One device executes an operation only when nothing else can move."""

    def __init__(self, device: tuple[int, ...]) -> None:
        self.device = device
        self.text = f"slow-device:{format_coordinates(device)}"

    def choose(self, step: Step) -> Choice:
        """Its core waits; its copies go on."""
        return _HELD if not step.leg and step.operation.device == self.device else NOW

    def misfit(self, ordinals: Ordinals, axis_sizes: Mapping[str, int]) -> str | None:
        """The device has to be there."""
        if any(device == self.device for device, _, _ in ordinals.counts):
            return None
        return f"{self.text}: no device {self.device} did anything"


class SlowLink(Schedule):
    """What crosses one of some links arrives only when nothing else can move."""

    def __init__(self, links: Sequence[int], name: str) -> None:
        self.links = frozenset(links)
        self.text = f"slow-link:{name}"
        self._used = False

    def choose(self, step: Step) -> Choice:
        """Legs and signals on the link wait."""
        if self.links.isdisjoint(step.links):
            return NOW
        self._used = True
        return _HELD

    def misfit(self, ordinals: Ordinals, axis_sizes: Mapping[str, int]) -> str | None:
        """The link has to be used."""
        return None if self._used else f"{self.text}: nothing crosses this link"


class Hold(Schedule):
    """Chosen places are held until nothing else can move; where several are, the longest held goes first.

    ``strict``: places that the run does not have are a misfit.
    """

    looks_after = True

    def __init__(self, places: Sequence[Place], *, strict: bool = True) -> None:
        self.places = tuple(places)
        self.text = f"{'hold' if strict else 'try-hold'}:{'+'.join(map(str, places))}" if places else "default"
        self.strict = strict
        self._open = {(p.operation._replace(what=""), _leg(p.leg)): p for p in self.places}
        self._has_wildcards = any(not (p.operation.device and p.operation.ordinal) for p in self.places)
        self._met: set[Place] = set()
        self._changed: dict[Place, str] = {}

    def choose(self, step: Step) -> Choice:
        """Held where a place names it and still means it."""
        if not self._open:
            return NOW
        place = self._place_of(step)
        if place is None:
            return NOW
        meant = place.operation.what
        if meant and meant != step.operation.what:
            self._changed[place] = step.operation.what
            return NOW
        self._met.add(place)
        is_last = place.leg.endswith(".last") and step.nbytes > GRANULE
        return Choice(HOLD, GRANULE if is_last else 0)

    def _place_of(self, step: Step) -> Place | None:
        device, function, kind, ordinal, _ = step.operation
        names = [(function, ordinal), (ANY, step.number)]
        if self._has_wildcards:
            names += [(function, 0), (ANY, 0)]
        for coords in (device, ()) if self._has_wildcards else (device,):
            for name, number in names:
                place = self._open.get((Operation(coords, name, kind, number), step.leg))
                if place is not None:
                    return place
        return None

    def misfit(self, ordinals: Ordinals, axis_sizes: Mapping[str, int]) -> str | None:
        """The first place that the run did not have, and why."""
        for place in self.places if self.strict else ():
            operation = place.operation
            if place in self._met:
                continue
            if place in self._changed:
                return f"{operation} now works on {self._changed[place]}, not on {operation.what}"
            count = ordinals.counts.get((operation.device, operation.function, operation.kind), 0)
            if count >= max(1, operation.ordinal):
                return f"{operation} has no {_leg(place.leg)} that could be held"
            missing = f"there is no {operation}" if operation.ordinal else f"{operation} never happened"
            return f"{missing}: {ordinals.why_absent(operation, axis_sizes)}"
        return None


def _leg(leg: str) -> str:
    return leg.removesuffix(".last")


def draw(seed: int, step: Step, below: int) -> int:
    """A number from 0 on that depends on the seed and the step alone, not on what happens elsewhere."""
    code = step.number
    for value in (_KIND_NUMBERS[step.operation.kind], _LEG_NUMBERS[step.leg], *step.operation.device):
        code = code * _FACTOR + value + 1
    state = _mix((seed & _MASK) ^ _mix(code & _MASK))
    return (state >> 16) % below


_MASK = (1 << 64) - 1
_FACTOR = 1_000_003
_KIND_NUMBERS = {"start": 1, "wait": 2, "signal": 3, "read": 4, "enter": 5, "exit": 6}
_LEG_NUMBERS = {"": 0, "reader": 1, "writer": 2, "arrival": 3, "after": 4}


def _mix(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
