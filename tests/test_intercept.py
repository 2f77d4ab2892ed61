"""Kernels on the machine in place: ``intercept``, ``tpusim exec`` and ``pytest --tpusim``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tpusim
from tpusim.errors import OptionError

pytestmark = pytest.mark.jax

HERE = Path(__file__).parent
LIMIT_S = 240


def python(*arguments, cwd=None, **variables):
    """A Python process of its own, jax's devices not declared."""
    hidden = {"XLA_FLAGS", "PJRT_NPROC", "JAX_PLATFORMS", "PYTEST_ADDOPTS"}
    env = {key: value for key, value in os.environ.items() if key not in hidden and not key.startswith("PYTEST_XDIST")}
    env |= {"PYTHONPATH": str(HERE.parent), **variables}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=cwd, env=env)


def kernel_call(kernel, x, **options):
    import jax
    from jax.experimental import pallas as pl

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), **options)(x)


def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


def leave(x_ref, o_ref, sem):
    from jax.experimental.pallas import tpu as pltpu

    pltpu.make_async_copy(x_ref, o_ref, sem).start()


def doubled(x):
    return kernel_call(double, x)


def left(x):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    whole = pl.BlockSpec(memory_space=pl.ANY)
    return kernel_call(leave, x, in_specs=[whole], out_specs=whole, scratch_shapes=[pltpu.SemaphoreType.DMA])


@pytest.fixture
def x():
    import jax.numpy as jnp

    return jnp.arange(8 * 128, dtype=jnp.float32).reshape(8, 128)


# -- one device -------------------------------------------------------------------------------------


def test_kernels_run_on_the_machine_jitted_or_not(x):
    import jax

    with tpusim.pallas.intercept(slice="v5e:1x1") as sim:
        assert (doubled(x) == 2 * x).all()
        assert (jax.jit(doubled)(x) == 2 * x).all()
    assert [call.name for call in sim.calls] == ["double", "double"]
    call = sim.calls[0]
    assert call.devices == (0,)
    assert call.ok
    assert sim.ok
    assert call.time == call.result.time > 0
    assert str(call.where).endswith(f"test_intercept.py:{double.__code__.co_firstlineno}")


def test_an_error_is_raised_where_the_kernel_is_called_and_leaves_nothing_behind(x):
    import jax

    with tpusim.pallas.intercept(slice="v5e:1x1") as sim:
        for function in (left, jax.jit(left)):
            with pytest.raises(tpusim.errors.UnwaitedError, match=r"no wait\(\) for the copy.*test_intercept.py") as e:
                function(x)
            assert e.value.result is sim.calls[-1].result
            assert (doubled(x) == 2 * x).all()
    assert [call.ok for call in sim.calls] == [False, True, False, True]
    assert {str(finding.kind) for finding in sim.findings} == {"unwaited"}
    assert not sim.ok


def test_findings_can_be_recorded_alone(x):
    with tpusim.pallas.intercept(slice="v5e:1x1", on_finding="record", keep_results=False) as sim:
        left(x)
    assert [str(finding.kind) for finding in sim.findings] == ["unwaited"]
    assert sim.calls[0].result is None


def test_a_kernel_without_a_model_says_so(x):
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def program(x):
        result = pltpu.SemaphoreType.DMA(())
        pl.pallas_call(lambda x, s: None, out_shape=result, out_specs=pl.BlockSpec(memory_space=pltpu.SEMAPHORE))(x)
        return x

    with (
        tpusim.pallas.intercept(slice="v5e:1x1") as sim,
        pytest.raises(tpusim.errors.NotModelledError, match="results are not all arrays"),
    ):
        jax.jit(program)(x)
    assert not sim.ok


@pytest.mark.parametrize("axis", ["subcore", "x"])
def test_kernels_on_subcores(x, axis):
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu
    from jax.experimental.pallas import tpu_sc

    def kernel(x_ref, o_ref, row, sem):
        mine = pl.ds(jax.lax.axis_index(axis), 1)
        pltpu.async_copy(x_ref.at[mine], row, sem).wait()
        pltpu.async_copy(row, o_ref.at[mine], sem).wait()

    def copied(x):
        mesh = tpu_sc.VectorSubcoreMesh(core_axis_name="core", subcore_axis_name=axis, num_cores=1, num_subcores=8)
        scratch = [pltpu.VMEM((1, 128), x.dtype), pltpu.SemaphoreType.DMA]
        return pl.kernel(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), mesh=mesh, scratch_types=scratch)(x)

    with tpusim.pallas.intercept(slice="v6e:1x1") as sim:
        assert (jax.jit(copied)(x) == x).all()
    assert sim.ok
    assert [(call.name, call.dmas, call.devices) for call in sim.calls] == [("kernel", 16, (0,))]


