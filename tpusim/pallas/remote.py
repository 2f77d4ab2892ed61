"""Runs of kernel files on a TPU, or in interpret mode, from a process that keeps out of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Literal

from tpusim.errors import MissingExtraError
from tpusim.pallas.host import ending, has_tpu, load_arrays, save_arrays

TPU_REMEDY = "on a TPU VM: pip install 'tpusim[tpu]'"
_LAST_LINES = 6


@dataclass(frozen=True)
class Run:
    """One run: of FILE with parameters, on a mesh."""

    file: str
    mesh: Mapping[str, int]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    arrays: Sequence[Any] | None = None
    """GLOBAL input arrays; without them the file's ``inputs()`` makes them, and the outputs are not kept."""


@dataclass(frozen=True)
class Timed:
    """What a run gave: GLOBAL outputs where it was given arrays, microseconds of device time, the last run's events.

    ``error`` says why there is nothing.
    """

    outputs: tuple[Any, ...] | None = None
    times_us: tuple[float, ...] = ()
    events: tuple[tuple[Any, ...], ...] = ()
    """(device, line, name, from, to) in microseconds."""
    error: str | None = None

    @property
    def median_us(self) -> float | None:
        """The middle one of the times."""
        return median(self.times_us) if self.times_us else None


def tpu_missing() -> str | None:
    """Why this computer has no TPU to run on, or ``None`` where it looks as if it had one."""
    if find_spec("jax") is None or find_spec("libtpu") is None:
        return f"needs a TPU, jax and libtpu; {TPU_REMEDY}"
    if not has_tpu():
        return f"there is no TPU here; {TPU_REMEDY}"
    return None


def run_all(
    runs: Sequence[Run],
    *,
    on: Literal["tpu", "interpret"] = "tpu",
    repeats: int = 10,
    warmup: int = 3,
    timeout_s: float = 600,
) -> list[Timed]:
    """Make all runs in one child process; a run that failed has an ``error``.

    Raises ``OptionError`` where this Python has no jax.
    """
    if find_spec("jax") is None:
        raise MissingExtraError("real Pallas needs jax in this Python: pip install 'tpusim[pallas]'")
    with tempfile.TemporaryDirectory(prefix="tpusim_") as folder:
        plan = [_entry(run, number, Path(folder), on, repeats, warmup) for number, run in enumerate(runs)]
        plan_file, out_file = Path(folder, "plan.json"), Path(folder, "out.json")
        plan_file.write_text(json.dumps(plan, default=str), encoding="utf-8")
        command = [sys.executable, "-m", "tpusim.pallas.measure", str(plan_file), str(out_file)]
        why = "it ended early"
        try:
            child = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout_s, check=False, env=_environment(on)
            )
            lines = [line for line in child.stderr.splitlines() if line.strip()][-_LAST_LINES:]
            why = "\n  ".join([f"the process ended early, {ending(child.returncode)}:", *lines])
        except subprocess.TimeoutExpired:
            why = f"no result within {timeout_s:g} s; a kernel that deadlocks hangs"
        done = json.loads(out_file.read_text(encoding="utf-8")) if out_file.exists() else []
        return [_timed(entry, result) for entry, result in zip(plan, done, strict=False)] + [
            Timed(error=why) for _ in plan[len(done) :]
        ]


def _environment(on: str) -> dict[str, str]:
    return {**os.environ, "JAX_PLATFORMS": "cpu"} if on == "interpret" else dict(os.environ)


def _entry(run: Run, number: int, folder: Path, on: str, repeats: int, warmup: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"file": run.file, "mesh": dict(run.mesh), "parameters": dict(run.parameters), "on": on}
    entry |= {"repeats": repeats, "warmup": warmup}
    if run.arrays is not None:
        save_arrays(folder / f"in{number}.npz", run.arrays)
        entry |= {"inputs": str(folder / f"in{number}.npz"), "outputs": str(folder / f"out{number}.npz")}
    return entry


def _timed(entry: Mapping[str, Any], result: Mapping[str, Any]) -> Timed:
    if "error" in result:
        return Timed(error=result["error"])
    outputs = load_arrays(Path(entry["outputs"])) if "outputs" in entry else None
    return Timed(outputs, tuple(result["times_us"]), tuple(tuple(event) for event in result["events"]))
