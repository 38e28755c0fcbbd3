"""What attention over divided sequences costs beside its kernels: blocks that are merged, heads that are put in order.

All of a pass is one operator behind the attention (:mod:`triosim.partition.context_copies`), which reads and writes
its result, or the gradient of its queries; what is moved is reckoned for each element of that.

* ``merge_blocks``: keys and values are joined to be sent; then the results of the blocks, each weighed by its part of
  the sum of exponentials, are added up.  Of a causal attention whose positions are dealt out in pairs half of the later
  blocks are for half of the queries: 3/4 of the elements on average.
* ``merge_gradients``: the gradients of queries, keys and values of each block are added up.
* ``order_heads``: of queries, keys, values and results (or their gradients) the heads that go to one rank are put side
  by side before an all-to-all, or positions in order after it: one copy of each, and another where there are several
  samples (``deepspeed/sequence/layer.py``, ``_generate_layout_params``), or where positions are dealt out in pairs
  (Transformer Engine, ``reorder_seq_chunks_for_a2a_before_attn``).

How blocks are merged (:data:`MERGES`):

* ``fused``, Transformer Engine: a kernel for each block in the type of the result, ``out += block exp(lse - sum)``,
  and one for its sums (``transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py``:
  ``flash_attn_fwd_out_correction``, ``dq.add_``, ``dk.add_``);
* ``composed``, PyTorch: operator by operator in float32, ``out - sigmoid(lse' - lse) (out - block)``; halves are put
  into the whole by copying that, and joined keys and values are copied for each block that follows
  (``torch/distributed/tensor/experimental/_attention.py``: ``_SDPAMerger``, ``_partial_update``,
  ``_templated_ring_attention_backward``);
* ``compiled``: the same in one kernel for each block, which is what TorchInductor is taken to make of such operators.
"""

from __future__ import annotations

import math

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._kind import Kind, like
from triosim.operators._work import BLOCKS, MovedBytes

MERGES = ("composed", "compiled", "fused")
"""How results of blocks are merged."""
MERGED, KEYS_SHARE, PAIRED = "merged", "keys_share", "paired"
"""Arguments: one of :data:`MERGES`; elements of keys and values for one of the result; whether positions are dealt out
in pairs."""
WIDE = 4.0
"""Bytes of a float32."""
Moves = tuple[float, float, float, float]
"""How often, bytes read and written for each element of the result, and kernels."""


@registered
class ContextCopies(Kind):
    """``merge_blocks``, ``merge_gradients`` and ``order_heads`` of what an attention has made."""

    names = """
        merge_blocks merge_gradients order_heads: self
        """
    kernels = "elementwise"
    stream = "elementwise"

    def problem(self, call: Call) -> str:
        return "" if call.inputs and call.inputs[0] else f"{call.full_name or call.name} has no tensor"

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        return like(call, "self")

    def bytes(self, call: Call) -> float:
        moved = self.traffic(call, MovedBytes(self.stream, 0.0, 0.0))
        return moved.read + moved.written

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        if self.problem(call):
            return counted
        elements, moves = float(math.prod(call.inputs[0])), _moves(call)
        read, written, kernels = (sum(each[0] * each[at] for each in moves) for at in (1, 2, 3))
        return counted._replace(read=read * elements, written=written * elements, kernels=max(kernels, 1.0))


def _moves(call: Call) -> list[Moves]:
    """Of a call that may come from a file."""
    keys, blocks = call.args.get(KEYS_SHARE), call.args.get(BLOCKS)
    share = float(keys) if isinstance(keys, (int, float)) else 2.0
    parts = blocks if type(blocks) is int and blocks > 0 else 1
    item, paired, how = call.item(0), bool(call.args.get(PAIRED)), str(call.args.get(MERGED))
    if call.name == "order_heads":
        copies = 1 + (call.inputs[0][0] > 1 or paired)
        return [(copies, (2 + share) * item, (2 + share) * item, 4)]
    forward = call.name == "merge_blocks"
    return (merged_results if forward else merged_gradients)(parts, item, share, paired, how)


def merged_results(blocks: int, item: float, keys: float, paired: bool, how: str) -> list[Moves]:
    """What merging the results of blocks moves.

    Args:
        blocks: of keys and values.
        item: bytes of an element.
        keys: elements of keys and values for one of the result.
        paired: whether positions are dealt out in pairs, so that of some blocks half of the queries are computed.
        how: one of :data:`MERGES`.
    """
    part, later = 0.75 if paired else 1.0, blocks - 1
    joined = keys * item
    if how == "fused":
        return [(1, joined, joined, 1), (1, item, item, 1), (later, 2 * item * part, item * part, 2)]
    if how == "compiled":
        return [(1, joined, joined, 1), (later, WIDE + item * part, WIDE, 2)]
    return [
        (1, joined, joined, 2), (later, joined, joined, 1),  # keys and values by heads, and joined
        (1, item + WIDE, WIDE + item, 2),  # the first to float32, the sum back
        (later, (item + 5 * WIDE) * part, 4 * WIDE * part, 8),  # to float32, two differences, a product, a difference
        (later * paired / 2, WIDE, WIDE, 2),  # halves put into the whole
    ]  # fmt: skip


def merged_gradients(blocks: int, item: float, keys: float, paired: bool, how: str) -> list[Moves]:
    """What adding up the gradients of blocks moves; arguments as of :func:`merged_results`."""
    part, three = 0.75 if paired else 1.0, 1 + keys
    joined, all_blocks = keys * item, 1 + (blocks - 1) * part  # of a rank's own block all queries see all keys
    if how == "fused":
        return [(all_blocks, 2 * item * three, item * three, 0), (blocks, 0.0, 0.0, 3)]
    if how == "compiled":
        return [
            (1, joined, joined, 1), (all_blocks, item * three, 0.0, 0), (blocks, WIDE * three, WIDE * three, 2),
            (1, WIDE * keys, joined, 1),  # received gradients to the type of the keys
        ]  # fmt: skip
    return [
        (1, joined, joined, 2), (blocks - 1, joined, joined, 1),
        (1, 0.0, WIDE * three, 3),  # zeros
        (all_blocks, (WIDE + item) * three, WIDE * three, 0), (blocks, 0.0, 0.0, 3),
        ((blocks - 1) * paired / 2, WIDE * three, WIDE * three, 3),
        (blocks + 1, WIDE * keys, WIDE * keys, 1),  # joined to be sent, the first laid out by heads before
        (1, WIDE * three, item * three, 2),
    ]  # fmt: skip
