"""What the tests of the command line share: kernel files, strict JSON, and a folder of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tpusim.cli.new import STARTER

KERNELS = Path(__file__).parents[1] / "kernels"
DEADLOCK = ("    copy.start()\n", "")
"""What makes a kernel of the starter's wait for ever."""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every test of a file that imports it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def write(name: str, *changes: tuple[str, str]) -> str:
    """The starter kernel with some of its text replaced."""
    text = STARTER
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    Path(name).write_text(text, encoding="utf-8")
    return name


def strict_json(text: str) -> Any:
    """JSON without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)
