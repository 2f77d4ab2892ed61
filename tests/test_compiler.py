"""The TPU compiler, ahead of time: logic with a stand-in for its process, and the real one where libtpu is."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tpusim
from tpusim.disk_cache import JsonCache
from tpusim.errors import OptionError
from tpusim.pallas import compiler
from tpusim.pallas.compiler import Compiled, Program, compile_programs
from tpusim.topology import Slice

HAS_COMPILER = compiler.compiler_version() is not None
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="needs libtpu: pip install 'tpusim[tpu]'")

UTILISATION = """== CAPACTIY:
MXU, XLU, VALU, VPOP, EUP, VLOAD, VLOAD:FILL, VSTORE, VSTORE:SPILL, SALU
    4     3     4     2     1     3     3     1     1     2
== UTILIZATION:
0 0 4 0 0 3 0 1 0 0
2 0 1 0 0 0 0 1 0 1
"""
DEATH = "F1130 22:05:49.6 10580 a.cc:1] Static LLO profiling failed\nx\n"
ALLOCATIONS = """$region0: #{f.1}
  #allocation0 [shape = 'u32[]', space=smem, size = 0x4, offset = 0x4, fixed_abs, tag = 'a']
  #allocation2 [shape = 'u32[144,128]{1,0:T(1,128)}', space=vmem, size = 0x12000, scoped, tag = 'internal scratch']
  #allocation3 [shape = 'f32[512,512]{1,0:T(8,128)}', space=vmem, size = 0x100000, scoped, tag = 'scratch operand']
"""
HLO = """ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %copy = f32[8]{0} copy(%x)
  %f.1 = f32[8]{0:T(128)} custom-call(%copy), custom_call_target="tpu_custom_call", backend_config={}
  ROOT %g = f32[8]{0} custom-call(%f.1), custom_call_target="Sharding"
}
"""


def profile(name: str, cycles: int, count: int = 1) -> str:
    fields = f'hlo_op_name: "{name}"\n  estimated_cycles: {cycles}\n  num_equivalent_hlos: {count}'
    return f"hlo_op_estimate {{\n  {fields}\n}}\n"


@pytest.fixture
def child(monkeypatch, tmp_path):
    """A stand-in for the compiler's process: ``plan`` says for each text what happens; the texts of each process."""
    state = SimpleNamespace(plan={}, runs=[], cache=JsonCache("compiler", 1, tmp_path / "cache"))
    monkeypatch.setattr(compiler, "compiler_version", lambda: "9.9")

    def run(command, *, env, timeout, **_):
        folder = Path(command[-1])
        jobs = json.loads((folder / "jobs.json").read_text())
        profiles = "static_llo_profile" in env["LIBTPU_INIT_ARGS"]
        texts = [(name, (folder / f"{name}.mlir").read_text()) for name, _ in jobs["programs"]]
        state.runs.append((jobs["topology"], profiles, [text for _, text in texts]))
        for name, text in texts:
            fate = state.plan.get(text, 100)
            if fate == "slow":
                raise compiler.subprocess.TimeoutExpired(command, timeout)
            if fate == "dies" or (fate == "profiler dies" and profiles):
                return SimpleNamespace(
                    returncode=-6, stderr="F1130 22:05:49.6 10580 a.cc:1] Static LLO profiling failed\nx\n"
                )
            (folder / name).mkdir()
            (folder / name / "1-TLP-hlo.txt").write_text(HLO)
            if isinstance(fate, int) and profiles:
                (folder / name / "f.1_static_llo_profile.textproto").write_text(profile("f.1", fate))
                (folder / name / "copy_TPU v6 lite_static_llo_profile.textproto").write_text(profile("copy", 7))
            (folder / name / "1-f.1-01-final_hlo-static-per-bundle-utilization.txt").write_text(UTILISATION)
            (folder / name / "1-f.1-00-pre-finalize-registers-and-allocations.txt").write_text(ALLOCATIONS)
            (folder / name / "2-copy-01-final_hlo-static-per-bundle-utilization.txt").write_text(UTILISATION)
            (folder / name / "1-TLP-01-final_hlo-static-per-bundle-utilization.txt").write_text(UTILISATION)
            (folder / f"{name}.json").write_text(
                json.dumps({"error": fate[6:] if str(fate).startswith("error") else None})
            )
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(compiler.subprocess, "run", run)
    return state


