"""Chips: what is known of each TPU generation, number by number with its source."""

from tpusim.chips.load import chip_names, load_chip, parse_set
from tpusim.chips.quantity import Measure, Quantity
from tpusim.chips.spec import (
    GROUPS,
    ChipSpec,
    CoreSpec,
    DmaSpec,
    HbmSpec,
    IciSpec,
    SemaphoreSpec,
    SmemSpec,
    SyncSpec,
    TileSpec,
    VmemSpec,
    XlaSpec,
)

__all__ = [
    "GROUPS",
    "ChipSpec",
    "CoreSpec",
    "DmaSpec",
    "HbmSpec",
    "IciSpec",
    "Measure",
    "Quantity",
    "SemaphoreSpec",
    "SmemSpec",
    "SyncSpec",
    "TileSpec",
    "VmemSpec",
    "XlaSpec",
    "chip_names",
    "load_chip",
    "parse_set",
]
