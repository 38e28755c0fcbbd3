"""The timeline as a Chrome trace in the words of Kineto, PyTorch's profiler.

Whatever reads PyTorch's traces reads this: Perfetto (https://ui.perfetto.dev), ``chrome://tracing``, Holistic Trace
Analysis, TraceLens, and TrioSim itself.  One process per rank and one thread per stream; kernels, launches, collectives
and steps carry the names and arguments that Kineto gives them (Chrome's "Trace Event Format", and
``libkineto/src/output_json.cpp`` of Kineto for the arguments).

What differs from a recorded trace
* A kernel is named after its operator: a simulation knows no kernel names.
* ``dtype`` of a collective is ``Byte``, and its element counts are bytes.
* The host's time for an operator is one ``cpu_op``; the launch is drawn as its second half.  What costs the host
  nothing has a launch without length.
* A receive is shown while its bytes are under way, not from the moment it is posted.

Times are microseconds with six digits behind the point, which is exact: the engine counts picoseconds.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import distinct
from triosim.core.outputs import text_output
from triosim.core.units import MOST_SUM, picoseconds
from triosim.prediction.timeline import CATEGORIES, Timeline
from triosim.report.lanes import lanes
from triosim.report.lines import BETWEEN, LineTemplates
from triosim.report.messages import collective_kind, meetings, spans
from triosim.report.ranks import shown
from triosim.schedule.program import HOST, STREAMS, Op
from triosim.trace.tables import Phase

LIMIT = 1_000_000
"""Slices above which only one rank of each class is written: about 400 MB of JSON, beyond which viewers grow slow."""

FIRST_STREAM = 7
"""Thread number of the compute stream: what CUDA's default stream is called in PyTorch's traces."""

ARROWS = 8
"""Groups up to this size get an arrow to every member; larger ones only to the member that waited longest."""

_RECEIVE = len(STREAMS)
_THREADS = len(STREAMS) + 1
_KERNEL = {  # Kineto's kernel name and "Collective name" of each kind
    "all_reduce": ("AllReduce", "allreduce"), "all_gather": ("AllGather", "_allgather_base"),
    "reduce_scatter": ("ReduceScatter", "_reduce_scatter_base"), "broadcast": ("Broadcast", "broadcast"),
    "reduce": ("Reduce", "reduce"), "gather": ("SendRecv", "gather"), "scatter": ("SendRecv", "scatter"),
    "all_to_all": ("SendRecv", "all_to_all"), "": ("Generic", "collective"),
}  # fmt: skip
_STREAM_NAMES = {
    "compute": "compute", "tp": "tensor-parallel communication", "dp": "data-parallel communication",
    "send": "send to other stages", "copy": "copy", "host": "host",
}  # fmt: skip


def write(
    timeline: Timeline,
    path: str | os.PathLike[str],
    *,
    ranks: Sequence[int] | None = None,
    limit: int = LIMIT,
) -> list[Path]:
    """Write the timeline to ``path``, compressed if the name ends in ``.gz``; returns the files written.

    A name that contains ``{rank}`` makes one file per rank, which is what tools for many ranks (HTA, TraceLens) want.

    Args:
        timeline: what to write.
        path: ``trace.json``, ``trace.json.gz`` or ``trace-{rank}.json.gz``.
        ranks: only these; by default all ranks of the timeline if it has at most ``limit`` slices, else one rank of
            each class.
        limit: see ``ranks``.

    Raises:
        InputError: a rank is not in the timeline, or the file cannot be written.
    """
    chosen = shown(timeline, ranks, limit)
    if "{rank}" not in str(path):
        files = [(Path(path), chosen)]
    else:
        files = [(Path(str(path).replace("{rank}", str(rank))), [rank]) for rank in chosen]
    meeting = meetings(timeline.slices)
    for file, some in files:
        with text_output(file) as out:
            _write(timeline, some, meeting, out)
    return [file for file, _ in files]


def _write(timeline: Timeline, ranks: list[int], meeting: NDArray[np.int64], out: TextIO) -> None:
    out.write(_head(timeline, ranks))
    events = _Events(timeline, ranks, meeting)
    separator = ""
    for lines in filter(None, events.all()):
        out.write(separator)
        out.write(lines)
        separator = BETWEEN
    out.write("\n]}\n")


def _head(timeline: Timeline, ranks: list[int]) -> str:
    members = timeline.groups.lists()
    ours = set(ranks)
    groups = [row for row, group in enumerate(members) if not ours.isdisjoint(group)]
    about: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": rank, "name": _device(timeline.rank_names[rank])} for rank in ranks],
        "distributedInfo": {
            "backend": "nccl",
            "rank": ranks[0] if ranks else 0,
            "world_size": len(timeline.rank_names),
            "pg_count": len(groups),
            "pg_config": [
                {
                    "pg_name": str(row),
                    "pg_desc": f"group {row}",
                    "backend_config": "cuda:nccl",
                    "pg_size": len(members[row]),
                    "ranks": members[row],
                }
                for row in groups
            ],
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceName": "TrioSim simulation",
        "triosim": {"simulated": True, "ranks": len(timeline.rank_names), "ranks_written": ranks,
                    "iterations": timeline.iterations},
    }  # fmt: skip
    text = ",\n".join(f"{_json(key)}: {_json(value)}" for key, value in about.items())
    return "{\n" + text + ',\n"traceEvents": [\n'


def _device(rank_name: str) -> str:
    """``"H100-SXM5-80GB"`` of ``"H100-SXM5-80GB 3 (server 0)"`` or of ``"gpu3 (H100-SXM5-80GB)"``."""
    match = re.fullmatch(r"(.+?) \d+ \(server.*\)|\S+ \((.+)\)", rank_name)
    return (match[1] or match[2]) if match else rank_name


class _Events:
    """The events of some ranks, as lines of JSON."""

    def __init__(self, timeline: Timeline, ranks: list[int], meeting: NDArray[np.int64]) -> None:
        s = timeline.slices
        rows = np.flatnonzero(np.isin(s.rank, ranks))
        self.timeline, self.ranks = timeline, ranks
        self.op, self.rank = s.op[rows], s.rank[rows].astype(np.int64)
        self.start, begin, end = (picoseconds(t[rows], "a time of the timeline", MOST_SUM) for t in spans(s))
        self.begin, self.end = np.maximum(begin, self.start), np.maximum(end, self.start)
        self.rows, self.meeting = rows, meeting[rows]
        self.by_rank = np.argsort(self.rank, kind="stable")
        stream = np.where(s.stream[rows] < 0, _RECEIVE, s.stream[rows]).astype(np.int64)
        lane = lanes(self.rank * _THREADS + stream, self.start, self.end)
        self.thread = FIRST_STREAM + stream + _THREADS * lane
        self.launched, self.launcher = self._join()
        self.flow = len(rows) + 1  # correlations take the numbers below
        bounds = np.searchsorted(self.rank[self.by_rank], [*sorted(ranks), len(timeline.rank_names)])
        self.of_rank = dict(zip(sorted(ranks), np.split(self.by_rank, bounds[1:-1]), strict=True))
        self._forms = LineTemplates(partial(_form, timeline))  # not a method, which would keep all of this alive

    def _join(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each host slice what it launches, and for each device slice who launched it; -1 for nothing.

        In the rows of a rank, which are in program order, a launch stands right before what it launches.
        """
        s, rows = self.timeline.slices, self.rows
        launched = np.full(len(rows), -1, np.int64)
        launcher = np.full(len(rows), -1, np.int64)
        order = self.by_rank
        ordered = rows[order]
        op = s.op[ordered]
        joined = (op[:-1] == Op.ISSUE) & (op[1:] != Op.ISSUE) & (op[1:] != Op.RECEIVE)
        for column in (s.rank, s.operator, s.micro_batch, s.iteration):
            there = column[ordered]
            joined &= there[:-1] == there[1:]
        at = np.flatnonzero(joined)
        at = at[self.end[order[at]] <= self.start[order[at + 1]]]
        launched[order[at]], launcher[order[at + 1]] = order[at + 1], order[at]
        return launched, launcher

    def all(self) -> Iterator[str]:
        """Lines of events, some at a time, :data:`BETWEEN` them."""
        yield BETWEEN.join(line for rank in self.ranks for line in self._names(rank))
        for rank in self.ranks:
            yield from self._steps(rank)
            yield from self._slices(rank)
            yield from self._launches(rank)
            yield from self._memory(rank)
            yield from self._power(rank)
        yield from self._arrows()

    def _names(self, rank: int) -> list[str]:
        timeline = self.timeline
        labels = timeline.rank_names[rank]
        if len(set(timeline.rank_stage)) > 1:
            labels += f", pipeline stage {timeline.rank_stage[rank]}"
        lines = [
            _meta("process_name", rank, 0, name=f"rank {rank} ({timeline.rank_names[rank]})"),
            _meta("process_labels", rank, 0, labels=labels),
            _meta("process_sort_index", rank, 0, sort_index=rank),
        ]
        threads = set(self.thread[self.of_rank[rank]].tolist()) | {FIRST_STREAM + HOST}
        for thread in sorted(threads):
            lane, stream = divmod(thread - FIRST_STREAM, _THREADS)
            name = "receive from other stages"
            if stream != _RECEIVE:
                name = _STREAM_NAMES.get(STREAMS[stream], STREAMS[stream])
            first = -1 if stream == HOST else stream
            lines += [
                _meta("thread_name", rank, thread, name=name + (f" {lane + 1}" if lane else "")),
                _meta("thread_sort_index", rank, thread, sort_index=first * 100 + lane),
            ]
        return lines

    def _step_bounds(self, rank: int) -> dict[int, tuple[int, int]]:
        """Each iteration from its first thing on the host (or, without a host, on the device) to the next one's."""
        rows = self.of_rank[rank]
        host = rows[self.op[rows] == Op.ISSUE]
        rows = host if len(host) else rows
        iteration = self.timeline.slices.iteration[self.rows[rows]]
        numbers = distinct(iteration).tolist()
        starts = [int(self.start[rows[iteration == n]].min()) for n in numbers]
        ends = [*starts[1:], int(self.end[self.of_rank[rank]].max(initial=0))]
        return dict(zip(numbers, zip(starts, ends, strict=True), strict=True))

    def _steps(self, rank: int) -> Iterator[str]:
        """``ProfilerStep#N`` on the host's thread."""
        about = {"ph": "X", "cat": "user_annotation", "pid": rank, "tid": FIRST_STREAM + HOST}
        for n, (start, end) in self._step_bounds(rank).items():
            line = _json({**about, "name": f"ProfilerStep#{n}", "args": {"iteration": n}})
            yield f'{line[:-1]},"ts":{_us(start)},"dur":{_us(end - start)}}}'

    def _slices(self, rank: int) -> Iterator[str]:
        """Slices of one rank."""
        s = self.timeline.slices
        at = self.of_rank[rank]
        at = at[np.lexsort((self.start[at], self.thread[at]))]
        rows = self.rows[at]
        start, duration = self.start[at], self.end[at] - self.start[at]
        kinds = (
            self.op[at], s.name[rows], s.module[rows], s.phase[rows], s.operator[rows], self.thread[at], s.group[rows],
            s.bytes[rows],
        )  # fmt: skip
        launcher = np.where(self.launcher[at] >= 0, self.launcher[at], at)
        ranks = self.rank[at]
        numbers = (
            ranks, *np.divmod(start, 10**6), *np.divmod(duration, 10**6), ranks, at + 1, launcher + 1,
            s.micro_batch[rows], s.iteration[rows], *np.divmod(self.begin[at] - self.start[at], 10**6),
        )  # fmt: skip
        return self._forms.lines(kinds, numbers)

    def _launches(self, rank: int) -> Iterator[str]:
        """The launch inside each host slice, and the arrow to what it launches."""
        at = self.of_rank[rank]
        at = at[self.launched[at] >= 0]
        to = self.launched[at]
        middle = (self.start[at] + self.end[at]) // 2
        host, device = self.thread[at], self.thread[to]
        where = f'"pid":{rank},"tid":%d,"ts":%d.%06d'
        form = (
            f'{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel",{where},"dur":%d.%06d,'
            '"args":{"correlation":%d,"External id":%d}},\n'
            f'{{"ph":"s","cat":"ac2g","name":"ac2g","id":%d,{where}}},\n'
            f'{{"ph":"f","bp":"e","cat":"ac2g","name":"ac2g","id":%d,{where}}}'
        )
        begun = np.divmod(middle, 10**6)
        columns = (
            host, *begun, *np.divmod(self.end[at] - middle, 10**6), to + 1, at + 1,
            to + 1, host, *begun, to + 1, device, *np.divmod(self.start[to], 10**6),
        )  # fmt: skip
        yield from LineTemplates(lambda: form).lines((), columns)
        yield from self._free_launches(rank)

    def _free_launches(self, rank: int) -> Iterator[str]:
        """Launches without length of what costs the host nothing: tools tell by them what belongs to which step."""
        at = self.of_rank[rank]
        at = at[(self.launcher[at] < 0) & (self.op[at] != Op.ISSUE)]
        bounds = self._step_bounds(rank)
        numbers, ends = np.array(list(bounds), np.int64), np.array([end for _, end in bounds.values()], np.int64)
        latest = ends[np.searchsorted(numbers, self.timeline.slices.iteration[self.rows[at]])] - 1
        form = (
            f'{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":{rank},"tid":{FIRST_STREAM + HOST},'
            '"ts":%d.%06d,"dur":0,"args":{"correlation":%d}}'
        )
        columns = (*np.divmod(np.minimum(self.start[at], latest), 10**6), at + 1)
        return LineTemplates(lambda: form).lines((), columns)

    def _memory(self, rank: int) -> Iterator[str]:
        """Counters of what is held, for ranks whose memory is known."""
        for track in self.timeline.memory:
            if track.rank != rank or not len(track.time):
                continue
            used = np.flatnonzero(track.bytes.any(axis=0))
            names = ",".join(f'"{CATEGORIES[c]}":%d' for c in used)
            form = f'{{"ph":"C","name":"memory (bytes)","pid":{rank},"ts":%d.%06d,"args":{{{names}}}}}'
            time = picoseconds(track.time, "a time of the timeline", MOST_SUM)
            changed = np.ones(len(time), bool)
            changed[:-1] = time[1:] != time[:-1]  # of several changes at one instant the last holds
            columns = (*np.divmod(time[changed], 10**6), *track.bytes[changed][:, used].T)
            yield from LineTemplates(lambda form=form: form).lines((), columns)

    def _power(self, rank: int) -> Iterator[str]:
        """A counter of what the device draws, for ranks of which that is known."""
        for track in self.timeline.power:
            if track.rank != rank or not len(track.time):
                continue
            template = f'{{"ph":"C","name":"power (W)","pid":{rank},"ts":%d.%06d,"args":{{"device":%.1f}}}}'
            time = picoseconds(track.time, "a time of the timeline", MOST_SUM)
            rows = zip(*(column.tolist() for column in (*np.divmod(time, 10**6), track.watts)), strict=True)
            yield BETWEEN.join([template % row for row in rows])

    def _arrows(self) -> Iterator[str]:
        """From each send to its arrival, and from the member a collective waited for to those that waited."""
        at = np.flatnonzero(self.meeting >= 0)
        arrives = (self.op[at] != Op.SEND) & (self.op[at] != Op.COLLECTIVE)
        at = at[np.lexsort((self.start[at], arrives, self.meeting[at]))]
        bounds = np.flatnonzero(np.diff(self.meeting[at], prepend=-1, append=-1))
        first, many = np.repeat(bounds[:-1], np.diff(bounds)), np.repeat(np.diff(bounds), np.diff(bounds))
        place, together = np.arange(len(at)) - first, self.op[at] == Op.COLLECTIVE
        others = (place < many - 1) & ((many <= ARROWS) | (place == 0))
        drawn = np.flatnonzero(np.where(together, others, (place == 0) & (many > 1)))
        together = together[drawn]
        tail = at[np.where(together, first[drawn] + many[drawn] - 1, drawn)]
        head = at[np.where(together, drawn, drawn + 1)]
        left = np.where(together, self.start[tail], self.begin[tail])
        arrived = np.where(together, left, np.maximum(left, self.start[head]))
        flow = self.flow + 1 + np.arange(len(drawn))
        columns = (
            flow, self.rank[tail], self.thread[tail], *np.divmod(left, 10**6),
            flow, self.rank[head], self.thread[head], *np.divmod(arrived, 10**6),
        )  # fmt: skip
        return LineTemplates(_arrow).lines((together,), columns)


