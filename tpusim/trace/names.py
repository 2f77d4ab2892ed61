"""The texts of a trace, made once each: a run has a million events and few different names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tpusim.findings import where_of
from tpusim.units import PS_PER_US

if TYPE_CHECKING:
    from tpusim.machine.memory import Region
    from tpusim.machine.semaphores import Semaphore
    from tpusim.options import Place


class Names:
    """What to call the things of one run, as text that may stand between the quotes of a JSON string."""

    def __init__(self, place: Place) -> None:
        self._place = place
        sizes = tuple(place.axis_sizes.values())
        self.coords = [str(_unravel(device, sizes)) for device in range(len(place.devices))]
        """Mesh coordinates of each device."""
        self.us = Microseconds()
        self._regions: dict[int, str] = {}
        self._semaphores: dict[Semaphore, str] = {}
        self._sites: dict[Any, str] = {}

    def process(self, device: int) -> str:
        """``/device:TPU:3 (0, 1) chip (1,0), simulated``: xprof's word first."""
        return (
            f"/device:TPU:{device} {self.coords[device]} chip {self._chip_of(self._place.devices[device])}, simulated"
        )

    def memory(self, unit: int) -> str:
        """Where an HBM is; ``unit`` is a device where each has its own, else a chip."""
        slice_ = self._place.slice
        if slice_.has_die_links:
            return self._chip_of(unit)
        return f"({','.join(map(str, slice_.chip_coords(unit)[: len(slice_.shape)]))})"

    def _chip_of(self, device: int) -> str:
        slice_ = self._place.slice
        place = slice_.coords(device)
        chip = f"({','.join(map(str, place[: len(slice_.shape)]))})"
        return f"{chip} core {place[3]}" if slice_.devices_per_chip > 1 else chip

    def region(self, region: Region) -> str:
        """``o_ref[3, 0:8]``."""
        text = self._regions.get(id(region))
        if text is None:
            text = self._regions[id(region)] = inside(str(region))
        return text

    def semaphore(self, semaphore: Semaphore) -> str:
        """``recv_sems[2]``."""
        text = self._semaphores.get(semaphore)
        if text is None:
            text = self._semaphores[semaphore] = inside(str(semaphore))
        return text

    def site(self, site: Any) -> str:
        """``kernels/ring.py:47``, empty where nothing is known."""
        # the hash of a code object covers all its content: too slow for every event
        key = (id(site[0]), site[1]) if type(site) is tuple else site
        text = self._sites.get(key)
        if text is None:
            text = self._sites[key] = inside(str(where_of(site) or ""))
        return text


class Microseconds(dict[int, str]):
    """Picoseconds -> microseconds as text; devices in step share most of their times."""

    def __missing__(self, time_ps: int) -> str:
        """Format a time that is met for the first time."""
        text = self[time_ps] = repr(time_ps / PS_PER_US)
        return text


def inside(text: str) -> str:
    """``text`` as it stands between the quotes of a JSON string."""
    return json.dumps(text)[1:-1]


def _unravel(index: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    coords: list[int] = []
    for size in reversed(sizes):
        index, place = divmod(index, size)
        coords.append(place)
    return tuple(reversed(coords))
