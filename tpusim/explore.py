"""Many schedules of one program, for where the proof over all of them does not apply.

The adversaries come first, then in turn an order drawn at random, times drawn within the chip's intervals, and one
operation or leg held until nothing else can move, drawn from those of the first run: holding the right one shows the
wrong data of a race where random orders rarely do.  What is found stands with the token that shows it again.  Nothing
found is no proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Any, NamedTuple

from tpusim.errors import OptionError
from tpusim.faults import link_text
from tpusim.findings import CONTINUABLE, Finding, Severity
from tpusim.judges.witness import name_copy, name_operation
from tpusim.program import Kernel
from tpusim.result import Result
from tpusim.schedules import Place
from tpusim.topology import format_coordinates

_MOST_OF_A_KIND = 4
"""Slow devices, and slow links, that are tried: the first and the last of them."""


class Trial(NamedTuple):
    """One run: its result (``None`` where it did not get that far), its findings, and what is wrong with its data."""

    result: Result | None
    findings: Sequence[Finding] = ()
    problem: str | None = None


class Wrong(NamedTuple):
    """Something wrong: a finding of severity error or wrong data, first seen under ``token`` (``None``: default)."""

    text: str
    token: str | None
    finding: Finding | None = None


@dataclass
class Exploration:
    """What many schedules showed.

    ``tried``: their tokens, the default one first (``default``).  ``wrong``: each different thing once.
    ``is_vacuous``: the program starts no copy and sends no remote signal, so there was nothing to delay.
    """

    tried: list[str] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)
    is_vacuous: bool = False
    seed: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing wrong was seen."""
        return not self.wrong

    @property
    def text(self) -> str:
        """One line on what was tried."""
        if self.is_vacuous:
            return "nothing was delayed: no copy and no remote signal, so there is one schedule only"
        count = len(self.tried)
        runs = f"{count} schedule{'s' if count != 1 else ''}, seed {self.seed}"
        if self.ok:
            return f"nothing wrong in {runs}; that is no proof"
        return f"{len(self.wrong)} different thing{'s' if len(self.wrong) != 1 else ''} wrong in {runs}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return {
            "ok": self.ok,
            "seed": self.seed,
            "nothing_delayed": self.is_vacuous,
            "tried": self.tried,
            "wrong": [
                {"text": w.text, "token": w.token, "finding": w.finding.as_dict() if w.finding else None}
                for w in self.wrong
            ],
        }


def explore(trial: Callable[[str], Trial], runs: int, seed: int = 0) -> Exploration:
    """Run ``trial`` under the default schedule and ``runs - 1`` others; ``trial`` takes the option ``schedule``.

    Stops early where the default schedule alone cannot come to its end, or there is nothing to delay.  Raises
    ``OptionError`` for less than one run.
    """
    if runs < 1:
        raise OptionError(f"explore needs at least one run, not {runs}")
    made = Exploration(seed=seed)
    seen: set[Any] = set()
    first = trial("default")
    _note(made, seen, "default", first)
    if first.result is None or any(f.severity is Severity.ERROR and f.kind not in CONTINUABLE for f in first.findings):
        return made
    made.is_vacuous = not _can_differ(first.result)
    for schedule in islice(_suggestions(first.result, seed), 0 if made.is_vacuous else runs - 1):
        _note(made, seen, schedule, trial(schedule))
    return made


def _note(made: Exploration, seen: set[Any], schedule: str, trial: Trial) -> None:
    token = trial.result.token if trial.result is not None else None
    made.tried.append(token or schedule)
    for finding in trial.findings:
        if finding.severity is not Severity.ERROR:
            continue
        key = finding.kind, finding.where, finding.other, finding.argument
        if key not in seen:
            seen.add(key)
            made.wrong.append(Wrong(str(finding), token, finding))
    if trial.problem is not None and "data" not in seen:
        seen.add("data")
        made.wrong.append(Wrong(f"wrong data: {trial.problem}", token))


def _can_differ(result: Result) -> bool:
    """Whether anything happens in an order that the program alone does not fix."""
    return bool(result.trace.copies) or any(s.semaphore.device != s.core.device for s in result.trace.signals)


def _suggestions(result: Result, seed: int) -> Iterator[str]:
    """Schedules without end, the most telling first."""
    yield from ("lazy", "newest", "split", "eager")
    machine = result.cores[0].machine
    for device in _ends(range(len(result.cores))):
        yield f"slow-device:{format_coordinates(machine.coordinates(device))}"
    for name in _ends(sorted(result.links)):
        yield f"slow-link:{link_text(name.removeprefix('link '))}"
    random = Random(seed)
    places = _places(result)
    random.shuffle(places)
    number = 0
    while True:
        yield f"shuffle:{seed + number}"
        if places:
            yield f"hold:{places.pop()()}"
        yield f"random:{seed + number}"
        number += 1


def _ends(items: Sequence[Any]) -> Sequence[Any]:
    half = _MOST_OF_A_KIND // 2
    return items if len(items) <= _MOST_OF_A_KIND else [*items[:half], *items[-half:]]


def _places(result: Result) -> list[Callable[[], Place]]:
    """Every place of a run that can be held; named when it is."""
    log, machine = result.trace, result.cores[0].machine
    found: list[Callable[[], Place]] = []
    for copy in log.copies:
        for leg in ("reader", "writer") if copy.dst_region.nbytes else ():
            found.append(lambda copy=copy, leg=leg: Place(name_copy(machine, log, copy), leg))  # type: ignore[misc]
    for core in machine.cores:
        waits = sum(wait.core is core for wait in log.waits)
        signals = sum(signal.core is core for signal in log.signals)
        for kind, count in (("wait", waits), ("signal", signals)):
            for number in range(1, count + 1):
                found.append(
                    lambda d=core.device, k=kind, n=number: Place(name_operation(machine, log, d, k, n))  # type: ignore[misc]
                )
    return found


def simulate_any(kernel: Any, arrays: Sequence[Any], options: Mapping[str, Any]) -> Result:
    """Simulate a :class:`tpusim.Kernel`, or a JAX function, which brings its own mesh."""
    if isinstance(kernel, Kernel):
        return kernel.simulate(*arrays, **options)
    from tpusim.pallas import simulate

    program = simulate(kernel, **options)
    program(*arrays)
    result: Result = program.result
    return result
