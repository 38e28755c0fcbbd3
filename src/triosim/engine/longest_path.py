"""The longest path through a graph for many draws of durations, transfers sharing links as they did.

How links are shared is not worked out again for each draw.  Every transfer takes what it took when the network was
shared, the part of it that goes with the rate of links divided by their factor, so that a draw costs a maximum for each
dependency and a sum for each task.  Where no two transfers ever meet on a link this is what playing gives; where they
meet, it leaves out how much longer or shorter they are together when something else moves.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.engine.column_types import column
from triosim.engine.graph import CIRCLE, UNLIMITED, EngineNetwork, Graph, GraphRun, Stuck, Task
from triosim.engine.monte_carlo import scale_amounts
from triosim.engine.play import play, selected_engine
from triosim.engine.solver import NetworkModel


@dataclass(frozen=True)
class Durations:
    """What each task of a played graph takes, float64, ticks, shape ``(tasks,)``.

    Attributes:
        fixed: whatever the links do; of a task that computes all of it.
        shared: at the rates that links had, the part that goes with them.
    """

    fixed: NDArray[np.float64]
    shared: NDArray[np.float64]


def has_longest_path(graph: Graph) -> bool:
    """Whether every task of a graph waits for all that it names, so that it can be played again as the longest way."""
    chooses = graph.need is not None and bool((graph.need > 0).any())
    return not chooses and not bool(((graph.kind == Task.PUT) | (graph.kind == Task.TAKE)).any())


def task_durations(
    graph: Graph, wires: EngineNetwork, model: NetworkModel, played: GraphRun, slower: float | None = None
) -> Durations:
    """What the tasks of a played graph take.

    Args:
        graph, wires, model: as it was played.
        played: what came of it.
        slower: factor below 1 of all link rates at which it is played once more, to see which part of a transfer goes
            with them; None where links always stay as they are.
    """
    moves = (graph.kind == Task.TRANSFER) | (graph.kind == Task.COLLECTIVE)
    slowly = None
    if slower is not None:
        rates = np.maximum(scale_amounts(wires.capacity, np.full(len(wires.capacity), slower)), 1)
        slow = replace(wires, capacity=np.where(wires.capacity == UNLIMITED, UNLIMITED, rates))
        slowly = _moving(play(graph, slow, model), moves)
    took, shared = _moving(played, moves), np.zeros(len(graph))
    if slower is not None and slowly is not None:
        shared = np.clip((slowly - took) / (1 / slower - 1), 0.0, took)
    fixed = np.where(graph.kind == Task.COMPUTE, graph.amount, 0).astype(np.float64)
    return Durations(fixed + took - shared, shared)


def _moving(played: GraphRun, moves: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Ticks that the bytes of each task moved; 0 of what moves none."""
    ticks = played.finish - played.begin
    ticks *= moves
    return ticks.astype(np.float64)


def longest_path(
    graph: Graph,
    took: Durations,
    kind: NDArray[np.int32],
    factors: NDArray[np.float64],
    links: NDArray[np.float64],
    at: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When the last task ends, and some others, in each draw.

    Args:
        graph: the tasks; :func:`has_longest_path`.
        took: what each takes.
        kind: column of ``factors`` that the fixed part of a task that computes is multiplied by, -1 for none, shape
            ``(tasks,)``.
        factors: 0 or more, shape ``(draws, kinds)``.
        links: factor of all link rates, above 0, shape ``(draws,)``.
        at: tasks.

    Returns:
        Ticks of the end of each draw, shape ``(draws,)``, and of the tasks, shape ``(draws, len(at))``.

    Raises:
        Stuck: some tasks can never end.
        ValueError: the graph cannot be played so.
    """
    if not has_longest_path(graph):
        raise ValueError("tasks that wait for some of what they name, or for tokens, cannot be played as a longest way")
    longer = np.ascontiguousarray(1 / links)
    given = (column(kind, "kind", np.int32), took.fixed, took.shared, np.ascontiguousarray(factors, np.float64), longer)
    if selected_engine() == "native":
        from triosim.engine import native

        ends, found, complete = native.replay(graph, *given, np.ascontiguousarray(at, np.int64))
        if complete:
            return ends, found.reshape(len(links), len(at))
        raise Stuck(CIRCLE)
    return _replay(graph, *given, at)


def _replay(
    graph: Graph,
    kind: NDArray[np.int32],
    fixed: NDArray[np.float64],
    shared: NDArray[np.float64],
    factors: NDArray[np.float64],
    longer: NDArray[np.float64],
    at: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The specification: all draws at once, task by task, as soon as what a task waits for has ended."""
    tasks, nodes = len(graph), len(graph) + len(graph.instances)
    needs: list[list[int]] = [[] for _ in range(nodes)]
    last: dict[int, int] = {}
    for task in range(tasks):
        waits = task
        if graph.kind[task] == Task.COLLECTIVE:  # members wait for each other at a node of their own
            waits = tasks + int(graph.what[task])
            needs[task].append(waits)
        needs[waits] += graph.before[task].tolist()
        stream = int(graph.stream[task])
        if stream >= 0:
            if stream in last:
                needs[waits].append(last[stream])
            last[stream] = task
    after: list[list[int]] = [[] for _ in range(nodes)]
    for node, before in enumerate(needs):
        for one in before:
            after[one].append(node)
    left, unread = [len(before) for before in needs], [len(one) for one in after]
    keep = set(at.tolist())
    ready = [node for node in range(nodes) if not left[node]]
    finish: dict[int, NDArray[np.float64]] = {}
    end, done = np.zeros(len(longer)), 0
    while ready:
        node = ready.pop()
        now = np.zeros(len(longer))
        for one in needs[node]:
            now = np.maximum(now, finish[one])
            unread[one] -= 1
            if not unread[one] and one not in keep:
                del finish[one]
        if node < tasks:
            number = int(kind[node])
            now = now + (fixed[node] * factors[:, number] if number >= 0 else fixed[node] + shared[node] * longer)
        finish[node] = now
        end = np.maximum(end, now)
        done += 1
        for one in after[node]:
            left[one] -= 1
            if not left[one]:
                ready.append(one)
    if done < nodes:
        raise Stuck(CIRCLE)
    return end, np.stack([finish[task] for task in at.tolist()], axis=1) if len(at) else np.zeros((len(longer), 0))
