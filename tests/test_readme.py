"""The README: what its code blocks show is what happens.

Every block but the two set-up commands (`sh`, which CI runs in fresh environments) is run, in order and in
one directory.  A `python` block names its file in its first line: a new file is written, of a file that is
there the block is an excerpt.  A `console` block holds commands after `$ `, and what they print, both
streams.  ``python tests/test_readme.py`` writes the outputs anew.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
NEEDS_JAX = "<!-- needs jax -->\n"
BLOCK = re.compile(rf"^({re.escape(NEEDS_JAX)})?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 400


class Block(NamedTuple):
    """A fenced code block: its language, its text, whether it needs jax."""

    language: str
    text: str
    needs_jax: bool


def blocks() -> list[Block]:
    found = BLOCK.finditer(README.read_text(encoding="utf-8"))
    return [Block(match[2], match[3], match[1] is not None) for match in found]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return prepare(tmp_path)


def prepare(folder: Path) -> Path:
    shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def commands(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with its expected output."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def run(command: str, folder: Path) -> str:
    """What a command prints in a folder, without blanks at the ends of lines."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "PYTHONUTF8": "1", "PYTHONWARNINGS": "error"}
    child = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
    )
    return stripped(child.stdout)


def stripped(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def write(block: Block, folder: Path) -> None:
    """The file of a python block; an excerpt has to stand in the file it names."""
    name = block.text.partition("\n")[0].removeprefix("# ")
    if (folder / name).exists():
        excerpt = block.text.partition("\n")[2]
        assert excerpt in (folder / name).read_text(encoding="utf-8"), f"not an excerpt of {name}"
    else:
        (folder / name).write_text(block.text, encoding="utf-8")


def check(wanted: list[Block], folder: Path) -> None:
    assert wanted
    for block in wanted:
        if block.language == "python":
            write(block, folder)
        for command, output in commands(block.text) if block.language == "console" else ():
            assert run(command, folder) == stripped(output), command


def test_blocks_are_of_the_known_kinds_and_python_files_are_run() -> None:
    kinds = [block.language for block in blocks()]
    assert sorted(set(kinds)) == ["console", "python", "sh"]
    assert kinds.count("sh") == 2
    shown = "".join(block.text for block in blocks() if block.language == "console")
    for block in blocks():
        if block.language == "python":
            assert block.text.partition("\n")[0].removeprefix("# ") in shown


def test_set_up_is_two_commands_of_one_line() -> None:
    assert [block.text.count("\n") for block in blocks() if block.language == "sh"] == [1, 1]


def test_blocks_without_jax(directory: Path) -> None:
    check([block for block in blocks() if not block.needs_jax and block.language != "sh"], directory)


@pytest.mark.jax
@pytest.mark.usefixtures("interpret_lock")
def test_blocks_with_jax(directory: Path) -> None:
    check([block for block in blocks() if block.needs_jax], directory)


def write_outputs() -> None:
    """Put what the commands print now into the README."""
    with tempfile.TemporaryDirectory() as name:
        folder = prepare(Path(name))

        def anew(match: re.Match[str]) -> str:
            block = Block(match[2], match[3], match[1] is not None)
            if block.language == "python":
                write(block, folder)
            if block.language != "console":
                return match[0]
            text = "".join(f"$ {command}\n{run(command, folder)}" for command, _ in commands(block.text))
            return f"{match[1] or ''}```console\n{text}```"

        README.write_text(BLOCK.sub(anew, README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write_outputs()
