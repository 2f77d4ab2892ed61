"""Errors of memory and arrays, each message whole: what, where, to whom, why, what to try."""

from __future__ import annotations

import numpy as np
import pytest
from simulating import Lines, error_of, run, tiles

import tpusim
from tpusim import (
    SMEM,
    VMEM,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    ds,
    make_async_copy,
    run_scoped,
)
from tpusim.errors import (
    CapacityError,
    MemorySpaceError,
    OutOfBoundsError,
    ShapeMismatchError,
    TracedValueError,
)

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
BUFFER = VMEM((8, 128), "float32")
at = Lines(__file__)


# -- out-of-bounds --------------------------------------------------------------------------------------


def _index(index):
    def kernel(x_ref, o_ref):
        x_ref.at[index() if callable(index) else index]  # index

    return kernel


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (8, "x_ref[8]: index 8 leaves dimension 0 of size 8  [device (0,), HERE]"),
        (-9, "x_ref[-9]: index -9 leaves dimension 0 of size 8  [device (0,), HERE]"),
        (lambda: axis_index("x") + 7, "x_ref[8]: index 8 leaves dimension 0 of size 8  [device (1,), HERE]"),
        (lambda: axis_index("x") - 2, "x_ref[-2]: index -2 leaves dimension 0 of size 8  [device (0,), HERE]"),
        (
            lambda: (slice(None), ds(64, 128)),
            "x_ref[0:8, 64:192]: index 64:192 leaves dimension 1 of size 128  [device (0,), HERE]",
        ),
        (
            lambda: ds(axis_index("x") * 8, 8),
            "x_ref[8:16]: index 8:16 leaves dimension 0 of size 8  [device (1,), HERE]",
        ),
        (slice(4, 12), "x_ref[4:12]: index 4:12 leaves dimension 0 of size 8  [device (0,), HERE]"),
        (slice(9, None), "x_ref[9:9]: index 9:9 leaves dimension 0 of size 8  [device (0,), HERE]"),
        ((0, slice(0, 200)), "x_ref[0, 0:200]: index 0:200 leaves dimension 1 of size 128  [device (0,), HERE]"),
    ],
)
def test_out_of_bounds(index, says):
    error = error_of(OutOfBoundsError, _index(index), tiles(2), mesh=2)
    assert isinstance(error, IndexError)
    assert str(error) == says.replace("HERE", at("index"))


def test_out_of_bounds_semaphore():
    def kernel(x_ref, o_ref, sems):
        sems.at[1, axis_index("x") + 2]  # semaphore index

    error = error_of(OutOfBoundsError, kernel, tiles(2), mesh=2, scratch_shapes=(DMA((2, 3)),))
    assert str(error) == f"sems[1, 3]: index 3 leaves dimension 1 of size 3  [device (1,), {at('semaphore index')}]"


# -- capacity -------------------------------------------------------------------------------------------


def _nothing(*refs):  # no code
    pass


def test_capacity_vmem_scratch():
    error = error_of(
        CapacityError, _nothing, tiles(), scratch_shapes=(BUFFER, VMEM((4096, 1024), "float32"), VMEM((1, 3), "int8"))
    )
    assert isinstance(error, MemoryError)
    assert str(error) == (
        "_nothing needs 16.0 MiB of VMEM, 4.5 KiB too much; a kernel on v5e gets 16.0 MiB unless "
        f"vmem_limit_bytes says more (the core has 128.0 MiB).  [{at('no code')}]\n"
        "With tile padding:\n"
        "  scratch0                 VMEM float32[8, 128]  4.0 KiB\n"
        "  scratch1                 VMEM float32[4096, 1024]  16.0 MiB\n"
        "  scratch2                 VMEM int8[1, 3]  512 B"
    )


def test_capacity_names_what_is_declared_after_the_first_that_does_not_fit():
    huge = ShapeDtypeStruct((1 << 40, 128), "float32")  # no computer has the memory for it
    error = error_of(CapacityError, _nothing, tiles(), out_specs=VMEM, in_specs=VMEM, scratch_shapes=(
        VMEM(huge.shape, huge.dtype), BUFFER), vmem_limit_bytes=1 << 40)  # fmt: skip
    assert str(error) == (
        f"_nothing needs 512.0 TiB of VMEM, 512.0 TiB too much; a core of v5e has 128.0 MiB.  [{at('no code')}]\n"
        "With tile padding:\n"
        "  arg0                     VMEM float32[8, 128]  4.0 KiB\n"
        "  arg1                     VMEM float32[8, 128]  4.0 KiB\n"
        "  scratch0                 VMEM float32[1099511627776, 128]  512.0 TiB\n"
        "  scratch1                 VMEM float32[8, 128]  4.0 KiB"
    )


