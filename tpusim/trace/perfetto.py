"""The timeline of a run as Chrome trace JSON, for ui.perfetto.dev and chrome://tracing.

Every device is a process: a track for its core, then a lane for each copy in flight, by direction.  The
links are a process with a track each, the memories another with a counter each.  Arrows lead from the
start of a copy, or a signal, to the wait that took it.

A run may hold a million events, so they are formatted by hand and written as they are made; nothing
holds the whole text.  Times are microseconds, as the format wants, beside exact picoseconds in ``args``.
"""

from __future__ import annotations

import gc
import gzip
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tpusim.topology import link
from tpusim.trace.flows import arrows
from tpusim.trace.lanes import pack
from tpusim.trace.log import SignalSent
from tpusim.trace.names import Names, inside
from tpusim.trace.rates import rate_changes
from tpusim.units import json_safe

if TYPE_CHECKING:
    from tpusim.machine.core import Core
    from tpusim.machine.dma import Copy
    from tpusim.result import Result

_CORE_TRACK = 1
_DIRECTIONS = ("hbm_to_vmem", "vmem_to_hbm", "vmem_to_vmem", "hbm_to_hbm", "smem", "remote")
_BATCH = 4096


def write_trace(result: Result, file: str | Path) -> None:
    """Write the timeline of ``result``, of a failed run too; compressed where ``file`` ends in ``.gz``.

    Equal runs give equal files.  Raises ``OSError`` where the file cannot be written.
    """
    head = json.dumps(
        json_safe(
            {
                "tool": "tpusim",
                "slice": result.slice,
                "chip": result.place.chip.name,
                "mesh": result.place.axis_sizes,
                "time_ps": int(result.time),
                "ok": result.ok,
                "rates": "mean of each copy" if result.rates is None else "as shared",
            }
        )
    )
    with _opened(Path(file)) as out, _uncollected():
        out.write(f'{{"displayTimeUnit":"ns","otherData":{head},"traceEvents":[\n')
        events = _Events(result).all()
        separator = ""
        while batch := list(islice(events, _BATCH)):
            out.write(separator + ",\n".join(batch))
            separator = ",\n"
        out.write("\n]}\n")


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    if path.suffix != ".gz":
        with path.open("w", encoding="utf-8", newline="\n") as plain:
            yield plain
        return
    with (
        path.open("wb") as raw,
        # neither a name nor a time in its header, so that equal runs give equal files
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=4, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text,
    ):
        yield text


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the cycle collector, which would walk over the whole run again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Events:
    """Makes the events of one run, each as JSON text."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.log = result.trace
        self.place = result.place
        self.count = len(self.place.devices)
        self.links_pid = self.count
        self.hbm_pid = self.count + 1
        self.end_ps = max([int(result.time), *(copy.written_ps for copy in self.log.copies)])
        self.names = Names(result.place)
        self.coords, self.us = self.names.coords, self.names.us

    def all(self) -> Iterator[str]:
        """Every event; what concerns one track stands together."""
        yield from self._cores()
        yield from self._copies()
        yield from self._arrows()
        yield from self._links()
        yield from self._counters()

    # -- names ----------------------------------------------------------------------------------

    def _process(self, pid: int, name: str) -> Iterator[str]:
        yield f'{{"ph":"M","pid":{pid},"tid":0,"name":"process_name","args":{{"name":{json.dumps(name)}}}}}'
        yield f'{{"ph":"M","pid":{pid},"tid":0,"name":"process_sort_index","args":{{"sort_index":{pid}}}}}'

    def _track(self, pid: int, tid: int, name: str) -> Iterator[str]:
        yield f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"thread_name","args":{{"name":{json.dumps(name)}}}}}'
        yield f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"thread_sort_index","args":{{"sort_index":{tid}}}}}'

    def _slice(self, pid: int, tid: int, begin_ps: int, end_ps: int, name: str, category: str, args: str = "") -> str:
        us = self.us
        return (
            f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{us[begin_ps]},"dur":{us[end_ps - begin_ps]},'
            f'"name":"{name}","cat":"{category}","args":{{{args}}}}}'
        )

    # -- cores ----------------------------------------------------------------------------------

    def _cores(self) -> Iterator[str]:
        for core in self.result.cores:
            pid = core.device
            yield from self._process(pid, self.names.device(pid))
            yield from self._track(pid, _CORE_TRACK, "core")
            if core.call is not None:
                end = core.exited_ps if core.exited_ps >= 0 else max(self.end_ps, core.now)
                yield self._slice(pid, _CORE_TRACK, core.entered_ps, end, inside(core.call.name), "call")
            if core.blocked is not None:
                yield self._blocked(core)
        for compute in self.log.computes:
            pid, operation, begin, end = compute.core.device, compute.operation, compute.from_ps, compute.to_ps
            yield self._slice(pid, _CORE_TRACK, begin, end, inside(operation), "compute", self._at(compute.site))
        for wait in self.log.waits:
            begin, end = wait.from_ps, wait.to_ps
            args = f'"amount":{wait.amount},{self._at(wait.site)}'
            name = f"wait {self.names.semaphore(wait.semaphore)}"
            yield self._slice(wait.core.device, _CORE_TRACK, begin, end, name, "wait", args)
        for signal in self.log.signals:
            end = signal.sent_ps
            begin = end - signal.core.machine.timing.signal_ps
            target = self.coords[signal.semaphore.device]
            args = f'"amount":{signal.amount},{self._at(signal.site)}'
            name = f"signal {self.names.semaphore(signal.semaphore)} {target}"
            yield self._slice(signal.core.device, _CORE_TRACK, begin, end, name, "signal", args)

    def _blocked(self, core: Core) -> str:
        blocked = core.blocked
        if blocked is None:
            return ""
        begin, end = blocked.since_ps, max(self.end_ps, blocked.since_ps)
        args = f'"amount":{blocked.amount},"value":{blocked.semaphore.value},"satisfied":false,{self._at(blocked.site)}'
        name = f"wait {self.names.semaphore(blocked.semaphore)} for ever"
        return self._slice(core.device, _CORE_TRACK, begin, end, name, "wait", args)

    def _at(self, site: Any) -> str:
        return f'"site":"{self.names.site(site)}"'

    # -- copies ---------------------------------------------------------------------------------

    def _copies(self) -> Iterator[str]:
        lanes: dict[int, dict[str, list[Copy]]] = {}
        for copy in self.log.copies:
            lanes.setdefault(copy.core.device, {}).setdefault(copy.route.kind, []).append(copy)
        for device in sorted(lanes):
            by_kind = lanes[device]
            first = _CORE_TRACK + 1
            for kind in [*_DIRECTIONS, *sorted(set(by_kind) - set(_DIRECTIONS))]:
                copies = by_kind.get(kind, ())
                placed = pack((copy.issued_ps, self._ended(copy)) for copy in copies)
                used = max(placed, default=-1) + 1
                title = kind.replace("_to_", "->")
                for lane in range(used):
                    yield from self._track(device, first + lane, f"DMA {title} {lane}")
                for copy, lane in zip(copies, placed, strict=True):
                    yield from self._copy(copy, device, first + lane)
                first += used

    def _ended(self, copy: Copy) -> int:
        return copy.written_ps if copy.written_ps >= 0 else max(self.end_ps, copy.issued_ps)

    def _copy(self, copy: Copy, pid: int, tid: int) -> Iterator[str]:
        """The start on the core; on its lane the copy with its latency, transfer and hops inside it."""
        issued, begin, read, written = copy.issued_ps, copy.begin_ps, copy.read_ps, copy.written_ps
        end = self._ended(copy)
        src, dst = self.names.region(copy.src_region), self.names.region(copy.dst_region)
        to = self.coords[copy.dst.device]
        site = self.names.site(copy.site)
        us = self.us
        start_us = us[issued]
        yield (
            f'{{"ph":"X","pid":{pid},"tid":{_CORE_TRACK},"ts":{start_us},"dur":{us[copy.core.machine.timing.issue_ps]},'
            f'"name":"start {dst}","cat":"start","args":{{"site":"{site}"}}}}'
        )
        yield (
            f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{start_us},"dur":{us[end - issued]},'
            f'"name":"{src} -> {dst} {to}","cat":"copy","args":{{"bytes":{copy.dst_region.nbytes},'
            f'"wire_bytes":{copy.wire_bytes},"src":"{src} {self.coords[copy.src.device]}","dst":"{dst} {to}",'
            f'"hops":{copy.hops},"issued_ps":{issued},"begin_ps":{_known(begin)},"read_ps":{_known(read)},'
            f'"written_ps":{_known(written)},"site":"{site}"}}}}'
        )
        leg = f'{{"ph":"X","pid":{pid},"tid":{tid},"cat":"leg","name":'
        until = begin if begin >= 0 else end
        yield f'{leg}"latency","ts":{start_us},"dur":{us[until - issued]}}}'
        if begin >= 0:
            until = read if read >= 0 else end
            yield f'{leg}"transfer","ts":{us[begin]},"dur":{us[until - begin]}}}'
        if read >= 0 and end > read:
            yield f'{leg}"hops","ts":{us[read]},"dur":{us[end - read]}}}'

    # -- arrows ---------------------------------------------------------------------------------

    def _arrows(self) -> Iterator[str]:
        us = self.us
        for number, (source, leg, wait) in enumerate(arrows(self.log), 1):
            core = source.core
            if isinstance(source, SignalSent):
                begin = source.sent_ps - core.machine.timing.signal_ps
            else:
                begin = source.issued_ps
            # one picosecond before its end, so that the arrow ends inside the wait
            end = max(wait.from_ps, wait.to_ps - 1)
            tail = f'"id":{number},"tid":{_CORE_TRACK},"name":"{leg}","cat":"arrow"'
            yield f'{{"ph":"s","pid":{core.device},"ts":{us[begin]},{tail}}}'
            yield f'{{"ph":"f","bp":"e","pid":{wait.core.device},"ts":{us[end]},{tail}}}'

    # -- links and memories ---------------------------------------------------------------------

    def _links(self) -> Iterator[str]:
        carried: dict[int, list[Copy]] = {}
        for copy in self.log.copies:
            if copy.begin_ps >= 0:
                for index in copy.route.links:
                    carried.setdefault(index, []).append(copy)
        if not carried:
            return
        yield from self._process(self.links_pid, "ICI links")
        first = 1
        for index in sorted(carried):
            copies = sorted(carried[index], key=lambda copy: copy.begin_ps)
            ends = [copy.read_ps if copy.read_ps >= 0 else self.end_ps for copy in copies]
            placed = pack(zip((copy.begin_ps for copy in copies), ends, strict=True))
            name = str(link(self.place.slice, index))
            for lane in range(max(placed) + 1):
                yield from self._track(self.links_pid, first + lane, name + (f" #{lane + 1}" if lane else ""))
            for copy, end, lane in zip(copies, ends, placed, strict=True):
                way = f"{self.coords[copy.core.device]} -> {self.coords[copy.dst.device]}"
                yield self._slice(
                    self.links_pid,
                    first + lane,
                    copy.begin_ps,
                    end,
                    f"{self.names.region(copy.dst_region)} {way}",
                    "link",
                    f'"wire_bytes":{copy.wire_bytes}',
                )
            first += max(placed) + 1

    def _counters(self) -> Iterator[str]:
        """Bytes per second on every link and memory."""
        changes = rate_changes(self.result)
        if not changes:
            return
        wiring = self.result.cores[0].machine.wiring
        memories = {memory: f"HBM {self.names.memory(unit)}" for unit, memory in wiring.hbms.items()}
        names = memories | {used: f"link {link(self.place.slice, index)}" for index, used in wiring.links.items()}
        if not changes.keys().isdisjoint(memories):
            yield from self._process(self.hbm_pid, "HBM")
        us = self.us
        for resource, name in names.items():
            pid = self.hbm_pid if resource in memories else self.links_pid
            head = f'{{"ph":"C","pid":{pid},"tid":0,"name":{json.dumps(name)},"ts":'
            last = 0
            for at, rate in changes.get(resource, ()):
                if rate != last:
                    yield f'{head}{us[at]},"args":{{"B/s":{rate}}}}}'
                last = rate


def _known(time_ps: int) -> str:
    return str(time_ps) if time_ps >= 0 else "null"
