"""Every view of a run, for a page and for notebooks: its analysis, done once, and a Bokeh figure each."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from tpusim.errors import OptionError
from tpusim.report import machine, timeline
from tpusim.report.marks import Marks, marks
from tpusim.specs import MemorySpace
from tpusim.trace.critical import ChainLink, critical_path
from tpusim.trace.devices import Which, chosen_devices
from tpusim.trace.lines import LineUse, line_uses
from tpusim.trace.rates import Use
from tpusim.trace.shares import Shares, shares
from tpusim.trace.steps import Steps

if TYPE_CHECKING:
    from tpusim.findings import Where
    from tpusim.result import Result


class Views:
    """The views of ``result``; figures need Bokeh (``pip install 'tpusim[report]'``): ``bokeh.io.show`` them.

    All figures over time share their axis.  ``devices``: those that are drawn one by one, in this order: ``slowest``,
    ``busiest``, either with a number as ``slowest:16``, or row-major numbers; default all up to 64, else the slowest.
    Raises ``OptionError`` for one that is not there.
    """

    def __init__(self, result: Result, devices: Which = None) -> None:
        self.result = result
        self.steps = Steps(result)
        self.use = Use(result)
        self.devices = chosen_devices(self.steps, devices)

    @cached_property
    def shares(self) -> Shares:
        """Where the time went."""
        return shares(self.steps, self.use)

    @cached_property
    def path(self) -> list[ChainLink]:
        """The critical path."""
        return critical_path(self.steps)

    @cached_property
    def lines(self) -> dict[Where | None, LineUse]:
        """What each line cost."""
        return line_uses(self.steps, self.path)

    @cached_property
    def marks(self) -> Marks:
        """The marks of the timeline."""
        return marks(self.steps, self.devices)

    @cached_property
    def timeline(self) -> Any:
        """What each device did and waited for, and its copies in flight."""
        return timeline.timeline(self.steps, self.marks)

    @cached_property
    def critical_path(self) -> Any:
        """The critical path as a strip."""
        return self._on_the_same_axis(timeline.chain(self.steps, self.path))

    @cached_property
    def link_use(self) -> Any | None:
        """The busiest links over time; ``None`` where none was used."""
        return self._on_the_same_axis(machine.link_use(self.steps, self.use))

    @cached_property
    def where_time_goes(self) -> Any:
        """A bar for each device."""
        return timeline.where_time_goes(self.steps, self.shares, self.devices)

    @cached_property
    def mesh(self) -> Any:
        """The chips and the mean use of their links."""
        return machine.mesh(self.result, self.use)

    def memory(self, space: str = "VMEM", device: int = 0) -> Any:
        """What lay in ``VMEM``, ``HBM`` or ``SMEM`` of a device, over time.

        Raises ``OptionError`` where there is no such memory or device.
        """
        if space not in MemorySpace.__members__:
            raise OptionError(f"memory: {', '.join(MemorySpace.__members__)}, not {space!r}")
        if not 0 <= device < len(self.result.cores):
            raise OptionError(f"memory: the mesh has devices 0 to {len(self.result.cores) - 1}, not {device}")
        return machine.memory(self.steps, MemorySpace[space], device)

    def _on_the_same_axis(self, figure: Any) -> Any:
        if figure is not None:
            figure.x_range = self.timeline.x_range
        return figure
