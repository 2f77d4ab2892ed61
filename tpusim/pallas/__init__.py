"""The bridge to real JAX Pallas; the only package that imports jax.

``Kernel.pallas(mesh, interpret=...)`` is the usual way in.  Importing this package itself does not
import jax, so that a parent process can prepare a child in which it will run.
"""

from typing import Any

from tpusim.errors import MissingExtraError
from tpusim.pallas.host import InterpretError as InterpretError
from tpusim.pallas.host import InterpretTimeoutError as InterpretTimeoutError
from tpusim.pallas.host import declare_host_devices as declare_host_devices
from tpusim.pallas.host import intercept_process as intercept_process
from tpusim.pallas.host import interpret_in_subprocess as interpret_in_subprocess
from tpusim.pallas.host import quiet_libtpu

quiet_libtpu()


def __getattr__(name: str) -> Any:
    """``simulate``, ``verify`` and ``intercept``, when they are asked for: they bring in jax."""
    if name not in ("simulate", "verify", "intercept"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name == "intercept":
            from tpusim.pallas.inplace import intercept

            return intercept
        if name == "verify":
            from tpusim.pallas.verdicts import verify

            return verify
        from tpusim.pallas.capture import simulate
    except ModuleNotFoundError as error:
        if error.name != "jax":
            raise
        raise MissingExtraError("captured programs need jax in this Python: pip install 'tpusim[pallas]'") from None
    return simulate
