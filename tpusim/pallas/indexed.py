"""Refs indexed by a list: what SparseCores gather from and scatter to, one row (or other slice) an index."""

from __future__ import annotations

from typing import Any, TypeGuard, cast

import numpy as np

from tpusim.errors import OutOfBoundsError
from tpusim.machine.memory import Region, element_bits
from tpusim.pallas.keys import everything
from tpusim.pallas.views import ViewRegion, covered, places


class Indexed(ViewRegion):
    """Those indices of one dimension of a region that a list names, in its order; one may stand there twice.

    ``chosen``: which places of the list mean anything.  The others count with their bytes, as a wait does not know
    them, but nothing is read or written there.
    """

    __slots__ = ("chosen", "different", "dim", "indices", "length")

    def __init__(
        self, parent: Region, dim: int, indices: np.ndarray[Any, Any], chosen: np.ndarray[Any, Any] | None = None
    ) -> None:
        extent, length = parent.shape[dim], len(indices)
        if chosen is not None:
            indices = indices[chosen]
        wrong = indices[(indices < 0) | (indices >= extent)]
        if wrong.size:
            raise OutOfBoundsError(f"{parent}: index {wrong[0]} of a list leaves dimension {dim} of size {extent}")
        different = np.unique(indices)
        low, high = (int(different[0]), int(different[-1])) if different.size else (0, -1)
        key = list(everything(parent.shape))
        key[dim] = (low, high - low + 1, 1)
        shape = (*parent.shape[:dim], length, *parent.shape[dim + 1 :])
        dtype = parent.dtype if isinstance(parent, ViewRegion) else parent.spec.dtype
        super().__init__(parent, covered(parent, tuple(key)), shape, dtype, f"[{len(indices)} indices]")
        self.chosen = chosen
        self.dim = dim
        self.indices = indices
        self.different = frozenset(different.tolist())
        self.has_holes = len(different) < high - low + 1 or getattr(parent, "has_holes", False)
        self.dense = self.dense and not self.has_holes
        self.length = length
        self.wire_bytes = self.wire_bytes_at(self.spec.tiling.short_run_bytes)

    def wire_bytes_at(self, short: int) -> int:
        """Whole granules of each row that is chosen: streams have no ``short`` runs."""
        granule = self.spec.tiling.granule_bytes
        row_bytes = -(-self.size * element_bits(self.dtype) // (8 * max(1, self.length)))
        return len(self.indices) * -(-row_bytes // granule) * granule

    @property
    def _at(self) -> tuple[Any, ...]:
        return (*(slice(None),) * self.dim, self.indices)

    @property
    def _among(self) -> tuple[Any, ...]:
        return (*(slice(None),) * self.dim, self.chosen)

    def _meant(self, value: Any) -> Any:
        return value if self.chosen is None else np.broadcast_to(value, self.shape)[self._among]

    def overlaps(self, other: Region) -> bool:
        """Whether the two share an element."""
        if self._is_beside(other):
            return not self.different.isdisjoint(other.different)
        return super().overlaps(other)

    def is_within(self, outer: Region) -> bool:
        """Whether every element of this region is one of ``outer``."""
        return self.different <= outer.different if self._is_beside(outer) else super().is_within(outer)

    def _is_beside(self, other: Region) -> TypeGuard[Indexed]:
        return isinstance(other, Indexed) and other.parent is self.parent and other.dim == self.dim

    def places(self) -> np.ndarray[Any, Any]:
        """Those of the parent, one after the other."""
        return np.take(places(self.parent), self.indices, self.dim + 1)

    def read(self, array: np.ndarray[Any, Any]) -> Any:
        """Gather."""
        found = self.parent.read(array)[self._at]
        if self.chosen is None:
            return found
        values = np.zeros(self.shape, found.dtype)
        values[self._among] = found
        return values

    def write(self, array: np.ndarray[Any, Any], value: Any) -> None:
        """Scatter; of an index that stands there twice the last value stays."""
        whole = self._whole(array)
        whole[self._at] = self._meant(value)
        self._put(array, whole)

    def add(self, array: np.ndarray[Any, Any], value: Any) -> None:
        """Scatter sums; an index that stands there twice gets both."""
        whole = self._whole(array)
        np.add.at(whole, self._at, self._meant(value))
        self._put(array, whole)

    def _whole(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        whole: np.ndarray[Any, Any] = self.parent.read(array)
        return whole if np.may_share_memory(whole, array) else np.array(whole)

    def _put(self, array: np.ndarray[Any, Any], whole: np.ndarray[Any, Any]) -> None:
        if not np.may_share_memory(whole, array):
            self.parent.write(array, whole)


def indexed(region: Region, dim: int, indices: Any, ignored: int | None = None) -> Region:
    """The part of a region that a list of indices along a dimension names, but for those that are ``ignored``."""
    listed = np.array(indices, np.int64)
    return _kept(region, dim, listed, None if ignored is None else listed != ignored)


def beside(region: Region, dim: int, listed: Region) -> Region:
    """The part of a region along a dimension that a copy to or from an indexed one reaches."""
    chosen = cast(Indexed, listed).chosen
    return region if chosen is None else _kept(region, dim, np.arange(region.shape[dim]), chosen)


def _kept(region: Region, dim: int, listed: np.ndarray[Any, Any], chosen: np.ndarray[Any, Any] | None) -> Region:
    subs: dict[Any, Region] = cast(Any, region.subs)  # keys of their own kind
    if chosen is not None and chosen.all():
        chosen = None
    key = (Indexed, dim, listed.tobytes(), None if chosen is None else chosen.tobytes())
    found = subs.get(key)
    if found is None:
        found = subs[key] = Indexed(region, dim, listed, chosen)
    return found


RUNTIME: dict[str, Any] = {"indexed": indexed, "beside": beside}
"""Names that generated code may use."""
