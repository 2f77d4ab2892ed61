"""Tracked scalars and arrays without JAX: index arithmetic, wrap-around, what Python may not ask, charges."""

from __future__ import annotations

import math
import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim.errors import (
    NotModelledError,
    OptionError,
    OutOfBoundsError,
    ShapeMismatchError,
    TracedValueError,
)
from tpusim.values import Array, Scalar, known, make_value, promote
from tpusim.values.scalars import FALSE, TRUE
from tpusim.values.simulated_numpy import SimulatedNumpy

F32, I32, BF16, BOOL = np.dtype(np.float32), np.dtype(np.int32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.bool_)


class Recorder:
    """A core that writes down its charges."""

    def __init__(self) -> None:
        self.charges: list[tuple[Any, ...]] = []

    def charge(self, op: str, dtype: Any, shapes: Any, out_shape: Any) -> None:
        self.charges.append((op, dtype.name, shapes, out_shape))


@pytest.fixture
def core() -> Recorder:
    return Recorder()


def array(core: Recorder, shape: tuple[int, ...], dtype: np.dtype[Any] = F32, data: bool = True) -> Array:
    values = np.arange(math.prod(shape)).reshape(shape).astype(dtype) if data else None
    return Array(core, values, shape, dtype)


def message(text: str) -> str:
    """An anchored expression for the whole of a message."""
    import re

    return rf"^{re.escape(text)}$"


# -- scalars ------------------------------------------------------------------------------------------


INT32 = st.integers(-(2**31), 2**31 - 1)


def wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


@given(INT32, INT32)
def test_arithmetic_wraps_as_int32(x, y):
    for operation in (operator.add, operator.sub, operator.mul):
        for left, right in ((Scalar(x), Scalar(y)), (Scalar(x), y), (x, Scalar(y))):
            result = operation(left, right)
            assert (type(result), result.dtype, result.value) == (Scalar, I32, wrapped(operation(x, y)))
            assert type(result.value) is int


