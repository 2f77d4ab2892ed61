"""Every kernel of ``kernels/`` with one fault put in by rule, native and captured: who finds it?

    python benchmarks/mutants.py [--kernels NAME ...] [--rules RULE ...] [--limit 200] [--jobs 2] [--no-interpret]

A case is a mutant on a mesh (4, 5 and 8 devices along one axis, 2x2 and 2x4 along two, 1 for local kernels), one way
in, two calls in a row.  Judged: ``verify`` with the comparison of data; the checks on the observed schedule with the
same comparison; and, for a seeded sample, JAX's TPU interpret mode with ``detect_races``, in a process with a time-out.
Columns of the table, by rule:

* ``found``: verify says ``refuted`` or ``not-proven`` (``smaller``: only on the smallest mesh the kernel has);
* ``equal``: proven, 150 random schedules bring no finding and the right data, and so does every state on the smallest
  mesh where the explorer gets to the end of them: nothing is wrong (cases that are the same program, which the text of
  their operations tells, are settled together);
* ``open``: proven, and not settled yet;
* ``missed``: proven, and something is wrong all the same: a bug of the judges;
* ``invalid``: the mutant is no program (a name that is not there yet, say); not counted as a case;
* ``observed`` and ``interpret``: of those that are something wrong, how many these find.

Cases go round all rules of all kernels, both ways in, in an order drawn from ``--seed``; ``--limit`` ends it after so
many cases.
Each case is a line of ``--results``; a case that stands there is not judged again, so an interrupted run goes on.
"""

import argparse
import hashlib
import json
import multiprocessing
import random
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from mutation.judge import guarded, interpreted, judge, meshes, settle
from mutation.rules import ONE_MORE_CALL, RULES, UNCHANGED, Mutant, mutants

from tpusim.kernel_file import load_file

KERNELS = Path(__file__).parents[1] / "kernels"
WAYS = ("native", "captured")
WRONG = ("found", "found smaller", "missed", "crash")


def cases(names, rules, seed):
    """All cases in their order: each a mutant, its kernel, mesh and way; the kernels themselves come first."""
    found = []
    for name in names:
        path = KERNELS / f"{name}.py"
        kernel, text = load_file(str(path)).kernel, path.read_text(encoding="utf-8")
        by_rule = {UNCHANGED: [Mutant(UNCHANGED, 1, "", "", text)], **mutants(text, kernel.fn.__name__)}
        for rule, of_rule in by_rule.items():
            if rule not in rules:
                continue
            for way in WAYS:
                own = [(mutant, name, mesh, way) for mutant in of_rule for mesh in meshes(name, kernel.axes)]
                random.Random(f"{seed} {name} {rule} {way}").shuffle(own)
                found += [(rule != UNCHANGED, place, name, rule, case) for place, case in enumerate(own)]
    return [case for *_, case in sorted(found, key=lambda item: item[:4])]


def key_of(mutant, name, mesh, way):
    """What names a case in the results."""
    digest = hashlib.sha256(f"{mutant.rule} {mutant.calls}\n{mutant.text}".encode()).hexdigest()[:12]
    return f"{name} {'x'.join(str(size) for size in mesh.values())} {way} {digest}"


def run(todo, results, seed, jobs, known):
    """Judge what is not known yet, then settle each different program that was proven; each is written as it comes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool, results.open("a", encoding="utf-8") as file:
        for function, groups in ((judge, unjudged), (settle, unsettled)):
            waiting = {pool.submit(guarded, function, *group[0], seed): group for group in groups(todo, known)}
            started = time.perf_counter()
            for count, done in enumerate(as_completed(waiting), 1):
                for case in waiting[done]:
                    write_row(file, known, case, done.result())
                if count % 50 == 0:
                    took = time.perf_counter() - started
                    print(f"{function.__name__}: {count} of {len(waiting)}, {took:.0f} s", file=sys.stderr)


def unjudged(todo, known):
    """The cases that are to be judged, each alone."""
    return [[case] for case in todo if key_of(*case) not in known]


def unsettled(todo, known):
    """The cases that are to be settled, those of one program together, a native one of them first.

    A mutant may be the same program as its kernel, which alone is not settled.
    """
    groups, came = {}, {}
    for case in todo:
        row = known[key_of(*case)]
        if row.get("verify") == "proven":
            name = f"{case[1]} {case[2]} {case[0].calls} {row['program'] or key_of(*case)}"
            if row["outcome"] == "proven":
                groups.setdefault(name, []).append(case)
            else:
                came[name] = {key: row[key] for key in ("outcome", "states", "truth") if key in row}
    for name in came.keys() & groups.keys():
        for case in groups.pop(name):
            known[key_of(*case)] |= came[name]
    mutated = (group for group in groups.values() if any(case[0].rule != UNCHANGED for case in group))
    return [sorted(group, key=lambda case: case[3] == "captured") for group in mutated]


def write_row(file, known, case, row):
    """Keep a case's row, in the file too."""
    mutant, name, mesh, way = case
    key = key_of(*case)
    about = {"rule": mutant.rule, "kernel": name, "line": mutant.line, "was": mutant.was, "into": mutant.into}
    known[key] = {"key": key, **about, "mesh": mesh, "way": way, **known.get(key, {}), **row}
    file.write(json.dumps(known[key]) + "\n")
    file.flush()


