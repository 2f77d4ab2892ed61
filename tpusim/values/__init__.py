"""Values inside a native kernel on the simulator: tracked scalars and arrays, and their ``jax.numpy``."""

from tpusim.values.arrays import Array, Charger, known, make_value
from tpusim.values.promotion import promote
from tpusim.values.scalars import Scalar
from tpusim.values.simulated_numpy import SimulatedNumpy

__all__ = ["Array", "Charger", "Scalar", "SimulatedNumpy", "known", "make_value", "promote"]
