"""Last write and live reads of every part of a buffer, and which parts overlap.

Kernels name few different parts of a buffer and touch each many times.  So the parts are not cut at each
other's bounds: each region that occurs has a cell of its own, and which other regions it overlaps is found
once for all devices, when it first occurs.  An access then looks at its own cell and at those of overlapping
regions in which something has happened since they were last overwritten whole.  Boxes, strides and parts that
are no box are exact.

Reads that are certainly over when a later read begins are dropped: a write that comes after the later read
comes after them too, and one that does not is a race with the later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tpusim.judges.clocks import NEVER, Access, CoreClock

if TYPE_CHECKING:
    from tpusim.machine.memory import Region
    from tpusim.machine.overlaps import Links, RegionIndex


class Conflict(NamedTuple):
    """An earlier access that the present one does not know to be over."""

    access: Access
    is_write: bool
    region: Region


NONE: Sequence[Conflict] = ()


class Cell:
    """What happened to one region: its last write, the copies that read it since, the core's last load."""

    __slots__ = ("limit", "links", "load_clock", "load_site", "reads", "write")

    def __init__(self, links: Links) -> None:
        self.links = links
        self.write: Access | None = None
        self.reads: list[Access] | tuple[()] = ()
        self.limit = 4
        self.load_clock = -1
        self.load_site: object = None


class Shadow:
    """The cells of one device's buffer.  Only its owner's core loads from it and starts copies that read it."""

    __slots__ = ("cells", "entered", "index", "owner")

    def __init__(self, spec_index: RegionIndex, owner: int) -> None:
        self.index = spec_index
        self.owner = owner
        self.cells: dict[Region, Cell] = {}
        self.entered = -1
        """The owner's clock when it entered the scope of the buffer."""

    def load(self, region: Region, core: CoreClock, site: object) -> Sequence[Conflict]:
        """The owner's core loads; gives the writes that may not be over."""
        cell = self.cells.get(region)
        if cell is None:
            cell = self._cell(region)
        found = NONE
        write = cell.write
        if write is not None and write.clock > (
            len(core.operations) if write.device == core.device else core.others[write.device]
        ):
            found = [Conflict(write, True, region)]
        if cell.links:
            found = self._overlapping_writes(cell.links, core, found)
        cell.load_clock = len(core.operations)
        cell.load_site = site
        return found

    def read(self, region: Region, core: CoreClock, leg: Access) -> Sequence[Conflict]:
        """A copy that ``core`` starts will read; gives the writes that may not be over."""
        cell = self.cells.get(region)
        if cell is None:
            cell = self._cell(region)
        found = NONE
        write = cell.write
        if write is not None and write.clock > (
            len(core.operations) if write.device == core.device else core.others[write.device]
        ):
            found = [Conflict(write, True, region)]
        if cell.links:
            found = self._overlapping_writes(cell.links, core, found)
        reads = cell.reads
        if not reads:
            cell.reads = [leg]
        else:
            reads.append(leg)
            if len(reads) > cell.limit:
                cell.reads = [read for read in reads if not core.knows(read)]
                cell.limit = max(4, 2 * len(cell.reads))
        return found

    def write(self, region: Region, core: CoreClock, access: Access) -> Sequence[Conflict]:
        """A store of the owner's core, or a copy that any core starts will write; gives what may not be over."""
        cell = self.cells.get(region)
        if cell is None:
            cell = self._cell(region)
        found = NONE
        write = cell.write
        if (
            cell.reads
            or cell.load_clock >= 0
            or (
                write is not None
                and write.clock > (len(core.operations) if write.device == core.device else core.others[write.device])
            )
        ):
            found = self._not_over(cell, region, core, found)
            cell.reads = ()
            cell.load_clock = -1
        links = cell.links
        if links:
            cells = self.cells
            for other, inside in self._live(links):
                found = self._not_over(cells[other], other, core, found)
                if inside:
                    del cells[other]
        cell.write = access
        return found

    def open_writes(self) -> Sequence[Conflict]:
        """Copies to here that no wait of the owner has settled."""
        return [
            Conflict(cell.write, True, region)
            for region, cell in self.cells.items()
            if cell.write is not None and cell.write.clock == NEVER
        ]

    def everything(self, core: CoreClock) -> Sequence[Conflict]:
        """All accesses that may not be over for ``core``."""
        found = NONE
        for region, cell in self.cells.items():
            found = self._not_over(cell, region, core, found)
        return found

    def _cell(self, region: Region) -> Cell:
        cell = self.cells[region] = Cell(self.index.links_of(region))
        return cell

    def _live(self, links: Links) -> list[tuple[Region, bool]]:
        """Those of ``links`` that have a cell here."""
        cells = self.cells
        if len(links) <= len(cells):
            return [link for link in links.items() if link[0] in cells]
        return [(region, links[region]) for region in cells if region in links]

    def _overlapping_writes(self, links: Links, core: CoreClock, found: Sequence[Conflict]) -> Sequence[Conflict]:
        for other, _ in self._live(links):
            write = self.cells[other].write
            if write is not None and not core.knows(write):
                found = [*found, Conflict(write, True, other)]
        return found

    def _not_over(self, cell: Cell, region: Region, core: CoreClock, found: Sequence[Conflict]) -> Sequence[Conflict]:
        write = cell.write
        if write is not None and not core.knows(write):
            found = [*found, Conflict(write, True, region)]
        if cell.load_clock >= 0 and self.owner != core.device and core.others[self.owner] < cell.load_clock:
            found = [*found, Conflict(Access(self.owner, cell.load_clock, cell.load_site), False, region)]
        for read in cell.reads:
            if not core.knows(read):
                found = [*found, Conflict(read, False, region)]
        return found
