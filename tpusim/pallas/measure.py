"""The child process of a measurement.

``python -m tpusim.pallas.measure PLAN.json OUT.json``

PLAN is a list of runs: ``file`` (path.py[:name]), ``parameters`` of its ``make_kernel()`` and ``inputs()``, ``mesh``,
``repeats``, ``warmup``, ``on`` (``tpu`` or ``interpret``), and perhaps ``inputs`` and ``outputs``, paths of .npz files.
OUT gets, for each run in order, ``times_us`` and ``events`` of the last repeat, or ``error``; it is written anew after
each, so that a run that hangs costs no other's result.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from tpusim.pallas.host import declare_host_devices, load_arrays, save_arrays, write_whole


def main(arguments: list[str] | None = None) -> None:
    """Make all runs of a plan."""
    plan_file, out_file = (Path(argument) for argument in (sys.argv[1:] if arguments is None else arguments))
    plan = json.loads(plan_file.read_text(encoding="utf-8"))
    if any(run["on"] == "interpret" for run in plan):
        declare_host_devices(max(prod(run["mesh"].values()) for run in plan))
    results: list[dict[str, Any]] = []
    for run in plan:
        try:
            results.append(measured(run))
        except Exception as error:  # noqa: BLE001 - a kernel, JAX or the profiler may raise anything; it is reported
            results.append({"error": f"{type(error).__name__}: {error}"})
        write_whole(out_file, json.dumps(results))


def measured(run: Mapping[str, Any]) -> dict[str, Any]:
    """One run of a plan."""
    import jax
    from jax.experimental.pallas import tpu as pltpu

    from tpusim.job.job import accepted
    from tpusim.kernel_file import load_file
    from tpusim.pallas.device import measure
    from tpusim.program import Kernel

    loaded, sizes, parameters = load_file(run["file"]), run["mesh"], run["parameters"]
    kernel = loaded.made(parameters)
    is_interpreted = run["on"] == "interpret"
    around: Any = contextlib.nullcontext()
    if isinstance(kernel, Kernel):
        devices = tuple(sizes.values())
        kinds = (jax.sharding.AxisType.Auto,) * len(sizes)
        mesh = jax.make_mesh(devices, tuple(sizes), axis_types=kinds)
        function, name = kernel.pallas(mesh, interpret=is_interpreted), kernel.name
        known = {"devices": devices[0] if len(devices) == 1 else devices}
    else:
        function, name, known = kernel, "", {}
        around = pltpu.force_tpu_interpret_mode() if is_interpreted else around
    given = run.get("inputs")
    arrays = load_arrays(Path(given)) if given else loaded.inputs(**accepted(loaded.inputs, {**known, **parameters}))
    arrays = arrays if isinstance(arrays, tuple | list) else (arrays,)
    with around:
        found = measure(function, arrays, kernel=name, repeats=run["repeats"], warmup=run["warmup"])
    if run.get("outputs"):
        save_arrays(Path(run["outputs"]), found.outputs)
    return {"times_us": list(found.times_us), "events": [list(event) for event in found.events]}


if __name__ == "__main__":
    main()
