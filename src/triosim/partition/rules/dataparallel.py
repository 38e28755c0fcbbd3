"""torch's ``DataParallel``: one process drives all replicas, and only the first has parameters for good.

Each iteration the first replica scatters the batch and broadcasts parameters and buffers, gathers the outputs, computes
the loss on the whole batch and scatters its gradient; the gradients of the parameters are reduced to it, and it alone
runs the optimizer (torch.nn.parallel.data_parallel and comm, PyTorch documentation).  Nothing overlaps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.registry import registered
from triosim.operators import kind
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.rule import Rule
from triosim.partition.step import Step
from triosim.partition.transfers import COLLECTIVES, Transfer, Transfers
from triosim.trace.tables import Category, Phase, Trace

_SCATTER, _BROADCAST, _GATHER = map(COLLECTIVES.index, ("scatter", "broadcast", "gather"))


@registered
@dataclass(frozen=True)
class DataParallel(Rule):
    """Everything is at the first replica."""

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """Rooted.

        Raises:
            PlanError: a replica is several ranks, or something is Shard or on the host.
        """
        if mesh.ranks > mesh.size("dp"):
            raise PlanError("dataparallel is one process over whole replicas: use tp 1 and pp 1, or dp-style ddp")
        if placed.states:
            raise PlanError(
                f"dp-style dataparallel keeps everything whole and cannot be combined with {placed.name}: use dp-style "
                "ddp, or zero 0"
            )
        if placed.away:
            raise PlanError("dp-style dataparallel keeps everything on its devices: use dp-style ddp, or no offload")
        return replace(placed, rooted=True, path=(("reduce", "dp"),))

    def completed(self, step: Step, mesh: Mesh) -> Step:
        """With the loss and the optimizer at the first replica only, and what is sent from and to it.

        Raises:
            PlanError: the trace does not show where the model ends and the loss begins.
        """
        trace, replicas = step.trace, mesh.size("dp")
        operators, values = trace.operators, trace.values
        loss, back = loss_rows(trace)
        backward = np.flatnonzero(np.isin(operators.phase, (Phase.BACKWARD, Phase.RECOMPUTE))).tolist()
        if backward and not loss:
            raise PlanError(
                f"dp-style dataparallel: no loss operator was found in {trace.meta.workload!r}, so what to gather is "
                "not known: use dp-style ddp"
            )
        root_only = frozenset([*loss, *back, *np.flatnonzero(operators.phase == Phase.OPTIMIZER).tolist()])
        forward = [row for row in np.flatnonzero(operators.phase == Phase.FORWARD).tolist() if row not in root_only]
        inner = [row for row in backward if row not in root_only]
        size, output = values.storage_bytes(), _output_bytes(trace, forward, loss) * replicas
        inputs, state = (
            int(size[np.unique(values.storage[np.isin(values.category, of)])].sum())
            for of in ([Category.INPUT], [Category.WEIGHT, Category.BUFFER])
        )
        sent = [
            (-1, forward[0], _SCATTER, inputs * replicas), (-1, forward[0], _BROADCAST, state),
            (forward[-1], len(operators), _GATHER, output), (-1, inner[0] if inner else -1, _SCATTER, output),
        ]  # fmt: skip
        axis = mesh.row("dp")
        rows = [Transfer(a, b, what, axis, n, -1) for a, b, what, n in sent if replicas > 1 and n and b >= 0]
        return replace(step, transfers=step.transfers.with_more(Transfers.of(rows)), root_only=root_only)


def loss_rows(trace: Trace) -> tuple[list[int], list[int]]:
    """Forward operators of the loss (from the first loss or the softmax before it to the end), and their backward.

    The model's output is what the loss reads; ``DataParallel`` gathers it.
    """
    operators = trace.operators
    forward = np.flatnonzero(operators.phase == Phase.FORWARD).tolist()
    losses = [row for row in forward if kind(operators.name[row]) == "loss"]
    if not losses:
        return [], []
    start = losses[0]
    position = forward.index(start)
    while position > 0 and kind(operators.name[forward[position - 1]]) in ("softmax", "view"):
        position -= 1
        start = forward[position]
    rows = [row for row in forward if row >= start]
    backward = np.flatnonzero(operators.phase == Phase.BACKWARD).tolist()
    mine = set(rows)
    linked = [row for row in backward if int(operators.forward[row]) in mine]
    if linked:  # whatever runs before the last of them belongs to the loss too
        return rows, [row for row in backward if row <= max(linked)]
    return rows, []


def _output_bytes(trace: Trace, forward: list[int], loss: list[int]) -> int:
    """Bytes of what the loss reads of the model (its largest input), or of the last output without a loss."""
    size, storage, operators = trace.values.bytes(), trace.values.storage, trace.operators
    if not loss:
        return max((int(size[v]) for v in operators.outputs[forward[-1]].tolist()), default=0)
    made = {int(storage[v]) for row in forward for v in operators.outputs[row].tolist()}
    reads = [v for row in loss for v in operators.inputs[row].tolist()]
    return max((int(size[v]) for v in reads if int(storage[v]) in made), default=0)
