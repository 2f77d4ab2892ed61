"""Arguments of tpusim itself that cannot be right: each message whole, `OptionError`, and nothing runs."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from simulating import TILE, error_of, run, tiles

import tpusim
from tpusim import SMEM, ShapeDtypeStruct, axis_index, make_async_copy
from tpusim.errors import NotModelledError, OptionError
from tpusim.options import RunOptions

OPTIONS = [option.name for option in fields(RunOptions)]


def _nothing(*refs):
    pass


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mash": 4}, "there is no run option 'mash'. Did you mean 'mesh'?"),
        ({"zzz": 4}, f"there is no run option 'zzz'. There are: {', '.join(sorted(OPTIONS))}."),
        ({"schedule": "randon"}, "there is no schedule 'randon'; did you mean 'random'?"),
        ({"faults": 3}, "faults is a list of texts such as 'jitter:200ns', not 3"),
        ({"replay": ""}, "replay: '' is no token; one begins with t1: and stands with each finding"),
        ({"compute": "compiler"}, "compute is 'default' or 'exact', not 'compiler'"),
        ({"on_finding": "ignore"}, "on_finding is 'raise' or 'record', not 'ignore'"),
        ({"cores": "both"}, "cores is 'megacore' or 'split', not 'both'"),
        (
            {"cores": "split", "slice": "v5e:2x2"},
            "cores='split' exists only on v4 and v5p, whose chips join two cores in one device; v5e does not.",
        ),
        ({"max_events": 0}, "max_events is a positive integer, not 0"),
        ({"max_events": 10.5}, "max_events is a positive integer, not 10.5"),
        ({"max_time": -1}, "max_time is a positive number of microseconds, at least 1e-6, not -1"),
        ({"max_time": float("nan")}, "max_time is a positive number of microseconds, at least 1e-6, not nan"),
        ({"max_time": float("inf")}, "max_time is a positive number of microseconds, at least 1e-6, not inf"),
        ({"max_time": True}, "max_time is a positive number of microseconds, at least 1e-6, not True"),
        ({"seed": 1.5}, "seed is an integer, not 1.5"),
        ({"data": "no"}, "data is True or False, not 'no'"),
        (
            {"set": "ici.hop_latency=1"},
            "set is a mapping such as {'ici.link_bandwidth': 90e9}, not 'ici.hop_latency=1'",
        ),
        (
            {"set": {"ici.hop_latencyy": 1}},
            (
                "chip v5e has no 'ici.hop_latencyy'; did you mean 'ici.hop_latency'? Possible: ici.links, "
                "ici.link_bandwidth, ici.nameplate_bandwidth, ici.hop_latency, ici.signal_latency, ici.wrap"
            ),
        ),
        ({"set": {"ici.link_bandwidth": "fast"}}, "ici.link_bandwidth takes a number above 0 in B/s, not 'fast'"),
        ({"set": {"ici.link_bandwidth": 0}}, "ici.link_bandwidth takes a number above 0 in B/s, not 0"),
        ({"slice": 4}, "slice is a text such as 'v5e:4x4', not 4"),
        ({"slice": "v5e"}, "A slice is written chip:shape, as v5e:4x4 or v5p:2x2x1, not 'v5e'."),
        ({"slice": "v5e:3x3"}, "v5e has no slice 3x3. Slices of v5e: 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16."),
        ({"slice": "v3:4x4"}, "No chip is called 'v3'; slices exist for v4, v5e, v5p, v6e, v7x."),
        ({"layout": "spiral"}, "layout is one of auto, ring, row-major or a list of coordinates, not 'spiral'."),
        ({"mesh": 5, "slice": "v5e:2x2"}, "A 5 mesh needs 5 devices, v5e:2x2 has 4."),
        ({"mesh": 0}, "mesh: axis 'x' needs a positive size, not 0"),
        ({"mesh": "4"}, "mesh: '4' is not of the form axis=size, as in 'x=2,y=4'"),
        ({"mesh": "y=4"}, "mesh needs a size for each axis of the kernel, such as 'x=2'; got 'y=4'"),
        ({"mesh": {"x": 2.0}}, "mesh: axis 'x' needs a positive size, not 2.0"),
        ({"mesh": True}, "mesh needs a size for each axis of the kernel, such as 'x=2'; got True"),
        ({"chip": "no_such_file.toml"}, "cannot read no_such_file.toml: No such file or directory"),
    ],
)
def test_run_options(options, says):
    with pytest.raises(OptionError) as caught:
        tpusim.Kernel(_nothing, out_shape=TILE).simulate(tiles(4), **options)
    error = caught.value
    assert isinstance(error, ValueError)
    assert str(error) == says


def test_slices_of_chips_that_are_only_shown():
    error = error_of(NotModelledError, _nothing, tiles(4), slice="8i:4x4x4", on_finding="record")
    assert str(error) == (
        "Slices of 8i chips are not modelled: their network is not published in enough detail. Slices "
        "exist for v4, v5e, v5p, v6e, v7x."
    )


@pytest.mark.parametrize(
    ("array", "says"),
    [
        ([1, None], "input 0 is no array of numbers: array([1, None], dtype=object)"),
        (np.array(["a"] * 8), "arg0: a TPU has no arrays of str32"),
        (np.zeros((8, 128), np.complex64), "arg0: a TPU has no arrays of complex64"),
        (np.zeros((8, 128), np.complex128), "arg0: a TPU has no arrays of complex128"),
        (np.zeros((8, 128), "datetime64[s]"), "arg0: a TPU has no arrays of datetime64[s]"),
        (np.zeros((7, 128), np.float32), "_nothing: dimension 0 of input 0 has size 7, which does not divide over x=2"),
        (np.float32(3), "_nothing: array 0 has no dimension to shard over ('x',); give shard_in=((),) to replicate it"),
    ],
)
def test_inputs(array, says):
    error = error_of(OptionError, _nothing, array, mesh=2)
    assert str(error) == says


def test_shapes_without_data_need_data_false():
    error = error_of(OptionError, _nothing, ShapeDtypeStruct((8, 128), "float32"))
    assert str(error) == "_nothing: input 0 (arg0) is a shape without data: give an array or data=False"


def test_scalar_memory_needs_values_even_without_data():
    error = error_of(OptionError, _nothing, ShapeDtypeStruct((8,), "int32"), in_specs=SMEM, data=False)
    assert str(error) == "_nothing: input 0 (arg0) lives in SMEM and needs real values even with data=False"


def test_kernel_language_outside_a_kernel():
    with pytest.raises(OptionError) as caught:
        axis_index("x")
    error = caught.value
    assert str(error) == (
        "this function works inside a kernel only: call it from a function run by Kernel.simulate(...) or "
        "Kernel.pallas(...)"
    )


def test_a_descriptor_made_outside_a_kernel_starts_nowhere():
    with pytest.raises(OptionError) as caught:
        make_async_copy(1, 2, 3)
    error = caught.value
    assert str(error) == (
        "this function works inside a kernel only: call it from a function run by Kernel.simulate(...) or "
        "Kernel.pallas(...)"
    )


def test_unknown_mesh_axis_in_a_kernel():
    def kernel(x_ref, o_ref):
        axis_index("z")

    error = error_of(OptionError, kernel, tiles())
    assert str(error) == "there is no mesh axis 'z'; the kernel has ('x',)"


def test_a_right_run_follows_a_refused_one():
    error_of(OptionError, _nothing, tiles(), mesh=0)
    assert run(_nothing, tiles()).ok


def test_a_kernel_with_other_parameters_than_refs():
    def kernel(x_ref, o_ref):
        pass

    error = error_of(OptionError, kernel, tiles(), scratch_shapes=(SMEM((1,), "int32"),))
    assert str(error) == ("kernel: kernel(x_ref, o_ref) is called with 3 refs: 1 inputs, 1 outputs, 1 of scratch")


def test_another_number_of_arrays_than_a_declaration_takes():
    def shape(x, y):
        return x

    error = error_of(OptionError, _nothing, tiles(), out_shape=shape)
    assert str(error) == "_nothing: shape(x, y) is declared, and the kernel was called with 1 arrays"


def test_an_index_that_is_no_number():
    def by_name(x_ref, o_ref):
        x_ref.at["a"]

    def bounded_by_name(x_ref, o_ref):
        x_ref.at["a":]

    assert "a ref is indexed with integers and slices, not with 'a'" in str(error_of(OptionError, by_name, tiles()))
    assert "a slice has integers as bounds, not 'a'" in str(error_of(OptionError, bounded_by_name, tiles()))
