"""What varies: names with the values to try."""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tpusim.errors import OptionError

Point = dict[str, Any]
"""A value for each name of a space."""


@dataclass(frozen=True)
class Space:
    """The values to try, by name; a point takes one of each.

    Raises ``OptionError`` for a name without values, or with one value twice.
    """

    values: Mapping[str, Sequence[Any]]

    def __post_init__(self) -> None:
        if not self.values:
            raise OptionError("a sweep needs a parameter to vary, such as bm=128,256")
        for name, values in self.values.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise OptionError(f"{name}: a list of the values to try, not {values!r}")
            texts = [json.dumps(value, sort_keys=True, default=str) for value in values]
            if len(set(texts)) < len(texts):
                raise OptionError(f"{name}: the values {', '.join(texts)} hold one of them twice")

    def __len__(self) -> int:
        return prod(len(values) for values in self.values.values())

    def __iter__(self) -> Iterator[Point]:
        """All points; the last name varies fastest."""
        for choice in itertools.product(*self.values.values()):
            yield dict(zip(self.values, choice, strict=True))

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Space:
        """``["bm=128,256", "slice=v5e:2x2,v5e:4x4"]``: TOML values, and texts with or without quotes."""
        values: dict[str, list[Any]] = {}
        for text in texts:
            name, equals, rest = (part.strip() for part in text.partition("="))
            if not (name and equals and rest):
                raise OptionError(f"--param takes NAME=VALUE,VALUE such as bm=128,256, not {text!r}")
            if name in values:
                raise OptionError(f"--param {name} is given twice; put its values in one: {name}=VALUE,VALUE")
            values[name] = _values(name, rest)
        return cls(values)


def key_of(point: Mapping[str, Any]) -> str:
    """The text that names a point: JSON, names in order."""
    return json.dumps(dict(point), sort_keys=True)


def _values(name: str, text: str) -> list[Any]:
    parsed = _toml(f"[{text}]")
    values = parsed if parsed is not None else [_value(name, part.strip()) for part in text.split(",")]
    for value in values:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise OptionError(f"--param {name}: {value} is no number, text, true, false or list of them") from None
    return values


def _value(name: str, text: str) -> Any:
    """A TOML value, or a bare text such as ``v5e:4x4``."""
    parsed = _toml(f"[{text}]")
    if parsed is not None and len(parsed) == 1:
        return parsed[0]
    if not text or any(each in text for each in "\"'[]{}\n\r"):
        raise OptionError(f"--param {name}: {text!r} is not a TOML value (numbers, true, false, texts, [lists])")
    return text


def _toml(text: str) -> list[Any] | None:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return None
    return parsed["value"] if set(parsed) == {"value"} else None
