"""How an iteration time varies from one iteration to the next: devices, operators and transfers are not always alike.

That is another question than how sure a prediction is (:mod:`triosim.prediction.uncertainty`): a cluster that is known
exactly still has iterations of different lengths.  Every rank is played by itself, for ranks wait for the slowest of
them.  A draw multiplies what a task takes by a factor of mean 1, ``exp(s z - s^2 / 2)`` with ``z`` standard normal and
``s`` the spread that the user gives: one ``z`` for each device, one for each run of an operator on a device, one for
each transfer or collective; every other draw is the mirror image (``-z``) of the one before.  Transfers share links as
they did in the prediction (:mod:`triosim.engine.longest_path`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, fields, replace

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.engine.graph import Graph, GraphRun, Task
from triosim.engine.longest_path import Durations, has_longest_path, longest_path, task_durations
from triosim.engine.solver import NetworkModel
from triosim.network.lowering import LoweredJob

DRAWS = 200
FEWEST = 20
"""Draws below which the quantiles say nothing."""
MOST_DRAWN = 400_000_000
"""Tasks of all draws together, some ten seconds; draws are as many as fit."""
AT_ONCE = 8_000_000
"""Factors held at a time, eight bytes each."""
WIDEST = 1.0
"""Natural logarithm: where one standard deviation is a factor of 2.7, nothing is like anything else."""


@dataclass(frozen=True)
class Stragglers:
    """Devices that are slow for an iteration now and then.

    Attributes:
        share: of all devices in an iteration.
        factor: that they take as long as the others.
    """

    share: float = 0.0
    factor: float = 1.0

    def __str__(self) -> str:
        return f"{self.share:g}x{self.factor:g}"


@dataclass(frozen=True)
class Variation:
    """What varies from iteration to iteration: standard deviations of natural logarithms, 0 where nothing does.

    Attributes:
        devices: of the speed of a device, the same for all that it computes in an iteration.
        operators: of each run of an operator on a device.
        transfers: of each collective and each send.
        stragglers: devices that are slow now and then.
    """

    devices: float = 0.0
    operators: float = 0.0
    transfers: float = 0.0
    stragglers: Stragglers = Stragglers()

    def __post_init__(self) -> None:
        for name in ("devices", "operators", "transfers"):
            spread = getattr(self, name)
            if not 0 <= spread <= WIDEST:
                raise InputError(f"variation {name}={spread:g} is no spread from 0 to {WIDEST:g}: 0.05 is about 5 %")
        if not 0 <= self.stragglers.share <= 1 or not 1 <= self.stragglers.factor < float("inf"):
            raise InputError(
                f"variation stragglers={self.stragglers} is no share up to 1 and factor from 1 up: 0.01x1.5 says that "
                "one device in a hundred takes half as long again"
            )

    @property
    def alone(self) -> dict[str, Variation]:
        """Each kind of variation by itself."""
        none = Variation()
        named = [f.name for f in fields(self) if getattr(self, f.name) != getattr(none, f.name)]
        return {name: replace(none, **{name: getattr(self, name)}) for name in named}


@dataclass(frozen=True)
class VariedTime:
    """Iteration times of a job that varies, each the same job drawn anew.

    Attributes:
        asked: what varies, by kind.
        draws: iterations that were drawn.
        mean_s, p50_s, p95_s, p99_s: seconds of an iteration.
        alone: by kind, by what part the mean iteration is longer where nothing else varies.
    """

    asked: Mapping[str, str]
    draws: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    alone: Mapping[str, float]


def parse_variation(text: str) -> Variation:
    """What a user typed: ``devices=0.02,operators=0.05,transfers=0.1,stragglers=0.01x1.5``.

    Raises:
        InputError: it says something else.
    """
    found: dict[str, float | Stragglers] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        pattern = r"([\d.eE-]+)x([\d.eE+-]+)" if name == "stragglers" else r"([\d.eE-]+)"
        match = re.fullmatch(pattern, value)
        try:
            numbers = [float(number) for number in match.groups()] if match else []
        except ValueError:
            numbers = []
        if name not in asdict(Variation()) or not equals or not numbers or name in found:
            raise InputError(
                f"--variation {quoted(text)} is not understood at {quoted(part.strip())}: give devices, operators and "
                "transfers with a spread, or stragglers with share and factor, each once, as "
                "devices=0.02,stragglers=0.01x1.5"
            )
        found[name] = Stragglers(*numbers) if name == "stragglers" else numbers[0]
    return Variation(**found)  # type: ignore[arg-type]


def varied(
    variation: Variation, lowered: LoweredJob, graph: Graph, played: GraphRun, model: NetworkModel, seconds: float,
    seed: int, draws: int = DRAWS,
) -> VariedTime:  # fmt: skip
    """Iteration times of a job that varies.

    Args:
        variation: what varies.
        lowered: the tasks of all ranks, none folded.
        graph: the same with their amounts as played.
        played: when they ran.
        model: how links are shared.
        seconds: of an iteration that does not vary.
        seed: of the draws.
        draws: how many, if they are not too many.

    Raises:
        InputError: there are too many tasks to draw, or some wait for tokens.
    """
    kinds = _TaskClasses(lowered, graph)
    number = min(draws, MOST_DRAWN // (len(graph) * (1 + len(variation.alone))))
    if number < FEWEST:
        raise InputError(
            f"--variation draws every rank by itself, and {len(graph):,} tasks are too many: use fewer devices, or "
            "fewer micro-batches"
        )
    if not has_longest_path(graph):
        raise InputError("--variation cannot draw tasks that wait for tokens: leave it out of this kind of job")
    took = task_durations(graph, lowered.wires, model, played)
    even = kinds.ends(graph, took, Variation(), 1, seed)[0]

    def times(own: Variation) -> NDArray[np.float64]:
        return kinds.ends(graph, took, own, number, seed) / even * seconds

    all_ = times(variation)
    alone = variation.alone
    means = {name: all_ if len(alone) == 1 else times(own) for name, own in alone.items()}
    p50, p95, p99 = np.quantile(all_, (0.5, 0.95, 0.99)).tolist()
    return VariedTime(
        asked={name: str(getattr(own, name)) for name, own in alone.items()}, draws=number, mean_s=float(all_.mean()),
        p50_s=p50, p95_s=p95, p99_s=p99,
        alone={name: float(found.mean() / seconds - 1) for name, found in means.items()},
    )  # fmt: skip


class _TaskClasses:
    """Tasks that vary together.

    Attributes:
        rank: of each task that computes on a device, -1 for all others, shape ``(tasks,)``.
        moved: number of the transfer or collective that each task belongs to, -1 for none, likewise.
        ranks, moves: how many there are.
    """

    def __init__(self, lowered: LoweredJob, graph: Graph) -> None:
        own = np.repeat(lowered.lowest, np.diff(lowered.first))
        self.computes = (graph.kind == Task.COMPUTE) & (np.asarray(graph.amount) > 0)
        self.rank = np.where(self.computes, own, -1)
        self.ranks = int(lowered.lowest.max(initial=-1)) + 1
        together = np.where(graph.kind == Task.COLLECTIVE, graph.what, -1).astype(np.int64)
        sends = np.flatnonzero(graph.kind == Task.TRANSFER)
        together[sends] = len(graph.instances) + np.arange(len(sends))
        self.moved = together
        self.moves = len(graph.instances) + len(sends)

    def ends(self, graph: Graph, took: Durations, variation: Variation, draws: int, seed: int) -> NDArray[np.float64]:
        """Ticks at which draws end, shape ``(draws,)``.

        Each kind of variation has a stream of random numbers of its own, so that it is drawn alike whatever else
        varies.
        """
        tasks = len(graph)
        each = tasks if variation.operators else self.ranks  # columns of what computes
        of_task = np.arange(tasks) if variation.operators else self.rank
        column = np.where(self.computes, of_task, np.where(self.moved >= 0, each + self.moved, -1)).astype(np.int32)
        streams = [np.random.default_rng([seed, number]) for number in range(4)]
        found = []
        pairs = max(1, AT_ONCE // (2 * (each + self.moves)))
        for first in range(0, -(-draws // 2), pairs):
            count = min(pairs, -(-draws // 2) - first)
            factors = np.ones((2 * count, each + self.moves))
            for row in range(0, 2 * count, 2):  # a draw and its mirror image
                speeds = _around_one(streams[0], variation.devices, self.ranks)
                luck = streams[1].random(self.ranks)
                calls = _around_one(streams[2], variation.operators, each if variation.operators else 0)
                moves = _around_one(streams[3], variation.transfers, self.moves)
                for side, chance in enumerate((luck, 1 - luck)):
                    slow = np.where(chance < variation.stragglers.share, variation.stragglers.factor, 1.0)
                    speed = speeds[side] * slow
                    factors[row + side, :each] = calls[side] * speed[self.rank] if variation.operators else speed
                    factors[row + side, each:] = moves[side]
            ends, _ = longest_path(graph, took, column, factors, np.ones(2 * count), np.zeros(0, np.int64))
            found.append(ends)
        return np.concatenate(found)[:draws]


def _around_one(stream: np.random.Generator, spread: float, count: int) -> tuple[NDArray[np.float64], ...]:
    """Factors of mean 1, and their mirror images."""
    if not spread:
        return np.ones(count), np.ones(count)
    z = spread * stream.standard_normal(count)
    return np.exp(z - spread * spread / 2), np.exp(-z - spread * spread / 2)
