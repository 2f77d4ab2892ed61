"""One mutant judged: by verify, by the checks on the observed schedule, by many schedules and all states."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from mutation.identity import identity
from mutation.rules import Mutant
from mutation.states import bad_state

from tpusim.job import Job, Outcome, Status, run_loaded
from tpusim.job.verify import verify_loaded
from tpusim.judges.proof import Recorder
from tpusim.kernel_file import KernelFile, load_file

SMALL = {
    "all_gather_matmul": {"shape": (8, 128), "columns": 128},
    "matmul_reduce_scatter": {"shape": (8, 128), "columns": 128},
    "ring_attention": {"shape": (1, 8, 128)},
    "matmul_pipeline": {"shape": (16, 256), "columns": 256, "bm": 8, "bn": 128, "bk": 128},
    "paged_gather": {"shape": (4, 8, 128), "count": 6},
    "halo_exchange": {"shape": (16, 256)},
    "ragged_all_to_all": {"shape": (32, 128)},
}
"""Parameters of kernels whose own are larger than they need to be."""
SCHEDULES = 150
MOST_STATES = 20_000
MOST_EVENTS = 300_000
_MOST_COMPILE_S = 180


def meshes(name: str, axes: tuple[str, ...]) -> list[dict[str, int]]:
    """Where a kernel's mutants are judged."""
    if name in ("matmul_pipeline", "paged_gather"):
        return [{"x": 1}]
    if axes == ("x",):
        return [{"x": 4}, {"x": 5}, {"x": 8}]
    return [{"x": 2, "y": 2}, {"x": 2, "y": 4}]


def smallest(mesh: dict[str, int]) -> dict[str, int]:
    """The fewest devices on which a kernel still does what it does on this mesh."""
    return {axis: 2 if axis == "x" and prod(mesh.values()) > 1 else 1 for axis in mesh}


def write(mutant: Mutant, name: str, folder: str) -> Path:
    """The mutant's file."""
    path = Path(folder, f"{name}.py")
    path.write_text(mutant.text, encoding="utf-8")
    return path


def loaded(path: Path, name: str, mesh: dict[str, int], way: str) -> tuple[KernelFile, dict]:
    """A kernel file ready to run on a mesh, natively or captured from its Pallas form, and its run options."""
    file = load_file(str(path))
    parameters = SMALL.get(name, {})
    sizes = tuple(mesh.values())
    devices = sizes if len(sizes) > 1 else sizes[0]
    kernel = file.made(parameters)
    own = {key: value for key, value in parameters.items() if key not in ("bm", "bn", "bk")}
    fixed = replace(
        file,
        kernel=kernel,
        make=None,
        inputs=partial(file.inputs, devices=devices, **own),
        reference=partial(file.reference, devices=devices),
    )
    if way == "native":
        return fixed, {"mesh": mesh}
    from jax.sharding import AbstractMesh, AxisType

    abstract = AbstractMesh(sizes, tuple(mesh), axis_types=(AxisType.Auto,) * len(sizes))
    return replace(fixed, kernel=kernel.pallas(abstract, interpret=True)), {}


def judge(mutant: Mutant, name: str, mesh: dict[str, int], way: str, seed: int) -> dict:
    """Whether verify, and the checks on the observed schedule, find a mutant."""
    with tempfile.TemporaryDirectory(prefix="mutant_") as folder:
        path = write(mutant, name, folder)
        file, options = loaded(path, name, mesh, way)
        verdict, first = verify_loaded(file, Job(str(path), {**options, "max_events": MOST_EVENTS}, calls=mutant.calls))
        if first.fault is not None or first.not_possible is not None:
            return {"outcome": "invalid", "why": (first.fault or first.not_possible).splitlines()[0]}
        recorder = Recorder()
        observed = _run(file, options, mutant, (recorder,))
        is_proven = verdict.answer == "proven"
        small = _run_small(path, name, mesh, mutant)[0] if is_proven else None
    return {
        "outcome": "proven" if is_proven else "found",
        "verify": verdict.answer,
        "operations": verdict.operations,
        "program": f"{identity(recorder)} {identity(small)}" if small else None,
        "why": list(verdict.reasons)[:2],
        "observed": observed.status is not Status.RIGHT,
    }


def settle(mutant: Mutant, name: str, mesh: dict[str, int], way: str, seed: int) -> dict:
    """Whether there is something wrong with a mutant that was proven: in random schedules, in any state."""
    with tempfile.TemporaryDirectory(prefix="mutant_") as folder:
        path = write(mutant, name, folder)
        states = _states(path, name, mesh, mutant)
        if states["states"] in ("none bad", "not finished", "no run"):
            file, options = loaded(path, name, mesh, "native")
            if way == "captured":
                captured = loaded(path, name, mesh, way)
                if _program(file, options, mutant) != _program(*captured, mutant):  # else the native one is cheaper
                    file, options = captured
            states |= _schedules(file, options, mutant, seed)
    return states


