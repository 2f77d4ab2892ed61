"""The same kernel with many parameters, on many slices: which is the fastest, and which are as good.

A *point* is one choice of everything that varies, a *row* what its run came to.  Points come from a grid or from a
guided search (:mod:`~tpusim.sweep.search`), are run by local processes or a Dask cluster
(:mod:`~tpusim.sweep.workers`), and every row is on disk before the next one counts (:mod:`~tpusim.sweep.store`): a
sweep that was interrupted goes on where it stopped, because a search with the same seed asks for the same points
and those on disk are not run again.
"""

from tpusim.sweep.sweep import Sweep, run_sweep
from tpusim.sweep.tune import Tuned, autotune

__all__ = ["Sweep", "Tuned", "autotune", "run_sweep"]
