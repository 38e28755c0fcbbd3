"""How fast an all-to-all with parts of different sizes is played over a fat tree.  Prints a table or JSON.

    python benchmarks/all_to_all.py [--runs 5] [--only 32 64 128 "512, 8 peers"] [--json]

Everyone sends everyone else 0.1 to 2.1 MB, all at once or to 8 peers at a time; 8 devices on a leaf, leaves joined by
links that carry what their devices can send, or half of it.  No two transfers are alike, so nothing folds and nothing
has a closed form: each is played among all others.  Each case runs in a process of its own: CPU seconds of playing
(median), and by how much the memory in use grew at its peak while it was played the first time.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import numpy as np

from triosim.collectives import uneven
from triosim.core.columns import Ragged
from triosim.engine.graph import CAPACITY_PER_BYTE, Collective, EngineNetwork, Graph, Task
from triosim.engine.play import ENGINES

GB = 10**9 * CAPACITY_PER_BYTE  # GB/s in the unit of the engine
LEAF = 8  # devices
US = 10**6  # ticks


CASES: dict[str, tuple[int, int | None, int]] = {
    "32": (32, None, 1),
    "64": (64, None, 1),
    "128": (128, None, 1),
    "128, 2:1": (128, None, 2),
    "256": (256, None, 1),
    "512, 8 peers": (512, 8, 1),
}
"""Devices, peers at a time (all if None), oversubscription of the leaves."""


def fat_tree(devices: int, oversubscription: int) -> EngineNetwork:
    """Routes from each device to each: links out of devices, into devices, up from leaves, down to leaves."""
    leaves = devices // LEAF
    inner = LEAF * 50 * GB // oversubscription
    capacity = np.array([50 * GB] * (2 * devices) + [inner] * (2 * leaves), np.int64)
    source, target = (x.ravel() for x in np.meshgrid(np.arange(devices), np.arange(devices), indexing="ij"))
    above, below = source // LEAF, target // LEAF
    hops = np.stack([source, 2 * devices + above, 2 * devices + leaves + below, devices + target], axis=1)
    crossed = np.ones(hops.shape, bool)
    crossed[:, 1:3] = (above != below)[:, None]
    crossed[source == target] = False
    counts = crossed.sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return EngineNetwork(capacity, Ragged(hops[crossed].astype(np.int32), offsets), counts * US)


def all_to_all(devices: int, peers: int | None, oversubscription: int) -> tuple[Graph, EngineNetwork]:
    """One collective of all devices; parts are drawn evenly, always the same."""
    sizes = np.random.default_rng(1).integers(10**5, 2_100_000, (devices, devices))
    pattern = uneven.schedule("all_to_all", sizes, peers).pattern
    zero, each = np.zeros(devices, np.int64), np.arange(devices, dtype=np.int32)
    graph = Graph(
        kind=np.full(devices, Task.COLLECTIVE, np.int8), stream=np.full(devices, -1, np.int32), amount=zero,
        what=zero.astype(np.int32), member=each, before=Ragged.empty(devices, np.int32), streams=0,
        collectives=(Collective(pattern, pattern.source * devices + pattern.target),), instances=np.zeros(1, np.int32),
    )  # fmt: skip
    return graph, fat_tree(devices, oversubscription)


def peak_bytes() -> int:
    """Most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def once(devices: int, peers: int | None, oversubscription: int, engine: str, runs: int) -> dict:
    """Play one case in this process."""
    play = ENGINES[engine]
    play(*all_to_all(LEAF, None, 1), None)  # loads what is loaded when first used
    case = all_to_all(devices, peers, oversubscription)
    seconds, before = [], peak_bytes()
    grown = 0
    for _ in range(runs):
        began = time.process_time()
        played = play(*case, None)
        seconds.append(time.process_time() - began)
        grown = grown or peak_bytes() - before
    return {
        "transfers": played.flows, "last_end_ps": int(played.finish.max()), "sum_of_ends_ps": int(played.finish.sum()),
        "instants": played.events, "cpu_s": statistics.median(seconds), "peak_bytes": grown,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of which the median counts")
    parser.add_argument("--engine", choices=list(ENGINES), default="native")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), help="some of the cases")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--case", choices=list(CASES), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(once(*CASES[args.case], args.engine, args.runs)))
        return
    rows = {}
    for name in args.only:
        command = [sys.executable, __file__, "--case", name, "--engine", args.engine, "--runs", str(args.runs)]
        rows[name] = row = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        if not args.json:
            print(
                f"{name:20} {row['transfers']:9,} transfers {row['instants']:9,} instants {row['cpu_s']:8.3f} s"
                f" {row['peak_bytes'] / 1e6:6.1f} MB  ends {row['last_end_ps']} sum {row['sum_of_ends_ps']}",
                flush=True,
            )
    if args.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