def _form(
    timeline: Timeline, op: int, name: int, module: int, phase: int, operator: int, thread: int, group: int, size: int
) -> str:
    """One line of JSON with places for rank, times, rank, numbers, micro-batch, iteration and waiting time."""
    title = timeline.names[name]
    about: dict[str, Any] = {}
    category = "kernel"
    if op == Op.ISSUE:
        category = "cpu_op"
    elif op == Op.COLLECTIVE:
        members = timeline.groups[group].tolist() if group >= 0 else []
        kernel, word = _KERNEL[collective_kind(title)]
        about = {**_sizes(collective_kind(title), size, len(members)), "Collective name": word, "dtype": "Byte",
                 "Group size": len(members), "Process Group Name": str(group),
                 "Process Group Description": f"group {group}", "Process Group Ranks": str(members)}  # fmt: skip
        title = f"ncclDevKernel_{kernel}"
    elif op in (Op.SEND, Op.RECEIVE):
        about = {"Collective name": "send" if op == Op.SEND else "recv", "In msg nelems": size,
                 "Out msg nelems": size, "dtype": "Byte", "Group size": 2}  # fmt: skip
        title = "ncclDevKernel_SendRecv"
    elif op in (Op.FETCH, Op.STORE):
        category = "gpu_memcpy"
        about = {"bytes": size}
        title = "Memcpy DtoH" if op == Op.STORE else "Memcpy DtoD" if "device" in title else "Memcpy HtoD"
    if title != timeline.names[name]:
        about["name"] = timeline.names[name]
    if operator >= 0:
        about["operator"] = operator
    if module >= 0:
        about["module"] = timeline.modules[module]
    if phase >= 0:
        about["phase"] = Phase(phase).name.lower()
    # A name may hold a percent sign; the rest is ours.
    head = _json({"ph": "X", "cat": category, "name": title})[:-1].replace("%", "%%")
    args = _json(about)[1:-1].replace("%", "%%") + ("," if about else "")
    if op == Op.ISSUE:
        args = f'%.0s{args}"External id":%d%.0s'
    else:
        args = f'"device":%d,"stream":{thread},{args}"correlation":%d,"External id":%d'
    waited = "%.0s%.0s" if op in (Op.ISSUE, Op.COMPUTE) else ',"waited_us":%d.%06d'
    return (
        f'{head},"pid":%d,"tid":{thread},"ts":%d.%06d,"dur":%d.%06d,"args":{{{args}'
        f',"micro_batch":%d,"iteration":%d{waited}}}}}'
    )


def _arrow(together: int) -> str:
    what = "collective" if together else "message"
    same = f'"cat":"{what}","name":"{what}","id":%d,"pid":%d,"tid":%d,"ts":%d.%06d'
    return f'{{"ph":"s",{same}}},\n{{"ph":"f","bp":"e",{same}}}'


def _sizes(kind: str, size: int, members: int) -> dict[str, int]:
    """Element counts of one rank's input and output, as PyTorch states them, from the full buffer's bytes."""
    part = -(-size // max(members, 1))
    sent = part if kind in ("all_gather", "gather") else size
    got = part if kind in ("reduce_scatter", "scatter") else size
    return {"In msg nelems": sent, "Out msg nelems": got}


def _us(ticks: int) -> str:
    whole_us, rest = divmod(ticks, 10**6)
    return f"{whole_us}.{rest:06d}"


def _meta(what: str, rank: int, thread: int, **args: Any) -> str:
    return _json({"ph": "M", "name": what, "pid": rank, "tid": thread, "ts": 0, "args": args})


_json = json.JSONEncoder(separators=(",", ":")).encode
"""As :func:`json.dumps`, which makes an encoder for every text."""
