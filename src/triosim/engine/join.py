"""Several jobs on one network at once, as one graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
