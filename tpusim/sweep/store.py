"""Rows on disk, a line of JSON each, written as they come.

The first line says what the sweep is of: rows of another file, other options or another tpusim are never mixed in.
A line that was cut off by a crash, or damaged since, is not a row: its point is run again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from tpusim.errors import OptionError
from tpusim.sweep.row import Row
from tpusim.sweep.space import Point, key_of

FORMAT = 1
_SAID = {"tpusim_sweep": "format", "sha256": "content of FILE", "file": "FILE", "tpusim": "version of tpusim"}
"""What the fields of the first line are called where they differ."""


class Store:
    """The rows of a sweep in a file, which one sweep at a time may write.  A context manager.

    Raises ``OptionError`` where the file belongs to another sweep, is being written by one, or is no such file.
    """

    damaged = 0
    """Lines that could not be read and are not used."""

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        self._head = {"tpusim_sweep": FORMAT, **head}
        try:
            self._file: BinaryIO = path.open("a+b")
        except OSError as error:
            raise OptionError(f"cannot write {path}: {error.strerror}") from None
        try:
            self._lock()
            self._read()
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        """Released by the system however the process ends; systems without such locks go without."""
        try:
            import fcntl
        except ImportError:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OptionError(f"{self.path} is being written by another sweep; name another --out") from None

    def _read(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self.damaged += 1
            self._file.truncate(whole)
        lines = content[:whole].splitlines()
        if not lines:
            self._write(self._head)
            return
        self._check(_parsed(lines[0]))
        for line in lines[1:]:
            row = _parsed(line)
            if row is None or not isinstance(row.get("point"), dict) or "status" not in row:
                self.damaged += 1
            else:
                self.rows[key_of(row["point"])] = row

    def _check(self, head: Mapping[str, Any] | None) -> None:
        if head is None or "tpusim_sweep" not in head:
            raise OptionError(f"{self.path} exists and holds no sweep; name another --out")
        other = [name for name, value in self._head.items() if head.get(name) != json.loads(json.dumps(value))]
        if other:
            said = ", ".join(f"other {_SAID.get(name, name)}" for name in other)
            raise OptionError(f"{self.path} is of another sweep ({said}): remove it, or name another --out")

    def _write(self, values: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(values, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def row(self, point: Point) -> Row | None:
        """What is on disk of a point."""
        return self.rows.get(key_of(point))

    def add(self, row: Row) -> None:
        """Write a row; it is on disk when this returns."""
        self._write(row)
        self.rows[key_of(row["point"])] = row

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except ValueError:
        return None
    return values if isinstance(values, dict) else None
