"""What the fabric costs: CPU time of flows alone, without cores, semaphores or data.

python benchmarks/fabric.py                     # the quick cases
python benchmarks/fabric.py --torus             # and an all-to-all of 256 devices, a minute or two
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable
from typing import Any

import simpy

from tpusim.machine.fabric import Fabric
from tpusim.machine.flows import Flow, Path, Resource

LINK = 86 * 10**9
HBM = 3_600 * 10**9
BEGIN = 1 << 40
SOLVE = 1 << 60
GAP_PS = 16_000


class Copy(Flow):
    """A flow that counts itself when it has ended."""

    __slots__ = ("done",)

    def __init__(self, path: Path, wire_bytes: int, order: int, done: list[Copy]) -> None:
        super().__init__(path, wire_bytes, order)
        self.done = done

    def transferred(self) -> None:
        """Count it."""
        self.done.append(self)


class Mesh:
    """An n x n mesh with directed links, x before y, and one HBM a device."""

    def __init__(self, n: int, *, wraps: bool) -> None:
        self.n = n
        self.wraps = wraps
        self.hbm = [Resource(f"hbm {d}", HBM) for d in range(n * n)]
        self.links = {(d, to): Resource(f"link {d}{to}", LINK) for d in range(n * n) for to in ("+x", "-x", "+y", "-y")}

    def path(self, source: int, target: int) -> Path:
        """The way of a copy, HBM to HBM."""
        n = self.n
        place = [source % n, source // n]
        links = []
        for axis, goal in enumerate((target % n, target // n)):
            steps = goal - place[axis]
            if self.wraps:
                steps = (steps + (n - 1) // 2) % n - (n - 1) // 2
            sign = 1 if steps > 0 else -1
            for _ in range(abs(steps)):
                links.append(self.links[place[0] + n * place[1], f"{'+' if sign > 0 else '-'}{'xy'[axis]}"])
                place[axis] = (place[axis] + sign) % n
        return Path((self.hbm[source], *links, self.hbm[target]), LINK)


def timed(start: Callable[[simpy.Environment, Fabric], int]) -> tuple[float, int, int, float]:
    """CPU seconds of one run, its flows, its solves and the simulated microseconds."""
    env = simpy.Environment()
    fabric = Fabric(env, SOLVE)
    flows = start(env, fabric)
    gc.collect()
    gc.disable()
    begin = time.process_time()
    env.run()
    seconds = time.process_time() - begin
    gc.enable()
    return seconds, flows, fabric.solves, env.now / 1e6


class Bare:
    """A SimPy event without a fabric, to compare with."""

    __slots__ = ("callbacks", "env", "left")
    _ok = True

    def __init__(self, env: simpy.Environment, left: int) -> None:
        self.env = env
        self.left = left
        self.callbacks = [Bare.ring]
        schedule(env, self, 1, 1000)

    def ring(self) -> None:
        """Once more."""
        self.left -= 1
        if self.left:
            self.callbacks = [Bare.ring]
            schedule(self.env, self, 1, 1000)


def schedule(env: simpy.Environment, event: Any, order: Any, delay: int) -> None:
    """Any object with the attributes of an event and any int as priority, which SimPy's types do not say."""
    env.schedule(event, order, delay)


