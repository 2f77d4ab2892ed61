"""``tpusim.np`` on the simulator against ``jax.numpy``: every function, over dtypes and shapes.

Shape, dtype and weakness must be equal, values equal up to rounding; what jax.numpy refuses must be
refused here.  Each case also runs without data, which must give the same shapes, dtypes and charges.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tpusim.errors import NotModelledError, TpuSimError
from tpusim.numerics import cast, integer_limits
from tpusim.promotion import DTYPES, kind_letter
from tpusim.scalars import Scalar, from_numpy
from tpusim.simulated_numpy import SimulatedNumpy
from tpusim.ufuncs import UFUNCS
from tpusim.values import Array, promote

jax = pytest.importorskip("jax")
jnp = jax.numpy
pytestmark = pytest.mark.jax

REFUSALS = (TypeError, ValueError, OverflowError, IndexError, NotImplementedError)
JAX_GAP = "Invalid integer data type 'V'"
"""What jax.numpy says where it forgot 4-bit integers; it accepts them elsewhere."""

WIDE = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "bfloat16", "float16", "float32")
NARROW = ("int4", "uint4", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz")
SHAPES = ((), (3,), (2, 3), (2, 1))
TOLERANCE = {"float32": 3e-5, "bfloat16": 2.0**-7, "float16": 2.0**-9}
SMALLEST = {"float32": 1e-35, "bfloat16": 1e-35, "float16": 1e-4}


class Recorder:
    """A core that writes down its charges."""

    def __init__(self) -> None:
        self.charges: list[tuple[Any, ...]] = []

    def charge(self, op, dtype, shapes, out_shape):
        assert isinstance(dtype, np.dtype)
        assert all(type(size) is int for shape in (*shapes, out_shape) for size in shape)
        self.charges.append((op, dtype, shapes, out_shape))


def elements(name: str) -> st.SearchStrategy[Any]:
    letter = kind_letter(DTYPES[name])
    if letter == "b":
        return st.booleans()
    if letter in "iu":
        low, high = integer_limits(DTYPES[name])
        return st.one_of(st.integers(low, high), st.integers(max(low, -4), min(high, 9)), st.sampled_from([low, high]))
    special = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, np.inf, -np.inf, np.nan])
    return st.one_of(st.integers(-40, 40).map(lambda eighths: eighths / 8), special)


@st.composite
def operand(draw: Any, dtypes: tuple[str, ...] = WIDE, shapes: Any = SHAPES, python: bool = False) -> Any:
    """A NumPy array of one of ``dtypes``, or with ``python`` sometimes a Python number."""
    if python and draw(st.integers(0, 4)) == 0:
        return draw(st.one_of(st.integers(-3, 40), st.sampled_from([0.5, 2.0, -1.25]), st.booleans()))
    name = draw(st.sampled_from(dtypes))
    shape = draw(st.sampled_from(shapes) if isinstance(shapes, tuple) else shapes)
    letter = kind_letter(DTYPES[name])
    base = np.bool_ if letter == "b" else np.float32 if letter == "f" else np.int64
    return cast(draw(hnp.arrays(base, shape, elements=elements(name), fill=st.nothing())), DTYPES[name])


def simulated(core: Recorder, value: Any, data: bool = True) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if not value.shape:
        return from_numpy(value, value.dtype)
    return Array(core, value if data else None, value.shape, value.dtype)


def as_jax(value: Any) -> Any:
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


def run(function: Any, arguments: Any, data: bool) -> tuple[Any, Recorder]:
    core = Recorder()
    return function(SimulatedNumpy(core, data), *(simulated(core, item, data) for item in arguments)), core


def assert_same(ours: Any, theirs: Any, rtol: float | None = None) -> None:
    """Equal shape, dtype, weakness and, up to rounding, values."""
    assert isinstance(ours, Array | Scalar), ours
    name = ours.dtype.name
    assert (ours.shape, name) == (theirs.shape, theirs.dtype.name)
    assert name == "bool" or ours.weak == theirs.weak_type
    if isinstance(ours, Scalar):
        assert type(ours.value) is {"b": bool, "f": float}.get(kind_letter(ours.dtype), int)
        assert ours.shape == ()
    data = ours.data if isinstance(ours, Array) else np.asarray(ours.value, np.float32 if name[0] in "bf" else np.int64)
    if isinstance(ours, Array):
        assert data.dtype == ours.dtype
        assert data.shape == ours.shape
    if kind_letter(ours.dtype) in "biu":
        assert np.array_equal(np.asarray(data, np.int64), np.asarray(theirs).astype(np.int64)), (ours, theirs)
        return
    ours64, theirs64 = np.asarray(data, np.float64), np.asarray(theirs).astype(np.float64)
    rtol = rtol or TOLERANCE.get(name, 0.3)
    limit = {"float16": 65504.0}.get(name, 3e38 if name in ("float32", "bfloat16") else 200.0)
    close = np.isclose(ours64, theirs64, rtol=rtol, atol=SMALLEST.get(name, 0.07), equal_nan=True)
    at_limit = (np.abs(ours64) >= limit) & (np.abs(theirs64) >= limit) & (np.sign(ours64) == np.sign(theirs64))
    assert np.all(close | at_limit), (data, theirs)


def check(function: Any, *arguments: Any, rtol: float | None = None) -> None:
    """``function(np, *arguments)`` means the same with both namespaces, with and without data."""
    try:
        theirs = function(jnp, *map(as_jax, arguments))
    except REFUSALS as error:
        if JAX_GAP in str(error):
            return
        with pytest.raises((*REFUSALS, TpuSimError)):
            run(function, arguments, True)
        return
    ours, core = run(function, arguments, True)
    assert_same(ours, theirs, rtol)
    blank, blank_core = run(function, arguments, False)
    assert blank_core.charges == core.charges
    assert (blank.shape, blank.dtype, blank.weak) == (ours.shape, ours.dtype, ours.weak)


def examples(count: int) -> Any:
    return settings(max_examples=count, deadline=None)


UNARY = sorted(name for name, ufunc in UFUNCS.items() if ufunc.arity == 1)
BINARY = sorted(name for name, ufunc in UFUNCS.items() if ufunc.arity == 2)


@pytest.mark.parametrize("first", DTYPES)
def test_promotion_of_every_pair_of_dtypes(first):
    for second in DTYPES:
        try:
            expected = jnp.promote_types(first, second)
        except ValueError:
            with pytest.raises(TpuSimError):
                promote(DTYPES[first], DTYPES[second])
        else:
            assert promote(DTYPES[first], DTYPES[second]) == (expected, False), second


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("number", [True, 3, 2.5])
def test_promotion_with_python_numbers(name, number):
    try:
        expected = jnp.result_type(jnp.zeros((), name), number)
    except ValueError:
        with pytest.raises(TpuSimError):
            promote(DTYPES[name], number)
    else:
        assert promote(DTYPES[name], number)[0] == expected
        assert SimulatedNumpy(Recorder()).result_type(DTYPES[name], number) == expected


@given(st.lists(st.one_of(st.sampled_from(sorted(DTYPES)), st.sampled_from([True, 3, 2.5])), min_size=1, max_size=4))
@examples(200)
def test_promotion_of_several_operands(items):
    theirs = [jnp.zeros((), item) if isinstance(item, str) else item for item in items]
    ours = [DTYPES[item] if isinstance(item, str) else item for item in items]
    try:
        expected, weak = jax.dtypes.result_type(*theirs, return_weak_type_flag=True)
    except ValueError:
        with pytest.raises(TpuSimError):
            promote(*ours)
    else:
        assert promote(*ours) == (expected, weak)


@pytest.mark.parametrize("name", BINARY)
def test_dtype_of_every_pair_of_operands(name):
    core = Recorder()
    np_ = SimulatedNumpy(core, data=False)
    samples: list[Any] = [*DTYPES, True, 3, 2.5]
    for first, second in itertools.product(samples, samples):
        ours = [Array(core, None, (2,), DTYPES[x]) if isinstance(x, str) else x for x in (first, second)]
        theirs = [jax.ShapeDtypeStruct((2,), x) if isinstance(x, str) else x for x in (first, second)]
        traced = [x for x in theirs if isinstance(x, jax.ShapeDtypeStruct)]
        if not traced:
            continue

        def call(*arrays: Any, theirs: Any = theirs) -> Any:
            rest = iter(arrays)
            return getattr(jnp, name)(*(next(rest) if isinstance(x, jax.ShapeDtypeStruct) else x for x in theirs))

        try:
            expected = jax.eval_shape(call, *traced)
        except REFUSALS as error:
            if JAX_GAP in str(error):
                continue
            with pytest.raises((TpuSimError, TypeError)):
                getattr(np_, name)(*ours)
            continue
        result = getattr(np_, name)(*ours)
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape), (first, second)
        assert result.dtype == np.bool_ or result.weak == expected.weak_type, (first, second)


@pytest.mark.parametrize("name", UNARY)
@given(data=st.data())
@examples(40)
def test_unary_function(name, data):
    value = data.draw(operand((*WIDE, *NARROW), python=True))
    check(lambda np_, x: getattr(np_, name)(x), value)


@pytest.mark.parametrize("name", BINARY)
@given(data=st.data())
@examples(40)
def test_binary_function(name, data):
    dtype = (data.draw(st.sampled_from((*WIDE, *NARROW))),)
    dtypes = dtype if data.draw(st.booleans()) else WIDE
    x, y = data.draw(operand(dtypes, python=True)), data.draw(operand(dtypes, python=True))
    check(lambda np_, a, b: getattr(np_, name)(a, b), x, y)
