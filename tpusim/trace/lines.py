"""The time of a run by line of the user's kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpusim.findings import Where, where_of

if TYPE_CHECKING:
    from tpusim.trace.critical import ChainLink
    from tpusim.trace.steps import Steps


@dataclass
class LineUse:
    """What one line cost: picoseconds summed over all devices."""

    where: Where
    busy_ps: int = 0
    """Time of the core in compute, loads, stores, starts, signals."""
    blocked_ps: int = 0
    """Time of the core in waits that blocked."""
    critical_ps: int = 0
    """Its part of the critical path: copies started here, and what the core did here."""
    times: int = 0
    """Operations executed."""
    copies: int = 0
    bytes: int = 0
    """Bytes that the copies started here moved, without padding."""

    @property
    def core_ps(self) -> int:
        """Time that the cores spent on this line."""
        return self.busy_ps + self.blocked_ps


class Places:
    """Site -> line; a site's code object is slow to hash, so it is known by identity."""

    def __init__(self) -> None:
        self._known: dict[Any, Where | None] = {}

    def __call__(self, site: Any) -> Where | None:
        """The line of a site."""
        key = (id(site[0]), site[1]) if type(site) is tuple else site
        if key not in self._known:
            self._known[key] = where_of(site)
        return self._known[key]


def line_uses(steps: Steps, path: Iterable[ChainLink] = ()) -> dict[Where | None, LineUse]:
    """What each line cost, the most expensive first; ``None`` is time that belongs to no known line."""
    place = Places()
    uses: dict[Where | None, LineUse] = {}

    def use(site: Any) -> LineUse:
        where = place(site)
        found = uses.get(where)
        if found is None:
            found = uses[where] = LineUse(where or Where("", 0))
        return found

    for mine in steps.of:
        for step in mine:
            line = use(step.site)
            line.times += step.event is not None
            if step.doing in ("blocked", "idle", "outside"):
                line.blocked_ps += step.length_ps
            else:
                line.busy_ps += step.length_ps
    for copy in steps.result.trace.copies:
        line = use(copy.site)
        line.copies += 1
        line.bytes += copy.dst_region.nbytes
    for link in path:
        use(link.site).critical_ps += link.length_ps
    return dict(sorted(uses.items(), key=lambda item: (-item[1].core_ps, -item[1].critical_ps, str(item[0]))))
