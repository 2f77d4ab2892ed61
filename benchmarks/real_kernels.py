"""Kernels others wrote and published, captured on the simulated machine, beside JAX's TPU interpret mode.

    python benchmarks/real_kernels.py [--package jax tokamax tpu_inference] [--only WORDS] [--no-interpret]

Every row runs in child processes of its own, one for the simulator and one for interpret mode, each with a
time-out; a package that is not there is reported and its rows are left out.  Columns: whether the results are
right (against plain JAX), simulated time, findings, wall time of the first and second call, and what became of
interpret mode: right, wrong, timed out, or its error.  Packages: ``pip install 'tpusim[real]'``; the wheel of
tpu-inference is fetched by the benchmark itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from published.case import PACKAGES, Built, Case, Missing, differs, load


def timed(call: Any) -> tuple[Any, float]:
    """What a call returns, and its seconds."""
    started = time.perf_counter()
    value = call()
    return value, time.perf_counter() - started


def simulate(case: Case) -> dict[str, Any]:
    """One case on the simulated machine."""
    import tpusim

    built = case.build(case.abstract_mesh())
    run = tpusim.pallas.simulate(built.fn, slice=case.slice, on_finding="record")
    try:
        got, first = timed(lambda: run(*built.arrays))
    except tpusim.errors.NotModelledError as error:
        return {"outcome": "not modelled", "why": str(error)}
    except tpusim.errors.FindingError as error:
        return {"outcome": "stopped", "why": describe(error.finding), "kinds": [error.finding.kind.value]}
    kinds = sorted({finding.kind.value for finding in run.result.findings})
    if run.result.outputs is None:
        return {"outcome": "stopped", "why": describe(run.result.findings[-1]), "kinds": kinds}
    findings = [describe(finding) for finding in run.result.findings]
    _, second = timed(lambda: run(*built.arrays))
    wrong = judge(built, got)
    return {
        "outcome": "wrong" if wrong else "right",
        "why": wrong,
        "time": str(run.result.time),
        "findings": findings,
        "kinds": kinds,
        "first": first,
        "second": second,
    }


def describe(finding: Any) -> str:
    """A finding in one line, with both places."""
    other = f" [other: {finding.other}]" if finding.other else ""
    return f"{finding}{other}"


def interpret(case: Case) -> dict[str, Any]:
    """One case in JAX's TPU interpret mode, on virtual CPU devices."""
    from tpusim.pallas import declare_host_devices

    declare_host_devices(case.devices)
    import jax
    from jax.experimental.pallas import tpu as pltpu

    built = case.build(case.cpu_mesh())
    with pltpu.force_tpu_interpret_mode(), jax.sharding.use_abstract_mesh(_tpu_mesh(case)):
        try:
            got, first = timed(lambda: jax.block_until_ready(jax.jit(built.fn)(*built.arrays)))
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the outcome
            return {"outcome": "error", "why": cause(error)}
        _, second = timed(lambda: jax.block_until_ready(jax.jit(built.fn)(*built.arrays)))
    wrong = judge(built, got)
    return {"outcome": "wrong" if wrong else "right", "why": wrong, "first": first, "second": second}


def cause(error: Exception) -> str:
    """An error in one line: of a callback that failed, the line of the exception inside it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    inner = [line for line in lines if re.match(r"[A-Za-z_.]*(Error|Exception)\b:?", line)]
    return inner[-1] if inner else f"{type(error).__name__}: {lines[0]}"


def _tpu_mesh(case: Case) -> Any:
    """A mesh that tells code which asks for the kind of TPU; interpret mode itself says "cpu"."""
    import jax

    chip = jax.sharding.AbstractDevice({"v7x": "TPU7x"}.get(name := case.slice.split(":")[0], f"TPU {name}"), 1, "tpu")
    return jax.sharding.AbstractMesh((), (), abstract_device=chip)


def judge(built: Built, got: Any) -> str:
    """How the results differ from what the case wants; empty where they are right."""
    keep = built.keep or (lambda results: results)
    return differs(keep(got), keep(built.want), built.tolerance)


def child(package: str, name: str, way: str) -> None:
    """Run one case one way in this process; prints its figures as JSON."""
    case = load(package)[name]
    try:
        row = (simulate if way == "simulate" else interpret)(case)
    except Missing as error:
        row = {"outcome": "missing", "why": str(error)}
    print("\n" + json.dumps(row))


def run_child(package: str, name: str, way: str, timeout_s: float) -> dict[str, Any]:
    """One case one way in a process of its own."""
    command = [sys.executable, __file__, "--child", package, name, way]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_TRACEBACK_FILTERING": "off"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return {"outcome": "timed out", "why": f"timed out at {timeout_s:g} s"}
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()] or [f"status {done.returncode}"]
        return {"outcome": "error", "why": lines[-1]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def seconds(row: dict[str, Any]) -> str:
    """The wall times of the first and the second call."""
    return f"{row['first']:.2f} / {row['second']:.3f}" if "first" in row else "-"


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--package", nargs="*", default=list(PACKAGES), choices=PACKAGES)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--no-interpret", action="store_true", help="leave interpret mode out")
    parser.add_argument("--timeout", type=float, default=300, help="seconds of a row, each way")
    parser.add_argument("--child", nargs=3)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    head = f"{'kernel':<52}{'dev':>4} {'right?':<13}{'simulated':>12}{'findings':>9}{'wall s':>16}  {'interpret':<10}"
    print(head + f"{'wall s':>16}")
    for package in arguments.package:
        for case in load(package).values():
            if arguments.only not in case.name:
                continue
            print_row(package, case, arguments)


def print_row(package: str, case: Case, arguments: argparse.Namespace) -> None:
    """Run one case both ways and print what came of it, with the reasons below."""
    mine = run_child(package, case.name, "simulate", arguments.timeout)
    theirs: dict[str, Any] = {"outcome": "-"}
    if not arguments.no_interpret and mine["outcome"] != "missing":
        theirs = run_child(package, case.name, "interpret", arguments.timeout)
    findings = mine.get("findings", [])
    count = len(findings) if "time" in mine else "-"
    head = f"{package + ' ' + case.name:<52}{case.devices:>4} {mine['outcome']:<13}{mine.get('time', '-'):>12}"
    print(f"{head}{count:>9}{seconds(mine):>16}  {theirs['outcome']:<10}{seconds(theirs):>16}", flush=True)
    note = case.note and f"note: {case.note}"
    for line in [mine.get("why"), *findings, note, theirs.get("why") and f"interpret mode: {theirs['why']}"]:
        if line:
            print("    " + " ".join(line.split())[:600], flush=True)


if __name__ == "__main__":
    main()