def _program(file: KernelFile, options: dict, mutant: Mutant) -> str:
    """The identity of what a run does."""
    recorder = Recorder()
    _run(file, options, mutant, (recorder,), checks="none")
    return identity(recorder)


def guarded(function: Callable[..., dict], *arguments: Any) -> dict:
    """For a pool: what is raised is a row too."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001  # a crash of the judges is an outcome
        return {"outcome": "crash", "why": f"{type(error).__name__}: {error}"}


def _run(file: KernelFile, options: dict, mutant: Mutant, observers: tuple = (), **more: str) -> Outcome:
    limits = {"max_events": MOST_EVENTS, "on_finding": "record"}
    return run_loaded(file, Job("", {**options, **limits, **more}, calls=mutant.calls, observers=observers))


def _schedules(file: KernelFile, options: dict, mutant: Mutant, seed: int) -> dict:
    """The first of many random schedules in which something is wrong."""
    arrays = file.inputs()
    expected = file.reference(*arrays)
    file = replace(file, inputs=lambda: arrays, reference=lambda *_: expected)
    for number in range(SCHEDULES):
        schedule = f"shuffle:{seed + number}"
        outcome = _run(file, options, mutant, schedule=schedule, checks="none")
        if outcome.status is not Status.RIGHT:
            text = outcome.problem or (outcome.check.text if outcome.check else "")
            return {"outcome": "missed", "truth": f"{schedule}: {text.splitlines()[0]}"}
    return {"outcome": "equivalent"}


def _run_small(path: Path, name: str, mesh: dict[str, int], mutant: Mutant) -> tuple[Recorder | None, KernelFile, dict]:
    """What a run on the smallest mesh did, if there was one, with the file and its options there."""
    file, options = loaded(path, name, smallest(mesh), "native")
    recorder = Recorder()
    run = _run(file, options, mutant, (recorder,), checks="none")
    return recorder if run.result is not None and run.result.cores else None, file, options


def _states(path: Path, name: str, mesh: dict[str, int], mutant: Mutant) -> dict:
    """What the explorer finds on the smallest mesh; where that is a fault, verify has to find it there."""
    recorder, file, options = _run_small(path, name, mesh, mutant)
    if recorder is None:
        return {"states": "no run"}
    bad = bad_state(recorder, prod(smallest(mesh).values()), MOST_STATES)
    if not bad:
        return {"states": "not finished" if bad is None else "none bad"}
    verdict, _ = verify_loaded(file, Job(str(path), options, calls=mutant.calls))
    if verdict.answer == "proven":
        return {"states": bad, "outcome": "missed", "truth": f"explorer on the smallest mesh: {bad}"}
    return {"states": bad, "outcome": "found smaller"}


def interpreted(mutant: Mutant, name: str, mesh: dict[str, int], timeout_s: float) -> dict:
    """What JAX's TPU interpret mode, with its race detector, says of a mutant: found, nothing, or a hang."""
    with tempfile.TemporaryDirectory(prefix="mutant_") as folder:
        path = write(mutant, name, folder)
        command = [sys.executable, __file__, str(path), name, json.dumps(mesh), str(timeout_s)]
        options = {"timeout": _MOST_COMPILE_S, "env": {**os.environ, "JAX_TRACEBACK_FILTERING": "off"}}
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        except subprocess.TimeoutExpired:
            return {"interpret": "hang"}
        if done.returncode:
            return {"interpret": "error", "said": done.stderr.strip().splitlines()[-1][:300]}
        return {"interpret": done.stdout.strip().splitlines()[-1]}


def interpret_child(file: str, name: str, mesh_text: str, timeout_text: str) -> None:
    """Run a mutant twice in interpret mode; prints ``race``, ``wrong data``, ``nothing``, or ``hang`` after a time."""
    from tpusim.pallas.host import declare_host_devices

    mesh = json.loads(mesh_text)
    declare_host_devices(prod(mesh.values()))
    import jax
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call
    from jax.experimental.pallas import tpu as pltpu

    from tpusim.job.check import compare

    fixed, _ = loaded(Path(file), name, mesh, "native")
    axis_types = (jax.sharding.AxisType.Auto,) * len(mesh)
    kernel = fixed.kernel.pallas(
        jax.make_mesh(tuple(mesh.values()), tuple(mesh), axis_types=axis_types),
        interpret=pltpu.InterpretParams(detect_races=True),
    )
    arrays = fixed.inputs()
    run = jax.jit(kernel).lower(*arrays).compile()
    timer = threading.Timer(float(timeout_text), _hang)
    timer.start()
    said = "nothing"
    for _ in range(2):
        outputs = jax.block_until_ready(run(*arrays))
        if interpret_pallas_call.races.races_found:
            said = "race"
        elif compare(outputs if isinstance(outputs, tuple) else (outputs,), fixed.reference(*arrays)).is_wrong:
            said = "wrong data"
    timer.cancel()
    print(said)


def _hang() -> None:
    print("hang", flush=True)
    os._exit(0)


if __name__ == "__main__":
    interpret_child(*sys.argv[1:])
