"""What a kernel's declarations mean on a mesh, and what is refused."""

from functools import partial, wraps

import numpy as np
import pytest

import tpusim
from tpusim import ANY, HBM, SMEM, VMEM, BlockSpec, Kernel, SemaphoreType, ShapeDtypeStruct, axis_size
from tpusim.declare import as_scratch, axes_size, device_id_problem, global_shape, resolve
from tpusim.errors import OptionError
from tpusim.specs import MemoryRef, SemaphoreArray

X = ShapeDtypeStruct((32, 128), "float32")
MESH = {"x": 2, "y": 4}


def make(**declarations):
    return Kernel(lambda *refs: None, name="k", **{"out_shape": lambda *shards: shards[0], **declarations})


def refused(message, shapes=(X,), mesh=None, **declarations):
    kernel = make(**declarations)
    with pytest.raises(OptionError) as caught:
        resolve(kernel, shapes, mesh or {"x": 4})
    assert str(caught.value) == message


def test_defaults_are_dimension_0_over_all_axes_and_vmem():
    declared = resolve(make(axes=("x", "y")), [X], MESH)
    assert declared.shard_in == declared.shard_out == ((("x", "y"), ()),)
    assert declared.in_shards == declared.out_shards == (ShapeDtypeStruct((4, 128), "float32"),)
    assert declared.out_globals == (X,)
    assert declared.in_specs == declared.out_specs == (BlockSpec(memory_space=VMEM),)
    assert declared.scratch == ()
    assert declared.grid == ()
    assert declared.aliases == {}
    assert declared.single_output


def test_declarations_may_be_functions_of_the_shards_and_ask_for_the_axis_size():
    kernel = make(
        out_shape=lambda x: (ShapeDtypeStruct((axis_size("x"), *x.shape), x.dtype), x),
        in_specs=lambda x: (HBM,),
        out_specs=lambda x: (HBM, SMEM),
        scratch_shapes=lambda x: (VMEM(x.shape, x.dtype), SemaphoreType.DMA((axis_size("x"),))),
        grid=lambda x: axis_size("x"),
    )
    declared = resolve(kernel, [X], {"x": 4})
    assert declared.out_shards == (ShapeDtypeStruct((4, 8, 128), "float32"), ShapeDtypeStruct((8, 128), "float32"))
    assert declared.out_globals == (ShapeDtypeStruct((16, 8, 128), "float32"), X)
    assert [spec.memory_space for spec in (*declared.in_specs, *declared.out_specs)] == [HBM, HBM, SMEM]
    assert declared.scratch == (
        MemoryRef(VMEM, (8, 128), np.dtype("float32")),
        SemaphoreArray(SemaphoreType.DMA, (4,)),
    )
    assert declared.grid == (4,)
    assert not declared.single_output


class Doubles:
    def __call__(self, x_ref, o_ref, factor=2):
        o_ref[...] = factor * x_ref[...]


@pytest.mark.parametrize(
    ("fn", "name", "factor"),
    [
        (Doubles(), "Doubles", 2),
        (Doubles().__call__, "__call__", 2),
        (partial(Doubles().__call__, factor=5), "__call__", 5),
        (partial(partial(Doubles()), factor=3), "Doubles", 3),
        (wraps(refused)(lambda x_ref, o_ref: Doubles()(x_ref, o_ref)), "refused", 2),
    ],
)
def test_a_kernel_is_any_callable_in_python(fn, name, factor):
    kernel = Kernel(fn, out_shape=lambda x: x)
    assert kernel.name == name
    (output,) = kernel.simulate(np.ones((8, 128), "float32"), mesh=1).outputs
    assert (output == factor).all()


@pytest.mark.parametrize("fn", [3, len, int])
def test_a_kernel_needs_python_code(fn):
    with pytest.raises(OptionError) as caught:
        Kernel(fn, out_shape=X)
    assert str(caught.value) == f"Kernel: fn must be a Python function, not {fn!r}"


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ({"vmem_limit_bytes": -1}, "vmem_limit_bytes is a whole number from 1, or None, not -1"),
        ({"vmem_limit_bytes": 1e6}, "vmem_limit_bytes is a whole number from 1, or None, not 1000000.0"),
        ({"collective_id": "a"}, "collective_id is a whole number from 0, or None, not 'a'"),
        ({"collective_id": True}, "collective_id is a whole number from 0, or None, not True"),
        ({"axes": (1,)}, "axes must be different mesh axis names such as ('x',), not (1,)"),
        ({"axes": "x"}, "axes must be different mesh axis names such as ('x',), not 'x'"),
    ],
)
def test_declarations_are_looked_at_when_they_are_made(declaration, message):
    with pytest.raises(OptionError) as caught:
        make(**declaration)
    assert str(caught.value) == f"Kernel: {message}"


