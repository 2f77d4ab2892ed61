"""The native language through real Pallas: every way to write an operation, and the errors of tracing.

What needs execution runs in a child process (interpret mode); errors show while JAX traces, on one device,
in this process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import emit_kernels as kernels
import numpy as np
import pytest

from tpusim import HBM, BlockSpec, Kernel, SemaphoreType
from tpusim.errors import CollectiveIdError, DeviceIdError, NotModelledError, OptionError, TpuSimError
from tpusim.findings import short_path
from tpusim.pallas import InterpretError, InterpretTimeoutError, interpret_in_subprocess
from tpusim.pallas.host import declare_host_devices, load_arrays, save_arrays
from tpusim.specs import as_dtype

FILE = kernels.__file__
TILE = kernels.inputs()[0]


def on_both(interpret: Any, name: str, mesh: dict[str, int], *arrays: Any) -> list[Any]:
    """The outputs of a kernel through Pallas, which must be the simulator's too."""
    through_pallas = interpret(f"{FILE}:{name}", mesh, arrays)
    simulated = getattr(kernels, name).simulate(*arrays, mesh=mesh).outputs
    for real, ours in zip(through_pallas, simulated, strict=True):
        np.testing.assert_array_equal(real, ours)
        assert real.dtype == ours.dtype
    return list(through_pallas)


@pytest.mark.jax
def test_local_descriptors(interpret: Any) -> None:
    (out,) = on_both(interpret, "local", {"x": 1}, TILE)
    np.testing.assert_array_equal(out, np.roll(TILE, 4, axis=0))


@pytest.mark.jax
def test_scopes_loops_conditions_and_numpy(interpret: Any) -> None:
    (out,) = on_both(interpret, "controlled", {"x": 1}, TILE)
    expected = 2 * TILE + 1
    expected[::2] *= -1
    expected[0] = 0
    np.testing.assert_array_equal(out, expected)


@pytest.mark.jax
def test_grid(interpret: Any) -> None:
    (out,) = on_both(interpret, "grid", {"x": 1}, TILE)
    np.testing.assert_array_equal(out, TILE * 8)


@pytest.mark.jax
def test_an_aliased_output_keeps_what_was_not_written(interpret: Any) -> None:
    (out,) = on_both(interpret, "aliased", {"x": 1}, TILE)
    np.testing.assert_array_equal(out, np.concatenate([TILE[:4], np.full((4, 128), 7)]))


@pytest.mark.jax
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_device_ids_of_every_form_on_two_axes(dtype: str, interpret: Any) -> None:
    (x,) = kernels.inputs(4)
    x = x.astype(as_dtype(dtype))
    outputs = on_both(interpret, "device_ids", {"x": 2, "y": 2}, x)
    shards = x.reshape(2, 2, 8, 128)
    for out, (dx, dy) in zip(outputs, [(1, 0), (0, 1), (1, 1), (1, 1), (0, 0)], strict=True):
        np.testing.assert_array_equal(out, np.roll(shards, (dx, dy), axis=(0, 1)).reshape(x.shape))


@pytest.mark.jax
def test_int_device_ids_on_one_axis(interpret: Any) -> None:
    (x,) = kernels.inputs(3)
    (out,) = on_both(interpret, "int_ids", {"x": 3}, x)
    np.testing.assert_array_equal(out[::8, 0], [2, 0, 1])


@pytest.mark.jax
def test_a_deadlock_is_a_timeout() -> None:
    with pytest.raises(InterpretTimeoutError) as caught:
        interpret_in_subprocess(f"{FILE}:deadlock", {"x": 1}, [TILE], timeout_s=6)
    assert str(caught.value) == (
        f"{FILE}:deadlock: no result from JAX's interpret mode on x=1 within 6 s; it hangs where a kernel deadlocks"
    )


@pytest.mark.jax
def test_an_error_comes_back_with_the_line_of_the_kernel(interpret: Any) -> None:
    with pytest.raises(InterpretError) as caught:
        interpret(f"{FILE}:failing", {"x": 2}, [np.tile(TILE, (2, 1))])
    line = kernels.fails.__code__.co_firstlineno + 1
    lines = str(caught.value).split("\n")
    assert lines[0] == f"{FILE}:failing: interpret mode failed on x=2, exit status 1:"
    assert f'File "{FILE}", line {line}, in fails' in lines[1]
    assert lines[-2:] == ["  RuntimeError: two lines", "  of a message"]


def trace(kernel: Kernel, x: Any = TILE, *, interpret: Any = True) -> Any:
    """Shapes of the outputs, by tracing alone, on a mesh of one device."""
    import jax

    mesh = jax.make_mesh((1,) * len(kernel.axes), kernel.axes, devices=jax.devices("cpu")[:1])
    return jax.eval_shape(kernel.pallas(mesh, interpret=interpret), x)


def at(fn: Any, line: int = 1) -> str:
    return f"  [{short_path(FILE)}:{fn.__code__.co_firstlineno + line}]"


