"""The notebooks of ``kernels/notebooks/`` run, each in a copy of the folder and a process of its own."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[1] / "kernels"
NOTEBOOKS = sorted((KERNELS / "notebooks").glob("*.ipynb"))
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout=240, kernel_name="python3").execute()
nbformat.write(book, sys.argv[1])
"""

needs_jupyter = pytest.mark.skipif(
    not (find_spec("nbclient") and find_spec("ipykernel")), reason="not run: there is no nbclient or no ipykernel"
)


def cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def texts(path):
    return ["".join(out.get("text", ())) for cell in cells(path) for out in cell["outputs"]]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_with_their_outputs(path):
    assert [cell["execution_count"] for cell in cells(path)] == list(range(1, len(cells(path)) + 1))
    assert not [out for cell in cells(path) for out in cell["outputs"] if out["output_type"] == "error"]
    assert path.stat().st_size < 200_000
    assert str(Path.home()) not in path.read_text()
    assert "/tmp" not in path.read_text()


@needs_jupyter
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.jax] if "cross_check" in p.stem else [], id=p.stem) for p in NOTEBOOKS],
)
def test_notebooks_run(path, tmp_path):
    pytest.importorskip("bokeh")
    shutil.copytree(KERNELS, tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "kernels" / "notebooks"
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, path.name], cwd=folder, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ran = " ".join(texts(folder / path.name))
    for said in ("right here: True", "signal to +1: refuted", "signal to -1: proven", "equal copies: True True"):
        if said in " ".join(texts(path)):
            assert said in ran
