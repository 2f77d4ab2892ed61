"""Lint: what the TPU compiler was seen to refuse and to accept, and nothing else, is an alignment error."""

import ml_dtypes
import numpy as np
import pytest

import tpusim
from tpusim import HBM, VMEM, SemaphoreType, ShapeDtypeStruct, ds, make_async_copy
from tpusim.errors import AlignmentError
from tpusim.findings import Kind
from tpusim.judges.lint import ROWS, RULES

ALL = slice(None)
DTYPES = {"f32": np.float32, "i32": np.int32, "bf16": ml_dtypes.bfloat16, "i16": np.int16, "i8": np.int8}
DTYPES |= {"f8": ml_dtypes.float8_e4m3fn, "i4": ml_dtypes.int4}


def part(start, size):
    return slice(start, start + size)


COMPILED = [
    # (type, shape, slice, whether libtpu 0.0.50.1 compiles a copy of it for v5e, v5p, v6e and v7x)
    ("f32", (64, 128), (part(3, 8), ALL), True),
    ("f32", (64, 128), (part(3, 1), ALL), True),
    ("f32", (64, 128), (3, ALL), True),
    ("f32", (64, 256), (part(3, 1), ALL), True),
    ("bf16", (64, 128), (part(3, 8), ALL), False),
    ("bf16", (64, 128), (part(2, 8), ALL), True),
    ("bf16", (64, 128), (part(2, 3), ALL), False),
    ("bf16", (64, 128), (part(0, 3), ALL), False),
    ("bf16", (64, 128), (4, ALL), False),
    ("bf16", (64, 100), (part(2, 2), ALL), True),
    ("bf16", (64, 100), (part(1, 2), ALL), False),
    ("bf16", (64, 256), (part(8, 8), ALL), True),
    ("bf16", (65, 128), (part(64, 1), ALL), True),
    ("bf16", (65, 128), (part(62, 3), ALL), True),
    ("bf16", (5, 128), (ALL, ALL), True),
    ("bf16", (8, 2, 128), (part(1, 2), ALL, ALL), True),
    ("bf16", (8, 2, 128), (part(1, 2), part(0, 1), ALL), False),
    ("bf16", (8, 2, 128), (3, 1, ALL), False),
    ("f32", (8, 4, 128), (3, 1, ALL), True),
    ("i16", (64, 128), (part(1, 2), ALL), False),
    ("i8", (64, 128), (part(4, 4), ALL), True),
    ("i8", (64, 128), (part(2, 4), ALL), False),
    ("i8", (64, 128), (part(4, 2), ALL), False),
    ("f8", (64, 128), (part(2, 4), ALL), False),
    ("f8", (64, 128), (part(4, 4), ALL), True),
    ("i4", (64, 128), (part(8, 8), ALL), True),
    ("i4", (64, 128), (part(4, 8), ALL), False),
    ("f32", (64, 512), (part(0, 32), part(128, 256)), True),
    ("f32", (64, 512), (part(0, 32), part(64, 128)), False),
    ("f32", (64, 512), (part(0, 32), part(0, 200)), False),
    ("f32", (64, 200), (part(0, 32), part(128, 72)), True),
    ("i8", (64, 512), (part(0, 32), part(0, 64)), False),
    ("f32", (64, 64), (part(0, 8), part(0, 32)), False),
    ("f32", (4096,), (part(128, 256),), True),
    ("f32", (4096,), (part(0, 64),), False),
    ("f32", (1000,), (part(512, 488),), True),
    ("bf16", (4096,), (part(256, 256),), True),
    ("bf16", (4096,), (part(128, 256),), False),
    ("i8", (4096,), (part(512, 512),), True),
    ("i8", (4096,), (part(256, 256),), False),
]


def part_of(shape, index):
    """A kernel that copies a slice of its input to VMEM and from there to its output."""
    taken = np.zeros(shape, np.int8)[index]

    def body(x_ref, o_ref, scratch, sem):
        for source, target in ((x_ref.at[index], scratch), (scratch, o_ref)):
            copy = make_async_copy(source, target, sem)
            copy.start()
            copy.wait()

    return tpusim.Kernel(
        body,
        out_shape=lambda x: ShapeDtypeStruct(taken.shape, x.dtype),
        in_specs=HBM,
        out_specs=HBM,
        scratch_shapes=lambda x: (VMEM(taken.shape, x.dtype), SemaphoreType.DMA),
    )