def test_capacity_vmem_limit_bytes():
    error = error_of(CapacityError, _nothing, tiles(), scratch_shapes=(BUFFER, BUFFER), vmem_limit_bytes=6000)
    assert str(error) == (
        "_nothing needs 8.0 KiB of VMEM, 2.1 KiB too much; vmem_limit_bytes is 5.9 KiB (a core of v5e has "
        f"128.0 MiB).  [{at('no code')}]\n"
        "With tile padding:\n"
        "  scratch0                 VMEM float32[8, 128]  4.0 KiB\n"
        "  scratch1                 VMEM float32[8, 128]  4.0 KiB"
    )


def test_capacity_of_the_whole_core():
    big = VMEM((65536, 1024), "float32")
    error = error_of(CapacityError, _nothing, tiles(), scratch_shapes=(big,), vmem_limit_bytes=1 << 40)
    assert str(error) == (
        "_nothing needs 256.0 MiB of VMEM, 128.0 MiB too much; a core of v5e has 128.0 MiB.  "
        f"[{at('no code')}]\n"
        "With tile padding:\n"
        "  scratch0                 VMEM float32[65536, 1024]  256.0 MiB"
    )


def test_capacity_in_a_scope():
    def kernel(x_ref, o_ref, buffer):
        run_scoped(_nothing, VMEM((1024, 1024), "float32"))
        run_scoped(_nothing, VMEM((4096, 1024), "float32"))  # large scope

    error = error_of(CapacityError, kernel, tiles(), scratch_shapes=(BUFFER,))
    assert str(error) == (
        "kernel needs 16.0 MiB of VMEM, 4.0 KiB too much; a kernel on v5e gets 16.0 MiB unless "
        f"vmem_limit_bytes says more (the core has 128.0 MiB).  [device (0,), {at('large scope')}]\n"
        "With tile padding:\n"
        "  buffer                   VMEM float32[8, 128]  4.0 KiB\n"
        "  scoped0                  VMEM float32[4096, 1024]  16.0 MiB"
    )


def test_capacity_smem():
    error = error_of(CapacityError, _nothing, tiles(), scratch_shapes=(SMEM((1 << 20,), "int32"),))
    assert str(error) == (
        "_nothing needs 4.0 MiB of SMEM, 3.0 MiB too much; a core of v5e has 1.0 MiB.  "
        f"[{at('no code')}]\n"
        "With tile padding:\n"
        "  scratch0                 SMEM int32[1048576]  4.0 MiB"
    )


def test_capacity_semaphores():
    error = error_of(CapacityError, _nothing, tiles(), scratch_shapes=(DMA((500,)), REGULAR((4, 4))))
    assert str(error) == (
        f"_nothing uses 516 semaphores, 4 too many; a core of v5e has 512.  [{at('no code')}]\n"
        "  scratch0                 500\n"
        "  scratch1                 16"
    )


def test_capacity_hbm():
    whole = ShapeDtypeStruct((1 << 17, 1 << 15), "float32")
    error = error_of(CapacityError, _nothing, whole, data=False)
    assert str(error) == (
        "_nothing needs 16.0 GiB of HBM, 4.0 KiB too much; a device of v5e has 16.0 GiB.  "
        f"[{at('no code')}]\n"
        "With tile padding:\n"
        "  arg0                     HBM float32[131072, 32768]  16.0 GiB\n"
        "  arg1                     HBM float32[8, 128]  4.0 KiB"
    )


# -- memory-space ---------------------------------------------------------------------------------------


def test_vector_load_from_hbm():
    def kernel(x_ref, o_ref):
        x_ref[0:8, :]  # load from HBM

    error = error_of(MemorySpaceError, kernel, tiles())
    assert isinstance(error, TypeError)
    assert str(error) == (
        "vector load from HBM ref x_ref: a core reaches VMEM and SMEM only; copy it with make_async_copy "
        f"or sync_copy first  [device (0,), {at('load from HBM')}]"
    )


def test_vector_store_to_hbm():
    def kernel(x_ref, o_ref):
        o_ref[0] = 1.0  # store to HBM

    error = error_of(MemorySpaceError, kernel, tiles())
    assert str(error) == (
        "vector store to HBM ref o_ref[0]: a core reaches VMEM and SMEM only; copy it with make_async_copy "
        f"or sync_copy first  [device (0,), {at('store to HBM')}]"
    )


def test_array_load_from_smem():
    def kernel(x_ref, o_ref, table):
        table[0:4]  # several scalars

    error = error_of(MemorySpaceError, kernel, tiles(), scratch_shapes=(SMEM((8,), "int32"),))
    assert str(error) == (
        "load of shape (4,) from SMEM ref table[0:4]: SMEM holds scalars; index one element  [device (0,), "
        f"{at('several scalars')}]"
    )


