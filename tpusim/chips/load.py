"""From a name, a TOML file and overrides to a :class:`ChipSpec`.

Everything is merged as plain dictionaries and validated once, so that a chip of one's own, a ``--set`` option and a
shipped file are held to the same rules and fail with the same messages.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tpusim.chips.quantity import Measure
from tpusim.chips.spec import GROUPS, ChipSpec, Group, measures_of
from tpusim.errors import OptionError

_NAMES = ("v4", "v5e", "v5p", "v6e", "v7x", "8i", "8t")
_IDENTITY = tuple(name for name in ChipSpec.model_fields if name not in GROUPS)


def chip_names() -> tuple[str, ...]:
    """Names of the shipped chips, oldest first."""
    return _NAMES


def load_chip(name_or_path: str | Path, overrides: Mapping[str, Any] | None = None) -> ChipSpec:
    """A shipped chip by name, or one's own from a TOML file.

    A file may say ``base = "v5e"`` and hold only what differs, a field being a table as in the shipped files or a
    bare value in the field's unit.  ``overrides`` maps keys such as ``"ici.link_bandwidth"`` to bare values; such a
    field keeps its unit, loses its interval, and gets source ``--set``.

    Raises :class:`OptionError` for a name, key or value that cannot be right.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text:
        data = _own_chip(Path(name_or_path))
    elif text in _NAMES:
        if not overrides:
            return _shipped_chip(text)
        data = _shipped_data(text)
    else:
        raise OptionError(f"no chip '{text}'{_possible(text, _NAMES)}, or the path of a TOML file")
    for key, value in (overrides or {}).items():
        group, field = _split(str(key), data)
        data = _with_field(data, group, field, _bare(f"{group}.{field}", value, source="--set"))
    return _validated(data, text)


def parse_set(text: str, option: str = "--set", example: str = "ici.link_bandwidth=90e9") -> tuple[str, Any]:
    """``"ici.link_bandwidth=90e9"`` -> ``("ici.link_bandwidth", 90e9)``; the value is a TOML value, never evaluated."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (key and equals and value):
        raise OptionError(f"{option} takes KEY=VALUE such as {example}, not {text!r}")
    try:
        parsed = tomllib.loads(f"value = {value}") if "\n" not in value and "\r" not in value else {}
    except tomllib.TOMLDecodeError:
        parsed = {}
    if set(parsed) != {"value"}:
        raise OptionError(
            f'{option} {key}: {value!r} is not a TOML value (a number, true, false, a "text" in quotes, a [list])'
        )
    return key, parsed["value"]


@cache
def _shipped_chip(name: str) -> ChipSpec:
    return _validated(_shipped_data(name), name)


@cache
def _shipped_data(name: str) -> Mapping[str, Any]:
    with Path(__file__).with_name(f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


def _own_chip(path: Path) -> Mapping[str, Any]:
    try:
        own = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} is not TOML: {error}") from None
    base = own.pop("base", None)
    if base is not None and base not in _NAMES:
        raise OptionError(f"{path}: no chip {base!r} to use as base{_possible(str(base), _NAMES)}")
    data: Mapping[str, Any] = _shipped_data(base) if base is not None else {}
    data = {**data, "name": path.stem}
    for key, content in own.items():
        if key in _IDENTITY:
            data = {**data, key: content}
            continue
        if key not in GROUPS:
            raise OptionError(f"{path} has an unknown entry '{key}'{_possible(key, (*_IDENTITY, *GROUPS))}")
        if not isinstance(content, dict):
            raise OptionError(f"{path}: '{key}' is a table of fields, not {content!r}")
        for field, value in content.items():
            measure = _measures(key).get(field)
            if measure is None:
                raise OptionError(f"{path} has an unknown entry '{key}.{field}'{_possible(field, _measures(key))}")
            table = value if isinstance(value, dict) else _bare(f"{key}.{field}", value, source=str(path))
            data = _with_field(data, key, field, table)
    return data


def _split(key: str, data: Mapping[str, Any]) -> tuple[str, str]:
    """Group and field of ``"ici.hop_latency"``, where the chip has it."""
    chip = data["name"]
    group, _, field = key.partition(".")
    if group not in GROUPS:
        paths = [f"{name}.{field}" for name in GROUPS for field in data.get(name, ())]
        close = [path for path in paths if path.endswith(f".{key}")] or difflib.get_close_matches(key, paths, 1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise OptionError(f"chip {chip} has no '{key}'{hint} Possible: a key of {', '.join(GROUPS)}")
    if field not in data.get(group, ()):
        raise OptionError(f"chip {chip} has no '{key}'{_possible(field, data.get(group, ()), prefix=f'{group}.')}")
    return group, field


def _possible(wrong: str, names: Iterable[str], prefix: str = "") -> str:
    """``; did you mean 'v5e'? Possible: v4, v5e``, with the nearest name where one is near."""
    names = list(names)
    close = [name for name in names if wrong and wrong in name] or difflib.get_close_matches(wrong, names, n=1)
    hint = f"; did you mean '{prefix}{close[0]}'?" if close else "."
    return f"{hint} Possible: {', '.join(prefix + name for name in names)}"


@cache
def _measures(group: str) -> Mapping[str, Measure]:
    model = ChipSpec.model_fields[group].annotation
    if not (isinstance(model, type) and issubclass(model, Group)):
        raise TypeError(f"{group} is not a group")
    return measures_of(model)


def _bare(key: str, value: Any, *, source: str) -> dict[str, Any]:
    """The table of a field given as a bare value."""
    group, _, field = key.partition(".")
    measure = _measures(group)[field]
    if not measure.accepts(value):
        raise OptionError(f"{key} takes {measure.wants}, not {value!r}")
    return {"value": value, "unit": measure.unit, "source": source, "confidence": "override"}


def _with_field(data: Mapping[str, Any], group: str, field: str, table: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**data, group: {**data.get(group, {}), field: table}}


def _validated(data: Mapping[str, Any], label: str) -> ChipSpec:
    try:
        return ChipSpec.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        loc = first["loc"]
        place = ".".join(str(part) for part in loc[:3])
        is_value = loc[2:3] == ("value",)
        reason = "a number, true, false, a text or a list of whole numbers" if is_value else first["msg"]
        reason = reason.removeprefix("Value error, ")
        raise OptionError(f"{label}: {place + ': ' if place else ''}{reason}") from None
