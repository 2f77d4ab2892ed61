"""Indices of all dimensions of a ref, and what a reshape does to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpusim.errors import OutOfBoundsError, ShapeMismatchError
from tpusim.machine.memory import Region

Index = int | tuple[int, int] | tuple[int, int, int]
Full = int | tuple[int, int, int]
Key = tuple[Full, ...]
"""An index of every dimension: an int drops it, (start, size, stride) keeps it."""


def everything(shape: tuple[int, ...]) -> Key:
    """The key of all there is."""
    return tuple((0, size, 1) for size in shape)


def full_key(region: Region, key: tuple[Index, ...]) -> Key:
    """A key with all its dimensions; raises ``OutOfBoundsError`` or ``ShapeMismatchError``."""
    shape = region.shape
    if len(key) > len(shape):
        raise ShapeMismatchError(f"{region}: {len(key)} indices for a ref of shape {shape}")
    parts: list[Full] = []
    for dim, size in enumerate(shape):
        part: Index = key[dim] if dim < len(key) else (0, size, 1)
        whole: Full = part if isinstance(part, int) else (part[0], part[1], part[2] if len(part) == 3 else 1)
        first, count, step = (whole, 1, 1) if isinstance(whole, int) else whole
        last = first + (count - 1) * step
        if first < 0 or first > size or (count and last >= size):
            text = region._key_text((part,))
            written = ", ".join([*(":" for _ in range(dim)), text])
            raise OutOfBoundsError(f"{region}[{written}]: index {text} leaves dimension {dim} of size {size}")
        parts.append(whole)
    return tuple(parts)


def slices_of(key: Key) -> tuple[Any, ...]:
    """The key as NumPy takes it."""
    return tuple(
        part if isinstance(part, int) else slice(part[0], part[0] + (part[1] - 1) * part[2] + 1 if part[1] else part[0],
                                                 part[2])
        for part in key
    )  # fmt: skip


def key_text(shape: tuple[int, ...], key: Key) -> str:
    """The key as its author would write it: without what is whole at its end."""
    parts = [":" if part == (0, size, 1) else Region._key_text((part,)) for part, size in zip(key, shape, strict=True)]
    while parts and parts[-1] == ":":
        parts.pop()
    return f"[{', '.join(parts)}]" if parts else ""


def reshape_groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The dimensions cut into the smallest groups with equal numbers of elements."""
    groups = []
    i = j = 0
    while i < len(old) or j < len(new):
        a, b = i, j
        left = right = 1
        while True:
            if left == right and (i > a or j > b) and not (left == 1 and (i == a or j == b)):
                break
            if (left <= right and i < len(old)) or j == len(new):
                if i == len(old):
                    break
                left *= old[i]
                i += 1
            else:
                right *= new[j]
                j += 1
        groups.append((old[a:i], new[b:j]))
    return groups


def box_around(indices: tuple[np.ndarray[Any, Any], ...]) -> list[Full]:
    """For each dimension (start, size, stride) of the smallest box that holds all elements."""
    parts: list[Full] = []
    for index in indices:
        found = np.unique(index)
        if not len(found):
            return [(0, 0, 1) for _ in indices]
        steps = np.diff(found)
        even = len(steps) > 0 and bool((steps == steps[0]).all())
        first, last = int(found[0]), int(found[-1])
        parts.append((first, len(found), int(steps[0])) if even else (first, last - first + 1, 1))
    return parts
