"""How fast the engines play: compute tasks, flows that share links, ring all-reduces.  Prints JSON.

    python benchmarks/engine.py [--runs 5] [--scale 1.0] [--only WORD]

Each figure is CPU time of one process, the median of several runs after one to warm up.  What it stands beside comes
from the same run: the reference engine, SimPy where it is installed, SimGrid where Debian's libsimgrid-dev and g++ are
(simgrid.cpp).  Slow engines play a part of the case; all figures are per second.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from triosim.collectives.pattern import ring
from triosim.core.columns import Ragged
from triosim.engine import reference
from triosim.engine.graph import CAPACITY_PER_BYTE, Collective, EngineNetwork, Graph, GraphRun, Task
from triosim.engine.play import ENGINES

US = 10**6  # ticks
GB = 10**9 * CAPACITY_PER_BYTE  # GB/s in the unit of the engine
NO_WIRES = EngineNetwork(np.zeros(0, np.int64), Ragged.empty(0, np.int32), np.zeros(0, np.int64))

Once = Callable[[], object]
Row = dict[str, object]


def cpu_s(once: Once) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    once()
    return time.process_time() - start


def median(runs: int, seconds: Callable[[], float]) -> float:
    """Median of several runs, after one to warm up."""
    seconds()
    return statistics.median(seconds() for _ in range(runs))


def row(case: str, engine: str, what: str, amount: int, seconds: float, **more: object) -> Row:
    """One figure."""
    rate = round(amount / seconds)
    return {"case": case, "engine": engine, what: amount, "cpu_s": seconds, f"{what}_per_s": rate, **more}


def blank(n: int) -> Graph:
    """``n`` compute tasks of no duration on no stream."""
    zero, none = np.zeros(n, np.int64), np.full(n, -1, np.int32)
    return Graph(
        kind=np.full(n, Task.COMPUTE, np.int8), stream=none, amount=zero, what=none, member=zero.astype(np.int32),
        before=Ragged.empty(n, np.int32), streams=0,
    )  # fmt: skip


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
        amount=rng.integers(1, 100 * US, tasks),
        before=Ragged(before.astype(np.int32), offsets),
        streams=devices * streams,
    )


def shuffled(graph: Graph) -> Graph:
    """The same tasks in an order in which they also wait for rows after them; streams keep their order."""
    rng = np.random.default_rng(2)
    n = len(graph)
    new = np.empty(n, np.int64)  # row of each task: those of a stream keep their order among its rows
    rows = rng.permutation(n)
    order = np.lexsort((np.arange(n), graph.stream))
    new[order] = rows[np.lexsort((rows, graph.stream[order]))]
    old = np.argsort(new)
    before = graph.before.take(old)
    return replace(
        graph,
        stream=graph.stream[old],
        amount=graph.amount[old],
        before=Ragged(new[before.values].astype(np.int32), before.offsets),
    )


def simpy_dag(graph: Graph) -> list[int]:
    """The same tasks in SimPy, one process per stream: when each ends."""
    import simpy

    env = simpy.Environment()
    done = [env.event() for _ in range(len(graph))]
    finish = [0] * len(graph)
    amount, before = graph.amount.tolist(), graph.before.lists()

    def work(rows: list[int]) -> Generator:
        for row in rows:
            for other in before[row]:
                if not done[other].processed:
                    yield done[other]
            yield env.timeout(amount[row])
            finish[row] = env.now
            done[row].succeed()

    for stream in range(graph.streams):
        env.process(work(np.flatnonzero(graph.stream == stream).tolist()))
    env.run()
    return finish


def tasks(runs: int, scale: float) -> Iterator[Row]:
    """A million compute tasks; SimPy and the reference engine play fewer."""
    case = "dag, 64 devices x 4 streams"
    sizes = {"native": 1_000_000, "reference": 100_000}
    for engine, play in ENGINES.items():
        graph = dag(round(sizes[engine] * scale))
        yield row(case, engine, "tasks", len(graph), median(runs, partial(cpu_s, partial(play, graph, NO_WIRES, None))))
        mixed = partial(play, shuffled(graph), NO_WIRES, None)
        yield row(f"{case}, rows in any order", engine, "tasks", len(graph), median(runs, partial(cpu_s, mixed)))
    try:
        import simpy
    except ImportError:
        return
    graph = dag(round(20_000 * scale))
    if simpy_dag(graph) != reference.play(graph, NO_WIRES).finish.tolist():
        raise AssertionError("SimPy and the engine disagree")
    seconds = median(runs, partial(cpu_s, partial(simpy_dag, graph)))
    yield row(case, f"simpy {simpy.__version__}", "tasks", len(graph), seconds)


# ------------------------------------------------------------------------------------------- flows


@dataclass(frozen=True)
class Tree:
    """A fat tree: devices at 450 GB/s on the switch of their server, and at 50 GB/s on a leaf of four servers; what
    leaves can send up is what their devices can.

    Attributes:
        servers: number of servers.
        devices: of each server.
    """

    servers: int
    devices: int = 8

    @property
    def capacity(self) -> list[int]:
        """Of each link in GB/s: devices out and in inside the server, out and in outside, leaves up and down."""
        n = self.servers * self.devices
        return [450] * (2 * n) + [50] * (2 * n) + [4 * self.devices * 50] * (2 * (self.servers // 4))

    def route(self, a: int, b: int) -> tuple[list[int], int]:
        """Links from one device to another, and the latency in ticks."""
        n, leaves = self.servers * self.devices, self.servers // 4
        leaf_a, leaf_b = a // self.devices // 4, b // self.devices // 4
        if a // self.devices == b // self.devices:
            return [a, n + b], 1 * US
        if leaf_a == leaf_b:
            return [2 * n + a, 3 * n + b], 3 * US
        return [2 * n + a, 4 * n + leaf_a, 4 * n + leaves + leaf_b, 3 * n + b], 5 * US


@dataclass(frozen=True)
class Flows:
    """Transfers of 1 to 64 MB between random devices that start at random.

    Attributes:
        tree: the network.
        ends: devices of each flow.
        starts: ticks, sorted.
        bytes: of each flow.
    """

    tree: Tree
    ends: list[tuple[int, int]]
    starts: list[int]
    bytes: list[int]

    @staticmethod
    def at_random(tree: Tree, count: int, every: float) -> Flows:
        """One every so many ticks on average."""
        rng = random.Random(1)
        devices = range(tree.servers * tree.devices)
        starts = sorted(rng.randrange(round(count * every)) for _ in range(count))
        drawn = (rng.sample(devices, 2) for _ in range(count))
        ends = [(sender, receiver) for sender, receiver in drawn]
        return Flows(tree, ends, starts, [rng.randrange(10**6, 64 * 10**6) for _ in range(count)])

    def first(self, count: int) -> Flows:
        """The flows that start first."""
        return Flows(self.tree, self.ends[:count], self.starts[:count], self.bytes[:count])

    def lowered(self) -> tuple[Graph, EngineNetwork]:
        """As the engine plays them: a task that lasts until the start, then the transfer."""
        n = len(self.ends)
        routes, latency = zip(*(self.tree.route(a, b) for a, b in self.ends), strict=True)
        wires = EngineNetwork(
            np.array(self.tree.capacity, np.int64) * GB, Ragged.of(routes, np.int32), np.array(latency, np.int64)
        )
        graph = replace(
            blank(2 * n),
            kind=np.repeat(np.array([Task.COMPUTE, Task.TRANSFER], np.int8), n),
            amount=np.array(self.starts + self.bytes, np.int64),
            what=np.concatenate([np.full(n, -1), np.arange(n)]).astype(np.int32),
            before=Ragged(np.arange(n, dtype=np.int32), np.maximum(np.arange(-n, n + 1), 0)),
        )
        return graph, wires

    def simgrid(self) -> str:
        """As simgrid.cpp reads them; the latency is part of the start."""
        routes = [self.tree.route(a, b) for a, b in self.ends]
        pairs = {ends: number for number, ends in enumerate(dict.fromkeys(self.ends))}
        flows = sorted(
            (start + latency, pairs[ends], size)
            for start, (_, latency), ends, size in zip(self.starts, routes, self.ends, self.bytes, strict=True)
        )
        lines = [f"{len(self.tree.capacity)} {self.tree.servers * self.tree.devices} {len(pairs)} {len(flows)}"]
        lines += [f"{rate}e9" for rate in self.tree.capacity]
        for a, b in pairs:
            links = self.tree.route(a, b)[0]
            lines.append(" ".join(map(str, (a, b, len(links), *links))))
        lines += [f"{start * 1e-12!r} {pair} {size}" for start, pair, size in flows]
        return "\n".join(lines)


def in_the_air(played: GraphRun) -> float:
    """How many flows are under way on average from the first start to the last end."""
    half = len(played.start) // 2
    start, finish = played.start[half:], played.finish[half:]
    return round(float((finish - start).sum() / (finish.max() - start.min())), 1)


@contextmanager
def simgrid_driver() -> Iterator[Path | None]:
    """simgrid.cpp compiled, None where it cannot be."""
    source = Path(__file__).with_name("simgrid.cpp")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "driver"
        try:
            subprocess.run(
                ["g++", "-O2", "-std=c++17", source, "-o", program, "-lsimgrid"], check=True, capture_output=True
            )
        except (OSError, subprocess.CalledProcessError):
            yield None
            return
        yield program


def simgrid_cpu_s(program: Path, flows: Flows) -> float:
    """CPU seconds that SimGrid says it took, without reading the flows."""
    command = [str(program), "--log=root.thres:error"]
    done = subprocess.run(command, input=flows.simgrid(), capture_output=True, text=True, check=True)
    return float(done.stdout.split()[0])


LOADS = {
    "64 devices, light": (Tree(8), 100_000, 35 * US),
    "64 devices, saturated": (Tree(8), 20_000, 12.5 * US),
    "1,024 devices, saturated": (Tree(128), 40_000, 0.85 * US),
}
"""Network, number of flows, and ticks from one to the next on average."""


def flows(runs: int, scale: float) -> Iterator[Row]:
    """Random flows on a fat tree.  An event is the start or the end of a flow."""
    parts = {"native": 1.0, "reference": 0.05}
    with simgrid_driver() as program:
        for load, (tree, count, every) in LOADS.items():
            case = f"random flows on a fat tree, {load}"
            whole = Flows.at_random(tree, round(count * scale), every)
            for engine, play in ENGINES.items():
                part = whole.first(round(len(whole.ends) * parts[engine]))
                lowered = part.lowered()
                air = in_the_air(play(*lowered, None))
                seconds = median(runs, partial(cpu_s, partial(play, *lowered, None)))
                yield row(case, engine, "events", 2 * len(part.ends), seconds, in_the_air=air)
            if program is not None:
                part = whole.first(10_000)
                seconds = median(runs, partial(simgrid_cpu_s, program, part))
                yield row(case, "simgrid, max-min", "events", 2 * len(part.ends), seconds)


# ------------------------------------------------------------------------------------------- rings


def all_reduce(members: int, size: int = 10**9) -> tuple[Graph, EngineNetwork]:
    """A ring all-reduce of so many bytes, every hop alike."""
    wires = EngineNetwork(
        np.full(members, 50 * GB, np.int64),
        Ragged.of([[hop] for hop in range(members)], np.int32),
        np.full(members, US, np.int64),
    )
    pattern = ring(members, size // members, 2 * (members - 1))
    graph = replace(
        blank(members),
        kind=np.full(members, Task.COLLECTIVE, np.int8),
        what=np.zeros(members, np.int32),
        member=np.arange(members, dtype=np.int32),
        collectives=(Collective(pattern, np.arange(members, dtype=np.int32)),),
        instances=np.zeros(1, np.int32),
    )
    return graph, wires


def rings(runs: int, scale: float) -> Iterator[Row]:
    """Ring all-reduces, flow by flow and by the closed form, which must agree."""
    for engine, play in ENGINES.items():
        members = round((4096 if engine == "native" else 64) * scale)
        case = all_reduce(members)
        by_flow = partial(_without_formulas(engine), *case)
        played = play(*case, None)
        if played.finish.tolist() != by_flow().finish.tolist():
            raise AssertionError("the closed form differs from what it stands for")
        for name, once in (("flow by flow", by_flow), ("closed form", partial(play, *case, None))):
            seconds = median(runs, partial(cpu_s, once))
            yield row(f"ring all-reduce of {members}, {name}", engine, "flows", played.flows, seconds)


def _without_formulas(engine: str) -> Callable[[Graph, EngineNetwork], GraphRun]:
    if engine == "reference":
        return partial(reference.play, _closed_form=False)
    from triosim.engine import native  # not everywhere

    return partial(native.play, _formulas=False)


# -------------------------------------------------------------------------------------------- main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of which the median counts")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the cases")
    parser.add_argument("--only", choices=["tasks", "flows", "rings"], help="one kind of case")
    args = parser.parse_args()
    kinds = {"tasks": tasks, "flows": flows, "rings": rings}
    rows = [made for kind, make in kinds.items() if args.only in (None, kind) for made in make(args.runs, args.scale)]
    machine = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
    print(json.dumps({**machine, "runs": args.runs, "results": rows}, indent=1))


if __name__ == "__main__":
    main()
