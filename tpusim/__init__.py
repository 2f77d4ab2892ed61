"""Run one TPU DMA program on an ordinary computer: its data, its time and a verdict.

Names are loaded when they are first used: `import tpusim` itself brings in nothing, not even NumPy, so that
it costs nothing where it is only looked at (a pytest plugin, a command that prints its help).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpusim import np as np
    from tpusim import pallas as pallas
    from tpusim.comparison import compare as compare
    from tpusim.descriptors import AsyncCopyDescriptor as AsyncCopyDescriptor
    from tpusim.descriptors import async_copy as async_copy
    from tpusim.descriptors import async_remote_copy as async_remote_copy
    from tpusim.descriptors import make_async_copy as make_async_copy
    from tpusim.descriptors import make_async_remote_copy as make_async_remote_copy
    from tpusim.descriptors import sync_copy as sync_copy
    from tpusim.language import axis_index as axis_index
    from tpusim.language import axis_size as axis_size
    from tpusim.language import debug_print as debug_print
    from tpusim.language import delay as delay
    from tpusim.language import ds as ds
    from tpusim.language import fori_loop as fori_loop
    from tpusim.language import get_barrier_semaphore as get_barrier_semaphore
    from tpusim.language import num_programs as num_programs
    from tpusim.language import program_id as program_id
    from tpusim.language import run_scoped as run_scoped
    from tpusim.language import semaphore_read as semaphore_read
    from tpusim.language import semaphore_signal as semaphore_signal
    from tpusim.language import semaphore_wait as semaphore_wait
    from tpusim.language import when as when
    from tpusim.language import where as where
    from tpusim.program import Kernel as Kernel
    from tpusim.program import kernel as kernel
    from tpusim.specs import ANY as ANY
    from tpusim.specs import HBM as HBM
    from tpusim.specs import SMEM as SMEM
    from tpusim.specs import VMEM as VMEM
    from tpusim.specs import BlockSpec as BlockSpec
    from tpusim.specs import MemorySpace as MemorySpace
    from tpusim.specs import SemaphoreType as SemaphoreType
    from tpusim.specs import ShapeDtypeStruct as ShapeDtypeStruct
    from tpusim.sweep import autotune as autotune
    from tpusim.units import Duration as Duration

_NAMES = {
    "tpusim.comparison": ("compare",),
    "tpusim.descriptors": (
        "AsyncCopyDescriptor",
        "async_copy",
        "async_remote_copy",
        "make_async_copy",
        "make_async_remote_copy",
        "sync_copy",
    ),
    "tpusim.language": (
        "axis_index",
        "axis_size",
        "debug_print",
        "delay",
        "ds",
        "fori_loop",
        "get_barrier_semaphore",
        "num_programs",
        "program_id",
        "run_scoped",
        "semaphore_read",
        "semaphore_signal",
        "semaphore_wait",
        "when",
        "where",
    ),
    "tpusim.program": (
        "Kernel",
        "kernel",
    ),
    "tpusim.specs": (
        "ANY",
        "HBM",
        "SMEM",
        "VMEM",
        "BlockSpec",
        "MemorySpace",
        "SemaphoreType",
        "ShapeDtypeStruct",
    ),
    "tpusim.sweep": ("autotune",),
    "tpusim.units": ("Duration",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = ("np", "pallas")
__all__ = [*_HOME]  # all of them strings; without the modules, `np` above all, for an import of everything


def __getattr__(name: str) -> Any:
    """A public name, loaded when it is first asked for."""
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = import_module(f"tpusim.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
