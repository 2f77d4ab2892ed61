"""Lower bounds of collectives with a root, and of barriers; derived as in :mod:`tpusim.bounds.operations`.

``scatter`` and ``gather`` are :func:`~tpusim.bounds.operations.transfers` from or to the root, since every byte
is a byte of its own.  A broadcast may copy on the way, and a reduction may add on the way, so for them a set of
chips needs the array only once, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpusim.bounds.certificate import Bound
from tpusim.bounds.operations import Rates, chip_counts, combine, crossings_of, cuts_without, far_bound, transfers
from tpusim.topology import Slice, distance, links_out_of
from tpusim.units import PS_PER_S, Duration


def broadcast(slice_: Slice, devices: Sequence[int], root: int, array_bytes: int, rates: Rates) -> Duration:
    """Every device ends with the ``array_bytes`` of ``root``, one of the devices.

    Every set of chips without the root that holds a device takes the array in at least once, the root's chip
    sends it out at least once, and the last byte still has its hops to the farthest device to go.  Between the
    dies of the root's own chip nothing is counted.
    """
    counts = chip_counts(slice_, devices)
    home = slice_.chip_of(root)
    others = [chip for chip in counts if chip != home]
    if not others or array_bytes == 0:
        return Duration(rates.start_latency_ps if len(devices) > 1 and array_bytes else 0)
    edges = {_ports(slice_, chip) for chip in (*others, home)} | set(cuts_without(slice_, counts, home))
    bounds = list(crossings_of(((array_bytes, links) for links in edges), rates))
    far = max(distance(slice_, home, chip) for chip in others)
    ports = _ports(slice_, home)
    busy = array_bytes * PS_PER_S // (ports * rates.link_bytes_per_s)
    latency = rates.start_latency_ps + far * rates.hop_latency_ps
    return combine(*bounds, far_bound(latency, busy, array_bytes, ports, far))


def reduce(slice_: Slice, devices: Sequence[int], root: int, array_bytes: int, rates: Rates) -> Duration:
    """``root`` ends with the sum of the arrays of all devices: a :func:`broadcast` run backwards.

    Every set without the root may add up what it holds, but sends at least one array out; the root's chip takes
    at least one in.
    """
    return broadcast(slice_, devices, root, array_bytes, rates)


def scatter(slice_: Slice, devices: Sequence[int], root: int, shard_bytes: int, rates: Rates) -> Duration:
    """``root`` sends every other device a shard of its own."""
    return transfers(slice_, ((root, device, shard_bytes) for device in devices), rates)


def gather(slice_: Slice, devices: Sequence[int], root: int, shard_bytes: int, rates: Rates) -> Duration:
    """``root`` receives the shard of every other device."""
    return transfers(slice_, ((device, root, shard_bytes) for device in devices), rates)


def barrier(slice_: Slice, devices: Sequence[int], rates: Rates) -> Duration:
    """No device goes on before all have arrived: of any two, each has to hear of the other.

    The quickest thing that can be heard is a signal, or a copy where that starts sooner, over the way between
    the two devices that are farthest apart.
    """
    counts = list(chip_counts(slice_, devices))
    if len(devices) < 2:
        return Duration(0)
    quickest = min(rates.signal_latency_ps, rates.start_latency_ps)
    first = max(counts, key=lambda chip: distance(slice_, counts[0], chip))
    far = max(distance(slice_, first, chip) for chip in counts)
    return Bound(
        quickest + far * rates.hop_latency_ps, 0, "two devices are {} hops apart and must hear of each other", far
    )


def _ports(slice_: Slice, chip: int) -> int:
    return len(links_out_of(slice_, chip))
