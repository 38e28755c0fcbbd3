"""Hop's backup workers on GPUs with unequal links: the second case study of the TrioSim paper.

    python examples/hop/hop.py [--order serial|parallel] [--iterations N] [--figure hop.svg] [--json hop.json]

Eight A100 train VGG-11, each exchanging its update with its neighbours on a communication graph.  In each of several
groups every GPU's link is divided by a random number.  Shown is how much faster a group trains if nobody waits for the
last of its neighbours (one backup worker), and if those who fall behind skip iterations as well.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import triosim
from triosim.hardware.description import read_table
from triosim.network.hop import HopRun, play_hop
from triosim.partition.gradients import gradients, total_bytes
from triosim.schedule.hop import Hop, graph

STUDY = read_table(Path(__file__).resolve().parent / "hop.toml")
JOB, LINKS, PROTOCOL = STUDY["job"], STUDY["links"], STUDY["protocol"]


@dataclass(frozen=True)
class Row:
    """One group of workers on one communication graph, seconds per iteration.

    Attributes:
        group: name of the draw.
        graph: communication graph.
        slowdown: what each GPU's bandwidth is divided by.
        none_s: without backup workers.
        backup_s: with one.
        skip_s: with one, and iterations skipped.
        skipped: share of all iterations that were.
        gap: largest lead over a neighbour in any of the runs.
    """

    group: str
    graph: str
    slowdown: tuple[float, ...]
    none_s: float
    backup_s: float
    skip_s: float
    skipped: float
    gap: int


def system(slowdown: Sequence[float]) -> triosim.System:
    """The GPUs on a switch, each with a link of its own in both directions."""
    built = triosim.system(device=JOB["device"], devices=JOB["workers"], topology="switch", link=LINKS["bandwidth"])
    factor = np.ones(built.nodes)
    factor[: built.devices] = slowdown
    return replace(built, bandwidth=built.bandwidth / np.maximum(factor[built.edge_source], factor[built.edge_target]))


@functools.cache
def work() -> tuple[float, int]:
    """Seconds that an iteration computes, and bytes of an update: all parameters' gradients."""
    trace = triosim.model(JOB["model"])
    alone = triosim.system(device=JOB["device"])
    result = triosim.simulate(trace, alone, triosim.Plan(batch_size=JOB["batch_size"]))
    return result.iteration_time_s, total_bytes(gradients(trace))


def slowdowns() -> dict[str, tuple[float, ...]]:
    """What each GPU's bandwidth is divided by, by name of the group."""
    workers = JOB["workers"]
    random = np.random.default_rng(LINKS["seed"])
    drawn = random.uniform(*LINKS["slowdown"], size=(LINKS["groups"], workers)).round(3)
    one_slow = (LINKS["slowdown"][1], *[1.0] * (workers - 1))
    groups = {str(number): tuple(row) for number, row in enumerate(drawn.tolist(), start=1)}
    return {"equal": (1.0,) * workers, "one slow": one_slow, **groups}


def compare(group: str, slowdown: tuple[float, ...], name: str, order: Any, iterations: int) -> Row:
    """The three protocols in one group."""
    compute, size = work()
    machine = system(slowdown)

    def run(**protocol: int) -> HopRun:
        hop = Hop(graph(name, JOB["workers"]), iterations, tokens=PROTOCOL["tokens"], order=order, **protocol)
        return play_hop(hop, machine, compute, size)

    none, backup, skip = run(), run(backup=1), run(backup=1, skip=PROTOCOL["skip"])
    return Row(
        group,
        name,
        slowdown,
        none.iteration_time_s,
        backup.iteration_time_s,
        skip.iteration_time_s,
        skip.skipped / (JOB["workers"] * iterations),
        max(none.gap, backup.gap, skip.gap),
    )


def study(order: str, iterations: int, groups: dict[str, tuple[float, ...]]) -> list[Row]:
    """All groups on all graphs."""
    return [compare(group, slow, name, order, iterations) for name in JOB["graphs"] for group, slow in groups.items()]


def table(rows: list[Row], order: str, iterations: int) -> str:
    """The rows as text."""
    compute, size = work()
    lines = [
        f"{JOB['workers']} x {JOB['device']}, {JOB['model']}, batch {JOB['batch_size']}: computes "
        f"{compute * 1e3:.1f} ms, sends {size / 1e6:.1f} MB to each neighbour",
        f"{LINKS['bandwidth']} per GPU, divided by {LINKS['slowdown'][0]:g} to {LINKS['slowdown'][1]:g}; {order}, "
        f"{iterations} iterations, {PROTOCOL['tokens']} tokens",
        "",
        f"{'graph':<13}{'group':>9}{'slowest':>9}{'no backup':>12}{'one backup':>21}{'one backup, skipping':>31}"
        f"{'gap':>5}",
    ]
    for row in rows:
        backup = f"{row.backup_s * 1e3:.1f} ms {row.none_s / row.backup_s:>7.3f} x"
        skip = f"{row.skip_s * 1e3:.1f} ms {row.none_s / row.skip_s:>7.3f} x  {row.skipped:>6.1%}"
        lines.append(
            f"{row.graph:<13}{row.group:>9}{max(row.slowdown):>9.2f}{row.none_s * 1e3:>9.1f} ms{backup:>21}{skip:>31}"
            f"{row.gap:>5}"
        )
    return "\n".join(lines)


def figure(rows: list[Row], path: Path) -> None:
    """Speed-up of each group over no backup workers."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "hop"})
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(1, len(JOB["graphs"]), figsize=(10, 2.8), sharey=True, layout="constrained")
    for axis, name in zip(axes, JOB["graphs"], strict=True):
        mine = [row for row in rows if row.graph == name]
        places = np.arange(len(mine))
        axis.bar(places - 0.2, [r.none_s / r.backup_s for r in mine], 0.38, color="#5b8ab5", label="one backup worker")
        axis.bar(places + 0.2, [r.none_s / r.skip_s for r in mine], 0.38, color="#1f4e79", label="and skipping")
        axis.axhline(1, color="black", lw=0.8, ls=":")
        axis.set_xticks(places, [row.group for row in mine])
        axis.set_xlabel("group")
        axis.set_title(name)
    axes[0].set_ylabel("speed-up over no backup worker")
    axes[0].legend(frameon=False, loc="upper right")
    drawn.savefig(path, metadata={"Date": None})


def main(arguments: list[str] | None = None) -> None:
    """Print the table; write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--order", choices=("serial", "parallel"), default="serial", help="of computing and sending")
    parser.add_argument("--iterations", type=int, default=JOB["iterations"])
    parser.add_argument("--groups", type=int, default=LINKS["groups"], help="how many of the drawn groups")
    parser.add_argument("--figure", type=Path, help="draw it (needs matplotlib)")
    parser.add_argument("--json", type=Path, help="write the rows")
    options = parser.parse_args(arguments)
    groups = dict(list(slowdowns().items())[: 2 + options.groups])
    rows = study(options.order, options.iterations, groups)
    print(table(rows, options.order, options.iterations))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    if options.figure:
        figure(rows, options.figure)


if __name__ == "__main__":
    try:
        main()
    except triosim.InputError as error:
        sys.exit(f"hop.py: {error}")
