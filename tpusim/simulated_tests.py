"""An unmodified test suite whose Pallas TPU kernels run on the simulated machine: ``pytest --tpusim v5e:2x2``.

One interception covers the whole session, collection and fixtures too, so that functions which several tests
call are compiled once.  The options are those of
``tpusim.pytest_plugin``, which imports this where they are given.
"""

from __future__ import annotations

import shlex
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import pytest

from tpusim.chips import parse_set
from tpusim.errors import FindingError, OptionError
from tpusim.explore import simulate_any
from tpusim.findings import Finding
from tpusim.result import Result
from tpusim.units import json_safe


class SimulatedTests:
    """The plugin: errors of kernels fail the test that called them; a table of all calls ends the session."""

    def __init__(self, slice_: str, settings: Sequence[str], more: Mapping[str, Any]) -> None:
        from tpusim.pallas import intercept_process

        self._slice = slice_
        self._how = ", ".join(f"{name} {value}" for name, value in more.items())
        try:
            options = {"slice": slice_, "set": dict(parse_set(text) for text in settings), **more}
            self._sim = intercept_process(options)
        except OptionError as error:
            raise pytest.UsageError(f"--tpusim: {error}") from None
        self._is_running = False
        self._first = 0
        self._rows: list[dict[str, Any]] = []

    def pytest_report_header(self) -> str:
        """Say so."""
        return f"tpusim: Pallas kernels run on a simulated {self._slice}{', ' if self._how else ''}{self._how}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Take over, but not in the process that only hands tests to the workers of pytest-xdist."""
        if not session.config.pluginmanager.hasplugin("dsession"):
            self._sim.__enter__()
            self._is_running = True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Give everything back."""
        if self._is_running:
            self._is_running = False
            self._sim.__exit__(None, None, None)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Remember where a test's calls begin."""
        self._first = len(self._sim.calls)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Fail a test that went on after an error of a kernel."""
        outcome = yield
        problems = dict.fromkeys(text for call in self._sim.calls[self._first :] for text in call.problems())
        if problems:
            pytest.fail("\n".join(["tpusim found, in kernels that this test called:", *problems]), pytrace=False)
        return outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Hand a test's calls to whoever prints the summary, perhaps another process."""
        report = yield
        if call.when == "teardown":
            report.__dict__["tpusim_calls"] = json_safe([made.as_dict() for made in self._sim.calls[self._first :]])
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the calls of a test."""
        self._rows += getattr(report, "tpusim_calls", [])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table of all calls."""
        from tpusim.pallas.calls import table

        terminalreporter.section(f"tpusim: {len(self._rows)} kernel calls on {self._slice}")
        for line in table(self._rows) if self._rows else []:
            terminalreporter.line(line)


def simulate_kernel(kernel: Any, arrays: Sequence[Any], options: Mapping[str, Any], runs: list[Any]) -> Result:
    """Run a kernel or a JAX function; ``runs`` receives seed and token."""
    seed = options.get("seed", 0)
    try:
        result = simulate_any(kernel, arrays, options)
    except FindingError as error:
        runs.append((seed, error.finding.token))
        raise
    runs.append((seed, result.token))
    return result


def failure_text(test: str, runs: Sequence[tuple[int, str | None]], finding: Finding | None) -> str:
    """What a failed test's report says of its runs: seed and token of each different one, and how to see it again."""
    lines = [] if finding is None else [finding.explain()]
    for seed, token in dict.fromkeys(runs):
        how = f" --tpusim-seed {seed}" if seed else ""
        how += f" --tpusim-replay {token}" if token else ""
        again = f"  again: pytest {shlex.quote(test)}{how}" if how else ""
        lines.append(f"seed {seed}, token {token or 'default'}{again}")
    return "\n".join(lines)
