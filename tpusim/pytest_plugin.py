"""``pytest --tpusim v5e:2x2``: the options, and nothing else unless they are given.

Every run of pytest in an environment with tpusim imports this module, so it brings in nothing but pytest.
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--tpusim`` and ``--tpusim-set``."""
    group = parser.getgroup("tpusim", "Pallas TPU kernels on a simulated machine")
    group.addoption("--tpusim", metavar="SLICE", help="run the Pallas kernels of all tests on this slice: v5e:2x2")
    group.addoption(
        "--tpusim-set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a chip number: ici.link_bandwidth=90e9; repeatable",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before a conftest can import jax: declare the devices."""
    options = early_config.known_args_namespace
    if options.tpusim is None:
        return
    from tpusim.simulated_tests import SimulatedTests

    early_config.pluginmanager.register(SimulatedTests(options.tpusim, options.tpusim_set), "tpusim_tests")