def events_only(count: int, devices: int) -> float:
    """CPU seconds of the bare SimPy events of as many flows."""
    env = simpy.Environment()
    for _ in range(devices):
        Bare(env, count // devices)
    begin = time.process_time()
    env.run()
    return time.process_time() - begin


class Step(Flow):
    """A flow that begins again from its own end, ``left`` times."""

    __slots__ = ("fabric", "left")

    def __init__(self, fabric: Fabric, path: Path, wire_bytes: int, order: int, left: int) -> None:
        super().__init__(path, wire_bytes, order)
        self.fabric = fabric
        self.left = left
        fabric.begin(self, 0)

    def transferred(self) -> None:
        """Begin again."""
        self.left -= 1
        if self.left:
            self.fabric.begin(self, self.due)


def ring(devices: int, steps: int) -> Callable[[simpy.Environment, Fabric], int]:
    """Every device sends to its neighbour, again and again: nothing is tight."""

    def start(env: simpy.Environment, fabric: Fabric) -> int:
        hbm = [Resource(f"hbm {d}", HBM) for d in range(devices)]
        for d in range(devices):
            path = Path((hbm[d], Resource(f"link {d}", LINK), hbm[(d + 1) % devices]), LINK)
            Step(fabric, path, 4096, d, steps)
        return devices * steps

    return start


def shared_links(links: int, copies: int, rounds: int, *, spread: bool) -> Callable[[simpy.Environment, Fabric], int]:
    """``copies`` at once over each link, of equal sizes or of sizes that all differ."""

    def start(env: simpy.Environment, fabric: Fabric) -> int:
        for link in range(links):
            path = Path((Resource(f"hbm {link}", HBM), Resource(f"link {link}", LINK)), LINK)
            for copy in range(copies):
                size = 4096 + (512 * copy + 32 * link if spread else 0)
                Step(fabric, path, size, link * copies + copy, rounds)
        return links * copies * rounds

    return start


def all_to_all(n: int, *, wraps: bool, sizes: tuple[int, int]) -> Callable[[simpy.Environment, Fabric], int]:
    """Every device to every other directly, a start each 16 ns, of a random size in whole 512 bytes."""

    def start(env: simpy.Environment, fabric: Fabric) -> int:
        mesh = Mesh(n, wraps=wraps)
        devices = n * n
        done: list[Copy] = []
        draw = random.Random(0)

        for step in range(1, devices):
            for source in range(devices):
                size = 512 * draw.randint(sizes[0] // 512, sizes[1] // 512)
                flow = Copy(mesh.path(source, (source + step) % devices), size, source * devices + step, done)
                flow.callbacks = [lambda flow: fabric.begin(flow, env.now)]
                schedule(env, flow, BEGIN + flow.order, step * GAP_PS)
        return devices * (devices - 1)

    return start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torus", action="store_true", help="also the all-to-all of a 16x16 torus")
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    options = parser.parse_args()
    kib = 1024
    cases = {
        "ring 64, not tight": ring(64, 2000),
        "4 copies a link, equal": shared_links(64, 4, 100, spread=False),
        "4 copies a link, all sizes": shared_links(64, 4, 100, spread=True),
        "16 copies a link, all sizes": shared_links(16, 16, 50, spread=True),
        "64 copies a link, all sizes": shared_links(4, 64, 20, spread=True),
        "all-to-all 8x8 mesh, 4 KiB": all_to_all(8, wraps=False, sizes=(4 * kib, 4 * kib)),
        "all-to-all 8x8 mesh, 64 KiB": all_to_all(8, wraps=False, sizes=(64 * kib, 64 * kib)),
        "all-to-all 8x8 mesh, 4-64 KiB": all_to_all(8, wraps=False, sizes=(4 * kib, 64 * kib)),
    }
    if options.torus:
        cases["all-to-all 16x16 torus, 4 KiB"] = all_to_all(16, wraps=True, sizes=(4 * kib, 4 * kib))
        cases["all-to-all 16x16 torus, 64 KiB"] = all_to_all(16, wraps=True, sizes=(64 * kib, 64 * kib))
    print(f"{'case':32}{'flows':>9}{'solves':>9}{'seconds':>10}{'us/flow':>9}{'us/solve':>10}{'simulated us':>14}")
    print(f"{'bare SimPy event, 64 in heap':32}{'':18}{'':10}{events_only(128_000, 64) / 0.128:9.2f}")
    for name, start in cases.items():
        if options.only in name:
            seconds, flows, solves, simulated_us = timed(start)
            each = f"{seconds / solves * 1e6:10.1f}" if solves else f"{'':10}"
            print(f"{name:32}{flows:9}{solves:9}{seconds:10.3f}{seconds / flows * 1e6:9.2f}{each}{simulated_us:14.1f}")


if __name__ == "__main__":
    main()
