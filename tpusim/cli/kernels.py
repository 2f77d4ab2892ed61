"""``tpusim kernels [DIRECTORY]``: what kernels there are.  Files are read, not executed."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tpusim.cli.console import make_console, styled
from tpusim.errors import OptionError


class Listed(NamedTuple):
    """A kernel file, or one that cannot be read; ``file`` is FILE of ``tpusim run``."""

    file: str
    summary: str
    is_broken: bool = False


def kernels(
    directory: Annotated[str, typer.Argument(help="Where the kernel files are.")] = "kernels",
) -> None:
    """List the kernels in a directory.

    The files are read, not executed.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise OptionError(f"{directory}: no such directory")
    found = find_kernels(folder)
    console = make_console()
    if not found:
        console.print(styled(f"no kernel files in {directory}"))
    width = max((len(item.file) for item in found), default=0)
    for item in found:
        line = styled(f"{item.file:<{width}}  ", "yellow" if item.is_broken else "bold")
        console.print(line.append_text(styled(item.summary)))


def find_kernels(folder: Path) -> list[Listed]:
    """The kernels of a directory by file name; a file that cannot be parsed is listed with the reason."""
    found: list[Listed] = []
    for path in sorted(folder.glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except SyntaxError as error:
            found.append(Listed(str(path), f"cannot be read: line {error.lineno}: {error.msg}", True))
            continue
        except (OSError, ValueError, RecursionError) as error:
            found.append(Listed(str(path), f"cannot be read: {error}", True))
            continue
        lines = (ast.get_docstring(tree) or "").splitlines()
        summary = lines[0] if lines else ""
        for name in _kernel_names(tree):
            found.append(Listed(str(path) if name == "kernel" else f"{path}:{name}", summary))
    return found


def _kernel_names(tree: ast.Module) -> list[str]:
    """Kernels by their decorator or ``Kernel(...)``, and whatever a file with ``inputs()`` calls ``kernel``."""
    names = []
    has_inputs = any(isinstance(node, ast.FunctionDef) and node.name == "inputs" for node in tree.body)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any(_makes_kernel(item, "kernel") for item in node.decorator_list):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
            is_kernel = _makes_kernel(node.value, "Kernel") or (has_inputs and targets == ["kernel"])
            names += targets if is_kernel else []
    return names


def _makes_kernel(node: ast.expr, name: str) -> bool:
    """Whether an expression is a call of ``name``, ``tpusim.name`` or the like."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    return (isinstance(called, ast.Attribute) and called.attr == name) or (
        isinstance(called, ast.Name) and called.id == name
    )
