"""Many marks as few: a lane cut into equal parts of time, each of which shows what most of it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tpusim.report.style import LOOKS
from tpusim.trace.pod import covered

if TYPE_CHECKING:
    from tpusim.report.marks import Mark

_FAINTEST = 0.25


def cut(lane: list[Mark], parts: int, end_ps: int) -> Iterator[Mark]:
    """The marks of one lane, or of several that are drawn as one, in ``parts`` parts of 0 to ``end_ps``.

    Neighbouring parts that look the same are one mark; where nothing is nothing is drawn.
    """
    edges = np.linspace(0.0, float(max(end_ps, 1)), parts + 1)
    kinds = list(dict.fromkeys(mark.kind for mark in lane))
    by_kind = np.array([covered([(m.from_ps, m.to_ps) for m in lane if m.kind == kind], edges) for kind in kinds])
    full = by_kind.sum(axis=0)
    look = np.where(full > 1e-9, by_kind.argmax(axis=0), -1)
    starts = np.flatnonzero(np.diff(look, prepend=-2))
    begins, ends = (np.array(times) for times in zip(*((m.from_ps, m.to_ps) for m in lane), strict=True))
    lanes = len({mark.top for mark in lane})
    place = {"top": min(mark.top for mark in lane), "bottom": max(mark.bottom for mark in lane)}
    for first, last in zip(starts, [*starts[1:], parts], strict=True):
        if look[first] < 0:
            continue
        inside = np.flatnonzero((begins < edges[last]) & (ends > edges[first]))
        one = lane[inside[0]]
        times = {
            "from_ps": max(int(begins[inside].min()), int(edges[first])),
            "to_ps": min(int(ends[inside].max()), int(edges[last])),
        }
        if len(inside) == 1:
            yield one._replace(**place, **times)
            continue
        kind = kinds[look[first]]
        lines = {lane[at].line for at in inside}
        yield one._replace(
            kind=kind, text=f"{len(inside)} marks, mostly {LOOKS[kind].title}",
            line=one.line if len(lines) == 1 else f"{len(lines)} lines",
            share=float(np.clip(full[first:last].mean() / lanes, _FAINTEST, 1.0)), **place, **times,
        )  # fmt: skip
