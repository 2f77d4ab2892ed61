"""Errors of descriptors, device ids and semaphores, and the warnings, each message whole."""

from __future__ import annotations

import numpy as np
import pytest
from simulating import Lines, error_of, run, tiles

from tpusim import (
    VMEM,
    SemaphoreType,
    axis_index,
    axis_size,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    semaphore_signal,
    semaphore_wait,
    sync_copy,
    when,
)
from tpusim.errors import (
    CollectiveIdError,
    DescriptorError,
    DeviceIdError,
    NotModelledError,
    OutOfBoundsError,
    SemaphoreKindError,
)
from tpusim.findings import Kind
from tpusim.specs import as_dtype

DMA, REGULAR = SemaphoreType.DMA, SemaphoreType.REGULAR
BUFFER = VMEM((8, 128), "float32")
at = Lines(__file__)


def _nothing(*refs):
    pass


# -- device-id ------------------------------------------------------------------------------------------


def _signal_to(device_id):
    def kernel(x_ref, o_ref, sem):
        semaphore_signal(sem, device_id=device_id() if callable(device_id) else device_id)  # signal

    return kernel


@pytest.mark.parametrize(
    ("device_id", "says"),
    [
        (
            8,
            (
                "Number of device ids must match the number of mesh axes, but got 1 ids for a 2D mesh. Give one "
                "coordinate for each of ('x', 'y'), or a dict.  [device (0, 0), HERE]"
            ),
        ),
        (
            lambda: axis_index(("x", "y")) + 8,
            (
                "Number of device ids must match the number of mesh axes, but got 1 ids for a 2D mesh. Give one "
                "coordinate for each of ('x', 'y'), or a dict.  [device (0, 0), HERE]"
            ),
        ),
        ((0, 4), "device id (0, 4) is outside the mesh x=2,y=4.  [device (0, 0), HERE]"),
        ((-1, 0), "device id (-1, 0) is outside the mesh x=2,y=4.  [device (0, 0), HERE]"),
        (
            (0,),
            (
                "Number of device ids must match the number of mesh axes, but got 1 ids for a 2D mesh. Give one "
                "coordinate for each of ('x', 'y'), or a dict.  [device (0, 0), HERE]"
            ),
        ),
        (
            (0, 0, 0),
            (
                "Number of device ids must match the number of mesh axes, but got 3 ids for a 2D mesh. Give one "
                "coordinate for each of ('x', 'y'), or a dict.  [device (0, 0), HERE]"
            ),
        ),
        ({"z": 1}, "device id {'z': 1} names axis 'z'; this mesh has x=2,y=4.  [device (0, 0), HERE]"),
        ({"x": 2}, "device id {'x': 2} is outside the mesh x=2,y=4.  [device (0, 0), HERE]"),
        ({("x", "y"): 8}, "device id {('x', 'y'): 8} is outside the mesh x=2,y=4.  [device (0, 0), HERE]"),
        ({("x", "y"): 1, "x": 1}, "device id {('x', 'y'): 1, 'x': 1} names axis 'x' twice.  [device (0, 0), HERE]"),
        ((0, None), "a device id holds integers, not None.  [device (0, 0), HERE]"),
        (
            1.0,
            (
                "Number of device ids must match the number of mesh axes, but got 1 ids for a 2D mesh. Give one "
                "coordinate for each of ('x', 'y'), or a dict.  [device (0, 0), HERE]"
            ),
        ),
        (
            lambda: axis_index("x") / 2,
            (
                "Number of device ids must match the number of mesh axes, but got 1 ids for a 2D mesh. Give one "
                "coordinate for each of ('x', 'y'), or a dict.  [device (0, 0), HERE]"
            ),
        ),
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
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=right)
        copy.start()  # no modulo
        copy.wait()

    error = error_of(DeviceIdError, kernel, tiles(4), mesh=4, scratch_shapes=(DMA, DMA))
    assert str(error) == f"device id 4 is outside the mesh x=4.  [device (3,), {at('no modulo')}]"


# -- collective-id --------------------------------------------------------------------------------------


def test_barrier_semaphore_without_a_collective_id():
    def kernel(x_ref, o_ref):
        semaphore_wait(get_barrier_semaphore(), 0)  # barrier

    error = error_of(CollectiveIdError, kernel, tiles())
    assert str(error) == (
        "kernel uses the barrier semaphore and has no collective_id: give the kernel collective_id=0 "
        f"(another number for each kernel that synchronises differently).  [device (0,), {at('barrier')}]"
    )


def test_collective_id_without_a_barrier_semaphore():
    def kernel(x_ref, o_ref):  # no barrier
        pass

    error = error_of(CollectiveIdError, kernel, tiles(), collective_id=7)
    assert str(error) == (
        "kernel has collective_id=7 and never calls get_barrier_semaphore(): the compiler refuses a "
        f"collective_id that is not used; leave it out.  [{at('no barrier')}]"
    )


def test_an_unused_collective_id_does_not_hide_what_comes_later():
    def kernel(x_ref, o_ref, sem):  # no barrier either
        make_async_copy(x_ref.at[6:14], o_ref, sem).start()

    error = error_of(OutOfBoundsError, kernel, tiles(), collective_id=7, scratch_shapes=(DMA,))
    assert [finding.kind for finding in error.findings] == [Kind.COLLECTIVE_ID, Kind.OUT_OF_BOUNDS]
    assert str(error.findings[0].where) == at("no barrier either")


# -- semaphore-kind -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (
            lambda x, o, dma, regular, several: semaphore_signal(dma),
            (
                "semaphore_signal on DMA semaphore scratch0: use a descriptor's start and wait, or declare "
                "SemaphoreType.REGULAR"
            ),
        ),
        (
            lambda x, o, dma, regular, several: semaphore_wait(dma, 4096),
            (
                "semaphore_wait on DMA semaphore scratch0: use a descriptor's start and wait, or declare "
                "SemaphoreType.REGULAR"
            ),
        ),
        (lambda x, o, dma, regular, several: semaphore_wait(x), "semaphore_wait needs a semaphore, not Ref"),
        (
            lambda x, o, dma, regular, several: semaphore_signal(regular, -1),
            "semaphore_signal adds a non-negative amount, not -1",
        ),
        (
            lambda x, o, dma, regular, several: make_async_copy(x, o, regular),
            "a copy needs a DMA semaphore; scratch1 is a regular semaphore",
        ),
        (
            lambda x, o, dma, regular, several: make_async_copy(x, o, several),
            "a copy needs one semaphore; scratch2 is an array of shape (3,): pick one with .at[...]",
        ),
        (lambda x, o, dma, regular, several: make_async_copy(x, o, o), "a copy needs a DMA semaphore, not Ref"),
        (
            lambda x, o, dma, regular, several: make_async_remote_copy(x, o, regular, dma, 0),
            "a copy needs a DMA semaphore; scratch1 is a regular semaphore",
        ),
    ],
)
def test_semaphore_kind(use, says):
    def kernel(*refs):
        use(*refs)

    error = error_of(SemaphoreKindError, kernel, tiles(), scratch_shapes=(DMA, REGULAR, DMA((3,))))
    assert isinstance(error, TypeError)
    assert error.finding.where.file == __file__
    assert str(error).rpartition("  [")[0] == says