def test_kernels_may_be_checkpointed_and_differentiated(x):
    import jax

    @jax.custom_vjp
    def scaled(x):
        return doubled(x)

    scaled.defvjp(lambda x: (doubled(x), None), lambda _, g: (doubled(g),))
    with tpusim.pallas.intercept(slice="v5e:1x1") as sim:
        gradient = jax.jit(jax.grad(lambda x: jax.checkpoint(scaled)(x).sum()))(x)
    assert (gradient == 2).all()
    assert len(sim.calls) >= 2


def test_threads_of_the_program_are_in_it_too(x):
    results = []
    with tpusim.pallas.intercept(slice="v5e:1x1") as sim:
        thread = threading.Thread(target=lambda: results.append(doubled(x)))
        thread.start()
        thread.join()
    assert (results[0] == 2 * x).all()
    assert len(sim.calls) == 1


def test_the_chip_of_the_slice_is_what_programs_see():
    from jax.experimental.pallas import tpu as pltpu

    for slice_, name in (("v5e:1x1", "v5e"), ("v6e:1x1", "v6e")):
        with tpusim.pallas.intercept(slice=slice_):
            assert str(pltpu.get_tpu_info().chip_version) == name


def test_caches_neither_bypass_nor_leak(x):
    import jax
    from jax.experimental.pallas import tpu as pltpu

    @jax.jit
    def jitted(x):
        return doubled(x)

    def forced(x):
        with pltpu.force_tpu_interpret_mode():
            return jitted(x)

    forced(x)  # compiled before, for JAX's own interpreter
    with tpusim.pallas.intercept(slice="v5e:1x1") as sim:
        for function in (forced, jitted, forced, jitted):
            assert (function(x) == 2 * x).all()
        assert len(sim.calls) == 4
        compiled = jitted.lower(x).compile()
    assert (forced(x) == 2 * x).all()
    with pytest.raises(ValueError, match="Only interpret mode is supported on CPU backend"):
        jitted(x)
    with pytest.raises(Exception, match=r"double was compiled within intercept\(\), which has ended"):
        compiled(x)
    assert len(sim.calls) == 4


def test_everything_is_as_before_afterwards(x):
    from jax._src import config
    from jax._src.interpreters import pxla
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
    from jax.experimental.pallas import tpu as pltpu

    def state():
        mode = config.pallas_tpu_interpret_mode_context_manager
        return interpreter.interpret_pallas_call, pxla.ExecuteReplicated.__call__, mode.value, mode.get_global()

    before = state()
    sim = tpusim.pallas.intercept(slice="v5e:1x1")
    with sim:
        doubled(x)
        assert all(now != then for now, then in zip(state(), before, strict=True))
    assert state() == before
    with pytest.raises(OptionError, match="has begun already"), sim:
        pass
    with pytest.raises(ZeroDivisionError), tpusim.pallas.intercept(slice="v5e:1x1"):
        raise ZeroDivisionError
    assert state() == before
    with pytest.raises(ValueError, match="Unsupported TPU device kind: cpu"):
        pltpu.get_tpu_info()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": 4}, "leave the option mesh out"),
        ({"data": False}, "data=False is not possible"),
        ({"arrive_timeout_s": 0}, "arrive_timeout_s is a positive number of seconds, not 0"),
        ({"slice": "v5e:3x1"}, "v5e has no slice 3x1"),
        ({"sllice": "v5e:2x2"}, "there is no run option 'sllice'"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(OptionError, match=message):
        tpusim.pallas.intercept(**options)


def test_too_few_devices_or_threads_say_how_to_have_them():
    code = "import tpusim.pallas; tpusim.pallas.intercept(slice='v5e:4x4').__enter__()"
    for variables, problem in (
        ({}, "slice v5e:4x4 has 16 devices and jax has 1 here"),
        (
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=16", "JAX_PLATFORMS": "cpu", "PJRT_NPROC": "2"},
            "and XLA has 2 here",
        ),
    ):
        last = python("-c", code, **variables).stderr.splitlines()[-1]
        assert problem in last
        assert "tpusim.pallas.declare_host_devices(16)" in last
        assert "XLA_FLAGS=--xla_force_host_platform_device_count=16 PJRT_NPROC=64" in last


# -- four devices -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def four(interpret_turn):
    """The outcomes of ``intercept_program``."""
    with interpret_turn():
        done = python(HERE / "intercept_program.py")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["ring", "collective_between", "loop", "not_jitted", "cores"])
