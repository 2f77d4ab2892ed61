"""Interpret mode from outside: a child process with its own virtual devices and a time limit.

JAX's interpret mode hangs where a kernel deadlocks, keeps its state after an error, and needs its
devices to be declared before jax starts; so every run gets a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.errors import MissingExtraError, OptionError, TpuSimError
from tpusim.options import RunOptions
from tpusim.specs import as_dtype
from tpusim.topology import Slice

if TYPE_CHECKING:
    from tpusim.pallas.inplace import Interception

_LAST_LINES = 12
NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
}
"""What libtpu otherwise asks a cloud's server for, and complains about on standard error where there is none."""


class InterpretError(TpuSimError):
    """JAX's interpret mode ended with an error; the message holds the last lines it wrote."""


class InterpretTimeoutError(InterpretError, TimeoutError):
    """JAX's interpret mode did not end in time; it hangs where a kernel deadlocks."""


def has_tpu() -> bool:
    """Whether this computer has the devices of a TPU; jax is not asked, since that would start it."""
    return any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*"))


def quiet_libtpu() -> None:
    """Without a TPU, let a libtpu that is installed find none in silence, when jax starts.

    Sets environment variables of this process that nobody has set; where there is a TPU, nothing.
    """
    if not has_tpu():
        for name, value in NO_TPU.items():
            os.environ.setdefault(name, value)


def interpret_in_subprocess(
    file: str,
    mesh: Mapping[str, int],
    arrays: Sequence[Any],
    timeout_s: float = 120,
    parameters: Mapping[str, Any] | None = None,
) -> tuple[np.ndarray[Any, Any], ...]:
    """The GLOBAL outputs of ``path.py[:name]`` for GLOBAL ``arrays``, through Pallas's TPU interpret mode.

    ``mesh`` maps axis names to sizes; of ``parameters`` the file's ``make_kernel()`` gets those it takes.  Raises
    :class:`OptionError` where this Python has no jax, :class:`InterpretError`, or :class:`InterpretTimeoutError`
    after ``timeout_s`` seconds.
    """
    if find_spec("jax") is None:
        raise MissingExtraError("interpret mode needs jax in this Python: pip install 'tpusim[pallas]'")
    mesh_text = ",".join(f"{name}={size}" for name, size in mesh.items())
    with tempfile.TemporaryDirectory(prefix="tpusim_") as folder:
        inputs, outputs = Path(folder, "in.npz"), Path(folder, "out.npz")
        save_arrays(inputs, arrays)
        command = [sys.executable, "-m", "tpusim.pallas.run", file, "--mesh", mesh_text]
        command += ["--inputs", str(inputs), "--outputs", str(outputs)]
        command += ["--parameters", json.dumps(dict(parameters or {}), default=str)]
        try:
            child = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as error:
            raise InterpretTimeoutError(
                f"{file}: no result from JAX's interpret mode on {mesh_text} within {timeout_s:g} s; "
                "it hangs where a kernel deadlocks"
            ) from error
        if child.returncode != 0 or not outputs.exists():
            lines = [line for line in child.stderr.splitlines() if line.strip()][-_LAST_LINES:]
            ended = ending(child.returncode)
            raise InterpretError("\n  ".join([f"{file}: interpret mode failed on {mesh_text}, {ended}:", *lines]))
        return load_arrays(outputs)


def ending(status: int) -> str:
    """How a process ended; a signal is all that is left of one that the computer had no memory for."""
    return f"by signal {-status}" if status < 0 else f"exit status {status}"


def write_whole(path: Path, text: str) -> None:
    """Write a file at once: who reads it may stop this process at any moment."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def declare_host_devices(count: int) -> None:
    """Give this process ``count`` virtual CPU devices; raises :class:`OptionError` once jax is imported.

    Each device of interpret mode blocks a thread of XLA inside a Python callback, and converting a large
    argument of a callback needs one more.  XLA has as many as the computer has cores, so with few cores
    jax 0.10 hangs; ``PJRT_NPROC`` gives it enough.
    """
    if "jax" in sys.modules:
        raise OptionError("the virtual devices of the host must be declared before jax is imported")
    flags = [f for f in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in f]
    os.environ["XLA_FLAGS"] = " ".join([*flags, f"--xla_force_host_platform_device_count={count}"])
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["PJRT_NPROC"] = str(max(4 * count, os.cpu_count() or 1))


def intercept_process(options: Mapping[str, Any], arrive_timeout_s: float = 60) -> Interception:
    """An interception for a whole process, which has not imported jax yet; ``options`` name the slice.

    Declares a CPU device for each of the slice's.  Raises :class:`OptionError`.
    """
    checked = RunOptions.of(options)
    slice_ = Slice.parse(str(checked.slice), checked.cores)
    if find_spec("jax") is None:
        raise MissingExtraError("Pallas kernels need jax in this Python: pip install 'tpusim[pallas]'")
    declare_host_devices(slice_.num_devices)
    from tpusim.pallas.inplace import intercept

    return intercept(**options, arrive_timeout_s=arrive_timeout_s, keep_results=False)


def save_arrays(path: Path, arrays: Sequence[Any]) -> None:
    """Write arrays to one ``.npz``; types that NumPy does not know go as bytes with their name."""
    named: dict[str, Any] = {}
    for i, value in enumerate(arrays):
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        is_extension = array.dtype.isbuiltin != 1
        named[f"{i}:{array.dtype.name}"] = array.view(f"u{array.dtype.itemsize}") if is_extension else array
    np.savez(path, **named)


def load_arrays(path: Path) -> tuple[np.ndarray[Any, Any], ...]:
    """The arrays that :func:`save_arrays` wrote, in order."""
    with np.load(path, allow_pickle=False) as stored:
        keys = sorted(stored.files, key=lambda key: int(key.partition(":")[0]))
        return tuple(stored[key].view(as_dtype(key.partition(":")[2])) for key in keys)
