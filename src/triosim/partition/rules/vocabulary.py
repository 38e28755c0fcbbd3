"""Embedding table by rows, output layer by columns, the loss on the parts (Shoeybi et al. 2019, section 3).

Without a loss, in inference, the parts of the logits are gathered: Megatron-LM's output layer with
``gather_output``, and ``colwise_rep`` in the tensor-parallel plans of Hugging Face's Transformers.
"""

from __future__ import annotations

from dataclasses import replace

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.operators import NO_LABEL
from triosim.partition.facts import Facts, WeightUse
from triosim.partition.mesh import Mesh
from triosim.partition.operator_sharding import loss_reductions
from triosim.partition.rule import Placing, Rule
from triosim.trace.tables import Category, Phase, Trace
from triosim.transform.rescale import padded_vocabulary


@registered
@dataclass(frozen=True)
class Vocabulary(Rule):
    """Cuts the largest embedding tables, the layers that nothing but a loss reads, and the layer that a step without a
    loss ends with."""

    def suited(self, trace: Trace, mesh: Mesh) -> Trace:
        """With the vocabulary padded as Megatron-LM does, so that it divides."""
        return padded_vocabulary(trace, mesh.size(self.axis))

    def place(self, facts: Facts, placing: Placing) -> Placing:
        """Tables along their rows, output layers along their outputs."""
        tables = [layer for layer in facts.layers if layer.embedding and layer.in_dim != NO_LABEL]
        rows = max((facts.shapes[t.weight][t.in_dim] for t in tables), default=0)
        weights, refused, losses = dict(placing.weights), list[str](), placing.losses_divided
        gathered = set(placing.gathered)
        for table in tables:
            if facts.shapes[table.weight][table.in_dim] == rows:
                refused.append(placing.refusal(facts, table, table.in_dim))
                if not refused[-1]:
                    weights.setdefault(table.weight, table.in_dim)
        for head in facts.layers if tables else ():
            free = weights.get(head.weight, head.out_dim) == head.out_dim
            if not free or head.embedding:
                continue
            end = _end(facts, head)
            logits = end == NOTHING and head.out_dim != NO_LABEL and facts.shapes[head.weight][head.out_dim] == rows
            if end == LOSS or logits:
                refused.append(placing.refusal(facts, head, head.out_dim))
                if not refused[-1]:
                    weights[head.weight] = head.out_dim
                    losses |= end == LOSS
                    gathered |= {head.row} if logits else set()
        return replace(
            placing.sharding(weights), losses_divided=losses, gathered=frozenset(gathered)
        ).refusing(*refused)  # fmt: skip


LOSS, NOTHING, OTHERS = "loss", "nothing", "others"
"""What reads a layer's output in the end."""


def _end(facts: Facts, layer: WeightUse) -> str:
    """What reads the layer's output (through views, casts, a bias and a softmax): a loss of classes alone, nothing, or
    others."""
    storages = {facts.storage[v] for v in facts.outputs[layer.row]}
    for row in range(layer.row + 1, len(facts.inputs)):
        if facts.phase[row] != Phase.FORWARD or not any(facts.storage[v] in storages for v in facts.inputs[row]):
            continue
        call = facts.calls[row]
        if call.kind == "loss":
            return LOSS if loss_reductions(facts, row) >= 0 else OTHERS
        if call.kind not in ("view", "softmax", "copy") and not _adds_bias(facts, row):
            return OTHERS
        storages.update(facts.storage[v] for v in facts.outputs[row])
    return NOTHING


def _adds_bias(facts: Facts, row: int) -> bool:
    """Whether an operator adds a parameter to what it reads."""
    return facts.calls[row].name == "add" and any(facts.category[v] == Category.WEIGHT for v in facts.inputs[row])
