"""How fast the engine plays: compute tasks, flows that share links, ring all-reduces.  Prints JSON.

    python benchmarks/engine.py [--runs 5] [--scale 1.0]

Each figure is CPU time of this process, the median of several runs after one to warm up.  What an engine is compared
with runs in the same process: SimPy, where it is installed, and the same ring without its closed form.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial

import numpy as np

from triosim.columns import Ragged
from triosim.engine import reference
from triosim.engine.check import carried
from triosim.engine.graph import CAPACITY_PER_BYTE, Collective, Graph, Steps, Task, Wires
from triosim.engine.play import ENGINES

US = 10**6  # ticks
GB = 10**9 * CAPACITY_PER_BYTE  # GB/s in the unit of the engine


def measured(runs: int, once: Callable[[], object]) -> float:
    """Median CPU seconds of ``once``, after one call to warm up."""
    once()
    seconds = []
    for _ in range(runs):
        start = time.process_time()
        once()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def blank(n: int) -> Graph:
    """``n`` compute tasks of no duration on no stream."""
    zero, none = np.zeros(n, np.int64), np.full(n, -1, np.int32)
    return Graph(
        kind=np.full(n, Task.COMPUTE, np.int8), stream=none, duration=zero, route=none, bytes=zero, delay=zero,
        collective=none, member=zero.astype(np.int32), before=Ragged.empty(n, np.int32), need=zero.astype(np.int32),
        streams=0,
    )  # fmt: skip


NO_WIRES = Wires(np.zeros(0, np.int64), Ragged.empty(0, np.int32), np.zeros(0, np.int64))


# ------------------------------------------------------------------------------------------- tasks


def dag(tasks: int, devices: int = 64, streams: int = 4) -> Graph:
    """Compute tasks on in-order streams, each with 0 to 4 predecessors among the thousand rows before it."""
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 5, tasks)
    counts[0] = 0
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    rows = np.repeat(np.arange(tasks), counts)
    before = rows - 1 - (rng.random(len(rows)) * np.minimum(rows, 1000)).astype(np.int64)
    return replace(
        blank(tasks),
        stream=rng.integers(0, devices * streams, tasks).astype(np.int32),
        duration=rng.integers(1, 100 * US, tasks),
        before=Ragged(before.astype(np.int32), offsets),
        streams=devices * streams,
    )


def simpy_dag(graph: Graph) -> list[int]:
    """The same tasks in SimPy, one process per stream: when each ends."""
    import simpy

    env = simpy.Environment()
    done = [env.event() for _ in range(len(graph))]
    finish = [0] * len(graph)
    duration, before = graph.duration.tolist(), graph.before.lists()

    def work(rows: list[int]) -> Generator:
        for row in rows:
            for other in before[row]:
                if not done[other].processed:
                    yield done[other]
            yield env.timeout(duration[row])
            finish[row] = env.now
            done[row].succeed()

    for stream in range(graph.streams):
        env.process(work(np.flatnonzero(graph.stream == stream).tolist()))
    env.run()
    return finish


# ------------------------------------------------------------------------------------------- flows


def fat_tree(servers: int = 8, devices: int = 8) -> Wires:
    """Devices at 450 GB/s on a switch in each server, and at 50 GB/s on the leaf of two servers; leaves have half of
    that upwards."""
    n = servers * devices
    kinds = [(n, 450 * GB), (n, 450 * GB), (n, 50 * GB), (n, 50 * GB)]
    kinds += [(servers // 2, devices * 50 * GB)] * 2
    first = np.concatenate([[0], np.cumsum([count for count, _ in kinds])])
    routes, latency = [], []
    for a in range(n):
        for b in range(n):
            leaf_a, leaf_b = a // devices // 2, b // devices // 2
            if a // devices == b // devices:
                routes.append([first[0] + a, first[1] + b] if a != b else [])
                latency.append(1 * US)
            elif leaf_a == leaf_b:
                routes.append([first[2] + a, first[3] + b])
                latency.append(3 * US)
            else:
                routes.append([first[2] + a, first[4] + leaf_a, first[5] + leaf_b, first[3] + b])
                latency.append(5 * US)
    capacity = np.repeat([rate for _, rate in kinds], [count for count, _ in kinds])
    return Wires(capacity.astype(np.int64), Ragged.of(routes, np.int32), np.array(latency, np.int64))


def random_flows(wires: Wires, flows: int, every: int) -> Graph:
    """Transfers of 1 to 64 MB between random devices that start at random, one every so many ticks on average."""
    rng = random.Random(1)
    starts = sorted(rng.randrange(flows * every) for _ in range(flows))
    n = len(wires.routes)
    pairs = [rng.randrange(n) for _ in range(flows)]
    none = np.full(flows, -1, np.int32)
    return replace(
        blank(flows),
        kind=np.full(flows, Task.TRANSFER, np.int8),
        stream=none,
        route=np.array(pairs, np.int32),
        bytes=np.array([rng.randrange(10**6, 64 * 10**6) for _ in range(flows)], np.int64),
        delay=np.array(starts, np.int64),
    )


def in_the_air(graph: Graph, wires: Wires) -> float:
    """How many flows share links on average while any does."""
    weighed = [0, 0]
    last = [0, 0]

    def observe(now: int, flows: object) -> None:
        if last[1]:
            weighed[0] += last[1] * (now - last[0])
            weighed[1] += now - last[0]
        last[:] = now, len(flows)  # type: ignore[arg-type]

    reference.play(graph, wires, observer=observe)
    return weighed[0] / weighed[1]


# ------------------------------------------------------------------------------------------- rings


def rings(members: int, count: int, slow_every: int = 0) -> tuple[Graph, Wires]:
    """``count`` ring all-reduces of 25 MB and a little more each, one after another; every so many hops one has a ninth
    of the bandwidth."""
    slow = [slow_every and hop % slow_every == slow_every - 1 for hop in range(members)]
    wires = Wires(
        np.array([50 * GB if s else 450 * GB for s in slow], np.int64),
        Ragged.of([[hop] for hop in range(members)], np.int32),
        np.array([5 * US if s else US for s in slow], np.int64),
    )
    routes = np.arange(members, dtype=np.int32)[None, :]
    sizes = range(25_000_000 // members, 25_000_000 // members + count)
    n = members * count
    graph = replace(
        blank(n),
        kind=np.full(n, Task.COLLECTIVE, np.int8),
        stream=np.tile(np.arange(members, dtype=np.int32), count),
        collective=np.repeat(np.arange(count, dtype=np.int32), members),
        member=np.tile(np.arange(members, dtype=np.int32), count),
        streams=members,
        collectives=tuple(Collective(Steps(members, 2 * (members - 1), size), routes) for size in sizes),
    )
    return graph, wires


# -------------------------------------------------------------------------------------------- main


def benchmark(runs: int, scale: float) -> list[dict]:
    """All figures, one row each."""
    rows: list[dict] = []

    def row(case: str, engine: str, what: str, amount: int, once: Callable[[], object], **more: object) -> None:
        seconds = measured(runs, once)
        rate = round(amount / seconds)
        rows.append({"case": case, "engine": engine, what: amount, "cpu_s": seconds, f"{what}_per_s": rate, **more})

    tasks, few = dag(round(200_000 * scale)), dag(round(20_000 * scale))
    tree, flows = fat_tree(), round(2_000 * scale)
    loads = {name: random_flows(tree, flows, every) for name, every in (("light", 32 * US), ("saturated", 13 * US))}
    hops = {"equal hops": 0, "every 8th hop slow": 8}

    for engine, play in ENGINES.items():
        row("dag, 64 devices x 4 streams", engine, "tasks", len(tasks), partial(play, tasks, NO_WIRES, None))
        for load, graph in loads.items():
            air = round(in_the_air(graph, tree), 1)
            case = f"random flows, 64 devices, {load}"
            row(case, engine, "events", 2 * flows, partial(play, graph, tree, None), in_the_air=air)
        for name, slow in hops.items():
            ring = rings(64, round(600 * scale), slow)
            row(f"all-reduce, ring of 64, {name}", engine, "flows", carried(*ring)[1], partial(play, *ring, None))

    for name, slow in hops.items():
        ring = rings(64, max(round(6 * scale), 1), slow)
        by_flow = partial(reference.play, *ring, _closed_form=False)
        if reference.play(*ring).finish.tolist() != by_flow().finish.tolist():
            raise AssertionError("the closed form differs from what it stands for")
        row(f"all-reduce, ring of 64, {name}", "reference, flow by flow", "flows", carried(*ring)[1], by_flow)

    try:
        import simpy
    except ImportError:
        return rows
    if simpy_dag(few) != reference.play(few, NO_WIRES).finish.tolist():
        raise AssertionError("SimPy and the engine disagree")
    row("dag, 64 devices x 4 streams", f"simpy {simpy.__version__}", "tasks", len(few), partial(simpy_dag, few))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of which the median counts")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the cases")
    args = parser.parse_args()
    machine = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
    print(json.dumps({**machine, "runs": args.runs, "results": benchmark(args.runs, args.scale)}, indent=1))


if __name__ == "__main__":
    main()
