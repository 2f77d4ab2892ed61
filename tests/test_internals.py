"""JAX's internals stay in one package, and a jax that has others costs an error where they are needed, not before."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tpusim

ROOT = Path(tpusim.__file__).parent
INSIDE = ROOT / "pallas" / "internals"
OUTSIDE = [path for path in sorted(ROOT.rglob("*.py")) if INSIDE not in path.parents]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names() -> set[str]:
    """Private names that tpusim defines: functions, classes, attributes of ``self``, module-level names."""
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
                found.add(node.attr)
    return found


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def test_nothing_else_imports_a_private_module_of_jax():
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in OUTSIDE
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [f"{node.module}.{alias.name}" for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else [node.value]
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            else []
        )
        if name.split(".")[0] in ("jax", "jaxlib") and any(is_private(part) for part in name.split("."))
    ]
    assert not wrong


def test_nothing_else_touches_a_private_name_of_jax():
    mine = own_names()
    standard = {"_make", "_asdict", "_replace", "_fields"}  # of named tuples
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.attr}"
        for path in OUTSIDE
        if "pallas" in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_self(node.value)
        if node.attr not in mine | standard
    ]
    assert not wrong


@pytest.mark.parametrize("path", sorted(INSIDE.glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_each_module_names_the_versions_it_was_checked_on(path):
    text = path.read_text()
    assert ("Checked with jax 0.10.2 (Python 3.11) and 0.12.0.1 (Python 3.13)" in text) == (path.stem != "versions")
    assert "jax._src" not in [node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]


NEWER = """
import importlib.abc, sys, warnings
import numpy as np
import jax, jax.experimental.pallas as pl
from jax.experimental.pallas import tpu as pltpu

jax.__version__ = "99.0.1"

class Gone(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in gone:
            raise ModuleNotFoundError(name)

gone = {gone!r}
for name in gone:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Gone())

import tpusim.errors, tpusim.pallas
import tpusim.pallas.capture
import tpusim.pallas.inplace

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1

def program(x):
    return pl.pallas_call(kernel, out_shape=x)(x)

with warnings.catch_warnings(record=True) as met:
    warnings.simplefilter("always")
    run = tpusim.pallas.simulate(program)
print(*[warning.message for warning in met])
try:
    print(float(run(np.ones((8, 128), np.float32)).sum()))
except tpusim.errors.NotModelledError as error:
    print("NotModelledError", error)
try:
    with tpusim.pallas.intercept("v5e:1x1"):
        print(float(jax.jit(program)(np.ones((8, 128), np.float32)).sum()))
except tpusim.errors.NotModelledError as error:
    print("NotModelledError", error)
"""


def on_a_newer_jax(*gone: str) -> list[str]:
    code = NEWER.replace("{gone!r}", repr(gone))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


WARNING = (
    "tpusim was checked with jax up to 0.12.0.1; this is 99.0.1. Captured programs may meet primitives or parameters "
    "it does not know."
)


def missing(name: str) -> str:
    return (
        f"NotModelledError jax 99.0.1 has no {name}, which tpusim needs here; it was checked with jax 0.10.2, 0.12.0.1"
    )


@pytest.mark.jax
def test_a_newer_jax_gives_a_warning():
    assert on_a_newer_jax() == [WARNING, "2048.0", "2048.0"]


@pytest.mark.jax
def test_a_jax_without_what_only_interception_needs():
    interpreter = "jax._src.pallas.mosaic.interpret.interpret_pallas_call"
    assert on_a_newer_jax(interpreter) == [WARNING, "2048.0", missing(interpreter)]


@pytest.mark.jax
def test_a_jax_without_what_no_ordinary_kernel_needs():
    assert on_a_newer_jax("jax._src.state.discharge", "jax._src.pallas.mosaic.core")[:2] == [WARNING, "2048.0"]
