"""A kernel with one fault put in by rule is refuted; the kernel itself, and a change that is none, are proven."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tpusim.kernel_file import load_file

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from mutants import UNCHANGED, cases, key_of, needs_a_look, table, unsettled
from mutation.judge import guarded, judge, meshes, settle
from mutation.rules import ONE_MORE_CALL, RULES, Mutant, mutants

KERNELS = Path(__file__).parents[1] / "kernels"
FILES = sorted(KERNELS.glob("*.py"))
FOUND = [
    ("right_permute", "drop wait", "copy.wait()", "lifetime"),
    ("right_permute", "drop barrier", "semaphore_wait(barrier)", "leak"),
    ("right_permute", "drop copy", "copy.start()", "deadlock"),
    ("right_permute", "wait for fewer bytes", "copy", "leak"),
    ("right_permute", "wrong neighbour", "right", "lifetime"),
    ("right_permute", "wait before start", "copy.start()", "deadlock"),
    ("paged_gather", "swap slot", "i % SLOTS", "race"),
    ("paged_gather", "off by one", "indices[i]", "wrong data"),
    ("ring_reduce_scatter", "drop signal", "semaphore_signal(credits.at[way], device_id=senders[way])", "deadlock"),
    ("ring_reduce_scatter", "share a semaphore", "way", "race"),
    ("ring_reduce_scatter", "reuse collective_id", "credits.at[way]", "lifetime"),
    ("ring_reduce_scatter", "overwrite before wait", "sends[way].wait_send()", "race"),
    ("ring_reduce_scatter", "early signal", "sends[way].wait_send()", "race"),
]
"""Kernel, rule, the text that is changed first, and what verify finds."""


def of_rule(name: str, rule: str, was: str) -> Mutant:
    path = KERNELS / f"{name}.py"
    found = mutants(path.read_text(), load_file(str(path)).kernel.fn.__name__)[rule]
    return next(mutant for mutant in found if mutant.was == was)


def judged(mutant: Mutant, name: str, way: str = "native") -> dict[str, Any]:
    return judge(mutant, name, meshes(name, ("x",))[0], way, seed=0)


@pytest.mark.parametrize(("name", "rule", "was", "kind"), FOUND, ids=[rule for _, rule, _, _ in FOUND])
def test_a_mutant_of_each_rule_is_refuted(name: str, rule: str, was: str, kind: str) -> None:
    row = judged(of_rule(name, rule, was), name)
    assert row["outcome"] == "found"
    assert row["verify"] == "refuted"
    assert row["why"][0].startswith(kind)


def test_every_rule_is_tried() -> None:
    assert {rule for _, rule, _, _ in FOUND} == set(RULES)


@pytest.mark.jax
def test_the_same_mutant_captured() -> None:
    native, captured = (judged(of_rule(*FOUND[2][:3]), "right_permute", way) for way in ("native", "captured"))
    assert captured["why"][0].startswith("deadlock")
    assert captured["operations"] == native["operations"]


@pytest.mark.jax
@pytest.mark.parametrize("name", ["right_permute", "paged_gather"])
def test_a_program_is_the_same_both_ways_in_and_another_one_is_another(name: str) -> None:
    """What is proven is settled once for all cases of one program."""
    kernel = Mutant(UNCHANGED, 1, "", "", (KERNELS / f"{name}.py").read_text())
    native, captured = (judged(kernel, name, way)["program"] for way in ("native", "captured"))
    assert native == captured
    assert judged(of_rule(name, ONE_MORE_CALL, "2 calls"), name)["program"] != native


def test_cases_of_one_program_are_settled_once_and_an_unchanged_kernel_alone_is_not() -> None:
    todo = cases(["right_permute"], (UNCHANGED, "share a semaphore"), seed=0)
    rows = {key_of(*case): {"outcome": "proven", "verify": "proven", "program": "one"} for case in todo}
    groups = unsettled(todo, rows)
    assert [len({str(case[2]) for case in group}) for group in groups] == [1, 1, 1]  # a program has one mesh
    assert sum(map(len, groups)) == len(todo)
    assert [group[0][3] for group in groups] == ["native"] * 3
    rows[key_of(*todo[-1])]["outcome"] = "equivalent"
    assert len(unsettled(todo, rows)) == 2
    assert sum(row["outcome"] == "equivalent" for row in rows.values()) == len(todo) / 3
    assert unsettled([case for case in todo if case[0].rule == UNCHANGED], rows) == []


def test_one_more_call_changes_nothing() -> None:
    assert judged(of_rule("right_permute", ONE_MORE_CALL, "2 calls"), "right_permute")["outcome"] == "proven"


def test_a_change_that_is_no_fault_is_settled_as_equivalent() -> None:
    shared = of_rule("right_permute", "share a semaphore", "send_sem")  # wait() takes the bytes of both legs anyway
    assert judged(shared, "right_permute")["outcome"] == "proven"
    settled = settle(shared, "right_permute", {"x": 4}, "native", 0)
    assert settled == {"states": "none bad", "outcome": "equivalent"}


def test_the_states_of_the_smallest_mesh_show_a_fault() -> None:
    dropped = of_rule("right_permute", "drop wait", "copy.wait()")
    assert settle(dropped, "right_permute", {"x": 4}, "native", 0)["outcome"] == "found smaller"


def test_a_mutant_that_is_no_program_is_told_apart() -> None:
    nameless = Mutant(
        "", 1, "", "", (KERNELS / "right_permute.py").read_text().replace("copy.start()", "copied.start()")
    )
    assert judged(nameless, "right_permute")["outcome"] == "invalid"
    assert guarded(judge, nameless, "no_such_kernel", {"x": 4}, "nowhere", 0)["outcome"] in ("invalid", "crash")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_mutants_differ_in_one_place_and_are_python(file: Path) -> None:
    text = file.read_text()
    found = mutants(text, load_file(str(file)).kernel.fn.__name__)
    every = [mutant for of_one in found.values() for mutant in of_one if mutant.rule != ONE_MORE_CALL]
    assert len(every) > 10
    for mutant in every:
        ast.parse(mutant.text)
        assert mutant.text != text
        assert mutant.text.splitlines()[: mutant.line - 1] == text.splitlines()[: mutant.line - 1]


def test_the_order_of_cases_is_the_seed_s_and_kernels_come_first() -> None:
    names = ["barrier", "right_permute"]
    first, again = (cases(names, (UNCHANGED, *RULES), seed=1) for _ in range(2))
    keys = [key_of(*case) for case in first]
    assert keys == [key_of(*case) for case in again]
    assert len(set(keys)) == len(keys)
    assert [case[0].rule == UNCHANGED for case in first] == sorted(
        (c[0].rule == UNCHANGED for c in first), reverse=True
    )
    assert keys != [key_of(*case) for case in cases(names, (UNCHANGED, *RULES), seed=2)]


def test_the_table_counts_and_names_what_was_missed() -> None:
    row = {"rule": "drop wait", "kernel": "barrier", "line": 7, "was": "copy.wait()", "into": "None", "mesh": {"x": 4}}
    rows = [
        row | {"way": "native", "outcome": "missed", "verify": "proven", "truth": "shuffle:3: race", "observed": False},
        row | {"way": "captured", "outcome": "found", "verify": "refuted", "observed": True, "interpret": "nothing"},
    ]
    assert [needs_a_look(each) for each in json.loads(json.dumps(rows))] == [True, False]
    titles, counts, total, missed = table(rows)
    assert dict(zip(titles.split()[1:], counts.split()[2:], strict=True)) == {
        "cases": "2", "found": "1", "smaller": "0", "equal": "0", "open": "0", "missed": "1", "crash": "0",
        "invalid": "0", "observed": "1", "interpret": "0/1",
    }  # fmt: skip
    assert total.split()[1:] == counts.split()[2:]
    assert missed == (
        "missed     drop wait, kernels/barrier.py:7 on 4 native: 'copy.wait()' -> 'None' [shuffle:3: race]"
    )
