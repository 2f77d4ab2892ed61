"""Captured kernels beside JAX's TPU interpret mode: same program, same process, in turn, second call of each.

    python benchmarks/vs_interpret.py [--cases all-gather-8 ...] [--repeats 3]

Each case runs in a child process with its own virtual devices.  Columns: milliseconds of interpret mode, of the
simulator with checks off and on, and the ratios; ``first`` is trace, lower and first run against interpret's first
call.  Only ratios from one run count: interpret mode's own time moves with the load of the machine.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

SLICES = {4: "v5e:2x2", 8: "v5e:2x4", 16: "v5e:4x4", 32: "v5e:4x8", 64: "v5e:8x8"}
CASES = {
    "all-gather-8": ("ring_all_gather", 8, (8, 128)),
    "all-gather-32": ("ring_all_gather", 32, (8, 128)),
    "all-gather-64": ("ring_all_gather", 64, (8, 128)),
    "reduce-scatter-8": ("ring_reduce_scatter", 8, (8, 128)),
    "reduce-scatter-32": ("ring_reduce_scatter", 32, (8, 128)),
    "all-gather-8-1MB": ("ring_all_gather", 8, (256, 1024)),
    "all-gather-16-1MB": ("ring_all_gather", 16, (256, 1024)),
}
TARGETS = {
    "all-gather-8": (100, 50),
    "all-gather-32": (150, 80),
    "all-gather-64": (150, 80),
    "reduce-scatter-8": (80, 50),
    "reduce-scatter-32": (150, 100),
    "all-gather-8-1MB": (15, 12),
    "all-gather-16-1MB": (15, 12),
}


def timed(call):
    """Milliseconds of one call."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def child(name, repeats):
    """Run one case in this process; prints its figures as JSON."""
    from tpusim.pallas.host import declare_host_devices

    file, devices, shape = CASES[name]
    declare_host_devices(devices)
    import jax
    import numpy as np

    import tpusim
    from tpusim.kernel_file import load_file

    kernel_file = load_file(f"kernels/{file}.py")
    arrays = kernel_file.inputs(devices=devices, shape=shape)
    mesh = jax.make_mesh((devices,), ("x",))
    interpreted = kernel_file.kernel.pallas(mesh, interpret=True)
    runs = {
        "interpret": lambda: jax.block_until_ready(interpreted(*arrays)),
        **{
            checks: (lambda run: lambda: run(*arrays))(
                tpusim.pallas.simulate(
                    kernel_file.kernel.pallas(mesh, interpret=True), slice=SLICES[devices], checks=checks
                )
            )
            for checks in ("none", "observed")
        },
    }
    first = {key: timed(run) for key, run in runs.items()}
    expected, got = np.asarray(interpreted(*arrays)), np.asarray(runs["none"]())
    np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=1e-5)
    later = {key: [] for key in runs}
    for _ in range(repeats):
        for key, run in runs.items():
            later[key].append(timed(run))
    print(json.dumps({"first": first, **{key: statistics.median(values) for key, values in later.items()}}))


def main():
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.repeats)
        return
    print(f"{'case':<20}{'interpret ms':>13}{'off ms':>9}{'on ms':>9}{'off':>7}{'on':>7}  targets  {'first':>6}")
    for name in arguments.cases:
        command = [sys.executable, str(Path(__file__)), "--child", name, "--repeats", str(arguments.repeats)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            print(f"{name:<20}failed: {done.stderr.strip().splitlines()[-1]}")
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        off, on, slow = row["none"], row["observed"], row["interpret"]
        first = row["first"]["interpret"] / row["first"]["none"]
        goal = "/".join(f"{target}x" for target in TARGETS[name])
        print(
            f"{name:<20}{slow:>13.1f}{off:>9.2f}{on:>9.2f}{slow / off:>6.0f}x{slow / on:>6.0f}x{goal:>9}{first:>7.1f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
