"""The child process of the TPU compiler.

``python -m tpusim.pallas.compile_run FOLDER``

``FOLDER/jobs.json`` names a TPU topology and programs, each a StableHLO text with a number of devices.  For each
the child writes what the compiler said, and moves its dumps, which ``LIBTPU_INIT_ARGS`` sends to ``FOLDER/dumps``, to a
folder of its own.  The compiler ends the whole
process where one of its own checks fails; the parent then knows by the missing answer which program it was.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    """Compile every program of ``folder/jobs.json``."""
    jobs = json.loads((folder / "jobs.json").read_text(encoding="utf-8"))
    limit = int(jobs["memory_bytes"])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies

    from tpusim.pallas.host import write_whole
    from tpusim.pallas.internals.compiler import compile_text

    topology = topologies.get_topology_desc(platform="tpu", topology_name=jobs["topology"])
    for name, devices in jobs["programs"]:
        try:
            compile_text((folder / f"{name}.mlir").read_text(encoding="utf-8"), topology, devices)
            answer: dict[str, Any] = {"error": None}
        except JaxRuntimeError as error:
            answer = {"error": f"{error}" or type(error).__name__}
        (folder / name).mkdir()
        for dump in (folder / "dumps").iterdir():  # the next program may have a kernel of the same name
            dump.rename(folder / name / dump.name)
        write_whole(folder / f"{name}.json", json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
