"""Native kernels on the simulated machine: each device runs the plain function in a greenlet."""

from tpusim.native.simulate import simulate as simulate
