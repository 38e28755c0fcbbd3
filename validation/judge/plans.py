"""Plans that published studies chose: their place among all plans of our ranking, and whether measured order is kept.

    python -m validation plans --data ../shared/data/training/measured.csv [--plans N] [--source WORDS]

**Place.**  Each model, number of devices and batch of a study in :data:`STUDIES` has a plan that the study reports: of
its rows the one with the shortest measured iteration.  The ranking is that of ``triosim search`` over what the study's
software could vary (its schedules, what it recomputes, ZeRO); ``--plans`` of the legal plans, drawn at random (0: all),
are predicted as the study's own is, and the table says how many of those that fit are faster.  The study's plan is to
be among the first 5 %, or the very first where fewer than twenty fit.  *in server* counts only plans whose tensor
parallelism stays within a server, as every study's does: a sharper place, which nothing hangs on.

**Order.**  Of rows of one source, model and number of devices that ran under several plans, each pair whose measured
samples per second differ by more than 2 % is to be predicted in the same order; *rank* is Spearman's correlation.

The exit code is 1 where a plan is not in its first 5 %.  Nothing is fitted here.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from validation import command
from validation.data.training import Row, cuts, read
from validation.judge.training import predict, system, workload

from triosim import Fidelity, Plan
from triosim.core.errors import InputError
from triosim.search.grid import with_fields
from triosim.search.outcome import PlanOutcome
from triosim.search.space import Candidate, PlanSpace
from triosim.search.sweep import sweep
from triosim.stacks import load

FIRST = 0.05
"""Share of the ranking within which the plan of a study is to be."""
APART = 0.02
"""Measurements that differ by less are not in any order: a run repeated differs by so much."""
SEED = 2026


@dataclass(frozen=True)
class Study:
    """What a study could vary.

    Attributes:
        among: axes of a search and their values, for the row that it found best; axes that are not there may be
            anything.
        legal: what else its software allows.
    """

    among: Callable[[Row], dict[str, tuple[Any, ...]]]
    legal: Callable[[Candidate], bool] = lambda one: True


def _megatron(row: Row) -> dict[str, tuple[Any, ...]]:
    """Megatron-LM of 2021: ``run_table_1.sh`` recomputes all layers in every run, and neither shards nor splits."""
    return {
        "recompute": ("full",), "zero": (0,), "sequence-parallel": (False,),
        "schedule": ("1f1b", "interleaved-1f1b"),
    }  # fmt: skip


def _korthikanti(row: Row) -> dict[str, tuple[Any, ...]]:
    """The same with what the paper adds: sequence parallelism and selective recomputation."""
    more = {"recompute": ("none", "selective", "full"), "sequence-parallel": (False, True)}
    return {**_megatron(row), **more}


def _zero_bubble(row: Row) -> dict[str, tuple[Any, ...]]:
    """Pipelines of all devices, as in every run of the table; ZB-2p is the default of ``zb-auto``."""
    return {
        "tp": (1,), "pp": (row.plan["pp"],), "recompute": ("none", "full"), "zero": (0,),
        "schedule": ("1f1b", "interleaved-1f1b", "zb-auto"),
    }  # fmt: skip


def _torchtitan(row: Row) -> dict[str, tuple[Any, ...]]:
    """FSDP2 that gathers again or keeps, sequence parallel wherever tensors are divided, its policies of recompute."""
    return {
        "recompute": ("none", "operators", "full"), "zero": (2, 3),
        "schedule": ("gpipe", "1f1b", "interleaved-1f1b"), "sequence-parallel": (False, True),
    }  # fmt: skip


def _as_torchtitan(one: Candidate) -> bool:
    """Sequence parallel with ``tp`` always; micro-batches only in pipelines: those runs add no gradients up."""
    asked = one.asked
    return asked["sequence-parallel"] == (asked["tp"] > 1) and (asked["pp"] > 1 or asked["micro_batches"] == 1)


STUDIES = {
    "Megatron-LM SC'21 Table 1": Study(_megatron), "Megatron-LM SC'21 Table 2": Study(_megatron),
    "Korthikanti et al. MLSys 2023 Table 5": Study(_korthikanti),
    "Zero Bubble PP ICLR 2024 Table 4": Study(_zero_bubble),
    "torchtitan benchmarks": Study(_torchtitan, _as_torchtitan),
}  # fmt: skip
COMPARED = "deepspeed-2021"
"""The stack of rows that a study only compares its own with."""


@dataclass(frozen=True)
class Placed:
    """Where the plan of a study is in our ranking.

    Attributes:
        id, source: of its row.
        devices, batch: of the job.
        plan: in words.
        measured, predicted: seconds of its iteration.
        legal: plans of the study's space.
        drawn: how many of them were predicted.
        fit: how many of these fit in memory.
        faster: how many of those are predicted to be faster.
        near_fit, near_faster: the same of plans whose tensor parallelism stays within a server.
        best: the fastest plan of all that were predicted, in words.
        best_s: what it takes.
        cpu_s: what predicting took.
        fits: whether the study's own plan is predicted to fit.
        lacks: why there is no place, ``""`` where there is one.
    """

    id: str
    source: str
    devices: int
    batch: int
    plan: str
    measured: float
    predicted: float = float("nan")
    legal: int = 0
    drawn: int = 0
    fit: int = 0
    faster: int = 0
    near_fit: int = 0
    near_faster: int = 0
    best: str = ""
    best_s: float = float("nan")
    cpu_s: float = 0.0
    fits: bool = True
    lacks: str = ""

    @property
    def among_first(self) -> bool:
        """Whether it is where it should be."""
        return not self.lacks and self.faster <= FIRST * self.fit


@dataclass(frozen=True)
class Ordered:
    """How well the measured order of several plans is kept.

    Attributes:
        source, model, devices: what ran.
        plans: how many.
        pairs, right: that differ, and those of them predicted in the same order.
        rank: Spearman's correlation, NaN for fewer than three.
    """

    source: str
    model: str
    devices: int
    plans: int
    pairs: int
    right: int
    rank: float


def main() -> int:
    """Print both tables; the exit code tells whether every study's plan is among the first."""
    parser = command.parser(__doc__, "table of measured training iterations")
    parser.add_argument("--source", default="", help="sources with these words in their name")
    parser.add_argument("--plans", type=int, default=100, help="plans to predict of each space (0: all; default 100)")
    parser.add_argument("--limit", type=int, default=12, help="rows of a group whose order is looked at (default 12)")
    options = parser.parse_args()
    rows = [
        row
        for row in read(command.find(options.data, "training/measured.csv"))
        if options.source.lower() in row.source.lower()
    ]
    if not rows:
        raise InputError(f"{options.data}: has no source with {options.source!r} in its name")
    placed = []
    print(f"{'row':6} {'devices':>7} {'batch':>6} {'measured':>9} {'predicted':>9} {'legal':>6} {'drawn':>5} "
          f"{'fit':>5} {'faster':>6} {'in server':>9} {'CPU s':>6}  plan of the study")  # fmt: skip
    for source, study in STUDIES.items():
        own = chosen(row for row in rows if row.source == source)
        if own:
            print(source)
        for row in own:
            placed.append(place(row, study, options.plans))
            print(_line(placed[-1]), flush=True)
    ordered = [order(*group) for group in groups(rows, options.limit)]
    _print_orders(ordered)
    if options.json:
        found = {"placed": [asdict(one) for one in placed], "ordered": [asdict(one) for one in ordered]}
        command.write(options.json, found)
    first = sum(one.among_first for one in placed)
    print(f"\n{first} of {len(placed)} plans of studies are in the first {FIRST:.0%} of the ranking")
    return 0 if first == len(placed) else 1


