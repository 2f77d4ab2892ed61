"""The command line where it needs JAX: interpret mode, files with a JAX function."""

import re
from pathlib import Path

import pytest
from command_line import own_folder, strict_json, write

__all__ = ["own_folder"]  # the tests of this file run in a folder of their own


@pytest.mark.jax
@pytest.mark.usefixtures("interpret_lock")
def test_doctor_tries_interpret_mode(tpusim):
    pytest.importorskip("jax")
    status, out, _ = tpusim("doctor")
    assert status == 0
    assert re.search(r"^interpret works    2 devices in [\d.]+ s; data equal$", out, re.MULTILINE)


@pytest.mark.jax
@pytest.mark.usefixtures("interpret_lock")
def test_interpret_checks_the_data_alone(tpusim):
    pytest.importorskip("jax")
    status, out, _ = tpusim("run", write("k.py"), "--mesh", "x=2", "--backend", "interpret", "--json", "-")
    result = strict_json(out)
    assert status == 0
    assert (result["ok"], result["result"], result["backend"]) == (True, "equal", "interpret")
    assert result["time_us"] is result["lower_bound_us"] is result["wall_s"] is None
    write("k.py", ("    return x + np.roll", "    return x + 1 + np.roll"))
    status, out, _ = tpusim("run", "k.py", "--mesh", "x=2", "--backend", "interpret")
    assert status == 1
    assert out.startswith("JAX's TPU interpret mode, mesh x=2: data alone, no time\nresult       2048 of 2048 values")


@pytest.mark.jax
@pytest.mark.usefixtures("interpret_lock")
def test_what_interpret_mode_raises_is_reported(tpusim):
    pytest.importorskip("jax")
    write("k.py", ("    copy.start()", "    copy.start(add=True)"))
    status, _, err = tpusim("run", "k.py", "--mesh", "2", "--backend", "interpret")
    assert status == 3
    assert "JAX's interpret mode ignores add=True: the result would be wrong." in err
    write("k.py", ("    copy.start()", "    1 / 0"))
    status, out, _ = tpusim("run", "k.py", "--mesh", "2", "--backend", "interpret")
    assert status == 1
    assert "ZeroDivisionError: division by zero" in out


CAPTURED = """
import jax, numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

def body(x_ref, o_ref, send_sem, recv_sem):
    n, me = jax.lax.axis_size("x"), jax.lax.axis_index("x")
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, device_id=((me - 1) % n,))
    pl.semaphore_wait(barrier, 1)
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, send_sem, recv_sem, device_id=((me + 1) % n,))
    copy.start()
    copy.wait()

def shift(x):
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), in_specs=[anywhere], out_specs=anywhere,
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2, compiler_params=pltpu.CompilerParams(collective_id=0),
    )(x)

mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
kernel = jax.jit(jax.shard_map(shift, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))

def inputs(seed=0):
    return (np.arange(32 * 128, dtype=np.float32).reshape(32, 128),)

def reference(x):
    return np.roll(x, ROWS, axis=0)

def lower_bound(slice, x):
    return slice.permute(x.nbytes // slice.num_devices)
"""


@pytest.mark.jax
@pytest.mark.parametrize(("rows", "status"), [(8, 0), (16, 1)])
def test_a_file_with_a_jax_function_is_captured(tpusim, tmp_path, rows, status):
    path = tmp_path / "shift.py"
    path.write_text(CAPTURED.replace("ROWS", str(rows)))
    code, out, _ = tpusim("run", path, "--slice", "v5e:2x2", "--json", "-")
    assert code == status
    values = strict_json(out)
    assert (values["dmas"], values["slice"], values["mesh"]) == (4, "v5e:2x2", {"x": 4})
    assert values["lower_bound_us"] < values["time_us"]
    assert values["ok"] is (status == 0)


@pytest.mark.jax
def test_a_captured_function_is_reported_and_explained(tpusim, tmp_path):
    path = tmp_path / "captured.py"
    path.write_text(CAPTURED.replace("ROWS", "8"))
    status, out, err = tpusim("report", path, "--slice", "v5e:2x2", "--html", "page.html")
    assert status == 0, err
    assert out.endswith("report       page.html\n")
    page = Path("page.html").read_text()
    assert "The critical path lies on captured.py:" in page
    status, out, err = tpusim("explain", path, "--slice", "v5e:2x2", "--json", "-")
    assert status == 0, err
    said = strict_json(out)
    assert said["sentences"][0].startswith("It takes ")
    assert said["what_ifs"][0]["time_us"] <= said["time_us"]
