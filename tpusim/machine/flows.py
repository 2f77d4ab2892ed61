"""What the fabric carries and what it crosses: resources, cached paths over them, and flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tpusim.units import transfer_ps

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpusim.machine.crowd import Crowd


class Resource:
    """One bandwidth: a directed link, a memory, a port.  ``capacity`` in bytes per second."""

    __slots__ = ("capacity", "crowd", "flows", "name", "paths", "peak_sum", "shown_rate")

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = capacity
        self.peak_sum = 0
        """What the flows in flight could ask for together at most, in bytes per second."""
        self.flows: dict[Flow, None] = {}
        """The flows in flight, once the fabric follows them one by one (see there)."""
        self.paths: list[tuple[Path, int]] = []
        """The paths across it, each with its weight here."""
        self.crowd: Crowd | None = None
        self.shown_rate = 0.0

    @property
    def busy_bytes(self) -> int:
        """Bytes carried so far, counted at the end of each flow, times its weight here."""
        return sum(path.moved_bytes * weight for path, weight in self.paths)

    @property
    def is_tight(self) -> bool:
        """Whether the flows on it could ask for more than it has."""
        return self.peak_sum > self.capacity

    def __repr__(self) -> str:
        return f"<Resource {self.name}: {self.peak_sum} of {self.capacity} B/s>"


NOBODY: Final = object()


class Path:
    """The resources a copy crosses; one listed twice weighs 2.  Make it once a (from, to, class) and keep it.

    ``rate_limit`` is the rate of the copy's own engine, ``peak`` the most it can reach alone; both bytes per second.
    """

    __slots__ = ("loads", "moved_bytes", "peak", "rate_limit", "resources", "tenant", "times_ps")

    tenant: Flow | Any | None
    """The flow that uses the share that the path keeps in its resources (see the fabric), ``None`` while that waits for
    the next one; ``NOBODY`` where the path keeps none."""

    def __init__(self, resources: tuple[Resource, ...], rate_limit: int) -> None:
        weights: dict[Resource, int] = {}
        peak = rate_limit
        for resource in resources:
            weights[resource] = weight = weights.get(resource, 0) + 1
            share = resource.capacity // weight
            if share < peak:
                peak = share
        self.resources = resources
        self.rate_limit = rate_limit
        self.peak = peak
        self.loads = tuple([(resource, weight * peak, weight) for resource, weight in weights.items()])
        """For each resource once: itself, what a flow adds to its ``peak_sum``, the weight."""
        self.tenant = NOBODY
        self.moved_bytes = 0
        """Bytes of the flows that have ended."""
        self.times_ps: dict[int, int] = {}
        """Time at ``peak`` by bytes, as far as asked for."""
        for resource, weight in weights.items():
            resource.paths.append((self, weight))

    def alone_ps(self, wire_bytes: int) -> int:
        """Time of so many bytes at ``peak``, in closed form: ``transfer_ps`` of them."""
        found = self.times_ps[wire_bytes] = transfer_ps(wire_bytes, self.peak)
        return found

    def __repr__(self) -> str:
        return f"<Path {' '.join(r.name for r in self.resources)}>"


class Flow:
    """A copy while its bytes move; base class of the copy, and its own SimPy event.

    ``wire_bytes`` move over ``path``; ``order`` is the SimPy priority of the end within its instant; ``priority`` 1
    is served before 0.  From ``begin`` to ``transferred``, ``callbacks`` and ``due`` are the fabric's.
    """

    __slots__ = (
        "alarm", "callbacks", "crowd", "due", "ends", "is_shared", "order", "path",
        "priority", "rate", "remaining", "row", "since", "wire_bytes",
    )  # fmt: skip

    _ok = True
    due: int
    """The instant of its own entry in the heap, in ps; negative while it has none."""
    callbacks: Any
    since: int
    is_shared: bool
    """Whether the state below holds; else it moves at its peak since ``since``."""
    alarm: Alarm | None
    remaining: float
    rate: float
    ends: int
    crowd: Crowd | None
    """Where the state is instead, in row ``row``."""
    row: int

    def __init__(self, path: Path, wire_bytes: int, order: int, priority: int = 0) -> None:
        self.path = path
        self.wire_bytes = wire_bytes
        self.order = order
        self.priority = priority

    def transferred(self) -> None:
        """Called exactly once, at the instant ``due`` at which the last byte has moved."""
        raise NotImplementedError


class Alarm:
    """The next end of a component, at ``due``: a SimPy event beside the flow."""

    __slots__ = ("callbacks", "due", "flow")

    _ok = True

    def __init__(self, flow: Flow, due: int, callbacks: list[Callable[[Alarm], None]]) -> None:
        self.flow = flow
        self.due = due
        self.callbacks: list[Callable[[Alarm], None]] | None = callbacks
