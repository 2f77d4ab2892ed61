"""One kernel on every backend: is the data equal, what does the compiler say, do the times agree?"""

from tpusim.crosscheck.check import BACKENDS, Backend, CrossCheck, Seen, crosscheck

__all__ = ["BACKENDS", "Backend", "CrossCheck", "Seen", "crosscheck"]
