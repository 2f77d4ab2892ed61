"""The verdict on an unmodified Pallas program, for all schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpusim.errors import InternalError
from tpusim.observe import Observer
from tpusim.pallas.capture import CapturedProgram
from tpusim.result import Result
from tpusim.verdict import Verdict
from tpusim.verify import Attempt, attempt, check_options, verify_runs


def verify(fn: Callable[..., Any], *args: Any, calls: int = 1, **options: Any) -> Verdict:
    """Prove or refute that ``fn(*args)`` is right in every schedule; see :meth:`tpusim.Kernel.verify`.

    ``calls``: the program is executed so many times; devices wait for each other in between only where it says so.
    ``options`` are the run options; ``mesh`` is the program's own.
    """
    check_options(options, calls)
    program = CapturedProgram(fn, options, calls=calls)

    def run(more: Mapping[str, Any], observers: Sequence[Observer]) -> Attempt:
        program.options, program.observers = {**options, **more}, observers
        return attempt(once)

    def once() -> Result:
        program(*args)
        if program.result is None:
            raise InternalError("a captured program ended without a result")
        return program.result

    return verify_runs(run, calls)
