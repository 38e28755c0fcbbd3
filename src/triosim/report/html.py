"""One HTML page of a prediction that opens offline: numbers, timeline, memory, modules, communication, and their basis.

``page.html`` is the frame, ``page.css`` its looks and ``page.js`` its behaviour; :func:`write` puts them and the data
into one file.  The data travels as JSON inside the page; times of the picture are whole nanoseconds, delta-coded.
"""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import printable
from triosim.core.outputs import text_output
from triosim.core.units import format_bandwidth, format_bytes, format_count, format_time
from triosim.prediction.result import Efficiency, Result
from triosim.prediction.result.words import share, subtitle, title, unsure, varied_by, varies, verdict
from triosim.prediction.timeline import CATEGORIES, MemoryTrack, Slices, Timeline
from triosim.report.lanes import lanes
from triosim.report.messages import meetings, spans
from triosim.report.ranks import shown
from triosim.report.text import fold
from triosim.schedule.program import STREAMS, Op
from triosim.trace.tables import Phase

LIMIT = 200_000
"""Slices in a page.  More, and one rank of each class is shown; still more, and the shortest slices are left out."""

_HEADLINE = ("iteration_time_s", "interval_s", "confidence", "throughput", "efficiency")

UNSURE = 1
"""Causes of uncertainty that the page names."""

STEPS = 600
"""Steps of a memory curve; each shows the highest state within it, so that no peak is lost."""

LINKS = 200
"""Links listed, the busiest first."""

GROUPS = (
    "forward", "backward", "recompute", "optimizer", "compute", "tensor parallel", "data parallel", "stage to stage",
    "copy", "host", "communication",
)  # fmt: skip
"""What the page tells apart by colour."""

_NANOSECONDS = 1e9


def write(result: Result, path: str | os.PathLike[str], *, limit: int = LIMIT) -> None:
    """Write the page.

    Args:
        result: the prediction.
        path: where to, usually ``report.html``.
        limit: slices that the timeline shows at most.

    Raises:
        InputError: the file cannot be written.
    """
    page = render(result, limit=limit)
    with text_output(path) as out:
        out.write(page)


def render(result: Result, *, limit: int = LIMIT) -> str:
    """The page as text; see :func:`write`."""
    folder = resources.files("triosim.report")
    parts = {
        "/*style*/": (folder / "page.css").read_text("utf-8"),
        "/*script*/": (folder / "page.js").read_text("utf-8"),
        "/*data*/": _embed(data(result, limit=limit)),
        "<!--title-->": html.escape(printable(f"{title(result)} - TrioSim")),
    }
    page = (folder / "page.html").read_text("utf-8")
    for mark, text in parts.items():
        before, found, after = page.partition(mark)
        assert found, f"page.html lacks {mark}"
        page = before + text + after
    return page


