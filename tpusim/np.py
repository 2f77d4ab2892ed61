"""``tpusim.np``: jax.numpy's names inside a kernel, on the active backend.

On the simulator each call computes with NumPy under JAX's promotion rules and charges its cost to the
core; in a Pallas trace it is ``jax.numpy`` itself.
"""

from __future__ import annotations

from typing import Any

from tpusim.backend import active


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(active().np, name)
