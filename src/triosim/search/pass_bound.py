"""Lower bound of one micro-batch on one rank: its seconds block by block, and its bytes, equal blocks read once.

A step of many equal blocks is divided and priced as a short one with the first and the last few
(:mod:`triosim.trace.repeated`); what belongs to the block that stands for those left out counts as often as there are
such blocks.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from triosim.composition.issuing import issue_shares
from triosim.core.dataclass import dataclass
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.kernels.arithmetic import GPUS
from triosim.kernels.classes import by_name
from triosim.kernels.models.physical import PhysicalBaseModel
from triosim.kernels.physical.kinds import least
from triosim.memory.blocks import StepStorages
from triosim.operators import canonical
from triosim.partition.gradients import gradients
from triosim.partition.mesh import Mesh
from triosim.prediction.priced_job import run_shares
from triosim.prediction.staged_job import StagedJob
from triosim.search.evaluate import job_communication
from triosim.search.exchange_bound import CollectivesBound, collectives_bound
from triosim.search.isolated_transfers import UnequalRanks, isolated_times
from triosim.search.recurrence import PassRecurrence, RecurrenceState
from triosim.stacks import ASSUMED
from triosim.trace.blocks import blocks
from triosim.trace.repeated import KEPT, PATTERN, RepeatedTrace, RepeatedUnits
from triosim.trace.tables import NONE, Category, Phase, Trace

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "grouped_mm", "_grouped_mm")
"""Matrix products, dense or by experts: no device runs them faster than its peak."""
PHYSICAL = ("auto", "physical")
"""Operator models that price what was not recorded by the physical models."""


@dataclass(frozen=True)
class PassBound:
    """Least seconds and bytes of one micro-batch on one rank, all stages together.

    Attributes:
        forward_alone_s, backward_alone_s: seconds of the operators of either, recomputation with the backward.
        forward_s: seconds of its forward, collectives that are waited for included.
        pass_s: seconds of forward and backward, likewise.
        host_s: seconds in which the host issues forward and backward.
        host_later_s: of these those of operators that do not run in the first micro-batch.
        hidden_s: longest that collectives are behind the computation.
        later_s: seconds of operators in all these that do not run in the first micro-batch.
        weights, gradients, states, kept: bytes of parameters, gradients, optimizer states, and of what the forward
            keeps for the backward.
        loss: bytes beside what is kept, at the most between the forward of the last block and its backward.
        updated: bytes of parameters that have gradients: that all replicas have, and that only some have.
        repeated: bytes of those of them that are in blocks that repeat.
        flop: of its matrix products.
        others_s: seconds that all else takes at least, told by what grows by as much with each sample.
        calls: seconds of its collectives by their bytes alone.
    """

    forward_alone_s: float
    backward_alone_s: float
    forward_s: float
    pass_s: float
    host_s: float
    host_later_s: float
    hidden_s: float
    later_s: float
    weights: int
    gradients: int
    states: int
    kept: int
    loss: int
    updated: tuple[float, float]
    repeated: tuple[float, float]
    flop: float
    others_s: float
    calls: CollectivesBound


def pass_bound(made: StagedJob, recurrence: PassRecurrence, of: RepeatedTrace | None = None) -> PassBound:
    """The shape of a job on one stage.

    Args:
        made: the job.
        recurrence: of its operators.
        of: what its workload is a short one of, None where it is whole.
    """
    trace = made.step.trace
    storages, phase = StepStorages(trace, made.step.transfers), trace.operators.phase
    where, first, last = storages.touched(range(len(trace)))
    category = storages.category
    kept = (phase[first] == Phase.FORWARD) & np.isin(phase[last], (Phase.BACKWARD, Phase.RECOMPUTE))
    kept &= ~(storages.persistent | storages.given | storages.gradient)[where]
    rows, often = np.ones(len(trace)), np.ones(len(storages), np.int64)
    repeats = np.zeros(len(storages), bool)
    if of is not None:
        homes = RepeatedUnits.of(made.step.homes, of.unit)
        units = homes if made.step.homes is trace else RepeatedUnits.of(trace, of.unit, homes, made.step.origin)
        rows = np.where(units.operators == PATTERN, of.copies + 1.0, 1.0)
        often = np.where(units.storages == PATTERN, of.copies + 1, 1)
        repeats = (units.storages > 0) & (units.storages <= KEPT)
    size = storages.size * often
    sums = {
        name: int(size[which].sum()) for name, which in (
            ("weights", category == Category.WEIGHT), ("states", category == Category.OPTIMIZER_STATE),
            ("gradients", storages.gradient), ("kept", where[kept]),
        )
    }  # fmt: skip
    passing = ~(storages.persistent | storages.given | storages.gradient)[where]
    loss = _beside_what_is_kept(trace, first, last, np.where(kept, size[where], storages.size[where]) * passing, kept)
    grads, bytes_of, storage = gradients(trace), trace.values.bytes(), trace.values.storage
    updated = np.zeros((2, 2))  # elsewhere or in a block, of all replicas or of some
    for one in grads:
        where = storage[one.parameter]
        updated[int(repeats[where]), int(one.parameter in made.step.apart)] += bytes_of[one.parameter] * often[where]
    every, inside = updated.sum(axis=0).tolist(), updated[1].tolist()
    takes, fewer = made.mean_seconds(made.mesh.micro_batches), made.mean_seconds(2)
    forward, whole, hidden = _passes(made, recurrence, takes, rows, _pieces(trace, of))
    seconds = np.where(trace.operators.view | (takes == 0), 0.0, takes + recurrence.gap_s) * rows
    passes = ~trace.operators.view & (phase != Phase.OPTIMIZER)
    differs = np.maximum(takes - fewer, 0.0)
    later = (rows * (2 * differs + np.where(differs > 0, recurrence.gap_s, 0.0)))[passes].sum()
    products = passes & by_name(trace.operators.name, _multiplies).astype(bool)
    alone = seconds[phase == Phase.FORWARD].sum(), seconds[_is_backward(trace)].sum()
    issues = np.where(phase != Phase.OPTIMIZER, issue_shares(trace, made.launching) * rows, 0.0)
    return PassBound(
        float(alone[0]), float(alone[1]), forward, whole, float(issues.sum()), float(issues[differs > 0].sum()), hidden,
        float(later), **sums, loss=loss,
        updated=(every[0], every[1]), repeated=(inside[0], inside[1]),
        flop=float(np.nansum((trace.operators.flop * rows)[products])),
        others_s=float((_others_least_s(made) * rows)[passes & ~products].sum()),
        calls=collectives_bound(made, rows, ~trace.operators.view & (takes > 0)),
    )  # fmt: skip


def _beside_what_is_kept(
    trace: Trace, first: NDArray[np.int64], last: NDArray[np.int64], size: NDArray[np.int64], kept: NDArray[np.bool_]
) -> int:
    """The most bytes beside all that is kept for the backward, between the last block's forward and its backward.

    Args:
        trace: a step.
        first, last: operators that touch each storage.
        size: bytes of what is no parameter, state, gradient or input; 0 of others.
        kept: what the backward reads.
    """
    of, phase = blocks(trace).of(trace), trace.operators.phase
    forward = np.flatnonzero((of != NONE) & (phase == Phase.FORWARD))
    backward = np.flatnonzero((of != NONE) & _is_backward(trace))
    if not (forward.size and backward.size):
        return 0
    begin, end = int(forward[-1]) + 1, int(backward[0])
    if end <= begin:
        return 0
    change = np.zeros(end - begin + 1, np.int64)
    there = (last >= begin) & (first < end)
    np.add.at(change, np.maximum(first[there], begin) - begin, size[there])
    np.subtract.at(change, np.minimum(last[there] + 1, end) - begin, size[there])
    return max(int((np.cumsum(change[:-1]) - int(size[kept].sum())).max()), 0)


def _others_least_s(made: StagedJob) -> NDArray[np.float64]:
    """Least seconds of each operator that is no product; 0 where the physical models do not price it, chains of them
    run in one kernel, or it does not run in every micro-batch."""
    trace, stack = made.step.trace, made.plan.stack or ASSUMED
    devices = [made.system.models[m] for m in made.models]
    known = made.fidelity.operator_times in PHYSICAL and trace.meta.clock == "none" and made.residual is None
    known = known and all(device.kind in GPUS and device.design is None for device in devices)
    if not known or (made.named and stack.fused_pointwise):
        return np.zeros(len(trace))
    found = np.minimum.reduce([PhysicalBaseModel(priced=least).predict(trace, device).seconds for device in devices])
    for share in run_shares(made.step, made.plan, made.mesh, 2, made.named):
        found = np.where(share == 1, found, 0.0)
    return np.asarray(found)


def _multiplies(name: str) -> bool:
    return canonical(name)[0] in PRODUCTS


def _is_backward(trace: Trace) -> NDArray[np.bool_]:
    return np.isin(trace.operators.phase, (Phase.BACKWARD, Phase.RECOMPUTE))


def _pieces(trace: Trace, of: RepeatedTrace | None) -> NDArray[np.int64]:
    """For each operator what it may be in one piece with: the unit that repeats, or nothing."""
    if of is None:
        return np.zeros(len(trace), np.int64)
    return np.append(of.unit, -1)[trace.operators.module]


def _passes(
    made: StagedJob, recurrence: PassRecurrence, seconds: NDArray[np.float64], often: NDArray[np.float64],
    piece: NDArray[np.int64],
) -> tuple[float, float, float]:  # fmt: skip
    """Seconds of a forward, of forward and backward, and the longest that collectives are behind (see the module).

    Args:
        made: the job.
        recurrence: of its operators.
        seconds: of each operator.
        often: how many operators each stands for.
        piece: where it changes a piece begins with nothing under way.
    """
    trace = made.step.trace
    backward = _is_backward(trace)
    rows = np.flatnonzero((trace.operators.phase == Phase.FORWARD) | backward)
    begins = np.ones(len(rows), bool)
    begins[1:] = piece[rows[1:]] != piece[rows[:-1]]
    cuts = np.append(np.flatnonzero(begins), len(rows)).tolist()
    whole, forward, hidden = RecurrenceState(), RecurrenceState(), 0.0
    for first, end in itertools.pairwise(cuts):
        own = rows[first:end]
        turn = int(np.argmax(backward[own])) if backward[own].any() else len(own)
        times = float(often[own].min())
        at = recurrence.read(RecurrenceState(), own[:turn], seconds)
        forward.counts(at, times)
        whole.counts(recurrence.read(at, own[turn:], seconds), times)
        hidden = max(hidden, at.hidden)
    return forward.least(recurrence.slowdown), whole.least(recurrence.slowdown), hidden


def isolated_transfer_s(made: StagedJob) -> list[float]:
    """Seconds of each transfer of a job where nothing else moves; 0 where that differs between ranks, and of what runs
    beside other transfers."""
    sent = made.step.transfers
    calls = list(zip(sent.what.tolist(), sent.bytes.tolist(), sent.axis.tolist(), strict=True))
    if not calls:
        return []
    how = (made.fidelity.collective_algorithm, made.fidelity.collective_protocol, made.system.ideal)
    mesh = Mesh(made.mesh.axes, derived=made.mesh.derived)
    kinds = tuple(dict.fromkeys(calls))
    try:
        found = isolated_times(made.system, mesh, made.plan.placement, kinds, (), how, job_communication)
    except UnequalRanks:
        return [0.0] * len(calls)
    ticks = np.array([found.calls.get(call, 0) for call in calls])
    seconds: list[float] = np.where(sent.beside, 0.0, ticks / PICOSECONDS_PER_SECOND).tolist()
    return seconds
