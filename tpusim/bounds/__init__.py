"""Lower bounds of operations on a slice."""

from tpusim.bounds.certificate import Bound
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
from tpusim.bounds.rooted import barrier, broadcast, gather, reduce, scatter

__all__ = [
    "Bound",
    "MeshBounds",
    "Rates",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "combine",
    "gather",
    "halo_exchange",
    "local_copy",
    "matmul",
    "permute",
    "reduce",
    "reduce_scatter",
    "scatter",
    "transfers",
]
