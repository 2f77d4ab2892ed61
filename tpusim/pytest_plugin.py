"""``pytest --tpusim v5e:2x2``, and the fixture that tests of kernels take.

Every run of pytest in an environment with tpusim imports this module, so it brings in nothing but pytest: the rest
comes with the first test that asks for it.

    @pytest.mark.tpusim(slice="v5e:2x2")
    def test_ring(tpusim_simulate):
        result = tpusim_simulate(kernel, x)

``tpusim_simulate(kernel, *arrays, **run options)`` gives a :class:`tpusim.Result`; ``kernel`` may be a JAX function.
The marker's arguments are run options; its ``schedules=("lazy", "shuffle")`` runs the test once under each.  A failure
tells the seed and the token, which ``--tpusim-seed`` and ``--tpusim-replay`` take.
"""

from collections.abc import Callable, Generator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--tpusim`` and the run options that go with it."""
    group = parser.getgroup("tpusim", "Pallas TPU kernels on a simulated machine")
    group.addoption("--tpusim", metavar="SLICE", help="run the Pallas kernels of all tests on this slice: v5e:2x2")
    group.addoption(
        "--tpusim-set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a chip number: ici.link_bandwidth=90e9; repeatable",
    )
    group.addoption("--tpusim-seed", metavar="N", type=int, default=0, help="seed of every simulated run; default 0")
    group.addoption("--tpusim-schedule", metavar="NAME", help="schedule of every simulated run: shuffle, lazy, ...")
    group.addoption("--tpusim-replay", metavar="TOKEN", help="schedule and faults of a failure: its token")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers", "tpusim(schedules=(), **run options): options of tpusim_simulate; the test runs under each schedule"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before a conftest can import jax: declare the devices."""
    options = early_config.known_args_namespace
    if options.tpusim is None:
        return
    from tpusim.simulated_tests import SimulatedTests

    given = _given(options)
    early_config.pluginmanager.register(SimulatedTests(options.tpusim, options.tpusim_set, given), "tpusim_tests")


def _given(options: Any) -> dict[str, Any]:
    """Run options of the command line, those that were given."""
    found = {"seed": options.tpusim_seed, "schedule": options.tpusim_schedule, "replay": options.tpusim_replay}
    return {name: value for name, value in found.items() if value not in (None, 0)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test whose marker names schedules runs once under each."""
    if "tpusim_schedule" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("tpusim")
    schedules = () if marker is None else marker.kwargs.get("schedules", ())
    if schedules:
        metafunc.parametrize("tpusim_schedule", schedules)


@pytest.fixture
def tpusim_schedule() -> str | None:
    """The schedule of this test: one of its marker's, or ``None``."""
    return None


@pytest.fixture
def tpusim_simulate(request: pytest.FixtureRequest, tpusim_schedule: str | None) -> Callable[..., Any]:
    """``simulate(kernel, *arrays, **run options)`` with the options of the marker and of the command line."""
    from tpusim.simulated_tests import simulate_kernel

    marker = request.node.get_closest_marker("tpusim")
    options = dict(marker.kwargs) if marker is not None else {}
    options.pop("schedules", None)
    given = _given(request.config.option)
    if tpusim_schedule is not None:
        options["schedule"] = tpusim_schedule
    if "replay" in given:
        options.pop("schedule", None)
        options.pop("faults", None)
    runs: list[Any] = []
    request.node.stash[_RUNS] = runs
    chosen = {**options, **given}

    def simulate(kernel: Any, *arrays: Any, **more: Any) -> Any:
        return simulate_kernel(kernel, arrays, {**chosen, **more}, runs)

    return simulate


_RUNS = pytest.StashKey[list[Any]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell seed and token of a failed test's runs."""
    report = yield
    if report.failed and call.when == "call":
        runs = item.stash.get(_RUNS, [])
        error = None if call.excinfo is None else call.excinfo.value
        finding = getattr(error, "finding", None)
        if runs or hasattr(finding, "explain"):
            from tpusim.simulated_tests import failure_text

            report.sections.append(("tpusim", failure_text(item.nodeid, runs, finding)))
    return report