# -- shape-mismatch -------------------------------------------------------------------------------------


def _copy(source, target):
    def kernel(x_ref, o_ref, buffer, narrow, sem):
        refs = {"x": x_ref, "o": o_ref, "buffer": buffer, "narrow": narrow}
        make_async_copy(refs[source[0]].at[source[1]], refs[target[0]].at[target[1]], sem)  # made

    return kernel


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        (
            ("x", slice(0, 4)),
            ("o", ...),
            (
                "copy from x_ref[0:4] of shape (4, 128) to o_ref of shape (8, 128): they must be equal  [device "
                "(0,), HERE]"
            ),
        ),
        (
            ("x", ...),
            ("narrow", ...),
            "copy from x_ref of float32 to narrow of bfloat16: a copy does not convert  [device (0,), HERE]",
        ),
        (("x", (0, 0, 0)), ("o", ...), "x_ref: 3 indices for a ref of shape (8, 128)  [device (0,), HERE]"),
    ],
)
def test_shape_mismatch_of_a_copy(source, target, says):
    narrow = VMEM((8, 128), "bfloat16")
    error = error_of(ShapeMismatchError, _copy(source, target), tiles(), scratch_shapes=(BUFFER, narrow, DMA))
    assert isinstance(error, ValueError)
    assert str(error) == says.replace("HERE", at("made"))


@pytest.mark.parametrize(
    ("dtype", "shape", "says"),
    [
        ("float32", (4, 128), "store of shape (4, 128) to buffer of shape (8, 128): they must be equal"),
        ("int32", (8, 128), "store of float32 to buffer, which holds int32: use .astype(...)"),
        ("bfloat16", (8, 128), "store of float32 to buffer, which holds bfloat16: use .astype(...)"),
    ],
)
def test_shape_mismatch_of_a_store(dtype, shape, says):
    def kernel(x_ref, o_ref, buffer):
        buffer[...] = tpusim.np.zeros(shape)  # stored

    error = error_of(ShapeMismatchError, kernel, tiles(), scratch_shapes=(VMEM((8, 128), dtype),))
    assert str(error) == f"{says}  [device (0,), {at('stored')}]"


def test_a_number_does_not_fill_a_ref_nor_does_it_in_pallas():
    def kernel(x_ref, o_ref, buffer):
        buffer[...] = 1.0  # filled

    error = error_of(ShapeMismatchError, kernel, tiles(), scratch_shapes=(BUFFER,))
    assert str(error) == (
        "store of shape () to buffer of shape (8, 128): they must be equal; fill it with "
        f"tpusim.np.full(shape, value, dtype)  [device (0,), {at('filled')}]"
    )


OTHER_KIND = [("int32", 1.5), ("float32", 3), ("float32", True), ("bfloat16", np.float32(2))]
OWN_KIND = [("int8", 3), ("uint32", 3), ("bfloat16", 1.5), ("float32", np.float32(2)), ("bool", True)]


@pytest.mark.parametrize(("dtype", "value"), OTHER_KIND)
def test_numbers_are_stored_to_their_own_kind_only(dtype, value):
    def kernel(x_ref, o_ref, buffer):
        buffer[0, 0] = value  # number

    error = error_of(ShapeMismatchError, kernel, tiles(), scratch_shapes=(VMEM((8, 128), dtype),))
    name = {bool: "bool", int: "int32"}.get(type(value), "float32")
    assert str(error) == (
        f"store of {name} to buffer[0, 0], which holds {dtype}: use .astype(...)  [device (0,), {at('number')}]"
    )


@pytest.mark.parametrize(("dtype", "value"), OWN_KIND)
def test_numbers_are_stored_as_in_pallas(dtype, value):
    def kernel(x_ref, o_ref, buffer):
        buffer[0, 0] = value

    run(kernel, tiles(), scratch_shapes=(VMEM((8, 128), dtype),))


def test_numbers_that_do_not_fit_are_refused_as_in_pallas():
    def kernel(x_ref, o_ref, buffer):
        buffer[0, 0] = 1 << 40

    with pytest.raises(OverflowError) as caught:
        run(kernel, tiles(), scratch_shapes=(VMEM((8, 128), "int32"),))
    assert str(caught.value) == "Python int 1099511627776 too large to convert to int32"


def test_slices_have_fixed_bounds():
    def kernel(x_ref, o_ref):
        start = axis_index("x")
        x_ref.at[start : start + 4]

    with pytest.raises(TracedValueError, match="for a slice of a ref write"):
        run(kernel, tiles())