# --- the place of a study's plan --------------------------------------------------------------------------------------


def chosen(rows: Iterable[Row]) -> list[Row]:
    """The rows that a study found best: of each model, number of devices, precision and batch the fastest."""
    best: dict[tuple[object, ...], Row] = {}
    for row in rows:
        if row.lacks or row.stack == COMPARED:
            continue
        key = (*_job(row), batch_of(row), row.plan["quantize"])
        if key not in best or row.seconds < best[key].seconds:
            best[key] = row
    return list(best.values())


def batch_of(row: Row) -> int:
    """Samples of an iteration, of all replicas."""
    context = row.plan.get("parallelism_options", {}).get("cp", 1)
    return int(row.plan["batch_size"] * row.plan["dp"] // context)


def _job(row: Row) -> tuple[object, ...]:
    """What rows that can be compared have in common."""
    sizes = {name: size for name, size in row.configuration.items() if name not in ("vocab_size", "fused_softmax")}
    return (row.source, row.family, repr(sorted(sizes.items())), row.sequence, row.system.get("devices"),
            row.system.get("like"))  # fmt: skip


def layers_of(row: Row) -> int:
    """Repeated blocks of the row's model."""
    known = row.configuration
    return int(next(known[name] for name in ("n_layer", "num_hidden_layers") if name in known))


def plans_of(row: Row, study: Study) -> tuple[Plan, list[Candidate], Callable[[Candidate], Plan]]:
    """The study's plan, all that it chose from, and what makes a plan of each."""
    layers, parts = layers_of(row), len(row.plan.get("stages", ())) + 1
    short = layers % parts > 0  # the first and the last stage have a block less
    stack = replace(load(row.stack), **row.facts)
    own = Plan(**row.plan, stack=stack)
    base = Plan(stack=stack, global_batch_size=batch_of(row), quantize=own.quantize, overlap=own.overlap, idle_ok=True)
    devices = int(row.system["devices"])
    space = PlanSpace([devices], batch_of(row), layers + 2 * short, row.sequence, among=study.among(row))

    def formed(one: Candidate) -> Plan:
        plan, _ = with_fields(base, Fidelity(), one.asked)
        return plan.replaced(stages=cuts(row.family, layers, one.parts, short)) if one.parts > 1 else plan

    return own, [one for one in space.candidates() if study.legal(one)], formed


def place(row: Row, study: Study, count: int) -> Placed:
    """Where a study's plan is among those that it could have chosen, of which ``count`` are predicted (0: all)."""
    began = time.process_time()
    devices = int(row.system["devices"])
    own, legal, formed = plans_of(row, study)
    first = Placed(row.id, row.source, devices, batch_of(row), words(row.plan), row.seconds, legal=len(legal))
    drawn = _drawn(legal, count)
    machine = system(**row.system)
    trace = workload(row, own.stack)
    published, *others = sweep(trace, machine, [own, *map(formed, drawn)])
    if published.figures is None:
        return replace(first, lacks=published.why, cpu_s=time.process_time() - began)
    seconds = published.figures.iteration_time_s
    fit = [(one, of) for one, of in zip(others, drawn, strict=True) if one.fits]
    best, best_s = words(row.plan), seconds
    for outcome, one in fit:
        if _seconds(outcome) < best_s:
            best, best_s = words(one.asked), _seconds(outcome)
    near = [one for one, of in fit if of.asked["tp"] <= row.system.get("per_node", 8)]
    return replace(
        first, predicted=seconds, drawn=len(drawn), fit=len(fit), best=best, best_s=best_s,
        faster=sum(_seconds(one) < seconds for one, _ in fit),
        near_fit=len(near), near_faster=sum(_seconds(one) < seconds for one in near), cpu_s=time.process_time() - began,
        fits=published.fits,
    )  # fmt: skip


def _drawn(legal: Sequence[Candidate], count: int) -> list[Candidate]:
    """Some plans of a space, without order; all where ``count`` is 0 or there are no more."""
    if not count or count >= len(legal):
        return list(legal)
    return [legal[at] for at in np.sort(np.random.default_rng(SEED).permutation(len(legal))[:count])]


def _seconds(outcome: PlanOutcome) -> float:
    return outcome.figures.iteration_time_s if outcome.figures else float("inf")


def words(plan: Mapping[str, Any]) -> str:
    """A plan in a few words, of a row or of a search."""
    options = {**plan.get("parallelism_options", {}), **plan}
    chunks = plan.get("schedule.chunks") or plan.get("schedule_options", {}).get("chunks")
    found = [f"{name} {options[name]}" for name in ("tp", "pp", "dp", "cp", "ep") if int(options.get(name, 1)) > 1]
    found.append(f"m {plan['micro_batches']}")
    if plan["pp"] > 1:
        found.append(plan.get("schedule", "1f1b") + (f" x{chunks}" if chunks else ""))
    found += [f"recompute {plan['recompute']}"] if plan["recompute"] != "none" else []
    found += [f"zero {plan['zero']}"] if plan["zero"] else []
    if plan.get("sequence-parallel") or "sequence" in plan.get("parallelism", ()):
        found.append("sp")
    return ", ".join(found)


def _line(one: Placed) -> str:
    line = (
        f"{one.id:6} {one.devices:7,} {one.batch:6,} {one.measured:9.3f} {one.predicted:9.3f} {one.legal:6,} "
        f"{one.drawn:5} {one.fit:5} {one.faster:6} "
        f"{f'{one.near_faster} of {one.near_fit}':>9} {one.cpu_s:6.1f}  {one.plan}"
    )
    if one.lacks:
        return f"{line}: {one.lacks}"
    line += "" if one.fits else " (does not fit, as predicted)"
    if one.faster:
        line += f"\n{'':20}{'' if one.among_first else 'NOT AMONG THE FIRST: '}{one.best_s:.3f} s with {one.best}"
    return line


# --- whether the measured order is kept -------------------------------------------------------------------------------


def groups(rows: Sequence[Row], limit: int) -> list[list[Row]]:
    """Rows of one source, model and machine that ran under several plans, at most ``limit`` of each at random."""
    found = defaultdict(list)
    for row in rows:
        if not row.lacks:
            found[_job(row)].append(row)
    several = []
    for own in found.values():
        if len({words(row.plan) + f" of {batch_of(row)}" for row in own}) > 1:
            at = np.sort(np.random.default_rng(SEED).permutation(len(own))[:limit])
            several.append([own[n] for n in at])
    return several


def order(*rows: Row) -> Ordered:
    """How well the order of some rows is kept."""
    told, found = [], []
    for row in rows:
        try:
            found.append(batch_of(row) / predict(row).iteration_time_s)
        except InputError:
            continue
        told.append(row)
    real = [batch_of(row) / row.seconds for row in told]
    differ = [(a, b) for a, b in combinations(range(len(told)), 2) if abs(real[a] / real[b] - 1) > APART]
    right = sum((real[a] < real[b]) == (found[a] < found[b]) for a, b in differ)
    first = rows[0]
    model = f"{first.family}, {layers_of(first) if first.configuration else '-'} layers"
    return Ordered(first.source, model, int(first.system["devices"]), len(told), len(differ), right,
                   spearman(real, found))  # fmt: skip


def spearman(real: Sequence[float], found: Sequence[float]) -> float:
    """Spearman's rank correlation, NaN for fewer than three or where all of one are equal; ties share their rank."""
    if len(real) < 3 or len(set(real)) < 2 or len(set(found)) < 2:
        return float("nan")
    return float(np.corrcoef(_ranks(real), _ranks(found))[0, 1])


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = np.sort(values)
    return [float(np.mean(np.flatnonzero(ordered == value))) for value in values]


def _print_orders(found: Sequence[Ordered]) -> None:
    print(f"\n{'source':38} {'model':22} {'devices':>7} {'plans':>5} {'pairs':>5} {'right':>5} {'rank':>6}")
    for one in found:
        print(f"{one.source[:38]:38} {one.model[:22]:22} {one.devices:7,} {one.plans:5} {one.pairs:5} {one.right:5} "
              + (f"{'-':>6}" if one.rank != one.rank else f"{one.rank:6.2f}"))  # fmt: skip
    pairs, right = sum(one.pairs for one in found), sum(one.right for one in found)
    print(f"{right} of {pairs} pairs in the order in which they were measured" if pairs else "no plans to compare")


if __name__ == "__main__":
    command.run(main)
