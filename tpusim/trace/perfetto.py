"""The timeline of a run as Chrome trace JSON, for ui.perfetto.dev and chrome://tracing.

Lanes have the words that xprof uses for a TPU, so that a simulated and a measured trace can be read side by
side: every device is a process ``/device:TPU:0``, its calls are on ``XLA Modules``, what its core does on
``XLA Ops``, its copies on lanes of ``Async XLA Ops``, by direction.  The links are a process with a track each,
the memories another with a counter each.  Arrows lead from the start of a copy, or a signal, to the wait that
took it.  Numbers of processes and tracks depend on the device and the lane alone, and lie beyond those of xprof.

A run may hold a million events, so they are formatted by hand and written as they are made; nothing
holds the whole text.  Times are microseconds, as the format wants, beside exact picoseconds in ``args``.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tpusim.machine.machine import no_collection
from tpusim.topology import link
from tpusim.trace.flows import arrows
from tpusim.trace.lanes import pack
from tpusim.trace.log import SignalSent
from tpusim.trace.names import Names, inside
from tpusim.trace.pod import in_parts
from tpusim.trace.rates import rate_changes
from tpusim.trace.steps import calls_of
from tpusim.units import json_safe

if TYPE_CHECKING:
    from tpusim.machine.core import Core
    from tpusim.machine.dma import Copy
    from tpusim.result import Result

_CALL_TRACK, _CORE_TRACK, _COPY_TRACK = 1, 2, 1000
LINKS_PID, HBM_PID, FIRST_PID = 900, 901, 1000
"""Processes; xprof numbers its own from 1 to 701."""
_LANES = 1000
"""Numbers of tracks kept for each direction of copies."""
_DIRECTIONS = ("hbm_to_vmem", "vmem_to_hbm", "vmem_to_vmem", "hbm_to_hbm", "smem", "remote")
_BATCH = 4096


Beside = Sequence[Sequence[Any]]
"""Events of real devices: (device, track, name, from, to), in microseconds."""


def write_trace(
    result: Result,
    file: str | Path,
    devices: Collection[int] | None = None,
    parts: int | None = None,
    beside: Beside = (),
) -> None:
    """Write the timeline of ``result``, of a failed run too; compressed where ``file`` ends in ``.gz``.

    ``devices``: row-major numbers of those to show with what they started, default all.  ``parts``: instead of
    single events, how busy each device, link and memory was in so many equal parts of the run: for whole pods.
    ``beside``: what the same devices did on hardware, shown as processes of their own.

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
    with _opened(Path(file)) as out, no_collection():
        out.write(f'{{"displayTimeUnit":"ns","otherData":{head},"traceEvents":[\n')
        made = Events(result, devices)
        simulated = made.all() if parts is None else in_parts(made, parts)
        events = chain(simulated, _beside(beside, len(result.place.devices) + 2))
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


def _beside(events: Beside, first_pid: int) -> Iterator[str]:
    """Real devices as processes behind the simulated ones, a track for each line of the profile."""
    tracks: dict[tuple[int, str], int] = {}
    for device, track, name, begin, end in events:
        pid = first_pid + device
        tid = tracks.get((device, track))
        if tid is None:
            tid = tracks[device, track] = len(tracks) + 1
            for kind, value in (("process_name", f"TPU {device} (measured)"), ("thread_name", track)):
                yield json.dumps({"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": value}})
        place = {"ph": "X", "pid": pid, "tid": tid, "ts": begin, "dur": end - begin}
        yield json.dumps({**place, "name": name, "cat": "measured"})


