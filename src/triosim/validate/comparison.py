"""Predicted beside measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.validate.measured import QUANTITIES, MeasuredMachine, MeasuredNetwork
from triosim.validate.prediction import Predictor, RankTimes
from triosim.validate.sizes import MODES, PIPELINES

SCHEMA = "triosim/validation/1"

BUSY = 1.3
"""Time on the wall over processor time of a step by itself, above which other work is in the way."""

BUSY_SPREAD = 0.1
"""Logarithm of the 90 % interval's factor of CPU time on a busy machine: a process that has waited comes back to caches
that other work has filled.  What pipelines, which wait most, differed by in the runs of docs/validation.md."""


@dataclass(frozen=True)
class ComparedQuantity:
    """One quantity of one job, predicted and measured.

    Attributes:
        predicted, low, high: seconds, and the ends of the 90 % interval.
        measured: median over the rounds.
        parts: what was predicted of it.
    """

    predicted: float
    low: float
    high: float
    measured: float
    parts: RankTimes

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1

    @property
    def hit(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class ComparisonRow:
    """A job of one network in one mode.

    Attributes:
        network, mode: of it.
        rank: one rank of a pipeline; None for the mean over ranks that all do the same.
        rounds: how often it ran.
        cpu_s, wall_s: what it took.
    """

    network: str
    mode: str
    rank: int | None
    rounds: int
    cpu_s: ComparedQuantity
    wall_s: ComparedQuantity


@dataclass(frozen=True)
class Validation:
    """Everything that was predicted and measured.

    Attributes:
        machine: where.
        rows: one for each job (and rank of a pipeline).
        busy: time on the wall over processor time of each network's step by itself.
        spent_s: what it all took.
    """

    machine: MeasuredMachine
    rows: tuple[ComparisonRow, ...]
    busy: dict[str, float]
    spent_s: float

    def modes(self) -> list[str]:
        """Modes in the order of the rows."""
        return list(dict.fromkeys(row.mode for row in self.rows))

    def errors(self, mode: str, quantity: str) -> list[float]:
        """Relative errors of a mode's rows."""
        return [getattr(row, quantity).error for row in self.rows if row.mode == mode]

    def median_error(self, mode: str, quantity: str) -> float:
        """Median absolute relative error of a mode."""
        return float(np.median(np.abs(self.errors(mode, quantity))))

    def hits(self, quantity: str) -> tuple[int, int]:
        """Rows whose interval held, and all rows."""
        return sum(getattr(row, quantity).hit for row in self.rows), len(self.rows)

    @property
    def crowded(self) -> list[str]:
        """Networks during which the machine was busy with other work."""
        return [name for name, ratio in self.busy.items() if ratio > BUSY]

    def to_dict(self) -> dict[str, Any]:
        """Plain values (schema ``triosim/validation/1``)."""
        machine = self.machine
        return {
            "schema": SCHEMA,
            "machine": {
                "device": machine.device,
                "name": machine.name,
                "processes": machine.processes,
                "cores": machine.cores,
                "load_average": machine.load,
                "versions": dict(machine.versions),
            },
            "judged": machine.judged,
            "wall_over_cpu": self.busy,
            "median_absolute_error": {
                mode: {quantity: self.median_error(mode, quantity) for quantity in QUANTITIES} for mode in self.modes()
            },
            "intervals_held": {quantity: self.hits(quantity) for quantity in QUANTITIES},
            "rows": [_plain(row) for row in self.rows],
            "tables": {
                kind: {str(size): {q: float(series.median(q).mean()) for q in QUANTITIES} for size, series in t.items()}
                for kind, t in machine.tables.items()
            },
            "spent_s": self.spent_s,
        }

    def to_json(self) -> str:
        """The JSON text."""
        return json.dumps(self.to_dict(), indent=1) + "\n"


def _plain(row: ComparisonRow) -> dict[str, Any]:
    plain = asdict(row)
    for quantity in QUANTITIES:
        compared = getattr(row, quantity)
        plain[quantity].update(error=compared.error, hit=compared.hit)
    return plain


def compare(
    machine: MeasuredMachine,
    nulls: tuple[MeasuredNetwork, MeasuredNetwork, MeasuredNetwork],
    networks: Sequence[MeasuredNetwork],
    spent_s: float,
) -> Validation:
    """Predict every job and put it beside what was measured.

    An interval is that of the prediction and of the median that it is compared with.  Where the machine was busy with
    other work, intervals of CPU time are widened by :data:`BUSY_SPREAD`, and those of time on the wall by as much as
    the step by itself was slowed down: how a job and other work share the processors cannot be known.

    Args:
        machine: as measured.
        nulls: the three small networks.
        networks: those that are judged.
        spent_s: what measuring took.
    """
    predictors = {quantity: Predictor(machine, nulls, quantity) for quantity in QUANTITIES}
    rows, busy = [], {}
    for network in networks:
        alone = network.series["alone"]
        busy[network.name] = float(alone.median("wall_s").mean() / alone.median("cpu_s").mean())
        for mode, series in network.series.items():
            if mode not in MODES:
                continue
            parts = {quantity: predictors[quantity](mode, network) for quantity in QUANTITIES}
            ranks: list[int | None] = list(range(machine.processes)) if mode in PIPELINES else [None]
            for rank in ranks:
                found = {}
                for quantity in QUANTITIES:
                    one = parts[quantity][rank or 0]
                    medians = series.median(quantity)
                    widened = 0.0
                    if busy[network.name] > BUSY:
                        widened = float(np.log(busy[network.name])) if quantity == "wall_s" else BUSY_SPREAD
                    width = float(np.exp(np.hypot.reduce([one.spread, widened, series.median_spread(quantity)])))
                    measured = float(medians.mean() if rank is None else medians[rank])
                    found[quantity] = ComparedQuantity(one.total, one.total / width, one.total * width, measured, one)
                rows.append(ComparisonRow(network.name, mode, rank, series.cpu_s.shape[1], **found))
    return Validation(machine, tuple(rows), busy, spent_s)
