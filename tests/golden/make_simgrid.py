"""Make simgrid.json: when flows end that share links, as SimGrid plays them with its max-min solver.

    python tests/golden/make_simgrid.py

Needs g++ and Debian's libsimgrid-dev (made with 3.32).  SimGrid gives flows with different latencies different shares,
so links have none there; a latency is part of when a flow starts.  Reading the result needs none of this.
"""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
DRIVER = HERE.parent.parent / "benchmarks" / "simgrid.cpp"


def simgrid(program: Path, case: dict) -> list[float]:
    """Seconds at which each flow ends."""
    hosts = 2 * len(case["routes"])
    lines = [f"{len(case['capacity'])} {hosts} {len(case['routes'])} {len(case['flows'])}"]
    lines += [repr(float(rate)) for rate in case["capacity"]]
    for number, links in enumerate(case["routes"]):
        lines.append(" ".join(map(str, (2 * number, 2 * number + 1, len(links), *links))))
    lines += [f"{start * 1e-12!r} {route} {size}" for start, route, size in case["flows"]]
    answer = subprocess.run(
        [program, "--log=root.thres:error"], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    return [float(line) for line in answer.stdout.split()[1:]]


def at_random(name: str, seed: int, capacities: list[int], routes: list[list[int]], flows: int, every: int) -> dict:
    """Flows of 1 to 64 GB, so long that a picosecond is nothing, on random routes, one every so many ticks or so."""
    draw = random.Random(seed)
    starts = sorted(draw.randrange(flows * every) for _ in range(flows))
    sizes = [draw.randrange(10**9, 64 * 10**9) for _ in range(flows)]
    chosen = [draw.randrange(len(routes)) for _ in range(flows)]
    drawn = list(zip(starts, chosen, sizes, strict=True))
    return {"name": name, "capacity": capacities, "routes": routes, "flows": drawn}


def any_routes(seed: int, links: int, routes: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [draw.sample(range(links), draw.randint(1, 4)) for _ in range(routes)]


def switch(ports: int) -> list[list[int]]:
    """From each port to each other: one link up, one down."""
    return [[2 * a, 2 * b + 1] for a in range(ports) for b in range(ports) if a != b]


def leaves(servers: int, each: int) -> list[list[int]]:
    """From each device of a server to some of other servers, over the links up and down of both servers."""
    devices = servers * each
    up, down = 2 * devices, 2 * devices + servers
    pairs = [(a, (a * 7 + k * 5 + 1) % devices) for a in range(devices) for k in range(6)]
    return [[2 * a, up + a // each, down + b // each, 2 * b + 1] for a, b in pairs if a // each != b // each]


def cases() -> list[dict]:
    """Networks from one link to two levels of switches, lightly loaded and crowded, with and without ties."""
    gb, ms = 10**9, 10**9
    draw = random.Random(5)
    unequal = [draw.choice([25, 50, 50, 100, 450]) * gb // 7 for _ in range(12)]
    tree = leaves(4, 4)
    tree_links = [50 * gb] * 32 + [100 * gb] * 8
    return [
        {"name": "one link, all at once", "capacity": [10 * gb], "routes": [[0]],
         "flows": [(0, 0, (k + 1) * gb) for k in range(8)]},
        {"name": "a chain of links, long flow against short ones", "capacity": [10 * gb, 20 * gb, 5 * gb, 10 * gb],
         "routes": [[0, 1, 2, 3], [0], [1], [2], [3]],
         "flows": [(0, 0, 40 * gb)] + [(k * 500 * ms, 1 + k % 4, 5 * gb) for k in range(12)]},
        {"name": "switch of 6, everyone to everyone at once", "capacity": [25 * gb] * 12, "routes": switch(6),
         "flows": [(0, k, 10 * gb) for k in range(30)]},
        at_random("switch of 8, light", 1, [50 * gb] * 16, switch(8), 60, 500 * ms),
        at_random("switch of 8, crowded", 2, [50 * gb] * 16, switch(8), 80, 60 * ms),
        at_random("unequal links, any routes", 3, unequal, any_routes(3, 12, 30), 80, 200 * ms),
        at_random("two levels of switches, light", 4, tree_links, tree, 60, 400 * ms),
        at_random("two levels of switches, crowded", 6, tree_links, tree, 120, 40 * ms),
    ]  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "driver"
        subprocess.run(["g++", "-O2", "-std=c++17", DRIVER, "-o", program, "-lsimgrid"], check=True)
        made = [{**case, "ends_s": simgrid(program, case)} for case in cases()]
    about = "made by make_simgrid.py with SimGrid 3.32; capacity in bytes per second, flows: start in ps, route, bytes"
    rows = ",\n".join(json.dumps(case, separators=(",", ":")) for case in made)
    (HERE / "simgrid.json").write_text(f'{{"about": {json.dumps(about)}, "cases": [\n{rows}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
