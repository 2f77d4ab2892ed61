"""What the TPU compiler says of every kernel in ``kernels/`` and ``benchmarks/``, without a TPU.

``python benchmarks/compiler_table.py [--chips v5e,v5p,v6e,v7x] [--json FILE]``

Needs the ``tpu`` extra.  Kernels of ``kernels/`` run on 4 devices (2x2 where they have two axes) with the inputs of
their own ``inputs()``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from compiler_kernels import cases

from tpusim.kernel_file import load_file
from tpusim.pallas.compiler import Compiled, Source, compile_programs, lower, lower_kernel
from tpusim.units import format_bytes

KERNELS = Path(__file__).parent.parent / "kernels"


def sources(chip: str) -> Iterator[tuple[str, Source]]:
    """Name and program of every kernel."""
    for path in sorted(KERNELS.glob("*.py")):
        loaded = load_file(str(path))
        sizes = (4,) if len(loaded.kernel.axes) == 1 else (2, 2)
        devices = sizes[0] if len(sizes) == 1 else sizes
        axes = dict(zip(loaded.kernel.axes, sizes, strict=True))
        yield path.stem, partial(lower_kernel, loaded.kernel, loaded.inputs(devices=devices), axes, chip)
    for case in cases():
        yield case.name, lambda c=case: lower(c.function, c.shapes, chip)


def line(compiled: Compiled) -> str:
    """A verdict with its figures or its text."""
    if not compiled.is_accepted:
        return f"{compiled.verdict}: {(compiled.error or '').splitlines()[0][:160]}"
    cycles = f"{compiled.cycles} cycles" if compiled.cycles else f"{compiled.bundles} bundles"
    note = f" ({compiled.note})" if compiled.note else ""
    return f"accepted, {cycles}, VMEM {format_bytes(compiled.vmem_bytes or 0)}{note}"


def main() -> None:
    """Print a table for each chip."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", default="v5e,v5p,v6e,v7x")
    parser.add_argument("--json", type=Path, help="write all answers here")
    options = parser.parse_args()
    answers: dict[str, dict[str, Any]] = {}
    for chip in options.chips.split(","):
        named = dict(sources(chip))
        table = dict(zip(named, compile_programs(list(named.values()), chip, timeout_s=300), strict=True))
        accepted = sum(each.is_accepted for each in table.values())
        print(f"\n{chip}: {accepted} of {len(table)} accepted")
        for name, each in table.items():
            print(f"  {name:<38} {line(each)}", flush=True)
        answers[chip] = {name: asdict(each) for name, each in table.items()}
    if options.json is not None:
        options.json.write_text(json.dumps(answers, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
