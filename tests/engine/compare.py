"""Two engines on the same graphs, to the last bit; as a program on as many graphs as wanted.

    python -m tests.engine.compare [CASES] [--first SEED]

runs that many small networks on both engines, each under several network models: in turn any graph, collectives that
are broken into (of both some with rows in any order), crowds of flows whose rates differ by a few units of rounding,
graphs with a defect, numbers that leave 64 bits, and exchanges over trees; the second finds max-min fair rates in every
way that it can.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np

from tests.engine.graphs import (
    GB_PER_S,
    US,
    Builder,
    OnNodes,
    any_direct,
    any_graph,
    any_interruption,
    any_ring,
    any_switch,
    routes_of,
    wires,
)
from triosim.collectives import uneven
from triosim.core.columns import Ragged
from triosim.core.registry import of_file
from triosim.engine.graph import UNLIMITED, EngineNetwork, Graph, GraphRun, Stuck, Task
from triosim.engine.monte_carlo import scale_amounts
from triosim.engine.solver import SOLVERS, NetworkModel
from triosim.engine.solvers.circuit import Circuit
from triosim.engine.solvers.equal_split import EqualSplit
from triosim.engine.solvers.max_min import MaxMin

Player = Callable[..., GraphRun]
Outcome = tuple[object, ...]
Case = tuple[Graph, EngineNetwork]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "smallest_first.py"

MODELS: dict[str, type[NetworkModel]] = {name: SOLVERS.get(name) for name in SOLVERS}
MODELS["of-ones-own"] = of_file(EXAMPLE)
"""All that are registered, and one that is not."""

DIRECT_ONLY = {"circuit"}
"""Models of networks in which every two devices are joined by a link of their own."""

OVERLOADS = {"uncontended"}
"""Models that let a link carry more than it can, which is what they are there to show; to them weights are nothing."""

CAPACITIES = (
    [2, 3, 5, 7, 20],
    [10**6, 10**6 + 1, 10**6 + 5, 2 * 10**6, 3 * 10**6 + 2],
    [GB_PER_S, GB_PER_S // 2, GB_PER_S // 3],
)


Model = Callable[[], NetworkModel]


def any_circuits(draw: Random) -> Model:
    """Circuits that are set up often: few ports, and a buffer that may be small."""
    setup, ports = draw.choice([0, 0, 1e-6, 5e-6, 1e-3]), draw.choice([1, 1, 2, 3])
    return partial(Circuit, setup, ports, draw.choice([None, None, 1, 100, 2500]))


def on(name: str) -> OnNodes:
    """Networks that a model understands, with weights only where it knows of them."""
    kinds = [any_direct] if name in DIRECT_ONLY else [any_direct, any_switch, any_switch, any_ring]
    weights = MODELS[name].weighted and name not in OVERLOADS

    def network(draw: Random, nodes: int) -> EngineNetwork:
        made = draw.choice(kinds)(draw, nodes)
        return made if weights else replace(made, weights=None)

    return network


def outcome(play: Player, graph: Graph, network: EngineNetwork, model: Model, closed_form: bool) -> Outcome:
    """All that can be seen of a run, or how it failed."""
    try:
        played = play(graph, network, model(), _closed_form=closed_form)
    except (Stuck, ValueError) as error:
        return type(error).__name__, str(error)
    columns = (played.start, played.begin, played.finish, played.link_bytes)
    return *(column.tolist() for column in columns), played.flows, played.events


def agree(
    one: Player, other: Player, graph: Graph, network: EngineNetwork, name: str = "", ways: Sequence[str] = ("",)
) -> None:
    """Both engines give the same, with and without what is worked out instead of played.

    Args:
        one, other: the engines.
        graph, network: what they run.
        name: of a network model; the two that are built in if not given.
        ways: how the other is to find max-min fair rates, ``""`` as it likes.

    Raises:
        AssertionError: they do not.
    """
    for model in [MODELS[name]] if name else [MODELS["max-min"], MODELS["equal-split"]]:
        for closed_form in (True, False) if model.alone_at_capacity else (True,):
            case = graph, network, model, closed_form
            first = outcome(one, *case)
            for way in ways if model is MODELS["max-min"] else [""]:
                second = outcome(partial(other, _rates=way) if way else other, *case)
                assert first == second, f"{model.__name__} {way}, closed form {closed_form}"


def crowd(draw: Random) -> Case:
    """Many flows over few links: rates that are alike, and rates that differ by what rounding leaves."""
    links = draw.randint(1, 10)
    capacities = draw.choice(CAPACITIES)
    capacity = [draw.choice(capacities) for _ in range(links)]
    routes = [draw.sample(range(links), draw.randint(1, min(links, 4))) for _ in range(draw.randint(1, 25))]
    most = draw.choice([0, 0, 3, 50])
    weights = [[draw.randint(1, most) for _ in row] for row in routes] if most else None
    b, sizes = Builder(), [1] if capacity[0] < 100 else [1, 1000, 1000, 2500]
    ticks = 1000 * US if capacities[0] < 10**7 else US
    for _ in range(draw.randint(1, 40)):
        wait = [b.compute(draw.randint(0, 6) * ticks // 2)] if draw.random() < 0.7 else []
        b.transfer(draw.randrange(len(routes)), draw.choice(sizes), before=wait)
    return b.graph(), wires(capacity, routes, draw.choice([0, 0, 5, US]), weights)


def chains(draw: Random) -> Case:
    """Routes over shared links, each led to and away over links of its own: often one of them holds back all that
    another does, and often it nearly does, with a little more capacity or less weight."""
    shared, many = draw.randint(1, 5), draw.randint(1, 4)
    base = draw.choice([7, 1000, GB_PER_S])
    near = [base - 1, base, base, base + 1, 2 * base]
    routes = []
    for at in range(many):
        own = [shared + 3 * at + i for i in range(draw.randint(0, 3))]
        for _ in range(draw.randint(1, 3)):
            some = draw.sample(range(shared), draw.randint(1, shared))
            routes.append(own[:1] + some + own[1:])
    weights = [[draw.choice([1, 1, 2]) for _ in row] for row in routes] if draw.random() < 0.4 else None
    b = Builder()
    for _ in range(draw.randint(1, 30)):
        wait = [b.compute(draw.randint(0, 9) * US)] if draw.random() < 0.7 else []
        b.transfer(draw.randrange(len(routes)), draw.choice([1, 1000, 3001]), before=wait)
    return b.graph(), wires([draw.choice(near) for _ in range(shared + 3 * many)], routes, 0, weights)


def defective(draw: Random) -> Case:
    """A graph of which one number, or the length of one column, is not what it was: mostly no graph at all."""
    graph, network = any_graph(draw)
    where = draw.choice(["graph", "graph", "graph", "wires", "pattern", "collective"])
    if where in ("pattern", "collective") and not graph.collectives:
        where = "graph"
    if where == "graph":
        name = draw.choice(["kind", "stream", "amount", "what", "member", "before", "need", "instances", "tokens"])
        return replace(graph, **{name: _damaged(draw, getattr(graph, name))}), network
    if where == "wires":
        name = draw.choice(["capacity", "routes", "latency", "weights"])
        return graph, replace(network, **{name: _damaged(draw, getattr(network, name))})
    row = draw.randrange(len(graph.collectives))
    changed = graph.collectives[row]
    if where == "collective":
        changed = replace(changed, route=_damaged(draw, changed.route))
    else:
        name = draw.choice(["source", "target", "bytes", "count", "needs", "lag", "pause"])
        column = _damaged(draw, getattr(changed.pattern, name))
        if name == "count":
            column = np.minimum(column, 100)  # or it would run for ever, flow by flow
        changed = replace(changed, pattern=replace(changed.pattern, **{name: column}))
    return replace(graph, collectives=(*graph.collectives[:row], changed, *graph.collectives[row + 1 :])), network


def _damaged(draw: Random, column: object) -> object:
    """The column, or one part of a table of rows, with one number changed or one too many or too few."""
    if column is None:
        return None
    if hasattr(column, "offsets"):
        part = draw.choice(["values", "values", "offsets"])
        return replace(column, **{part: _damaged(draw, getattr(column, part))})
    assert isinstance(column, np.ndarray)
    if not len(column) or draw.random() < 0.2:
        return np.append(column, column[:1]).astype(column.dtype) if draw.random() < 0.5 else column[:-1]
    fits = np.iinfo(column.dtype)
    near = [int(column.min()) - 1, int(column.max()) + 1, 0, 1, -1, -2, len(column)]
    value = draw.choice([*near, *near, fits.min, fits.max, fits.max // 2])
    damaged = column.copy()
    damaged[draw.randrange(len(column))] = min(max(value, fits.min), fits.max)
    return damaged


def extreme(draw: Random) -> Case:
    """Any graph, of which what is large becomes so large that nothing may fit 64 bits any more."""
    graph, network = draw.choice([any_graph, any_interruption])(draw, on=draw.choice([any_switch, any_ring]))

    def larger(column: np.ndarray) -> np.ndarray:
        times = draw.choice([1, 1, 10**3, 10**9, 10**12, 2**62])
        return np.array([min(value * times, 2**63 - 1) for value in column.tolist()], np.int64)

    slow = np.array([draw.choice([1, 2, 3, 1000, 2**63 - 1]) for _ in range(len(network.capacity))], np.int64)
    network = replace(network, latency=larger(network.latency))
    if draw.random() < 0.7:
        network = replace(network, capacity=slow)
    if draw.random() < 0.3:
        many = [draw.choice([1, 2**31 - 1]) for _ in range(len(network.routes.values))]
        network = replace(network, weights=np.array(many, np.int32))
    collectives = []
    for each in graph.collectives:
        pattern = replace(each.pattern, bytes=larger(each.pattern.bytes), pause=larger(each.pattern.pause))
        collectives.append(replace(each, pattern=pattern, delay=int(larger(np.array([each.delay]))[0])))
    return replace(graph, amount=larger(graph.amount), collectives=tuple(collectives)), network


def exchanges(draw: Random) -> Case:
    """Unequal all-to-alls on a tree of two levels whose inner links carry what comes to them, or more, or less, or what
    rounding leaves; and other flows on it."""
    leaves, width = draw.randint(1, 4), draw.randint(1, 4)
    n, devices = leaves * width, range(leaves * width)
    unit = draw.choice([1, 1, 1, 7, 1000, GB_PER_S])
    edge = [draw.choice([12, 12, 12, 13, 20, 60]) * unit for _ in range(2)] * n if draw.random() < 0.8 else [
        draw.choice([12, 13, 20, 31]) * unit for _ in range(2 * n)
    ]  # fmt: skip
    thinned = draw.choice([1, 1, 1, 2, 0.5])
    inner = [
        int(sum(edge[2 * device + way] for device in devices if device // width == leaf) // thinned)
        for way in (0, 1)
        for leaf in range(leaves)
    ]
    routes = []
    for source in devices:
        for target in devices:
            up, down = source // width, target // width
            far = [2 * n + up, 2 * n + leaves + down] if up != down else []
            routes.append([2 * source, *far, 2 * target + 1] if source != target else [])
    network = wires([*edge, *(max(limit, 1) for limit in inner)], routes, draw.choice([0, 0, 5, US]))
    b, most = Builder(), 3 if draw.random() < 0.3 else 2000
    for _ in range(draw.randint(1, 2)):
        places = draw.sample(devices, draw.randint(1, n))
        sizes = [[draw.randint(0, most) for _ in places] for _ in places]
        pattern = uneven.schedule("all_to_all", sizes, draw.choice([None, None, 1, 2])).pattern
        wait = [b.compute(draw.randint(0, 4) * US)] if draw.random() < 0.5 else []
        b.collective(pattern, routes_of(pattern, places, n), before=[wait] * len(places))
    for _ in range(draw.randint(0, 8)):
        wait = [b.compute(draw.randint(0, 1000) * US)]
        b.transfer(draw.randrange(n * n), draw.randint(1, most), before=wait)
    return b.graph(), network


def shuffled(draw: Random, graph: Graph) -> Graph:
    """The same tasks in other rows, so that they also wait for rows after them; what a stream runs keeps its order, or
    else, now and then, comes in any, and may be stuck."""
    n = len(graph)
    new = np.array(draw.sample(range(n), n), np.int64)  # row of each task
    if draw.random() < 0.8:
        for stream in range(graph.streams):
            own = np.flatnonzero(graph.stream == stream)
            new[own] = np.sort(new[own])
    old = np.argsort(new)
    before = graph.before.take(old)
    return replace(
        graph,
        **{name: getattr(graph, name)[old] for name in ("kind", "stream", "amount", "what", "member")},
        need=None if graph.need is None else graph.need[old],
        before=Ragged(new[before.values].astype(np.int32), before.offsets),
    )


def case(number: int) -> tuple[Case, str]:
    """The case of a seed, and a network model for it besides the two that are built in ("" for none)."""
    draw = Random(number)
    kind = number % 6
    if kind >= 2:
        return [crowd, defective, extreme, exchanges][kind - 2](draw), ""
    name = draw.choice(list(MODELS))
    graph, network = (any_graph if kind == 0 else any_interruption)(draw, on=on(name))
    return (shuffled(draw, graph) if draw.random() < 0.5 else graph, network), name


def compare(
    one: Player,
    other: Player,
    cases: int,
    first: int,
    progress: Callable[[int], None] | None = None,
    ways: Sequence[str] = ("",),
) -> None:
    """Compare two engines on many graphs that follow from the first seed; ``ways`` as in :func:`agree`.

    Raises:
        AssertionError: they differ; the message names the seed.
    """
    for number in range(first, first + cases):
        (graph, network), name = case(number)
        try:
            if not name or MODELS[name].weighted:
                agree(one, other, graph, network, ways=ways)
            if name:
                agree(one, other, graph, network, name)
        except AssertionError as error:
            raise AssertionError(f"case({number}) differs: {error}") from None
        if progress is not None:
            progress(number)


def compare_draws(cases: int, first: int, draws: int = 8) -> None:
    """Draws that the native engine plays side by side end when each of them ends alone.

    Args:
        cases: graphs.
        first: seed of the first, the next has the next.
        draws: of each graph.

    Raises:
        AssertionError: they do not; the message names the seed.
    """
    from triosim.engine import native

    for number in range(first, first + cases):
        draw, rng = Random(number), np.random.default_rng(number)
        circuits = number % 3 == 0
        graph, network = (
            any_graph(draw, on=any_direct) if circuits else draw.choice([any_graph, crowd, exchanges])(draw)
        )
        kind = np.where(graph.kind == Task.COMPUTE, rng.integers(-1, 3, len(graph)), -1).astype(np.int32)
        factors, links = rng.uniform(0.5, 2.0, (draws, 3)), rng.uniform(0.5, 2.0, draws)
        models: list[Model] = [MaxMin, EqualSplit, *([any_circuits(draw)] if circuits else [])]
        for model in models:
            ends = native.play_many(graph, network, model(), kind, factors, links)
            assert ends is not None
            for row, link, end in zip(factors, links, ends.tolist(), strict=True):
                amount = scale_amounts(graph.amount, np.append(row, 1.0)[kind])
                capacity = np.maximum(scale_amounts(network.capacity, np.full(len(network.capacity), link)), 1)
                capacity = np.where(network.capacity == UNLIMITED, UNLIMITED, capacity)
                try:
                    alone = native.play(replace(graph, amount=amount), replace(network, capacity=capacity), model())
                    expected = int(alone.finish.max(initial=0))
                except Stuck:
                    expected = -1
                assert end == expected, f"draws of graph {number} under {model}: {end}, alone {expected}"


def main() -> None:
    from triosim.engine import native, reference

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", type=int, nargs="?", default=20_000, help="graphs")
    parser.add_argument("--first", type=int, default=1, help="seed of the first, the next has the next")
    args = parser.parse_args()
    compare(reference.play, native.play, args.cases, args.first, ways=("", *native.WAYS))
    print(f"{args.cases} graphs under {len(MODELS)} network models: the same to the last bit")


if __name__ == "__main__":
    main()
