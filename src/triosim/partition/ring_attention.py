"""Ring attention: blocks of keys and values go round while each rank computes with those that it has.

A rank's queries meet the keys and values of one rank after another; those of the next are received meanwhile.  With n
ranks, ``c`` the time of one block and ``t`` that of passing one on, that takes ``c + (n - 1) max(c, t)``: here the
first n - 1 blocks are one operator, beside which everything is passed on, and the last block another one, which waits
for that.  Passing on n - 1 times is what a ring all-gather sends; in the backward the gradients of keys and values go
round as a ring reduce-scatter does.  The results of blocks are merged by operators of their own
(:mod:`triosim.partition.context_copies`).

Sources: Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers" (arXiv:2310.01889); positions dealt out so
that every block is the same work: Brandon et al., "Striped Attention" (arXiv:2311.09431), and Megatron-LM's context
parallelism by point-to-point messages.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from triosim.core.caching import kept
from triosim.operators import BLOCKS, SHARE
from triosim.partition.attention_share import KEYS, QUERIES, AttentionShare, is_sent
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_GATHER, REDUCE_SCATTER
from triosim.trace.calls import calls_of, count_work, with_arguments
from triosim.trace.tables import NONE, Phase, Trace


@kept(8)
def in_blocks(trace: Trace, parts: int) -> Trace:
    """The step with each attention as two operators: all blocks but one, and the last.

    Args:
        trace: a step whose attentions are one operator each.
        parts: blocks.
    """
    operators, calls = trace.operators, calls_of(trace)
    phases = operators.phase.tolist()
    times = np.array(
        [1 + (phase != Phase.OPTIMIZER and calls[row].kind == "attention") for row, phase in enumerate(phases)]
    )
    source = np.repeat(np.arange(len(times)), times)
    first = np.concatenate([[0], np.cumsum(times)[:-1]]).astype(np.int64)
    last = first + times - 1
    is_first = first[source] == np.arange(len(source))
    divided = times[source] == 2
    share = np.where(divided, np.where(is_first, (parts - 1) / parts, 1 / parts), 1.0)
    args = [operators.args[row] for row in source.tolist()]
    for row in np.flatnonzero(divided).tolist():
        args[row] = with_arguments(args[row], **{SHARE: float(share[row])})
    known = operators.forward[source]
    of = np.where(is_first & divided, first[known], last[known])
    lists = operators.inputs.take(source), operators.roles.take(source), operators.outputs.take(source)
    taken = replace(
        operators,
        name=tuple(operators.name[row] for row in source.tolist()), args=tuple(args),
        inputs=lists[0], roles=lists[1], outputs=lists[2],
        forward=np.where(known >= 0, of, NONE).astype(np.int32),
        device_s=operators.device_s[source] * share,
        **{column: getattr(operators, column)[source] for column in (
            "phase", "module", "view", "sync", "host_s", "flop", "bytes",
        )},
    )  # fmt: skip
    kernels = trace.kernels
    if len(kernels):
        again = np.flatnonzero(times[kernels.operator] == 2)
        chosen = np.concatenate([np.arange(len(kernels)), again])
        rows = np.concatenate([first[kernels.operator], last[kernels.operator[again]]])
        kernels = replace(
            kernels, operator=rows.astype(np.int32), name=tuple(kernels.name[k] for k in chosen.tolist()),
            device_s=kernels.device_s[chosen] * share[rows], stream=kernels.stream[chosen],
        )  # fmt: skip
    changed = replace(trace, operators=taken, kernels=kernels, communications=trace.communications.unplaced())
    return count_work(changed)


@kept(8)
def passed_round(step: Step, size: int, axis: int, wide: bool = False) -> Step:
    """The step of a rank whose attention has its own keys and values and those that come round.

    Args:
        step: divided along the sequence, each attention :func:`in_blocks`, keys and values gathered before it.
        size: ranks along the axis.
        axis: row of the mesh's axes.
        wide: whether gradients of keys and values go round in float32, and once more than there are others, to their
            owner (PyTorch); otherwise in their own type (Transformer Engine).

    Raises:
        PlanError: attention is several operators.
    """
    share = AttentionShare(step, size, axis, "ring")
    args = list(step.trace.operators.args)
    for row in share.rows:
        some = round(share.facts.calls[row].args[SHARE] * size)
        args[row] = with_arguments(args[row], **{SHARE: None, BLOCKS: [some, size]})
    for first, last in zip(share.rows[::2], share.rows[1::2], strict=True):
        reads, writes = share.names[last]
        starts = max(_made(share, value, first) for value in share.inputs[first])
        for at, (value, names) in enumerate(zip(list(share.inputs[last]), reads, strict=True)):
            if is_sent(names) and KEYS in names and QUERIES not in names:
                share.inputs[last][at] = share.copy(value, share.shapes[value])
                share.send(value, ALL_GATHER, starts, last, parts=size)
        for value, names in zip(share.outputs[last], writes, strict=True):
            if is_sent(names) and KEYS in names:
                reader = share.reader(value, last)
                end = len(args) if reader is None else reader
                share.send(value, REDUCE_SCATTER, starts, end, size, width=in_float32(size) if wide else 0.0)
    return share.step(args)


def in_float32(size: int) -> float:
    """Bytes of an element that is sent on ``size`` times in float32, as if once to each of the others."""
    return 4.0 * size / (size - 1)


def _made(share: AttentionShare, value: int, row: int) -> int:
    """The operator before ``row`` that made a value."""
    before = dict(zip(share.inputs[row], share.facts.trace.writers()[row], strict=True))[value]
    return before if before != NONE else share.writer(value, row)
