"""Tests of kernels: Hypothesis strategies, a decorator over every schedule, generators that replay.

Needs Hypothesis: ``pip install 'tpusim[testing]'``.  The pytest fixtures are in :mod:`tpusim.pytest_plugin`.
"""

from tpusim.testing.every_schedule import ScheduleFailure, every_schedule
from tpusim.testing.programs import Barrier, DmaProgram, Load, Start, Step, Store, Wait
from tpusim.testing.randomness import register_random
from tpusim.testing.strategies import dma_programs, dtypes, meshes, places, schedules, shapes, slices

__all__ = [
    "Barrier",
    "DmaProgram",
    "Load",
    "ScheduleFailure",
    "Start",
    "Step",
    "Store",
    "Wait",
    "dma_programs",
    "dtypes",
    "every_schedule",
    "meshes",
    "places",
    "register_random",
    "schedules",
    "shapes",
    "slices",
]
