"""The colours of a report, one for each thing that can be seen in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tpusim.trace.shares import Cause


class Look(NamedTuple):
    """How one kind of mark is called and coloured."""

    title: str
    colour: str
    lane: str
    """``compute``, ``wait`` or ``DMA``."""


LOOKS: Final = {
    "compute": Look("compute", "#2f6fde", "compute"),
    "access": Look("load, store", "#8fbaf3", "compute"),
    "core": Look("start, signal", "#54627a", "compute"),
    "copy_wait": Look("wait for a copy", "#f0a33a", "wait"),
    "signal_wait": Look("wait for a signal", "#d9604c", "wait"),
    "latency": Look("DMA latency", "#c9d3df", "DMA"),
    "local": Look("local transfer", "#55a868", "DMA"),
    "remote": Look("remote transfer", "#12857c", "DMA"),
    "hops": Look("hops", "#a5dcd3", "DMA"),
}

_EXPOSED = {
    "start latency": "#f7d08a",
    "transfer, ICI link": "#e8912d",
    "transfer, HBM": "#c8701a",
    "transfer, DMA engine": "#a85b12",
    "hop latency": "#f3b765",
}
_WAITS = ("#d9604c", "#eb9384", "#b5443a", "#f1b5aa", "#8e332b")
_CORE = {"starting copies": "#54627a", "signalling": "#7c899f", "waits that need not wait": "#a2adbe"}


def colour_of(cause: Cause, number: int = 0) -> str:
    """The colour of a cause of time; ``number`` counts the waits."""
    if cause.group == "compute":
        return LOOKS["access"].colour if "load" in cause.what else LOOKS["compute"].colour
    if cause.group == "exposed copy":
        return _EXPOSED.get(cause.what, "#f0a33a")
    if cause.group == "wait":
        return _WAITS[number % len(_WAITS)]
    return _CORE.get(cause.what, "#b9c2cf") if cause.group == "core" else "#e4e8ee"


def colours(causes: list[Cause]) -> dict[Cause, str]:
    """A colour for each of a run's causes."""
    waits = [cause for cause in causes if cause.group == "wait"]
    return {cause: colour_of(cause, waits.index(cause) if cause in waits else 0) for cause in causes}


def heat(share: float) -> str:
    """A colour from pale to red for a use of 0 to 1."""
    stops = ((232, 236, 242), (250, 204, 112), (235, 126, 48), (190, 40, 32))
    at = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    low = min(int(at), len(stops) - 2)
    mix = [round(a + (b - a) * (at - low)) for a, b in zip(stops[low], stops[low + 1], strict=True)]
    return "#{:02x}{:02x}{:02x}".format(*mix)
