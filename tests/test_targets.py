"""Which figures of speed there are targets for, and that they are read from the tables as they are printed."""

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import proof
import vs_interpret
from targets import TARGETS, Target, summary

TABLE = """\
case                 interpret ms   off ms    on ms     off      on        aim   first     us a copy
all-gather-8               400.0      2.00     8.00    200x     50x   100x/50x    2.5x       3.1/9.9
all-gather-8-1MB           400.0     40.00    50.00     10x      8x    15x/12x    1.5x       3.1/9.9
paged-gather-2048        60000.0      20.0    40.00   3000x   1500x    -/1000x    9.0x      5.0/10.0
paged-gather-20000             -     200.0   400.00                       flat               5.0/11.0
us-a-copy                      -     20.00    40.00                    8/16 us               4.9/9.8
flash               failed: killed
""".splitlines()


PROOFS = [name for name, *_ in proof.cases()]


def reached(**fields):
    return [target.reached(TABLE) for target in TARGETS if all(getattr(target, k) == v for k, v in fields.items())]


def test_figures_are_read_from_the_rows_of_their_names():
    assert reached(part="captured", row="all-gather-8 ") == [200, 50]
    assert reached(part="captured", row="paged-gather-2048 ") == [1500]
    assert reached(part="captured", row="paged-gather-20000 ") == [1.1]
    assert reached(part="captured", row="us-a-copy ") == [4.9, 9.8]
    assert reached(part="captured", row="flash ") == [None]
    (first,) = reached(what="trace, lower, first run, the least")
    assert first == 1.5


def test_the_table_says_what_is_met_and_what_was_not_measured():
    lines = summary({"captured": TABLE}).splitlines()
    assert len(lines) == 2 + sum(target.part == "captured" for target in TARGETS)
    row = next(line for line in lines if "ring all-gather 8x128, 8 devices, checks off" in line)
    assert row.endswith("| at least 100x faster than interpret mode | 200 | yes |")
    assert any("first run" in line and line.endswith("| 1.5 | **no** |") for line in lines)
    assert any("flash" in line and line.endswith("| not measured |  |") for line in lines)
    assert all(line.endswith("| not measured |  |") for line in summary({"pod": []}).splitlines()[2:])


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.part}, {target.what}")
def test_every_target_has_a_row(target: Target):
    """Where a benchmark has a list of its rows."""
    names = {"captured": list(vs_interpret.CASES), "proof": PROOFS}.get(target.part)
    for row in filter(None, (target.row, target.over)):
        re.compile(row)
        assert names is None or any(re.match(row, f"{name} ") for name in names)
