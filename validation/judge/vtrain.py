"""Measured Megatron-DeepSpeed iterations on one A100 server: how much composition explains.

    python -m validation.judge.vtrain --data ../shared/data/training/measured.csv [--write FILE.json]

The single-node rows of vTrain (Bang et al., MICRO 2024): GPT in fp16 with full recomputation over a grid of tensor,
data and pipeline ranks, micro-batches, widths and depths.  Each is predicted as a user would: a model by its sizes, a
plan, the catalog's server, operators priced from the datasheet.  Two ways:

* fitted: a residual (:mod:`triosim.composition.residual`) from some random rows, judged on all others, mean of several
  draws; its interval is that of cross-validation among the rows it was fitted to;
* unseen: no row of vTrain used anywhere; the host's cost is the large-model row of ``composition/host.json``.

What every row runs is written once and played under other terms, which takes milliseconds; ``--check`` rows are
predicted by ``triosim.simulate`` as well and must come out the same.
"""

from __future__ import annotations

import functools
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from validation import command

import triosim
from triosim import Fidelity, Plan
from triosim.collectives.communication import CollectiveCommunication
from triosim.collectives.scheduling import Collectives
from triosim.composition import residual
from triosim.composition.host import host
from triosim.composition.issuing import launch
from triosim.composition.residual import PRIOR, CalibratedOverhead, Coefficients, JobSizes
from triosim.core.errors import InputError
from triosim.hardware.system import System
from triosim.kernels.estimate import Estimates
from triosim.kernels.model import PricingJob
from triosim.kernels.pricing import price
from triosim.network.device_assignment import assign_devices
from triosim.network.lowering import lower
from triosim.network.routes import Router
from triosim.partition.main_gradients import often, with_main_gradients
from triosim.partition.mesh import Mesh
from triosim.partition.partition import partition
from triosim.partition.resolve import resolve, rules_of
from triosim.partition.step import Step
from triosim.prediction.composition_fit import Iteration, iteration
from triosim.schedule.actions import SCHEDULES
from triosim.schedule.job import Costs, programs
from triosim.schedule.stages import split
from triosim.stacks import ASSUMED
from triosim.trace.tables import Trace
from triosim.transform.recompute import recomputed

NUMBERS = ("layers", "hidden", "heads", "vocab", "seq_len", "micro_batch", "tp", "pp", "dp", "global_batch")
SOURCE = "vTrain measured set (single-node)"
SYSTEM = "hgx-a100"
OPERATOR_TIMES = "auto"
FITTED_TARGET, UNSEEN_TARGET, SMALL_S = 0.085, 0.15, 0.1
FUSED_SOFTMAX_MULTIPLE = 4
"""Megatron-LM's fused softmax wants heads times samples of a device to be a multiple of this (``fused_softmax.py``)."""


