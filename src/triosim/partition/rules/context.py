"""Context parallelism: the ranks of a group have a part of each sequence, and what attention needs is sent.

The axis ``cp`` is taken from the data axis.  Everything but attention works token by token, on a rank's own part.
Gradients of parameters are sums over ``dp`` and ``cp``, reduced and sharded along both at once.  Attention:

* ``gather``: keys and values of a layer are all-gathered before it, their gradients reduce-scattered after its
  backward; with ``T`` tokens of ``h`` elements of keys each is ``T h`` elements, as all ranks together have.  Parts are
  taken to be dealt out so that causal attention is the same work on each (one from the front with one from the back);
* ``ring``: blocks of keys and values go round beside the attention (:mod:`triosim.partition.ring_attention`), parts
  dealt out likewise;
* ``ulysses``: all-to-alls give each rank all positions of a part of the heads (:mod:`triosim.partition.ulysses`);
* ``usp``: both, all-to-alls among ``cp_ulysses`` neighbours and a ring through the others
  (:mod:`triosim.partition.unified_attention`).

Steps that read no sequences, as those of diffusion transformers, are cut along the tokens of their images and prompts
(:mod:`triosim.partition.token_axes`); their attention is not causal, so parts need not be dealt out in pairs.

Layers that pass a state along the sequence are scanned by heads in each of these
(:mod:`triosim.partition.scans_by_heads`).

Sources: Llama team, "The Llama 3 Herd of Models" (arXiv:2407.21783), section 3.3.2; PyTorch's
``torch.distributed.tensor.experimental.context_parallel`` with ``allgather``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.options import AtLeast
from triosim.core.registry import registered
from triosim.operators import SPREAD
from triosim.partition.context_copies import with_context_copies
from triosim.partition.experts import routed
from triosim.partition.facts import Facts
from triosim.partition.mesh import Mesh
from triosim.partition.placements import Shard
from triosim.partition.replication import Replication
from triosim.partition.ring_attention import in_blocks, passed_round
from triosim.partition.rule import M, Placing, Rule
from triosim.partition.rules.sequence import sequence_of
from triosim.partition.scans_by_heads import ALONG_SEQUENCE, exchanged_scans, rows_by_heads
from triosim.partition.step import Step
from triosim.partition.token_axes import common_parts, follow_tokens, tokens_of
from triosim.partition.ulysses import exchanged
from triosim.partition.unified_attention import exchanged_and_passed_round
from triosim.plan import divisors
from triosim.trace.calls import calls_of, count_work, with_arguments
from triosim.trace.symbols import propagate_symbol
from triosim.trace.tables import PERSISTENT, Trace


@registered
@dataclass(frozen=True)
class Context(Rule):
    """Cuts what a replica is given along the sequence.

    Attributes:
        cp: ranks that share the sequences of a replica.
        cp_style: how attention gets what other ranks have.
        cp_ulysses: of ``usp``, ranks that exchange heads; 0 for those on one server.
        cp_merges: how results of blocks are merged, which a stack says
            (:data:`triosim.operators.context_copies.MERGES`).
    """

    axis: ClassVar[str] = "cp"
    cuts_inputs: ClassVar[bool] = True

    cp: int = 2
    cp_style: Literal["gather", "ulysses", "ring", "usp"] = "gather"
    cp_ulysses: Annotated[int, AtLeast(0)] = 0
    cp_merges: Literal["composed", "compiled", "fused"] = "composed"

    def arranged(self, mesh: M) -> M:
        """With the axis ``cp`` within the data axis, ``dp_cp`` for both, and of ``usp`` ``cp_ring`` and ``cp_ulysses``.

        Raises:
            PlanError: the data axis does not divide so, or ``cp`` does not.
        """
        mesh = mesh.carved("dp", "cp", self.cp).joined("dp_cp", ("dp", "cp"))
        if self.cp_style != "usp":
            if self.cp_ulysses:
                raise PlanError(f"context: cp-ulysses is of cp-style usp, not of {self.cp_style}: leave one out")
            return mesh
        near = self.cp_ulysses or mesh.on_server("cp")
        if not near or self.cp % near:
            said = f"{near} do not divide it" if near else "which of them are on one server is not known"
            raise PlanError(f"context: cp-style usp of cp {self.cp} ranks: {said}: give cp-ulysses=N that does")
        return mesh.resplit(("cp",), (("cp_ring", self.cp // near), ("cp_ulysses", near)))

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """Gradients are reduced, and what is Shard is so, along both axes.

        Raises:
            PlanError: replicas are arranged otherwise.
        """
        if placed.axis != "dp" or placed.path or placed.rooted or placed.apart:
            raise PlanError(
                "context: cp goes with ZeRO and plain data parallelism, without hsdp and dataparallel, before experts"
            )
        return replace(placed, axis="dp_cp")

    def place(self, facts: Facts, placing: Placing) -> Placing:
        """Inputs and labels along the sequence, and where activations wait.

        Raises:
            PlanError: the sequence is not known or does not divide.
        """
        length = facts.trace.meta.sequence_length
        if length:
            seeds = sequence_of(facts, length)
            self._check_length(facts, seeds, length, placing.size)
            found = propagate_symbol(facts.trace, seeds, length).segments
        else:
            seeds = tokens_of(facts)
            found = follow_tokens(facts, seeds)
            _check_tokens(facts, seeds, found, placing.size)
        resting = {
            value: shard
            for value, shards in enumerate(found)
            if shards and facts.category[value] not in PERSISTENT
            if (shard := next(iter(shards))).size % placing.size == 0
        }
        alone, own = routed(facts, next(iter(seeds.items())))
        by_heads = rows_by_heads(facts)
        for row in by_heads:
            for value in facts.outputs[row]:
                if length and facts.shapes[value][1:2] == (length,):
                    own[value] = Shard.whole(1, length)
        alone |= frozenset(row for row in by_heads if facts.calls[row].kind in ALONG_SEQUENCE)
        return replace(
            placing, inputs=seeds, resting={**own, **resting}, stationary="activations", per_rank=frozenset({"loss"}),
            alone=alone, left=frozenset(facts.trace.weights().tolist()),
        )  # fmt: skip

    def _check_length(self, facts: Facts, seeds: Mapping[int, Shard], length: int, size: int) -> None:
        """Refuse a sequence that is not known or does not divide."""
        if not seeds:
            raise PlanError(_unknown(facts))
        parts = 1 if self.cp_style == "ulysses" else 2
        if length % (parts * size):
            unit = parts * size
            near = " or ".join(str(n) for n in (length // unit * unit, -(-length // unit) * unit) if n)
            each = "a part" if parts == 1 else "two parts"
            raise PlanError(
                f"context: sequence length {length} does not divide into {each} for each of cp {size} ranks:"
                f" nearest that do are {near}"
            )

    def completed(self, step: Step, mesh: Mesh) -> Step:
        """With attention by heads, by blocks, or one that knows that its queries are from all over the sequence.

        Raises:
            PlanError: it cannot be had so.
        """
        size = mesh.size("cp")
        return step if size == 1 else exchanged_scans(self._attending(step, mesh, size), size, mesh.row("cp"))

    def _attending(self, step: Step, mesh: Mesh, size: int) -> Step:
        ring = self._ring(mesh)
        if self.cp_style == "gather":
            return _spread(step)
        if ring == 1:
            return exchanged(step, size, mesh.row("cp"))
        if ring == size:
            return passed_round(step, size, mesh.row("cp"), self.cp_merges != "fused")
        return exchanged_and_passed_round(step, mesh, self.cp_merges != "fused")

    def suited(self, trace: Trace, mesh: Mesh) -> Trace:
        """With attention in blocks where those go round, and with what is copied around it."""
        ring, size = self._ring(mesh), mesh.size("cp")
        trace = in_blocks(trace, ring) if ring > 1 else trace
        if self.cp_style == "gather" or size == 1:
            return trace
        return with_context_copies(trace, ring, ring < size, self.cp_merges)

    def _ring(self, mesh: Mesh) -> int:
        """Ranks through which keys and values go round."""
        return {"ring": mesh.size("cp"), "usp": mesh.size("cp_ring")}.get(self.cp_style, 1)


def _unknown(facts: Facts) -> str:
    return (
        f"context: which dimension of {facts.trace.meta.workload or 'the trace'} is the sequence is not known: record "
        "it with its sequence_length, or name a model and give --seq-len"
    )


def _check_tokens(facts: Facts, seeds: Mapping[int, Shard], found: Sequence[tuple[Shard, ...]], size: int) -> None:
    """Refuse a step without sequences whose attentions do not all have tokens that can be divided.

    Raises:
        PlanError: so it is.
    """
    name = facts.trace.meta.workload or "the trace"
    parts = common_parts(facts, seeds, found)
    if not parts:
        if facts.trace.meta.made_by != "triosim.model":
            raise PlanError(_unknown(facts))
        raise PlanError(
            f"context: {name} reads no sequences of tokens, and no image whose rows or tokens all its attentions keep "
            "apart, which --cp divides: leave it out"
        )
    if parts % size:
        fits = ", ".join(map(str, divisors(parts)))
        raise PlanError(
            f"context: {parts} tokens, or rows of them, of {name} do not divide by cp {size}: sizes that do are {fits}"
        )


@kept(8)
def token_parts(trace: Trace) -> int:
    """Into how many parts the tokens of a step that reads no sequences can be cut: divisors of that are sizes of
    ``cp``; 1 where they cannot."""
    facts = Facts(trace)
    seeds = tokens_of(facts)
    return common_parts(facts, seeds, follow_tokens(facts, seeds)) or 1 if seeds else 1


@kept(8)
def _spread(step: Step) -> Step:
    operators, calls = step.trace.operators, calls_of(step.trace)
    args = tuple(
        with_arguments(text, **{SPREAD: True}) if calls[row].kind == "attention" else text
        for row, text in enumerate(operators.args)
    )
    return replace(step, trace=count_work(replace(step.trace, operators=replace(operators, args=args))))
