"""The machine as the TPU compiler sees it: its start latencies of copies, no contention for HBM, queues at sync flags.

Times are compared with the compiler's own in this profile alone: on hardware the latencies are shorter, and copies
share the memory, whichever flag they count on.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tpusim.chips.load import load_chip
from tpusim.chips.spec import ChipSpec
from tpusim.errors import OptionError

COMPILER = "compiler"
"""Name of the profile, where a chip is asked for."""
_NO_LIMIT = 1e17
_CYCLES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "v5e": {"hbm_to_vmem": 1142, "vmem_to_hbm": 448},
        "v5p": {"hbm_to_vmem": 692, "vmem_to_hbm": 651},
        "v6e": {"hbm_to_vmem": 561, "vmem_to_hbm": 469},
        "v7x": {"hbm_to_vmem": 612, "vmem_to_hbm": 612},
    }
)
"""Start latencies in cycles: libtpu 0.0.50.1, static LLO profile, exactly linear in the bytes.

The profile's model of reads on v7x is a generic fallback; they are taken to start like writes.
"""


def compiler_profile(chip: str, overrides: Mapping[str, Any] = MappingProxyType({})) -> ChipSpec:
    """A shipped chip in the profile ``compiler``, with ``overrides`` as for :func:`load_chip`.

    Raises ``OptionError`` for a chip whose latencies the compiler does not tell.
    """
    if chip not in _CYCLES:
        raise OptionError(
            f"chip='compiler': the compiler tells no latencies of {chip}. It does for: {', '.join(_CYCLES)}"
        )
    clock = load_chip(chip).clock_hz
    latencies = {f"dma.start_latency_{kind}": cycles / clock for kind, cycles in _CYCLES[chip].items()}
    spec = load_chip(chip, {**latencies, "hbm.bandwidth": _NO_LIMIT, **overrides})
    return spec.model_copy(update={"has_flag_queues": True})
