"""Drives a network model by itself, without an engine, and holds it to what it promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from triosim.engine.graph import EngineNetwork
from triosim.engine.solver import NEVER, WORK_PER_BYTE, Flow, NetworkModel


class Sent(NamedTuple):
    """Something that is sent: when, on which route, how many bytes."""

    tick: int
    route: int
    bytes: int


def drive(
    model: NetworkModel,
    wires: EngineNetwork,
    sent: Sequence[Sent],
    numbers: Sequence[int] | None = None,
    backward: bool = False,
) -> list[int]:
    """When each of these ends that the model is asked about.

    Args:
        model: it is started again.
        wires: routes without links are not used.
        sent: in any order.
        numbers: number of each flow; their places if not given.
        backward: list what changes at one instant the other way round.
    """
    numbers = list(range(len(sent))) if numbers is None else numbers
    flows = [flow(wires, number, one) for number, one in zip(numbers, sent, strict=True)]
    place = {number: i for i, number in enumerate(numbers)}
    joins = {number: one.tick for number, one in zip(numbers, sent, strict=True)}
    ends = dict.fromkeys(numbers, NEVER)
    done: dict[int, int] = {}
    model.start(wires)
    now = -1
    while len(done) < len(sent):
        waiting = [tick for tick in joins.values() if tick > now]
        under_way = [end for number, end in ends.items() if number not in done and end != NEVER]
        wake = [model.wake] if model.wake is not None and model.wake > now else []
        ahead = waiting + under_way + wake
        assert ahead, f"{type(model).__name__} lets {len(sent) - len(done)} flows wait for ever"
        now = min(ahead)
        left = [number for number in numbers if number not in done and ends[number] == now]
        joined = [f for f in flows if joins[f.number] == now]
        done.update(dict.fromkeys(left, now))
        if backward:
            left, joined = left[::-1], joined[::-1]
        answer = list(model.change(now, joined, left))
        assert {f.number for f in joined} <= {number for number, _ in answer}
        for number, end in answer:
            assert joins[number] <= now
            assert number not in done
            assert end > now or end == NEVER
            ends[number] = end
    return [end for _, end in sorted((place[number], end) for number, end in done.items())]


def flow(wires: EngineNetwork, number: int, sent: Sent) -> Flow:
    """What the model is told of something that is sent."""
    first, last = wires.routes.offsets[sent.route : sent.route + 2].tolist()
    weights = [1] * (last - first) if wires.weights is None else wires.weights[first:last].tolist()
    links = tuple(wires.routes[sent.route].tolist())
    return Flow(number, links, tuple(weights), sent.bytes * WORK_PER_BYTE, int(wires.latency[sent.route]))


def narrowest(wires: EngineNetwork, flow: Flow) -> int:
    """What a flow alone can have of its links."""
    return min(int(wires.capacity[link]) // weight for link, weight in zip(flow.links, flow.weights, strict=True))
