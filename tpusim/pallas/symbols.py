"""What refs are while a kernel is lowered: names with a place in the buffer tables, and index expressions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tpusim.pallas import internals
from tpusim.specs import MemorySpace, SemaphoreType

Part = str | tuple[str, str, str]
"""One dimension of an index: an expression (drops it), or expressions of start, size and stride."""


class View(NamedTuple):
    """A ref seen otherwise: a function of `tpusim.pallas.views` and its argument."""

    function: str
    argument: Any


Step = list[Part] | View
"""What is done to a ref, one after the other: an index of it, or another view."""


class TransformError(Exception):
    """A view of a ref that has no model here; the text names it."""


@dataclass(frozen=True, eq=False)
class RefSymbol:
    """A buffer argument of the kernel; ``key``: it holds the words of typed PRNG keys of that kind."""

    slot: int
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    space: MemorySpace
    key: str | None = None


@dataclass(frozen=True, eq=False)
class SemaphoreSymbol:
    """A semaphore argument; for a barrier semaphore ``tag`` says which."""

    slot: int
    name: str
    shape: tuple[int, ...]
    kind: SemaphoreType
    tag: Any = None


def resolve_ref(ref: Any, integer: Callable[[Any], str]) -> tuple[RefSymbol | SemaphoreSymbol, list[Step]]:
    """The buffer or semaphores behind a ref operand, and what is done to it, one after the other.

    ``integer`` gives the expression of a dynamic index.  Raises :class:`TransformError`.
    """
    transforms: list[Any] = []
    while isinstance(ref, internals.TransformedRef):
        if isinstance(ref.ref, tuple | list):
            raise TransformError("a choice between refs")
        transforms = [*ref.transforms, *transforms]
        ref = ref.ref
    if isinstance(ref, ViewSymbol):
        return ref.base, [*ref.keys, *index_parts(transforms, integer)]
    if not isinstance(ref, RefSymbol | SemaphoreSymbol):
        raise TransformError(f"a ref of type {type(ref).__name__}")
    return ref, index_parts(transforms, integer)


@dataclass(frozen=True, eq=False)
class ViewSymbol:
    """A part of a buffer that was given a name of its own; its indices are already expressions."""

    base: RefSymbol | SemaphoreSymbol
    keys: list[Step]


def index_parts(transforms: Any, integer: Callable[[Any], str]) -> list[Step]:
    """The steps of a chain of transforms."""
    keys: list[Step] = []
    for transform in transforms:
        if not isinstance(transform, internals.NDIndexer):
            view = internals.view_of(transform)
            if view is None:
                raise TransformError(f"a {type(transform).__name__} of a ref")
            keys += [View(*view)] if view[0] else []
            continue
        key: list[Part] = []
        for index in transform.indices:
            if isinstance(index, internals.Slice):
                key.append((integer(index.start), integer(index.size), integer(index.stride)))
            elif getattr(index, "shape", ()) != ():
                raise TransformError("a ref indexed with an array")
            else:
                key.append(integer(index))
        if all(isinstance(part, tuple) and part[0] == "0" and part[2] == "1" for part in key) and [
            part[1] for part in key if isinstance(part, tuple)
        ] == [str(dim) for dim in transform.shape]:
            continue  # the whole of it
        keys.append(key)
    return keys


def key_code(key: list[Part]) -> str:
    """The tuple expression that `Region.sub` takes."""
    parts = [f"({', '.join(part)})" if isinstance(part, tuple) else part for part in key]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def region_code(whole: str, steps: list[Step]) -> str:
    """The expression of a region."""
    for step in steps:
        if isinstance(step, View):
            whole = f"{step.function}({whole}, {step.argument!r})"
        else:
            whole += f".sub({key_code(step)})"
    return whole


def compose(steps: list[Step]) -> list[Part]:
    """Indices taken one after the other as one; raises :class:`TransformError` for another view."""
    parts: list[Part] | None = None
    for step in steps:
        if isinstance(step, View):
            raise TransformError(f"semaphores that are {step.function}")
        if parts is None:
            parts = list(step)
            continue
        rest = iter(step)
        parts = [_within(part, next(rest)) if isinstance(part, tuple) else part for part in parts]
    return parts or []


def _within(outer: tuple[str, str, str], inner: Part) -> Part:
    start, _, stride = outer
    scaled = "({})" if stride == "1" else f"({{}}) * ({stride})"
    first = inner if isinstance(inner, str) else inner[0]
    moved = scaled.format(first) if start == "0" else f"({start}) + {scaled.format(first)}"
    if isinstance(inner, str):
        return inner if (start, stride) == ("0", "1") else moved
    return moved, inner[1], inner[2] if stride == "1" else f"({inner[2]}) * ({stride})"


def dynamic_names(keys: list[Step]) -> list[str]:
    """The variables that index expressions depend on."""
    text = " ".join(key_code(key) for key in keys if not isinstance(key, View))
    return sorted(set(re.findall(r"\b[a-z]\w*\b", text)) - {"int", "rt"})


def whole_shape(symbol: RefSymbol, keys: list[Step]) -> tuple[int, ...] | None:
    """The shape of what indices take of a buffer, if that is all of it; else ``None``."""
    if not keys:
        return symbol.shape
    (key, *rest) = keys
    if rest or isinstance(key, View) or len(key) != len(symbol.shape):
        return None
    shape = []
    for part, extent in zip(key, symbol.shape, strict=True):
        if part == ("0", str(extent), "1"):
            shape.append(extent)
        elif part != "0" or extent != 1:
            return None
    return tuple(shape)


def scalar_index(symbol: RefSymbol, keys: list[Step]) -> str | None:
    """The expression of the index, if indices take one element of a buffer; else ``None``."""
    if len(keys) != 1 or isinstance(keys[0], View) or len(keys[0]) != len(symbol.shape):
        return None
    return None if any(isinstance(part, tuple) for part in keys[0]) else key_code(keys[0])
