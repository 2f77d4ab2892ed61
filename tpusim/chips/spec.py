"""What a chip is: groups of quantities, each with its unit, source and confidence.

Why every number is a :class:`Quantity` and not a plain float: most of what decides the time of a DMA program
is not published.  A run must be able to say what its answer rests on, so a number cannot enter the machine
without saying where it comes from, and an estimate not without its reasoning.

The unit and the range of each field stand once, in its annotation; a TOML file repeats the unit for its reader
and is checked against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from tpusim.chips.quantity import Measure, Quantity

Hertz = Annotated[Quantity, Measure("Hz", "positive")]
Cycles = Annotated[Quantity, Measure("cycles", "number")]
Seconds = Annotated[Quantity, Measure("s", "number")]
Rate = Annotated[Quantity, Measure("B/s", "positive")]
Bytes = Annotated[Quantity, Measure("B", "count")]
Size = Annotated[Quantity, Measure("B", "whole")]
Whole = Annotated[Quantity, Measure("", "whole")]
Count = Annotated[Quantity, Measure("", "count")]
Flops = Annotated[Quantity, Measure("FLOP/s", "number")]
FlopsPerCycle = Annotated[Quantity, Measure("FLOP/cycle", "positive")]
Flag = Annotated[Quantity, Measure("", "flag")]
Text = Annotated[Quantity, Measure("", "text")]
Shape = Annotated[Quantity, Measure("", "shape")]
Tile = Annotated[Quantity, Measure("sublanes x lanes", "shape")]


class Group(BaseModel):
    """Quantities that belong together; checks the unit and kind of each against its annotation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, measure in measures_of(type(self)).items():
            quantity = getattr(self, name)
            if quantity is None:
                continue
            if quantity.unit != measure.unit:
                raise ValueError(f"{name} is in {measure.unit or 'no unit'}, not in {quantity.unit or 'no unit'}")
            if quantity.value is not None and not measure.accepts(quantity.value):
                raise ValueError(f"{name} takes {measure.wants}, not {quantity.value!r}")
        return self


@cache
def measures_of(group: type[Group]) -> Mapping[str, Measure]:
    """Field name -> what the field may hold."""
    fields = group.model_fields.items()
    return {name: next(m for m in field.metadata if isinstance(m, Measure)) for name, field in fields}


class CoreSpec(Group):
    """The TensorCore.  Cycles and FLOP/cycle are per core; the peak rates are per chip, as in datasheets."""

    clock: Hertz
    tensorcores_per_chip: Whole
    devices_per_chip: Whole
    """JAX devices a chip shows: 2 on v7x, else 1."""
    megacore: Flag
    """The cores of a chip can act as one device."""
    mxus: Whole
    mxu_size: Shape
    mxu_flops_per_cycle: FlopsPerCycle
    """All MXUs of one core, bf16."""
    mxu_fill: Cycles
    """What a matmul takes beyond its ideal cycles."""
    peak_bf16: Flops
    peak_int8: Flops
    peak_fp8: Flops
    vpu_lanes: Whole
    vpu_sublanes: Whole
    control_step: Cycles
    """Scalar control of one step of a one-axis grid, beyond ``dma.issue`` of each block copied."""
    control_axis: Cycles
    """The same for every further axis of the grid."""


class HbmSpec(Group):
    """High-bandwidth memory."""

    capacity: Size
    """Per chip."""
    nameplate_bandwidth: Rate
    """Per chip, as in datasheets; the machine uses ``bandwidth``."""
    bandwidth: Rate
    """What copies get, reads and writes together, per device: per core on v7x, else per chip."""


class VmemSpec(Group):
    """Vector memory of one core."""

    capacity: Size
    reserved: Bytes
    """Part of ``capacity`` that no kernel gets."""
    scoped_limit: Size
    """What one kernel gets without ``vmem_limit_bytes``."""


class SmemSpec(Group):
    """Scalar memory of one core."""

    capacity: Size


class SemaphoreSpec(Group):
    """Semaphores of one core."""

    count: Count
    """DMA and regular semaphores together; one word of sync-flag memory each."""
    barrier: Count
    """Barrier semaphores, which ``collective_id`` chooses among."""


class IciSpec(Group):
    """The links between chips; rates are one way."""

    links: Whole
    """Per chip."""
    link_bandwidth: Rate
    """Payload that a copy gets from one link, one way."""
    nameplate_bandwidth: Rate
    """One link, one way, as in datasheets; the machine uses ``link_bandwidth``."""
    hop_latency: Seconds
    signal_latency: Seconds
    """From a remote signal on its core until it enters the first link."""
    die_to_die_bandwidth: Annotated[Quantity | None, Measure("B/s", "positive")] = None
    """Between the two devices of one chip; only where a chip has two."""
    die_to_die_latency: Annotated[Quantity | None, Measure("s", "number")] = None
    wrap: Text
    """Which axes of a slice are rings."""