# -- descriptor -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (
            lambda x, o, v, sem: make_async_remote_copy(x, o, None, sem, 0),
            "Either both or neither `src_sem` and `device_id` can be set.",
        ),
        (
            lambda x, o, v, sem: make_async_remote_copy(x, o, sem, sem, None),
            "Either both or neither `src_sem` and `device_id` can be set.",
        ),
        (
            lambda x, o, v, sem: make_async_copy(v[...], o, sem),
            "src_ref is Array, not a ref: give the kernel's argument itself or ref.at[...], not a loaded value",
        ),
        (
            lambda x, o, v, sem: make_async_copy(x, v[0, 0], sem),
            "dst_ref is Scalar, not a ref: give the kernel's argument itself or ref.at[...], not a loaded value",
        ),
        (lambda x, o, v, sem: make_async_copy(x, o, sem).wait_send(), "Cannot `wait_send` on a local copy."),
        (lambda x, o, v, sem: make_async_remote_copy(x, o, sem, sem, "0"), "a device id holds integers, not '0'."),
        (lambda x, o, v, sem: make_async_remote_copy(x, o, sem, sem, 0.0), "a device id holds integers, not 0.0."),
        (lambda x, o, v, sem: make_async_copy(x, o, sem).start(-1), "priority is 0 or 1, not -1"),
    ],
)
def test_descriptor(use, says):
    def kernel(*refs):
        use(*refs)

    error = error_of(DescriptorError, kernel, tiles(), scratch_shapes=(BUFFER, DMA))
    assert isinstance(error, ValueError)
    assert error.finding.where.file == __file__
    assert str(error).rpartition("  [")[0] == says


# -- not-modelled ---------------------------------------------------------------------------------------


def test_not_modelled_values_without_data():
    def kernel(x_ref, o_ref, buffer):
        buffer[0, 0]  # value without data

    error = error_of(NotModelledError, kernel, tiles(), scratch_shapes=(BUFFER,), data=False)
    assert str(error) == (
        "data=False: the kernel needs the value of buffer[0, 0]; run it with data=True  [device (0,), "
        f"{at('value without data')}]"
    )