def test_data_of_four_devices(four, name):
    assert four[name] is True


def test_one_call_of_four_devices_is_one_run(four):
    call = four["ring_call"]
    assert call["devices"] == [0, 1, 2, 3]
    assert call["dmas"] == 4
    assert call["mesh"] == {"x": 4}
    assert call["printed"].startswith("Result(ok, ")


def test_one_call_on_two_cores_of_four_devices_is_one_run(four):
    assert four["cores_call"]["devices"] == [0, 1, 2, 3]
    assert four["cores_call"]["dmas"] == 8
    assert four["cores_call"]["ok"]


def test_python_decides_between_kernels(four):
    assert four["python"] == [0.0, 3072.0, 3073.0]


def test_a_mesh_of_two_axes(four):
    assert four["two_axes"] == [128.0, 2048.0]


def test_a_deadlock_is_an_error_not_a_hang(four):
    assert four["deadlock"]["error"] == "DeadlockError"
    assert "of 4 devices can never proceed" in four["deadlock"]["text"]
    assert four["deadlock"]["s"] < LIMIT_S / 4
    assert four["unwaited"]["error"] == "UnwaitedError"
    assert four["after_deadlock"]


def test_devices_that_do_not_arrive_are_named(four):
    text = four["absent"]["text"]
    assert four["absent"]["error"] == "ArrivalTimeoutError"
    assert text.startswith(
        "ring, mesh x=4: devices 0, 1, 2 arrived and device 3 did not within 5 s (arrive_timeout_s). Each device of "
        "the mesh has to call the kernel.  ["
    )
    assert four["absent_call"]["error"] == text
    assert not four["absent_call"]["ok"]
    assert four["after_absent"]


def test_a_kernel_that_needs_nobody_waits_for_nobody(four):
    assert four["alone"] == [1.0, 1.0, 1.0, 0.0]
    assert four["alone_devices"] == [0, 1, 2]


def test_a_kernel_outside_of_shard_map_needs_one_device(four):
    assert four["not_local"]["error"] == "NotModelledError"
    assert "call it within a shard_map over all axes of the mesh" in four["not_local"]["text"]


def test_a_mesh_larger_than_the_slice(four):
    assert four["too_large"]["error"] == "OptionError"
    assert "needs 4 devices, v5e:1x1 has 1" in four["too_large"]["text"]


# -- whole processes --------------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp
from beside import double
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

print(Path(sys.argv[0]).name, sys.argv[1:], __name__, Path(__file__).name, jax.device_count())

def leave(x_ref, o_ref, sem):
    pltpu.make_async_copy(x_ref, o_ref, sem).start()

x = jnp.ones((8, 128))
whole = pl.BlockSpec(memory_space=pl.ANY)
call = pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))
bad = pl.pallas_call(leave, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), in_specs=[whole], out_specs=whole,
                     scratch_shapes=[pltpu.SemaphoreType.DMA])
for _ in range(2):
    assert (jax.jit(call)(x) == 2).all()
if "--bad" in sys.argv:
    bad(x)
if "--hidden" in sys.argv:
    try:
        bad(x)
    except Exception:
        pass
