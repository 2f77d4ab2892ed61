"""By how much the chip's numbers leave the time of a step open: each has an interval, and a run uses one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from tpusim.chips import ChipSpec
from tpusim.chips.quantity import Quantity
from tpusim.machine.timing import Timing
from tpusim.units import transfer_ps

if TYPE_CHECKING:
    from tpusim.machine.dma import Copy

_OPERATIONS = {"start": "dma.issue", "wait": "sync.wait", "signal": "sync.signal", "read": "sync.read"}
_ABOVE_IS_FAST = ("B/s", "Hz")


class Slack:
    """The slow end of a chip's intervals, less the times ``timing`` has."""

    def __init__(self, chip: ChipSpec, timing: Timing) -> None:
        self._timing = timing
        self._chip = chip
        self._slow = Timing(at_end(chip, is_fast=False))
        self._link = _rate_at(chip.ici.link_bandwidth, is_fast=False)
        self._hbm = _rate_at(chip.hbm.bandwidth, is_fast=False)
        self.operations = {kind: self._operation_ps(name) for kind, name in _OPERATIONS.items()}
        """Of a core's own operations."""

    def _operation_ps(self, name: str) -> int:
        group, _, field = name.partition(".")
        quantity: Quantity = getattr(getattr(self._chip, group), field)
        low, high = quantity.interval
        return max(0, self._timing.cycles(high) - self._timing.cycles(low))

    def reader_ps(self, copy: Copy) -> int:
        """Start latency, and the transfer at the slowest rate of the parts on its way."""
        kind, path = copy.route.kind, copy.route.path
        latency = self._slow.start_ps(kind) - copy.route.start_ps
        rates = [self._slow.rate(kind)]
        for resource, _, weight in path.loads:
            slow = self._link if resource.name.startswith("link") else self._hbm
            rates.append(min(slow, resource.capacity) // weight)
        transfer = transfer_ps(copy.wire_bytes, min(rates)) - transfer_ps(copy.wire_bytes, path.peak)
        return max(0, latency) + max(0, transfer)

    def hops_ps(self, hops: int) -> int:
        """The latency of links."""
        return max(0, hops * (self._slow.hop_ps - self._timing.hop_ps))

    def signal_ps(self, hops: int) -> int:
        """A remote signal on its way."""
        return max(0, self._slow.remote_signal_ps - self._timing.remote_signal_ps) + self.hops_ps(hops)


def at_end(chip: ChipSpec, *, is_fast: bool) -> ChipSpec:
    """The chip with every rate and latency of its DMA engines, links and memories at one end of its interval."""
    groups = {}
    for name in ("dma", "sync", "ici", "hbm"):
        group: BaseModel = getattr(chip, name)
        changed: dict[str, Any] = {}
        for field in type(group).model_fields:
            quantity = getattr(group, field)
            has_interval = isinstance(quantity, Quantity) and (quantity.low, quantity.high) != (None, None)
            if has_interval and quantity.unit in ("s", "cycles", *_ABOVE_IS_FAST):
                changed[field] = quantity.model_copy(update={"value": _rate_at(quantity, is_fast=is_fast)})
        groups[name] = group.model_copy(update=changed)
    return chip.model_copy(update=groups)


def _rate_at(quantity: Quantity, *, is_fast: bool) -> Any:
    low, high = quantity.interval
    value = high if (quantity.unit in _ABOVE_IS_FAST) == is_fast else low
    return value if quantity.unit in ("s", "cycles") else int(value)
