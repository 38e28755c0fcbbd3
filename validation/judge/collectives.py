"""Measured collectives against predictions: errors by system and collective, by class of size, and the bias.

    python -m validation.judge.collectives --data FILE [--json OUT] [--fit none|small]

The file has the shape of ``nccl.parquet`` or of ``measured.csv`` and may hold any GPUs of the catalog.  Every row is
predicted by playing the collective on a system of the catalog.  ``--fit none`` uses the constants that come with the
program; ``--fit small`` fits constants to the file's own rows with 2 and 4 GPUs, and then only rows with other numbers
are judged.  Rows of NVLS, which is not fitted to small groups, are reported apart.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from validation import command
from validation.data import collectives as collective_data
from validation.data.collectives import Point
from validation.fit import collectives as fit_collectives

from triosim.collectives import constants
from triosim.collectives.algorithm import ALGORITHMS
from triosim.collectives.constants import CollectiveConstants
from triosim.collectives.group import Group
from triosim.collectives.groups import describe
from triosim.collectives.scheduling import Collectives, ScheduledCollective
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.engine.graph import Collective, Graph, Task
from triosim.engine.play import play
from triosim.hardware.system import System
from triosim.network.routes import Router

LARGE, MIDDLE, SMALL = 16 * 2**20, 2**20, 2**10


FILES = ("collectives/nccl.parquet", "collectives/measured.csv")


@dataclass(frozen=True)
class Row:
    """One point and its prediction.

    Attributes:
        point: what was measured.
        system: name of the system that it was predicted on.
        seconds: predicted.
        algorithm, protocol: predicted.
        costs: where the constants are from, in words.
    """

    point: Point
    system: str
    seconds: float
    algorithm: str
    protocol: str
    costs: str

    @property
    def error(self) -> float:
        """Relative, above 0 where the prediction is too long."""
        return self.seconds / self.point.seconds - 1

    @property
    def judged(self) -> str:
        """The rows that are averaged together: GPU, kind, what is not the common case."""
        kind = self.point.kind + (" (nvls)" if self.algorithm == "nvls" else "")
        whole = self.point.dtype in ("int8", "fp8")
        return f"{self.point.gpu} {kind}" + (f" {self.point.dtype}" if whole else "")


@dataclass(frozen=True)
class Errors:
    """Mean absolute errors of some rows by size, in percent; None where there is no such row.

    Attributes:
        large, middle, small: of 16 MiB, 1 MiB, 1 KiB and more.
        bias: mean signed error of 1 KiB and more.
        rows: of 1 KiB and more.
    """

    large: float | None
    middle: float | None
    small: float | None
    bias: float | None
    rows: int

    @staticmethod
    def of(rows: Iterable[Row]) -> Errors:
        """Averages over rows."""
        rows = list(rows)

        def mean(least: int, signed: bool = False) -> float | None:
            found = [r.error if signed else abs(r.error) for r in rows if r.point.bytes >= least]
            return 100 * float(np.mean(found)) if found else None

        count = sum(r.point.bytes >= SMALL for r in rows)
        return Errors(mean(LARGE), mean(MIDDLE), mean(SMALL), mean(SMALL, signed=True), count)


class Machine:
    """A system of the catalog on which collectives are played alone."""

    def __init__(self, system: System) -> None:
        self.name = system.name
        self.system = system
        self.router = Router(system)

    def devices(self, members: int, servers: int) -> list[int]:
        """The first devices of each server.

        Raises:
            LookupError: a server has fewer.
        """
        width, found = members // servers, []
        for server in range(servers):
            here = np.flatnonzero(self.system.device_server == server)[:width].tolist()
            if len(here) < width or members % servers:
                raise LookupError(f"{self.name} has {len(here)} devices in a server")
            found += here
        return found

    def predict(self, point: Point, known: tuple[CollectiveConstants, ...] = ()) -> tuple[float, ScheduledCollective]:
        """Seconds of a collective that is alone, and how it was done.

        Raises:
            LookupError: the machine has no such group.
            InputError: it cannot be done.
        """
        devices = self.devices(point.members, point.servers)
        group = describe(self.system, self.router, np.array(devices))
        if point.dtype in ("int8", "fp8"):  # the switch adds up numbers of two bytes and more
            group = Group(group.server, group.intra, group.inter, -1, group.architecture)
        if point.kind == "send_recv":
            return self._send(point, group, devices, known)
        if point.kind not in (*fit_collectives.RINGS, "all_to_all", "broadcast", "reduce"):
            raise LookupError(f"{point.kind} is not a collective of the program")
        asked = point.algorithm.lower() if point.algorithm.lower() in ALGORITHMS else "auto"
        made = Collectives(asked, known=known).schedule(point.kind, group, point.bytes)
        seat = [*(devices[m] for m in made.order), *made.nodes]
        source, target = (np.array(seat)[ends] for ends in (made.pattern.source, made.pattern.target))
        wires = self.router.wires(zip(source.tolist(), target.tolist(), strict=True))
        delay = round(made.delay_s * PICOSECONDS_PER_SECOND)
        whole = Collective(made.pattern, np.arange(len(made.pattern), dtype=np.int32), delay)
        n = point.members
        graph = Graph(
            np.full(n, Task.COLLECTIVE, np.int8), np.full(n, -1, np.int32), np.zeros(n, np.int64),
            np.zeros(n, np.int32), np.arange(n, dtype=np.int32), Ragged.empty(n, np.int32), 0,
            collectives=(whole,), instances=np.zeros(1, np.int32),
        )  # fmt: skip
        return float(play(graph, wires).finish.max()) / PICOSECONDS_PER_SECOND, made

    def _send(
        self, point: Point, group: Group, devices: list[int], known: tuple[CollectiveConstants, ...]
    ) -> tuple[float, ScheduledCollective]:
        """One send and receive: the bytes over the route, and what software adds."""
        chosen = Collectives(known=known)
        route = list(self.router.route(devices[0], devices[1]))
        system = self.system
        moving = float(system.latency[route].sum()) + point.bytes / float(system.bandwidth[route].min())
        made = chosen.schedule("all_to_all", group, point.bytes)
        return moving + chosen.transfer(group, point.bytes), made


def predict_all(points: Sequence[Point], fit: str) -> tuple[list[Row], dict[str, str]]:
    """Predictions of all points that can be made, and for each GPU or kind left out the reason."""
    machines: dict[tuple[str, int], Machine] = {}
    rows, left = [], {}
    own = _fitted(points) if fit == "small" else {}
    for point in points:
        key = (point.gpu, point.servers)
        try:
            if key not in machines:
                machines[key] = Machine(collective_data.machine(*key))
            machine = machines[key]
            seconds, made = machine.predict(point, own.get(point.gpu, ()))
        except (LookupError, InputError) as error:
            left[f"{point.gpu} {point.kind}, {point.members} in {point.servers}"] = str(error)
            continue
        costs = made.source or "the link's own latency and overhead"
        rows.append(Row(point, machine.name, seconds, made.algorithm, made.protocol, costs))
    return rows, left


def _fitted(points: Sequence[Point]) -> dict[str, tuple[CollectiveConstants, ...]]:
    """Constants of each GPU of a file from its own small groups."""
    found: dict[str, tuple[CollectiveConstants, ...]] = {}
    for gpu in dict.fromkeys(p.gpu for p in points):
        own = fit_collectives.small([p for p in points if p.gpu == gpu])
        if {p.kind for p in own} & set(fit_collectives.RINGS):
            try:
                link, architecture = fit_collectives.link_of(gpu)
            except LookupError:
                continue
            fitted = fit_collectives.fit(own, link, architecture, "the file's own groups of 2 and 4")
            shipped = constants.of_link(link.name, link.family)
            found[gpu] = (replace(fitted, multicast=shipped.multicast if shipped else None),)
    return found


def table(groups: dict[str, list[Row]]) -> str:
    """Errors of groups of rows, as text."""
    lines = [f"{'':70s} {'>=16 MiB':>9s} {'>=1 MiB':>9s} {'>=1 KiB':>9s} {'bias':>7s} {'rows':>5s}"]
    for name, rows in groups.items():
        errors = Errors.of(rows)
        cells = [f"{value:8.1f}%" if value is not None else f"{'-':>9s}" for value in
                 (errors.large, errors.middle, errors.small)]  # fmt: skip
        bias = f"{errors.bias:+6.1f}%" if errors.bias is not None else f"{'-':>7s}"
        lines.append(f"{name:70s} {' '.join(cells)} {bias} {errors.rows:5d}")
    return "\n".join(lines)


def grouped(rows: Iterable[Row], detailed: bool) -> dict[str, list[Row]]:
    """Rows by what is judged together; in detail also by source and group."""
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        point = row.point
        name = row.judged
        if detailed:
            size = f"{point.members}" + (f" in {point.servers}" if point.servers > 1 else "")
            asked = "" if point.algorithm == "auto" else f" [{point.algorithm}]"
            name = f"{point.source[:22]}{asked}: {name}, {size}"
        found[name].append(row)
    return dict(found)


def summary(rows: Sequence[Row], least: int) -> dict[str, list[Row]]:
    """The rows that are judged: of one server, of more members than constants were fitted to, of what NCCL chose."""
    chosen = [r for r in rows if r.point.members >= least and r.point.servers == 1 and r.point.algorithm == "auto"]
    return grouped(chosen, detailed=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, and write them."""
    parser = command.parser(__doc__, "table of the shape of nccl.parquet or measured.csv", required=False)
    parser.add_argument("--fit", choices=("none", "small"), default="none", help="constants: shipped, or from the file")
    options = parser.parse_args(arguments)
    options.data = command.find(options.data or collective_data.DATA, *FILES)
    points = collective_data.read(options.data)
    rows, left = predict_all(points, options.fit)
    if not rows:
        raise InputError(
            f"{options.data}: nothing in it can be predicted: {'; '.join(f'{k}: {v}' for k, v in left.items())}"
        )
    least = 5 if any(r.point.members > 4 for r in rows) else 2
    pairs = summary(rows, least)
    print(f"constants: {'shipped' if options.fit == 'none' else 'fitted to 2 and 4 GPUs of the file'}")
    for line in dict.fromkeys(f"  {r.point.gpu} on {r.system}: {r.costs}" for r in rows):
        print(line)
    print("\nAll groups, mean absolute error")
    print(table(grouped(rows, detailed=True)))
    print(f"\nPairs of system and collective, {least} GPUs and more in one server")
    print(table(pairs))
    verdict = _verdict(pairs)
    print("\n" + "\n".join(verdict))
    for what, why in left.items():
        print(f"left out: {what}: {why}", file=sys.stderr)
    command.write(options.json, _document(options, rows, pairs, verdict, left))


