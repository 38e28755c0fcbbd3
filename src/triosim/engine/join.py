"""Several jobs on one network at once, as one graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.engine.graph import EngineNetwork, Graph, Task

Job = tuple[Graph, EngineNetwork]


def join(jobs: Sequence[Job]) -> Job:
    """One graph in which all these jobs run, each with tasks, streams, counters and routes of its own, on common links.

    The tasks of a job follow those of the job before it, in their order; so do its streams, collectives, instances,
    counters and routes.  Jobs meet nowhere but on links: one whose links no other uses runs as it does alone.

    Args:
        jobs: graphs, each with the network that it was made for; at least one.  All name the same links by the same
            numbers; routes, latencies and weights may differ.

    Raises:
        ValueError: the jobs do not agree on the links.
    """
    sizes = np.array([_sizes(*job) for job in jobs])
    moved = [
        _moved(graph, *by) for (graph, _), by in zip(jobs, (np.cumsum(sizes, axis=0) - sizes).tolist(), strict=True)
    ]
    graph = Graph(
        kind=np.concatenate([g.kind for g in moved]),
        stream=np.concatenate([g.stream for g in moved]),
        amount=np.concatenate([g.amount for g in moved]),
        what=np.concatenate([g.what for g in moved]),
        member=np.concatenate([g.member for g in moved]),
        before=Ragged.stacked([g.before for g in moved]),
        streams=sum(g.streams for g in moved),
        need=_filled([g.need for g in moved], [len(g) for g in moved], 0),
        collectives=tuple(c for g in moved for c in g.collectives),
        instances=np.concatenate([g.instances for g in moved]),
        tokens=np.concatenate([g.tokens for g in moved]),
    )
    return graph, _wires([wires for _, wires in jobs])


def _sizes(graph: Graph, wires: EngineNetwork) -> list[int]:
    """How many there are of what :func:`_moved` moves."""
    collectives, instances, counters = len(graph.collectives), len(graph.instances), len(graph.tokens)
    return [graph.streams, len(graph), len(wires.routes), collectives, instances, counters]


def _moved(
    graph: Graph, streams: int, tasks: int, routes: int, collectives: int, instances: int, counters: int
) -> Graph:
    """The graph after so many others of everything."""
    what = np.zeros(len(Task), np.int32)
    what[Task.TRANSFER], what[Task.COLLECTIVE] = routes, instances
    what[[Task.PUT, Task.TAKE]] = counters
    return replace(
        graph,
        stream=np.where(graph.stream >= 0, graph.stream + streams, -1).astype(np.int32),
        what=graph.what + what[graph.kind],
        before=Ragged((graph.before.values + tasks).astype(np.int32), graph.before.offsets),
        collectives=tuple(replace(c, route=(c.route + routes).astype(np.int32)) for c in graph.collectives),
        instances=(graph.instances + collectives).astype(np.int32),
    )


def _wires(networks: Sequence[EngineNetwork]) -> EngineNetwork:
    """The common links, with the routes of all."""
    first = networks[0]
    for number, other in enumerate(networks):
        if not np.array_equal(other.capacity, first.capacity):
            raise ValueError(f"job {number} has other links than job 0: all must be made for one network")
        if other.ends is not None and first.ends is not None and not np.array_equal(other.ends, first.ends):
            raise ValueError(f"the links of job {number} join other nodes than those of job 0")
    return EngineNetwork(
        first.capacity,
        Ragged.stacked([network.routes for network in networks]),
        np.concatenate([network.latency for network in networks]),
        _filled([network.weights for network in networks], [len(network.routes.values) for network in networks], 1),
        next((network.ends for network in networks if network.ends is not None), None),
    )


def _filled(
    columns: Sequence[NDArray[np.int32] | None], lengths: Sequence[int], value: int
) -> NDArray[np.int32] | None:
    """One column of all, with this value where a job has none; None where no job has one."""
    if all(column is None for column in columns):
        return None
    filled = [np.full(n, value, np.int32) if c is None else c for c, n in zip(columns, lengths, strict=True)]
    return np.concatenate(filled)


class LateStart(NamedTuple):
    """When a job begins.

    Attributes:
        ticks: not before.
        after: a job that must have ended, -1 for none.
    """

    ticks: int = 0
    after: int = -1


def delay_jobs(graph: Graph, jobs: Sequence[slice], starts: Sequence[LateStart]) -> Graph:
    """The graph of several jobs, each of which begins when it is let.

    Behind all tasks comes a clock for each job, COMPUTE on a stream of its own, and a JOIN that waits for it and for
    what ends the job before: the last task of each stream, and what is on none and nothing waits for.  What begins a
    job waits for that: what waits for nothing and is first on its stream, or on none.

    Args:
        graph: as :func:`join` makes it.
        jobs: tasks of each job.
        starts: when each begins.
    """
    n, count = len(graph), len(jobs)
    extended = _longer(graph, [start.ticks for start in starts])
    more: dict[int, list[int]] = {}
    free = graph.stream < 0
    begins, ends = _firsts(graph.stream), _firsts(graph.stream[::-1])[::-1]
    begins = (begins | free) & (graph.before.lengths() == 0)
    ends |= free & (np.bincount(graph.before.values.astype(np.int64), minlength=n) == 0)
    for number, (own, start) in enumerate(zip(jobs, starts, strict=True)):
        gate = n + count + number
        before = [n + number]
        if start.after >= 0:
            other = jobs[start.after]
            before += (other.start + np.flatnonzero(ends[other])).tolist()
        more[gate] = before
        more.update((own.start + row, [gate]) for row in np.flatnonzero(begins[own]).tolist())
    return replace(extended, before=_with_more(extended.before, more))


def _firsts(stream: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether each task is the first of its stream."""
    found = np.zeros(len(stream), bool)
    on = np.flatnonzero(stream >= 0)
    found[on[np.unique(stream[on], return_index=True)[1]]] = True
    return found


