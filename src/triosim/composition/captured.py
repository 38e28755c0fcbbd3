"""Parts of each block that are CUDA graphs of their own, and where the host waits for a number.

A graph of some modules of a block is launched once for all of their kernels, forward and backward each
(Megatron-Core's ``--cuda-graph-impl transformer_engine`` with ``--cuda-graph-scope``,
``megatron/core/transformer/cuda_graphs.py`` and ``transformer_layer.py``).  What decides how many rows an expert gets
cannot be in such a graph beside the experts: kernels whose sizes the host chooses are launched after it has read the
counts (``MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize``; DeepEP's and HybridEP's dispatch, which wait for
the device's signal: ``megatron/core/transformer/moe/token_dispatcher.py`` and ``fused_a2a.py``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from triosim.composition.host import HostCosts
from triosim.core.caching import kept
from triosim.operators import canonical, kind
from triosim.stacks import ATTENTION_PART, PREPROCESS_PART, ROUTER_PART
from triosim.trace.blocks import blocks
from triosim.trace.tables import NONE, Phase, Trace
from triosim.transform.quantization import PADDING

BETWEEN = "between"
"""Part of what belongs to the block itself: an addition to the residual stream goes with what is around it."""


def captured(trace: Trace, cost: HostCosts, parts: str) -> HostCosts:
    """The costs where parts of each block are graphs: the first operator of a run of them costs a launch, others none.

    Args:
        trace: one rank's step.
        cost: where each operator is launched.
        parts: joined by ``+``, as :data:`triosim.stacks.GRAPHS` has them; ``""`` for none.
    """
    chosen = set(parts.split("+"))
    if not parts or cost.mode in ("none", "recorded", "graph"):
        return cost
    operators, part = trace.operators, np.array(block_parts(trace))
    rows = np.flatnonzero(~operators.view)
    # a run is of one block, all forward or none: (operators without views,)
    turn = 2 * blocks(trace).of(trace)[rows] + (operators.phase[rows] == Phase.FORWARD)
    inside = np.isin(part[rows], list(chosen))
    between = np.flatnonzero(part[rows[1:-1]] == BETWEEN) + 1
    alike = (turn[between - 1] == turn[between]) & (turn[between] == turn[between + 1])
    inside[between] = alike & inside[between - 1] & inside[between + 1]
    goes_on = np.zeros(len(rows), bool)
    goes_on[1:] = inside[1:] & inside[:-1] & (turn[1:] == turn[:-1])
    issue = cost.issue_s.copy()
    usual = float(issue[rows].max(initial=0.0))
    issue[rows[inside]] = np.where(goes_on[inside], 0.0, usual)
    return replace(cost, issue_s=issue)


def counts_of_experts(trace: Trace) -> tuple[int, ...]:
    """Operators that count the rows of each expert, the last of them before each pass forward through experts."""
    operators, part = trace.operators, block_parts(trace)
    kinds = [kind(name) for name in operators.name]
    found, last = list[int](), NONE
    for row in np.flatnonzero(~operators.view & np.isin(operators.phase, (Phase.FORWARD, Phase.RECOMPUTE))).tolist():
        if part[row] in (ROUTER_PART, PREPROCESS_PART):
            last = row
        elif kinds[row] == "experts" and last != NONE:
            found.append(last)
            last = NONE
    return tuple(found)


def offsets_of_gates(trace: Trace) -> tuple[int, ...]:
    """The last operators before the kernels of limited gates (GPT-OSS), in each pass forward.

    Megatron-Core makes a tensor of a number there (``linear_offset`` in ``weighted_bias_quick_geglu_impl`` of
    ``megatron/core/fusions/fused_bias_geglu.py``), whose copy to the device is from memory that is not pinned, so that
    the host waits until the device has nothing left.
    """
    operators = trace.operators
    rows = np.flatnonzero(~operators.view & np.isin(operators.phase, (Phase.FORWARD, Phase.RECOMPUTE))).tolist()
    names = [canonical(operators.name[row]) for row in rows]
    return tuple(before for before, name in zip(rows, names[1:], strict=False) if name == ("clamped_swiglu", False))


@kept(16)
def block_parts(trace: Trace) -> tuple[str, ...]:
    """The part of its block that each operator is in, ``""`` for none that can be captured.

    What attends and the norm before it are one part; what chooses experts and the norm before it another; what counts
    rows, before the products of the experts but the copies of the rows themselves, the third.
    """
    operators, paths, of = trace.operators, trace.modules.path, blocks(trace)
    within, phases = of.of(trace).tolist(), operators.phase.tolist()
    kinds = [kind(name) for name in operators.name]
    inner = [
        paths[module].removeprefix(of.path[block])[1:] if block != NONE else ""
        for module, block in zip(operators.module.tolist(), within, strict=True)
    ]  # fmt: skip
    experts, attending = dict[int, str](), dict[int, str]()  # by block
    for row, block in enumerate(within):
        if kinds[row] == "experts":
            experts.setdefault(block, inner[row])
        elif kinds[row] in ("attention", "softmax") and block not in experts:
            attending.setdefault(block, inner[row].partition(".")[0])
    norms, begun = dict[tuple[int, str], str](), set[int]()
    part, multiplied = [""] * len(within), set[tuple[int, int]]()  # block and phase
    for row, block in enumerate(within):
        if block == NONE or phases[row] == Phase.OPTIMIZER:
            continue
        child, own = inner[row].partition(".")[0], experts.get(block, "")
        if not child:
            part[row] = BETWEEN
        elif child == attending.get(block):
            part[row] = ATTENTION_PART
            begun.add(block)
        elif own and child == own.partition(".")[0]:
            if inner[row] == own:
                turn = block, phases[row]
                multiplied |= {turn} if kinds[row] == "experts" else set()
                moved = kinds[row] == "permutation" or operators.name[row] == PADDING
                counts = turn not in multiplied and not moved and phases[row] != Phase.BACKWARD
                part[row] = PREPROCESS_PART if counts else ""
            elif "shared" not in inner[row]:
                part[row] = ROUTER_PART
        elif kinds[row] == "normalization" or (block, child) in norms:
            follows = ROUTER_PART if own else ""
            part[row] = norms.setdefault((block, child), follows if block in begun else ATTENTION_PART)
    return tuple(part)
