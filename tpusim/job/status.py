"""Exit status of every command."""

from enum import IntEnum


class Status(IntEnum):
    """What a process says when it ends."""

    RIGHT = 0
    WRONG = 1
    """A finding of severity error, a wrong result, or an exception in the user's code."""
    BAD_ARGUMENTS = 2
    NOT_POSSIBLE = 3
    """Not modelled, or not possible on this computer."""
