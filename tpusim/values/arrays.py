"""Values of a native kernel: tracked scalars and arrays, what they compute and what that costs.

An :class:`Array` is immutable.  Each operation computes with NumPy under JAX's promotion rules and tells
its core, a :class:`Charger`, which JAX primitive ran on which shapes.  A run without data takes the same
way: shapes, dtypes and charges are the same, only ``data`` is ``None``.  A result of shape ``()`` is a
:class:`Scalar`, except without data, where it stays an Array because its value is not known.  What only
concerns the scalar unit (all shapes ``()``) is never charged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, Protocol

import numpy as np

from tpusim.errors import NotModelledError, OptionError, ShapeMismatchError, TracedValueError
from tpusim.values import numerics, shapes
from tpusim.values.numerics import NDArray, cast
from tpusim.values.promotion import (
    BOOL,
    FLOAT32,
    DType,
    canonical_dtype,
    inexact,
    kind_letter,
    kind_of,
    promote,
    summed,
)
from tpusim.values.scalars import (
    Scalar,
    apply_to_scalars,
    captured_constant,
    from_numpy,
    is_scalar,
    power_of,
    to_numpy,
)
from tpusim.values.shapes import Shape
from tpusim.values.traced import Traced
from tpusim.values.ufuncs import UFUNCS, Rule, Ufunc

__all__ = ["Array", "Charger", "Scalar", "known", "make_value", "promote"]


class Charger(Protocol):
    """Whoever executes a kernel and counts its time."""

    def charge(self, op: str, dtype: DType, shapes: tuple[Shape, ...], out_shape: Shape) -> None:
        """One JAX primitive ``op`` ran on operands of ``shapes`` and gave ``out_shape``.

        ``dtype`` is the one it computes in; for ``convert_element_type`` the operand's.
        """


class Array(Traced):
    """An immutable array value: ``data`` (``None`` in a run without data), ``shape``, ``dtype``, ``weak``.

    Whoever passes ``data`` promises that nothing writes to it as long as the value lives.
    """

    __slots__ = ("core", "data", "dtype", "shape", "weak")

    def __init__(self, core: Charger, data: NDArray | None, shape: Shape, dtype: DType, weak: bool = False) -> None:
        self.core = core
        self.data = data
        self.shape = shape
        self.dtype = dtype
        self.weak = weak

    def __repr__(self) -> str:
        return f"Array({self.shape}, {self.dtype.name}{', weak' if self.weak else ''})"

    def _describe(self) -> str:
        return f"an Array of shape {self.shape} and dtype {self.dtype.name}"

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def T(self) -> Any:
        """The array with its dimensions reversed."""
        return transpose(self.core, self, None)

    @property
    def at(self) -> NoReturn:
        """Not modelled."""
        raise NotModelledError("Array.at is not modelled; store into a ref, or build the value with tpusim.np.where")

    def astype(self, dtype: Any) -> Any:
        """The values converted as XLA converts: integers wrap, floats saturate to integers, NaN becomes 0."""
        return convert(self.core, self, canonical_dtype(dtype))

    def reshape(self, *shape: Any) -> Any:
        """The same elements in row-major order in a new shape; one size may be -1."""
        return reshape(self.core, self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Any:
        """The dimensions in the order of ``axes``, reversed by default."""
        return transpose(self.core, self, (axes[0] if len(axes) == 1 else axes) or None)

    def sum(self, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
        """The sum over ``axis``; see ``tpusim.np.sum``."""
        return reduce(self.core, "sum", self, axis, dtype, keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """The largest element along ``axis``."""
        return reduce(self.core, "max", self, axis, None, keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """The smallest element along ``axis``."""
        return reduce(self.core, "min", self, axis, None, keepdims)

    def mean(self, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
        """The mean over ``axis``, in a floating dtype."""
        return mean(self.core, self, axis, dtype, keepdims)

    def __matmul__(self, other: Any) -> Any:
        return matmul(self.core, self, other, None)

    def __rmatmul__(self, other: Any) -> Any:
        return matmul(self.core, other, self, None)

    def __getitem__(self, key: Any) -> Any:
        numpy_key, shape, primitive = shapes.index(self.shape, key)
        if not primitive:
            return self
        return run(self.core, primitive, (self,), shape, self.dtype, lambda data: data[numpy_key], weak=self.weak)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise TracedValueError(
            f"{self._describe()} is a value and cannot be written to. Store into the ref, `ref[...] = x`, or build a "
            "new value with `tpusim.np.where`."
        )

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeMismatchError("an Array of shape () has no length")
        return self.shape[0]

    def __iter__(self) -> Any:
        raise TracedValueError(
            f"iterating over {self._describe()} is not modelled. Write `x[0]`, `x[1]`, ... or "
            "`[x[i] for i in range(len(x))]`."
        )

    def _apply(self, ufunc: Ufunc, *operands: Any) -> Any:
        if any(not isinstance(item, Array | np.ndarray) and not is_scalar(item) for item in operands):
            return NotImplemented
        return apply(self.core, ufunc, *operands)


def make_value(core: Charger, data: NDArray | None, shape: Shape, dtype: DType, weak: bool = False) -> Any:
    """An :class:`Array`, or a :class:`Scalar` if the shape is ``()`` and there is data."""
    if not shape and data is not None:
        return from_numpy(np.asarray(data), dtype, weak)
    return Array(core, data, shape, dtype, weak)


def known(value: Any, what: str) -> Any:
    """The Python number behind a scalar operand of ``what``, for whoever executes the kernel.

    Raises ``OptionError`` naming ``data=True`` where it would come from contents a run without data lacks.
    """
    if type(value) is Scalar:
        return value.value
    if is_scalar(value):
        return value.item() if isinstance(value, np.generic | np.ndarray) else value
    if isinstance(value, Array) and not value.shape:
        raise OptionError(f"{what} depends on the contents of an array, which data=False leaves out: use data=True")
    raise ShapeMismatchError(f"{what} must be a scalar, not {shape_text(value)}")


def shape_text(value: Any) -> str:
    """How an error names a value of the wrong kind."""
    return value._describe() if isinstance(value, Traced) else repr(value)


def shape_of(operand: Any) -> Shape:
    """The shape of an operand; raises for captured constants and for what is no operand at all."""
    if type(operand) is Array:
        return operand.shape
    if is_scalar(operand):
        return ()
    if isinstance(operand, np.ndarray):
        raise captured_constant(operand)
    raise ShapeMismatchError(f"expected an Array or a number, not {operand!r}; a ref is read with `ref[...]`")


def run(
    core: Charger,
    primitive: str,
    operands: Sequence[Any],
    shape: Shape,
    dtype: DType,
    compute: Callable[..., Any],
    *,
    weak: bool = False,
    charged_dtype: DType | None = None,
    charged_shapes: tuple[Shape, ...] | None = None,
) -> Any:
    """Charge one primitive, compute it where there is data, and wrap the result.

    It is charged for ``dtype`` and the operands' shapes unless told otherwise.
    """
    operand_shapes = charged_shapes or tuple(map(shape_of, operands))
    if shape or any(operand_shapes):
        core.charge(primitive, charged_dtype or dtype, operand_shapes, shape)
    data = [operand.data if type(operand) is Array else to_numpy(operand) for operand in operands]
    if any(item is None for item in data):
        return Array(core, None, shape, dtype, weak)
    return make_value(core, compute(*data), shape, dtype, weak)


def convert(core: Charger, operand: Any, dtype: DType) -> Any:
    """``operand`` in ``dtype``, not weak; costs nothing where it already has it."""
    if type(operand) is not Array:
        return from_numpy(cast(to_numpy(operand), dtype), dtype)
    if operand.dtype == dtype:
        return Array(core, operand.data, operand.shape, dtype) if operand.weak else operand
    return run(
        core,
        "convert_element_type",
        (operand,),
        operand.shape,
        dtype,
        lambda data: cast(data, dtype),
        charged_dtype=operand.dtype,
    )


def apply(core: Charger, ufunc: Ufunc, *operands: Any) -> Any:
    """An elementwise operation: promotion (charged as conversions), broadcasting, result."""
    operand_shapes = tuple(map(shape_of, operands))
    if not any(type(operand) is Array for operand in operands):
        return apply_to_scalars(ufunc, *operands)
    if ufunc is UFUNCS["power"]:
        ufunc = power_of(*operands)
    dtype, out_dtype, weak = ufunc.resolve(operands)
    if kind_letter(dtype) in ufunc.keeps:
        return operands[0]
    shape = shapes.broadcast(ufunc.name, operand_shapes)
    primitive = "ne" if ufunc.rule is Rule.LOGICAL else "convert_element_type"
    for operand, operand_shape in zip(operands, operand_shapes, strict=True):
        if operand_shape and operand.dtype != dtype:
            core.charge(primitive, operand.dtype, (operand_shape,), operand_shape)
    return run(
        core,
        ufunc.primitive,
        operands,
        shape,
        out_dtype,
        lambda *data: ufunc.compute(data, dtype, out_dtype),
        weak=weak,
        charged_dtype=dtype,
    )


def reshape(core: Charger, operand: Any, new_shape: Any) -> Any:
    """``jax.numpy.reshape``."""
    old, wanted = shape_of(operand), shapes.reshaped(shape_of(operand), new_shape)
    dtype, weak = kind_of(operand)
    if old == wanted:
        return operand if isinstance(operand, Traced) else from_numpy(to_numpy(operand), dtype, weak)
    return run(core, "reshape", (operand,), wanted, dtype, lambda data: data.reshape(wanted), weak=weak)


def transpose(core: Charger, operand: Any, axes: Any) -> Any:
    """``jax.numpy.transpose``."""
    shape, (dtype, weak) = shape_of(operand), kind_of(operand)
    order = tuple(reversed(range(len(shape)))) if axes is None else shapes.axes_of("transpose", axes, len(shape))
    if len(order) != len(shape):
        raise ShapeMismatchError(f"transpose: axes {axes} do not permute the dimensions of shape {shape}")
    if order == tuple(range(len(shape))):
        return operand
    wanted = tuple(shape[axis] for axis in order)
    return run(core, "transpose", (operand,), wanted, dtype, lambda data: data.transpose(order), weak=weak)


_REDUCTIONS: Final[dict[str, tuple[str, Callable[..., Any]]]] = {
    "sum": ("reduce_sum", np.sum),
    "prod": ("reduce_prod", np.prod),
    "max": ("reduce_max", np.max),
    "min": ("reduce_min", np.min),
    "any": ("reduce_or", np.any),
    "all": ("reduce_and", np.all),
}


def reduce(core: Charger, name: str, operand: Any, axis: Any, dtype: Any, keepdims: bool) -> Any:
    """A reduction by name; sums and products of small floats run in float32, of small integers in 32 bits."""
    primitive, function = _REDUCTIONS[name]
    shape, own = shape_of(operand), kind_of(operand)[0]
    axes = shapes.axes_of(name, axis, len(shape))
    result = canonical_dtype(dtype) if dtype is not None else own
    if name in ("any", "all"):
        result = BOOL
    elif name in ("sum", "prod") and dtype is None:
        result = summed(own)
    elif name in ("max", "min") and 0 in (shape[item] for item in axes):
        raise ShapeMismatchError(f"{name}: the dimensions reduced of shape {shape} hold no element")
    computed = numerics.accumulator(result) if name in ("sum", "prod") else result
    working = convert(core, operand, computed)
    out_shape = shapes.reduced(shape, axes, keepdims)

    def compute(data: NDArray) -> NDArray:
        wide = cast(data, numerics.working_dtype(computed))
        with np.errstate(all="ignore"):
            kwargs = {"dtype": wide.dtype} if name in ("sum", "prod") else {}
            return cast(np.asarray(function(wide, axis=axes, keepdims=keepdims, **kwargs)), computed)

    return convert(core, run(core, primitive, (working,), out_shape, computed, compute), result)


def mean(core: Charger, operand: Any, axis: Any, dtype: Any, keepdims: bool) -> Any:
    """``jax.numpy.mean``: a sum in at least float32, divided by the count."""
    shape, own = shape_of(operand), kind_of(operand)[0]
    result = canonical_dtype(dtype) if dtype is not None else inexact(own)
    if kind_letter(result) != "f":
        raise NotModelledError(f"mean in dtype {result.name} is not modelled; a floating dtype is")
    computed = numerics.accumulator(result)
    count = math.prod(shape[item] for item in shapes.axes_of("mean", axis, len(shape)))
    total = reduce(core, "sum", operand, axis, computed, keepdims)
    return convert(core, apply(core, UFUNCS["divide"], total, Scalar(float(count), FLOAT32, weak=True)), result)


def matmul(core: Charger, a: Any, b: Any, preferred: Any) -> Any:
    """``jax.numpy.matmul``."""
    return contract(core, np.matmul, shapes.matmul(shape_of(a), shape_of(b)), a, b, preferred)


def contract(
    core: Charger, product: Callable[[NDArray, NDArray], Any], plan: shapes.Contraction, a: Any, b: Any, preferred: Any
) -> Any:
    """A dot product as one ``dot_general``, accumulated in at least 32 bits.

    It is charged for the shapes of the equivalent matrix product, batch dimensions first.
    """
    dtype, weak = promote(a, b)
    out = canonical_dtype(preferred) if preferred is not None else dtype
    return run(
        core,
        "dot_general",
        (a, b),
        plan.shape,
        out,
        lambda x, y: numerics.contract(product, x, y, out),
        weak=weak and preferred is None,
        charged_dtype=dtype,
        charged_shapes=plan.matrices,
    )
