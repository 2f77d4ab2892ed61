"""Every speed figure in one command, as Markdown: machine, versions, and the table of each benchmark.

    python benchmarks/all.py [--quick] [--only native proof ...] > speed.md

Each benchmark is a script of its own beside this one and is run as one; their ratios (against a bare SimPy loop,
JAX's TPU interpret mode, the same work with checks off) come from one run each, so they mean something on any
machine, which is more than the seconds do.  ``--quick`` leaves out what takes more than a few minutes.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple


class Part(NamedTuple):
    """A benchmark: what it shows, its command, what of it is quick (``None``: nothing), whether it needs jax."""

    title: str
    command: tuple[str, ...]
    quick: tuple[str, ...] | None
    needs_jax: bool = False


PARTS = {
    "import": Part("`import tpusim`, and the same of NumPy", (), ()),
    "native": Part("Native ring all-gather beside a bare SimPy loop", ("native.py",), ("--repeats", "3")),
    "native-checked": Part("The same with the race judge", ("native.py", "--checks", "observed"), ("--repeats", "3")),
    "checks": Part("What checks cost, from 100 copies to 100,000", ("checks.py",), ("--most", "10000")),
    "proof": Part("The all-schedule proof, the judge alone", ("proof.py",), ("--repeats", "1")),
    "captured": Part("Captured kernels beside JAX's interpret mode", ("vs_interpret.py",), None, True),
    "pod": Part("Whole pods and contention", ("pod.py",), ("step", "all-to-all-64")),
    "scale": Part("From 4 devices to 6,144", ("scale.py",), ("--most", "256"), True),
}
PACKAGES = ("tpusim", "numpy", "simpy", "greenlet", "pydantic", "jax")
HERE = Path(__file__).parent


def versions():
    """Python and packages, those that are there."""
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def processor():
    """The name the system gives the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def imports():
    """Milliseconds of CPU that an import takes in a process of its own, the least of five."""
    code = "import time; t = time.process_time(); import {0}; print((time.process_time() - t) * 1e3)"
    for name in ("tpusim", "numpy"):
        times = [float(subprocess.check_output([sys.executable, "-c", code.format(name)])) for _ in range(5)]
        print(f"{name:<12}{min(times):>8.1f} ms", flush=True)


def main():
    """Run the parts and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out what takes long")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores of {processor()}, load {os.getloadavg()[0]:.1f}.")
    print(f"{versions()}.", flush=True)
    for name in options.only:
        part = PARTS[name]
        print(f"\n## {part.title}\n")
        if part.needs_jax and find_spec("jax") is None:
            print("Not run: jax is not installed.", flush=True)
            continue
        if options.quick and part.quick is None:
            print("Not run: --quick.", flush=True)
            continue
        print("```", flush=True)
        began = time.monotonic()
        if part.command:
            script, *more = (*part.command, *(part.quick if options.quick else ()))
            done = subprocess.run([sys.executable, str(HERE / script), *more], cwd=HERE.parent, check=False)
            failed = f", exit status {done.returncode}" if done.returncode else ""
        else:
            imports()
            failed = ""
        print(f"```\n{time.monotonic() - began:.0f} s in all{failed}", flush=True)


if __name__ == "__main__":
    main()
