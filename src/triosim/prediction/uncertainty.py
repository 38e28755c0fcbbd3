"""How sure an iteration time is, and what makes it unsure: errors of whole classes, played through the job.

Operators of a class err together: if the model takes the matrix products of a device for too fast, it does so for all
of them.  So a *cause* is one class of operators, the host, or the network, each with one standard normal variable; an
operator's time is multiplied by ``exp(z * spread / 1.645)`` with the ``z`` of its class and its own spread (half-width
of its 90 % interval, natural logarithm), link rates by the same of the network.  The job is played with each cause
moved by one standard deviation, and with 200 draws of all together (from ``Plan.seed``): waiting, overlap and pipelines
make of the errors what they make of the times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triosim.composition import update
from triosim.engine.graph import Played
from triosim.engine.many import play_many
from triosim.engine.solver import NetworkModel
from triosim.hardware import catalog
from triosim.hardware.system import Labels, System, Tier
from triosim.kernels.classes import GROUPS, by_name, group_of_name
from triosim.kernels.estimate import Z90, Source
from triosim.network.lowering import Lowered
from triosim.network.placement import Placement
from triosim.prediction.prepare import Prepared
from triosim.prediction.result import Cause
from triosim.schedule.program import Op

CATALOG_LINK_SPREAD = 0.3
"""Natural logarithm of the 90 % interval's factor of a transfer over links of the catalog of a family whose collectives
were measured on several machines: efficiency and latency are those of one collective library and message size each (see
the sources in the catalog).  Links that the user describes are taken at their word."""
MEASURED_FAMILIES = ("NVLink", "InfiniBand")
UNMEASURED_LINK_SPREAD = 0.7
"""The same of all other families: what PCIe servers (11 to 21 GB/s where a copy reaches 25.8, by how many sockets and
switches lie between: MooreThreads/SimuMax, configs/system/a100_pcie.json) and an Omni-Path cluster (5.1 to 10.6 GB/s of
50: BigScience, experiments/bandwidth) reach is within a factor of two of the middle."""

DRAWS = 200
FEWEST = 50
"""Draws below which quantiles say less than the causes one by one, added as if the iteration were linear in them."""
TASK, EVENT = 1, 80
"""What playing a task takes, and solving the sharing of links at one instant, in units of the former: on the native
engine about 60 ns and 5 us.  How much is played on the side depends on these counts, and not on a clock or on the
engine, so that a prediction is the same every time."""
BUDGET = 6_500_000
"""Draws are as many as fit in this, the causes one by one included: some 0.4 s on the native engine, 15 s on the
reference engine."""
LIMIT = 5 * BUDGET
"""Where playing the causes one by one takes more, nothing is played on the side."""
TAIL = 0.05

HOST, UPDATE, NETWORK = "the host", "the host's update", "the network"
_WORDS = {
    "matrix": "matrix products", "convolution": "convolutions", "convolution_backward": "gradients of convolutions",
    "attention": "attention", "attention_backward": "gradients of attention", "rowwise": "softmax and normalization",
    "elementwise": "elementwise operators", "experts": "experts", "other": "other operators",
    "nothing": "other operators",
}  # fmt: skip
_RECORDED = (Source.RECORDED, Source.NOTHING)
SMALL = 1e-4
"""Causes with less than this part of the uncertainty are left out."""
LEAST = 3e-3
"""Causes with less than this part of what can be off are not played alone; draws move them all the same."""


@dataclass(frozen=True)
class Uncertainty:
    """Of an iteration time.

    Attributes:
        low, high: ends of the 90 % interval over the time itself, factors.
        causes: largest first.
        draws: times that the job was played with all causes at once; 0 where they were added one by one.
    """

    low: float
    high: float
    causes: tuple[Cause, ...]
    draws: int


def uncertainty(
    job: Prepared, lowered: Lowered, played: Played, amount: NDArray[np.int64], model: NetworkModel
) -> Uncertainty | None:
    """Uncertainty of a job that has been played; None where playing it again would take too long.

    Args:
        job: as it was prepared.
        lowered: its tasks.
        played: when they ran.
        amount: of each task, as it was played.
        model: how links are shared.
    """
    graph = replace(lowered.graph, amount=amount)
    names, of, reach, column = _tasks(job, lowered)
    network = link_spread(job.system, job.placement)
    names = [*names, NETWORK]
    each = TASK * len(graph) + EVENT * played.events
    matter = np.append(_weights(column, of, reach, amount, len(names) - 1) > LEAST, network > 0)
    one_by_one = np.vstack([np.zeros(len(names)), np.eye(len(names))[matter]])
    if each * len(one_by_one) > LIMIT:
        return None

    def logarithms(z: NDArray[np.float64]) -> NDArray[np.float64]:
        """Logarithm of when each draw ends, from ``z`` of shape (draws, causes)."""
        factors = np.exp(z[:, of] * reach / Z90)
        links = np.exp(-z[:, -1] * network / Z90)
        ends = play_many(graph, lowered.wires, model, column, factors, links).astype(np.float64)
        return np.log(np.maximum(ends, 1.0))

    ends = logarithms(one_by_one)
    moved = np.zeros(len(names))
    moved[matter] = ends[1:] - ends[0]
    causes = _causes(job, names, moved)
    draws = min(DRAWS, (BUDGET // max(each, 1) - len(one_by_one)) // 2 * 2)
    if draws < FEWEST:
        width = Z90 * float(np.sqrt(np.sum(moved**2)))
        return Uncertainty(float(np.exp(-width)), float(np.exp(width)), causes, 0)
    half = np.random.default_rng(job.fidelity.seed).standard_normal((draws // 2, len(names)))
    found = np.sort(logarithms(np.vstack([half, -half])) - ends[0])  # with every draw its mirror image
    low, high = found[int(np.floor(TAIL * (draws + 1))) - 1], found[int(np.ceil((1 - TAIL) * (draws + 1))) - 1]
    return Uncertainty(float(np.exp(min(low, 0.0))), float(np.exp(max(high, 0.0))), causes, draws)


def link_spread(system: System, placement: Placement) -> float:
    """Natural logarithm of the 90 % interval's factor of transfers between the devices of a job; 0 of links as given.

    Args:
        system: with its links.
        placement: the devices that take part.
    """
    if not any(system.edge_name):
        return 0.0
    found = _families(system, Tier.SCALE_UP)
    if len(np.unique(system.device_server[placement.devices])) > 1:
        found |= _families(system, Tier.SCALE_OUT) - {"PCIe"}  # a NIC's slot is as wide as its port
    return CATALOG_LINK_SPREAD if found <= set(MEASURED_FAMILIES) else UNMEASURED_LINK_SPREAD


def _families(system: System, tier: Tier) -> set[str]:
    """Families of the links of a tier."""
    edges = np.flatnonzero(system.edge_tier == tier)
    if isinstance(system.edge_name, Labels):
        edges = edges[np.unique(system.edge_name.rows[edges], return_index=True)[1]]
    names = {system.edge_name[edge] for edge in edges.tolist()}
    return {catalog.link_facts(name).family for name in names if name}


def _weights(
    column: NDArray[np.int32], of: NDArray[np.int64], reach: NDArray[np.float64], amount: NDArray[np.int64], causes: int
) -> NDArray[np.float64]:
    """Each cause's part of all ticks that can be off, each counting with its spread."""
    told = column >= 0
    ticks = np.bincount(column[told], amount[told].astype(np.float64), len(of)) * reach
    found = np.bincount(of, ticks, causes)
    return np.asarray(found / max(float(found.sum()), 1e-300))


