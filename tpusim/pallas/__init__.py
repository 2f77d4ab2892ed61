"""The bridge to real JAX Pallas; the only package that imports jax.

``Kernel.pallas(mesh, interpret=...)`` is the usual way in.  Importing this package itself does not
import jax, so that a parent process can prepare a child in which it will run.
"""

from tpusim.pallas.host import InterpretError as InterpretError
from tpusim.pallas.host import InterpretTimeoutError as InterpretTimeoutError
from tpusim.pallas.host import interpret_in_subprocess as interpret_in_subprocess
