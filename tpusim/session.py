"""One run from options to result: build the machine, run it, judge what it left behind.

Native and captured programs share this; they differ only in how they put programs on the cores.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tpusim.errors import FindingError, InterruptedRunError, NotModelledError, OptionError, error_for
from tpusim.findings import CONTINUABLE, Finding, Severity, Where
from tpusim.judges.deadlock import find_deadlock
from tpusim.judges.exit_audit import audit_exit
from tpusim.judges.lint import lint_copies
from tpusim.judges.races import RaceJudge
from tpusim.machine.calls import Call
from tpusim.machine.core import Core
from tpusim.machine.machine import Machine
from tpusim.observe import Observer
from tpusim.options import Place, RunOptions
from tpusim.result import CallRecord, Result
from tpusim.trace.log import EventLog
from tpusim.units import Duration

_MOST_WITH_RATES = 32
"""Devices of a detailed run that keeps every change of a rate; with many flows that costs more than the run."""


class Session:
    """A machine for one run, with its event log; ``finish`` runs it and gives the `Result`.

    ``detail``: keep what only reports need: every load and store, and on small slices every change of a rate.
    ``observers`` watch the run as well.  ``place``: that of an earlier run with these options, or one with more cores.
    """

    def __init__(
        self,
        options: RunOptions,
        axes: Sequence[str],
        *,
        detail: bool = False,
        observers: Sequence[Observer] = (),
        place: Place | None = None,
    ) -> None:
        self.options = options
        self.place: Place = place or options.place(axes)
        self.log = EventLog(accesses=detail)
        self.printed: list[str] = []
        races = RaceJudge() if options.checks == "observed" else None
        own = [self.log] if races is None else [self.log, races]
        self.machine = _machine(options, self.place, [*own, *observers])
        if races is not None:
            races.attach(self.machine)
        if detail and len(self.place.devices) <= _MOST_WITH_RATES:
            self.machine.fabric.rate_log = []

    def printed_by(self, core: Core, text: str) -> None:
        """Keep a line that a kernel printed."""
        line = f"[device {self.machine.coordinates(core.device)}, t = {Duration(core.now)}] {text}"
        self.printed.append(line)
        for hook in self.machine.hooks.logged:
            hook(core, line)

    def finish(
        self,
        body: Callable[[], tuple[Any, ...] | None],
        before_exit: Callable[[], Sequence[Finding]] = lambda: (),
        progress: Callable[[int, int], None] | None = None,
        run: Callable[[], None] | None = None,
    ) -> Result:
        """Run the machine (or ``run``, which does so itself), then the judges; ``body`` collects the outputs.

        Raises the first error finding; its ``result`` is what there is.  With ``on_finding="record"``
        returns the result in every case.
        """
        machine = self.machine
        outputs: tuple[Any, ...] | None = None
        started = time.perf_counter()
        failure: FindingError | None = None
        try:
            if run is None:
                machine.run(progress)
            else:
                run()
        except FindingError as error:
            failure = error
            if error.finding not in machine.findings:
                machine.findings.append(error.finding)
        wall_s = time.perf_counter() - started
        if failure is None:
            failure = self._judge(before_exit)
        if failure is None or failure.finding.kind in CONTINUABLE:
            outputs = body()
            misfit = machine.misfit()
            if misfit is not None:
                raise OptionError(f"the schedule does not fit this run: {misfit}")
        self._stamp(failure)
        result = self._result(outputs, wall_s)
        self._let_go()
        always = isinstance(failure, NotModelledError | InterruptedRunError)
        if failure is not None and (machine.raises or always):
            failure.findings = list(machine.findings)
            failure.result = result
            raise failure
        return result

    def _let_go(self) -> None:
        """Have the run freed with its result, not when the garbage collector comes by: it may hold much memory."""
        self.machine.hooks.clear()
        for core in self.machine.cores:
            core.stop()
        # By a weak reference: what waits for its turn must not keep the machine, from which a way may lead to the log.
        forget = weakref.WeakMethod(self.machine.forget)
        weakref.finalize(self.log, _call, forget).atexit = False

    def abandon(self, error: FindingError) -> None:
        """Give an error from before the first event what there is of findings and result."""
        if error.finding not in self.machine.findings:
            self.machine.findings.append(error.finding)
        self._stamp(error)
        error.findings = list(self.machine.findings)
        error.result = self._result(None, 0.0)

    def _stamp(self, failure: FindingError | None) -> None:
        """Give the findings what replays them."""
        token, findings = self.machine.token, self.machine.findings
        if token is None:
            return
        for number, finding in enumerate(findings):
            findings[number] = replace(finding, token=token)
            if failure is not None and failure.finding is finding:
                failure.finding = findings[number]

    def deadlock(self, elsewhere: Mapping[Core, tuple[str, Where | None]] = MappingProxyType({})) -> Finding | None:
        """The deadlock of a machine in which nothing moves; ``elsewhere`` as for ``find_deadlock``."""
        printed = len(self.printed)
        found = find_deadlock(self.machine, self.log, {**self.machine.absent(), **elsewhere})
        del self.printed[printed:]
        return found

    def _judge(self, before_exit: Callable[[], Sequence[Finding]]) -> FindingError | None:
        machine = self.machine
        deadlock = self.deadlock()
        found = [deadlock] if deadlock is not None else [*before_exit(), *audit_exit(machine, self.log)]
        machine.findings += [*found, *lint_copies(machine, self.log)]
        if deadlock is not None:
            return error_for(deadlock)
        errors = [finding for finding in machine.findings if finding.severity is Severity.ERROR]
        return error_for(errors[0]) if errors else None

    def _result(self, outputs: tuple[Any, ...] | None, wall_s: float) -> Result:
        machine = self.machine
        now = machine.env.now if machine.ended_ps is None else machine.ended_ps
        ended = max((core.exited_ps if core.exited_ps >= 0 else core.now for core in machine.cores), default=0)
        return Result(
            outputs=outputs,
            time=Duration(max(ended, now if outputs is None else 0)),
            findings=tuple(machine.findings),
            calls=tuple(_record(call) for call in machine.calls),
            trace=self.log,
            place=self.place,
            seed=self.options.seed,
            token=machine.token,
            wall_s=wall_s,
            links={machine.wiring.link_name(index): link for index, link in machine.wiring.links.items()},
            hbms={hbm.name: hbm for hbm in machine.wiring.hbms.values()},
            cores=tuple(machine.cores),
            rates=machine.fabric.rate_log,
            printed=tuple(self.printed),
        )


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    found = method()
    if found is not None:
        found()


def _machine(options: RunOptions, place: Place, observers: Sequence[Observer]) -> Machine:
    """The plain machine; one with a schedule and faults only where there are any."""
    where = place.slice, place.chip, place.axis_sizes, place.devices
    how: dict[str, Any] = {
        "data": options.data, "on_finding": options.on_finding, "observers": observers,
        "max_events": options.max_events, "max_ps": options.max_ps, "cores_of_device": place.cores,
    }  # fmt: skip
    steering = options.steering(place.slice)
    if steering is None:
        return Machine(*where, ways=place.ways, **how)
    from tpusim.machine.scheduled import ScheduledMachine

    schedule, faults = steering
    return ScheduledMachine(*where, schedule=schedule, faults=faults, **how)


def _record(call: Call) -> CallRecord:
    return CallRecord(call.name, Duration(max(0, call.end_ps - (call.begin_ps or 0))))