def test_the_dumps_give_cycles_bundles_slots_and_vmem(child):
    (found,) = compile_programs([Program("a")], "v5e", cache=child.cache)
    slots = {"VALU": 5, "VLOAD": 3, "VSTORE": 2, "MXU": 2, "SALU": 1}
    assert found == Compiled("accepted", cycles=100, bundles=2, vmem_bytes=0x112000, slots=slots)
    assert found.is_accepted


@pytest.mark.parametrize(
    ("profiles", "cycles"),
    [
        ([("k.1", 5, 1), ("k.2", 6, 1), ("copy", 7, 1)], 11),
        ([("k.1", 5, 2), ("copy", 7, 1)], 10),  # two equal kernels have one profile
        ([("k.1", 5, 1), ("copy", 7, 1)], None),  # the profiler died on the second
        ([("k.1", 5, 1), ("k.2", 0, 1)], None),  # it has a remote copy
        ([("copy", 7, 2)], None),
    ],
)
def test_the_cycles_are_those_of_all_kernels_and_of_nothing_else(profiles, cycles):
    assert compiler._cycles([profile(*each) for each in profiles], {"k.1", "k.2"}) == cycles


def test_one_process_compiles_all_programs_of_a_topology(child):
    programs = [Program("a"), Program("b"), Program("c", 4), Program("a")]
    found = compile_programs(programs, "v7x", cache=child.cache)
    assert [texts for _, _, texts in child.runs] == [["a", "b"], ["c"]]
    assert {topology.partition(":")[0] for topology, _, _ in child.runs} == {"tpu7x"}
    assert found[0] == found[3]


def test_answers_are_kept_by_content_chip_and_version(child, monkeypatch):
    first = compile_programs([Program("a")], "v5e", cache=child.cache)
    assert compile_programs([Program("a")], "v5e", cache=child.cache) == first
    assert len(child.runs) == 1
    compile_programs([Program("a")], "v6e", cache=child.cache)
    monkeypatch.setattr(compiler, "compiler_version", lambda: "9.10")
    compile_programs([Program("a")], "v5e", cache=child.cache)
    assert len(child.runs) == 3


def test_a_damaged_answer_is_computed_again(child):
    compile_programs([Program("a")], "v5e", cache=child.cache)
    (entry,) = child.cache.folder.iterdir()
    entry.write_text("{")
    with pytest.warns(UserWarning, match="damaged cache entry"):
        (found,) = compile_programs([Program("a")], "v5e", cache=child.cache)
    assert found.cycles == 100


def test_a_program_on_which_the_profiler_dies_is_compiled_again_without_it(child):
    child.plan = {"b": "profiler dies"}
    found = compile_programs([Program("a"), Program("b"), Program("c")], "v5e", cache=child.cache)
    assert [(c.verdict, c.cycles, c.bundles) for c in found] == [
        ("accepted", 100, 2),
        ("accepted", None, 2),
        ("accepted", 100, 2),
    ]
    assert found[1].note == "libtpu's profiler stopped: Static LLO profiling failed"
    assert [texts for _, _, texts in child.runs] == [["a", "b", "c"], ["c"], ["b"]]


def test_rejections_crashes_and_time_outs_are_told_apart_and_the_last_two_not_kept(child):
    child.plan = {"bad": "error:VMEM", "dead": "dies", "slow": "slow"}
    programs = [Program("bad"), Program("dead"), Program("slow")]
    found = compile_programs(programs, "v5e", cache=child.cache, timeout_s=5)
    assert [c.verdict for c in found] == ["rejected", "crashed", "timeout"]
    assert found[0].error == "VMEM"
    runs = len(child.runs)
    compile_programs(programs[:1], "v5e", cache=child.cache)
    assert len(child.runs) == runs
    compile_programs(programs[1:2], "v5e", cache=child.cache)
    assert len(child.runs) > runs


def test_v4_is_compiled_without_the_profile(child):
    (found,) = compile_programs([Program("a")], "v4", cache=child.cache)
    assert (found.cycles, found.bundles) == (None, 2)
    assert child.runs == [("v4:2x2x1", False, ["a"])]


