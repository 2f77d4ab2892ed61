"""Lower bounds: times that no program can beat on a slice, whatever its algorithm.

**How they are derived.**  For any set X of chips, what must cross into X or out of it goes through the
physical links at its edge, so ``time >= bytes / (links x rate of a link)``.  X is taken as each single chip
(its degree: a corner of a slice without wraparound has fewer links), and along each axis as every prefix, or
every arc of up to half the axis where it wraps (the bisection among them).  Links of the whole slice
count, since a copy may pass chips outside the mesh.  Before the first byte moves a remote copy pays its
start latency; after the last byte has left, it still has its hops to go.  So each bound is the larger of

- ``start + crossing bytes / (links x rate) + one hop``, for the worst X, and
- ``start + bytes of one pair / (links of its source x rate) + its hops``, for a pair that is far apart.

**What is left out, so that a bound never lies above a possible time:** issue costs, waits and barriers,
the memories at both ends, the rate of a DMA engine (a program may use many), and the latency of a
die-to-die link.  Two devices on one chip count as one place for what crosses ICI, because one may pass on
what the other received.  Data is opaque (no compression), and only devices of the mesh compute (no reduction
inside the network).  Durations are rounded *down*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np

from tpusim.bounds.certificate import Bound, crossing
from tpusim.errors import OptionError
from tpusim.topology import Slice, distance, links_out_of
from tpusim.units import PS_PER_S, Duration, format_bytes, format_rate, ps_from_seconds

if TYPE_CHECKING:
    from tpusim.chips import ChipSpec

_ALL_ARCS_UP_TO = 32
"""Longest wrapped axis of which arcs of every length are tried; longer ones are cut in halves only."""


@dataclass(frozen=True)
class Rates:
    """The numbers of a chip that bounds rest on.

    ``link_bytes_per_s`` is one ICI link, one way; ``die_bytes_per_s`` the die-to-die link, 0 where there is
    none; ``hbm_bytes_per_s`` (reads and writes together) and ``flops_per_s`` are those of one device;
    ``start_latency_ps`` of a remote copy, ``local_start_latency_ps`` of the quickest local one.
    """

    link_bytes_per_s: int
    hbm_bytes_per_s: int
    flops_per_s: int
    hop_latency_ps: int
    start_latency_ps: int
    local_start_latency_ps: int = 0
    die_bytes_per_s: int = 0
    signal_latency_ps: int = 0
    """Of a semaphore signal to another device."""

    @classmethod
    def of(cls, chip: ChipSpec, dtype: Literal["bf16", "int8", "fp8"] = "bf16") -> Rates:
        """The rates of a simulated chip, ``flops_per_s`` for matmuls of ``dtype``.

        That is the largest of the datasheet's peaks for it and for bf16, and of clock times MXUs, which need
        not agree; a megacore device computes with both cores.
        """
        die = chip.ici.die_to_die_bandwidth
        by_clock = chip.clock_hz * chip.core.mxu_flops_per_cycle.integer * chip.cores_per_device
        core = chip.core
        own_peak = {"bf16": core.peak_bf16, "int8": core.peak_int8, "fp8": core.peak_fp8}[dtype].integer
        peak = max(core.peak_bf16.integer, own_peak) // core.devices_per_chip.integer
        local = (
            latency.number
            for name, latency in chip.dma
            if name.startswith("start_latency_") and name != "start_latency_remote"
        )
        return cls(
            link_bytes_per_s=chip.ici.link_bandwidth.integer,
            hbm_bytes_per_s=chip.hbm.bandwidth.integer,
            flops_per_s=max(by_clock, peak),
            hop_latency_ps=ps_from_seconds(chip.ici.hop_latency.number),
            start_latency_ps=ps_from_seconds(chip.dma.start_latency_remote.number),
            local_start_latency_ps=ps_from_seconds(min(local)),
            die_bytes_per_s=die.integer if die is not None else 0,
            signal_latency_ps=ps_from_seconds(chip.ici.signal_latency.number),
        )


def combine(*durations: int) -> Duration:
    """The largest of several bounds, with its certificate if it has one; nothing is bounded by zero."""
    largest = max(durations, default=0)
    return largest if isinstance(largest, Duration) else Duration(largest)


def local_copy(size_bytes: int, rates: Rates, *, hbm_passes: int = 1) -> Duration:
    """Bytes moved within one device: start latency plus HBM traffic.

    ``hbm_passes``: how often each byte meets HBM, 1 for HBM <-> VMEM, 2 for HBM -> HBM, 0 within VMEM.
    """
    if size_bytes == 0:
        return Duration(0)
    busy = _time_ps(size_bytes * hbm_passes, rates.hbm_bytes_per_s)
    text = f"{format_bytes(size_bytes)} move through HBM of {format_rate(rates.hbm_bytes_per_s)}"
    return Bound(rates.local_start_latency_ps, busy, text)


def matmul(
    m: int, k: int, n: int, itemsize: int, rates: Rates, *, out_itemsize: int | None = None, in_hbm: bool = True
) -> Duration:
    """``(m, k) @ (k, n)`` on one device: the larger of arithmetic and HBM traffic.

    ``2 m k n`` operations at peak; each operand read once and the result written once, where ``in_hbm``.
    """
    out = itemsize if out_itemsize is None else out_itemsize
    traffic = (m * k + k * n) * itemsize + m * n * out if in_hbm else 0
    arithmetic = f"2 x {m} x {k} x {n} operations at {rates.flops_per_s / 1e12:.1f} TFLOP/s"
    through_hbm = f"operands and result, {format_bytes(traffic)}, through HBM of {format_rate(rates.hbm_bytes_per_s)}"
    return combine(
        Bound(0, _time_ps(2 * m * k * n, rates.flops_per_s), arithmetic),
        Bound(0, _time_ps(traffic, rates.hbm_bytes_per_s), through_hbm),
    )


def all_gather(slice_: Slice, devices: Sequence[int], shard_bytes: int, rates: Rates) -> Duration:
    """Every device ends with the ``shard_bytes`` of every other.

    A set with k of the P devices must take in the P - k shards from outside, at least once, and send its
    own k out.
    """
    return _exchange(slice_, devices, shard_bytes, rates, lambda k, p: max(k, p - k) * shard_bytes)


def reduce_scatter(slice_: Slice, devices: Sequence[int], shard_bytes: int, rates: Rates) -> Duration:
    """Every device ends with ``shard_bytes`` of the sum over all devices.

    The mirror image of :func:`all_gather`: a set with k devices may add up what it holds for the others,
    but must send one partial sum for each of their P - k shards, and take in one for each of its own k.
    """
    return _exchange(slice_, devices, shard_bytes, rates, lambda k, p: max(k, p - k) * shard_bytes)


def all_reduce(slice_: Slice, devices: Sequence[int], array_bytes: int, rates: Rates) -> Duration:
    """Every device ends with the sum, ``array_bytes`` long, over all devices.

    Every set takes in and sends out the array at least once.  All chips together send it at least
    2 (C - 1) times, C being the chips used: until the first of them knows a sum, each other one must have
    sent something towards it; after that, each other one must still receive.  On a ring this is twice
    the bound of :func:`reduce_scatter`.  On a line it is not: the ends need only one pass each way.
    """
    counts = chip_counts(slice_, devices)
    bound = _exchange(slice_, devices, array_bytes, rates, lambda k, p: array_bytes)
    ports = sum(len(links_out_of(slice_, chip)) for chip in counts)
    sent = 2 * (len(counts) - 1) * array_bytes
    if sent == 0:
        return bound
    busy = _time_ps(sent, ports * rates.link_bytes_per_s)
    latency = rates.start_latency_ps + rates.hop_latency_ps
    text = "all {} chips together send the array {} times over {} links"
    return combine(bound, Bound(latency, busy, text, len(counts), 2 * (len(counts) - 1), ports))


def all_to_all(slice_: Slice, devices: Sequence[int], pair_bytes: int, rates: Rates) -> Duration:
    """Every device sends ``pair_bytes`` to every other, different bytes to each.

    A set with k of the P devices sends out, and takes in, ``k (P - k) pair_bytes``.
    """
    return _exchange(slice_, devices, pair_bytes, rates, lambda k, p: k * (p - k) * pair_bytes)


def permute(slice_: Slice, pairs: Iterable[tuple[int, int]], size_bytes: int, rates: Rates) -> Duration:
    """Every ``(source, target)`` of device numbers moves ``size_bytes``; see :func:`transfers`."""
    return transfers(slice_, ((source, target, size_bytes) for source, target in pairs), rates)


def halo_exchange(
    slice_: Slice,
    devices: Sequence[int],
    axis_sizes: Sequence[int],
    halo_bytes: int | Sequence[int],
    rates: Rates,
    *,
    periodic: bool = True,
) -> Duration:
    """Every device sends a halo to its two neighbours along every mesh axis; see :func:`transfers`.

    ``devices`` in row-major order of the mesh, ``halo_bytes`` for each axis or one for all; where not
    ``periodic``, the first and last of an axis have no neighbour beyond.
    """
    if prod(axis_sizes) != len(devices):
        raise OptionError(f"A mesh {tuple(axis_sizes)} has {prod(axis_sizes)} devices, not {len(devices)}.")
    sizes = [halo_bytes] * len(axis_sizes) if isinstance(halo_bytes, int) else halo_bytes
    if len(sizes) != len(axis_sizes):
        raise OptionError(f"halo_bytes has {len(sizes)} sizes for {len(axis_sizes)} mesh axes.")
    mesh = np.asarray(devices).reshape(axis_sizes)
    moves: list[tuple[int, int, int]] = []
    for axis, halo in enumerate(sizes):
        lines = np.moveaxis(mesh, axis, 0)
        if not periodic:
            sources, targets = lines[:-1], lines[1:]
        else:
            sources, targets = lines, np.roll(lines, -1, axis=0)
        for a, b in zip(sources.ravel().tolist(), targets.ravel().tolist(), strict=True):
            moves += [(a, b, halo), (b, a, halo)]
    return transfers(slice_, moves, rates)


def transfers(slice_: Slice, moves: Iterable[tuple[int, int, int]], rates: Rates) -> Duration:
    """All of ``(source device, target device, bytes)``, at once and by any routes.

    Moves from a device to itself cost nothing.  Between two devices of one v7x chip, bytes may use the
    die-to-die link and the chip's ICI links.
    """
    between: Counter[tuple[int, int]] = Counter()
    dies: Counter[tuple[int, int]] = Counter()
    for source, target, size in moves:
        chips = slice_.chip_of(_checked(slice_, source)), slice_.chip_of(_checked(slice_, target))
        if source != target and size > 0:
            if chips[0] == chips[1]:
                dies[source, target] += size
            else:
                between[chips] += size
    bounds: list[Bound] = [_dies_bound(slice_, a, size, rates) for (a, _), size in dies.items()]
    leaving: Counter[int] = Counter()
    arriving: Counter[int] = Counter()
    for (source, target), size in between.items():
        leaving[source] += size
        arriving[target] += size
        ports = min(_degree(slice_, source), _degree(slice_, target))
        far = distance(slice_, source, target) * rates.hop_latency_ps
        busy = _time_ps(size, ports * rates.link_bytes_per_s)
        bounds.append(far_bound(rates.start_latency_ps + far, busy, size, ports, far // (rates.hop_latency_ps or 1)))
    crossings = [(size, _degree(slice_, chip)) for ends in (leaving, arriving) for chip, size in ends.items()]
    crossings += _cut_moves(slice_, between)
    bounds += crossings_of(crossings, rates)
    return combine(*bounds)


def _time_ps(amount: int, rate_per_s: int) -> int:
    return amount * PS_PER_S // rate_per_s if amount else 0


def _degree(slice_: Slice, chip: int) -> int:
    return len(links_out_of(slice_, chip))


def _checked(slice_: Slice, device: int) -> int:
    slice_.coords(device)
    return device


def chip_counts(slice_: Slice, devices: Sequence[int]) -> Counter[int]:
    """Chip -> how many of the devices are on it."""
    for device, times in Counter(devices).items():
        if times > 1:
            raise OptionError(f"Device {device} is in the mesh {times} times.")
    return Counter(slice_.chip_of(_checked(slice_, device)) for device in devices)


def _between_dies(slice_: Slice, device: int, size_bytes: int, rates: Rates) -> int:
    """Time for bytes that enter or leave one die by every link it reaches; 0 where HBM is shared."""
    if not slice_.has_die_links:
        return 0
    ici = _degree(slice_, slice_.chip_of(device)) * rates.link_bytes_per_s
    return _time_ps(size_bytes, ici + rates.die_bytes_per_s)


def crossings_of(crossings: Iterable[tuple[int, int]], rates: Rates) -> Iterator[Bound]:
    """Bounds from ``(bytes, links they must share)``."""
    latency = rates.start_latency_ps + rates.hop_latency_ps
    for size, links in crossings:
        if size:
            busy = _time_ps(size, links * rates.link_bytes_per_s)
            yield crossing(latency, busy, size, links, rates.link_bytes_per_s)


def _dies_bound(slice_: Slice, device: int, size_bytes: int, rates: Rates) -> Bound:
    busy = _between_dies(slice_, device, size_bytes, rates)
    text = "{} bytes must enter or leave one device by the link between the dies and the links of its chip"
    return Bound(rates.start_latency_ps, busy, text, size_bytes)


def far_bound(latency_ps: int, busy_ps: int, size_bytes: int, ports: int, hops: int) -> Bound:
    """Bytes that leave a chip and have a way to go."""
    text = "{} bytes leave a chip by {} links and have {} hops to go"
    return Bound(latency_ps, busy_ps, text, size_bytes, ports, hops)


def _exchange(
    slice_: Slice, devices: Sequence[int], pair_bytes: int, rates: Rates, needed: Callable[[int, int], int]
) -> Duration:
    """The bound of a collective in which every pair of devices exchanges something.

    ``needed(k, P)``: bytes that must cross, in the busier direction, the edge of a set with k of the P
    devices, ``0 < k < P``; ``pair_bytes``: what a device must send for one other device alone.
    """
    counts = chip_counts(slice_, devices)
    total = len(devices)
    if total < 2 or pair_bytes == 0:
        return Duration(0)
    crossings = {(held, _degree(slice_, chip)) for chip, held in counts.items()} | set(_cuts(slice_, counts))
    bounds = list(crossings_of(((needed(held, total), links) for held, links in crossings if 0 < held < total), rates))
    alone = needed(1, total)
    if slice_.has_die_links:
        bounds.append(
            _dies_bound(slice_, min(devices, key=lambda device: _degree(slice_, slice_.chip_of(device))), alone, rates)
        )
    else:
        bounds.append(_dies_bound(slice_, devices[0], 0, rates))
    source, target = _far_pair(slice_, list(counts))
    if source != target:
        busy = _time_ps(pair_bytes, _degree(slice_, source) * rates.link_bytes_per_s)
        hops = distance(slice_, source, target)
        latency = rates.start_latency_ps + hops * rates.hop_latency_ps
        bounds.append(far_bound(latency, busy, pair_bytes, _degree(slice_, source), hops))
    return combine(*bounds)


def _far_pair(slice_: Slice, chips: Sequence[int]) -> tuple[int, int]:
    """Two chips far apart: the farthest from the first one, and the farthest from that."""
    source = max(chips, key=lambda chip: distance(slice_, chips[0], chip))
    return source, max(chips, key=lambda chip: distance(slice_, source, chip))


def _arcs(slice_: Slice, axis: int) -> Iterator[tuple[list[int], int]]:
    """Sets of coordinates along an axis, with the links, one way, at the edge of each."""
    size = slice_.shape[axis]
    area = slice_.num_chips // size
    if not slice_.wraps[axis]:
        for end in range(1, size):
            yield list(range(end)), area
        return
    lengths = range(1, size // 2 + 1) if size <= _ALL_ARCS_UP_TO else (size // 2,)
    for length in lengths:
        for start in range(size):
            yield [(start + at) % size for at in range(length)], 2 * area


def _cuts(slice_: Slice, counts: Counter[int]) -> Iterator[tuple[int, int]]:
    """For every arc of every axis: the devices inside, and the links at its edge."""
    for axis in range(len(slice_.shape)):
        held = [0] * slice_.shape[axis]
        for chip, count in counts.items():
            held[slice_.chip_coords(chip)[axis]] += count
        for inside, edge in _arcs(slice_, axis):
            yield sum(held[at] for at in inside), edge


def cuts_without(slice_: Slice, counts: Counter[int], root: int) -> Iterator[int]:
    """For every arc of every axis, and what lies outside of it, that holds a device but not the root: its links."""
    for axis in range(len(slice_.shape)):
        held = {slice_.chip_coords(chip)[axis] for chip in counts}
        home = slice_.chip_coords(root)[axis]
        for inside, edge in _arcs(slice_, axis):
            without = held.intersection(inside) if home not in inside else held.difference(inside)
            if without:
                yield edge


def _cut_moves(slice_: Slice, between: Counter[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """For every arc of every axis: the bytes that leave it, those that enter it, and its links."""
    for axis in range(len(slice_.shape)):
        size = slice_.shape[axis]
        moved = np.zeros((size, size), dtype=np.int64)
        for (source, target), amount in between.items():
            moved[slice_.chip_coords(source)[axis], slice_.chip_coords(target)[axis]] += amount
        for inside, edge in _arcs(slice_, axis):
            outside = [at for at in range(size) if at not in inside]
            yield int(moved[np.ix_(inside, outside)].sum()), edge
            yield int(moved[np.ix_(outside, inside)].sum()), edge
