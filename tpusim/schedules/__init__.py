"""Schedules: in which order a run lets things happen that may happen in any order; tokens that replay one."""

from tpusim.schedules.operations import ANY, LEGS, Operation, Ordinals, Place, function_name, plain
from tpusim.schedules.policies import GRANULE, HOLD, Choice, Hold, Schedule, Step, draw
from tpusim.schedules.tokens import NAMES, check_schedule, hold_token, make_schedule, split_token, token_of

__all__ = [
    "ANY",
    "GRANULE",
    "HOLD",
    "LEGS",
    "NAMES",
    "Choice",
    "Hold",
    "Operation",
    "Ordinals",
    "Place",
    "Schedule",
    "Step",
    "check_schedule",
    "draw",
    "function_name",
    "hold_token",
    "make_schedule",
    "plain",
    "split_token",
    "token_of",
]
