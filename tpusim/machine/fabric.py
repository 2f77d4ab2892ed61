"""Max-min fair, work-conserving sharing of every bandwidth among the copies in flight.

What dominates is the number of solves times the cost of one, so most begins and ends solve nothing:

* A resource keeps ``peak_sum``, what its flows could ask of it at most.  Up to its capacity it binds nobody and is
  left out; a flow on such resources alone has its end in closed form, and two hundred devices that each pass a block
  to a neighbour are two hundred independent flows instead of one component.
* While no resource is tight, a path keeps its share of ``peak_sum`` when its flow ends, for the next one to take over:
  then a begin and an end look at no resource at all.  A resource that seems tight with such idle shares has all of
  them given up, and from then on each resource knows its flows, until nothing moves any more.
* Otherwise all begins and ends of an instant are settled by one event at its end, for the touched components alone.
  A component is found by walking over its tight resources; it has no object, so it may merge and split freely.
* A component too large to walk at every event becomes a :class:`~tpusim.machine.waterfill.Crowd`: rows in arrays,
  appended at a begin, dropped lazily, walked again only when half of its rows are dead.

A flow in closed form is its own SimPy event.  Once it shares, its end moves: only the next end of a component gets
an entry in the heap, an :class:`Alarm`, which counts only while the flow still holds it.  No entry of the fabric
outlives the flow's end under the flow's own name, so its owner may use it as an event of another kind from then on.
"""

from __future__ import annotations

from math import ceil, inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tpusim.errors import InternalError
from tpusim.machine.clock import Clock
from tpusim.machine.crowd import Crowd
from tpusim.machine.flows import NOBODY, Alarm, Flow, Path, Resource
from tpusim.machine.waterfill import NEVER, SAME_RATE, SLACK, TINY_PS, check_delivered, fill_few
from tpusim.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable


_NO_ENTRY = -1
_by_order = attrgetter("order")


class _Settlement:
    """The solve event of an instant, used again and again."""

    __slots__ = ("callbacks",)

    _ok = True
    callbacks: Any


