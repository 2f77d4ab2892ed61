"""The use of JAX internals that compiles a StableHLO text for a TPU topology, without a TPU.

Checked with jax 0.10.2 (Python 3.11) and 0.12.0.1 (Python 3.13), with libtpu for the latter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tpusim.pallas.internals.versions import PrivateModule

_compiler = PrivateModule("jax._src.compiler")
_mlir = PrivateModule("jax._src.interpreters.mlir")
_xla_client = PrivateModule("jaxlib.xla_client")


def compile_text(text: str, topology: Any, devices: int) -> None:
    """Compile a StableHLO module for the first ``devices`` devices of a topology; raises the compiler's error."""
    chosen = tuple(topology.devices[:devices])
    options = _compiler.get_compile_options(
        num_replicas=1, num_partitions=devices, device_assignment=np.array([[d.id for d in chosen]])
    )
    with _mlir.make_ir_context():
        module = _mlir.ir.Module.parse(text)
        _compiler.backend_compile_and_load(chosen[0].client, module, _xla_client.DeviceList(chosen), options, [])
