"""Where a long run is, on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.status import Status

from tpusim.cli.console import make_console
from tpusim.units import Duration

_SILENT_S = 1.0


class RunProgress:
    """Shows simulated time and events on standard error, once a run takes more than a second.

    Silent where standard error is no terminal.  A context manager: what it shows is gone at its end.
    """

    def __init__(self) -> None:
        self._console = make_console(sys.stderr)
        self._began = time.monotonic()
        self._status: Status | None = None

    def __call__(self, now_ps: int, events: int) -> None:
        """The run has come to ``now_ps`` with ``events`` events."""
        if not self._console.is_terminal or time.monotonic() - self._began < _SILENT_S:
            return
        text = f"simulated {Duration(now_ps)}, {events:,} events"
        if self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        else:
            self._status.update(text)

    def __enter__(self) -> Self:
        """Start the clock."""
        self._began = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        """Take the line away."""
        if self._status is not None:
            self._status.stop()
