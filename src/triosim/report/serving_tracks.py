"""The timeline of a fleet under traffic: steps of its replicas, their KV caches, and the life of requests.

It is written for Perfetto (``.pftrace``) or as a Chrome trace (``.json``, ``.json.gz``), both of which
https://ui.perfetto.dev opens.  Each replica has a row for each pipeline stage; requests are in as few rows as they fit
in without overlapping, each with its phases below it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.outputs import binary_output, check_ending, text_output
from triosim.report.lanes import lanes
from triosim.report.perfetto_packets import Annotation, Event, counter, note, numbers, slices, strings, track, upon
from triosim.serving.deployment import ServingResult
from triosim.serving.request_phases import phases, standing

BINARY = ".pftrace"
ENDINGS = (BINARY, ".json", ".json.gz")
KINDS = ("decodes", "prompts", "prompts and decodes")
"""What a step computes."""


@dataclass(frozen=True)
class SliceRow:
    """SliceRow of one row of the picture; those inside of others come after them.

    Attributes:
        group, name: of the row.
        titles: that slices may have.
        title: of each slice, its place in ``titles``; int64.
        begin, end: picoseconds, int64.
        notes: numbers on each slice by name, int64; below 0 where a slice has none.
    """

    group: str
    name: str
    titles: Sequence[str]
    title: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    notes: Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class CounterRow:
    """Values of one row of the picture, each from a time (ps) on; int64."""

    group: str
    name: str
    unit: str
    time: NDArray[np.int64]
    value: NDArray[np.int64]


def write(result: ServingResult, path: str | os.PathLike[str]) -> Path:
    """Write the timeline of a recorded run.

    Args:
        result: of the run.
        path: a name that ends in one of :data:`ENDINGS`.

    Raises:
        InputError: it ends in something else, or cannot be written.
    """
    check_name(path)
    rows = list(tracks(result))
    if str(path).endswith(BINARY):
        with binary_output(path) as out:
            for piece in _packets(rows):
                out.write(piece)
    else:
        with text_output(path) as text:
            text.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            text.write(",\n".join(_events(rows)))
            text.write("\n]}\n")
    return Path(path)


def check_name(path: str | os.PathLike[str]) -> None:
    """Whether a timeline can have that name.

    Raises:
        InputError: it cannot.
    """
    check_ending("--timeline", path, ENDINGS)


def tracks(result: ServingResult) -> Iterator[SliceRow | CounterRow]:
    """All rows, those of a group one after another; times count from the first arrival."""
    assert result.record is not None
    record, served = result.record, result.served
    steps, first = record.steps, int(served.arrived.min())
    kind = np.where(steps.prompts == 0, 0, np.where(steps.decodes == 0, 1, 2))
    for replica, name in enumerate(replica_names(result)):
        mine = steps.replica == replica
        stages = int(steps.stage[mine].max(initial=0)) + 1
        for stage in range(stages):
            at = np.flatnonzero(mine & (steps.stage == stage))
            notes = {
                "tokens": steps.tokens[at], "decodes": steps.decodes[at], "prompts": steps.prompts[at],
                "prompt_tokens": steps.prompt_tokens[at],
            }  # fmt: skip
            row = "steps" if stages == 1 else f"stage {stage + 1}"
            yield SliceRow(name, row, KINDS, kind[at], steps.begin[at] - first, steps.end[at] - first, notes)
        at = np.flatnonzero(record.kv_replica == replica)
        yield CounterRow(name, "KV blocks in use", "blocks", record.kv_time[at] - first, record.kv_blocks[at])
    for phase, (time, value) in standing(served, record).items():
        yield CounterRow("requests", f"requests: {phase}", "", time - first, value)
    yield from _requests(result, first)


def replica_names(result: ServingResult) -> list[str]:
    """Of all replicas, by their numbers."""
    pools = [pool for pool in result.deployment.pools for _ in range(pool.replicas)]
    return [f"replica {number}" + (f" ({pool.name})" if pool.name else "") for number, pool in enumerate(pools)]


def _requests(result: ServingResult, first: int) -> Iterator[SliceRow]:
    """Their lives, each request in a lane that is free for all of it."""
    assert result.record is not None
    served, table = result.served, result.served.requests
    life = phases(served, result.record)
    whole = len(served.arrived)
    lane = lanes(np.zeros(whole, np.int64), served.arrived, served.finished)
    row = np.concatenate([np.arange(whole), life.row])
    inner = np.concatenate([np.full(whole, -1), life.phase])
    begin = np.concatenate([served.arrived, life.begin])
    end = np.concatenate([served.finished, life.end])
    order = np.lexsort((inner >= 0, begin, row, served.arrived[row], lane[row]))
    row, inner, begin, end = (column[order] for column in (row, inner, begin, end))
    names = [f"request {number}" for number in range(whole)]
    outer = inner < 0
    title = np.where(outer, row + len(life.names), inner)
    notes = {
        "request": row, "prompt": np.where(outer, table.prompt[row], -1),
        "output": np.where(outer, table.output[row], -1), "replica": np.where(outer, served.replica[row], -1),
        "found_in_cache": np.where(outer, served.cached[row], -1),
    }  # fmt: skip
    bounds = np.flatnonzero(np.diff(lane[row], prepend=-1, append=-1))
    for number, (a, b) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True), 1):
        some = {name: values[a:b] for name, values in notes.items()}
        yield SliceRow(
            "requests", f"requests, row {number}", (*life.names, *names), title[a:b], begin[a:b] - first,
            end[a:b] - first, some,
        )  # fmt: skip


def _packets(rows: Sequence[SliceRow | CounterRow]) -> Iterator[bytes]:
    """Perfetto's own form; nanoseconds."""
    titles = {name: None for row in rows if isinstance(row, SliceRow) for name in row.titles}
    title_of = {name: at for at, name in enumerate(titles, 1)}
    names = {name: None for row in rows if isinstance(row, SliceRow) for name in row.notes}
    note_of = {name: at for at, name in enumerate(names, 1)}
    yield strings(list(titles), [], list(names), [])
    numbered = count(1)
    groups: dict[str, int] = {}
    for place, row in enumerate(rows):
        if row.group not in groups:
            groups[row.group] = next(numbered)
            yield track(groups[row.group], row.group, place=len(groups), explicit=True)
        uuid = next(numbered)
        if isinstance(row, CounterRow):
            yield track(uuid, row.name, groups[row.group], place, unit=row.unit or "requests")
            yield upon(uuid)
            yield counter(row.time / 1e12, row.value)
            continue
        yield track(uuid, row.name, groups[row.group], place)
        yield upon(uuid)
        known = np.array([title_of[name] for name in row.titles], np.int64)
        event = [numbers(Event.title, known[row.title])]
        event += [
            note(note_of[name], Annotation.number, np.maximum(values, 0), values >= 0)
            for name, values in row.notes.items()
        ]
        yield slices((row.begin + 500) // 1000, (row.end + 500) // 1000, event)


def _events(rows: Sequence[SliceRow | CounterRow]) -> Iterator[str]:
    """Chrome's "Trace Event Format"; microseconds."""
    groups: dict[str, int] = {}
    for place, row in enumerate(rows):
        if row.group not in groups:
            number = groups[row.group] = len(groups) + 1
            yield _event("process_name", "M", pid=number, args={"name": row.group})
            yield _event("process_sort_index", "M", pid=number, args={"sort_index": number})
        where = {"pid": groups[row.group]}
        if isinstance(row, CounterRow):
            for time, value in zip(row.time.tolist(), row.value.tolist(), strict=True):
                yield _event(row.name, "C", ts=time / 1e6, **where, args={row.unit or "requests": value})
            continue
        where["tid"] = place
        yield _event("thread_name", "M", **where, args={"name": row.name})
        notes = {name: values.tolist() for name, values in row.notes.items()}
        spans = zip(row.title.tolist(), row.begin.tolist(), row.end.tolist(), strict=True)
        for at, (title, begin, end) in enumerate(spans):
            args = {name: values[at] for name, values in notes.items() if values[at] >= 0}
            yield _event(row.titles[title], "X", ts=begin / 1e6, dur=(end - begin) / 1e6, **where, args=args)


def _event(name: str, kind: str, **rest: object) -> str:
    return json.dumps({"name": name, "ph": kind, **rest})
