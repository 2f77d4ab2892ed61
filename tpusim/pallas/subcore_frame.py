"""What generated code of a vector subcore calls: vectors picked out of its VMEM by indices or a mask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tpusim.errors import OutOfBoundsError
from tpusim.launch import entry_barrier
from tpusim.machine.core import Core
from tpusim.machine.memory import Buffer, Region, sentinel


class SubcoreOperations:
    """The part of :class:`tpusim.pallas.frame.Frame` that only vector subcores use."""

    __slots__ = ()

    core: Core

    def known(self, value: Any, what: Any = "") -> Any:
        """A value that the program needs."""
        raise NotImplementedError

    def peek(self, buffer: Buffer, region: Region) -> Any:
        """The values of a region, at no cost."""
        raise NotImplementedError

    def load_view(self, buffer: Buffer, region: Region, site: Any) -> Any:
        """The values of a region of any kind."""
        raise NotImplementedError

    def load_gather(self, buffer: Buffer, region: Region, indices: Sequence[Any], mask: Any, site: Any) -> Any:
        """One element for each index, where the mask has it; elsewhere what memory never written holds."""
        values = self.known(self.load_view(buffer, region, site), region)
        places, chosen = self._places(region, indices, mask)
        found = np.full(chosen.shape, sentinel(values.dtype), values.dtype)
        found[chosen] = values[places]
        return found

    def load_expanded(self, buffer: Buffer, region: Region, mask: Any, site: Any) -> Any:
        """The first elements of the region, one for each place the mask has; elsewhere what fresh memory holds."""
        chosen = np.asarray(self.known(mask), np.bool_)
        values = self.known(self.load_view(buffer, region.sub(((0, int(chosen.sum())),)), site), region)
        found = np.full(chosen.shape, sentinel(values.dtype), values.dtype)
        found[chosen] = values
        return found

    def store_scatter(
        self, buffer: Buffer, region: Region, indices: Sequence[Any], value: Any, mask: Any, adds: bool, site: Any
    ) -> None:
        """Store, or add, one element for each index where the mask has it."""
        places, chosen = self._places(region, indices, mask)
        whole = self._begin_store(buffer, region, site)
        picked = np.asarray(self.known(value))[chosen]
        if adds:
            np.add.at(whole, places, picked)
        else:
            whole[places] = picked
        region.write(buffer.array, whole)  # type: ignore[arg-type]  # there is data

    def store_compressed(self, buffer: Buffer, region: Region, value: Any, mask: Any, adds: bool, site: Any) -> None:
        """Store, or add, the elements under the mask at the front of the region."""
        picked = np.asarray(self.known(value))
        if mask is not None:
            picked = picked[np.asarray(self.known(mask), np.bool_)]
            region = region.sub(((0, len(picked)),))
        whole = self._begin_store(buffer, region, site)
        region.write(buffer.array, whole + picked if adds else picked)  # type: ignore[arg-type]

    def subcore_barrier(self, subcores: int, site: Any) -> Iterator[None]:
        """All vector subcores of this SparseCore meet; yields where the core must be suspended."""
        core = self.core
        machine = core.machine
        of_core = machine.group // machine.cores_of_device[0]
        first = core.device - core.device % of_core
        members = range(first, first + of_core, of_core // subcores)
        return entry_barrier(core, site, members, "subcore_barrier")

    def _begin_store(self, buffer: Buffer, region: Region, site: Any) -> Any:
        self.core.store(buffer, region, site)
        return np.array(self.known(self.peek(buffer, region), region))

    def _places(self, region: Region, indices: Sequence[Any], mask: Any) -> tuple[tuple[Any, ...], Any]:
        """The indices under the mask, in every dimension, and the mask."""
        listed = [np.asarray(self.known(index)) for index in indices]
        chosen = np.ones(listed[0].shape, np.bool_) if mask is None else np.asarray(self.known(mask), np.bool_)
        places = tuple(index[chosen] for index in listed)
        for dim, (index, size) in enumerate(zip(places, region.shape, strict=True)):
            wrong = index[(index < 0) | (index >= size)]
            if wrong.size:
                raise OutOfBoundsError(f"{region}: index {wrong[0]} leaves dimension {dim} of size {size}")
        return places, chosen
