"""Costs of compute on a core, in cycles, with where they come from."""

from tpusim.costs.table import CostTable

__all__ = ["CostTable"]
