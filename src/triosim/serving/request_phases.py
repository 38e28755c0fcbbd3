"""Phases of requests: queued, computing the prompt, waiting for a KV cache, decoding, or waiting again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.serving.fleet import FleetRun
from triosim.serving.recording import RunRecord

PHASES = ("queued", "prefill", "KV transfer", "decode", "waiting again")
"""What a request is doing.  It waits again where it gave way to others, or lost its replica; what it computes anew then
is counted as what it did before."""
QUEUED, PREFILL, TRANSFER, DECODE, AWAY = range(len(PHASES))


@dataclass(frozen=True)
class RequestPhases:
    """Phases of requests by row and time; phases of no length are left out.

    Attributes:
        row: of the request.
        phase: place in ``names``.
        begin, end: picoseconds; all columns int64.
        names: :data:`PHASES`.
    """

    row: NDArray[np.int64]
    phase: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    names: tuple[str, ...] = PHASES


def phases(served: FleetRun, record: RunRecord) -> RequestPhases:
    """Of all requests: from arrival to end without a gap.

    Args:
        served: the run.
        record: of the same run.
    """
    count = len(served.arrived)
    arrives = served.first_token + np.maximum(served.transfer, 0)
    # A cache that goes layer by layer may be there after the first token, but never after the last one.
    marks = (
        served.arrived,
        served.scheduled,
        served.first_token,
        np.minimum(arrives, served.finished),
        served.finished,
    )
    rows = [np.arange(count)] * 4
    begins, ends = list(marks[:-1]), list(marks[1:])
    kinds = [np.full(count, phase) for phase in (QUEUED, PREFILL, TRANSFER, DECODE)]
    row, phase, begin, end = (np.concatenate(columns) for columns in (rows, kinds, begins, ends))
    if len(record.away_row):
        row, phase, begin, end = _cut(row, phase, begin, end, record)
    order = np.lexsort((begin, row))
    order = order[end[order] > begin[order]]
    return RequestPhases(row[order], phase[order], begin[order], end[order])


def _cut(
    row: NDArray[np.int64], phase: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64],
    record: RunRecord,
) -> tuple[NDArray[np.int64], ...]:  # fmt: skip
    """The same phases with the times cut out at which a request was away, and these."""
    away: dict[int, list[tuple[int, int]]] = {}
    for who, since, until in zip(
        record.away_row.tolist(), record.away_begin.tolist(), record.away_end.tolist(), strict=True
    ):
        away.setdefault(who, []).append((since, until))
    out = [(who, AWAY, since, until) for who, spans in away.items() for since, until in spans]
    for who, kind, since, until in zip(row.tolist(), phase.tolist(), begin.tolist(), end.tolist(), strict=True):
        at = since
        for gone, back in sorted(away.get(who, ())):
            if gone < until and back > at:
                out.append((who, kind, at, max(gone, at)))
                at = min(back, until)
        out.append((who, kind, at, until))
    return tuple(np.array(column, np.int64) for column in zip(*out, strict=True))


def standing(served: FleetRun, record: RunRecord) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """How many requests are in each phase, by its name: from each time (ps) on so many; phases that nobody is ever in
    are left out."""
    life = phases(served, record)
    out = {}
    for number, name in enumerate(life.names):
        mine = life.phase == number
        if mine.any():
            change, at = np.unique(np.concatenate([life.begin[mine], life.end[mine]]), return_inverse=True)
            step = np.repeat([1, -1], int(mine.sum()))
            out[name] = change, np.cumsum(np.bincount(at, step, len(change))).astype(np.int64)
    return out
