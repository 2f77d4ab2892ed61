"""Ring all-gather of native kernels: DMAs a second, beside a bare SimPy loop in the same run.

    python benchmarks/native.py [--repeats 5] [--most 1024]

The bare loop gives each transfer its own SimPy process with three timeouts and nothing else: no data, no
semaphores, no links.  Both are run in turn; the figures are the medians.
"""

import argparse
import statistics
import time

import numpy as np
import simpy

from tpusim import ShapeDtypeStruct
from tpusim.kernel_file import load_file


def bare_simpy(transfers):
    """Seconds a transfer of the bare loop."""
    env = simpy.Environment()

    def transfer():
        yield env.timeout(1)
        yield env.timeout(2)
        yield env.timeout(3)

    for _ in range(transfers):
        env.process(transfer())
    started = time.perf_counter()
    env.run()
    return (time.perf_counter() - started) / transfers


def simulated(kernel, arrays, options):
    """Seconds a copy of one run, and the run."""
    result = kernel.simulate(*arrays, **options)
    assert result.ok
    return result.wall_s / result.dmas, result


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--checks", default="none", help="observed: with the race judge")
    parser.add_argument("--most", type=int, default=1024, help="the most devices of a row")
    arguments = parser.parse_args()
    repeats = arguments.repeats
    file = load_file("kernels/ring_all_gather.py")
    cases = [
        ("16 devices", 16, {"slice": "v5e:4x4"}, repeats),
        ("64 devices", 64, {"slice": "v5e:8x8"}, repeats),
        ("256 devices", 256, {"slice": "v5e:16x16"}, 1),
        ("1,024 devices, no data", 1024, {"slice": "v5p:8x8x16", "layout": "ring", "data": False}, 1),
    ]
    print(f"{'case':<24}{'copies':>10}{'us a copy':>11}{'DMA/s':>10}{'bare us':>9}{'of bare':>9}")
    for name, devices, options, times in cases:
        if devices > arguments.most:
            continue
        arrays = file.inputs(devices=devices)
        if not options.get("data", True):
            arrays = [ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
        bare, own = [], []
        for _ in range(times):
            bare.append(bare_simpy(min(20_000, devices * devices)))
            seconds, result = simulated(file.kernel, arrays, {**options, "checks": arguments.checks})
            own.append(seconds)
        mine, floor = statistics.median(own), statistics.median(bare)
        print(f"{name:<24}{result.dmas:>10}{mine * 1e6:>11.2f}{1 / mine:>10.0f}{floor * 1e6:>9.2f}{floor / mine:>9.2f}")


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
