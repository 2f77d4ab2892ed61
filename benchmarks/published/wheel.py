"""The wheel of tpu-inference, fetched from the package index, without the serving stack it imports.

Its kernels are pure JAX, but the package's ``__init__`` imports vLLM and PyTorch.  So the wheel is downloaded
alone and unpacked into a cache, a bare module of its name with a ``__path__`` stands in for the package, and
so do bare modules for the two that the kernels take a name or two from.  The kernels are told that they are on
a v6e, as their cases run there.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import tomllib
import types
import zipfile
from pathlib import Path
from typing import Any

from published.case import Missing

_PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def install() -> None:
    """Make ``tpu_inference.kernels`` importable; raises `Missing` where the wheel cannot be had."""
    if "tpu_inference" in sys.modules:
        return
    package = types.ModuleType("tpu_inference")
    package.__path__ = [str(unpacked() / "tpu_inference")]
    sys.modules["tpu_inference"] = package
    _stand_in("logger", init_logger=_logger)
    _stand_in(
        "utils",
        get_device_name=lambda *_: "TPU v6e",
        get_dtype_packing=_packing,
        align_to=lambda size, multiple: -(-size // multiple) * multiple,
        TPU_HEAD_SIZE_ALIGNMENT=128,
    )
    import tpu_inference.kernels.ragged_paged_attention.v3.util as util

    util.get_tpu_version = lambda: 6  # it asks jax.devices(), which are CPUs


def _stand_in(name: str, **values: Any) -> None:
    module = types.ModuleType(f"tpu_inference.{name}")
    vars(module).update(values)
    sys.modules[module.__name__] = module


def _logger(name: str) -> Any:
    logger: Any = logging.getLogger(name)
    logger.warning_once = logger.warning
    return logger


def _packing(dtype: Any) -> int:
    import jax

    return 32 // int(jax.dtypes.itemsize_bits(dtype))


def unpacked() -> Path:
    """The folder of the unpacked wheel; fetched once a user and version."""
    requirement = tomllib.loads(_PROJECT.read_text())["tool"]["tpusim"]["wheel"]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tpusim" / "wheels"
    folder = cache / requirement.replace("==", "-")
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as place:
        fetch = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", place, requirement]
        try:
            done = subprocess.run(fetch, capture_output=True, text=True, timeout=120, check=False)
        except subprocess.TimeoutExpired:
            raise Missing(f"{requirement} cannot be fetched: no answer in 120 s") from None
        wheels = list(Path(place).glob("*.whl"))
        if done.returncode or not wheels:
            raise Missing(f"{requirement} cannot be fetched: {(done.stderr.strip().splitlines() or ['no wheel'])[-1]}")
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(Path(place) / "unpacked")
        try:
            (Path(place) / "unpacked").rename(folder)
        except OSError:  # another process was first
            if not folder.is_dir():
                raise
    return folder
