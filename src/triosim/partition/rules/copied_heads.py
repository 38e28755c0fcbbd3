"""Heads of keys and values that are fewer than the ranks of the tensor axis: each on several neighbouring ranks.

A rank has the head that its own heads of queries attend with.  Its copies are equal at the start, and stay so because
their gradients, each from the queries of its own rank, are added up among them before the optimizer; so memory and work
of these weights do not shrink any further, and nothing else is sent.

Sources: NeuronX Distributed, ``GQAQKVColumnParallelLinear`` with ``kv_size_multiplier``; vLLM, ``QKVParallelLinear``
(``num_kv_head_replicas``).  Megatron-Core since 2025 divides the product all the same and all-gathers what it makes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.partition.mesh import Mesh
from triosim.partition.rule import M, Rule
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_REDUCE, Transfer, Transfers
from triosim.plan import Plan
from triosim.trace.tables import ITEM_BYTES, JOINED_HEADS, KEY_HEADS, Category, Phase, Trace
from triosim.transform.rescale import attention_heads, key_head_copies, with_copied_key_heads

HEADS, COPIES = "tp_heads", "tp_copies"


def copied_heads(trace: Trace, plan: Plan) -> list[Rule]:
    """The rule that copies heads of keys and values, where a plan asks for more ranks than there are such heads."""
    copies = key_head_copies(trace, plan.tp) if plan.tp_plan is None and plan.tp_style == "megatron" else 1
    if copies == 1:
        return []
    queries, keys = attention_heads(trace) or (1, 1)
    return [CopiedHeads(copies, 2 * keys * copies / (queries + 2 * keys * copies))]


@dataclass(frozen=True)
class CopiedHeads(Rule):
    """Gives every rank a head of keys and values.

    Attributes:
        copies: ranks that have the same one.
        joined_share: of a product that makes queries too, the part that makes keys and values.
    """

    copies: int
    joined_share: float

    def arranged(self, mesh: M) -> M:
        """With the axes of the heads, and of the copies of each, which are neighbours."""
        size = mesh.size(self.axis)
        return mesh.resplit((self.axis,), ((HEADS, size // self.copies), (COPIES, self.copies)))

    def suited(self, trace: Trace, mesh: Mesh) -> Trace:
        """With as many heads as ranks."""
        return with_copied_key_heads(trace, mesh.size(self.axis))

    def completed(self, step: Step, mesh: Mesh) -> Step:
        """With the sums of gradients among copies, before the optimizer."""
        values, operators = step.trace.values, step.trace.operators
        bits = np.zeros(len(values), np.uint8)
        np.bitwise_or.at(bits, values.symbols.rows(), values.symbols.values)
        weights = [v for v in step.trace.weights().tolist() if bits[v] & (KEY_HEADS | JOINED_HEADS)]
        of = {weight: bool(bits[weight] & KEY_HEADS) for weight in weights}
        phase, category, owner = operators.phase.tolist(), values.category.tolist(), values.of.tolist()
        made, read = dict[int, tuple[int, int]](), dict[int, int]()
        for row, (reads, writes) in enumerate(zip(operators.inputs.lists(), operators.outputs.lists(), strict=True)):
            for value in writes if phase[row] != Phase.OPTIMIZER else ():
                if category[value] == Category.GRADIENT and owner[value] in of:
                    made[owner[value]] = row, value
            for value in reads if phase[row] == Phase.OPTIMIZER else ():
                if category[value] == Category.GRADIENT and owner[value] in of:
                    read.setdefault(owner[value], row)
        shapes, sent = values.shape.lists(), list[Transfer]()
        for weight, (row, value) in made.items():
            share = 1.0 if of[weight] else self.joined_share
            size = math.ceil(math.prod(shapes[value]) * float(ITEM_BYTES[values.dtype[value]]) * share)
            sent.append(Transfer(row, read.get(weight, len(phase)), ALL_REDUCE, mesh.row(COPIES), size, value))
        return replace(step, transfers=step.transfers.with_more(Transfers.of(sent)))
