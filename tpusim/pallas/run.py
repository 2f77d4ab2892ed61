"""The child process of interpret mode.

``python -m tpusim.pallas.run FILE[:name] --mesh x=4 --inputs in.npz --outputs out.npz``

Reads GLOBAL input arrays, runs the kernel through Pallas's TPU interpret mode on virtual CPU devices
and writes its GLOBAL outputs.  An error goes to standard error, its message last; exit status 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from math import prod
from pathlib import Path
from types import TracebackType

from tpusim.errors import OptionError
from tpusim.options import parse_mesh
from tpusim.pallas.host import declare_host_devices, load_arrays, save_arrays


def main(arguments: list[str] | None = None) -> None:
    """Run one kernel file and write its outputs."""
    parser = argparse.ArgumentParser(prog="python -m tpusim.pallas.run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", help="path.py[:name]")
    parser.add_argument("--mesh", required=True, help="sizes of the kernel's axes: x=4 or x=2,y=2")
    parser.add_argument("--inputs", type=Path, help="GLOBAL input arrays (.npz); default: the file's inputs()")
    parser.add_argument("--outputs", type=Path, required=True, help="where to write the GLOBAL outputs (.npz)")
    parser.add_argument("--parameters", type=json.loads, default={}, help="those of the file's make_kernel(), as JSON")
    options = parser.parse_args(arguments)
    sizes = parse_mesh(options.mesh)
    declare_host_devices(prod(sizes.values()))

    import jax

    from tpusim.kernel_file import load_file
    from tpusim.program import Kernel

    sys.excepthook = lambda kind, error, frames: _write_error(options.file, kind, error, frames)
    loaded = load_file(options.file)
    arrays = load_arrays(options.inputs) if options.inputs else loaded.inputs()
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))
    kernel = loaded.made(options.parameters)
    if not isinstance(kernel, Kernel):
        raise OptionError(f"{options.file}: {loaded.name} is a JAX function, not a tpusim.Kernel")
    outputs = kernel.pallas(mesh, interpret=True)(*arrays)
    save_arrays(options.outputs, outputs if isinstance(outputs, tuple) else (outputs,))


def _write_error(file: str, kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    """The lines of the user's file, then the error: what a reader of the last lines needs."""
    path = (Path(file.rpartition(":")[0]) if ".py:" in file else Path(file)).resolve()
    mine = [frame for frame in traceback.extract_tb(frames) if Path(frame.filename).resolve() == path]
    sys.stderr.write("".join(traceback.format_list(mine)))
    sys.stderr.write(f"{kind.__name__}: {error}\n")  # without JAX's note about its own frames


if __name__ == "__main__":
    main()
