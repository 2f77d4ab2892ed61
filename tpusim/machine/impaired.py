"""The wiring of a slice with slow and broken parts, or with none that takes time."""

from __future__ import annotations

from tpusim import topology
from tpusim.errors import LinkDownError
from tpusim.faults import Impairments
from tpusim.machine.flows import Path, Resource
from tpusim.machine.timing import Timing
from tpusim.machine.wiring import Route, Ways, Wiring
from tpusim.specs import MemorySpace
from tpusim.topology import Slice


class ImpairedWiring(Wiring):
    """Slow links and HBMs have less bandwidth; dead links are an error, or gone around."""

    def __init__(self, slice_: Slice, devices: tuple[int, ...], timing: Timing, faults: Impairments) -> None:
        super().__init__(Ways(slice_, devices, timing))
        self._faults = faults

    def hbm(self, device: int) -> Resource:
        """The HBM that serves a mesh device."""
        found = super().hbm(device)
        slowness = self._faults.slowness(device)
        if slowness > 1:
            found.capacity = int(self.ways.hbm_rate / slowness)
        return found

    def link(self, index: int) -> Resource:
        """One directed link."""
        found = super().link(index)
        if index in self._faults.slow_links:
            found.capacity = max(1, int(self._full_rate(index) / self._faults.slow_links[index]))
        return found

    def hop_ps(self, source: int, target: int) -> int:
        """Latency of all hops between two mesh devices, on the way that is open."""
        return self.ways.latency_ps(self.way(source, target).links)

    def way(self, source: int, target: int) -> topology.Route:
        """The links between two mesh devices; raises ``LinkDownError`` where none may be taken."""
        dead = self._faults.dead_links
        way = super().way(source, target)
        broken = next((index for index in way.links if index in dead), None)
        if broken is None:
            return way
        name, fault = self.link_name(broken), dead[broken]
        if not fault.reroutes:
            raise LinkDownError(
                f"{name} is down (fault {fault.text}), and the way from chip {self._chip(source)} to chip "
                f"{self._chip(target)} leads over it; {fault.text},reroute looks for another way."
            )
        around = topology.detour(self.slice, self.devices[source], self.devices[target], dead)
        if around is None:
            raise LinkDownError(
                f"{name} is down (fault {fault.text}), and no other way leads from chip {self._chip(source)} to chip "
                f"{self._chip(target)}."
            )
        return around

    def _chip(self, device: int) -> tuple[int, ...]:
        place = self.slice.coords(self.devices[device])
        return place[: len(self.slice.shape)]


class InstantWiring(ImpairedWiring):
    """No latency and no limit: a copy takes a picosecond."""

    def hop_ps(self, source: int, target: int) -> int:
        """None."""
        self.way(source, target)  # a dead link stays one
        return 0

    def _build(self, source: int, src: MemorySpace, target: int, dst: MemorySpace) -> Route:
        found = super()._build(source, src, target, dst)
        return Route(found.kind, Path((), _BOUNDLESS), 0, 0, found.links, found.warns)


_BOUNDLESS = 1 << 62
