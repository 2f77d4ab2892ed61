"""Run one TPU DMA program on an ordinary computer: its data, its time and a verdict."""

from typing import Any

from tpusim import np as np
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
from tpusim.units import Duration as Duration


def __getattr__(name: str) -> Any:
    """``tpusim.pallas``, when it is asked for."""
    if name == "pallas":
        import tpusim.pallas

        return tpusim.pallas
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
