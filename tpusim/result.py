"""What a run gives: data, time, findings, and the events behind them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tpusim.bounds import Bound
from tpusim.findings import Finding, Severity
from tpusim.intervals import Interval, basis_of, interval_of, used_numbers
from tpusim.machine.flows import Resource
from tpusim.options import Place
from tpusim.topology import layout_summary
from tpusim.units import Duration, format_bytes, json_safe

if TYPE_CHECKING:
    from tpusim.machine.core import Core
    from tpusim.trace.log import EventLog


@dataclass(frozen=True)
class CallRecord:
    """One kernel call: its name, and how long it took from the first device's entry to the last one's exit."""

    name: str
    time: Duration


@dataclass(frozen=True)
class Utilisation:
    """Shares of the run's time, 0 to 1: the busiest and the mean link and HBM, the mean core's compute."""

    links_max: float
    links_mean: float
    hbm_max: float
    hbm_mean: float
    core_mean: float
    busiest_link: str | None


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    ``outputs``: a tuple of GLOBAL NumPy arrays, or ``None`` where the run did not reach its end or
    carried no data.  ``time``: from the start to the last core's exit.  ``interval``, ``token`` and
    ``lower_bound`` are ``None`` where nothing is known.  ``wall_s``: seconds the simulation took here.
    """

    outputs: tuple[Any, ...] | None
    time: Duration
    findings: tuple[Finding, ...]
    calls: tuple[CallRecord, ...]
    trace: EventLog
    place: Place
    seed: int
    wall_s: float
    links: dict[str, Resource] = field(default_factory=dict, repr=False)
    """Links used, by name such as ``(1,0)->(2,0)``."""
    hbms: dict[str, Resource] = field(default_factory=dict, repr=False)
    cores: tuple[Core, ...] = field(default=(), repr=False)
    rates: list[tuple[int, Resource, float]] | None = field(default=None, repr=False)
    """(time in ps, link or memory, B/s) wherever a rate changed, where the run was asked to keep it."""
    lower_bound: Duration | None = None
    token: str | None = None
    printed: tuple[str, ...] = field(default=(), repr=False)
    repeats: tuple[tuple[Any, ...], ...] = field(default=(), repr=False)
    """Outputs of the calls before the last, where a run was of several."""

    @property
    def ok(self) -> bool:
        """Whether the run reached its end without a finding of severity error."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def time_us(self) -> float:
        """Simulated microseconds."""
        return self.time.us

    @cached_property
    def interval(self) -> Interval | None:
        """How far ``time`` can be trusted; worked out when first asked for, by timing the recorded run again.

        ``None`` for a run that stopped on its way, one of very many operations, and one with a schedule or faults.
        """
        if not self.is_complete or not self.cores or self.token is not None:
            return None
        return interval_of(self.trace, self.cores, self.place, self.time)

    @property
    def interval_us(self) -> tuple[float, float] | None:
        """Ends of :attr:`interval` in microseconds."""
        return None if self.interval is None else (self.interval.low.us, self.interval.high.us)

    @property
    def basis(self) -> tuple[str, ...]:
        """The kinds of figures the time rests on: measured, fitted, compiler, datasheet, estimate, given."""
        return basis_of(used_numbers(self.trace, self.place).values())

    @property
    def lower_bound_us(self) -> float | None:
        """Lower bound of the same operation on this slice, in microseconds."""
        return None if self.lower_bound is None else self.lower_bound.us

    @property
    def lower_bound_because(self) -> str | None:
        """The certificate of the lower bound: what no program can avoid."""
        return self.lower_bound.because if isinstance(self.lower_bound, Bound) else None

    @property
    def is_complete(self) -> bool:
        """Whether every device reached the end of its program."""
        return all(core.done for core in self.cores)

    @property
    def ratio(self) -> float | None:
        """Time over its lower bound; ``None`` for a run that stopped on its way."""
        return self.time / self.lower_bound if self.lower_bound and self.is_complete else None

    @property
    def slice(self) -> str:
        """The slice of the run, ``"v5e:4x4"``."""
        return str(self.place.slice)

    @property
    def dmas(self) -> int:
        """Copies started."""
        return len(self.trace.copies)

    @property
    def bytes(self) -> int:
        """Bytes of data that all copies together moved, without padding."""
        return sum(copy.dst_region.nbytes for copy in self.trace.copies)

    def utilisation(self) -> Utilisation:
        """How busy links, HBM and cores were."""
        seconds = self.time.s or 1.0
        shares = [(r.busy_bytes / r.capacity / seconds, name) for name, r in self.links.items()]
        hbms = [r.busy_bytes / r.capacity / seconds for r in self.hbms.values()]
        busy = [core.compute_ps / self.time for core in self.cores] if self.time else []
        top = max(shares, default=(0.0, None))
        return Utilisation(
            links_max=top[0],
            links_mean=_mean([share for share, _ in shares]),
            hbm_max=max(hbms, default=0.0),
            hbm_mean=_mean(hbms),
            core_mean=_mean(busy),
            busiest_link=top[1],
        )

    @property
    def report(self) -> str:
        """The run in a few lines of text, its findings last."""
        return "\n".join(self.summary + ([finding.explain() for finding in self.findings] or ["findings     none"]))

    @property
    def headline(self) -> str:
        """Where it ran: slice, mesh and layout."""
        place = self.place
        hops = layout_summary(place.slice, tuple(place.axis_sizes.values()), place.devices)
        mesh = ", ".join(f"{axis}={size}" for axis, size in place.axis_sizes.items())
        layout = place.layout if isinstance(place.layout, str) else "given coordinates"
        return f"{self.slice}, mesh {mesh}, layout {layout} (at most {max(hops, default=0)} hops to a neighbour)"

    @property
    def summary(self) -> list[str]:
        """Place, time, lower bound, copies and utilisation: a line each, its name in the first 13 columns."""
        use = self.utilisation()
        lines = [
            self.headline,
            f"time         {self.time}   ({self._trust() if self.is_complete else 'where the run stopped'})",
        ]
        if self.token is not None:
            lines.append(f"schedule     {self.token}")
        if self.lower_bound is not None:
            ratio = f"   ({self.ratio:.2f}x)" if self.ratio is not None else ""
            lines.append(f"lower bound  {self.lower_bound}{ratio}")
        lines.append(f"copies       {self.dmas}, {format_bytes(self.bytes)}")
        busiest = f"{use.links_max:.0%} {use.busiest_link}, mean {use.links_mean:.0%}" if self.links else "not used"
        return [
            *lines,
            f"links        {busiest}",
            f"HBM          {use.hbm_max:.0%} at most, mean {use.hbm_mean:.0%}",
            f"cores        {use.core_mean:.0%} computing",
        ]

    def _trust(self) -> str:
        """``3.0 to 4.1 us; fitted, estimate figures, ici.hop_latency above all``."""
        if self.token is not None:
            return "what this schedule and these faults make of it, no prediction"
        interval = self.interval
        figures = f"{', '.join(self.basis)} figures"
        if interval is None:
            return f"{figures}; no interval, too many operations"
        above = f", {interval.effects[0].name} above all" if interval.effects else ""
        return f"{interval}; {figures}{above}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready fields of the run."""
        use = self.utilisation()
        values = {
            "ok": self.ok,
            "time_us": self.time_us,
            "interval_us": self.interval_us,
            "basis": self.basis,
            "lower_bound_us": self.lower_bound_us,
            "lower_bound_because": self.lower_bound_because,
            "ratio": self.ratio,
            "dmas": self.dmas,
            "bytes": self.bytes,
            "findings": [finding.as_dict() for finding in self.findings],
            "chip": self.place.chip.name,
            "slice": self.slice,
            "mesh": self.place.axis_sizes,
            "layout": self.place.layout,
            "seed": self.seed,
            "token": self.token,
            "wall_s": self.wall_s,
            "calls": [{"name": call.name, "time_us": call.time.us} for call in self.calls],
            "utilisation": {
                "links_max": use.links_max,
                "links_mean": use.links_mean,
                "hbm_max": use.hbm_max,
                "hbm_mean": use.hbm_mean,
                "core_mean": use.core_mean,
                "busiest_link": use.busiest_link,
            },
        }
        safe: dict[str, Any] = json_safe(values)
        return safe

    def to_json(self) -> str:
        """The run as JSON; without NaN or Infinity."""
        return json.dumps(self.as_dict(), allow_nan=False)

    def _repr_html_(self) -> str:
        from tpusim.report import summary_html

        return summary_html(self)

    def __repr__(self) -> str:
        state = "ok" if self.ok else "; ".join(sorted({str(f.kind) for f in self.findings}))
        return f"Result({state}, {self.time}, {self.dmas} copies on {self.slice})"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