def test_not_modelled_index_arrays():
    def kernel(x_ref, o_ref):
        x_ref.at[np.array([1, 2])]  # gather

    error = error_of(NotModelledError, kernel, tiles(), on_finding="record")
    assert (
        str(error)
        == f"a ref is indexed with integers and slices, not with ndarray; load it first  [device (0,), {at('gather')}]"
    )


# -- warnings -------------------------------------------------------------------------------------------


def _warnings(kind, fn, *arrays, **keywords):
    result = run(fn, *arrays, **keywords)
    assert result.ok
    return [finding.text for finding in result.findings if finding.kind is kind]


def test_unused_descriptor():
    def kernel(x_ref, o_ref, sem):
        make_async_copy(x_ref, o_ref, sem)  # never used
        sync_copy(x_ref, o_ref)

    found = _warnings(Kind.UNUSED_DESCRIPTOR, kernel, tiles(2), mesh=2, scratch_shapes=(DMA,))
    assert found == [f"the descriptor made here was never started or waited for, on any device.  [{at('never used')}]"]


@pytest.mark.parametrize(
    ("remote", "how", "says"),
    [
        (False, {"priority": 2}, "priority=2 above 1 is not supported on TPU."),
        (True, {"priority": 1}, "priority=1 on a remote copy is not supported on TPU."),
        (False, {"add": True}, "add=True is not supported on a TensorCore."),
    ],
)
def test_unsupported_on_a_tensorcore(remote, how, says):
    def kernel(x_ref, o_ref, sem):
        sync_copy(x_ref, o_ref)
        copy = make_async_copy(x_ref, o_ref, sem)
        if remote:
            copy = make_async_remote_copy(x_ref, o_ref, sem, sem, device_id=0)
        copy.start(**how)  # unsupported
        copy.wait()

    assert _warnings(Kind.UNSUPPORTED, kernel, tiles(), scratch_shapes=(DMA,)) == [
        f"{says}  [device (0,), {at('unsupported')}]"
    ]


def test_routing_on_v5e():
    def kernel(x_ref, o_ref, send, recv):
        me, n = axis_index("x"), axis_size("x")
        copy = make_async_remote_copy(x_ref, o_ref, send, recv, device_id=(n - 1 - me))
        copy.start()  # three hops
        copy.wait()

    found = _warnings(
        Kind.ROUTING, kernel, tiles(4), slice="v5e:4x4", mesh=4, layout="row-major", scratch_shapes=(DMA, DMA)
    )
    assert found == [
        "copy from device (0,) to (3,) goes 3 hops, from chip (0,0) to (3,0); on v5e JAX's documentation allows only "
        f"power-of-two offsets along an axis.  [{at('three hops')}]"
    ]


def test_uninitialised_output():
    def kernel(x_ref, o_ref):
        @when(axis_index("x") == 1)
        def _():
            sync_copy(x_ref, o_ref)

    assert _warnings(Kind.UNINITIALISED, kernel, tiles(3), mesh=3) == [
        "output o_ref of devices (0,), (2,) holds memory that nobody ever wrote (shown as NaN or a sentinel)."
    ]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "float16", "bfloat16"])
def test_what_is_uninitialised_is_memory_and_not_a_number(dtype):
    def half(x_ref, o_ref):
        sync_copy(x_ref.at[:32], o_ref.at[:32])

    def whole(x_ref, o_ref):
        sync_copy(x_ref, o_ref)

    bits = np.random.default_rng(0).integers(0, 256, (64, 128 * as_dtype(dtype).itemsize), np.uint8)
    array = bits.view(as_dtype(dtype)) if "int" in dtype else np.zeros((64, 128), as_dtype(dtype))
    shape = {"out_shape": lambda x: x}
    assert _warnings(Kind.UNINITIALISED, whole, array, **shape) == []
    assert _warnings(Kind.UNINITIALISED, half, array, **shape) == [
        "output o_ref of device (0,) holds memory that nobody ever wrote (shown as NaN or a sentinel)."
    ]


def test_uninitialised_memory_that_is_sent():
    def kernel(x_ref, o_ref, buffer, send, recv):
        copy = make_async_remote_copy(buffer, o_ref, send, recv, device_id=1 - axis_index("x"))
        copy.start()  # sent unwritten
        copy.wait()

    found = _warnings(Kind.UNINITIALISED, kernel, tiles(2), mesh=2, scratch_shapes=(BUFFER, DMA, DMA))
    assert found == [
        "copy from buffer on device (0,) to device (1,): nothing has been written to buffer before it is "
        f"sent.  [{at('sent unwritten')}]",
        "output o_ref of devices (0,)-(1,) holds memory that nobody ever wrote (shown as NaN or a sentinel).",
    ]
