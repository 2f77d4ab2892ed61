"""Kernels others wrote and published, captured: right results, and no finding that is not known to be true.

Those of JAX run here.  Those of other packages run in a child process, as in `benchmarks/real_kernels.py`, and
are skipped with the reason where the package cannot be had.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tpusim

pytest.importorskip("jax", reason="needs jax: pip install 'tpusim[pallas]'")

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from published.case import differs, load  # noqa: E402  # the path is above

pytestmark = [pytest.mark.jax, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def quick(package):
    return [case for case in load(package).values() if case.is_quick]


@pytest.mark.parametrize("case", quick("jax"), ids=lambda case: case.name)
def test_kernels_of_jax(case):
    built = case.build(case.abstract_mesh())
    run = tpusim.pallas.simulate(built.fn, slice=case.slice, on_finding="record")
    got = run(*built.arrays)
    keep = built.keep or (lambda results: results)
    assert differs(keep(got), keep(built.want), built.tolerance) == ""
    assert {finding.kind for finding in run.result.findings} == set(case.findings)
    assert run.result.time > 0


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the packages need Python 3.12")
@pytest.mark.parametrize(
    ("package", "case"),
    [(package, case) for package in ("tokamax", "tpu_inference") for case in quick(package)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_kernels_of_other_packages(package, case):
    command = [sys.executable, str(BENCHMARKS / "real_kernels.py"), "--child", package, case.name, "simulate"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    if row["outcome"] == "missing":
        pytest.skip(row["why"])
    assert row["outcome"] == "right", row["why"]
    assert set(row["kinds"]) == set(case.findings)


def test_the_difference_of_results_is_told():
    import numpy as np

    x = np.arange(4, dtype=np.float32)
    assert differs((x, None), (x, None), 0) == ""
    assert differs((x, x), (x, None), 0) == ""
    assert differs(x + 1, x, 0.1) == "result 0: 4 of 4 elements differ, by up to 1"
    assert differs(np.full(4, np.nan, np.float32), x, 9) == "result 0: 4 of 4 elements differ, by up to NaN"
    assert differs(x[:2], x, 0) == "result 0 has shape (2,) instead of (4,)"
    assert differs((x,), (x, x), 0) == "1 results instead of 2"
    assert differs(np.array([1, 2]), np.array([1, 3]), 9) == "result 0: 1 of 2 elements differ"
