"""``tpusim doctor``: what is installed here, and what of it works; each thing is tried, not looked up."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import typer

from tpusim.cli.console import make_console, one_line, styled
from tpusim.cli.new import STARTER
from tpusim.errors import TpuSimError
from tpusim.job import Job, Status, run_job
from tpusim.kernel_file import load_file
from tpusim.program import Kernel
from tpusim.result import Result

_PACKAGES = ("tpusim", "numpy", "simpy", "pydantic", "greenlet", "jax", "libtpu")
_TPU_TIMEOUT_S = 90
_FIND_TPU = "import jax; found = jax.devices('tpu'); print(len(found), 'x', found[0].device_kind)"


class Ability(NamedTuple):
    """Whether something works here, what the trial said, and what to do where it does not."""

    name: str
    works: bool
    text: str
    remedy: str = ""


def doctor() -> None:
    """Show versions, and try what works here.

    Tried are: sim, interpret, compile, tpu.  Exit status 0 where sim works.
    """
    console = make_console()
    console.print(styled(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}", "bold"))
    console.print(styled(", ".join(f"{name} {version_of(name) or 'missing'}" for name in _PACKAGES)))
    abilities = []
    with tempfile.TemporaryDirectory(prefix="tpusim_") as folder:
        file = str(Path(folder, "neighbour_sum.py"))
        Path(file).write_text(STARTER, encoding="utf-8")
        for trial in (_sim, _interpret, _compile, _tpu):
            ability = _tried(trial, file)
            abilities.append(ability)
            line = styled(f"{ability.name:<10}")
            line.append_text(
                styled("works    " if ability.works else "missing  ", "green" if ability.works else "yellow")
            )
            console.print(line.append_text(styled(ability.text)))
            if ability.remedy:
                console.print(styled(f"{'':<19}{ability.remedy}"))
    raise typer.Exit(Status.RIGHT if abilities[0].works else Status.WRONG)


def version_of(package: str) -> str | None:
    """The installed version of a package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _tried(trial: Callable[[str], Ability], file: str) -> Ability:
    try:
        return trial(file)
    except (TpuSimError, OSError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        name = trial.__name__.removeprefix("_")
        return Ability(name, False, f"{type(error).__name__}: {one_line(error)}")


def _sim(file: str) -> Ability:
    """Two runs: the data is right, and half the link bandwidth takes longer."""
    usual = _simulated(file, {})
    rate = usual.place.chip.ici.link_bandwidth.number
    slower = _simulated(file, {"ici.link_bandwidth": rate / 2})
    if slower.time <= usual.time:
        return Ability("sim", False, f"half the link bandwidth gives {slower.time}, not more than {usual.time}")
    return Ability("sim", True, f"4 devices in {usual.time}, with half the link bandwidth {slower.time}; data right")


def _simulated(file: str, overrides: dict[str, float]) -> Result:
    outcome = run_job(Job(file, {"mesh": 4, "set": overrides}, {"shape": (64, 128)}))
    if outcome.status is not Status.RIGHT or outcome.result is None or outcome.check is None:
        reasons = [finding.message for finding in outcome.findings]
        text = outcome.fault or "; ".join(reasons) or (outcome.check.text if outcome.check else "no result")
        raise TpuSimError(text)
    return outcome.result


def _interpret(file: str) -> Ability:
    if find_spec("jax") is None:
        return Ability("interpret", False, "needs jax", "pip install 'tpusim[pallas]'")
    began = time.monotonic()
    outcome = run_job(Job(file, {"mesh": 2}, backend="interpret"))
    text = outcome.not_possible or outcome.fault or (outcome.check.text if outcome.check else "no result")
    if outcome.status is not Status.RIGHT:
        return Ability("interpret", False, text)
    return Ability("interpret", True, f"2 devices in {time.monotonic() - began:.1f} s; data {text}")


def _compile(file: str) -> Ability:
    """The starter kernel for 4 devices of a v5e, by the TPU compiler."""
    from tpusim.pallas.compiler import compile_kernel, compiler_version

    libtpu = compiler_version()
    if libtpu is None or find_spec("jax") is None:
        return Ability("compile", False, "needs jax and libtpu, no TPU", "pip install 'tpusim[tpu]'")
    began = time.monotonic()
    loaded = load_file(file)
    if not isinstance(loaded.kernel, Kernel):
        raise TpuSimError("the starter is no native kernel")
    compiled = compile_kernel(loaded.kernel, loaded.inputs(devices=4), {"x": 4}, "v5e")
    if not compiled.is_accepted:
        return Ability("compile", False, f"libtpu {libtpu}: {compiled.verdict}: {one_line(compiled.error or '')}")
    return Ability(
        "compile", True, f"libtpu {libtpu} accepts a kernel for 4 devices in {time.monotonic() - began:.1f} s"
    )


def _tpu(file: str) -> Ability:
    if version_of("libtpu") is None or find_spec("jax") is None:
        return Ability("tpu", False, "needs a TPU, jax and libtpu", "on a TPU VM: pip install 'tpusim[tpu]'")
    command = [sys.executable, "-c", _FIND_TPU]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=_TPU_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Ability("tpu", False, f"jax found none within {_TPU_TIMEOUT_S} s")
    if child.returncode != 0:
        lines = [line for line in child.stderr.splitlines() if line.strip()]
        return Ability("tpu", False, f"jax sees none: {lines[-1] if lines else 'no reason given'}")
    return Ability("tpu", True, child.stdout.strip())
