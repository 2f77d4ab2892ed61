"""Imports point one way: every module may import its own layer and those above it in the list, and no other.

Imports inside functions count; those for type checkers alone do not.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tpusim

LAYERS = [
    ["units"],
    ["findings", "errors", "disk_cache"],
    ["specs"],
    ["chips", "topology", "bounds"],
    ["observe"],
    ["costs", "machine", "schedules", "faults"],
    ["judges", "trace"],
    ["retime"],
    ["intervals"],
    ["options"],
    ["result", "comparison", "explain", "report"],
    ["verdict"],
    ["session", "launch", "verify"],
    ["pipeline"],
    ["backend"],
    ["values", "np"],
    ["descriptors", "declare", "language"],
    ["native", "pallas"],
    ["program", "kernel_file"],
    ["job"],
    ["crosscheck", "calibrate", "sweep", "testing", "explore"],
    ["simulated_tests", "pytest_plugin", "cli"],
]
"""Modules and packages of tpusim, the ones that know least first."""

CHILD_PROCESSES = {"tpusim.pallas.run", "tpusim.pallas.compile_run", "tpusim.pallas.measure"}
"""Programs of their own, which nobody imports: they may use everything."""

HOMES = {
    "jax": {"pallas"},
    "jaxlib": {"pallas"},
    "typer": {"cli"},
    "rich": {"cli"},
    "bokeh": {"report", "sweep"},
    "simpy": {"machine"},
    "optuna": {"sweep"},
    "distributed": {"sweep"},
    "pyarrow": {"sweep"},
}
"""Libraries that only some parts may import."""

ROOT = Path(tpusim.__file__).parent
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


class Import(NamedTuple):
    """An import statement: the module it stands in, what it names, whether it runs with the module."""

    module: str
    target: str
    line: int
    is_at_top: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def part(module: str) -> str:
    """The part of tpusim a module belongs to; empty for ``tpusim`` itself."""
    return module.split(".")[1] if "." in module else ""


def statements(node: ast.AST, is_at_top: bool = True) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, is_at_top
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from statements(other, is_at_top)
        else:
            yield from statements(child, is_at_top and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def imports() -> Iterator[Import]:
    for module, path in MODULES.items():
        for statement, is_at_top in statements(ast.parse(path.read_text())):
            if isinstance(statement, ast.Import):
                names = [alias.name for alias in statement.names]
            else:
                assert not statement.level, f"{module}:{statement.lineno} is a relative import"
                inside = [f"{statement.module}.{alias.name}" for alias in statement.names]
                names = [name if name in MODULES else str(statement.module) for name in inside]
            for name in names:
                yield Import(module, name, statement.lineno, is_at_top)


IMPORTS = list(imports())


def test_every_module_has_its_place():
    placed = set(LEVEL) | {"", "py.typed"}
    assert {part(module) for module in MODULES} <= placed


def test_imports_point_one_way():
    wrong = [
        f"{found.module}:{found.line} imports {found.target}"
        for found in IMPORTS
        if found.target.startswith("tpusim")
        and found.module != "tpusim"
        and found.module not in CHILD_PROCESSES
        and part(found.target) != "pallas"
        and (found.target == "tpusim" or LEVEL[part(found.target)] > LEVEL[part(found.module)])
    ]
    assert not wrong


def test_the_pallas_package_is_imported_inside_functions_only():
    wrong = [
        f"{found.module}:{found.line} imports {found.target}"
        for found in IMPORTS
        if part(found.target) == "pallas" and part(found.module) != "pallas" and found.is_at_top
    ]
    assert not wrong


def test_libraries_stay_at_home():
    wrong = [
        f"{found.module}:{found.line} imports {found.target}"
        for found in IMPORTS
        for library in [found.target.split(".")[0]]
        if library in HOMES and part(found.module) not in HOMES[library]
    ]
    assert not wrong


def test_nobody_imports_a_child_process():
    assert not [found for found in IMPORTS if found.target in CHILD_PROCESSES]


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_tpusim_brings_no_large_library():
    use_all = "[getattr(tpusim, name) for name in [*tpusim.__all__, 'np']]"
    loaded = set(python(f"import tpusim, sys; {use_all}; print(*sys.modules)").split())
    large = {"jax", "jaxlib", "typer", "rich", "matplotlib", "plotly", "bokeh", "pandas", "scipy", "tpusim.pallas"}
    assert "tpusim.descriptors" in loaded
    assert not loaded & large
    assert "numpy" not in python("import tpusim, sys; print(*sys.modules)").split()


@pytest.mark.parametrize("absent", ["jax", "typer", "rich", "bokeh"])
def test_kernels_run_where_a_library_is_absent(absent):
    code = f"""
import sys
sys.modules[{absent!r}] = None
import numpy as np, tpusim
def kernel(x_ref, o_ref):
    o_ref[...] = tpusim.np.maximum(x_ref[...], 3.0)
made = tpusim.Kernel(kernel, out_shape=tpusim.ShapeDtypeStruct((8, 128), "float32"))
print(made.simulate(np.zeros((8, 128), np.float32), mesh=1).outputs[0].sum())
"""
    assert python(code) == "3072.0\n"


def test_public_names_are_the_same_for_type_checkers_and_at_run_time() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {*tpusim.__all__, "np", "pallas"}
    assert seen <= set(dir(tpusim))
    for name in seen - {"pallas"}:
        assert getattr(tpusim, name) is not None
