"""Errors of single operations and declarations, each message whole: what, where, to whom, why, what to try."""

from __future__ import annotations

import numpy as np
import pytest
from simulating import TILE, Lines, error_of, run, tiles

from tpusim import (
    HBM,
    SMEM,
    VMEM,
    BlockSpec,
    SemaphoreType,
    ShapeDtypeStruct,
    axis_index,
    axis_size,
    ds,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    run_scoped,
    semaphore_signal,
    semaphore_wait,
    sync_copy,
)
from tpusim.errors import (
    CapacityError,
    CollectiveIdError,
    DescriptorError,
    DeviceIdError,
    MemorySpaceError,
    NotModelledError,
    OptionError,
    OutOfBoundsError,
    SemaphoreKindError,
    ShapeMismatchError,
)
from tpusim.findings import Kind

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
BUFFER = VMEM((8, 128), "float32")
at = Lines(__file__)


# -- out-of-bounds ------------------------------------------------------------------------------------


def _index(index):
    def kernel(x_ref, o_ref):
        x_ref.at[index() if callable(index) else index]  # index

    return kernel


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (8, "SHOW"),
        (-9, "SHOW"),
        (lambda: axis_index("x") + 7, "SHOW"),
        (lambda: axis_index("x") - 2, "SHOW"),
        (lambda: (slice(None), ds(64, 128)), "SHOW"),
        (lambda: ds(axis_index("x") * 8, 8), "SHOW"),
        (slice(4, 12), "SHOW"),
        ((0, slice(0, 200)), "SHOW"),
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
    assert str(error) == "SHOW"


# -- capacity -----------------------------------------------------------------------------------------


def _nothing(*refs):
    pass


def test_capacity_vmem_scratch():
    error = error_of(
        CapacityError, _nothing, tiles(), scratch_shapes=(BUFFER, VMEM((4096, 1024), "float32"), VMEM((1, 3), "int8"))
    )
    assert isinstance(error, MemoryError)
    assert str(error) == "SHOW"


def test_capacity_vmem_limit_bytes():
    error = error_of(CapacityError, _nothing, tiles(), scratch_shapes=(BUFFER, BUFFER), vmem_limit_bytes=6000)
    assert str(error) == "SHOW"


def test_capacity_of_the_whole_core():
    big = VMEM((32768, 1024), "float32")
    error = error_of(CapacityError, _nothing, tiles(), scratch_shapes=(big,), vmem_limit_bytes=1 << 40)
    assert str(error) == "SHOW"


def test_capacity_in_a_scope():
    def kernel(x_ref, o_ref, buffer):
        run_scoped(_nothing, VMEM((1024, 1024), "float32"))
        run_scoped(_nothing, VMEM((4096, 1024), "float32"))  # large scope

    error = error_of(CapacityError, kernel, tiles(), scratch_shapes=(BUFFER,))
    assert str(error) == "SHOW"


def test_capacity_smem():
    error = error_of(CapacityError, _nothing, tiles(), scratch_shapes=(SMEM((1 << 20,), "int32"),))
    assert str(error) == "SHOW"


def test_capacity_semaphores():
    error = error_of(CapacityError, _nothing, tiles(), scratch_shapes=(DMA((500,)), REGULAR((4, 4))))
    assert str(error) == "SHOW"


def test_capacity_hbm():
    whole = ShapeDtypeStruct((1 << 17, 1 << 15), "float32")
    error = error_of(CapacityError, _nothing, whole, data=False)
    assert str(error) == "SHOW"


# -- memory-space -------------------------------------------------------------------------------------


def test_vector_load_from_hbm():
    def kernel(x_ref, o_ref):
        x_ref[0:8, :]  # load from HBM

    error = error_of(MemorySpaceError, kernel, tiles())
    assert isinstance(error, TypeError)
    assert str(error) == "SHOW"


def test_vector_store_to_hbm():
    def kernel(x_ref, o_ref):
        o_ref[0] = 1.0  # store to HBM

    error = error_of(MemorySpaceError, kernel, tiles())
    assert str(error) == "SHOW"


def test_array_load_from_smem():
    def kernel(x_ref, o_ref, table):
        table[0:4]  # several scalars

    error = error_of(MemorySpaceError, kernel, tiles(), scratch_shapes=(SMEM((8,), "int32"),))
    assert str(error) == "SHOW"


# -- device-id ----------------------------------------------------------------------------------------


def _signal_to(device_id):
    def kernel(x_ref, o_ref, sem):
        semaphore_signal(sem, device_id=device_id() if callable(device_id) else device_id)  # signal

    return kernel


@pytest.mark.parametrize(
    ("device_id", "says"),
    [
        (8, "SHOW"),
        (lambda: axis_index(("x", "y")) + 8, "SHOW"),
        ((0, 4), "SHOW"),
        ((-1, 0), "SHOW"),
        ((0,), "SHOW"),
        ((0, 0, 0), "SHOW"),
        ({"z": 1}, "SHOW"),
        ({"x": 2}, "SHOW"),
        ({("x", "y"): 8}, "SHOW"),
        ({("x", "y"): 1, "x": 1}, "SHOW"),
        (1.0, "SHOW"),
        (lambda: axis_index("x") / 2, "SHOW"),
    ],
)
def test_device_id_on_two_axes(device_id, says):
    error = error_of(
        DeviceIdError, _signal_to(device_id), tiles(8), axes=("x", "y"), mesh={"x": 2, "y": 4}, slice="v5e:2x4",
        scratch_shapes=(REGULAR,),
    )  # fmt: skip
    assert isinstance(error, ValueError)
    assert str(error) == says.replace("HERE", at("signal"))