def refused(kind: type[TpuSimError], message: str, fn: Any, *, interpret: Any = True, **declared: Any) -> None:
    keywords: dict[str, Any] = {"out_shape": lambda x: x, "scratch_shapes": (SemaphoreType.DMA,), **declared}
    with pytest.raises(kind) as caught:
        trace(Kernel(fn, **keywords), interpret=interpret)
    assert str(caught.value) == message


@pytest.mark.jax
def test_outputs_have_the_declared_structure() -> None:
    a, b = trace(kernels.pair)
    assert (a.shape, b.shape) == ((8, 128), (4, 128))
    assert trace(kernels.controlled).shape == (8, 128)


@pytest.mark.jax
def test_block_specs_and_a_real_target_are_passed_on() -> None:
    def double(x_ref: Any, o_ref: Any) -> None:
        assert x_ref.shape == (8, 128)
        o_ref[...] = x_ref[...] * 2

    spec = BlockSpec((8, 128), lambda i: (i, 0))
    kernel = Kernel(double, out_shape=lambda x: x, in_specs=spec, out_specs=spec, grid=(4,))
    x = np.zeros((32, 128), np.float32)
    assert trace(kernel, x).shape == (32, 128)
    assert trace(kernel, x, interpret=None).shape == (32, 128)


@pytest.mark.jax
def test_what_interpret_mode_does_not_do_is_refused_and_a_tpu_gets_it() -> None:
    sentence = "JAX's interpret mode ignores add=True: the result would be wrong."
    refused(NotModelledError, sentence + at(kernels.adding), kernels.adding)
    sentence = "JAX's interpret mode has no semaphore_read."
    regular = (SemaphoreType.REGULAR,)
    refused(NotModelledError, sentence + at(kernels.reading), kernels.reading, scratch_shapes=regular)
    for fn, scratch in ((kernels.adding, (SemaphoreType.DMA,)), (kernels.reading, regular)):
        kernel = Kernel(fn, out_shape=lambda x: x, scratch_shapes=scratch)
        assert trace(kernel, interpret=False).shape == (8, 128)


@pytest.mark.jax
def test_device_ids_are_checked_as_on_the_simulator() -> None:
    refused(
        DeviceIdError,
        "Number of device ids must match the number of mesh axes, but got 1 ids for a 2D mesh. "
        "Give one coordinate for each of ('x', 'y'), or a dict." + at(kernels.numbering),
        kernels.numbering,
        axes=("x", "y"),
    )
    refused(
        DeviceIdError,
        "device id {'z': 0} names axis 'z'; this mesh has x=1." + at(kernels.signalling),
        kernels.signalling,
        collective_id=0,
    )


@pytest.mark.jax
def test_the_barrier_semaphore_and_the_collective_id_need_each_other() -> None:
    refused(
        CollectiveIdError,
        "barring uses the barrier semaphore and has no collective_id: give the kernel "
        "collective_id=0 (another number for each kernel that synchronises differently)." + at(kernels.barring),
        kernels.barring,
    )
    refused(
        CollectiveIdError,
        "adding has collective_id=4 and never calls get_barrier_semaphore(): "
        "the compiler refuses a collective_id that is not used; leave it out.",
        kernels.adding,
        collective_id=4,
        interpret=False,
    )


@pytest.mark.jax
def test_declarations_are_checked_as_on_the_simulator() -> None:
    refused(
        OptionError,
        "HBM((8, 128), float32): Pallas has scratch in VMEM and SMEM only; declare a buffer in HBM as one more output",
        kernels.scoping,
    )
    refused(OptionError, "fails: in_specs has 2 entries for 1 arrays", kernels.fails, in_specs=(HBM, HBM))


def test_arrays_survive_the_way_to_the_child(tmp_path: Path) -> None:
    arrays = [
        np.arange(6, dtype=np.int8).reshape(2, 3),
        np.asarray(2.5, np.float32),
        *(np.arange(12).reshape(3, 4).T.astype(as_dtype(name)) for name in ("bfloat16", "float8_e5m2", "int4")),
        np.zeros((0, 128), bool),
    ]
    save_arrays(tmp_path / "a.npz", arrays * 2)
    for loaded, array in zip(load_arrays(tmp_path / "a.npz"), arrays * 2, strict=True):
        assert (loaded.dtype, loaded.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(loaded, array)


@pytest.mark.jax
def test_host_devices_cannot_be_declared_late() -> None:
    import jax

    assert jax
    with pytest.raises(OptionError, match=r"^the virtual devices of the host must be declared before jax is"):
        declare_host_devices(2)


def test_without_jax_interpret_mode_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setattr("tpusim.pallas.host.find_spec", lambda name: None)
    with pytest.raises(OptionError) as caught:
        interpret_in_subprocess(FILE, {"x": 1}, [TILE])
    assert str(caught.value) == "interpret mode needs jax in this Python: pip install 'tpusim[pallas]'"


def test_the_package_itself_does_not_import_jax() -> None:
    code = "import sys, tpusim.pallas, tpusim.kernel_file; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
