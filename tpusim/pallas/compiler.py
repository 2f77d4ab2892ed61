"""The real TPU compiler, ahead of time and without a TPU: what it says of a program, and its cycles for a kernel.

A program is lowered here to StableHLO, a text that holds its kernels; only that text goes to a child process, which
has limits of time and memory, because libtpu ends its process where one of its checks fails.  Its static profile, a
simulation of one core, gives the cycles of each kernel; a program the profiler dies on is compiled again without
it, and then has bundles, a lower bound of the cycles, alone.  Answers are kept on disk by content, chip and version.

libtpu's profile and dumps are undocumented: the flags and patterns below are those of 0.0.42.1 and 0.0.50.1.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpusim.disk_cache import JsonCache, content_key
from tpusim.errors import MissingExtraError
from tpusim.pallas.host import NO_TPU
from tpusim.topology import Slice

if TYPE_CHECKING:
    from tpusim.program import Kernel

_TOPOLOGY = {"v7x": "tpu7x"}
"""libtpu's names of chips, where they are not ours."""
_WITHOUT_PROFILE = ("v4",)
"""Chips on which the profiler ends the compiler."""
_DUMP = "--xla_jf_dump_to={0} --xla_jf_dump_llo_pass_label_regex=final"
_PROFILE = "--xla_jf_dump_static_llo_profile_to={0}"
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", **NO_TPU}
_PROGRAM = re.compile(r"-TLP-hlo\.txt$")
_DUMPED = re.compile(r"\d+-(?P<name>.+)-\d+-(?P<what>[\w-]+)\.txt")
_KERNEL = re.compile(r"%([\w.-]+) = [^\n]*custom-call\([^\n]*custom_call_target=\"tpu_custom_call\"")
_FIELD = re.compile(r"(\w+): (\S+)")
MISSING = "{} needs the TPU compiler, but no TPU, in this Python: pip install 'tpusim[tpu]'"
_CACHE_VERSION = 2
_BATCH = 40
"""Programs for one child process."""


@dataclass(frozen=True)
class Program:
    """What is compiled: a StableHLO module for ``devices`` devices."""

    text: str
    devices: int = 1


Source = Callable[[], Program]
"""Makes a program when it turns out to be needed; what it raises is a rejection."""


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of a program.

    ``verdict``: ``accepted``, ``rejected``, ``crashed`` or ``timeout``; ``error`` is its text where it did not
    accept.  ``cycles``: of all kernels together on one core, by the static profile; ``None`` where it gives none, as
    for every kernel with a remote copy.  ``bundles``: static length of the kernels' schedules.  ``slots``: how often
    each unit issues in those schedules.  ``vmem_bytes``: allocated by the kernels, the largest of them.
    """

    verdict: str
    error: str | None = None
    cycles: int | None = None
    bundles: int | None = None
    vmem_bytes: int | None = None
    slots: dict[str, int] | None = None
    note: str | None = None
    """Why there are no cycles, where there could be."""

    @property
    def is_accepted(self) -> bool:
        """Whether it compiles."""
        return self.verdict == "accepted"


def compiler_version() -> str | None:
    """The version of libtpu here, ``None`` where it, or jax, is missing."""
    if find_spec("jax") is None or find_spec("libtpu") is None:
        return None
    try:
        return version("libtpu")
    except PackageNotFoundError:
        return None


def require_compiler(what: str) -> str:
    """The version of libtpu; ``OptionError`` with the install command where it is missing."""
    found = compiler_version()
    if found is None:
        raise MissingExtraError(MISSING.format(what))
    return found


def lower(fn: Callable[..., Any], shapes: Sequence[Any], chip: str, cores_per_device: int = 1) -> Program:
    """``fn``, with or without ``jax.jit``, for arrays like ``shapes`` on ``chip``; its mesh may be abstract.

    Raises what Pallas raises for a kernel that it cannot lower.
    """
    import jax

    from tpusim.pallas.internals.chip import simulated_chip

    jitted = fn if hasattr(fn, "trace") else jax.jit(fn)
    with simulated_chip(chip, cores_per_device):
        text = jitted.trace(*shapes).lower(lowering_platforms=("tpu",)).as_text()
    return Program(text, _devices(text))


def _devices(text: str) -> int:
    """Devices of a module: those of its largest mesh."""
    sizes = [1, *(int(count) for count in re.findall(r"mhlo\.num_partitions = (\d+)", text))]
    for mesh in re.findall(r"sdy\.mesh @\w+ = <\[([^\]]*)\]", text):
        total = 1
        for size in re.findall(r"=(\d+)", mesh):
            total *= int(size)
        sizes.append(total)
    return max(sizes)


def compile_function(
    fn: Callable[..., Any], shapes: Sequence[Any], chip: str, cores_per_device: int = 1, **limits: Any
) -> Compiled:
    """Lower and compile one function; an error of the lowering is a rejection like the compiler's own."""
    require_compiler(f"compiling for {chip}")
    try:
        program = lower(fn, shapes, chip, cores_per_device)
    except Exception as error:  # noqa: BLE001 - as below
        return Compiled("rejected", f"{type(error).__name__}: {error}")
    return compile_programs([program], chip, **limits)[0]