def _verdict(pairs: dict[str, list[Row]]) -> list[str]:
    """The figures of all pairs together; NVLS and one-byte elements apart."""
    lines = []
    for title, chosen in (
        ("rings and exchanges", {k: v for k, v in pairs.items() if "(nvls)" not in k and "int8" not in k}),
        ("nvls", {k: v for k, v in pairs.items() if "(nvls)" in k}),
        ("one-byte elements", {k: v for k, v in pairs.items() if "int8" in k}),
    ):
        errors = [Errors.of(rows) for rows in chosen.values()]
        for name, least in (("large", "16 MiB"), ("middle", "1 MiB"), ("small", "1 KiB")):
            found = [getattr(e, name) for e in errors if getattr(e, name) is not None]
            if found:
                lines.append(
                    f"{title}, {least} and more: mean over {len(found)} pairs {np.mean(found):.1f}%, "
                    f"worst {max(found):.1f}%"
                )
    return lines


def _document(
    options: argparse.Namespace, rows: list[Row], pairs: dict[str, list[Row]], verdict: list[str], left: dict[str, str]
) -> dict[str, object]:
    return {
        "schema": "triosim/validation/collectives/1",
        "data": options.data.name,
        "fit": options.fit,
        "pairs": {name: asdict(Errors.of(found)) for name, found in pairs.items()},
        "groups": {name: asdict(Errors.of(found)) for name, found in grouped(rows, detailed=True).items()},
        "verdict": verdict,
        "left_out": left,
        "rows": [
            {**asdict(r.point), "system": r.system, "predicted_s": r.seconds, "algorithm_predicted": r.algorithm,
             "protocol_predicted": r.protocol} for r in rows
        ],
    }  # fmt: skip


if __name__ == "__main__":
    command.run(main)
