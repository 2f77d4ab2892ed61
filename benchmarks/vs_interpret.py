"""Captured kernels beside JAX's TPU interpret mode: same program, same process, in turn, second call of each.

    python benchmarks/vs_interpret.py [--cases all-gather-8 ...] [--repeats 3]

Each case runs in a child process with its own virtual devices.  Columns: milliseconds of interpret mode (or of what
else the case is held against), of the simulator with checks off and on, and the ratios; ``first`` is trace, lower and
first run against interpret's first call; ``us a copy`` is the best CPU time of ours, which the load of the machine
moves least.  Only ratios from one run count: interpret mode's own time moves with the
load of the machine.  Three kinds of case are not held against interpret mode's plain run:

* ``paged-gather``: against its ``detect_races``, which is quadratic; ``paged-gather-20000`` shows that ours is flat;
* ``matmul-512``: against the same 64 block products called bare, on blocks already cut; below 1.3x is the aim;
* the absolute ones (``us-a-copy``, ``256-devices``): no other side, milliseconds and microseconds a copy.
"""

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

SLICES = {1: "v5e:1x1", 4: "v5e:2x2", 8: "v5e:2x4", 16: "v5e:4x4", 32: "v5e:4x8", 64: "v5e:8x8", 256: "v5e:16x16"}
MODES = ("none", "observed")


def timed(call, clock=time.perf_counter):
    """Milliseconds of one call."""
    started = clock()
    call()
    return (clock() - started) * 1e3


def simulated(function, devices, **options):
    """A captured function with checks off and on."""
    import tpusim

    return {
        checks: tpusim.pallas.simulate(function, slice=SLICES[devices], checks=checks, **options) for checks in MODES
    }


def of_file(name, devices, *, interpret=True, **inputs):
    """The runs of a kernel of ``kernels/``: interpret mode's (``None``: no such side), and ours."""
    import jax

    from tpusim.kernel_file import load_file

    loaded = load_file(f"kernels/{name}.py")
    if devices > 1:
        inputs["devices"] = devices
    arrays = loaded.inputs(**inputs)
    # Ours needs no devices of JAX's; more virtual ones than interpret mode needs would only cost time.
    mesh = jax.make_mesh((devices,), ("x",)) if interpret else jax.sharding.AbstractMesh((devices,), ("x",))
    ours = simulated(loaded.kernel.pallas(mesh, interpret=True), devices)
    runs = {key: functools.partial(run, *arrays) for key, run in ours.items()}
    if interpret:
        theirs = loaded.kernel.pallas(mesh, interpret=interpret)
        runs["interpret"] = lambda: jax.block_until_ready(theirs(*arrays))
    return runs, ours


def paged_gather(count, *, interpret):
    """A paged gather of so many steps; theirs with its own race detector."""
    if not interpret:
        return of_file("paged_gather", 1, interpret=None, count=count)
    from jax.experimental.pallas import tpu as pltpu

    return of_file("paged_gather", 1, interpret=pltpu.InterpretParams(detect_races=True), count=count)


def flash():
    """Flash attention as JAX publishes it, on 1 x 2 x 512 x 128."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas import tpu as pltpu
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    keys = jax.random.split(jax.random.key(0), 3)
    arrays = [jax.random.normal(key, (1, 2, 512, 128), jnp.float32) for key in keys]
    ours = simulated(lambda q, k, v: flash_attention(q, k, v), 1)
    runs = {key: functools.partial(run, *arrays) for key, run in ours.items()}

    @jax.jit
    def interpreted(q, k, v):
        with pltpu.force_tpu_interpret_mode():
            return flash_attention(q, k, v)

    runs["interpret"] = lambda: jax.block_until_ready(interpreted(*arrays))
    return runs, ours


def matmul():
    """A product of 2048^3 in blocks of 512, and the 64 products of its blocks called bare."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.matmul import matmul as blocked

    block, parts = 512, 4
    x, y = (jax.random.normal(jax.random.key(seed), (2048, 2048), jnp.bfloat16) for seed in (0, 1))
    cut = [
        [[array[i * block : (i + 1) * block, j * block : (j + 1) * block] for j in range(parts)] for i in range(parts)]
        for array in (x, y)
    ]

    @jax.jit
    def step(total, left, right):
        return total + jax.lax.dot(left, right, preferred_element_type=jnp.float32)

    def bare():
        for i in range(parts):
            for j in range(parts):
                total = jnp.zeros((block, block), jnp.float32)
                for k in range(parts):
                    total = step(total, cut[0][i][k], cut[1][k][j])
                total.block_until_ready()

    ours = simulated(functools.partial(blocked, block_shape=(block, block), block_k=block, out_dtype=jnp.float32), 1)
    return {**{key: functools.partial(run, x, y) for key, run in ours.items()}, "interpret": bare}, ours


