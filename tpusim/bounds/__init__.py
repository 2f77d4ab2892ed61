"""Lower bounds of operations on a slice."""

from tpusim.bounds.mesh import MeshBounds
from tpusim.bounds.operations import (
    Rates,
    all_gather,
    all_reduce,
    all_to_all,
    combine,
    halo_exchange,
    local_copy,
    matmul,
    permute,
    reduce_scatter,
    transfers,
)

__all__ = [
    "MeshBounds",
    "Rates",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "combine",
    "halo_exchange",
    "local_copy",
    "matmul",
    "permute",
    "reduce_scatter",
    "transfers",
]