def test_whole_numbers_of_numpy_are_whole_numbers():
    assert make(vmem_limit_bytes=np.int64(1 << 20)).vmem_limit_bytes == 1 << 20


def test_the_decorator_needs_declarations():
    with pytest.raises(OptionError) as caught:
        tpusim.kernel(refused)
    assert str(caught.value) == (
        "kernel takes declarations by name: write @tpusim.kernel(out_shape=...) above the function"
    )


def test_two_inputs_are_not_one_output():
    refused("k: input_output_aliases 0: 0: output 0 can be the buffer of one input only", (X, X),
            input_output_aliases={0: 0, 1: 0})  # fmt: skip


def test_one_tuple_of_outputs_stays_a_tuple():
    assert not resolve(make(out_shape=(X,)), [X], {"x": 4}).single_output


@pytest.mark.parametrize(
    ("shard_in", "dims", "local"),
    [
        ((("x", "y"),), (("x",), ("y",)), (16, 32)),
        (("x", "y"), (("x",), ("y",)), (16, 32)),  # the only array's sharding itself
        ((None, ("y", "x")), ((), ("y", "x")), (32, 16)),
        ((("y",),), (("y",), ()), (8, 128)),
        (((),), ((), ()), (32, 128)),
        (((("x", "y"), None),), (("x", "y"), ()), (4, 128)),
    ],
)
def test_sharding(shard_in, dims, local):
    declared = resolve(make(axes=("x", "y"), shard_in=shard_in), [X], MESH)
    assert declared.shard_in == (dims,)
    assert declared.in_shards[0].shape == local
    assert global_shape(declared.in_shards[0], dims, MESH) == X


def test_a_replicated_output_is_as_large_as_one_shard():
    declared = resolve(make(shard_out=((),)), [X], {"x": 4})
    assert declared.out_globals == (ShapeDtypeStruct((8, 128), "float32"),)


def test_one_memory_space_stands_for_all_arrays_and_a_block_spec_keeps_its_blocks():
    spec = BlockSpec((4, 128), lambda i: (i, 0))
    declared = resolve(make(in_specs=ANY, out_specs=(spec,)), [X, X], {"x": 4})
    assert [s.memory_space for s in declared.in_specs] == [ANY, ANY]
    assert declared.out_specs == (BlockSpec(spec.block_shape, spec.index_map, VMEM),)


def test_aliases_and_scratch_in_full():
    declared = resolve(make(input_output_aliases={0: 0}, scratch_shapes=(SemaphoreType.REGULAR,)), [X], {"x": 4})
    assert declared.aliases == {0: 0}
    assert declared.scratch == (SemaphoreArray(SemaphoreType.REGULAR, ()),)


def test_a_mesh_with_other_axes_is_refused():
    refused("k: the mesh has axes ('y',), the kernel ('x',)", mesh={"y": 4})
    refused("k: the mesh has axes ('y', 'x'), the kernel ('x', 'y')", mesh={"y": 4, "x": 1}, axes=("x", "y"))


def test_what_does_not_divide_is_refused():
    refused(
        "k: dimension 0 of input 1 has size 10, which does not divide over x=2, y=4",
        shapes=(X, ShapeDtypeStruct((10,), "int32")),
        mesh=MESH,
        axes=("x", "y"),
    )


@pytest.mark.parametrize(
    ("shard_in", "message"),
    [
        ("x", "k: shard_in must hold one tuple for each array, such as (('x', None),), not 'x'"),
        ((("x",), ("x",)), "k: shard_in has 2 entries for 1 arrays"),
        (((None, None, "x"),), "k: shard_in has 3 dimensions for an array of shape (32, 128)"),
        ((("z",),), "k: shard_in names axis 'z'; the kernel's axes are ('x',)"),
        (("x", "x"), "k: shard_in uses axis 'x' twice for one array"),
    ],
)
def test_shardings_that_cannot_be(shard_in, message):
    refused(message, shard_in=shard_in)


def test_a_sharding_for_each_of_several_arrays_must_be_a_tuple():
    refused(
        "k: shard_in must hold one tuple for each array, such as ('x', None), not 'x'",
        shapes=(X, X),
        shard_in=("x", None),
    )


