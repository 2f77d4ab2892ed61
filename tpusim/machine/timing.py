"""What operations cost, in integer picoseconds, taken once from a chip's specification."""

from __future__ import annotations

from tpusim.chips import ChipSpec, Quantity
from tpusim.costs import CostTable
from tpusim.errors import InternalError
from tpusim.specs import SPARSE, MemorySpace
from tpusim.units import cycles_ps, ps_from_seconds

STREAM = "stream"
_CLASSES = {
    (MemorySpace.HBM, MemorySpace.VMEM): "hbm_to_vmem",
    (MemorySpace.VMEM, MemorySpace.HBM): "vmem_to_hbm",
    (MemorySpace.VMEM, MemorySpace.VMEM): "vmem_to_vmem",
    (MemorySpace.HBM, MemorySpace.HBM): "hbm_to_hbm",
}


class Timing:
    """Fixed costs of a chip's operations.  ``*_ps`` are picoseconds, rates bytes per second."""

    __slots__ = (
        "_rates", "_start_ps", "barrier_ps", "chip", "clock_hz", "costs", "cycle_ps", "hop_ps", "issue_ps", "read_ps",
        "remote_signal_ps", "signal_ps", "wait_ps",
    )  # fmt: skip

    def __init__(self, chip: ChipSpec) -> None:
        self.chip = chip
        self._start_ps: dict[str, int] = {}
        self._rates: dict[str, int] = {}
        self.costs = CostTable.for_chip(chip)
        self.clock_hz = chip.clock_hz
        self.cycle_ps = self.cycles(1)
        self.issue_ps = self.cycles(chip.dma.issue.number)
        self.wait_ps = self.cycles(chip.sync.wait.number)
        self.signal_ps = self.cycles(chip.sync.signal.number)
        self.read_ps = self.cycles(chip.sync.read.number)
        self.barrier_ps = self.cycles(chip.sync.barrier_lookup.number)
        self.hop_ps = ps_from_seconds(chip.ici.hop_latency.number)
        self.remote_signal_ps = ps_from_seconds(chip.ici.signal_latency.number)

    def cycles(self, count: float) -> int:
        """Time of at least one cycle."""
        return cycles_ps(max(1, count), self.clock_hz)

    def start_ps(self, kind: str) -> int:
        """Start latency of a copy of a direction class such as ``hbm_to_vmem`` or ``remote``."""
        found = self._start_ps.get(kind)
        if found is None:
            found = self._start_ps[kind] = ps_from_seconds(self._number(copy_numbers(kind)[0]))
        return found

    def rate(self, kind: str) -> int:
        """What one engine of a direction class moves, bytes per second."""
        found = self._rates.get(kind)
        if found is None:
            found = self._rates[kind] = int(self._number(copy_numbers(kind)[1]))
        return found

    def _number(self, path: str) -> float:
        group, _, name = path.partition(".")
        found: Quantity | None = getattr(getattr(self.chip, group), name)
        if found is None:
            raise InternalError(f"{self.chip.name} has no {path}")
        return found.number


def direction_class(src: MemorySpace, dst: MemorySpace) -> str:
    """The direction class of a copy within one device; any with a SparseCore's memory is a stream."""
    if src in SPARSE or dst in SPARSE:
        return STREAM
    return _CLASSES.get((src, dst), "smem")


def copy_numbers(kind: str) -> tuple[str, str]:
    """The names of what a direction class rests on, start latency and rate: ``dma.rate_remote`` for one."""
    if kind == STREAM:
        return "sparsecore.stream_latency", "sparsecore.stream_rate"
    return f"dma.start_latency_{kind}", f"dma.rate_{kind}"