@given(INT32, INT32)
def test_division_floors(x, y):
    for left, right in ((Scalar(x), Scalar(y)), (Scalar(x), y), (x, Scalar(y))):
        quotient, remainder = left // right, left % right
        if y == 0:
            assert (quotient.value, remainder.value) == (-2 if x else -1, 0)
        else:
            assert (quotient.value, remainder.value) == (wrapped(x // y), x % y)
        assert quotient.dtype is remainder.dtype is I32


@given(INT32, INT32)
def test_comparisons_give_bool_scalars(x, y):
    for operation in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
        for left, right in ((Scalar(x), Scalar(y)), (Scalar(x), y), (x, Scalar(y))):
            result = operation(left, right)
            assert (result.dtype, result.value) == (BOOL, operation(x, y))
            assert type(result.value) is bool


@given(INT32, INT32)
def test_bits(x, y):
    for operation in (operator.and_, operator.or_, operator.xor):
        assert operation(Scalar(x), Scalar(y)).value == operation(x, y)
        assert operation(x, Scalar(y)).value == operation(x, y)
    assert (~Scalar(x)).value == ~x
    shift = y % 40
    assert (Scalar(x) << shift).value == (wrapped(x << shift) if shift < 32 else 0)
    assert (Scalar(x) >> shift).value == x >> shift
    assert (Scalar(x) << -1).value == 0
    assert (1 << Scalar(5)).value == 32


@pytest.mark.parametrize("operation", [operator.and_, operator.or_, operator.xor])
@pytest.mark.parametrize("x", [True, False])
@pytest.mark.parametrize("y", [True, False])
def test_bool_operators(operation, x, y):
    for left, right in ((Scalar(x, BOOL), Scalar(y, BOOL)), (Scalar(x, BOOL), y), (x, Scalar(y, BOOL))):
        result = operation(left, right)
        assert (result.dtype, result.value) == (BOOL, operation(x, y))
    assert (~Scalar(x, BOOL)).value is (not x)


def test_unary_and_other_operators():
    x = Scalar(-7)
    assert ((-x).value, (+x).value, abs(x).value, round(x).value) == (7, -7, 7, -7)
    assert (-Scalar(-(2**31))).value == -(2**31)
    assert [part.value for part in divmod(x, 3)] == [-3, 2]
    assert [part.value for part in divmod(20, Scalar(6))] == [3, 2]
    assert (x**2).value == 49
    assert (2 ** Scalar(5)).value == 32
    half = x / 2
    assert (half.value, half.dtype) == (-3.5, F32)
    assert (1 / Scalar(0)).value == math.inf


def test_weakness_follows_the_operands():
    weak, strong = Scalar(3, I32, weak=True), Scalar(4)
    assert (weak + 1).weak
    assert (1 - weak).weak
    assert (weak * weak).weak
    assert not (weak + strong).weak
    assert not (strong + 1).weak
    small = Scalar(2, np.int8)
    assert ((weak + small).dtype, (strong + small).dtype) == (np.int8, I32)
    assert promote(weak, BF16) == (BF16, False)
    assert promote(weak, 2.0) == (F32, True)


def test_floats_round_to_their_dtype():
    tenth = Scalar(0.1, F32) * 1
    assert tenth.value == float(np.float32(0.1))
    assert (Scalar(1.0, BF16) + 0.001).value == 1.0
    assert Scalar(3.99).astype("int8").value == 3
    assert Scalar(300).astype(np.int8).value == 44
    assert Scalar(1e9, F32).astype("uint8").value == 255
    assert Scalar(-2.5, F32).astype(bool).value is True
    assert Scalar(5).astype(np.float32).value == 5.0


def test_numpy_scalars_are_operands():
    assert (Scalar(3) + np.int32(4)).value == 7
    assert (np.int32(4) - Scalar(3)).value == 1
    assert (np.float32(0.5) * Scalar(3)).value == 1.5
    assert (Scalar(3) + np.int64(4)).dtype is I32


def test_scalar_repr_and_attributes():
    x = Scalar(3)
    assert (repr(x), repr(Scalar(2.5, F32, weak=True))) == ("Scalar(3, int32)", "Scalar(2.5, float32, weak)")
    assert (x.shape, x.ndim, x.size, x.T is x, x[...] is x) == ((), 0, 1, True, True)
    assert not hasattr(x, "item")  # descriptors tell tracked scalars by it
    with pytest.raises(AttributeError):
        x.other = 1


def test_equality_with_something_else_is_false():
    assert (Scalar(1) == None) is False  # noqa: E711 - the comparison is the point
    assert (Scalar(1) != "x") is True
    with pytest.raises(TypeError):
        Scalar(1) + "x"  # type: ignore[operator]


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_python_integer_out_of_range(number):
    text = message(f"the Python integer {number} does not fit int32; write tpusim.np.uint32({number})")
    for use in (lambda: Scalar(0) + number, lambda: Scalar(1) < number, lambda: Scalar(1) & number):
        with pytest.raises(OverflowError, match=text):
            use()


def test_dtypes_that_an_operation_lacks():
    with pytest.raises(ShapeMismatchError, match=message("subtract does not accept operands of dtype bool")):
        TRUE - FALSE
    with pytest.raises(ShapeMismatchError, match=message("bitwise_and does not accept operands of dtype float32")):
        Scalar(1) & 2.5
    with pytest.raises(
        ShapeMismatchError, match=message("integers cannot be raised to the negative power -2; make the base a float")
    ):
        Scalar(3) ** -2
    with pytest.raises(
        ShapeMismatchError,
        match=message(
            "JAX has no implicit promotion of bfloat16 and float8_e5m2: convert one operand with .astype(...)"
        ),
    ):
        Scalar(1.0, BF16) + Scalar(1.0, ml_dtypes.float8_e5m2)
    with pytest.raises(NotModelledError, match=r"^complex values are not modelled$"):
        promote(1j)
    with pytest.raises(NotModelledError, match=r"^values of dtype complex64 are not modelled; modelled: bool, uint4, "):
        Scalar(0, np.complex64)


# -- what Python may not ask ----------------------------------------------------------------------------

BRANCH = (
    "Python cannot branch on it (if, while, and, or, not, assert, a < b < c, min, max, in). Write "
    "`@tpusim.when(condition)` above a function that holds the body, or `tpusim.where(condition, x, y)` to choose a "
    "value; combine conditions with &, | and ~; for min and max write `tpusim.np.minimum` and `tpusim.np.maximum`."
)
INDEX = (
    "it cannot be a Python integer. Instead of `for i in range(n)` write `tpusim.fori_loop(0, n, body, init)`; "
    "instead of indexing a list or tuple with it put the values into a ref and read `ref[i]`, or choose with "
    "`tpusim.where`; for a slice of a ref write `ref[tpusim.ds(start, size)]`; a shape needs Python integers."
)
INT = "int(x) cannot convert it. Write `x.astype(tpusim.np.int32)`."
FLOAT = (
    "float(x) cannot convert it, nor can functions of `math`. Write `x.astype(tpusim.np.float32)`, and "
    "`tpusim.np.sqrt(x)` instead of `math.sqrt(x)`."
)
HASH = (
    "it cannot be a dictionary key, a set member or a cached argument. Use a Python integer (axis_size, a shape), or "
    "compare with == and choose with `tpusim.where`."
)
NUMPY = "NumPy cannot compute with it. Write `tpusim.np.exp(x)` instead of `numpy.exp(x)`."
ITERATE = "it has no elements to iterate over. To repeat something write `tpusim.fori_loop`."
LENGTH = "it has no length. Use a shape or axis_size, which are Python integers."

REFUSED = {
    "if": (lambda x: 1 if x else 2, BRANCH),
    "not": (lambda x: not x, BRANCH),
    "bool": (bool, BRANCH),
    "and": (lambda x: x and 1, BRANCH),
    "range": (lambda x: range(x), INDEX),
    "list index": (lambda x: [1, 2][x], INDEX),
    "list slice": (lambda x: [1, 2][x:], INDEX),
    "index": (operator.index, INDEX),
    "int": (int, INT),
    "float": (float, FLOAT),
    "sqrt": (math.sqrt, FLOAT),
    "hash": (hash, HASH),
    "key": (lambda x: {x: 1}, HASH),
    "asarray": (np.asarray, NUMPY),
}


@pytest.mark.parametrize("use", REFUSED)
def test_refused_on_a_scalar(use):
    function, text = REFUSED[use]
    start = "a tracked int32 scalar has a value that a Pallas trace would not know: "
    with pytest.raises(TracedValueError, match=message(start + text)):
        function(Scalar(1))


@pytest.mark.parametrize("use", REFUSED)
def test_refused_on_an_array(core, use):
    function, text = REFUSED[use]
    start = "an Array of shape (2, 3) and dtype float32 has a value that a Pallas trace would not know: "
    with pytest.raises(TracedValueError, match=message(start + text)):
        function(array(core, (2, 3)))


@pytest.mark.parametrize(
    "use", [lambda x: max(x, 2), lambda x: 0 < x < 3, lambda x: x in (5, 6), lambda x: sorted([x, Scalar(4)])]
)
def test_hidden_branches_are_refused(use):
    start = "a tracked bool scalar has a value that a Pallas trace would not know: "
    with pytest.raises(TracedValueError, match=message(start + BRANCH)):
        use(Scalar(1))


@pytest.mark.parametrize(("use", "text"), [(list, ITERATE), (len, LENGTH), (lambda x: [*x], ITERATE)])
def test_scalar_is_no_sequence(use, text):
    start = "a tracked int32 scalar has a value that a Pallas trace would not know: "
    with pytest.raises(TracedValueError, match=message(start + text)):
        use(Scalar(1))


def test_iterating_over_an_array(core):
    text = (
        "iterating over an Array of shape (2, 3) and dtype float32 is not modelled. Write `x[0]`, `x[1]`, ... or "
        "`[x[i] for i in range(len(x))]`."
    )
    with pytest.raises(TracedValueError, match=message(text)):
        list(array(core, (2, 3)))
    assert len(array(core, (2, 3))) == 2


def test_storing_into_an_array(core):
    text = (
        "an Array of shape (2, 3) and dtype float32 is a value and cannot be written to. Store into the ref, "
        "`ref[...] = x`, or build a new value with `tpusim.np.where`."
    )
    with pytest.raises(TracedValueError, match=message(text)):
        array(core, (2, 3))[0] = 1
    text = "Array.at is not modelled; store into a ref, or build the value with tpusim.np.where"
    with pytest.raises(NotModelledError, match=message(text)):
        _ = array(core, (2, 3)).at


def test_rounding_to_digits():
    text = "round(x, digits) on a tracked value: write `tpusim.np.round(x, digits)`."
    with pytest.raises(TracedValueError, match=message(text)):
        round(Scalar(2.5, F32), 1)
    assert round(Scalar(2.5, F32)).value == 2.0


# -- arrays -----------------------------------------------------------------------------------------------


def test_operators_charge_their_primitive(core):
    x = array(core, (8, 128))
    y = (x + 1) * x
    assert core.charges == [
        ("add", "float32", ((8, 128), ()), (8, 128)),
        ("mul", "float32", ((8, 128), (8, 128)), (8, 128)),
    ]
    assert np.array_equal(y.data, (x.data + 1) * x.data)
    assert repr(y) == "Array((8, 128), float32)"


def test_promotion_is_charged_as_a_conversion(core):
    x = array(core, (8, 128), BF16) + array(core, (8, 1), I32) * 2.0
    assert x.dtype == BF16
    assert core.charges == [
        ("convert_element_type", "int32", ((8, 1),), (8, 1)),
        ("mul", "float32", ((8, 1), ()), (8, 1)),
        ("convert_element_type", "float32", ((8, 1),), (8, 1)),
        ("add", "bfloat16", ((8, 128), (8, 1)), (8, 128)),
    ]


def test_reduction_and_mean_charges(core):
    x = array(core, (4, 8), BF16)
    assert x.sum(axis=1, keepdims=True).shape == (4, 1)
    assert core.charges == [
        ("convert_element_type", "bfloat16", ((4, 8),), (4, 8)),
        ("reduce_sum", "float32", ((4, 8),), (4, 1)),
        ("convert_element_type", "float32", ((4, 1),), (4, 1)),
    ]
    core.charges.clear()
    mean = array(core, (4, 8)).mean()
    assert (type(mean), mean.value, mean.dtype) == (Scalar, 15.5, F32)
    assert core.charges == [("reduce_sum", "float32", ((4, 8),), ())]  # the division is the scalar unit's


def test_mean_in_an_integer_dtype(core):
    with pytest.raises(NotModelledError, match=message("mean in dtype int32 is not modelled; a floating dtype is")):
        array(core, (4,)).mean(dtype=np.int32)


def test_products_are_charged_as_matrix_products(core):
    np_ = SimulatedNumpy(core)
    x, v = array(core, (4, 8), BF16), array(core, (8,), BF16)
    assert np_.dot(x, v, preferred_element_type=np_.float32).dtype == F32
    assert (x @ x.T).dtype == BF16
    assert np_.einsum("ij,kj->ik", x, x).shape == (4, 4)
    assert type(np_.dot(v, v)) is Scalar
    assert [charge for charge in core.charges if charge[0] == "dot_general"] == [
        ("dot_general", "bfloat16", ((4, 8), (8, 1)), (4,)),
        ("dot_general", "bfloat16", ((4, 8), (8, 4)), (4, 4)),
        ("dot_general", "bfloat16", ((4, 8), (8, 4)), (4, 4)),
        ("dot_general", "bfloat16", ((1, 8), (8, 1)), ()),
    ]


def test_int8_products_are_exact():
    core = Recorder()
    x = Array(core, np.full((2, 3000), -128, np.int8), (2, 3000), np.dtype(np.int8))
    np_ = SimulatedNumpy(core)
    assert np_.dot(x, x.T, preferred_element_type=np_.int32).data.tolist() == [[3000 * 2**14] * 2] * 2


def test_indexing_charges(core):
    x = array(core, (4, 6))
    assert x[...] is x
    assert x[:, :] is x
    assert type(x[1, 2]) is Scalar
    assert x[1, 2].value == 8.0
    assert x[Scalar(-1), 0].value == 18.0
    assert x[1:3, ::-1].data.tolist() == [[11, 10, 9, 8, 7, 6], [17, 16, 15, 14, 13, 12]]
    assert x[None].shape == (1, 4, 6)
    assert [charge[0] for charge in core.charges] == ["slice", "slice", "dynamic_slice", "rev", "broadcast_in_dim"]


INDEXING = [
    (4, OutOfBoundsError, "index 4 is out of bounds for dimension 0 (size 4) of an Array of shape (4, 6)"),
    ((0, -7), OutOfBoundsError, "index -7 is out of bounds for dimension 1 (size 6) of an Array of shape (4, 6)"),
    (Scalar(9), OutOfBoundsError, "index 9 is out of bounds for dimension 0 (size 4) of an Array of shape (4, 6)"),
    ((0, 0, 0), OutOfBoundsError, "3 indices for an Array of shape (4, 6)"),
    ((..., ...), ShapeMismatchError, "an index can have one `...` only"),
    (
        slice(Scalar(0), None),
        TracedValueError,
        "a slice of a value needs Python integers as bounds. Slice the ref instead, `ref[tpusim.ds(start, size)]`, "
        "which may start at a tracked scalar.",
    ),
    (
        [0, 1],
        NotModelledError,
        "indexing an Array with a list is not modelled; integers, slices with Python bounds, None and ... are",
    ),
    (
        TRUE,
        NotModelledError,
        "indexing an Array with a tracked bool scalar is not modelled; integers, slices with Python bounds, None and "
        "... are",
    ),
]


@pytest.mark.parametrize(("key", "error", "text"), INDEXING, ids=[text[:20] for _, _, text in INDEXING])
@pytest.mark.parametrize("data", [True, False])
def test_indices_that_fail(core, key, error, text, data):
    with pytest.raises(error, match=message(text)):
        array(core, (4, 6), data=data)[key]


def test_shapes_that_do_not_fit(core):
    x, y = array(core, (4, 6)), array(core, (3, 6))
    with pytest.raises(ShapeMismatchError, match=message("add: shapes (4, 6) and (3, 6) do not broadcast")):
        x + y
    text = "matmul: shapes (4, 6) and (3, 6) do not contract: 6 against 3"
    with pytest.raises(ShapeMismatchError, match=message(text)):
        x @ y
    text = "reshape: an array of shape (4, 6) does not fit shape (5, -1)"
    with pytest.raises(ShapeMismatchError, match=message(text)):
        x.reshape(5, -1)
    with pytest.raises(OutOfBoundsError, match=message("sum: axis 2 is out of bounds for 2 dimensions")):
        x.sum(axis=2)


def test_captured_constants_are_refused(core):
    text = (
        "a kernel cannot capture the constant array of shape (6,): Pallas refuses it too. Pass it as an input, or "
        "build it from tpusim.np.arange, full and where."
    )
    constant = np.arange(6)
    for use in (
        lambda: array(core, (4, 6)) + constant,
        lambda: constant + array(core, (4, 6)),
        lambda: Scalar(1) + constant,
        lambda: constant * Scalar(1),
        lambda: SimulatedNumpy(core).asarray(constant),
        lambda: SimulatedNumpy(core).exp(constant),
    ):
        with pytest.raises(OptionError, match=message(text)):
            use()


def test_numpy_functions_are_refused(core):
    with pytest.raises(TypeError, match="does not support ufuncs"):
        np.exp(array(core, (2,)))


def test_what_is_no_operand(core):
    with pytest.raises(ShapeMismatchError, match=r"^expected an Array or a number, not \[1\]; a ref is read with "):
        SimulatedNumpy(core).exp([1])
    with pytest.raises(TypeError, match="exp takes 1 arguments, not 2"):
        SimulatedNumpy(core).exp(1, 2)


def test_unknown_names(core):
    np_ = SimulatedNumpy(core)
    with pytest.raises(
        NotModelledError, match=r"^tpusim\.np\.logical_nand is not modelled; did you mean logical_and or "
    ):
        _ = np_.logical_nand
    text = "tpusim.np.qqqq is not modelled; build it from the functions that are"
    with pytest.raises(NotModelledError, match=message(text)):
        _ = np_.qqqq
    assert not hasattr(np_, "_hidden")
    assert np_.exp is np_.exp


def test_dtype_names(core):
    np_ = SimulatedNumpy(core)
    assert np.dtype(np_.bfloat16) == BF16
    assert np_.float32 == F32
    assert array(core, (2,)).dtype == np_.float32
    assert array(core, (2,)).astype(np_.bfloat16).dtype == BF16
    assert np_.float32(Scalar(3)).value == 3.0
    assert np_.uint32(2**32 - 1).value == 2**32 - 1
    assert repr(np_.bfloat16) == "tpusim.np.bfloat16"
    assert float(np_.finfo(np_.float32).max) == float(np.finfo(np.float32).max)


def test_shape_arguments_must_be_python_integers(core):
    np_ = SimulatedNumpy(core)
    for use in (
        lambda: np_.zeros((Scalar(2), 3)),
        lambda: np_.arange(Scalar(3)),
        lambda: np_.tile(Scalar(1), Scalar(2)),
    ):
        with pytest.raises(TracedValueError, match="it cannot be a Python integer"):
            use()


# -- without data -------------------------------------------------------------------------------------------


def program(np_: SimulatedNumpy, x: Array, y: Array) -> list[Any]:
    """A bit of everything, as a kernel would do it."""
    scaled = np_.exp(x - np_.max(x, axis=-1, keepdims=True))
    probabilities = scaled / np_.sum(scaled, axis=-1, keepdims=True)
    total = np_.sum(probabilities)
    return [
        probabilities @ y,
        np_.where(np_.arange(8)[None, :] < 4, probabilities, 0.0),
        probabilities * total + total,
        total * 2,
        np_.concatenate([x, np_.zeros((1, 8))], axis=0),
        x.astype(np_.bfloat16).T.reshape(-1)[3:5],
        x[0, 1] + 1,
        np_.clip(y, 0, 1).mean(axis=0) > 0.5,
        np_.argmax(x),
        np_.stack([total, total]),
    ]


def test_a_run_without_data_has_the_same_shapes_and_charges():
    core, blank_core = Recorder(), Recorder()
    full = program(SimulatedNumpy(core), array(core, (4, 8)), array(core, (8, 2)))
    blank = program(
        SimulatedNumpy(blank_core, data=False),
        array(blank_core, (4, 8), data=False),
        array(blank_core, (8, 2), data=False),
    )
    assert blank_core.charges == core.charges
    for ours, theirs in zip(blank, full, strict=True):
        assert type(ours) is Array
        assert ours.data is None
        assert (ours.shape, ours.dtype, ours.weak) == (theirs.shape, theirs.dtype, theirs.weak)


def test_values_for_the_executor(core):
    assert known(Scalar(3), "an index") == 3
    assert known(4, "an index") == 4
    assert known(np.int32(5), "an index") == 5
    text = "a condition depends on the contents of an array, which data=False leaves out: use data=True"
    with pytest.raises(OptionError, match=message(text)):
        known(array(core, (2,), data=False).sum(), "a condition")
    text = "a condition must be a scalar, not an Array of shape (2,) and dtype float32"
    with pytest.raises(ShapeMismatchError, match=message(text)):
        known(array(core, (2,)), "a condition")
    assert make_value(core, np.float32(2.5), (), F32).value == 2.5
    assert type(make_value(core, None, (), F32)) is Array


def test_scalar_selection_costs_nothing(core):
    np_ = SimulatedNumpy(core)
    i, n = Scalar(3), 4
    assert np_.where(i + 1 == n, 0, i + 1).value == 0
    assert np_.where(i == 0, 2.5, i).dtype is F32
    assert np_.minimum(i, n - 2).value == 2
    assert np_.maximum(i, Scalar(9)).value == 9
    assert np_.full((), i).value == 3
    assert np_.sqrt(i).dtype is F32
    assert np_.sum(i).value == 3
    assert core.charges == []