def _embed(value: dict[str, Any]) -> str:
    """JSON that may stand inside a ``<script>`` element, whatever the names in it are."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def data(result: Result, *, limit: int = LIMIT) -> dict[str, Any]:
    """What the page shows, as plain values."""
    plain = result.to_dict()
    memory = result.memory
    value = {
        "title": title(result),
        "subtitle": subtitle(result),
        "verdict": verdict(memory),
        "headline": {key: plain[key] for key in _HEADLINE},
        "unsure": [*_varies(result), *(unsure(cause) for cause in result.uncertainty[:UNSURE])],
        "breakdown": plain["breakdown_s"],
        "memory": {key: held for key, held in plain["memory"].items() if key != "curve"},  # tracks say more
        "energy": plain["energy"],
        "devices": plain["devices"],
        "collectives": plain["collectives"],
        "modules": _modules(result),
        "warnings": list(result.warnings),
        "sources": [*result.sources, *(result.energy.sources if result.energy is not None else ())],
        "about": [
            ["Workload", _pairs(plain["workload"])],
            ["System", _pairs(plain["system"])],
            ["Plan", _pairs(plain["plan"])],
            ["Fidelity", _pairs(plain["fidelity"])],
            ["Efficiency", _efficiency(result.efficiency)],
            ["Simulation", _pairs(plain["simulation"])],
        ],
        "categories": list(CATEGORIES),
        "groups": list(GROUPS),
        "tracks": [_track(track, result.timeline) for track in result.timeline.memory if len(track.time)],
        "timeline": _timeline(result.timeline, limit),
        "links": _links(result.timeline),
    }
    return _finite(value)


def _varies(result: Result) -> list[str]:
    """What varies from iteration to iteration, a line each."""
    found = result.variation
    return [] if found is None else [f"from iteration to iteration: {varies(found)}", varied_by(found)]


def _finite(value: Any) -> Any:
    """The same values; what JSON cannot write becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _modules(result: Result) -> dict[str, Any]:
    """Rows ``[path, phase, compute s, exposed communication s, weight bytes]``, and names once each.

    ``whole_s`` is the time of one device of each stage in an iteration, which the shares are of.
    """
    folded = fold(row.module for row in result.layers)
    paths = list(folded)
    number = {path: i for i, path in enumerate(paths)}
    rows = [
        [number[row.module], row.phase, _short(row.compute_s), _short(row.exposed_communication_s), row.weight_bytes]
        for row in result.layers
    ]
    whole = result.iteration_time_s * max(len(result.stages), 1)
    return {"paths": paths, "folded": [folded[path] for path in paths], "rows": rows, "whole_s": whole}


def _short(seconds: float) -> float:
    return float(f"{seconds:.6g}")


def _efficiency(found: Efficiency) -> list[list[Any]]:
    """The same rows for the efficiency of the devices."""
    rate, peak, work = found.flop_per_s_per_device, found.peak_flop_per_s_per_device, found.model_flop
    rows = (
        ("MFU", share(found.mfu) if found.mfu is not None else "not known"),
        ("reached by a device", f"{format_count(rate)}FLOP/s" if rate is not None else ""),
        ("peak of a device", f"{format_count(peak)}FLOP/s" if peak is not None else ""),
        ("model FLOP", f"{format_count(work)}FLOP an iteration" if work is not None else ""),
        ("precision", found.precision),
        ("source", found.source),
    )
    return [[name, value, 0] for name, value in rows if value]


def _pairs(values: dict[str, Any], depth: int = 0) -> list[list[Any]]:
    """Rows ``[words, value, depth]`` for people: what ends in a unit is written with it, what is inside lies deeper."""
    pairs: list[list[Any]] = []
    for key, value in values.items():
        words = str(key).replace("_", " ")
        if isinstance(value, dict) and value:
            numbers = {f"{k}_{key}" if "flops" in str(key) else k: v for k, v in value.items()}
            pairs += [[words, "", depth], *_pairs(numbers, depth + 1)]
        elif isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value):
            for item in value:
                rest = {k: v for k, v in item.items() if k != "name"}
                pairs += [[words, str(item.get("name", "")), depth], *_pairs(rest, depth + 1)]
        elif value not in (None, "", (), [], {}):
            pairs.append([*_written(words, value), depth])
    return pairs


_UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (
    (" peak flops", lambda x: f"{format_count(x)}FLOP/s"),
    (" bytes per s", format_bandwidth),
    (" bytes", format_bytes),
    (" s", format_time),
)


def _written(words: str, value: Any) -> list[str]:
    """A name and its value with the unit that the name ends in."""
    if isinstance(value, bool):
        return [words, "yes" if value else "no"]
    if isinstance(value, int | float):
        for ending, formatted in _UNITS:
            if words.endswith(ending) and (ending != " s" or not words.endswith(" per s")):
                return [words.removesuffix(ending), formatted(value)]
        return [words, f"{value:,}" if isinstance(value, int) else f"{value:.6g}"]
    if isinstance(value, list | tuple):
        return [words, ", ".join(map(str, value))]
    return [words, str(value)]