def lower_kernel(
    kernel: Kernel, arrays: Any, sizes: Mapping[str, int], chip: str, cores_per_device: int = 1
) -> Program:
    """A native kernel for GLOBAL ``arrays`` (or their shapes) on a mesh of ``sizes``."""
    import jax

    mesh = jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes))
    given = arrays if isinstance(arrays, tuple | list) else (arrays,)
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in map(_with_shape, given)]
    return lower(kernel.pallas(mesh), shapes, chip)


def _with_shape(array: Any) -> Any:
    import numpy as np

    return array if hasattr(array, "shape") and hasattr(array, "dtype") else np.asarray(array)


def compile_kernel(kernel: Kernel, arrays: Any, sizes: Mapping[str, int], chip: str, **limits: Any) -> Compiled:
    """What the compiler says of a native kernel; arguments as for :func:`lower_kernel` and :func:`compile_programs`."""
    require_compiler(f"compiling for {chip}")
    return compile_programs([lambda: lower_kernel(kernel, arrays, sizes, chip)], chip, **limits)[0]


def compile_programs(
    programs: Sequence[Program | Source],
    chip: str,
    *,
    keys: Sequence[str] | None = None,
    timeout_s: float = 120,
    memory_bytes: int = 12 << 30,
    cache: JsonCache | None = None,
) -> list[Compiled]:
    """What the compiler says of each program on ``chip``.

    ``keys`` stand for the programs in the cache, instead of their texts.  ``timeout_s`` is for one program,
    ``memory_bytes`` for the child process.  Raises ``OptionError`` where libtpu is missing.
    """
    libtpu = require_compiler(f"compiling for {chip}")
    cache = cache or JsonCache("compiler", _CACHE_VERSION)
    if keys is None:
        made = [_made(program) for program in programs]
        keys = [f"{p.devices} {p.text}" if isinstance(p, Program) else repr(p) for p in made]
        programs = [p if isinstance(p, Program) else partial(_refuse, p) for p in made]
    names = [content_key(key, chip, libtpu) for key in keys]
    found: dict[str, Compiled] = {}
    for name in dict.fromkeys(names):
        entry = cache.get(name)
        if entry is not None and "verdict" in entry:
            known: dict[str, Any] = {field: entry.get(field) for field in _FIELDS}
            found[name] = Compiled(**known)
    missing = {name: program for name, program in zip(names, programs, strict=True) if name not in found}
    by_devices: dict[int, dict[str, Program]] = {}
    for name, source in missing.items():
        try:
            program = source if isinstance(source, Program) else source()
        except ImportError:
            raise
        except Exception as error:  # noqa: BLE001 - Pallas raises many kinds, and each is its verdict
            found[name] = Compiled("rejected", f"{type(error).__name__}: {error}")
            continue
        by_devices.setdefault(program.devices, {})[name] = program
    for devices, group in by_devices.items():
        runs = _Runs(chip, devices, timeout_s, memory_bytes)
        for name, compiled in runs.compile(group).items():
            found[name] = compiled
            if compiled.verdict in ("accepted", "rejected"):  # the others may depend on this computer
                cache.put(name, asdict(compiled))
    return [found[name] for name in names]


def _made(source: Program | Source) -> Program | Exception:
    try:
        return source if isinstance(source, Program) else source()
    except ImportError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        return error


def _refuse(error: Exception) -> Program:
    raise error


_FIELDS = tuple(Compiled.__dataclass_fields__)