sys.exit(7 if "--seven" in sys.argv else None)
"""
BESIDE = "def double(x_ref, o_ref):\n    o_ref[...] = x_ref[...] * 2\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "beside.py").write_text(BESIDE)
    (tmp_path / "package" / "module.py").write_text(PROGRAM.replace("from beside", "from .beside"))
    return tmp_path


def tpusim_exec(*arguments, cwd):
    done = python("-c", "import tpusim.cli; tpusim.cli.main()", "exec", *arguments, cwd=cwd)
    return done.returncode, done.stdout, done.stderr


def test_exec_runs_a_script(folder):
    status, out, err = tpusim_exec("--slice", "v5e:2x2", "program.py", "--set", "3", cwd=folder)
    assert (status, out) == (0, "program.py ['--set', '3'] __main__ program.py 4\n"), err
    lines = err.splitlines()
    assert lines[-3] == "tpusim: 2 kernel calls on v5e:2x2"
    assert lines[-2].split() == ["calls", "kernel", "devices", "time", "copies", "findings"]
    assert lines[-1].split()[:3] == ["2", "double", "0"]
    assert lines[-1].split()[-1] == "none"


def test_exec_runs_a_module_and_writes_json(folder):
    status, out, err = tpusim_exec("--json", "-", "--", "-m", "package.module", "--seven", "-h", cwd=folder)
    assert status == 7, err
    found = json.loads(out)
    assert [call["name"] for call in found["calls"]] == ["double", "double"]
    assert found["status"] == 7
    assert not found["ok"]
    assert "module.py ['--seven', '-h'] __main__ module.py 4\n" in err


def test_exec_reports_what_a_kernel_did_wrong(folder):
    status, _, err = tpusim_exec("--slice", "v5e:1x1", "program.py", "--bad", cwd=folder)
    assert status == 1
    head, file, line, *_ = err.splitlines()
    assert head == "Traceback (most recent call last):"
    assert file.startswith('  File "program.py", line ')
    assert line == "    bad(x)"
    assert "UnwaitedError: sem is left at 4096 B" in err
    assert err.splitlines()[-1].startswith("unwaited: sem is left at 4096 B")
    status, _, err = tpusim_exec("--slice", "v5e:1x1", "program.py", "--hidden", cwd=folder)
    assert status == 1
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("unwaited: sem is left at 4096 B")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.py"], "Error: absent.py: no such file\n"),
        (["--", "-m"], "Error: -m needs the name of a module\n"),
        (["--slice", "v5e:3x1", "program.py"], "Error: v5e has no slice 3x1. Slices of v5e: "),
        (["--json", "no/where.json", "program.py"], "Error: cannot write no/where.json: there is no directory no\n"),
    ],
)
def test_exec_with_arguments_that_cannot_be(folder, arguments, message):
    status, out, err = tpusim_exec(*arguments, cwd=folder)
    assert (status, out) == (2, "")
    assert err.startswith(message)


SUITE = """
import jax, jax.numpy as jnp, pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

x = jnp.ones((8, 128))
whole = pl.BlockSpec(memory_space=pl.ANY)

def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2

def leave(x_ref, o_ref, sem):
    pltpu.make_async_copy(x_ref, o_ref, sem).start()

call = jax.jit(pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype)))
bad = pl.pallas_call(leave, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), in_specs=[whole], out_specs=whole,
                     scratch_shapes=[pltpu.SemaphoreType.DMA])

def test_devices():
    assert jax.device_count() == 4

@pytest.mark.parametrize("again", range(2))
def test_right(again):
    assert (call(x) == 2).all()

def test_wrong():
    bad(x)

def test_hidden():
    try:
        bad(x)
    except Exception:
        pass

@pytest.mark.xfail
def test_known():
    bad(x)
"""


def pytest_run(folder, *arguments):
    (folder / "test_suite.py").write_text(SUITE)
    done = python("-m", "pytest", "-p", "tpusim.pytest_plugin", "-p", "no:cacheprovider", *arguments, cwd=folder)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_pytest_runs_a_suite(tmp_path, workers):
    status, out = pytest_run(tmp_path, "--tpusim", "v5e:2x2", "--tpusim-set", "hbm.bandwidth=400e9", *workers)
    assert status == 1, out
    assert "2 failed, 3 passed, 1 xfailed" in out
    assert "FAILED test_suite.py::test_wrong - tpusim.errors.UnwaitedError: sem is left" in out
    assert "tpusim found, in kernels that this test called:\nunwaited: sem is left at 4096 B" in out
    table = out[out.index("tpusim: 5 kernel calls on v5e:2x2") :].splitlines()
    rows = {(cells[0], cells[1], cells[-1]) for cells in map(str.split, table[2:4])}
    assert rows == {("2", "double", "none"), ("3", "leave", "unwaited")}


def test_pytest_with_options_that_cannot_be(tmp_path):
    status, out = pytest_run(tmp_path, "--tpusim", "v5e:2x2", "--tpusim-set", "ici=3")
    assert status == 4
    assert out.startswith("ERROR: --tpusim: chip v5e has no 'ici'")


def test_without_its_option_the_pytest_plugin_costs_nothing():
    code = """
import sys, pytest
before = set(sys.modules)
import tpusim.pytest_plugin
print(*sorted(set(sys.modules) - before))
"""
    assert python("-c", code).stdout.split() == ["tpusim", "tpusim.pytest_plugin"]
