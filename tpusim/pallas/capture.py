"""Unmodified Pallas programs on the simulated machine: traced and evaluated by us.

The outer function is traced once for argument types; no virtual CPU devices are needed, and a mesh may
be abstract.  Each device evaluates its part of the program in a greenlet of its own and enters kernels
when it gets there: calls are not joined unless the program joins them, also those of several shard_maps
(see `host_part`).  XLA operations between kernels run for their data and take no simulated time; a
collective among them joins its group.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tpusim.errors import OptionError
from tpusim.machine.machine import no_collection
from tpusim.observe import Observer
from tpusim.options import RunOptions
from tpusim.pallas import internals
from tpusim.pallas.blank import is_blank
from tpusim.pallas.compiler import require_compiler
from tpusim.pallas.host_part import Program, Run
from tpusim.pallas.internals.chip import simulated_chip
from tpusim.result import Result


def simulate(fn: Callable[..., Any], *, detail: bool = False, **options: Any) -> CapturedProgram:
    """A callable with ``fn``'s signature and results that runs its Pallas kernels on the simulated machine.

    ``options`` are the run options; ``mesh`` is the program's own.  After a call, ``.result`` is its
    :class:`tpusim.Result`.  ``detail`` keeps every load and store for a report, and how links were shared.
    """
    return CapturedProgram(fn, options, detail=detail)


class CapturedProgram:
    """``fn`` on the simulated machine; see :func:`simulate`.

    Arrays among the arguments, NumPy's or JAX's, are traced; everything else is what it is for ``fn``, so
    static arguments need no mark.  Results are JAX arrays.  With ``data=False`` an argument may be a
    ``jax.ShapeDtypeStruct``, and a result that depends on a kernel's arrays is ``None``.
    """

    def __init__(
        self, fn: Callable[..., Any], options: Mapping[str, Any], *, detail: bool = False, calls: int = 1
    ) -> None:
        if "mesh" in options:
            raise OptionError("a captured program brings its own mesh: leave the option mesh out")
        chosen = RunOptions.of(options)
        if chosen.compute == "exact":
            require_compiler("compute='exact'")
        internals.warn_if_newer()
        self.fn = fn
        self.options = options
        self.detail = detail
        self.calls = calls
        """How often the program is executed; devices wait for each other in between only where it says so."""
        self.observers: Sequence[Observer] = ()
        """Who watches the next run."""
        self.result: Result | None = None
        self._chip = chosen.chip_and_cores()
        self._has_told = False
        self._traces: dict[Any, Any] = {}
        self._program = Program()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run; returns what ``fn`` returns.  Raises the error of the first finding."""
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        arrays = [leaf for leaf in leaves if internals.is_array(leaf)]
        if self.options.get("data", True) and any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in arrays):
            raise OptionError("an argument is a jax.ShapeDtypeStruct: only a run with data=False needs no arrays")
        closed, out_tree, avals = self._trace(leaves, tree, arrays)
        self._tell_of_narrower_types(arrays, closed)
        self.result = None
        with no_collection():
            return self._run(closed, out_tree, avals, arrays)

    def _run(self, closed: Any, out_tree: Any, avals: list[Any], arrays: list[Any]) -> Any:
        run = Run(self._program, closed, self.options, detail=self.detail, calls=self.calls, observers=self.observers)
        try:
            self.result = run.simulate(arrays)
        except Exception as error:
            self.result = getattr(error, "result", None)
            raise
        if self.result.outputs is None and self.result.place and run.machine.data:
            return None  # the run stopped on its way, and its findings were only to be recorded
        results = [
            None if is_blank(value) else internals.as_result(value, aval, run.freeze(value))
            for value, aval in zip(run.values, avals, strict=True)
        ]
        return jax.tree_util.tree_unflatten(out_tree, results)

    def _tell_of_narrower_types(self, arrays: list[Any], closed: Any) -> None:
        """Warn once where an argument's values change because JAX computes with 32 bits."""
        jaxpr, _ = internals.open_jaxpr(closed)
        for number, (array, var) in enumerate(zip(arrays, jaxpr.invars, strict=True)):
            if self._has_told or not isinstance(array, np.ndarray | np.generic) or array.dtype == var.aval.dtype:
                continue
            if not np.array_equal(array, array.astype(var.aval.dtype), equal_nan=array.dtype.kind == "f"):
                self._has_told = True
                warnings.warn(
                    f"array argument {number} is {array.dtype} and is computed with as {var.aval.dtype}, as JAX does "
                    "while jax_enable_x64 is off; some of its values change.",
                    stacklevel=3,
                )

    def _trace(self, leaves: list[Any], tree: Any, arrays: list[Any]) -> tuple[Any, Any, list[Any]]:
        static = tuple(None if internals.is_array(leaf) else (type(leaf), leaf) for leaf in leaves)
        key: Any = (tree, static, tuple(internals.type_key(array) for array in arrays), internals.trace_context())
        try:
            found = self._traces.get(key)
        except TypeError:  # a static argument that cannot be looked up
            key = found = None
        if found is None:
            with simulated_chip(*self._chip):
                found = _trace(self.fn, leaves, tree, arrays)
            if key is not None:
                self._traces[key] = found
        return found


def _trace(fn: Callable[..., Any], leaves: list[Any], tree: Any, arrays: list[Any]) -> tuple[Any, Any, list[Any]]:
    """The jaxpr of ``fn`` over its array arguments, the tree of its results, and their types."""

    def over_arrays(*traced: Any) -> Any:
        given = iter(traced)
        args, kwargs = jax.tree_util.tree_unflatten(
            tree, [next(given) if internals.is_array(leaf) else leaf for leaf in leaves]
        )
        return fn(*args, **kwargs)

    closed, shape = jax.make_jaxpr(over_arrays, return_shape=True)(*arrays)
    jaxpr, _ = internals.open_jaxpr(closed)
    return closed, jax.tree_util.tree_structure(shape), [var.aval for var in jaxpr.outvars]
