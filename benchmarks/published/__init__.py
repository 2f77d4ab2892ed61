"""Kernels others wrote and published, with small inputs and what they should give."""

from published.case import Built, Case, Missing, load

__all__ = ["Built", "Case", "Missing", "load"]
