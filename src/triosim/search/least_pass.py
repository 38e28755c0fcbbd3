"""One micro-batch on one rank at least: its seconds piece by piece, and its bytes, blocks that are alike read once.

A step of many equal blocks is divided and priced as a short one with the first and the last few
(:mod:`triosim.trace.repeated`); what belongs to the block that stands for those left out counts as often as there are
such blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from triosim.composition.host import issue_shares
from triosim.core.dataclass import dataclass
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.memory.blocks import StepStorages
from triosim.partition.gradients import gradients
from triosim.partition.mesh import Mesh
from triosim.prediction.prepare import Arranged
from triosim.schedule._stage import JobFacts
from triosim.schedule.costs import ScheduleCosts
from triosim.search.evaluate import means_of
from triosim.search.undisturbed import Uneven, undisturbed
from triosim.trace.repeated import PATTERN, Repeated, Units
from triosim.trace.tables import Category, Phase, Trace


@dataclass(frozen=True)
class LeastPass:
    """One micro-batch on one rank, all stages together.

    Attributes:
        forward_alone_s, backward_alone_s: seconds of the operators of either, recomputation with the backward.
        forward_s: seconds of its forward, collectives that are waited for included.
        pass_s: seconds of forward and backward, likewise.
        host_s: seconds in which the host issues forward and backward.
        hidden_s: longest that collectives are behind the computation.
        weights, gradients, states, kept: bytes of parameters, gradients, optimizer states, and of what the forward
            keeps for the backward.
        alone_s: seconds of collectives where nothing else moves, by kind, bytes and name of the axis.
    """

    forward_alone_s: float
    backward_alone_s: float
    forward_s: float
    pass_s: float
    host_s: float
    hidden_s: float
    weights: int
    gradients: int
    states: int
    kept: int
    alone_s: Mapping[tuple[int, int, str], float] = field(default_factory=dict)


def shape_of(made: Arranged, of: Repeated | None = None) -> LeastPass:
    """The shape of a job on one stage.

    Args:
        made: the job.
        of: what its workload is a short one of, None where it is whole.
    """
    trace = made.step.trace
    storages, phase = StepStorages(trace), trace.operators.phase
    where, first, last = storages.touched(range(len(trace)))
    category = storages.category
    kept = (phase[first] == Phase.FORWARD) & np.isin(phase[last], (Phase.BACKWARD, Phase.RECOMPUTE))
    kept &= ~(storages.persistent | storages.given | storages.gradient)[where]
    rows, often = np.ones(len(trace)), np.ones(len(storages), np.int64)
    if of is not None:
        homes = Units.of(made.step.homes, of.unit)
        units = homes if made.step.homes is trace else Units.of(trace, of.unit, homes, made.step.origin)
        rows = np.where(units.operators == PATTERN, of.copies + 1.0, 1.0)
        often = np.where(units.storages == PATTERN, of.copies + 1, 1)
    size = storages.size * often
    sums = {
        name: int(size[which].sum()) for name, which in (
            ("weights", category == Category.WEIGHT), ("states", category == Category.OPTIMIZER_STATE),
            ("gradients", storages.gradient), ("kept", where[kept]),
        )
    }  # fmt: skip
    forward, whole, hidden, known = _passes(made, rows, _pieces(trace, of))
    seconds = np.where(trace.operators.view, 0.0, made.times.seconds) * rows
    alone = seconds[phase == Phase.FORWARD].sum(), seconds[_is_backward(trace)].sum()
    issues = (issue_shares(trace, made.launching) * rows)[phase != Phase.OPTIMIZER].sum()
    return LeastPass(float(alone[0]), float(alone[1]), forward, whole, float(issues), hidden, **sums, alone_s=known)


def _is_backward(trace: Trace) -> NDArray[np.bool_]:
    return np.isin(trace.operators.phase, (Phase.BACKWARD, Phase.RECOMPUTE))


def _pieces(trace: Trace, of: Repeated | None) -> NDArray[np.int64]:
    """For each operator what it may be in one piece with: the unit that repeats, or nothing."""
    if of is None:
        return np.zeros(len(trace), np.int64)
    return np.append(of.unit, -1)[trace.operators.module]


def _passes(
    made: Arranged, often: NDArray[np.float64], piece: NDArray[np.int64]
) -> tuple[float, float, float, dict[tuple[int, int, str], float]]:
    """Seconds of a forward, of forward and backward, and the longest that collectives are behind (see the module); and
    what each collective takes.

    Args:
        made: the job.
        often: how many operators each stands for.
        piece: where it changes a piece begins with nothing under way.
    """
    trace = made.step.trace
    seconds = np.where(trace.operators.view, 0.0, made.times.seconds).tolist()
    job = JobFacts(
        made.step, ScheduleCosts(made.times.seconds), made.stages, made.schedule, made.plan, made.mesh,
        gradients(trace),
    )  # fmt: skip
    calls = [(what, size, axis) for size, what, axis in job.exchanged]
    alone = _alone(made, calls)
    backward = _is_backward(trace)
    rows = np.flatnonzero((trace.operators.phase == Phase.FORWARD) | backward)
    begins = np.ones(len(rows), bool)
    begins[1:] = piece[rows[1:]] != piece[rows[:-1]]
    cuts = np.append(np.flatnonzero(begins), len(rows)).tolist()
    whole = forward = hidden = 0.0
    for first, end in itertools.pairwise(cuts):
        done: dict[int, float] = {}
        clock = busy = 0.0
        turned = None
        for row in rows[first:end].tolist():
            if turned is None and backward[row]:
                turned = clock
            for number in job.issued_before.get(row, ()):
                busy = done[number] = max(busy, clock) + alone[number]
            for number in job.needed_before.get(row, ()):
                if number not in job.once:
                    clock = max(clock, done.get(number, 0.0))
            clock += seconds[row]
            for number in job.issued_after.get(row, ()):
                if number not in job.once:
                    busy = done[number] = max(busy, clock) + alone[number]
            hidden = max(hidden, busy - clock)
        times = float(often[rows[first:end]].min())
        whole += times * clock
        forward += times * (clock if turned is None else turned)
    names = made.mesh.names
    known = {(what, size, names[axis]): took for (what, size, axis), took in zip(calls, alone, strict=True)}
    return forward, whole, hidden, known


def _alone(made: Arranged, calls: list[tuple[int, int, int]]) -> list[float]:
    """Seconds of each collective where nothing else moves; 0 where that differs between ranks."""
    if not calls:
        return []
    how = (made.fidelity.collective_algorithm, made.fidelity.collective_protocol, made.system.ideal)
    mesh = Mesh(made.mesh.axes, derived=made.mesh.derived)
    kinds = tuple(dict.fromkeys(calls))
    try:
        found = undisturbed(made.system, mesh, made.plan.placement, kinds, (), how, means_of)
    except Uneven:
        return [0.0] * len(calls)
    return [found.calls.get(call, 0) / PICOSECONDS_PER_SECOND for call in calls]
