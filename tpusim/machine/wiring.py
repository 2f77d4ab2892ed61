"""Which resources a copy crosses: the shared bandwidths of a slice, and cached paths through them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpusim import topology
from tpusim.machine.flows import Path, Resource
from tpusim.machine.timing import Timing, direction_class
from tpusim.specs import MemorySpace
from tpusim.topology import Slice
from tpusim.units import ps_from_seconds

if TYPE_CHECKING:
    from tpusim.machine.memory import Buffer


class Route:
    """The way of a copy: its path through the fabric and its latencies in picoseconds."""

    __slots__ = ("hop_ps", "hops", "kind", "links", "path", "start_ps", "warns")

    def __init__(self, kind: str, path: Path, start_ps: int, hop_ps: int, links: tuple[int, ...], warns: bool) -> None:
        self.kind = kind
        self.path = path
        self.start_ps = start_ps
        self.hop_ps = hop_ps
        self.links = links
        self.hops = len(links)
        self.warns = warns


class Wiring:
    """Builds resources and routes when they are first used and keeps them.

    ``devices[i]`` is the slice's device at row-major mesh position i.
    """

    def __init__(self, slice_: Slice, devices: tuple[int, ...], timing: Timing) -> None:
        self.slice = slice_
        self.devices = devices
        self.timing = timing
        chip = timing.chip
        self._link_rate = int(chip.ici.link_bandwidth.number)
        die = chip.ici.die_to_die_bandwidth
        self._die_rate = int(die.number) if die is not None else self._link_rate
        latency = chip.ici.die_to_die_latency
        self._die_hop_ps = ps_from_seconds(latency.number) if latency is not None else timing.hop_ps
        self._hbm_rate = int(chip.hbm.bandwidth.number)
        self._hbm_per_device = slice_.has_die_links
        self._devices_per_hbm = 1 if slice_.has_die_links else slice_.devices_per_chip
        self.links: dict[int, Resource] = {}
        self.hbms: dict[int, Resource] = {}
        self._routes: dict[tuple[int, int, int, int], Route] = {}
        """Routes built so far, by device and memory of both ends."""
        self._hops: dict[tuple[int, int], int] = {}
        self._signals: dict[tuple[int, int], int] = {}

    def route(self, src: Buffer, dst: Buffer) -> Route:
        """The route between the memories of two buffers, which the source keeps from now on."""
        key = (src.device, src.spec.space_code, dst.device, dst.spec.space_code)
        found = self._routes.get(key)
        if found is None:
            found = self._routes[key] = self._build(src.device, src.spec.space, dst.device, dst.spec.space)
        src.routes[dst.place] = found
        return found

    def hop_ps(self, source: int, target: int) -> int:
        """Latency of all hops between two mesh devices."""
        key = (source, target)
        found = self._hops.get(key)
        if found is None:
            if self._hbm_per_device:
                found = self._latency(self.way(source, target).links)
            else:
                ends = self.devices[source], self.devices[target]
                found = topology.hops(self.slice, *ends) * self.timing.hop_ps
            self._hops[key] = found
        return found

    def signal_ps(self, source: int, target: int) -> int:
        """From a signal on its core until it is counted; between cores of one device no link is crossed."""
        key = (source, target)
        found = self._signals.get(key)
        if found is None:
            is_near = self.devices[source] == self.devices[target]
            timing = self.timing
            found = timing.signal_ps if is_near else timing.remote_signal_ps + self.hop_ps(source, target)
            self._signals[key] = found
        return found

    def hbm(self, device: int) -> Resource:
        """The HBM that serves a mesh device."""
        unit = self.devices[device] // self._devices_per_hbm
        found = self.hbms.get(unit)
        if found is None:
            found = self.hbms[unit] = Resource(f"HBM {unit}", self._hbm_rate)
        return found

    def link(self, index: int) -> Resource:
        """One directed link."""
        found = self.links.get(index)
        if found is None:
            rate = self._die_rate if self._is_die_link(index) else self._link_rate
            found = self.links[index] = Resource(f"link {index}", rate)
        return found

    def link_name(self, index: int) -> str:
        """``link (1,0)->(2,0)``."""
        return f"link {topology.link(self.slice, index)}"

    def way(self, source: int, target: int) -> topology.Route:
        """The links between two mesh devices."""
        return topology.route(self.slice, self.devices[source], self.devices[target])

    def _is_die_link(self, index: int) -> bool:
        return self._hbm_per_device and topology.link(self.slice, index).kind == "d2d"

    def _latency(self, links: tuple[int, ...]) -> int:
        if not self._hbm_per_device:
            return len(links) * self.timing.hop_ps
        return sum(self._die_hop_ps if self._is_die_link(index) else self.timing.hop_ps for index in links)

    def _build(self, source: int, src: MemorySpace, target: int, dst: MemorySpace) -> Route:
        crossed: list[Resource] = []
        if src is MemorySpace.HBM:
            crossed.append(self.hbm(source))
        if dst is MemorySpace.HBM:
            crossed.append(self.hbm(target))
        if self.devices[source] == self.devices[target]:
            kind, warns = direction_class(src, dst), False
            links: tuple[int, ...] = ()
        else:
            kind = "remote"
            links, _, warns = self.way(source, target)
            crossed += map(self.link, links)
        path = Path(tuple(crossed), self.timing.rate(kind))
        return Route(kind, path, self.timing.start_ps(kind), self._latency(links), links, warns)
