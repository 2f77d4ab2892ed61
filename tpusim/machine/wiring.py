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


class Ways:
    """What the routes of a mesh on a slice have in common from run to run, worked out when it is first asked for.

    ``devices[i]`` is the slice's device at row-major mesh position i.
    """

    def __init__(self, slice_: Slice, devices: tuple[int, ...], timing: Timing) -> None:
        self.slice = slice_
        self.devices = devices
        self.timing = timing
        chip = timing.chip
        self.link_rate = int(chip.ici.link_bandwidth.number)
        die = chip.ici.die_to_die_bandwidth
        self.die_rate = int(die.number) if die is not None else self.link_rate
        latency = chip.ici.die_to_die_latency
        self.die_hop_ps = ps_from_seconds(latency.number) if latency is not None else timing.hop_ps
        self.hbm_rate = int(chip.hbm.bandwidth.number)
        self.hbm_per_device = slice_.has_die_links
        self.hbm_units = [device if self.hbm_per_device else slice_.chip_of(device) for device in devices]
        self._ways: dict[tuple[int, int], topology.Route] = {}
        self._hops: dict[tuple[int, int], int] = {}
        self._names: dict[int, str] = {}

    def way(self, source: int, target: int) -> topology.Route:
        """The links between two mesh devices."""
        key = (source, target)
        found = self._ways.get(key)
        if found is None:
            found = self._ways[key] = topology.route(self.slice, self.devices[source], self.devices[target])
        return found

    def hop_ps(self, source: int, target: int) -> int:
        """Latency of all hops between two mesh devices."""
        key = (source, target)
        found = self._hops.get(key)
        if found is None:
            if self.hbm_per_device:
                found = self.latency_ps(self.way(source, target).links)
            else:
                ends = self.devices[source], self.devices[target]
                found = topology.hops(self.slice, *ends) * self.timing.hop_ps
            self._hops[key] = found
        return found

    def latency_ps(self, links: tuple[int, ...]) -> int:
        """Latency of these links."""
        if not self.hbm_per_device:
            return len(links) * self.timing.hop_ps
        return sum(self.die_hop_ps if self.is_die_link(index) else self.timing.hop_ps for index in links)

    def link_name(self, index: int) -> str:
        """``link (1,0)->(2,0)``."""
        found = self._names.get(index)
        if found is None:
            found = self._names[index] = f"link {topology.link(self.slice, index)}"
        return found

    def is_die_link(self, index: int) -> bool:
        """Whether a link joins the two dies of a chip."""
        return self.hbm_per_device and topology.link(self.slice, index).kind == "d2d"


class Wiring:
    """The resources and routes of one run, built when they are first used."""

    def __init__(self, ways: Ways) -> None:
        self.ways = ways
        self.slice = ways.slice
        self.devices = ways.devices
        self.timing = ways.timing
        self.links: dict[int, Resource] = {}
        self.hbms: dict[int, Resource] = {}
        self._routes: dict[tuple[int, int], Route] = {}
        """Routes built so far, by the memories at both ends."""
        self._signals: dict[tuple[int, int], int] = {}

    def route(self, src: Buffer, dst: Buffer) -> Route:
        """The route between the memories of two buffers, which the source keeps from now on."""
        key = (src.place, dst.place)
        found = self._routes.get(key)
        if found is None:
            found = self._routes[key] = self._build(src.device, src.spec.space, dst.device, dst.spec.space)
        src.routes[dst.place] = found
        return found

    def hop_ps(self, source: int, target: int) -> int:
        """Latency of all hops between two mesh devices."""
        return self.ways.hop_ps(source, target)

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
        unit = self.ways.hbm_units[device]
        found = self.hbms.get(unit)
        if found is None:
            found = self.hbms[unit] = Resource(f"HBM {unit}", self.ways.hbm_rate)
        return found

    def link(self, index: int) -> Resource:
        """One directed link."""
        found = self.links.get(index)
        if found is None:
            found = self.links[index] = Resource(f"link {index}", self._full_rate(index))
        return found

    def _full_rate(self, index: int) -> int:
        return self.ways.die_rate if self.ways.is_die_link(index) else self.ways.link_rate

    def link_name(self, index: int) -> str:
        """``link (1,0)->(2,0)``."""
        return self.ways.link_name(index)

    def way(self, source: int, target: int) -> topology.Route:
        """The links between two mesh devices."""
        return self.ways.way(source, target)

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
        return Route(kind, path, self.timing.start_ps(kind), self.ways.latency_ps(links), links, warns)
