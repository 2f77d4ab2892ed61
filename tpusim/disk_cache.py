"""Results kept on disk between processes: JSON, one file an entry, found by the content it was made from.

Nothing is unpickled.  An entry is written to a temporary file and renamed, so that two processes may use one
folder; one that cannot be read is made again, with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "TPUSIM_CACHE"
"""Environment variable that names the folder of all caches; empty: nothing is kept."""


class JsonCache:
    """A folder of JSON objects; ``version`` is that of their meaning, and others are not looked at."""

    def __init__(self, name: str, version: int, folder: Path | None = None) -> None:
        root = folder or default_folder()
        self.folder = None if root is None else root / f"{name}-{version}"

    def get(self, key: str) -> dict[str, Any] | None:
        """The entry of ``key``, or ``None`` where there is none that can be read."""
        if self.folder is None:
            return None
        path = self.folder / f"{key}.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or found.get("key") != key:
                raise ValueError("it is not the entry its name says")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            warnings.warn(f"damaged cache entry {path} ({error}): made again", stacklevel=2)
            return None
        return found

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Keep an entry; where the folder cannot be written, nothing is kept."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.folder, suffix=".tmp", delete=False, encoding="utf-8") as f:
                json.dump({**value, "key": key}, f, allow_nan=False)
            Path(f.name).replace(self.folder / f"{key}.json")
        except OSError as error:
            warnings.warn(f"nothing is cached in {self.folder}: {error}", stacklevel=2)


def default_folder() -> Path | None:
    """Where caches lie: ``$TPUSIM_CACHE``, else ``tpusim`` in the user's cache folder; ``None`` for an empty one."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tpusim"


def content_key(*parts: str) -> str:
    """A file name that stands for these texts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part.encode())
    return digest.hexdigest()[:40]