def test_what_a_source_raises_is_a_rejection(child):
    def source():
        raise ValueError("block shape")

    (found,) = compile_programs([source], "v5e", keys=["k"], cache=child.cache)
    assert (found.verdict, found.error) == ("rejected", "ValueError: block shape")
    assert not child.runs


@pytest.mark.parametrize("ask", ["function", "simulate"])
def test_without_the_compiler_there_is_one_clear_error(monkeypatch, ask):
    monkeypatch.setattr(compiler, "compiler_version", lambda: None)
    what = "compute='exact'" if ask == "simulate" else "compiling for v5e"
    text = rf"^{what} needs the TPU compiler, but no TPU, in this Python: pip install 'tpusim\[tpu\]'$"
    with pytest.raises(OptionError, match=text):
        if ask == "simulate":
            kernel = tpusim.Kernel(lambda x, o: None, out_shape=tpusim.ShapeDtypeStruct((8, 128), "float32"))
            kernel.simulate(np.zeros((8, 128), np.float32), mesh=1, compute="exact")
        else:
            compile_programs([Program("a")], "v5e")


def test_the_module_itself_needs_no_jax():
    code = "import sys; sys.modules['jax'] = None; import tpusim.pallas.compiler"
    assert not __import__("subprocess").run([sys.executable, "-c", code], check=False).returncode


@pytest.fixture
def pallas():
    jax = pytest.importorskip("jax")
    from jax.experimental import pallas as pl

    return SimpleNamespace(jax=jax, jnp=jax.numpy, pl=pl)


def _add(p, rows=512, inputs=2):
    def kernel(*refs):
        refs[-1][...] = sum(ref[...] for ref in refs[1:-1]) + refs[0][...]

    spec = p.pl.BlockSpec((256, 512), lambda i: (i, 0))
    shape = p.jax.ShapeDtypeStruct((rows, 512), p.jnp.float32)
    call = p.pl.pallas_call(kernel, out_shape=shape, grid=(rows // 256,), in_specs=[spec] * inputs, out_specs=spec)
    return call, [shape] * inputs


@pytest.mark.jax
@pytest.mark.parametrize("devices", [1, 4])
def test_a_program_knows_its_devices(pallas, devices):
    jax = pallas.jax
    kinds = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((devices,), ("x",), axis_types=kinds)
    spec = jax.sharding.PartitionSpec("x")
    call, _ = _add(pallas, 256)
    fn = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False))
    shape = jax.ShapeDtypeStruct((256 * devices, 512), "float32")
    program = compiler.lower(fn, [shape, shape], "v5e")
    assert program.devices == devices
    assert "tpu_custom_call" in program.text


@needs_compiler
@pytest.mark.jax
@pytest.mark.parametrize("chip", ["v4", "v5e", "v6e"])
def test_the_real_compiler_accepts_a_kernel_and_gives_cycles(pallas, chip, tmp_path):
    call, shapes = _add(pallas)
    found = compiler.compile_function(call, shapes, chip, cache=JsonCache("compiler", 1, tmp_path))
    assert found.verdict == "accepted", found.error
    assert found.bundles > 100
    assert found.vmem_bytes >= 6 * 256 * 512 * 4
    assert found.cycles is None if chip == "v4" else 2000 < found.cycles < 20000


@pytest.mark.jax
def test_a_native_kernel_is_lowered_for_its_mesh():
    made = tpusim.Kernel(
        lambda x, o: tpusim.sync_copy(x, o),
        out_shape=tpusim.ShapeDtypeStruct((8, 128), "float32"),
        in_specs=(tpusim.HBM,),
        out_specs=tpusim.HBM,
    )
    program = compiler.lower_kernel(made, np.zeros((32, 128), np.float32), {"x": 4}, "v5e")
    assert program.devices == 4
    assert "32x128xf32" in program.text


@needs_compiler
@pytest.mark.jax
def test_the_real_compiler_rejects_what_does_not_fit(pallas, tmp_path):
    jnp = pallas.jnp

    def kernel(x, o):
        o[...] = x[...]

    shape = pallas.jax.ShapeDtypeStruct((32768, 2048), jnp.float32)
    call = pallas.pl.pallas_call(kernel, out_shape=shape)
    found = compiler.compile_function(call, [shape], "v5e", cache=JsonCache("compiler", 1, tmp_path))
    assert found.verdict == "rejected"
    assert "vmem" in found.error