COLUMNS = (
    "layers", "hidden", "heads", "vocab", "seq_len", "micro_batch", "tp", "pp", "dp", "global_batch", "iter_time_s",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One measured iteration: sizes of the model and of the plan."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    micro_batch: int
    tp: int
    pp: int
    dp: int
    micro_batches: int
    seconds: float

    @classmethod
    def of(cls, columns: Mapping[str, str]) -> Row:
        """From a line of the table."""
        of = {name: int(columns[name]) for name in NUMBERS}
        return cls(
            of["layers"], of["hidden"], of["heads"], of["vocab"], of["seq_len"], of["micro_batch"], of["tp"], of["pp"],
            of["dp"], of["global_batch"] // (of["dp"] * of["micro_batch"]), float(columns["iter_time_s"]),
        )  # fmt: skip

    def trace(self) -> Trace:
        """The step of one micro-batch on one device."""
        unit = 128 * self.tp  # Megatron pads the vocabulary so that it divides
        configuration = {
            "n_embd": self.hidden, "n_layer": self.layers, "n_head": self.heads, "n_positions": self.sequence,
            "vocab_size": math.ceil(self.vocabulary / unit) * unit, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
            "attn_pdrop": 0.1, "unfused_attention": True,
            "fused_softmax": self.heads // self.tp * self.micro_batch % FUSED_SOFTMAX_MULTIPLE == 0,
        }  # fmt: skip
        return triosim.model(
            "gpt", batch_size=self.micro_batch, sequence_length=self.sequence, precision="float16", optimizer="adam",
            configuration=configuration,
        )  # fmt: skip

    def plan(self) -> Plan:
        """How it ran: stages of equal depth, gradients reduced at the end, nothing overlapped."""
        cuts = tuple(f"transformer.h.{stage * self.layers // self.pp}" for stage in range(1, self.pp))
        return Plan(
            dp=self.dp, tp=self.tp, pp=self.pp, batch_size=self.micro_batch * self.micro_batches, stages=cuts,
            micro_batches=self.micro_batches, overlap=False, recompute="full", idle_ok=True,
        )  # fmt: skip


class Workshop:
    """Makes iterations of rows, each share of a device's work only once."""

    def __init__(self, system: System) -> None:
        self.system, self.router = system, Router(system)
        self.share = functools.lru_cache(maxsize=None)(self._share)

    def _share(self, alike: Row) -> tuple[Step, Estimates]:
        whole = recomputed(alike.trace(), alike.plan().recompute)
        whole = with_main_gradients(whole, ASSUMED, alike.micro_batches)
        step = partition(whole, Mesh((("tp", alike.tp),)), rules_of(Plan(tp=alike.tp), named=True))
        found = price(PricingJob(step.trace, self.system.models[0], whole, None), OPERATOR_TIMES)
        return step, replace(found, seconds=found.seconds * often(step.trace, ASSUMED, alike.micro_batches))

    def iteration(self, row: Row) -> Iteration:
        """The road of :func:`triosim.prediction.prepare.prepare`, up to the graph that is played."""
        step, times = self.share(replace(row, pp=1, dp=1, seconds=0.0))
        plan = row.plan()
        mesh = resolve(plan, self.system.devices, None)
        stages = split(step.trace, times.seconds, mesh.stages, plan.cuts)
        schedule = SCHEDULES.get(plan.schedule)()
        written = programs(step, Costs(times.seconds), stages, schedule, plan, mesh)
        classes = launch(written, step.trace, _residual(PRIOR).host(step.trace))
        assignment = assign_devices(mesh, self.system.devices)
        means = CollectiveCommunication(self.system, self.router, Collectives())
        lowered = lower(classes, assignment, self.router, means)
        return iteration(classes, lowered, [1.0] * len(classes))


def _residual(terms: Coefficients) -> CalibratedOverhead:
    nothing = JobSizes(0.0, 0.0, 0.0)
    return CalibratedOverhead(terms, 0.0, nothing, nothing, 0, 0.0, OPERATOR_TIMES)


@dataclass(frozen=True)
class Score:
    """How good predictions are.

    Attributes:
        mean, median: absolute relative error.
        small: the mean of rows below 0.1 s.
        bias: mean relative error.
        covered: share of rows within the interval, NaN without one.
    """

    mean: float
    median: float
    small: float
    bias: float
    covered: float

    @staticmethod
    def of(found: NDArray[np.float64], real: NDArray[np.float64], spread: NDArray[np.float64] | None = None) -> Score:
        """From predictions, measurements and the logarithmic half-width of each interval."""
        error = found / real - 1
        covered = math.nan if spread is None else float(np.mean(np.abs(np.log(found / real)) <= spread))
        small = error[real < SMALL_S]
        return Score(
            float(np.mean(np.abs(error))), float(np.median(np.abs(error))), float(np.mean(np.abs(small))),
            float(np.mean(error)), covered,
        )  # fmt: skip

    def words(self) -> str:
        """One line."""
        covered = "" if math.isnan(self.covered) else f"   90 % interval holds {self.covered:.1%}"
        return (
            f"mean {self.mean:6.2%}  median {self.median:6.2%}  below {SMALL_S:g} s {self.small:6.2%}  "
            f"bias {self.bias:+6.2%}{covered}"
        )


def main() -> int:
    """Print the tables; the exit code tells whether the targets were met."""
    parser = command.parser(__doc__, "table of measured training iterations")
    parser.add_argument("--draws", type=int, default=5, help="random choices of rows to fit")
    parser.add_argument("--rows", type=int, default=60, help="rows to fit")
    parser.add_argument("--limit", type=int, help="use only so many rows of the table, chosen at random")
    parser.add_argument("--check", type=int, default=3, help="rows to predict with triosim.simulate as well")
    parser.add_argument("--held", type=int, default=24, help="rows whose interval is looked at without a residual")
    parser.add_argument("--write", type=Path, help="write the residual of the first draw")
    options = parser.parse_args()
    rows = read(command.find(options.data, "training/measured.csv"))
    if not rows:
        raise InputError(f"{options.data}: has no row of {SOURCE}")
    rows = [rows[i] for i in np.random.default_rng(2024).permutation(len(rows))][: options.limit]
    if options.draws and len(rows) <= options.rows:
        raise InputError(f"--rows {options.rows} leaves none of {len(rows)} iterations to judge: fit fewer, read more")
    workshop = Workshop(triosim.system(SYSTEM))
    cases = [workshop.iteration(row) for row in rows]
    real = np.array([row.seconds for row in rows])
    print(f"{len(rows)} iterations of {real.min():.3f} to {real.max():.3f} s, operator times {OPERATOR_TIMES}")

    kernels = np.array([case.sizes.device_s for case in cases])
    print("sum of kernels               " + Score.of(kernels, real).words())
    unseen, source = unseen_terms(rows[0])
    without = Score.of(_all(cases, unseen), real)
    print("unseen, no row of vTrain     " + without.words())
    print(f"    host: {source}")
    held, width = intervals(rows[: options.held])
    if options.held:
        print(
            f"    90 % interval of triosim.simulate: holds {held:.0%} of {options.held} rows, median factor {width:.2f}"
        )
    scores, first = [], None
    for draw in range(options.draws):
        order = np.random.default_rng(draw).permutation(len(rows))
        fitted_on, judged = order[: options.rows], order[options.rows :]
        found = fitted([cases[i] for i in fitted_on], real[fitted_on])
        first = first or found
        spread = np.array([found.spread_of(cases[i].sizes) for i in judged])
        score = Score.of(_all([cases[i] for i in judged], found.terms), real[judged], spread)
        scores.append(score)
        print(f"fitted on {options.rows} rows, draw {draw}     " + score.words())
        print("    " + ", ".join(f"{n} {getattr(found.terms, n):.3g}" for n in residual.NAMES)
              + f"; left out among them {found.error:.2%}")  # fmt: skip
    mean = Score(*(float(np.mean([getattr(s, name) for s in scores])) for name in Score.__dataclass_fields__))
    print(f"fitted, mean of {len(scores)} draws      " + mean.words())
    same = first is not None and agree(rows[: options.check], cases, first)
    if options.write and first is not None:
        options.write.write_text(json.dumps(residual.document(first), indent=1) + "\n", encoding="utf-8")
    command.write(options.json, {"unseen": vars(without), "fitted": vars(mean), "draws": [vars(s) for s in scores]})
    met = mean.mean <= FITTED_TARGET and without.mean <= UNSEEN_TARGET and 0.85 <= mean.covered <= 0.95
    return 0 if met and same and mean.small <= 2 * mean.mean else 1


def read(path: Path) -> list[Row]:
    """The rows of the table that count."""
    return [Row.of(line) for line in command.rows(path, "source", *COLUMNS) if line["source"] == SOURCE]


def unseen_terms(row: Row) -> tuple[Coefficients, str]:
    """What ``--host large-model`` means, as terms, and its source."""
    found = host(row.trace(), "large-model")
    each_s = found.launch_s if found.send_s is None else found.send_s
    return Coefficients(each_s, each_s, found.gap_s, found.delay_s, 0.0, 1.0), found.source


def fitted(cases: Sequence[Iteration], real: NDArray[np.float64]) -> CalibratedOverhead:
    """The residual of some iterations."""
    return residual.fit(
        lambda terms, rows: _all([cases[i] for i in rows], terms), real, [case.sizes for case in cases],
        operator_times=OPERATOR_TIMES, source=f"{SOURCE}, {SYSTEM}",
    )  # fmt: skip


def _all(cases: Sequence[Iteration], terms: Coefficients) -> NDArray[np.float64]:
    return np.array([case.played(terms) for case in cases])


def intervals(rows: Sequence[Row]) -> tuple[float, float]:
    """Share of rows within the interval that a user gets without a residual, and its median factor upwards."""
    inside, wide = [], []
    for row in rows:
        models = Fidelity(operator_times=OPERATOR_TIMES, host="large-model")
        result = triosim.simulate(row.trace(), triosim.system(SYSTEM), row.plan(), models, fit=False)
        low, high = result.interval_s
        inside.append(low <= row.seconds <= high)
        wide.append(high / result.iteration_time_s)
    return (float(np.mean(inside)), float(np.median(wide))) if rows else (math.nan, math.nan)


def agree(rows: Sequence[Row], cases: Sequence[Iteration], found: CalibratedOverhead) -> bool:
    """Whether ``triosim.simulate`` predicts the same for some rows."""
    good = True
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "residual.json"
        file.write_text(json.dumps(residual.document(found)), encoding="utf-8")
        for row, case in zip(rows, cases, strict=False):
            models = Fidelity(operator_times=OPERATOR_TIMES, composition=str(file))
            result = triosim.simulate(row.trace(), triosim.system(SYSTEM), row.plan(), models, fit=False)
            same = abs(result.iteration_time_s - case.played(found.terms)) < 1e-9
            good &= same
            print(f"    triosim.simulate {result.iteration_time_s:.6f} s, measured {row.seconds:.6f} s"
                  + ("" if same else f", but here {case.played(found.terms):.6f} s"))  # fmt: skip
    return good


if __name__ == "__main__":
    command.run(main)