@pytest.mark.parametrize(("dtype", "shape", "index", "compiles"), COMPILED)
def test_the_verdict_is_the_compilers(dtype, shape, index, compiles):
    x = np.arange(np.prod(shape)).reshape(shape).astype(DTYPES[dtype])
    result = part_of(shape, index).simulate(x, slice="v5e:1x1", on_finding="record")
    assert result.outputs is not None
    assert {finding.kind for finding in result.findings} == (set() if compiles else {Kind.ALIGNMENT})


def test_the_error_names_the_slice_the_rule_and_its_origin():
    x = np.zeros((32, 128), ml_dtypes.bfloat16)
    with pytest.raises(AlignmentError) as caught:
        part_of((32, 128), (part(3, 8),)).simulate(x, slice="v5e:1x1")
    assert caught.value.finding.message == (
        "the slice of x_ref (bfloat16[32, 128]) starts at 3 in dimension 0; rows are copied in whole 32-bit words: "
        "16-bit types by 2 rows, 8-bit types by 4, 4-bit types by 8. "
        "(Mosaic: Offsets along tiled dimensions must be aligned to tiles.)"
    )
    assert caught.value.finding.argument == "x_ref"
    assert caught.value.result.outputs is not None


def test_a_stride_is_refused():
    def body(x_ref, o_ref, sem):
        copy = make_async_copy(x_ref.at[ds(0, 4, 2)], o_ref, sem)
        copy.start()
        copy.wait()

    kernel = tpusim.Kernel(
        body,
        out_shape=ShapeDtypeStruct((4, 128), "float32"),
        in_specs=HBM,
        out_specs=HBM,
        scratch_shapes=(SemaphoreType.DMA,),
    )
    with pytest.raises(AlignmentError) as caught:
        kernel.simulate(np.zeros((8, 128), np.float32), slice="v5e:1x1")
    assert caught.value.finding.message == (
        "the slice of x_ref takes every 2th element of a dimension; a copy's slice has no stride. "
        "(jax: Strided slices of references are unsupported.)"
    )


def test_many_copies_of_one_line_are_one_finding():
    def body(x_ref, o_ref, sem):
        def step(i, _):
            copy = make_async_copy(x_ref.at[ds(2 * i + 1, 1)], o_ref.at[ds(2 * i + 1, 1)], sem)
            copy.start()
            copy.wait()

        tpusim.fori_loop(0, 8, step, None)

    kernel = tpusim.Kernel(
        body, out_shape=lambda x: x, in_specs=HBM, out_specs=HBM, scratch_shapes=(SemaphoreType.DMA,)
    )
    x = np.zeros((4 * 16, 128), ml_dtypes.bfloat16)
    result = kernel.simulate(x, slice="v5e:2x2", on_finding="record")
    assert [f.argument for f in result.findings if f.kind is Kind.ALIGNMENT] == ["x_ref", "o_ref"]


def test_loads_and_stores_are_not_copies():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...]
        o_ref[3:5, 7:9] = x_ref[1:3, 5:7]

    kernel = tpusim.Kernel(body, out_shape=lambda x: x)
    assert kernel.simulate(np.zeros((16, 128), ml_dtypes.bfloat16), slice="v5e:1x1").findings == ()


def test_the_command_shows_each_rule_with_its_origin(tpusim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text(
        "import numpy as np, ml_dtypes, tpusim\n"
        "from tpusim import HBM, SemaphoreType, make_async_copy\n"
        "@tpusim.kernel(out_shape=lambda x: x, in_specs=HBM, out_specs=HBM, scratch_shapes=(SemaphoreType.DMA,))\n"
        "def kernel(x_ref, o_ref, sem):\n"
        "    copy = make_async_copy(x_ref.at[1:3], o_ref.at[1:3], sem)\n"
        "    copy.start()\n"
        "    copy.wait()\n"
        "def inputs(devices=1, dtype='bfloat16'):\n"
        "    return (np.zeros((8 * devices, 128), dtype),)\n"
    )

    def lint(*more):
        status, out, _ = tpusim("lint", "k.py", "--slice", "v5e:1x1", *more)
        return status, out.splitlines()

    code, lines = lint()
    assert code == 1
    heads = [line.split()[:2] for line in lines if not line.startswith(" ")]
    assert heads == [[str(rule.kind), "broken" if rule is ROWS else "kept"] for rule in RULES]
    assert sum("starts at 1 in dimension 0" in line for line in lines) == 2
    assert [line.strip() for line in lines if line.strip() in {rule.origin for rule in RULES}] == [
        r.origin for r in RULES
    ]
    assert lint("--dtype", "float32")[0] == 0
