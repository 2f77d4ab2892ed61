"""A ref operand that is indexed by a list (another ref, or a vector), while a kernel is lowered."""

from __future__ import annotations

from typing import Any, NamedTuple

from tpusim.pallas import internals
from tpusim.pallas.block import Value
from tpusim.pallas.symbols import RefSymbol, TransformError, ViewSymbol


class IndexList(NamedTuple):
    """``base``: the ref without the list; ``dim``: which of its dimensions the list goes over, ``extent`` its size;
    ``length``: how many indices the list has; ``ignored``: the index that stands for none."""

    base: Any
    dim: int
    indices: Any
    length: int
    extent: int
    ignored: int | None


def index_list(ref: Any) -> IndexList | None:
    """The list that the last index of a ref holds, if it does; raises ``TransformError`` for what has no model."""
    if not isinstance(ref, internals.TransformedRef) or not ref.transforms:
        return None
    *before, last = ref.transforms
    if not isinstance(last, internals.NDIndexer) or last.int_indexer_shape == ():
        return None
    places = [place for place, index in enumerate(last.indices) if _is_list(index)]
    if len(places) != 1 or len(last.int_indexer_shape) != 1:
        raise TransformError("a ref indexed with several arrays, or with one that is no list")
    (place,) = places
    indices = last.indices[place]
    ignored = getattr(indices, "ignored_value", None)
    indices = getattr(indices, "values", indices)
    extent = int(last.shape[place])
    others = list(last.indices)
    others[place] = internals.Slice(0, extent, 1)
    base = internals.TransformedRef(ref.ref, (*before, internals.NDIndexer(tuple(others), last.shape, ())))
    dim = sum(isinstance(index, internals.Slice) for index in others[:place])
    return IndexList(base, dim, indices, int(last.int_indexer_shape[0]), extent, ignored)


def _is_list(index: Any) -> bool:
    if isinstance(index, Value):
        return not index.is_python
    if isinstance(index, RefSymbol | ViewSymbol | internals.TransformedRef):
        return True
    return hasattr(index, "ignored_value")  # plsc.Indices
