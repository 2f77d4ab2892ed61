"""Every speed figure in one command, as Markdown: machine, versions, each benchmark's table, and all targets in one.

    python benchmarks/all.py [--quick] [--only native proof ...] > speed.md

Each benchmark is a script of its own beside this one and is run as one, with a limit of time; one that fails or takes
too long costs only its own rows, and the last table is written after Ctrl-C, too.  Their ratios (against a bare SimPy
loop, JAX's TPU interpret mode, the same work with checks off) come from one run each, so they mean something on any
machine, which is more than the seconds do.  All of it takes about a quarter of an hour on two cores that do nothing
else; ``--quick`` leaves out what takes more than a few minutes.  ``targets.py`` has what is read from the tables.
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
from threading import Timer
from typing import NamedTuple

from targets import summary


class Part(NamedTuple):
    """A benchmark: what it shows, its command, what of it is quick (``None``: nothing), a module that it needs."""

    title: str
    command: tuple[str, ...]
    quick: tuple[str, ...] | None
    needs: str = ""


PARTS = {
    "floors": Part("What this machine asks for the parts of a run", ("floors.py",), ()),
    "import": Part("`import tpusim`, and the same of NumPy", ("all.py", "--imports"), ()),
    "native": Part("Native ring all-gather beside a bare SimPy loop", ("native.py",), ("--repeats", "3")),
    "native-checked": Part("The same with the race judge", ("native.py", "--checks", "observed", "--most", "64"), ()),
    "checks": Part("What checks cost, from 100 copies to 100,000", ("checks.py",), ("--most", "10000")),
    "proof": Part("The all-schedule proof, the judge alone", ("proof.py",), ("--repeats", "1")),
    "captured": Part("Captured kernels beside JAX's interpret mode", ("vs_interpret.py",), None, "jax"),
    "pod": Part("Whole pods and contention", ("pod.py",), ("step", "all-to-all-64")),
    "scale": Part("From 4 devices to 6,144", ("scale.py",), ("--most", "256"), "jax"),
    "page": Part("The report of 64 chips in a browser", ("page.py",), (), "bokeh"),
}
MOST_S = 600
"""Seconds that a part may take."""
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


def run(part, is_quick):
    """Run a part and print its table as it comes; returns its lines and what went wrong, if anything did."""
    if part.needs and find_spec(part.needs) is None:
        return [], f"Not run: {part.needs} is not installed."
    if is_quick and part.quick is None:
        return [], "Not run: --quick."
    script, *more = (*part.command, *(part.quick if is_quick else ()))
    command = [sys.executable, "-u", str(HERE / script), *more]
    print("```", flush=True)
    began = time.monotonic()
    lines = []
    with subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True) as running:
        limit = Timer(MOST_S, running.kill)
        limit.start()
        try:
            for line in running.stdout:
                lines.append(line.rstrip("\n"))
                print(lines[-1], flush=True)
        except BaseException:
            running.kill()
            raise
        finally:
            limit.cancel()
    took = time.monotonic() - began
    print(f"```\n{took:.0f} s in all", flush=True)
    if running.returncode:
        return lines, "Stopped: it took too long." if took >= MOST_S else f"Failed: exit status {running.returncode}."
    return lines, ""


def main():
    """Run the parts and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out what takes long")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--imports", action="store_true", help="only how long imports take, a part itself")
    options = parser.parse_args()
    if options.imports:
        imports()
        return
    machine = f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores of {processor()}, load {os.getloadavg()[0]:.1f}"
    about = f"{machine}; {versions()}."
    print(about, flush=True)
    lines = {}
    try:
        for name in options.only:
            print(f"\n## {PARTS[name].title}\n", flush=True)
            lines[name] = []
            lines[name], problem = run(PARTS[name], options.quick)
            if problem:
                print(problem, flush=True)
    finally:
        print(f"\n## All targets\n\n{about}\n\n{summary(lines)}", flush=True)


if __name__ == "__main__":
    main()