def test_device_id_past_the_end_of_the_only_axis():
    def kernel(x_ref, o_ref, send, recv):
        right = axis_index("x") + 1
        make_async_remote_copy(x_ref, o_ref, send, recv, device_id=right).start()  # no modulo

    error = error_of(DeviceIdError, kernel, tiles(4), mesh=4, scratch_shapes=(DMA, DMA))
    assert str(error) == "SHOW"


# -- collective-id ------------------------------------------------------------------------------------


def test_barrier_semaphore_without_a_collective_id():
    def kernel(x_ref, o_ref):
        semaphore_wait(get_barrier_semaphore(), 0)  # barrier

    error = error_of(CollectiveIdError, kernel, tiles())
    assert str(error) == "SHOW"


def test_collective_id_without_a_barrier_semaphore():
    def kernel(x_ref, o_ref):  # no barrier
        pass

    error = error_of(CollectiveIdError, kernel, tiles(), collective_id=7)
    assert str(error) == "SHOW"


# -- shape-mismatch -----------------------------------------------------------------------------------


def _copy(source, target):
    def kernel(x_ref, o_ref, buffer, narrow, sem):
        refs = {"x": x_ref, "o": o_ref, "buffer": buffer, "narrow": narrow}
        make_async_copy(refs[source[0]].at[source[1]], refs[target[0]].at[target[1]], sem)  # made

    return kernel


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        (("x", slice(0, 4)), ("o", ...), "SHOW"),
        (("x", ...), ("narrow", ...), "SHOW"),
        (("x", (0, 0, 0)), ("o", ...), "SHOW"),
    ],
)
def test_shape_mismatch_of_a_copy(source, target, says):
    narrow = VMEM((8, 128), "bfloat16")
    error = error_of(ShapeMismatchError, _copy(source, target), tiles(), scratch_shapes=(BUFFER, narrow, DMA))
    assert isinstance(error, ValueError)
    assert str(error) == says.replace("HERE", at("made"))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.zeros((4, 128), np.float32), "SHOW"),
        (np.zeros((8, 128), np.int32), "SHOW"),
    ],
)
def test_shape_mismatch_of_a_store(value, says):
    def kernel(x_ref, o_ref, buffer):
        buffer[...] = value  # stored

    error = error_of(ShapeMismatchError, kernel, tiles(), scratch_shapes=(BUFFER,))
    assert str(error) == says.replace("HERE", at("stored"))


# -- semaphore-kind -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda x, o, dma, regular, several: semaphore_signal(dma), "SHOW"),
        (lambda x, o, dma, regular, several: semaphore_wait(dma, 4096), "SHOW"),
        (lambda x, o, dma, regular, several: semaphore_wait(x), "SHOW"),
        (lambda x, o, dma, regular, several: semaphore_signal(regular, -1), "SHOW"),
        (lambda x, o, dma, regular, several: make_async_copy(x, o, regular), "SHOW"),
        (lambda x, o, dma, regular, several: make_async_copy(x, o, several), "SHOW"),
        (lambda x, o, dma, regular, several: make_async_copy(x, o, o), "SHOW"),
        (lambda x, o, dma, regular, several: make_async_remote_copy(x, o, regular, dma, 0), "SHOW"),
    ],
)
def test_semaphore_kind(use, says):
    def kernel(*refs):
        use(*refs)

    error = error_of(SemaphoreKindError, kernel, tiles(), scratch_shapes=(DMA, REGULAR, DMA((3,))))
    assert isinstance(error, TypeError)
    assert error.finding.where.file == __file__
    assert str(error).rpartition("  [")[0] == says


# -- descriptor ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda x, o, v, sem: make_async_remote_copy(x, o, None, sem, 0), "SHOW"),
        (lambda x, o, v, sem: make_async_remote_copy(x, o, sem, sem, None), "SHOW"),
        (lambda x, o, v, sem: make_async_copy(v[...], o, sem), "SHOW"),
        (lambda x, o, v, sem: make_async_copy(x, v[0, 0], sem), "SHOW"),
        (lambda x, o, v, sem: make_async_copy(x, o, sem).wait_send(), "SHOW"),
        (lambda x, o, v, sem: make_async_remote_copy(x, o, sem, sem, "0"), "SHOW"),
        (lambda x, o, v, sem: make_async_remote_copy(x, o, sem, sem, 0.0), "SHOW"),
        (lambda x, o, v, sem: make_async_copy(x, o, sem).start(-1), "SHOW"),
    ],
)
def test_descriptor(use, says):
    def kernel(*refs):
        use(*refs)

    error = error_of(DescriptorError, kernel, tiles(), scratch_shapes=(BUFFER, DMA))
    assert isinstance(error, ValueError)
    assert error.finding.where.file == __file__
    assert str(error).rpartition("  [")[0] == says


# -- not-modelled -------------------------------------------------------------------------------------


def test_not_modelled_block_pipelines():
    blocks = BlockSpec((8, 128), lambda i: (i, 0))
    error = error_of(NotModelledError, _nothing, tiles(), in_specs=blocks, on_finding="record")
    assert isinstance(error, NotImplementedError)
    assert str(error) == "SHOW"


def test_not_modelled_values_without_data():
    def kernel(x_ref, o_ref, buffer):
        buffer[0, 0]  # value without data

    error = error_of(NotModelledError, kernel, tiles(), scratch_shapes=(BUFFER,), data=False)
    assert str(error) == "SHOW"


def test_not_modelled_index_arrays():
    def kernel(x_ref, o_ref):
        x_ref.at[np.array([1, 2])]  # gather

    error = error_of(NotModelledError, kernel, tiles(), on_finding="record")
    assert str(error) == "SHOW"
