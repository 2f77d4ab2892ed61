"""What a published kernel is run with: a case a kernel, registered by the module of its package.

A case is built in the process that runs it.  Inputs are small, seeded and NumPy's; what the kernel should
give comes from plain JAX, where the package has a reference that one, and is computed before anything runs
on the simulated machine.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

PACKAGES = {
    "jax": "published.jax_ops",
    "tokamax": "published.tokamax_ops",
    "tpu_inference": "published.tpu_inference_ops",
}
"""Modules that register cases, by the package the kernels come from."""


class Missing(Exception):
    """The package is not there, or its module cannot be imported; the text says which and why."""


class Built(NamedTuple):
    """A kernel ready to run: ``fn(*arrays)`` should give ``want``, a tree of arrays like its results.

    ``None`` in ``want`` stands for a result that means nothing; ``keep`` picks the part of the results that
    means something, where that is not all of each array.
    """

    fn: Callable[..., Any]
    arrays: Sequence[Any]
    want: Any
    tolerance: float = 2e-3
    keep: Callable[[Any], Any] | None = None


class Case(NamedTuple):
    """A published kernel; ``build`` gets the mesh of its devices (``None`` for one)."""

    name: str
    build: Callable[[Any], Built]
    axes: Mapping[str, int] = {}
    slice: str = "v5e:1x1"
    is_quick: bool = False
    """Whether building and running it takes a few seconds at most: the tests run these."""
    findings: tuple[str, ...] = ()
    """Kinds of findings that are known and true; the tests expect these and no others."""
    note: str = ""
    """What the row says about them."""

    @property
    def devices(self) -> int:
        """How many devices it runs on."""
        return prod(self.axes.values())

    def abstract_mesh(self) -> Any:
        """The mesh without devices; ``None`` for a kernel of one device."""
        from jax.sharding import AbstractMesh

        return self._made(AbstractMesh)

    def cpu_mesh(self) -> Any:
        """The mesh over virtual CPU devices; ``None`` for a kernel of one device."""
        import jax

        return self._made(jax.make_mesh)

    def _made(self, make: Callable[..., Any]) -> Any:
        from jax.sharding import AxisType

        types = (AxisType.Auto,) * len(self.axes)
        return make(tuple(self.axes.values()), tuple(self.axes), axis_types=types) if self.axes else None


def load(package: str) -> dict[str, Case]:
    """The cases of a package by name; nothing of the package itself is imported."""
    return {case.name: case for case in importlib.import_module(PACKAGES[package]).CASES}


def rng() -> np.random.Generator:
    """The generator of a case's inputs."""
    return np.random.default_rng(0)


def normal(generator: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """Normally distributed values."""
    return generator.standard_normal(shape).astype(np.float32).astype(dtype)


def differs(got: Any, want: Any, tolerance: float) -> str:
    """How results differ from what they should be; empty where they agree."""
    import jax

    got_leaves = jax.tree.leaves(got, is_leaf=lambda leaf: leaf is None)
    want_leaves = jax.tree.leaves(want, is_leaf=lambda leaf: leaf is None)
    if len(got_leaves) != len(want_leaves):
        return f"{len(got_leaves)} results instead of {len(want_leaves)}"
    for number, (mine, theirs) in enumerate(zip(got_leaves, want_leaves, strict=True)):
        if theirs is None:
            continue
        mine, theirs = np.asarray(mine), np.asarray(theirs)
        if mine.shape != theirs.shape:
            return f"result {number} has shape {mine.shape} instead of {theirs.shape}"
        if theirs.dtype.kind in "iub":
            if not np.array_equal(mine, theirs):
                return f"result {number}: {np.count_nonzero(mine != theirs)} of {mine.size} elements differ"
            continue
        mine, theirs = mine.astype(np.float64), theirs.astype(np.float64)
        distance = np.abs(mine - theirs) / (1 + np.abs(theirs))
        wrong = ~(distance <= tolerance)  # NaN is wrong
        if wrong.any():
            worst = "NaN" if np.isnan(distance).any() else f"{distance.max():.3g}"
            return f"result {number}: {np.count_nonzero(wrong)} of {mine.size} elements differ, by up to {worst}"
    return ""
