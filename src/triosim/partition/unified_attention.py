"""Ulysses within a ring: neighbours exchange heads for positions, and their keys and values go round the others.

Of ``n = u r`` ranks that share a sequence ``u`` exchange heads (all-to-all), so that each has ``1 / r`` of the
positions of ``1 / u`` of the heads; then blocks of keys and values go round the ``r`` ranks that have the same heads,
beside the attention.  A rank passes on ``(r - 1) / (n - 1)`` of what it would in a ring through all, and heads need
only divide by ``u``.

Source: Fang and Zhao, "USP: A Unified Sequence Parallelism Approach for Long Context Generative AI" (arXiv:2405.07719);
Megatron-LM's ``--cp-comm-type a2a+p2p``.
"""

from __future__ import annotations

from triosim.core.caching import kept
from triosim.operators import BLOCKS, SHARE
from triosim.partition.attention_share import HEADS, KEYS, QUERIES, AttentionShare, is_sent
from triosim.partition.mesh import Mesh
from triosim.partition.ring_attention import in_float32
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER
from triosim.partition.ulysses import HeadExchange
from triosim.trace.calls import with_arguments


@kept(8)
def exchanged_and_passed_round(step: Step, mesh: Mesh, wide: bool = False) -> Step:
    """The step of a rank that exchanges heads with its neighbours and passes keys and values round the others.

    Args:
        step: divided along the sequence, each attention in blocks of the ring
            (:func:`triosim.partition.ring_attention.in_blocks`), keys and values gathered before it.
        mesh: with the axes ``cp``, ``cp_ring`` and ``cp_ulysses``.
        wide: as of :func:`triosim.partition.ring_attention.passed_round`.

    Raises:
        PlanError: attention is several operators, or its heads do not divide.
    """
    ring, across, among = mesh.size("cp_ring"), mesh.row("cp_ring"), mesh.row("cp_ulysses")
    share = AttentionShare(step, mesh.size("cp"), mesh.row("cp"), "usp")
    heads = HeadExchange(share, mesh.size("cp_ulysses"))
    args = list(step.trace.operators.args)
    for row in share.rows:
        some = round(share.facts.calls[row].args[SHARE] * ring)
        args[row] = with_arguments(args[row], **{SHARE: None, BLOCKS: [some, ring]})
    for first, last in zip(share.rows[::2], share.rows[1::2], strict=True):
        reads, writes = share.names[last]
        starts = max(heads.made(first, at, value) for at, value in enumerate(share.inputs[first]))
        for at, (value, names) in enumerate(zip(list(share.inputs[first]), reads, strict=True)):
            if not {QUERIES, KEYS} & set(names):
                continue
            own, known = heads(value, names)
            share.inputs[first][at] = share.inputs[last][at] = own
            if not known and is_sent(names):
                share.send(value, ALL_TO_ALL, heads.made(first, at, value), first, axis=among)
            if is_sent(names) and KEYS in names and QUERIES not in names:
                share.inputs[last][at] = share.copy(value, share.shape_of(own))
                share.send(value, ALL_GATHER, starts, last, ring, across)
        for at, (value, names) in enumerate(zip(list(share.outputs[last]), writes, strict=True)):
            if HEADS not in names or not {QUERIES, KEYS} & set(names):
                continue
            share.outputs[first][at] = share.outputs[last][at] = heads(value, names)[0]
            reader = share.reader(value, last) if is_sent(names) else None
            if is_sent(names) and KEYS in names:
                end = len(args) if reader is None else reader
                width = in_float32(ring) if wide else 0.0
                share.send(value, REDUCE_SCATTER, starts, end, ring, across, width)
            if reader is not None:
                share.send(value, ALL_TO_ALL, last, reader, axis=among)
    return share.step(args)