def _longer(graph: Graph, ticks: Sequence[int]) -> Graph:
    """The graph with a clock for each of some times, and after them as many joins."""
    count = len(ticks)
    none, nothing = np.full(2 * count, -1, np.int32), np.zeros(2 * count, np.int32)
    clocks = np.concatenate([np.arange(count) + graph.streams, np.full(count, -1)])
    return replace(
        graph,
        kind=np.append(graph.kind, np.repeat([Task.COMPUTE, Task.JOIN], count)).astype(np.int8),
        stream=np.append(graph.stream, clocks).astype(np.int32),
        amount=np.concatenate([graph.amount, np.array(ticks, np.int64), np.zeros(count, np.int64)]),
        what=np.append(graph.what, none), member=np.append(graph.member, nothing),
        before=Ragged.stacked([graph.before, Ragged.empty(2 * count, np.int32)]), streams=graph.streams + count,
        need=None if graph.need is None else np.append(graph.need, nothing),
    )  # fmt: skip


def _with_more(before: Ragged, more: Mapping[int, Sequence[int]]) -> Ragged:
    """Predecessors, and more of some tasks."""
    rows = np.repeat(list(more), [len(each) for each in more.values()])
    return with_predecessors(before, rows, np.array([value for each in more.values() for value in each], np.int64))


def with_predecessors(before: Ragged, tasks: NDArray[np.int64], predecessors: NDArray[np.int64]) -> Ragged:
    """Predecessors of tasks, and behind those of each of some tasks one more, a task being named once for each.

    Args:
        before: of all tasks.
        tasks, predecessors: which wait for which besides, shape ``(more,)``.
    """
    rows = np.concatenate([before.rows(), tasks])
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows.astype(np.int64), minlength=len(before))
    values = np.concatenate([before.values, predecessors])[order]
    return Ragged(values.astype(np.int32), np.concatenate([[0], np.cumsum(counts)]))