@needs_compiler
@pytest.mark.jax
def test_exact_cost_of_a_kernel_is_the_compilers(pallas, tmp_path, monkeypatch):
    from tpusim.pallas import simulate

    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path))
    call, shapes = _add(pallas, 2048)
    run = simulate(call, slice="v5e:1x1", data=False, compute="exact")
    run(*shapes)
    busy = {compute.to_ps - compute.from_ps for compute in run.result.trace.computes if compute.operation == "compute"}
    (cost_ps,) = busy
    assert cost_ps * 1.5e-3 == pytest.approx(128 + 8, rel=0.1), "128 stores, one a cycle, and the latency of an add"


@needs_compiler
@pytest.mark.jax
@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e"])
@pytest.mark.parametrize("inputs", [1, 2, 3, 4, 5])
def test_the_profile_of_the_compiler_takes_its_time(pallas, chip, inputs, tmp_path, monkeypatch):
    from tpusim.pallas import simulate

    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path))
    call, shapes = _add(pallas, 4096, inputs)
    whole = compiler.compile_function(call, shapes, chip)
    run = simulate(call, slice=str(Slice.smallest(chip, 1)), chip="compiler", data=False, compute="exact")
    run(*shapes)
    assert run.result.time.us * run.result.place.chip.clock_hz / 1e6 == pytest.approx(whole.cycles, rel=0.06)


@needs_compiler
@pytest.mark.jax
@pytest.mark.filterwarnings("error")
def test_a_loop_over_rows_that_carries_a_vector_has_exact_cycles(pallas, tmp_path, monkeypatch):
    from tpusim.pallas import simulate

    jax, jnp, pl = pallas.jax, pallas.jax.numpy, pallas.pl

    def kernel(x, o):
        def row(i, total):
            total = total + x[pl.ds(i * 8, 8), :]
            o[pl.ds(i * 8, 8), :] = total
            return total

        jax.lax.fori_loop(0, 32, row, jnp.zeros((8, 512), jnp.float32))

    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path))
    whole = jax.ShapeDtypeStruct((4096, 512), jnp.float32)
    rows = pl.BlockSpec((256, 512), lambda i: (i, 0))
    call = pl.pallas_call(kernel, out_shape=whole, grid=(16,), in_specs=[rows], out_specs=rows)
    found = compiler.compile_function(call, [whole], "v6e")
    run = simulate(call, slice="v6e:1x1", chip="compiler", data=False, compute="exact")
    run(whole)
    assert run.result.time.us * run.result.place.chip.clock_hz / 1e6 == pytest.approx(found.cycles, rel=0.06)


@needs_compiler
@pytest.mark.jax
def test_a_native_kernel_runs_exact_through_its_pallas_form(tmp_path, monkeypatch):
    pytest.importorskip("jax")
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path))

    def kernel(x_ref, o_ref):
        o_ref[...] = tpusim.np.exp(x_ref[...])

    made = tpusim.Kernel(kernel, out_shape=tpusim.ShapeDtypeStruct((256, 512), "float32"))
    x = np.linspace(0, 1, 256 * 512, dtype=np.float32).reshape(256, 512)
    exact, usual = (made.simulate(x, slice="v5e:1x1", compute=how) for how in ("exact", "default"))
    np.testing.assert_allclose(exact.outputs[0], usual.outputs[0], rtol=1e-5)
    assert (exact.dmas, exact.bytes) == (usual.dmas, usual.bytes)
    assert exact.time.us == pytest.approx(usual.time.us, rel=0.05)


@needs_compiler
@pytest.mark.jax
def test_the_generator_makes_the_shipped_table(tmp_path, monkeypatch):
    from tpusim.costs.table import TABLE
    from tpusim.pallas.cost_table import build

    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path))
    shipped = json.loads(TABLE.read_text())
    made = build(shipped, ("v5e",))
    if made["provenance"]["libtpu"] != shipped["provenance"]["libtpu"]:
        pytest.skip("the shipped table is of another libtpu")
    assert made["chips"] == shipped["chips"]
