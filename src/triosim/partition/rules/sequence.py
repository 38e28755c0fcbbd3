"""Megatron's sequence parallelism: between the pairs of layers activations are Shard along the sequence.

Norms, dropouts and residual additions then work on a part of the sequence on each rank of the tensor axis.  Where
Megatron's pairs all-reduce, the product by row is reduce-scattered and the input of the layers by column all-gathered.
Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv:2205.05198), section
4.2.2; PyTorch's ``SequenceParallel`` does the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.registry import registered
from triosim.partition.facts import Facts
from triosim.partition.placements import Shard
from triosim.partition.rule import Placing, Rule
from triosim.trace.symbols import propagate_symbol
from triosim.trace.tables import PERSISTENT, Category


@registered
@dataclass(frozen=True)
class Sequence(Rule):
    """Rests activations along the sequence; layers are placed by the rules before it.

    Attributes:
        regather: gather a layer's input again in the backward, as Megatron does (section 4.2.2); otherwise what the
            forward gathered is kept, as PyTorch does.
        joint: add the input gradients of layers that share an input before they are scattered, as Megatron and
            PyTorch's ``PrepareModuleInput`` do; otherwise each is scattered by itself, as where every
            ``ColwiseParallel`` has ``input_layouts=Shard(1)``.  Gathers of one input are one, as in a compiled graph.
    """

    needs_ranks: ClassVar[bool] = True

    regather: bool = True
    joint: bool = True

    def place(self, facts: Facts, placing: Placing) -> Placing:
        """The Shard of every activation that has the sequence.

        Raises:
            PlanError: layers are not in pairs, or the sequence is not known or does not divide.
        """
        about = "sequence parallelism"
        columns = [layer.row for layer in facts.layers if placing.weights.get(layer.weight) == layer.out_dim]
        if placing.gathered.issuperset(columns):
            raise PlanError(f"{about} rests between pairs of layers, and there are none: use tp-style megatron")
        length = facts.trace.meta.sequence_length
        seeds = sequence_of(facts, length) if length else {}
        if not length and facts.trace.meta.made_by == "triosim.model":
            raise PlanError(f"{about}: {facts.trace.meta.workload} reads no sequences of tokens: leave it out")
        if not length or not seeds:
            raise PlanError(
                f"{about}: which dimension of {facts.trace.meta.workload or 'the trace'} is the sequence is not known: "
                "record it with its sequence_length, or name a model and give --seq-len"
            )
        if length % placing.size:
            down, up = length // placing.size * placing.size, -(-length // placing.size) * placing.size
            near = " or ".join(str(n) for n in (down, up) if n)
            raise PlanError(
                f"{about}: sequence length {length} does not divide by {placing.axis} {placing.size}: nearest that do "
                f"are {near}"
            )
        found = propagate_symbol(facts.trace, seeds, length).segments
        resting = {
            value: next(iter(shards))
            for value, shards in enumerate(found)
            if shards and facts.category[value] not in PERSISTENT and shards[0].size % placing.size == 0
        }
        return replace(placing, resting=resting, regathers=self.regather, at_boundaries=not self.joint)


def sequence_of(facts: Facts, length: int) -> dict[int, Shard]:
    """Where the sequence is in what the step is given: the second dimension, else the first of that extent.

    Args:
        facts: of the step.
        length: tokens of a sequence.
    """
    given = [v for v, category in enumerate(facts.category) if category in (Category.INPUT, Category.LABEL)]
    seeds = {}
    for value in given:
        at = [dim for dim, extent in enumerate(facts.shapes[value]) if extent == length]
        if at:
            seeds[value] = Shard.whole(1 if 1 in at else at[0], length)
    return seeds