class DmaSpec(Group):
    """Copies: what one costs before bytes move, and how fast an engine of each direction moves them."""

    issue: Cycles
    """On the core that starts the copy."""
    start_latency_hbm_to_vmem: Seconds
    start_latency_vmem_to_hbm: Seconds
    start_latency_vmem_to_vmem: Seconds
    start_latency_hbm_to_hbm: Seconds
    start_latency_remote: Seconds
    start_latency_smem: Seconds
    rate_hbm_to_vmem: Rate
    rate_vmem_to_hbm: Rate
    rate_vmem_to_vmem: Rate
    rate_hbm_to_hbm: Rate
    rate_remote: Rate
    rate_smem: Rate
    granule: Size
    """The unit in which DMA semaphores count bytes."""
    short_run: Size
    """A contiguous run shorter than this takes as long as one of this length."""


class SparseCoreSpec(Group):
    """The SparseCores; empty where a chip has none.  Their clock is taken to be that of the TensorCore."""

    cores: Annotated[Quantity | None, Measure("", "whole")] = None
    """Per device."""
    subcores: Annotated[Quantity | None, Measure("", "whole")] = None
    """Vector subcores of one SparseCore."""
    lanes: Annotated[Quantity | None, Measure("", "whole")] = None
    """32-bit elements that a subcore computes with in a cycle."""
    vmem: Annotated[Quantity | None, Measure("B", "whole")] = None
    """Of one vector subcore."""
    granule: Annotated[Quantity | None, Measure("B", "whole")] = None
    """What its copies move at once."""
    stream_latency: Annotated[Quantity | None, Measure("s", "number")] = None
    """From the start of a copy until its bytes move."""
    stream_rate: Annotated[Quantity | None, Measure("B/s", "positive")] = None
    """What one copy of a subcore moves."""


class SyncSpec(Group):
    """What operations on semaphores cost their core, once they can proceed."""

    wait: Cycles
    signal: Cycles
    read: Cycles
    barrier_lookup: Cycles


class XlaSpec(Group):
    """What XLA puts around the work of an operation of its own; kernels do not pay it.  For published timings."""

    op_overhead: Seconds
    """Around a copy or a product, on top of the same work in a kernel."""
    collective_overhead: Seconds
    """Around a collective: its own start and finish."""


class TileSpec(Group):
    """Tile of the last two dimensions of an array in memory, by element width."""

    bits_32: Tile
    bits_16: Tile
    bits_8: Tile
    bits_4: Tile


GROUPS: tuple[str, ...] = (
    "core", "hbm", "vmem", "smem", "semaphores", "ici", "dma", "sparsecore", "sync", "xla", "tiles",
)  # fmt: skip
"""The groups of a :class:`ChipSpec`, in the order they are shown."""


class ChipSpec(BaseModel):
    """One chip: its identity and eleven groups of quantities; see :func:`tpusim.chips.load_chip`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    description: str
    device_kind: str
    """What ``jax.devices()[0].device_kind`` says; empty where it is not known."""
    simulated: bool
    """Whether a slice of it can be built; the others are only shown."""
    torus_dims: Literal[2, 3] | None = None
    """Axes of the chip's torus; ``None`` where it has none."""
    cost_table: str | None = None
    """The chip whose compute costs it uses, see :mod:`tpusim.costs`."""
    has_flag_queues: bool = False
    """Whether copies that count on one sync flag move one after the other, see :mod:`tpusim.machine.queues`."""
    core: CoreSpec
    hbm: HbmSpec
    vmem: VmemSpec
    smem: SmemSpec
    semaphores: SemaphoreSpec
    ici: IciSpec
    dma: DmaSpec
    sparsecore: SparseCoreSpec = SparseCoreSpec()
    sync: SyncSpec
    xla: XlaSpec
    tiles: TileSpec

    @model_validator(mode="after")
    def _check(self) -> Self:
        unknown = [path for path, quantity in self.rows() if quantity.value is None]
        if self.simulated and unknown:
            raise ValueError(f"a simulated chip needs a value for {', '.join(unknown)}")
        return self

    def rows(self) -> Iterator[tuple[str, Quantity]]:
        """``("ici.link_bandwidth", Quantity)`` for every quantity the chip has, in order."""
        for group in GROUPS:
            for name, quantity in getattr(self, group):
                if quantity is not None:
                    yield f"{group}.{name}", quantity

    def with_values(self, values: Mapping[str, float]) -> Self:
        """A copy with other values at names such as ``"dma.issue"``, which are not checked."""
        groups: dict[str, dict[str, Quantity]] = {}
        for path, value in values.items():
            group, _, field = path.partition(".")
            quantity: Quantity = getattr(getattr(self, group), field)
            groups.setdefault(group, {})[field] = quantity.model_copy(update={"value": value})
        return self.model_copy(update={g: getattr(self, g).model_copy(update=f) for g, f in groups.items()})

    @property
    def clock_hz(self) -> int:
        """Clock of the TensorCore in Hz."""
        return self.core.clock.integer

    @property
    def cores_per_device(self) -> int:
        """TensorCores in one JAX device: 2 with megacore (v4, v5p), else 1."""
        return self.core.tensorcores_per_chip.integer // self.core.devices_per_chip.integer

    def tile(self, bits: int) -> tuple[int, int]:
        """Sublanes and lanes of a memory tile for elements of ``bits``; wider ones are tiled as 32-bit words."""
        width = 32 if bits >= 32 else 16 if bits >= 16 else 8 if bits >= 8 else 4
        tile: Quantity = getattr(self.tiles, f"bits_{width}")
        sublanes, lanes = tile.shape
        return sublanes, lanes
