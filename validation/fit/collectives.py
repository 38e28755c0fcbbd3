"""Fits what collectives cost on NVLink and writes ``src/triosim/collectives/data/nvlink*.json``.

    python -m validation.fit.collectives [--write]

Rings and exchanges are fitted to the rows of ``nccl.parquet`` with 2 and 4 GPUs alone; 8 GPUs follow from the number of
steps.  Which protocol a row used is what NCCL's own prediction says (:mod:`triosim.collectives.tuner`).  Everything is
linear in the constants (the overhead is a curve through fixed points), so the fit is one least-squares problem with
constants of zero or more, overheads being what comes on top of the link's latency; errors are relative.  NVLS is fitted
to other sources of ``measured.csv`` and to bandwidths that they state.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from validation.data import collectives as collective_data
from validation.data.collectives import Point

from triosim.collectives import cost, tuner
from triosim.collectives.constants import PROTOCOLS, CollectiveConstants, TransferTimeCurve, TransportCosts, unparse
from triosim.collectives.group import Group, LinkClass
from triosim.collectives.groups import describe
from triosim.network.routes import Router

TARGET = Path(__file__).resolve().parents[2] / "src" / "triosim" / "collectives" / "data"

RINGS = tuple(tuner.ROUNDS)
KNOTS: dict[str, tuple[float, ...]] = {
    "LL": (2**10, 2**12, 2**14, 2**16, 2**18, 2**20),
    "LL128": (2**20,),
    "Simple": (2**18, 2**20, 2**22, 2**24, 2**26, 2**28),
    "exchange": (2**9, 2**11, 2**13, 2**15, 2**17, 2**19, 2**21, 2**23, 2**25, 2**27),
}
"""Bytes of a step at which the overhead is fitted."""

SMOOTH = {"LL": 0.03, "LL128": 0.0, "Simple": 0.0075, "exchange": 0.01}
"""Weight of the second differences of the overhead, in microseconds: rows are few beside the points of the curve."""
WEAK = 0.2
"""Weight of what is assumed where rows are fewer than constants: LL128 begins as LL does and loses only its flags."""
CEILING = {"LL": 0.5, "LL128": 0.9375, "Simple": 1.0, "exchange": 1.0}
"""Payload per byte on the wire."""
MICRO, PER_BYTE = 1e-6, 1e-12


STATED = {
    "NVLink4": (482e9, "; bus bandwidth of large messages on 8 H200: ml-engineering, network/benchmarks"),
}
"""Bus bandwidth of NVLS in bytes per second that a source states without the times, and the source."""


def least_squares(matrix: NDArray, right: NDArray) -> NDArray[np.float64]:
    """The x of zero or more that minimises ``|matrix x - right|`` (Lawson and Hanson, "Solving Least Squares Problems",
    1974, chapter 23)."""
    n = matrix.shape[1]
    free, x = np.zeros(n, bool), np.zeros(n)
    for _ in range(3 * n):
        gain = np.where(free, -np.inf, matrix.T @ (right - matrix @ x))
        if gain.max() < 1e-9:
            break
        free[np.argmax(gain)] = True
        while True:
            tried = np.zeros(n)
            tried[free] = np.linalg.lstsq(matrix[:, free], right, rcond=None)[0]
            low = free & (tried <= 0)
            if not low.any():
                x = tried
                break
            x = x + (x[low] / (x[low] - tried[low])).min() * (tried - x)
            free &= x > 1e-15
    return x


class Problem:
    """Rows of a linear least-squares problem whose unknowns have names; microseconds and microseconds per MB."""

    def __init__(self) -> None:
        self.names: dict[tuple, int] = {}
        self.rows: list[tuple[dict[tuple, float], float]] = []

    def add(self, terms: dict[tuple, float], right: float) -> None:
        """One more equation: sum of unknown x factor = right."""
        for name in terms:
            self.names.setdefault(name, len(self.names))
        self.rows.append((terms, right))

    def solve(self) -> Callable[..., float]:
        """The unknowns by name, 0 for those that no row has."""
        matrix = np.zeros((len(self.rows), len(self.names)))
        for row, (terms, _) in enumerate(self.rows):
            for name, factor in terms.items():
                matrix[row, self.names[name]] += factor
        x = least_squares(matrix, np.array([right for _, right in self.rows]))
        return lambda *name: float(x[self.names[name]]) if name in self.names else 0.0


def hats(knots: Sequence[float], amount: float) -> dict[int, float]:
    """Weights of the points of a curve at an amount of bytes, as :class:`TransferTimeCurve` interpolates."""
    at = np.interp(math.log2(max(amount, 1)), np.log2(knots), np.arange(len(knots)))
    low = min(int(at), len(knots) - 1)
    return {low: 1 - (at - low), **({low + 1: at - low} if at > low else {})}


def fit(points: Iterable[Point], link: LinkClass, architecture: str, source: str) -> CollectiveConstants:
    """Constants of a class of links from collectives of a few members in one server.

    Args:
        points: measured; of those over :data:`RINGS` and all-to-all the rest is left out.
        link: between the members.
        architecture: of the devices, for which NCCL's choice is made.
        source: what to say of the origin.
    """
    problem = Problem()
    used = set()
    for point in points:
        group = Group(np.zeros(point.members, np.int32), link, architecture=architecture)
        part, peers = point.bytes / point.members, point.members - 1
        if point.kind in RINGS:
            way, steps = tuner.choices(point.kind, group, point.bytes)[0].protocol, tuner.ROUNDS[point.kind] * peers
            terms: dict[tuple, float] = {("base", way): 1.0}
        elif point.kind == "all_to_all":
            way, steps = "exchange", 1
            terms = {("base", way): 1.0, ("peer",): float(peers)}
        else:
            continue
        used.add(way)
        moved = (peers if way == "exchange" else steps) * part
        for knot, weight in hats(KNOTS[way], part).items():
            terms["overhead", way, knot] = steps * weight
        terms["slow", way] = moved * PER_BYTE / MICRO
        terms["finish", point.kind] = part * PER_BYTE / MICRO
        known = moved / (CEILING[way] * link.bandwidth) + steps * link.latency
        problem.add({k: v * MICRO / point.seconds for k, v in terms.items()}, 1 - known / point.seconds)
    for way in used:
        for knot in range(1, len(KNOTS[way]) - 1):
            bend = {("overhead", way, knot + k): f * SMOOTH[way] for k, f in ((-1, 1.0), (0, -2.0), (1, 1.0))}
            problem.add(bend, 0.0)
    if "LL128" in used:
        problem.add({("base", "LL128"): WEAK, ("base", "LL"): -WEAK}, 0.0)
        problem.add({("slow", "LL128"): WEAK * 1e-3}, 0.0)
    return _constants(problem.solve(), used, link, source)


def _constants(value: Callable[..., float], used: set[str], link: LinkClass, source: str) -> CollectiveConstants:
    def costs(way: str) -> TransportCosts:
        slowness = 1 / (CEILING[way] * link.bandwidth) + value("slow", way) * PER_BYTE
        seconds = tuple(link.latency + value("overhead", way, knot) * MICRO for knot in range(len(KNOTS[way])))
        return TransportCosts(
            value("base", way) * MICRO, 1 / (slowness * link.bandwidth), TransferTimeCurve(KNOTS[way], seconds)
        )

    ring = {way: costs(way) for way in PROTOCOLS if way in used}
    rates = {kind: value("finish", kind) * PER_BYTE for kind in (*RINGS, "all_to_all")}
    return CollectiveConstants(
        link.name, link.family, source, True, link.bandwidth, ring,
        {kind: 1 / rate if rate else math.inf for kind, rate in rates.items()},
        costs("exchange"), value("peer") * MICRO,
    )  # fmt: skip


def link_of(gpu: str) -> tuple[LinkClass, str]:
    """The link between two GPUs that a file names, and their architecture.

    Raises:
        LookupError: the catalog knows no such machine.
    """
    system = collective_data.machine(gpu)
    group = describe(system, Router(system), np.arange(2))
    return group.slowest, group.architecture


def small(points: Iterable[Point]) -> list[Point]:
    """What rings and exchanges may be fitted to: 2 and 4 GPUs in one server, two-byte elements."""
    return [
        p for p in points
        if p.members in (2, 4) and p.servers == 1 and collective_data.ELEMENT_BYTES.get(p.dtype) == 2
    ]  # fmt: skip


def multicast(points: Iterable[Point], gpu: str, ring: CollectiveConstants) -> TransportCosts | None:
    """Costs of NVLS from sources other than the table that rings are fitted to, or None where there are too few.

    These sources time calls of PyTorch.  What the host adds to each is read from their small messages, which NCCL sends
    round the ring; it is taken off.  The bandwidth is that of the largest message or, where a source states more, that.
    """
    link, architecture = link_of(gpu)
    own = [p for p in points if p.kind == "all_reduce" and p.members == 8 and p.servers == 1 and _is(p, link)]
    group = Group(np.zeros(8, np.int32), link, None, 8, architecture)
    host, rows = [], []
    for point in own:
        chosen = tuner.choices("all_reduce", group, point.bytes)[0]
        if chosen.algorithm == "nvls":
            rows.append(point)
        else:
            predicted = cost.ring(ring, "all_reduce", 8, point.bytes, chosen.protocol, link.bandwidth)
            host.append(point.seconds - predicted)
    if len(rows) < 2 or not host:
        return None
    wire = [9 / 8 * p.bytes for p in rows]
    rate = wire[-1] / (rows[-1].seconds - median(host))
    if link.name in STATED:
        rate = max(rate, 9 / 8 * 8 / 14 * STATED[link.name][0])
    left = [max(p.seconds - median(host) - w / rate, 0.0) for p, w in zip(rows, wire, strict=True)]
    return TransportCosts(
        0.0, rate / link.bandwidth, TransferTimeCurve(tuple(float(p.bytes) for p in rows), tuple(left))
    )


def _is(point: Point, link: LinkClass) -> bool:
    """Whether a point of another source was measured on that link, by NCCL on its own."""
    if not point.source.startswith(("Vidur", "ml-engineering all_reduce")):
        return False
    try:
        return link_of(point.gpu)[0].name == link.name
    except LookupError:
        return False


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit and print, or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {TARGET}")
    options = parser.parse_args(arguments)
    path = collective_data.DATA / "nccl.parquet"
    if not path.exists():
        raise SystemExit(f"{path} is not there: the fit needs the measured collectives")
    points = small(collective_data.read(path))
    others = collective_data.read(collective_data.DATA / "measured.csv")
    for gpu in dict.fromkeys(p.gpu for p in points):
        link, architecture = link_of(gpu)
        own = [p for p in points if p.gpu == gpu]
        source = (
            f"least squares over {len(own)} medians of NCCL 2.27 to 2.29 on 2 and 4 GPUs of {gpu} "
            "(ai-dynamo/aiconfigurator, Apache-2.0), validation/fit/collectives.py"
        )
        fitted = fit(own, link, architecture, source)
        switched = multicast(others, gpu, fitted)
        if switched:
            stated = STATED.get(link.name, (0.0, ""))[1]
            source += f"; NVLS: Vidur and ml-engineering all_reduce_bench on 8 GPUs{stated}"
            fitted = replace(fitted, multicast=switched, source=source)
        document = unparse(fitted)
        if options.write:
            TARGET.mkdir(exist_ok=True)
            text = json.dumps(document, indent=1)
            (TARGET / f"{link.name.lower()}.json").write_text(text + "\n", encoding="utf-8")
        else:
            print(json.dumps(document))


if __name__ == "__main__":
    main()