CASES = {
    "all-gather-8": (8, functools.partial(of_file, "ring_all_gather", 8, shape=(8, 128)), "100x/50x"),
    "all-gather-32": (32, functools.partial(of_file, "ring_all_gather", 32, shape=(8, 128)), "150x/80x"),
    "all-gather-64": (64, functools.partial(of_file, "ring_all_gather", 64, shape=(8, 128)), "150x/80x"),
    "reduce-scatter-8": (8, functools.partial(of_file, "ring_reduce_scatter", 8, shape=(8, 128)), "80x/50x"),
    "reduce-scatter-32": (32, functools.partial(of_file, "ring_reduce_scatter", 32, shape=(8, 128)), "150x/100x"),
    "all-gather-8-1MB": (8, functools.partial(of_file, "ring_all_gather", 8, shape=(256, 1024)), "15x/12x"),
    "all-gather-16-1MB": (16, functools.partial(of_file, "ring_all_gather", 16, shape=(256, 1024)), "15x/12x"),
    "paged-gather-2048": (1, functools.partial(paged_gather, 2048, interpret=True), "-/1000x"),
    "paged-gather-20000": (1, functools.partial(paged_gather, 20_000, interpret=False), "flat"),
    "flash": (1, flash, "12x/-"),
    "matmul-512": (1, matmul, "1.3x"),
    "us-a-copy": (1, functools.partial(of_file, "ring_all_gather", 64, interpret=None, shape=(8, 128)), "8/16 us"),
    "256-devices": (1, functools.partial(of_file, "ring_all_gather", 256, interpret=None, shape=(8, 128)), "-/1.2 s"),
}
"""For each case the virtual devices it needs, what makes its runs, and the aim with checks off and on."""


def child(name, repeats):
    """Run one case in this process; prints its figures as JSON."""
    from tpusim.pallas.host import declare_host_devices

    devices, make, _ = CASES[name]
    declare_host_devices(devices)
    import numpy as np

    runs, ours = make()
    first = {key: timed(run) for key, run in runs.items()}
    if "interpret" in runs and name != "matmul-512":
        expected, got = np.asarray(runs["interpret"]()), np.asarray(runs["none"]())
        np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=1e-5, atol=1e-5)
    later = {key: [] for key in runs}
    for _ in range(repeats):
        for key, run in runs.items():
            if name == "paged-gather-2048" and key == "interpret" and later[key]:
                continue  # the better part of a minute each
            later[key].append(timed(run))
    figures = {key: statistics.median(values) for key, values in later.items()}
    busy = {key: min(timed(runs[key], time.process_time) for _ in range(repeats)) for key in MODES}
    print(json.dumps({"first": first, "busy": busy, "copies": ours["none"].result.dmas, **figures}))


def row(name, figures):
    """One line of the table."""
    off, on, slow = figures["none"], figures["observed"], figures.get("interpret")
    each = [f"{figures['busy'][checks] / figures['copies'] * 1e3:.1f}" for checks in MODES]
    aim = CASES[name][2]
    line = f"{name:<20}{'-' if slow is None else f'{slow:.1f}':>13}{off:>9.2f}{on:>9.2f}"
    if slow is None:
        return f"{line}{'':>16}{aim:>11}{'':>8}{'/'.join(each):>14}"
    if name == "matmul-512":
        return f"{line}{off / slow:>7.2f}x{on / slow:>7.2f}x{aim:>11}"
    first = figures["first"]["interpret"] / figures["first"]["none"]
    return f"{line}{slow / off:>7.0f}x{slow / on:>7.0f}x{aim:>11}{first:>7.1f}x{'/'.join(each):>14}"


def main():
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.repeats)
        return
    titles = f"{'case':<20}{'interpret ms':>13}{'off ms':>9}{'on ms':>9}{'off':>8}{'on':>8}{'aim':>11}{'first':>8}"
    print(f"{titles}{'us a copy':>14}")
    for name in arguments.cases:
        command = [sys.executable, str(Path(__file__)), "--child", name, "--repeats", str(arguments.repeats)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            print(f"{name:<20}failed: {done.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        print(row(name, json.loads(done.stdout.splitlines()[-1])), flush=True)


if __name__ == "__main__":
    main()
