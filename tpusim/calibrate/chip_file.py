"""A chip's TOML file with some numbers of one's own: what every command takes as ``--chip``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tpusim.chips import Quantity
from tpusim.errors import OptionError


def write_chip(path: Path, base: str, description: str, numbers: Mapping[str, Quantity]) -> None:
    """Write ``numbers`` (by name, such as ``dma.issue``) over the shipped chip ``base``; raises ``OptionError``."""
    lines = [f"# {description}", "", f'base = "{base}"', f"description = {_text(description)}"]
    for name, quantity in sorted(numbers.items()):
        lines += ["", f"[{name}]", f"value = {quantity.number!r}", f"unit = {_text(quantity.unit)}"]
        lines += [f"{end} = {value!r}" for end in ("low", "high") if (value := getattr(quantity, end)) is not None]
        lines += [f"source = {_text(quantity.source)}", f"confidence = {_text(quantity.confidence)}"]
        if quantity.note:
            lines.append(f"note = {_text(quantity.note)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot write {path}: {error.strerror}") from None


def _text(value: str) -> str:
    """A TOML basic string: JSON's are some."""
    return json.dumps(value, ensure_ascii=False)
