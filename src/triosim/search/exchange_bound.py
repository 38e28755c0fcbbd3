"""Lower bound of what replicas exchange: gradients are reduced, updated parameters gathered.

Reductions run beside the last backwards, one after another; the gradients of a stage's first chunk are complete in its
last backward only.  Then the optimizer runs, and what each rank has updated a part of is gathered, while nothing is
computed.  Where parameters are in shards and there is no pipeline, each micro-batch gathers and reduces, by one
communicator.

A collective of more bytes takes no longer for each of them, as far as its algorithm stays the same: so all parameters
at once, by a ring, take the least for each byte.  What an all-reduce does besides is left out, a reduce-scatter is a
part of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.network.device_assignment import assign_devices
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.resolve import JobMesh, replication
from triosim.partition.transfers import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from triosim.partition.wire_format import WireFormat
from triosim.plan import Plan
from triosim.prediction.priced_job import mesh_of
from triosim.prediction.staged_job import StagedJob
from triosim.search.evaluate import job_communication
from triosim.search.isolated_transfers import UnequalRanks, isolated_times
from triosim.trace.tables import Phase, Trace

LARGEST = 2**38
"""Bytes of what is taken for all parameters at once."""


@dataclass(frozen=True)
class ExchangeBound:
    """Least seconds per byte of what replicas exchange.

    Attributes:
        reduced: of gradients: of parameters that all replicas have, and of those that only some have (experts).
        gathered: of updated parameters, likewise.
        each: whether every micro-batch does both, and not the end of an iteration.
        again: whether its backward gathers the parameters of blocks again.
    """

    reduced: tuple[float, float] = (0.0, 0.0)
    gathered: tuple[float, float] = (0.0, 0.0)
    each: bool = False
    again: bool = False


def exchange_bound(workload: Trace, system: System, plan: Plan, fidelity: Fidelity) -> ExchangeBound:
    """What the replicas of a plan exchange at least.

    Raises:
        InputError: as of :func:`triosim.prediction.prepare.prepare`.
    """
    rules, mesh = mesh_of(workload, system, plan)
    placed = replication(rules, mesh)
    plain = not (placed.away or placed.rooted or placed.path or placed.compression or placed.outer)
    plain = plain and placed.travel == WireFormat()
    known = placed.every == 1 and plain
    if not known or plan.places or plan.placement is not None:
        return ExchangeBound()
    if placed.weights and (placed.whole or mesh.stages > 1 or plan.stack is not None):
        return ExchangeBound()
    how = (fidelity.collective_algorithm, fidelity.collective_protocol, system.ideal)
    each = [placed, placed.of_apart() if placed.apart else placed]
    hidden = plan.stack is not None and plan.stack.overlap_parameters  # beside the forward, perhaps for nothing
    return ExchangeBound(
        tuple(_reduced(one, mesh, system, how) for one in each),  # type: ignore[arg-type]
        (0.0, 0.0) if hidden else tuple(_gathered(one, mesh, system, how) for one in each),  # type: ignore[arg-type]
        placed.weights,
        placed.weights and placed.regathers,
    )


@dataclass(frozen=True)
class CollectivesBound:
    """Least seconds of the collectives of a pass by their bytes alone, latency left out.

    Attributes:
        all_s: all of them together.
        forward_s, backward_s: those of either that nothing may hide: no operator runs between the one that gives them
            their bytes and the one that reads what they bring.
        longest_s: the longest of these, all between the same two operators together.
    """

    all_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    longest_s: float = 0.0


def collectives_bound(made: StagedJob, often: NDArray[np.float64], runs: NDArray[np.bool_]) -> CollectivesBound:
    """The collectives of a pass.

    Args:
        made: a job on one stage.
        often: how many operators each operator stands for.
        runs: which operators take any time.
    """
    sent, phase = made.step.transfers, made.step.trace.operators.phase
    if made.plan.placement is not None:
        return CollectivesBound()
    at = np.where(sent.after >= 0, sent.after, sent.before)
    ends = np.append(phase, Phase.OPTIMIZER)[sent.before] == Phase.OPTIMIZER  # once an iteration, if anybody needs it
    known = np.flatnonzero(~ends & ~sent.beside & np.isin(sent.what, (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)))
    if not known.size:
        return CollectivesBound()
    how = (made.fidelity.collective_algorithm, made.fidelity.collective_protocol, made.system.ideal)
    kinds = np.where(sent.what == ALL_REDUCE, REDUCE_SCATTER, sent.what)[known]
    pairs, back = np.unique(np.stack([sent.axis[known], kinds]), axis=1, return_inverse=True)
    each = np.array([_of_byte(made.mesh, axis, kind, made.system, how) for axis, kind in pairs.T.tolist()])
    once = sent.bytes[known] * each[back.ravel()]
    whole, at = once * often[at[known]], at[known]
    ran = np.append(0, np.cumsum(runs))
    waits = (sent.after[known] >= 0) & (ran[sent.before[known]] == ran[sent.after[known] + 1])
    waits &= phase[at] == np.append(phase, Phase.OPTIMIZER)[sent.before[known]]
    forward = phase[at] == Phase.FORWARD
    longest = np.bincount(at[waits], once[waits]).max(initial=0.0)
    return CollectivesBound(
        float(whole.sum()), float(whole[waits & forward].sum()), float(whole[waits & ~forward].sum()), float(longest)
    )


def _reduced(placed: Replication, mesh: JobMesh, system: System, how: tuple[str, str, bool]) -> float:
    found = 0.0
    for what, axis, parts in placed.reductions(mesh) if placed.ranks(mesh) > 1 else ():
        kind = REDUCE_SCATTER if what == ALL_REDUCE else what
        found = max(found, _of_byte(mesh, axis, kind, system, how) / parts)
    return found


def _gathered(placed: Replication, mesh: JobMesh, system: System, how: tuple[str, str, bool]) -> float:
    if not placed.states or placed.ranks(mesh) == 1 or mesh.size(placed.axis) == 1:
        return 0.0
    return _of_byte(mesh, mesh.row(placed.axis), ALL_GATHER, system, how)


def _of_byte(mesh: JobMesh, axis: int, what: int, system: System, how: tuple[str, str, bool]) -> float:
    """Seconds of a byte of a collective along an axis, of the group that needs least."""
    plain = Mesh(mesh.axes, derived=mesh.derived)
    return _along(plain.axes, plain.derived, axis, what, system, how)


@kept(512)
def _along(axes: tuple, derived: tuple, axis: int, what: int, system: System, how: tuple[str, str, bool]) -> float:
    mesh = Mesh(axes, derived=derived)
    assignment = assign_devices(mesh, system.devices, torus=system.torus)
    table = assignment.devices[mesh.table(mesh.names[axis])].astype(np.int64)
    server = system.device_server[table]
    _, first = np.unique(server - server[:, :1], axis=0, return_index=True)
    found = []
    for row in first.tolist():
        order = tuple(table[row].tolist())
        call = (what, LARGEST, 0)
        try:
            alone = isolated_times(
                system, Mesh((("pp", 1), ("dp", len(order)))), order, (call,), (), how, job_communication
            )
        except UnequalRanks:
            return 0.0
        found.append(alone.calls[call])
    return min(found) / PICOSECONDS_PER_SECOND / LARGEST
