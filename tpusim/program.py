"""A kernel and its declarations: what runs on the simulated machine and through real Pallas."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpusim.declare import code_of, unwrapped
from tpusim.errors import OptionError
from tpusim.machine.memory import SpecCache

if TYPE_CHECKING:
    from tpusim.result import Result
    from tpusim.verdict import Verdict

Shapes = Any
"""A ``ShapeDtypeStruct`` or a tuple of them."""


class Kernel:
    """``shard_map(pallas_call(fn, ...), in_specs=shard_in, out_specs=shard_out)``, on two backends.

    ``out_shape`` is what ONE device produces: a ``ShapeDtypeStruct``, a tuple of them, or a function of
    the input shards (as ``ShapeDtypeStruct``) that returns it; ``axis_size`` works inside that function.
    ``scratch_shapes``, ``grid``, ``in_specs`` and ``out_specs`` may be such functions too.
    ``in_specs`` / ``out_specs``: a memory space or ``BlockSpec`` for each array (default: the whole
    shard in VMEM).  ``shard_in`` / ``shard_out``: for each array a tuple with one axis name, tuple of
    names or ``None`` per dimension (default: dimension 0 over all ``axes``).
    """

    def __init__(
        self,
        fn: Callable[..., None],
        *,
        out_shape: Any,
        axes: Sequence[str] = ("x",),
        shard_in: Any = None,
        shard_out: Any = None,
        in_specs: Any = None,
        out_specs: Any = None,
        scratch_shapes: Any = (),
        grid: Any = (),
        collective_id: int | None = None,
        vmem_limit_bytes: int | None = None,
        input_output_aliases: Mapping[int, int] | None = None,
        name: str | None = None,
    ) -> None:
        if not callable(fn) or code_of(fn) is None:
            raise OptionError(f"Kernel: fn must be a Python function, not {fn!r}")
        is_axes = not isinstance(axes, str) and axes and all(isinstance(axis, str) for axis in axes)
        if not is_axes or len(set(axes)) != len(tuple(axes)):
            raise OptionError(f"Kernel: axes must be different mesh axis names such as ('x',), not {axes!r}")
        self.fn = fn
        self.out_shape = out_shape
        self.axes = tuple(axes)
        self.shard_in = shard_in
        self.shard_out = shard_out
        self.in_specs = in_specs
        self.out_specs = out_specs
        self.scratch_shapes = scratch_shapes
        self.grid = grid
        self.collective_id = _whole("collective_id", collective_id, 0)
        self.vmem_limit_bytes = _whole("vmem_limit_bytes", vmem_limit_bytes, 1)
        self.input_output_aliases = dict(input_output_aliases or {})
        inner = unwrapped(fn)
        self.name: str = name or str(getattr(inner, "__name__", type(inner).__name__))
        self.specs: SpecCache = SpecCache()
        """Buffers of the simulated runs so far."""

    def __repr__(self) -> str:
        return f"Kernel({self.name}, axes={self.axes})"

    def simulate(self, *arrays: Any, **options: Any) -> Result:
        """Run on the simulated machine.

        ``arrays`` are GLOBAL arrays (or ``ShapeDtypeStruct`` with ``data=False``); ``options`` are the
        run options of :class:`tpusim.options.RunOptions`.  Returns a :class:`tpusim.Result` with GLOBAL
        ``outputs``; raises the error of the first finding unless ``on_finding="record"``.
        """
        from tpusim.native import simulate

        return simulate(self, arrays, options)

    def verify(self, *arrays: Any, calls: int = 1, **options: Any) -> Verdict:
        """Prove or refute that no schedule has a deadlock, leak, race or lifetime fault.

        ``arrays`` and ``options`` as for :meth:`simulate`.  ``calls``: so many calls on the same arrays, each device
        entering the next as soon as it has left one.  Never raises for a fault of the kernel.
        """
        from tpusim.native import simulate
        from tpusim.verify import attempt, check_options, verify_runs

        check_options(options, calls)
        return verify_runs(
            lambda more, observers: attempt(
                lambda: simulate(self, arrays, {**options, **more}, calls=calls, observers=observers)
            ),
            calls,
        )

    def pallas(self, mesh: Any, interpret: Any = None) -> Callable[..., Any]:
        """A function from GLOBAL arrays to the same GLOBAL arrays through real Pallas on a ``jax`` mesh.

        ``interpret``: ``True`` for TPU interpret mode with default parameters, a
        ``pltpu.InterpretParams``, or ``None``/``False`` for a real TPU.  Needs the ``pallas`` extra.
        """
        from tpusim.pallas.emit import emit

        return emit(self, mesh, interpret)


def _whole(name: str, value: Any, least: int) -> int | None:
    if value is None:
        return None
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise OptionError(f"Kernel: {name} is a whole number from {least}, or None, not {value!r}")
    return number


def kernel(*without: Any, **declarations: Any) -> Callable[[Callable[..., None]], Kernel]:
    """The decorator form of :class:`Kernel`."""
    if without:
        raise OptionError("kernel takes declarations by name: write @tpusim.kernel(out_shape=...) above the function")

    def decorate(fn: Callable[..., None]) -> Kernel:
        return Kernel(fn, **declarations)

    return decorate
