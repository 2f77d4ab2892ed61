"""Lower bounds of operations on one mesh: what a kernel file's ``lower_bound`` is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpusim.bounds import operations, rooted
from tpusim.bounds.certificate import Bound
from tpusim.bounds.operations import Rates
from tpusim.chips import ChipSpec
from tpusim.topology import Slice, links_out_of
from tpusim.units import PS_PER_S, Duration


@dataclass(frozen=True)
class MeshBounds:
    """A mesh on a slice, with the lower bounds of what its devices may do together.

    ``devices``: the slice's device at each row-major mesh position.  Sizes are bytes of one device.
    """

    slice: Slice
    chip: ChipSpec
    axis_sizes: Mapping[str, int]
    devices: tuple[int, ...]

    @property
    def num_devices(self) -> int:
        """Devices of the mesh."""
        return len(self.devices)

    @property
    def rates(self) -> Rates:
        """The chip's rates for bf16."""
        return Rates.of(self.chip)

    def permute(self, shard_bytes: int) -> Duration:
        """Every device sends a shard to the next one in mesh order, the last to the first."""
        after = (*self.devices[1:], self.devices[0])
        return operations.permute(self.slice, zip(self.devices, after, strict=True), shard_bytes, self.rates)

    def all_gather(self, shard_bytes: int) -> Duration:
        """Every device ends with the shards of all."""
        return operations.all_gather(self.slice, self.devices, shard_bytes, self.rates)

    def reduce_scatter(self, shard_bytes: int) -> Duration:
        """Every device ends with the sum over all of its shard of ``shard_bytes``."""
        return operations.reduce_scatter(self.slice, self.devices, shard_bytes, self.rates)

    def all_reduce(self, array_bytes: int) -> Duration:
        """Every device ends with the sum over all of arrays of ``array_bytes``."""
        return operations.all_reduce(self.slice, self.devices, array_bytes, self.rates)

    def all_to_all(self, pair_bytes: int) -> Duration:
        """Every device sends ``pair_bytes`` to every other."""
        return operations.all_to_all(self.slice, self.devices, pair_bytes, self.rates)

    def ragged_all_to_all(self, sizes: Sequence[Sequence[int]]) -> Duration:
        """Device i (a mesh position) sends ``sizes[i][j]`` bytes to device j."""
        at = self.devices
        moves = [(at[i], at[j], int(size)) for i, row in enumerate(sizes) for j, size in enumerate(row)]
        return operations.transfers(self.slice, moves, self.rates)

    def collective_permute(self, pairs: Iterable[tuple[int, int]], shard_bytes: int) -> Duration:
        """For each ``(source, target)`` of mesh positions a shard moves."""
        numbers = ((self.devices[source], self.devices[target]) for source, target in pairs)
        return operations.permute(self.slice, numbers, shard_bytes, self.rates)

    def broadcast(self, array_bytes: int, root: int = 0) -> Duration:
        """Every device ends with the array of the device at mesh position ``root``."""
        return rooted.broadcast(self.slice, self.devices, self.devices[root], array_bytes, self.rates)

    def reduce(self, array_bytes: int, root: int = 0) -> Duration:
        """The device at mesh position ``root`` ends with the sum of the arrays of all."""
        return rooted.reduce(self.slice, self.devices, self.devices[root], array_bytes, self.rates)

    def scatter(self, shard_bytes: int, root: int = 0) -> Duration:
        """The device at mesh position ``root`` sends every other a shard."""
        return rooted.scatter(self.slice, self.devices, self.devices[root], shard_bytes, self.rates)

    def gather(self, shard_bytes: int, root: int = 0) -> Duration:
        """The device at mesh position ``root`` receives the shard of every other."""
        return rooted.gather(self.slice, self.devices, self.devices[root], shard_bytes, self.rates)

    def barrier(self) -> Duration:
        """No device goes on before all have arrived."""
        return rooted.barrier(self.slice, self.devices, self.rates)

    def halo_exchange(self, sent_bytes: int) -> Duration:
        """Every device sends ``sent_bytes`` in all to its neighbours: through the links it has, one hop."""
        if self.num_devices == 1 or sent_bytes == 0:
            return Duration(0)
        rates = self.rates
        worst = 0
        for device in self.devices:
            degree = len(links_out_of(self.slice, self.slice.chip_of(device)))
            rate = degree * rates.link_bytes_per_s + rates.die_bytes_per_s
            if rate:
                worst = max(worst, sent_bytes * PS_PER_S // rate)
        text = "a device sends {} bytes to its neighbours by all links it has"
        return Bound(rates.start_latency_ps, worst, text, sent_bytes)

    def local_copy(self, read_bytes: int, write_bytes: int) -> Duration:
        """HBM traffic of one device, reads and writes together."""
        return operations.local_copy(read_bytes + write_bytes, self.rates)

    def matmul(self, m: int, k: int, n: int, dtype: Any) -> Duration:
        """``(m, k) @ (k, n)`` on one device: arithmetic alone."""
        kind = "int8" if np.dtype(dtype).kind in "iu" else "bf16"
        rates = Rates.of(self.chip, "int8" if kind == "int8" else "bf16")
        return operations.matmul(m, k, n, np.dtype(dtype).itemsize, rates, in_hbm=False)