def test_a_scalar_has_nothing_to_shard():
    refused(
        "k: array 0 has no dimension to shard over ('x',); give shard_in=((),) to replicate it",
        shapes=(ShapeDtypeStruct((), "int32"),),
    )


@pytest.mark.parametrize(
    ("declarations", "message"),
    [
        (
            {"out_shape": (8, 128)},
            "k: out_shape must be a ShapeDtypeStruct or a tuple of them, not (8, 128)",
        ),
        ({"in_specs": (HBM, HBM)}, "k: in_specs has 2 entries for 1 arrays"),
        ({"out_specs": 3}, "k: out_specs must hold a memory space or BlockSpec for each array, not 3"),
        ({"out_specs": (3,)}, "k: out_specs must hold a memory space or BlockSpec for each array, not 3"),
        ({"scratch_shapes": SemaphoreType.DMA}, "k: scratch_shapes must be a tuple, not SemaphoreType.DMA"),
        (
            {"scratch_shapes": (VMEM,)},
            "scratch is a buffer such as VMEM((8, 128), 'float32') or a semaphore, not VMEM",
        ),
        (
            {"scratch_shapes": (HBM((8, 128), "bfloat16"),)},
            "HBM((8, 128), bfloat16): Pallas has scratch in VMEM and SMEM only; "
            "declare a buffer in HBM as one more output",
        ),
        ({"grid": (2, -1)}, "k: grid must be a tuple of sizes, not (2, -1)"),
        ({"grid": "x"}, "k: grid must be a tuple of sizes, not 'x'"),
        ({"input_output_aliases": {1: 0}}, "k: input_output_aliases 1: 0: there are 1 inputs and 1 outputs"),
        (
            {"input_output_aliases": {0: 0}, "out_shape": ShapeDtypeStruct((8, 128), "int32")},
            "k: input_output_aliases 0: 0: ShapeDtypeStruct((8, 128), float32) and "
            "ShapeDtypeStruct((8, 128), int32) cannot be one buffer",
        ),
        ({"out_shape": lambda x: axis_size("z")}, "there is no mesh axis 'z'; this mesh has x=4"),
        (
            {"out_shape": lambda x: tpusim.axis_index("x")},
            "axis_index: a declaration may use axis_size only; it is the same on every device",
        ),
    ],
)
def test_declarations_that_cannot_be(declarations, message):
    refused(message, **declarations)


def test_scratch_of_run_scoped_is_checked_by_the_same_function():
    assert as_scratch(SemaphoreType.DMA) == SemaphoreArray(SemaphoreType.DMA, ())
    ref = SMEM((4,), "int32")
    assert as_scratch(ref) is ref


def test_axes_size_multiplies():
    assert axes_size("y", MESH) == 4
    assert axes_size(("x", "y"), MESH) == 8
    assert axes_size((), MESH) == 1


@pytest.mark.parametrize(
    "device_id", [(1, 3), (0, object()), {"y": 3}, {"x": 1, "y": 0}, {("x", "y"): 7}, {("y",): 2, "x": 1}, {}]
)
def test_device_ids_that_may_name_a_device(device_id):
    assert device_id_problem(device_id, MESH) is None


def test_an_int_names_a_device_of_a_one_axis_mesh_only():
    assert device_id_problem(3, {"x": 4}) is None
    assert device_id_problem((3,), {"x": 4}) is None
    assert device_id_problem(3, MESH) == (
        "Number of device ids must match the number of mesh axes, but got 1 ids for a 2D mesh. "
        "Give one coordinate for each of ('x', 'y'), or a dict."
    )


@pytest.mark.parametrize(
    ("device_id", "problem"),
    [
        (
            (1, 2, 3),
            "Number of device ids must match the number of mesh axes, but got 3 ids for a 2D mesh. "
            "Give one coordinate for each of ('x', 'y'), or a dict.",
        ),
        ((1, "0"), "a device id holds integers, not '0'."),
        ({"x": True}, "a device id holds integers, not True."),
        ((1, 4), "device id (1, 4) is outside the mesh x=2,y=4."),
        ({"y": -1}, "device id {'y': -1} is outside the mesh x=2,y=4."),
        ({("x", "y"): 8}, "device id {('x', 'y'): 8} is outside the mesh x=2,y=4."),
        ({"z": 0}, "device id {'z': 0} names axis 'z'; this mesh has x=2,y=4."),
        ({("x", "y"): 0, "x": 1}, "device id {('x', 'y'): 0, 'x': 1} names axis 'x' twice."),
    ],
)
def test_device_ids_that_cannot_be(device_id, problem):
    assert device_id_problem(device_id, MESH) == problem
