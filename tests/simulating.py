"""What the tests of the simulated machine share: run a small kernel, catch its error, name a line of the test."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tpusim
from tpusim import HBM, ShapeDtypeStruct
from tpusim.findings import short_path
from tpusim.options import RunOptions
from tpusim.result import Result

TILE = ShapeDtypeStruct((8, 128), "float32")
_OPTIONS = {option.name for option in fields(RunOptions)}


class Lines:
    """The lines of one test file that end in a comment: ``at("early load")`` -> ``tests/test_x.py:57``."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __call__(self, marker: str) -> str:
        found = [
            number
            for number, line in enumerate(Path(self.file).read_text().splitlines(), 1)
            if line.endswith(f"  # {marker}")
        ]
        assert len(found) == 1, f"{marker!r} marks {len(found)} lines"
        return f"{short_path(self.file)}:{found[0]}"


def tiles(devices: int = 1, dtype: Any = "float32") -> np.ndarray[Any, Any]:
    """One 8x128 tile for each device, every element different."""
    return np.arange(devices * 8 * 128).reshape(devices * 8, 128).astype(dtype)


def run(fn: Any, *arrays: Any, **keywords: Any) -> Result:
    """Simulate ``fn`` (default: one device, tiles in HBM in and out); ``keywords``: declarations and run options."""
    options = {name: keywords.pop(name) for name in list(keywords) if name in _OPTIONS}
    declared: dict[str, Any] = {"out_shape": TILE, "in_specs": HBM, "out_specs": HBM, **keywords}
    options = {"mesh": 1 if len(declared.get("axes", "x")) == 1 else None, **options}
    return tpusim.Kernel(fn, **declared).simulate(*arrays, **options)


def error_of(kind: type[BaseException], fn: Any, *arrays: Any, **keywords: Any) -> Any:
    """The error that ``run`` raises, which must be of exactly this class and tell its finding."""
    with pytest.raises(kind) as caught:
        run(fn, *arrays, **keywords)
    error: Any = caught.value
    assert type(error) is kind
    if hasattr(error, "finding"):
        assert error.finding in error.findings
        assert len({finding.message for finding in error.findings}) == len(error.findings)
        assert error.finding.kind == kind.kind  # type: ignore[attr-defined]
    return error
