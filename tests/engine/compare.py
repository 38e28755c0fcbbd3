"""Two engines on the same graphs, to the last bit; as a program on as many graphs as wanted.

    python -m tests.engine.compare [CASES] [--first SEED]

plays that many small networks on both engines: a third of them any graph, a third collectives that are broken into, a
third crowds of flows whose rates differ by a few units of rounding.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.engine.graphs import GB_PER_S, US, Builder, graphs, interrupted, wires
from triosim.engine.graph import Graph, Played, Stuck, Wires
from triosim.engine.solver import NetworkModel
from triosim.engine.solvers.equal_split import EqualSplit
from triosim.engine.solvers.max_min import MaxMin

Player = Callable[..., Played]
Outcome = tuple[object, ...]

CAPACITIES = (
    [2, 3, 5, 7, 20],
    [10**6, 10**6 + 1, 10**6 + 5, 2 * 10**6, 3 * 10**6 + 2],
    [GB_PER_S, GB_PER_S // 2, GB_PER_S // 3],
)


def outcome(play: Player, graph: Graph, network: Wires, model: type[NetworkModel], closed_form: bool) -> Outcome:
    """All that can be seen of a run, or how it failed."""
    try:
        played = play(graph, network, model(), _closed_form=closed_form)
    except (Stuck, ValueError) as error:
        return type(error).__name__, str(error)
    columns = (played.start, played.begin, played.finish, played.link_bytes)
    return *(column.tolist() for column in columns), played.flows, played.events


def agree(one: Player, other: Player, graph: Graph, network: Wires) -> None:
    """Both engines give the same, with and without what is worked out instead of played.

    Raises:
        AssertionError: they do not.
    """
    for model in (MaxMin, EqualSplit):
        for closed_form in (True, False):
            case = graph, network, model, closed_form
            assert outcome(one, *case) == outcome(other, *case)


def crowd(draw: random.Random) -> tuple[Graph, Wires]:
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


def compare(one: Player, other: Player, cases: int, first: int) -> None:
    """Compare two engines on many graphs that follow from the first seed."""
    for number in range(cases - 2 * (cases // 3)):
        agree(one, other, *crowd(random.Random(first + number)))
    for strategy in (graphs(), interrupted()):

        @seed(first)
        @settings(
            max_examples=max(cases // 3, 1), deadline=None, database=None, suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        )  # fmt: skip
        @given(strategy)
        def same(case: tuple[Graph, Wires]) -> None:
            agree(one, other, *case)

        same()


def main() -> None:
    from triosim.engine import native, reference

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", type=int, nargs="?", default=20_000, help="graphs")
    parser.add_argument("--first", type=int, default=1, help="seed that the graphs follow from")
    args = parser.parse_args()
    compare(reference.play, native.play, args.cases, args.first)
    print(f"{args.cases} graphs, {len(CAPACITIES)} kinds of crowd: the same to the last bit")


if __name__ == "__main__":
    main()
