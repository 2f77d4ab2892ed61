"""The wait-for graph of a deadlock in Graphviz's language: a node a device, an arrow to whom it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tpusim.findings import Where, where_of

if TYPE_CHECKING:
    from tpusim.judges.deadlock import Stuck
    from tpusim.machine.core import Core
    from tpusim.machine.machine import Machine

_CAUSES = {
    "wrong-device": "added to on another device",
    "reused": "taken by an earlier wait",
    "short": "too little is added",
    "no-sender": "nobody adds to it",
}


def draw_graph(
    machine: Machine, stuck: Sequence[Stuck], cycle: Sequence[int], elsewhere: Mapping[Core, tuple[str, Where | None]]
) -> str:
    """The text of a ``.dot`` file; the arrows of the cycle are red, waits that nobody ends point to their cause."""
    around = set(zip(cycle, [*cycle[1:], *cycle[:1]], strict=True))
    lines = ["digraph deadlock {", "  node [shape=box];"]
    for item in stuck:
        device, blocked = item.core.device, item.blocked
        text = [str(machine.coordinates(device))]
        if blocked is not None:
            semaphore = blocked.semaphore
            text += [f"waits for {blocked.amount}{semaphore.unit} on {semaphore}", str(where_of(blocked.site))]
        else:
            text.append(f"waits {elsewhere.get(item.core, ('', None))[0]}")
        lines.append(f"  d{device} [label={_quoted(text)}];")
    for item in stuck:
        device = item.core.device
        for giver in item.givers:
            gift = next(gift for gift in item.gifts if gift.giver == giver)
            colour = ", color=red" if (device, giver) in around else ""
            verb = "copy" if gift.is_copy else "signal"
            lines.append(f"  d{device} -> d{giver} [label={_quoted([f'{verb} at {where_of(gift.site)}'])}{colour}];")
        if item.cause in _CAUSES:
            lines.append(f"  c{device} [label={_quoted([_CAUSES[item.cause]])}, shape=plaintext];")
            lines.append(f"  d{device} -> c{device} [style=dashed];")
    done = {item.core.device for item in stuck}
    for giver in sorted({giver for item in stuck for giver in item.givers} - done):
        lines.append(f"  d{giver} [label={_quoted([str(machine.coordinates(giver)), 'done'])}];")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(lines: Sequence[str]) -> str:
    safe = [line.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") for line in lines]
    return '"' + "\\n".join(safe) + '"'