def run_interpret(todo, results, known, sample, seed, timeout_s):
    """Run a sample of the cases through interpret mode, one at a time: it wants every core."""
    drawn = [c for c in todo if c[3] == "native" and c[0].rule != UNCHANGED and is_wrong(known.get(key_of(*c), {}))]
    random.Random(seed).shuffle(drawn)
    with results.open("a", encoding="utf-8") as file:
        for case in drawn[:sample]:
            if "interpret" not in known[key_of(*case)]:
                mutant, name, mesh, _ = case
                write_row(file, known, case, interpreted(mutant, name, mesh, timeout_s))


def is_wrong(row):
    """Whether a case is a program with a fault."""
    return row.get("outcome") in WRONG


def table(rows):
    """The lines of the table, then those of each case that needs a look."""
    titles = ("cases", "found", "smaller", "equal", "open", "missed", "crash", "invalid", "observed", "interpret")
    yield f"{'rule':<24}" + "".join(f"{title:>10}" for title in titles)
    total = Counter()
    for rule in (UNCHANGED, *RULES, ONE_MORE_CALL):
        counts = Counter()
        for row in rows:
            if row["rule"] == rule:
                counts.update(counted(row))
        if counts:
            yield line(rule, counts)
        if rule != UNCHANGED:
            total.update(counts)
    yield line("total", total)
    for row in rows:
        is_kernel = row["rule"] == UNCHANGED
        is_proven = row.get("verify") == "proven" and row["outcome"] != "missed"
        if not is_proven if is_kernel else needs_a_look(row):
            yield described(row)


def needs_a_look(row):
    """Whether a mutant is not simply found."""
    return row["outcome"] in ("missed", "crash", "equivalent") or row.get("verify") == "not-proven"


def counted(row):
    """What a row adds to the table."""
    is_proven_kernel = row["rule"] == UNCHANGED and row["outcome"] == "proven"
    outcome = "equivalent" if is_proven_kernel else row["outcome"]
    yield outcome
    if outcome != "invalid":
        yield "cases"
    if is_wrong(row):
        yield from ("observed",) * bool(row.get("observed"))
        if "interpret" in row:
            yield "sample"
            yield from ("interpret",) * (row["interpret"] != "nothing")


def line(rule, counts):
    """One rule of the table."""
    names = ("cases", "found", "found smaller", "equivalent", "proven", "missed", "crash", "invalid", "observed")
    sample = f"{counts['interpret']}/{counts['sample']}"
    return f"{rule:<24}" + "".join(f"{counts[name]:>10}" for name in names) + f"{sample:>10}"


def described(row):
    """A case that was not simply found, with its source line."""
    change = f"{' '.join(row['was'].split())[:60]!r} -> {' '.join(row['into'].split())[:80]!r}"
    said = row.get("why", "")
    why = row.get("truth") or (said if isinstance(said, str) else "; ".join(said))
    place = f"kernels/{row['kernel']}.py:{row['line']}"
    mesh = "x".join(str(size) for size in row["mesh"].values())
    note = f" [{why[:200]}]" if why else ""
    return f"{row['outcome']:<11}{row['rule']}, {place} on {mesh} {row['way']}: {change}{note}"


def main():
    """Judge the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = sorted(path.stem for path in KERNELS.glob("*.py"))
    rules = (UNCHANGED, *RULES, ONE_MORE_CALL)
    parser.add_argument("--kernels", nargs="*", default=every, choices=every)
    parser.add_argument("--rules", nargs="*", default=rules, choices=rules)
    parser.add_argument("--limit", type=int, help="cases to judge at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-interpret", action="store_true")
    parser.add_argument("--sample", type=int, default=200, help="cases for interpret mode")
    parser.add_argument("--timeout", type=float, default=20, help="seconds of one of them, once it is compiled")
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"))
    arguments = parser.parse_args()
    todo = cases(arguments.kernels, arguments.rules, arguments.seed)[: arguments.limit]
    known = {}
    if arguments.results.exists():
        for text in arguments.results.read_text(encoding="utf-8").splitlines():
            known[json.loads(text)["key"]] = json.loads(text)
    print(f"seed {arguments.seed}, {len(todo)} cases, results in {arguments.results}", file=sys.stderr)
    run(todo, arguments.results, arguments.seed, arguments.jobs, known)
    if not arguments.no_interpret:
        run_interpret(todo, arguments.results, known, arguments.sample, arguments.seed, arguments.timeout)
    print("\n".join(table([known[key_of(*case)] for case in todo if key_of(*case) in known])))


if __name__ == "__main__":
    main()
