"""Behind the attentions of a step whose sequences are divided, the operators that merge blocks and put heads in order.

They stand behind the attention and before what reads its result; copies before it (queries, keys and values put in
order for an all-to-all) are counted in them too, which takes as long.  Backward operators are merged likewise.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.operators import BLOCKS
from triosim.operators.context_copies import KEYS_SHARE, MERGED, PAIRED
from triosim.trace.calls import calls_of, count_work, with_arguments
from triosim.trace.tables import NONE, Phase, Trace


@kept(8)
def with_context_copies(trace: Trace, blocks: int, exchanged: bool, how: str) -> Trace:
    """The step with the copies that its attentions cost.

    Args:
        trace: a step; where there are several blocks its attentions are two operators each.
        blocks: of keys and values that go round.
        exchanged: whether heads are exchanged for positions.
        how: one of :data:`triosim.operators.context_copies.MERGES`.
    """
    operators, calls = trace.operators, calls_of(trace)
    phases = operators.phase.tolist()
    rows = [
        row for row, phase in enumerate(phases) if phase != Phase.OPTIMIZER and calls[row].kind == "attention"
    ]  # fmt: skip
    rows = rows[1::2] if blocks > 1 else rows
    made = [len(operators.outputs[row]) > 0 for row in rows]
    names = ([] if blocks == 1 else ["merge"]) + ["order"] * exchanged
    times = np.ones(len(phases), np.int64)
    times[[row for row, known in zip(rows, made, strict=True) if known]] += len(names)
    source = np.repeat(np.arange(len(times)), times)
    start = np.concatenate([[0], np.cumsum(times)[:-1]])
    place = np.arange(len(source)) - start[source]
    added = np.flatnonzero(place)
    name = [operators.name[row] for row in source.tolist()]
    args = [operators.args[row] for row in source.tolist()]
    lists = [operators.inputs.take(source).lists(), operators.roles.take(source).lists()]
    outputs = operators.outputs.take(source).lists()
    role_names = operators.role_names if "self" in operators.role_names else (*operators.role_names, "self")
    for at in added.tolist():
        call = calls[int(source[at])]
        keys = sum(math.prod(call.shape(*role) or ()) for role in (("key", "k"), ("value", "v")))
        share = keys / max(math.prod(call.shape("query", "q") or ()), 1)
        paired = bool(call.args.get("is_causal"))
        if names[place[at] - 1] == "order":
            name[at] = "context_parallel::order_heads"
            # Transformer Engine deals positions out in pairs, which all-to-alls bring in another order
            args[at] = with_arguments("{}", **{KEYS_SHARE: share, PAIRED: paired and how == "fused"})
        else:
            name[at] = f"context_parallel::merge_{'gradients' if call.backward else 'blocks'}"
            args[at] = with_arguments("{}", **{BLOCKS: blocks, KEYS_SHARE: share, PAIRED: paired, MERGED: how})
        outputs[at] = outputs[at][:1]
        lists[0][at], lists[1][at] = outputs[at], [role_names.index("self")]
    known = operators.forward[source]
    first = start.astype(np.int32)
    taken = replace(
        operators, name=tuple(name), args=tuple(args), inputs=Ragged.of(lists[0], np.int32), role_names=role_names,
        roles=Ragged.of(lists[1], operators.roles.values.dtype), outputs=Ragged.of(outputs, np.int32),
        forward=np.where(known >= 0, first[known] + np.where(times[known] > 1, place, 0), NONE).astype(np.int32),
        device_s=_without(operators.device_s[source], added), host_s=_without(operators.host_s[source], added),
        flop=_without(operators.flop[source], added), bytes=operators.bytes[source],
        **{column: getattr(operators, column)[source] for column in ("phase", "module", "view", "sync")},
    )  # fmt: skip
    kernels = replace(trace.kernels, operator=first[trace.kernels.operator])
    return count_work(replace(trace, operators=taken, kernels=kernels, communications=trace.communications.unplaced()))


def _without(column: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """A column with nothing known of some rows."""
    out: NDArray[np.float64] = column.copy()
    out[rows] = np.nan
    return out
