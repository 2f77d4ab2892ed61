"""Shared by all tests: Hypothesis profiles, one BLAS thread, the command line, interpret mode one run at a time."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The workers of pytest-xdist and all child processes inherit it.  With one BLAS thread a core each, two
# workers spin for each other's cores: up to 30 times slower on a small computer.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, max_examples=60)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without jax, the tests that need it are skipped and the rest must pass."""
    if find_spec("jax") is None:
        for item in items:
            if item.get_closest_marker("jax"):
                item.add_marker(pytest.mark.skip(reason="needs jax: pip install 'tpusim[pallas]'"))


@pytest.fixture
def tpusim(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command line: arguments to exit status, standard output and standard error."""
    from tpusim.cli import main

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return int(exit_.value.code or 0), out, err

    return call


@contextmanager
def _turn() -> Iterator[None]:
    with Path(tempfile.gettempdir(), f"tpusim-interpret-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def interpret_turn() -> Callable[[], AbstractContextManager[None]]:
    """A context manager, held by one at a time over all workers: several devices want every core there is."""
    return _turn


@pytest.fixture
def interpret_lock() -> Iterator[None]:
    """Held by one test at a time over all workers: interpret mode wants every core of a small computer."""
    with _turn():
        yield


@pytest.fixture
def interpret(interpret_lock: None) -> Any:
    """``interpret_in_subprocess``, one run at a time over all workers.

    JAX's interpret mode now and then hangs on few cores in kernels without a fault (its devices block the
    threads that their own callbacks need), so a time-out is tried again; a kernel that deadlocks hangs
    every time.
    """
    from tpusim.pallas import InterpretTimeoutError, interpret_in_subprocess

    def run(*arguments: Any) -> Any:
        for _ in range(3):
            try:
                return interpret_in_subprocess(*arguments, timeout_s=60)
            except InterpretTimeoutError as error:
                last = error
        raise last

    return run