def _tasks(
    job: Prepared, lowered: Lowered
) -> tuple[list[str], NDArray[np.int64], NDArray[np.float64], NDArray[np.int32]]:
    """Causes but the network, and the tasks that they move.

    Returns:
        Names of the causes; cause and spread of each kind of task; and the kind of each task, -1 for those that nothing
        moves.
    """
    trace, times = job.step.trace, job.times
    words = [_WORDS[name] for name in GROUPS]
    known = list(dict.fromkeys(words))
    code = np.array([known.index(word) for word in words])[by_name(trace.operators.name, group_of_name)]
    pairs = np.column_stack([code, np.round(times.spread, 4)])
    host = [[len(known), job.launching.spread], [len(known) + 1, update.SPREAD]]
    kinds, kind = np.unique(np.vstack([pairs, host]), axis=0, return_inverse=True)
    kind = np.where(kinds[kind.ravel(), 1] > 0, kind.ravel(), -1).astype(np.int32)
    column = np.full(len(lowered.graph), -1, np.int32)
    for cell, number in enumerate(lowered.program.tolist()):
        program, own = job.programs[number], slice(int(lowered.first[cell]), int(lowered.first[cell + 1]))
        computes = (program.op == Op.COMPUTE) & (program.operator >= 0)
        moved = np.where(computes, kind[np.maximum(program.operator, 0)], -1)
        column[own] = np.where(program.op == Op.ISSUE, np.where(program.peer < 0, kind[-2], kind[-1]), moved)
    return [*known, HOST, UPDATE], kinds[:, 0].astype(np.int64), kinds[:, 1], column


def _causes(job: Prepared, names: list[str], moved: NDArray[np.float64]) -> tuple[Cause, ...]:
    variance = moved**2
    total = float(variance.sum())
    if not total > 0:
        return ()
    share = variance / total
    order = [int(i) for i in np.argsort(-share, kind="stable") if share[i] > SMALL]
    return tuple(
        Cause(names[i], float(share[i]), float(np.sqrt(max(1 - share[i], 0.0))), _cure(job, names[i])) for i in order
    )


def _cure(job: Prepared, name: str) -> str:
    device = job.job.device.name or "the device"
    if name == HOST:
        return "" if job.launching.mode == "recorded" else f"record a trace on {device}"
    if name == UPDATE:
        return ""
    if name == NETWORK:
        return "describe the links with measured bandwidth and latency"
    group = by_name(job.step.trace.operators.name, group_of_name)
    source = job.times.source[np.array([_WORDS[one] == name for one in GROUPS])[group]]
    if np.isin(source, _RECORDED).all():
        return ""
    if job.job.recorded_on is None:
        return f"record a trace on {device}, or calibrate it (triosim calibrate)"
    return f"record the trace on {device} at these shapes, or calibrate it (triosim calibrate)"
