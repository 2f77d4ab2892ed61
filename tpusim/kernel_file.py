"""FILE, the argument of most commands: ``path.py[:name]``, a Python file that holds a kernel.

The file is executed, once, under a module name of its own; next to the kernel it has ``inputs(...)``,
whose parameters all have defaults, and perhaps ``reference`` and ``lower_bound``.  A kernel with parameters
of its own, block sizes for one, has a factory beside it, ``make_kernel(bm=256, ...)``; ``kernel`` is then what
the factory makes by default (for another ``name`` the factory is ``make_name``).
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tpusim.errors import OptionError
from tpusim.program import Kernel

_HELPERS = ("inputs", "reference", "lower_bound")
"""Names of a FILE that mean something else."""


@dataclass(frozen=True)
class KernelFile:
    """What a FILE holds."""

    kernel: Kernel | Callable[..., Any]
    """A native kernel, or a JAX function to capture."""
    inputs: Callable[..., tuple[Any, ...]]
    """``inputs(devices=, shape=, dtype=, seed=)``: GLOBAL arrays; ``shape`` is one device's shard."""
    reference: Callable[..., Any] | None
    """``reference(*inputs, devices=)``: the GLOBAL outputs, in NumPy."""
    lower_bound: Callable[..., Any] | None
    """``lower_bound(slice, *inputs)``: no run on that slice can be faster."""
    path: Path
    name: str
    make: Callable[..., Any] | None = None
    """``make_kernel(**parameters)``: the kernel with other parameters than by default."""

    @property
    def digest(self) -> str:
        """SHA-256 of the file's content."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    @property
    def parameters(self) -> dict[str, list[str]]:
        """Names that ``make_kernel`` and ``inputs`` take, by function; devices are the mesh's business."""
        functions = {f"make_{self.name}": self.make, "inputs": self.inputs}
        return {
            name: [each for each in inspect.signature(function).parameters if each != "devices"]
            for name, function in functions.items()
            if function is not None
        }

    def made(self, parameters: Mapping[str, Any]) -> Kernel | Callable[..., Any]:
        """The kernel with those of ``parameters`` that its factory takes; the kernel itself where there are none."""
        own = {} if self.make is None else {key: parameters[key] for key in self._own if key in parameters}
        return self.make(**own) if self.make is not None and own else self.kernel

    @property
    def _own(self) -> list[str]:
        return self.parameters[f"make_{self.name}"]


def load_file(spec: str) -> KernelFile:
    """Import ``path.py[:name]`` (``name`` is ``kernel`` where it is left out).

    Raises :class:`OptionError` for a missing file, one that cannot be imported, and one without the
    kernel or ``inputs``.
    """
    path, name = _split(spec)
    module = _import(path)
    kernel = getattr(module, name, None)
    if kernel is None:
        raise OptionError(f"{path} has no {name!r}; kernels in it: {_kernels_in(module)}")
    if not callable(kernel) and not isinstance(kernel, Kernel):
        raise OptionError(f"{path}: {name!r} is neither a tpusim.Kernel nor a function but {type(kernel).__name__}")
    is_helper = name in _HELPERS or str(getattr(kernel, "__module__", "")).startswith("tpusim.")
    if is_helper and not isinstance(kernel, Kernel):
        raise OptionError(f"{path}: {name!r} is no kernel; kernels in it: {_kernels_in(module)}")
    inputs = getattr(module, "inputs", None)
    if not callable(inputs):
        raise OptionError(f"{path} needs a function inputs(...) that makes the kernel's global arrays")
    for parameter in inspect.signature(inputs).parameters.values():
        if parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise OptionError(f"{path}: parameter {parameter.name!r} of inputs() needs a default")
    make = getattr(module, f"make_{name}", None)
    return KernelFile(
        kernel,
        inputs,
        getattr(module, "reference", None),
        getattr(module, "lower_bound", None),
        path,
        name,
        make if callable(make) else None,
    )


def path_of(spec: str) -> Path:
    """The path in ``path.py[:name]``."""
    return Path(spec.rpartition(":")[0] if ".py:" in spec else spec)


def _kernels_in(module: ModuleType) -> str:
    return ", ".join(key for key, value in vars(module).items() if isinstance(value, Kernel)) or "none"


def _split(spec: str) -> tuple[Path, str]:
    file, colon, name = spec.rpartition(":")
    if not colon or not file.endswith(".py"):
        file, name = spec, "kernel"
    path = Path(file)
    if path.suffix != ".py":
        raise OptionError(f"{spec}: a kernel file is a Python file, path.py or path.py:name")
    if not path.is_file():
        raise OptionError(f"{path}: no such file")
    if not name.isidentifier():
        raise OptionError(f"{spec}: {name!r} is no Python name")
    return path, name


def _import(path: Path) -> ModuleType:
    content = path.read_bytes()
    digest = hashlib.sha256(str(path.resolve()).encode() + b"\0" + content).hexdigest()
    module_name = f"kernel_file_{path.stem}_{digest[:12]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path}: Python cannot import this file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    folder = str(path.resolve().parent)
    sys.path.append(folder)  # last, so that no file beside the kernel hides an installed package
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[module_name]
        if isinstance(error, SyntaxError | ImportError):
            raise OptionError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
        raise
    finally:
        sys.path.remove(folder)
    return module
