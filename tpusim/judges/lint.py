"""The rules of compiler and chip; here those about slices of copies, which a simulator could run and a TPU does not.

The other rules are looked after where a run meets them; :data:`RULES` has all of them, with their origin.

Only what the compiler was seen to refuse is an error; a rule of whole tiles would be simpler and flag kernels that
run.  Each rule was checked by ahead-of-time compilation for v5e, v5p, v6e and v7x (libtpu 0.0.50.1, jax 0.12.0.1),
which agreed on all of 36 slices, and on v5e with some 350 more: arrays of 64, 100, 128, 200, 256, 384 and 512
columns and of one dimension, of 32, 16, 8 and 4 bits.  What no rule here catches may still be refused, slices of
rows of more than 128 columns above all, where the compiler's choice of tiles decides.

A slice that takes a whole dimension is never split, and neither is one that ends where the dimension does.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from tpusim.findings import Finding, Kind, where_of
from tpusim.specs import SPARSE, MemorySpace

if TYPE_CHECKING:
    from tpusim.machine.dma import Copy
    from tpusim.machine.machine import Machine
    from tpusim.machine.memory import Region
    from tpusim.trace.log import EventLog

LANES = 128


class Rule(NamedTuple):
    """What the compiler wants, and whose words it is."""

    kind: Kind
    text: str
    origin: str


STRIDE = Rule(Kind.ALIGNMENT, "a copy's slice has no stride", "jax: Strided slices of references are unsupported.")
ROWS = Rule(
    Kind.ALIGNMENT,
    "rows are copied in whole 32-bit words: 16-bit types by 2 rows, 8-bit types by 4, 4-bit types by 8",
    "Mosaic: Offsets along tiled dimensions must be aligned to tiles.",
)
COLUMNS = Rule(
    Kind.ALIGNMENT,
    f"columns are copied in whole lanes of {LANES}",
    "Mosaic: The contiguous inner slice in the DMA transfer must be divisible by 512 bytes.",
)
ELEMENTS = Rule(
    Kind.ALIGNMENT,
    f"an array of one dimension is copied in whole rows of {4 * LANES} bytes",
    "Mosaic: The dynamic offset times the element size is not a multiple of the memory space word size.",
)
RULES = (
    STRIDE,
    ROWS,
    COLUMNS,
    ELEMENTS,
    Rule(
        Kind.CAPACITY,
        "buffers fit their memory with tile padding, VMEM within the kernel's limit, semaphores what a core has",
        "libtpu: CompileTimeScopedVmemOom; Allocation would exceed memory (space=vmem, smem, sflag).",
    ),
    Rule(
        Kind.MEMORY_SPACE,
        "a core loads and stores VMEM and SMEM; HBM is for copies",
        "jax: Loads are only allowed on VMEM and SMEM references.",
    ),
    Rule(
        Kind.SEMAPHORE_KIND,
        "copies count on DMA semaphores, signals on regular and barrier ones",
        "Mosaic: dma_wait requires a DMA semaphore.",
    ),
    Rule(
        Kind.COLLECTIVE_ID,
        "a kernel has a collective_id where it uses the barrier semaphore, and only there",
        "jax: collective_id has to be specified when using a custom barrier; unspecified or None when not.",
    ),
    Rule(
        Kind.UNSUPPORTED,
        "priorities are 0 or 1 and of local copies; add=True is no matter of a TensorCore",
        "jax: DMA with add=True is not supported; DMA start priority must be non-negative.",
    ),
    Rule(
        Kind.ROUTING,
        "remote copies on v5e go a power of two of hops along an axis",
        "JAX's documentation of distributed Pallas kernels, which allows offsets that are powers of two on v5e.",
    ),
)
"""Everything a run looks at that is the compiler's or the chip's rule and no matter of order."""

_SRC_REGION, _DST_REGION = attrgetter("src_region"), attrgetter("dst_region")


def lint_copies(machine: Machine, log: EventLog) -> list[Finding]:
    """A finding for each line that copies a slice the compiler refuses; one for each rule."""
    regions = {*map(_SRC_REGION, log.copies), *map(_DST_REGION, log.copies)}
    flawed = {region: flaws for region in regions if (flaws := _flaws(region))}
    found: dict[tuple[object, str, Rule], Finding] = {}
    for copy in log.copies if flawed else ():
        if copy.dst_sem.spec.is_of_pipeline:
            continue  # of blocks, the compiler cuts their copies itself
        if copy.src.spec.space in SPARSE or copy.dst.spec.space in SPARSE:
            continue  # without tiles; its own rules are not known here
        where = where_of(copy.site)
        for region in (copy.src_region, copy.dst_region):
            for rule, problem in flawed.get(region, ()):
                key = where, region.spec.name, rule
                if key not in found:
                    found[key] = _finding(machine, copy, region, rule, problem)
    return list(found.values())


def _flaws(region: Region) -> tuple[tuple[Rule, str], ...]:
    if region.flaws is None:
        region.flaws = () if region is region.spec.whole else tuple(broken(region))
    return region.flaws


def _finding(machine: Machine, copy: Copy, region: Region, rule: Rule, problem: str) -> Finding:
    return Finding(
        Kind.ALIGNMENT,
        f"{problem}; {rule.text}. ({rule.origin})",
        device=machine.coordinates(copy.core.device),
        argument=region.spec.name,
        where=where_of(copy.site),
        time_ps=copy.issued_ps,
    )


def broken(region: Region) -> Iterator[tuple[Rule, str]]:
    """The rules that a copy of this region breaks, each with what breaks it."""
    spec = region.spec
    if not region.size or (spec.space is MemorySpace.SMEM and len(spec.shape) > 1):
        return  # rows of scalar memory are not packed; what else it allows was not tried
    steps = [step for _, _, step in region.box]
    if any(step > 1 for step in steps):
        yield STRIDE, f"the slice of {spec.name} takes every {max(steps)}th element of a dimension"
        return
    packing = max(1, 32 // spec.bits)
    units = {1: ((ELEMENTS, LANES * packing),)}.get(len(spec.shape), ((ROWS, packing), (COLUMNS, LANES)))
    for dim, (rule, unit) in zip(range(len(spec.shape))[-2:], units, strict=False):
        start, size, _ = region.box[dim]
        is_whole = size % unit == 0 or start + size == spec.shape[dim]
        if start % unit or not is_whole:
            what = f"starts at {start}" if start % unit else f"takes {size} of {spec.shape[dim]}"
            yield rule, f"the slice of {spec.name} ({spec.dtype.name}{list(spec.shape)}) {what} in dimension {dim}"
