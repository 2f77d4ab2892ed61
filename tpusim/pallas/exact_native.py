"""A native kernel with the compiler's compute cost: its own operations have no jaxpr, so its Pallas form is captured.

Both ways in make the same copies, waits and signals; only the cost of compute differs, which is the purpose here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from tpusim.options import RunOptions
from tpusim.pallas.capture import CapturedProgram
from tpusim.pallas.emit import emit
from tpusim.result import Result
from tpusim.specs import ShapeDtypeStruct

if TYPE_CHECKING:
    from tpusim.program import Kernel


def simulate_exact(kernel: Kernel, arrays: Sequence[Any], options: dict[str, Any], detail: bool = False) -> Result:
    """Run the Pallas form of ``kernel`` on GLOBAL ``arrays``; ``options`` are those of its ``simulate``."""
    place = RunOptions.of(options).place(kernel.axes)
    mesh = jax.sharding.AbstractMesh(tuple(place.axis_sizes.values()), tuple(place.axis_sizes))
    rest = {name: value for name, value in options.items() if name != "mesh"}
    program = CapturedProgram(emit(kernel, mesh), {**rest, "slice": place.slice}, detail=detail)
    program(*(_as_jax(array) for array in arrays))
    if program.result is None:
        raise RuntimeError(f"{kernel.name}: the run gave no result")
    return program.result


def _as_jax(array: Any) -> Any:
    return jax.ShapeDtypeStruct(array.shape, array.dtype) if isinstance(array, ShapeDtypeStruct) else array