class _Runs:
    """Child processes for programs of one topology."""

    def __init__(self, chip: str, devices: int, timeout_s: float, memory_bytes: int) -> None:
        shape = "x".join(map(str, Slice.smallest(chip, devices).shape))
        self.topology = f"{_TOPOLOGY.get(chip, chip)}:{shape}"
        self.timeout_s = timeout_s
        self.memory_bytes = memory_bytes
        self.profiles = chip not in _WITHOUT_PROFILE

    def compile(self, programs: dict[str, Program]) -> dict[str, Compiled]:
        """Answers by name; a program that ends its process is tried once more without the profile."""
        found: dict[str, Compiled] = {}
        again: list[str] = []
        names = list(programs)
        while names:
            batch = {name: programs[name] for name in names[:_BATCH]}
            answers = self._run(batch, self.profiles)
            for name, answer in answers.items():
                found[name] = answer
                if answer.verdict == "crashed" and self.profiles:
                    again.append(name)
            names = [name for name in names if name not in answers]
        for name in again:
            first = found[name]
            second = self._run({name: programs[name]}, False)[name]
            reason = f"libtpu's profiler stopped: {first.error}"
            found[name] = replace(second, cycles=first.cycles, note=None if first.cycles else reason)
        return found

    def _run(self, programs: dict[str, Program], profiles: bool) -> dict[str, Compiled]:
        """One child; where it dies or takes too long, the answers up to the program at fault, that one included."""
        with tempfile.TemporaryDirectory(prefix="tpusim_compile_") as name:
            folder, dumps = Path(name), Path(name, "dumps")
            dumps.mkdir()
            labels = {label: f"p{number}" for number, label in enumerate(programs)}
            for label, program in programs.items():
                (folder / f"{labels[label]}.mlir").write_text(program.text, encoding="utf-8")
            jobs = {
                "topology": self.topology,
                "memory_bytes": self.memory_bytes,
                "programs": [[labels[label], program.devices] for label, program in programs.items()],
            }
            (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
            flags = _DUMP.format(dumps) + (" " + _PROFILE.format(dumps) if profiles else "")
            died = self._child(folder, flags, 30 + self.timeout_s * len(programs))
            found: dict[str, Compiled] = {}
            for label, short in labels.items():
                answer = folder / f"{short}.json"
                if answer.exists():
                    error = json.loads(answer.read_text(encoding="utf-8"))["error"]
                    found[label] = Compiled("rejected", error) if error else _read(folder / short, Compiled("accepted"))
                else:
                    verdict, text = died or ("crashed", "the compiler's process ended without an answer")
                    found[label] = _read(dumps, Compiled(verdict, text))
                    break
            return found

    def _child(self, folder: Path, flags: str, timeout_s: float) -> tuple[str, str] | None:
        """Run it; how it ended, where that was not well."""
        environment = {**os.environ, **_ENVIRONMENT, "LIBTPU_INIT_ARGS": flags}
        command = [sys.executable, "-m", "tpusim.pallas.compile_run", str(folder)]
        try:
            child = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "timeout", f"no answer within {timeout_s:g} s"
        return None if child.returncode == 0 else ("crashed", _reason(child.stderr, child.returncode))


def _reason(stderr: str, status: int) -> str:
    """What a compiler that ended its process said."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    for line in lines:
        if re.match(r"F\d{4} ", line):
            return re.sub(r"^F\d{4} [\d:.]+ +\d+ \S+ ", "", line)[:400]
    return f"exit status {status}: {lines[-1][:400] if lines else 'no message'}"


def _read(dumps: Path, compiled: Compiled) -> Compiled:
    """``compiled`` with what the dumps of one program say of its kernels; XLA's own copies around them are left out."""
    texts = {path.name: path for path in dumps.iterdir()}
    kernels = {name for file, path in texts.items() if _PROGRAM.search(file) for name in _kernels(path)}
    slots: dict[str, int] = {}
    bundles = 0
    vmem = 0
    for file, path in texts.items():
        found = _DUMPED.fullmatch(file)
        if found is None or found["name"] not in kernels:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if found["what"] == "final_hlo-static-per-bundle-utilization":
            bundles += _add_utilisation(slots, text)
        elif found["what"] == "pre-finalize-registers-and-allocations":
            vmem = max(vmem, _vmem(text))
    profiles = [path.read_text(encoding="utf-8") for path in texts.values() if path.suffix == ".textproto"]
    return replace(
        compiled,
        cycles=_cycles(profiles, kernels),
        bundles=bundles or None,
        vmem_bytes=vmem or None,
        slots=slots or None,
    )


def _kernels(program: Path) -> list[str]:
    """The names of the kernels in a program's HLO."""
    return _KERNEL.findall(program.read_text(encoding="utf-8", errors="replace"))


def _cycles(profiles: Sequence[str], kernels: set[str]) -> int | None:
    """All kernels' cycles together; ``None`` unless the profiles tell those of every one.

    A profile may stand for several equal ones.  Where the profiler died, those of some may be there.
    """
    total = told = 0
    for text in profiles:
        values = dict(_FIELD.findall(text))
        if values.get("hlo_op_name", "").strip('"') in kernels:
            count = int(values.get("num_equivalent_hlos", "1"))
            cycles = int(values.get("estimated_cycles", "0"))
            if not cycles:
                return None
            told += count
            total += count * cycles
    return total if told == len(kernels) and told else None


def _vmem(text: str) -> int:
    sizes = dict(re.findall(r"(#allocation\d+) \[[^\n]*?space=vmem, size = (0x[0-9a-f]+)", text))
    return sum(int(size, 16) for size in sizes.values())


def _add_utilisation(slots: dict[str, int], text: str) -> int:
    """Add the slots of one kernel's schedule; its bundles."""
    head, _, body = text.partition("== UTILIZATION:")
    names = next((line for line in head.splitlines() if line.startswith("MXU")), "").split(", ")
    rows = [line.split() for line in body.splitlines() if line.strip()]
    for row in rows:
        for unit, count in zip(names, row, strict=False):
            if count != "0":
                slots[unit] = slots.get(unit, 0) + int(count)
    return len(rows)