class Fabric:
    """Carries flows over resources: ``begin`` one, and its ``transferred`` is called when it has ended.

    ``solve_order`` is a SimPy priority behind that of every other event of an instant.  Components of more than
    ``crowd_size`` flows are solved in numpy.
    """

    def __init__(self, env: Clock, solve_order: int, *, crowd_size: int = 48) -> None:
        self.solves = 0
        """Components solved so far."""
        self._env = env
        # Flows and alarms are events by their attributes, without the base class that SimPy's signature names.
        self._schedule: Callable[[Any, Any, int], None] = env.schedule
        self._solve_order = solve_order
        self._crowd_size = crowd_size
        self._own_end = [self._end]
        self._alarm_end: list[Callable[[Alarm], None]] = [self._ring]
        self._settlement = _Settlement()
        self._settle_callbacks = [self._settle]
        self._is_called = False
        self._rate_log: list[tuple[int, Resource, float]] | None = None
        self._held: list[Path] = []
        """The paths that keep a share, with or without a flow that uses it."""
        self._extra: dict[Flow, None] = {}
        """The flows in flight that found the share of their path in use."""
        self._follows = False
        """Whether each resource knows its flows instead."""
        self._followed = 0
        """How many flows are in flight while that is so."""
        self._begins_to_come = 0
        """How many more flows are to begin before paths may keep shares again: to take them back costs as much."""
        self._fresh: list[Flow] = []
        self._touched: dict[Resource, None] = {}
        self._crowds: dict[Crowd, None] = {}
        self._crowds_made = 0
        self._logged: dict[Resource, None] = {}

    @property
    def rate_log(self) -> list[tuple[int, Resource, float]] | None:
        """If a list: receives (time in ps, resource, B/s) where a rate has changed by the end of an instant."""
        return self._rate_log

    @rate_log.setter
    def rate_log(self, log: list[tuple[int, Resource, float]] | None) -> None:
        self._rate_log = log
        if log is not None and not self._follows:
            self._follow()

    def begin(self, flow: Flow, now: int) -> None:
        """Start moving the flow's bytes at ``now``, which is the present."""
        flow.callbacks = self._own_end
        flow.is_shared = False
        flow.crowd = None
        flow.since = now
        path = flow.path
        size = flow.wire_bytes
        if path.tenant is None:
            path.tenant = flow
        elif self._book(flow, path) and size:
            flow.due = _NO_ENTRY
            self._fresh.append(flow)
            self._call_settle()
            return
        delay = path.times_ps.get(size)
        if delay is None:
            delay = path.alone_ps(size)
        flow.due = now + delay
        self._schedule(flow, flow.order, delay)

    def _book(self, flow: Flow, path: Path) -> bool:
        """Add a flow that has no share waiting for it to its resources; whether any of them is tight now."""
        if self._follows:
            self._followed += 1
            self._begins_to_come -= 1
            for resource, _, _ in path.loads:
                resource.flows[flow] = None
            if self._rate_log is not None:
                self._log_path(path)
        elif path.tenant is NOBODY:
            path.tenant = flow
            self._held.append(path)
        else:
            self._extra[flow] = None
        is_tight = False
        for resource, load, _ in path.loads:
            resource.peak_sum = total = resource.peak_sum + load
            if total > resource.capacity:
                is_tight = True
        if is_tight and not self._follows:
            self._follow()
            is_tight = any(resource.is_tight for resource, _, _ in path.loads)
        return is_tight

    def _run_alone(self, flow: Flow, now: int) -> None:
        """Its end in closed form."""
        delay = flow.path.alone_ps(flow.wire_bytes)
        flow.due = now + delay
        self._schedule(flow, flow.order, delay)

    def _follow(self) -> None:
        """From now on each resource knows the flows on it, and no path keeps a share."""
        self._follows = True
        held, self._held = self._held, []
        extra, self._extra = self._extra, {}
        moving = list(extra)
        for path in held:
            tenant, path.tenant = path.tenant, NOBODY
            if tenant is not None:
                moving.append(tenant)
                continue
            for resource, load, _ in path.loads:
                resource.peak_sum -= load
        for flow in moving:
            for resource, _, _ in flow.path.loads:
                resource.flows[flow] = None
        self._followed = len(moving)
        self._begins_to_come = len(held)

    # Ends.

    def _end(self, flow: Flow) -> None:
        """A flow's own entry has come up, at ``due``."""
        if flow.is_shared:
            flow.callbacks = self._own_end  # SimPy has taken the list off
            return
        path = flow.path
        path.moved_bytes += flow.wire_bytes
        if path.tenant is flow:
            path.tenant = None
        else:
            self._unbook(flow, path)
        flow.transferred()

    def _unbook(self, flow: Flow, path: Path) -> None:
        """Take a flow that ends off its resources, where no share is kept for the next one."""
        for resource, load, _ in path.loads:
            resource.peak_sum -= load
        if not self._follows:
            del self._extra[flow]
            return
        for resource, _, _ in path.loads:
            del resource.flows[flow]
        self._followed -= 1
        if self._rate_log is not None:
            self._log_path(path)
        elif not self._followed and self._begins_to_come <= 0:
            self._follows = False

    def _ring(self, alarm: Alarm) -> None:
        """An alarm has come up."""
        flow = alarm.flow
        if flow.alarm is not alarm:
            return
        now = self._env.now
        if flow.due > now:
            # Rounding put the end a picosecond before the flow's own entry, which must not outlive it.
            self._set_alarm(flow, flow.due, now)
            return
        self._leave(flow, now)
        flow.due = now
        self._end(flow)

    def _leave(self, flow: Flow, now: int) -> None:
        """Take a flow that ends out of its component."""
        flow.is_shared = False
        flow.alarm = None
        crowd = flow.crowd
        if crowd is None:
            left = flow.remaining - flow.rate * ((now - flow.since) / PS_PER_S)
            check_delivered(left, flow.wire_bytes, flow.rate)
        else:
            flow.crowd = None
            crowd.remove(flow)
            self._crowds[crowd] = None
            self._call_settle()
        for resource, load, _ in flow.path.loads:
            if resource.peak_sum > resource.capacity:
                if crowd is None:
                    self._touched[resource] = None
                    self._call_settle()
                elif resource.peak_sum - load <= resource.capacity:
                    crowd.limit(resource, inf)
                    resource.crowd = None

    def _set_alarm(self, flow: Flow, due: int, now: int) -> None:
        flow.alarm = alarm = Alarm(flow, due, self._alarm_end)
        self._schedule(alarm, flow.order, due - now)

    # The end of an instant.

    def _call_settle(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._settlement.callbacks = self._settle_callbacks
            self._schedule(self._settlement, self._solve_order, 0)

    def _settle(self, _: _Settlement) -> None:
        """Solve the components that begins and ends of this instant have touched."""
        self._is_called = False
        now = self._env.now
        seeds, self._fresh = self._fresh, []
        touched, self._touched = self._touched, {}
        crowds, self._crowds = self._crowds, {}
        seeds.sort(key=_by_order)
        for resource in touched:
            seeds.extend(resource.flows)
        for crowd in list(crowds):
            crowd.retire(now)
            if crowd.is_sparse(self._crowd_size):
                del crowds[crowd]
                seeds.extend(self._dissolve(crowd))
        seen: set[Flow] = set()
        joining: dict[Crowd, list[Flow]] = {}
        for seed in seeds:
            if seed not in seen and seed.crowd is None:
                self._place(seed, seen, joining, now)
        for crowd, flows in joining.items():
            flows.sort(key=_by_order)
            crowd.add(flows)
            crowds[crowd] = None
        for crowd in crowds:
            if crowd.live:
                self._share_crowd(crowd, now)
        if self._rate_log is not None:
            self._write_log(self._rate_log, now)

    def _place(self, seed: Flow, seen: set[Flow], joining: dict[Crowd, list[Flow]], now: int) -> None:
        """Find the component of a flow and solve it, or let it join a crowd that is solved later."""
        flows, tight, crowds = _component(seed, seen)
        if crowds or len(flows) > self._crowd_size:
            self._join(flows, tight, crowds, joining, now)
        elif tight:
            self._share_few(flows, tight, now)
        elif seed.is_shared:
            _set_rate(seed, float(seed.path.peak), now)
            if seed.alarm is None or seed.alarm.due != seed.ends:
                self._set_alarm(seed, seed.ends, now)
            if self._rate_log is not None:
                self._logged.update(dict.fromkeys(seed.path.resources))
        elif seed.due == _NO_ENTRY:
            self._run_alone(seed, now)

    def _share_few(self, flows: list[Flow], tight: dict[Resource, float], now: int) -> None:
        """Solve a small component in plain Python."""
        self.solves += 1
        flows.sort(key=_service_order)
        crossings = [[r for r in flow.path.resources if r in tight] for flow in flows]
        rates = fill_few(crossings, [flow.path.peak for flow in flows], tight, sum([flow.priority for flow in flows]))
        _check_few(flows, crossings, rates, tight)
        for flow, rate in zip(flows, rates, strict=True):
            if not flow.is_shared:
                _share(flow, now)
            _set_rate(flow, rate, now)
        due = min([flow.ends for flow in flows])
        for flow in flows:
            if flow.ends != due:
                flow.alarm = None
            elif flow.alarm is None or flow.alarm.due != due:
                self._set_alarm(flow, due, now)
        if self._rate_log is not None:
            for flow in flows:
                self._logged.update(dict.fromkeys(flow.path.resources))

    def _share_crowd(self, crowd: Crowd, now: int) -> None:
        """Solve a crowd."""
        self.solves += 1
        due = crowd.solve(now)
        heads = crowd.ending(due)
        kept = set(heads)
        for flow in crowd.heads:
            if flow.crowd is crowd and flow not in kept:
                flow.alarm = None
        for flow in heads:
            if flow.alarm is None or flow.alarm.due != due:
                self._set_alarm(flow, due, now)
        crowd.heads = heads
        if self._rate_log is not None:
            self._logged.update(dict.fromkeys(crowd.numbers))

    # Crowds.

    def _join(
        self,
        flows: list[Flow],
        tight: dict[Resource, float],
        crowds: set[Crowd],
        joining: dict[Crowd, list[Flow]],
        now: int,
    ) -> None:
        """Make one crowd of these flows and these crowds; the largest keeps its arrays."""
        if crowds:
            target = max(crowds, key=lambda crowd: (crowd.live, -crowd.number))
        else:
            target = Crowd(self._crowds_made)
            self._crowds_made += 1
        for flow in flows:
            if not flow.is_shared:
                _share(flow, now)
        bound = list(tight)
        for crowd in sorted(crowds - {target}, key=lambda crowd: crowd.number):
            bound += [resource for resource in crowd.numbers if resource.crowd is crowd]
            flows += joining.pop(crowd, [])
            flows += self._dissolve(crowd)
        for flow in flows:
            flow.crowd = target
        for resource in bound:
            if resource.crowd is not target:
                resource.crowd = target
                if resource in target.numbers:
                    target.limit(resource, float(resource.capacity))
        joining.setdefault(target, []).extend(flows)

    def _dissolve(self, crowd: Crowd) -> list[Flow]:
        """Its flows, each with its state again."""
        for resource in crowd.numbers:
            if resource.crowd is crowd:
                resource.crowd = None
        flows = crowd.dissolve()
        for flow in flows:
            flow.crowd = None
        return flows

    # The log of rates.

    def _log_path(self, path: Path) -> None:
        self._logged.update(dict.fromkeys(path.resources))
        self._call_settle()

    def _write_log(self, log: list[tuple[int, Resource, float]], now: int) -> None:
        for resource in sorted(self._logged, key=lambda resource: resource.name):
            rate = sum(_rate_of(flow) * flow.path.resources.count(resource) for flow in resource.flows)
            if rate != resource.shown_rate:
                resource.shown_rate = rate
                log.append((now, resource, rate))
        self._logged.clear()


def _component(seed: Flow, seen: set[Flow]) -> tuple[list[Flow], dict[Resource, float], set[Crowd]]:
    """The flows connected to one over tight resources, these with their capacities, and the crowds it meets."""
    seen.add(seed)
    flows = [seed]
    tight: dict[Resource, float] = {}
    crowds: set[Crowd] = set()
    for flow in flows:  # grows while we walk
        for resource, _, _ in flow.path.loads:
            if resource.peak_sum > resource.capacity and resource not in tight:
                tight[resource] = float(resource.capacity)
                if resource.crowd is not None:
                    crowds.add(resource.crowd)
                    continue
                for other in resource.flows:
                    if other.crowd is not None:
                        crowds.add(other.crowd)
                    elif other not in seen:
                        seen.add(other)
                        flows.append(other)
    return flows, tight, crowds


def _share(flow: Flow, now: int) -> None:
    """From closed form, or from nothing, to a state of its own."""
    if flow.due == _NO_ENTRY:
        flow.remaining, flow.rate, flow.ends = float(flow.wire_bytes), 0.0, NEVER
    else:
        flow.rate = float(flow.path.peak)
        flow.remaining = flow.wire_bytes - flow.rate * ((now - flow.since) / PS_PER_S)
        flow.ends = flow.due
    flow.since = now
    flow.is_shared = True
    flow.alarm = None


def _set_rate(flow: Flow, rate: float, now: int) -> None:
    """Book what has moved so far and the new end, if the rate really changes."""
    old = flow.rate
    if abs(rate - old) <= SAME_RATE * old:
        return
    flow.remaining = left = max(flow.remaining - old * ((now - flow.since) / PS_PER_S), 0.0)
    flow.since = now
    flow.rate = rate
    flow.ends = min(now + max(ceil(left * PS_PER_S / rate - TINY_PS), 0), NEVER) if rate > 0.0 else NEVER


def _rate_of(flow: Flow) -> float:
    if flow.crowd is not None:
        return flow.crowd.rate_of(flow)
    return flow.rate if flow.is_shared else float(flow.path.peak)


def _service_order(flow: Flow) -> tuple[int, int]:
    return -flow.priority, flow.order


def _check_few(
    flows: list[Flow], crossings: list[list[Resource]], rates: list[float], tight: dict[Resource, float]
) -> None:
    """No resource above its capacity; every flow at its peak or held back by a full resource."""
    load = dict.fromkeys(tight, 0.0)
    for crossing, rate in zip(crossings, rates, strict=True):
        for resource in crossing:
            load[resource] += rate
    full = set()
    for resource, capacity in tight.items():
        if load[resource] >= capacity * (1 - SLACK):
            full.add(resource)
            if load[resource] > capacity * (1 + SLACK):
                raise InternalError(f"{resource!r} is above its capacity")
    for flow, crossing, rate in zip(flows, crossings, rates, strict=True):
        if rate < flow.path.peak * (1 - SLACK) and full.isdisjoint(crossing):
            raise InternalError(f"a flow over {flow.path!r} could go faster than the fabric lets it")