class Events:
    """Makes the events of one run, each as JSON text."""

    def __init__(self, result: Result, devices: Collection[int] | None = None) -> None:
        self.result = result
        self.log = result.trace
        self.place = result.place
        self.shown = frozenset(range(len(self.place.devices)) if devices is None else devices)
        self.copies = [copy for copy in self.log.copies if copy.core.device in self.shown]
        self.end_ps = max([int(result.time), *(copy.written_ps for copy in self.log.copies)])
        self.names = Names(result.place)
        self.coords, self.us = self.names.coords, self.names.us

    links_pid, hbm_pid = LINKS_PID, HBM_PID

    def pid(self, device: int) -> int:
        """The process of a device."""
        return FIRST_PID + device

    def all(self) -> Iterator[str]:
        """Every event; what concerns one track stands together."""
        yield from self._cores()
        yield from self._copies()
        yield from self._arrows()
        yield from self._links()
        yield from self._counters()

    # -- names ----------------------------------------------------------------------------------

    def process(self, pid: int, name: str) -> Iterator[str]:
        """Name a process."""
        yield f'{{"ph":"M","pid":{pid},"tid":0,"name":"process_name","args":{{"name":{json.dumps(name)}}}}}'
        yield f'{{"ph":"M","pid":{pid},"tid":0,"name":"process_sort_index","args":{{"sort_index":{pid}}}}}'

    def track(self, pid: int, tid: int, name: str) -> Iterator[str]:
        """Name a track."""
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
        calls = calls_of(self.result, self.end_ps)
        for core in self.result.cores:
            if core.device not in self.shown:
                continue
            pid = FIRST_PID + core.device
            yield from self.process(pid, self.names.process(core.device))
            yield from self.track(pid, _CALL_TRACK, "XLA Modules")
            yield from self.track(pid, _CORE_TRACK, "XLA Ops")
            for name, begin, end in calls[core.device]:
                yield self._slice(pid, _CALL_TRACK, begin, end, inside(name), "call")
            if core.blocked is not None:
                yield self._blocked(core)
        for compute in self.log.computes:
            if compute.core.device not in self.shown:
                continue
            operation, begin, end = compute.operation, compute.from_ps, compute.to_ps
            pid = FIRST_PID + compute.core.device
            yield self._slice(pid, _CORE_TRACK, begin, end, inside(operation), "compute", self._at(compute.site))
        for wait in self.log.waits:
            if wait.core.device not in self.shown:
                continue
            begin, end = wait.from_ps, wait.to_ps
            args = f'"amount":{wait.amount},{self._at(wait.site)}'
            name = f"wait {self.names.semaphore(wait.semaphore)}"
            yield self._slice(FIRST_PID + wait.core.device, _CORE_TRACK, begin, end, name, "wait", args)
        for signal in self.log.signals:
            if signal.core.device not in self.shown:
                continue
            end = signal.sent_ps
            begin = end - signal.core.machine.timing.signal_ps
            target = self.coords[signal.semaphore.device]
            args = f'"amount":{signal.amount},{self._at(signal.site)}'
            name = f"signal {self.names.semaphore(signal.semaphore)} {target}"
            yield self._slice(FIRST_PID + signal.core.device, _CORE_TRACK, begin, end, name, "signal", args)

    def _blocked(self, core: Core) -> str:
        blocked = core.blocked
        if blocked is None:
            return ""
        begin, end = blocked.since_ps, max(self.end_ps, blocked.since_ps)
        args = f'"amount":{blocked.amount},"value":{blocked.semaphore.value},"satisfied":false,{self._at(blocked.site)}'
        name = f"wait {self.names.semaphore(blocked.semaphore)} for ever"
        return self._slice(FIRST_PID + core.device, _CORE_TRACK, begin, end, name, "wait", args)

    def _at(self, site: Any) -> str:
        return f'"site":"{self.names.site(site)}"'

    # -- copies ---------------------------------------------------------------------------------

    def _copies(self) -> Iterator[str]:
        lanes: dict[int, dict[str, list[Copy]]] = {}
        for copy in self.copies:
            lanes.setdefault(copy.core.device, {}).setdefault(copy.route.kind, []).append(copy)
        for device in sorted(lanes):
            by_kind = lanes[device]
            pid = FIRST_PID + device
            for number, kind in enumerate(_DIRECTIONS):
                first = _COPY_TRACK + number * _LANES
                copies = by_kind.get(kind, ())
                placed = pack((copy.issued_ps, self._ended(copy)) for copy in copies)
                used = max(placed, default=-1) + 1
                title = kind.replace("_to_", "->")
                for lane in range(used):
                    yield from self.track(pid, first + lane, f"Async XLA Ops, DMA {title} {lane}")
                for copy, lane in zip(copies, placed, strict=True):
                    yield from self._copy(copy, pid, first + lane)

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
            if core.device not in self.shown or wait.core.device not in self.shown:
                continue
            if isinstance(source, SignalSent):
                begin = source.sent_ps - core.machine.timing.signal_ps
            else:
                begin = source.issued_ps
            # one picosecond before its end, so that the arrow ends inside the wait
            end = max(wait.from_ps, wait.to_ps - 1)
            tail = f'"id":{number},"tid":{_CORE_TRACK},"name":"{leg}","cat":"arrow"'
            yield f'{{"ph":"s","pid":{FIRST_PID + core.device},"ts":{us[begin]},{tail}}}'
            yield f'{{"ph":"f","bp":"e","pid":{FIRST_PID + wait.core.device},"ts":{us[end]},{tail}}}'

    # -- links and memories ---------------------------------------------------------------------

    def _links(self) -> Iterator[str]:
        carried: dict[int, list[Copy]] = {}
        for copy in self.copies:
            if copy.begin_ps >= 0:
                for index in copy.route.links:
                    carried.setdefault(index, []).append(copy)
        if not carried:
            return
        yield from self.process(LINKS_PID, "ICI links")
        first = 1
        for index in sorted(carried):
            copies = sorted(carried[index], key=lambda copy: copy.begin_ps)
            ends = [copy.read_ps if copy.read_ps >= 0 else self.end_ps for copy in copies]
            placed = pack(zip((copy.begin_ps for copy in copies), ends, strict=True))
            name = str(link(self.place.slice, index))
            for lane in range(max(placed) + 1):
                yield from self.track(LINKS_PID, first + lane, name + (f" #{lane + 1}" if lane else ""))
            for copy, end, lane in zip(copies, ends, placed, strict=True):
                way = f"{self.coords[copy.core.device]} -> {self.coords[copy.dst.device]}"
                yield self._slice(
                    LINKS_PID,
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
        if len(self.shown) < len(self.place.devices):
            crossed = {resource for copy in self.copies for resource in copy.path.resources}
            changes = {resource: rates for resource, rates in changes.items() if resource in crossed}
        if not changes:
            return
        wiring = self.result.cores[0].machine.wiring
        memories = {memory: f"HBM {self.names.memory(unit)}" for unit, memory in wiring.hbms.items()}
        names = memories | {used: f"link {link(self.place.slice, index)}" for index, used in wiring.links.items()}
        if not changes.keys().isdisjoint(memories):
            yield from self.process(HBM_PID, "HBM")
        us = self.us
        for resource, name in names.items():
            pid = HBM_PID if resource in memories else LINKS_PID
            head = f'{{"ph":"C","pid":{pid},"tid":0,"name":{json.dumps(name)},"ts":'
            last = 0
            for at, rate in changes.get(resource, ()):
                if rate != last:
                    yield f'{head}{us[at]},"args":{{"B/s":{rate}}}}}'
                last = rate


def _known(time_ps: int) -> str:
    return str(time_ps) if time_ps >= 0 else "null"