def _track(track: MemoryTrack, timeline: Timeline) -> dict[str, Any]:
    """A memory curve in at most :data:`STEPS` steps: ``[time ns]`` and for each used category ``[KiB]``."""
    time, held = track.time, track.bytes
    if len(time) > STEPS and timeline.end > 0:
        step = np.minimum((time / timeline.end * STEPS).astype(np.int64), STEPS - 1)
        total = held.sum(axis=1)
        first = np.flatnonzero(np.diff(step, prepend=-1))
        keep, at = [], []
        for a, b in zip(first.tolist(), [*first[1:].tolist(), len(step)], strict=True):
            entering = max(a - 1, 0)  # what was held when the step began counts too
            keep.append(entering + int(total[entering:b].argmax()))
            at.append(step[a] * timeline.end / STEPS)
            if b < len(step) and step[b] > step[a] + 1:  # nothing changes until then: show what is left
                keep.append(b - 1)
                at.append((step[a] + 1) * timeline.end / STEPS)
        keep.append(len(time) - 1)
        at.append(float(time[-1]))
        time, held = np.array(at), held[keep]
    used = np.flatnonzero(held.any(axis=0))
    return {
        "rank": track.rank,
        "time": np.rint(time * _NANOSECONDS).astype(np.int64).tolist(),
        "categories": used.tolist(),
        "kib": [(held[:, c] // 1024).tolist() for c in used],
    }


def _links(timeline: Timeline) -> dict[str, Any]:
    links = timeline.links
    seconds = links.bytes / links.bandwidth
    order = np.lexsort((-links.bytes, -seconds))
    order = order[links.bytes[order] > 0][:LINKS]
    rows = [[links.name[i], int(links.bytes[i]), float(links.bandwidth[i]), _short(float(seconds[i]))] for i in order]
    return {"rows": rows, "carrying": int((links.bytes > 0).sum()), "of": len(links.name), "seconds": timeline.end}


def _timeline(timeline: Timeline, limit: int) -> dict[str, Any]:
    """The picture: for each lane its slices in columns, and tables of what the numbers in them stand for."""
    s = timeline.slices
    ranks = shown(timeline, None, limit)
    rows, notes = _pictured(timeline, ranks, limit)
    columns = (s.name[rows], s.module[rows], s.phase[rows], s.op[rows], s.bytes[rows], s.group[rows], _group(s, rows))
    kinds, kind = np.unique(np.stack(columns), axis=1, return_inverse=True)
    groups = sorted({int(g) for g in kinds[5] if g >= 0})
    return {
        "end": round(timeline.end * _NANOSECONDS),
        "iterations": _iterations(timeline),
        "names": list(timeline.names),
        "modules": list(timeline.modules),
        "phases": [p.name.lower() for p in Phase],
        "ops": [op.name.lower() for op in Op],
        "kinds": kinds.T.tolist(),
        "members": {str(g): _members(timeline.groups[g].tolist()) for g in groups},
        "ranks": [{"rank": r, "name": timeline.rank_names[r], "stage": timeline.rank_stage[r]} for r in ranks],
        "stages": len(set(timeline.rank_stage)),
        "lanes": _lanes(s, rows, kind.reshape(-1)),
        "slices": len(rows),
        "notes": notes,
    }


def _pictured(timeline: Timeline, ranks: Sequence[int], limit: int) -> tuple[NDArray[np.int64], list[str]]:
    """Slices of these ranks, the longest where there are more than ``limit``; and what is said of those left out."""
    s = timeline.slices
    rows = np.flatnonzero(np.isin(s.rank, ranks))
    notes = []
    if len(ranks) < len(timeline.rank_names):
        notes.append(f"Shown: {len(ranks)} of {len(timeline.rank_names)} ranks, one of each kind.")
    if len(rows) > limit:
        start, _, end = spans(s)
        seconds = (end - start)[rows]
        longest = np.argpartition(-seconds, limit)[:limit]
        least = float(seconds[longest].min())
        notes.append(
            f"Left out of the picture: the {len(rows) - limit:,} shortest slices ({format_time(least)} and less). "
            "All other numbers on this page count everything."
        )
        rows = np.sort(rows[longest])
    return rows, notes


def _lanes(s: Slices, rows: NDArray[np.int64], kind: NDArray[np.int64]) -> list[dict[str, Any]]:
    """What is drawn in each lane of a rank's streams: slices in columns, in nanoseconds."""
    start_ns, begin_ns, end_ns = (np.rint(t[rows] * _NANOSECONDS).astype(np.int64) for t in spans(s))
    end_ns = np.maximum(end_ns, start_ns)
    begin_ns = np.clip(begin_ns, start_ns, end_ns)
    stream = np.where(s.stream[rows] < 0, len(STREAMS), s.stream[rows]).astype(np.int64)
    track = s.rank[rows].astype(np.int64) * (len(STREAMS) + 1) + stream
    lane = lanes(track, start_ns, end_ns)
    meeting = _partners(meetings(s)[rows])
    place = track * (int(lane.max(initial=0)) + 1) + lane
    order = np.lexsort((start_ns, place))
    bounds = np.flatnonzero(np.diff(place[order], prepend=-1, append=-1))
    out = []
    for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        at = order[a:b]
        row = {
            "rank": int(s.rank[rows[at[0]]]),
            "stream": (*STREAMS, "receive")[stream[at[0]]],
            "kind": kind[at].tolist(),
            "start": np.diff(start_ns[at], prepend=0).tolist(),
            "length": (end_ns - start_ns)[at].tolist(),
            "micro_batch": _runs(s.micro_batch[rows[at]]),
            "iteration": _runs(s.iteration[rows[at]]),
        }
        if (begin_ns > start_ns)[at].any():
            row["wait"] = (begin_ns - start_ns)[at].tolist()
        if (meeting[at] >= 0).any():
            row["meeting"] = meeting[at].tolist()
        out.append(row)
    return out


def _group(s: Any, rows: NDArray) -> NDArray[np.int64]:
    """Row of :data:`GROUPS` of each slice."""
    op, phase, stream = s.op[rows], s.phase[rows], s.stream[rows]
    names = np.array([GROUPS.index({"tp": "tensor parallel", "dp": "data parallel"}.get(name, "communication"))
                      for name in (*STREAMS, "")])  # fmt: skip
    by_phase = np.array([GROUPS.index(p.name.lower()) for p in Phase] + [GROUPS.index("compute")])
    return np.select(
        [
            op == Op.COMPUTE,
            op == Op.COLLECTIVE,
            (op == Op.SEND) | (op == Op.RECEIVE),
            (op == Op.FETCH) | (op == Op.STORE),
        ],
        [by_phase[phase], names[stream], GROUPS.index("stage to stage"), GROUPS.index("copy")],
        GROUPS.index("host"),
    ).astype(np.int64)


def _partners(meeting: NDArray[np.int64]) -> NDArray[np.int64]:
    """Meetings numbered from 0, those with nobody else in the picture left out."""
    numbers, inverse, count = np.unique(meeting, return_inverse=True, return_counts=True)
    real = (numbers >= 0) & (count > 1)
    renumbered = np.where(real, np.cumsum(real) - 1, -1)
    return renumbered[inverse.reshape(-1)]


def _runs(values: NDArray) -> list[int]:
    """Run lengths: value, count, value, count, ..."""
    change = np.flatnonzero(np.diff(values, prepend=values[:1] - 1))
    count = np.diff(change, append=len(values))
    return np.stack([values[change], count], axis=1).reshape(-1).tolist()


def _iterations(timeline: Timeline) -> list[int]:
    """When each iteration but the first begins, nanoseconds."""
    s = timeline.slices
    first = [s.start[s.iteration == i] for i in range(1, timeline.iterations)]
    return [round(float(start.min()) * _NANOSECONDS) for start in first if len(start)]


def _members(ranks: list[int], most: int = 16) -> str:
    text = ", ".join(map(str, ranks[:most]))
    return text if len(ranks) <= most else f"{text}, ... ({len(ranks)} ranks)"
