"""What a command line asks for, as a job: the texts of its options checked and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpusim.chips import parse_set
from tpusim.errors import OptionError
from tpusim.job import Job
from tpusim.specs import as_dtype


def make_job(
    file: str,
    *,
    shape: str | None = None,
    dtype: str | None = None,
    param: list[str] | None = None,
    backend: str = "sim",
    detail: bool = False,
    calls: int = 1,
    **texts: Any,
) -> Job:
    """The job of FILE; ``texts`` are run options as the command line has them, ``None`` where not given.

    Raises ``OptionError`` for one that cannot be read.
    """
    own = dict(parse_set(text, "--param", "bm=128") for text in param or ())
    parameters = own | {"shape": parse_shape(shape), "dtype": parse_dtype(dtype), "seed": texts.get("seed")}
    return Job(file, read_options(texts), _known(parameters), backend, detail=detail, calls=calls)


def read_options(texts: Mapping[str, Any]) -> dict[str, Any]:
    """The run options among ``texts``, those that were given."""
    read = {
        "mesh": parse_mesh_option(texts.get("mesh")),
        "layout": parse_layout(texts.get("layout")),
        "set": dict(parse_set(text) for text in texts.get("set") or ()) or None,
        "faults": tuple(texts.get("faults") or ()) or None,
    }
    return _known({**texts, **read})


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def parse_mesh_option(text: str | None) -> str | int | None:
    """``--mesh``: a number, or a text that the run options read."""
    return int(text) if text is not None and text.isdecimal() else text


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """``--shape``."""
    if text is None:
        return None
    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    if not all(part.isdecimal() and part.isascii() for part in parts):
        raise OptionError(f"--shape takes sizes such as 8,128, not {text!r}")
    sizes = tuple(int(part) for part in parts)
    if 0 in sizes:
        raise OptionError(f"--shape takes positive sizes, not {text!r}")
    return sizes


def parse_dtype(text: str | None) -> str | None:
    """``--dtype``: the name of an element type."""
    if text is not None:
        try:
            as_dtype(text)
        except TypeError:
            raise OptionError(f"--dtype: there is no dtype {text!r}; float32, bfloat16, int32, int8 are some") from None
    return text


def parse_layout(text: str | None) -> Any:
    """A name, or coordinates as a JSON list."""
    if text is None or not text.lstrip().startswith("["):
        return text
    try:
        places = json.loads(text)
    except ValueError:
        places = None
    is_list = isinstance(places, list) and all(isinstance(place, list) for place in places)
    if not is_list or not all(type(at) is int for place in places for at in place):
        raise OptionError(f"--layout takes coordinates as [[0,0],[0,1]], one for each device, not {text!r}")
    return places


def parse_which(text: str | None) -> str | tuple[int, ...] | None:
    """``--devices``: a word such as ``slowest:16``, or numbers and ranges."""
    if text is None or text.partition(":")[0] in ("slowest", "busiest"):
        return text
    return parse_devices(text, "--devices", "slowest, busiest:16, numbers and ranges such as 0-3,8")


def parse_devices(
    text: str | None, option: str = "--trace-devices", takes: str = "numbers and ranges such as 0-3,8"
) -> tuple[int, ...] | None:
    """Numbers and ranges such as ``0-3,8``."""
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isdecimal() and end.isascii() for end in ends) or int(ends[0]) > int(ends[1]):
            raise OptionError(f"{option} takes {takes}, not {text!r}")
        found |= set(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(sorted(found))


def check_writable(path: str | None) -> None:
    """Before a long run, not after it."""
    if path is None or path == "-":
        return
    if not Path(path).parent.is_dir():
        raise OptionError(f"cannot write {path}: there is no directory {Path(path).parent}")
    if Path(path).is_dir():
        raise OptionError(f"cannot write {path}: it is a directory")
