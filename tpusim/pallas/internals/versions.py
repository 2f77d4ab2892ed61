"""Which versions of jax these uses of its internals were checked on, and how a private name is looked up.

A module of JAX is looked up here, and an attribute of it when it is used: a jax that moved or renamed one
raises ``NotModelledError`` with that name where a program needs it, and everything else goes on.
"""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from typing import Any, NoReturn

import jax

from tpusim.errors import NotModelledError

CHECKED = ("0.10.2", "0.12.0.1")
"""Versions of jax the suite passes on; the modules beside this one name what differs between them."""


class PrivateModule:
    """A private module of JAX, the first of ``paths`` that this jax has."""

    def __init__(self, *paths: str) -> None:
        self._paths = paths

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = _find(self._paths)
        if module is None or not hasattr(module, name):
            _missing(f"{self._paths[-1]}.{name}")
        value = getattr(module, name)
        setattr(self, name, value)
        return value

    def has(self, name: str) -> bool:
        """Whether this jax has the module and the name."""
        return hasattr(_find(self._paths), name)

    def type(self, name: str) -> Any:
        """A class; where this jax has none of that name, one without instances."""
        return getattr(self, name) if self.has(name) else type(name, (), {})

    def module(self) -> Any:
        """The module itself, to replace names in it."""
        found = _find(self._paths)
        return found if found is not None else _missing(self._paths[-1])


def _find(paths: tuple[str, ...]) -> Any:
    for path in paths:
        try:
            return importlib.import_module(path)
        except ImportError:
            continue
    return None


def _missing(name: str) -> NoReturn:
    raise NotModelledError(
        f"jax {jax.__version__} has no {name}, which tpusim needs here; it was checked with jax {', '.join(CHECKED)}"
    )


@cache
def warn_if_newer() -> None:
    """Say once that this jax is newer than any that was checked."""
    mine = _numbers(jax.__version__)
    if mine > max(_numbers(version) for version in CHECKED):
        warnings.warn(
            f"tpusim was checked with jax up to {CHECKED[-1]}; this is {jax.__version__}. Captured programs may "
            "meet primitives or parameters it does not know.",
            stacklevel=4,
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
