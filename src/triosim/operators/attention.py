"""Attention in one call: ``scaled_dot_product_attention`` and the kernels behind it, and their gradients."""

from __future__ import annotations

import math

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import GRADIENT_ROLES, Dims, Output, Row, bounded, in_each, in_gradient, unknown
from triosim.operators._kind import Kind, Need, gradients_of, unmet
from triosim.operators._work import ATTENTION_KERNELS, BLOCKS, DOCUMENTS, SHARE, SPREAD, AttentionWork

_POSITIONS_FIRST = ("_flash_attention", "_efficient_attention")
"""Operators that take (batch, positions, heads, size); the others take (..., heads, positions, size)."""


_TORCH = ("_scaled_dot_product_flash_attention", "_flash_attention", "flash_attn")
"""Beginnings of the names of FlashAttention's second version."""


@registered
class Attention(Kind):
    """``softmax(query[b, h, s, d] key[b, h, t, d]) value[b, h, t, e]``.

    Key and value may have fewer heads than the query (grouped).
    """

    names = """
        scaled_dot_product_attention: query key value attn_mask dropout_p is_causal scale enable_gqa
        _scaled_dot_product_flash_attention: query key value dropout_p is_causal return_debug_mask scale
        _scaled_dot_product_efficient_attention: query key value attn_bias compute_log_sumexp dropout_p is_causal scale
        _scaled_dot_product_flash_attention_for_cpu: query key value dropout_p is_causal attn_mask scale
        _scaled_dot_product_cudnn_attention: query key value attn_bias compute_log_sumexp dropout_p is_causal
          return_debug_mask scale
        _scaled_dot_product_attention_math: query key value attn_mask dropout_p is_causal dropout_mask scale enable_gqa
        _scaled_dot_product_attention_math_for_mps: query key value attn_mask dropout_p is_causal dropout_mask scale
        _scaled_dot_product_fused_attention_overrideable: query key value attn_bias dropout_p is_causal
          return_debug_mask scale
        _flash_attention_forward: query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal
        _flash_attention _efficient_attention _cudnn_attention _native_multi_head_attention
        _triton_scaled_dot_attention _triton_multi_head_attention
        flash_attn_func flash_attn_varlen_func flash_attn_qkvpacked_func flash_attn::_flash_attn_forward
        flash_attn::_flash_attn_backward flash_attn::_flash_attn_varlen_forward
        flash_attn::_flash_attn_varlen_backward vllm::unified_attention vllm::unified_attention_with_output
        unified_attention unified_attention_with_output
        """
    gradients = """
        _scaled_dot_product_flash_attention_for_cpu_backward: grad_out query key value out logsumexp dropout_p
          is_causal attn_mask scale
        _scaled_dot_product_flash_attention_backward: grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q
          max_k dropout_p is_causal philox_seed philox_offset scale
        _scaled_dot_product_efficient_attention_backward: grad_out_ query key value attn_bias out logsumexp philox_seed
          philox_offset dropout_p grad_input_mask is_causal scale
        _scaled_dot_product_cudnn_attention_backward: grad_out query key value out logsumexp philox_seed philox_offset
          attn_bias cum_seq_q cum_seq_k max_q max_k dropout_p is_causal scale
        _flash_attention_backward: grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p
          is_causal
        """
    words = "attention"
    kernels = "attention"

    def problem(self, call: Call) -> str:
        if not call.inputs or "multi_head" in call.name:
            return ""
        query, key, value = ("query", "q"), ("key", "k"), ("value", "v")
        return unmet(call, Need(query, 3, 5), Need(key, 3, 5), Need(value, 3, 5, False))

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        q, v = call.find("query", "q"), call.find("value", "v")
        if q < 0 or v < 0:
            return None
        if call.backward:
            return gradients_of(call, ("query", "q"), ("key", "k"), ("value", "v"))
        query = call.inputs[q]
        made = CallResult((*query[:-1], call.inputs[v][-1]), call.dtype(q))
        if call.name == "scaled_dot_product_attention" or len(query) != 4:
            return (made,)
        batch, heads, length = query[:3]
        if call.name.startswith(_POSITIONS_FIRST):
            heads, length = length, heads
        return (made, CallResult((batch, heads, length), "float32", saved=True))

    def flop(self, call: Call) -> float:
        """Two products of 2 x queries x keys x head size each, five in the backward, half of that when causal."""
        if call.find("query", "q") < 0 or call.find("key", "k") < 0:
            return math.nan
        one = self.work(call)
        if call.backward:  # S = QK' again, then dV, dP, dQ, dK
            return _pairs(one) * (2 * one.head * 3 + 2 * one.head_v * 2)
        return _pairs(one) * (2 * one.head + 2 * one.head_v)

    def repeated(self, call: Call) -> float:
        """The scores, which the forward does not keep."""
        if not call.backward or call.find("query", "q") < 0 or call.find("key", "k") < 0:
            return 0.0
        one = self.work(call)
        return _pairs(one) * 2 * one.head

    def work(self, call: Call) -> AttentionWork:
        """``window_size_left``, and ``_right`` where attention is not causal, give a window; sequences packed one after
        another are taken for equally long, which :data:`DOCUMENTS` says of those within a sequence.

        Of causal attention whose queries are a part of the positions the argument :data:`SPREAD` says that they are
        from all over the sequence, :data:`BLOCKS` that keys are blocks of such positions, of which there are several.
        """
        query, key, value = call.shape("query", "q"), call.shape("key", "k"), call.shape("value", "v")
        if not query or not key:
            return AttentionWork.cube(math.nan)
        swapped = call.name.startswith(_POSITIONS_FIRST)
        at_heads, at_positions = (-2, -3) if swapped else (-3, -2)
        batch, queries, keys = float(math.prod(query[:-3])), float(query[at_positions]), float(key[at_positions])
        longest = [n for n in (call.args.get("max_q"), call.args.get("max_k")) if type(n) is int and n > 0]
        if swapped and len(query) == 3 and len(longest) == 2:
            batch, queries, keys = batch * queries / longest[0], float(longest[0]), float(longest[1])
        left = call.args.get("window_size_left")  # positions before its own that a query sees; -1 for all
        window = float(left + 1) if type(left) is int and left >= 0 else 0.0
        causal = bool(call.args.get("is_causal"))
        right = call.args.get("window_size_right")  # positions after its own; queries at the ends see fewer
        if window and type(right) is int and right >= 0 and not causal:
            outside = window * (window - 1) + right * (right + 1.0)
            window += right - outside / (2 * keys)
        documents = call.args.get(DOCUMENTS)
        if isinstance(documents, list):  # whoever has a part of the positions has as many of each document
            fill, length = documents
            batch, queries, keys = batch * fill * queries / length, length, length
            if isinstance(blocks := call.args.get(BLOCKS), list):
                batch *= blocks[0] / blocks[1]
        if causal and queries < keys and call.args.get(SPREAD):
            keys = min((keys + 1) / 2, window or keys)  # what a query sees on average
        if isinstance(share := call.args.get(SHARE), float):
            batch *= share
        if isinstance(blocks := call.args.get(BLOCKS), list) and documents is None:
            some, parts = blocks
            seen = keys * parts
            keys = (min((seen + 1) / 2, window or seen) if causal else seen) / parts
            batch, window, causal = batch * some, 0.0, False
        return AttentionWork(
            batch, queries, keys, float(query[at_heads]), float(max(key[at_heads], 1)), float(query[-1]),
            float((value or query)[-1]), window, causal and queries == keys, call.backward,
            _kernel(call),
        )  # fmt: skip

    def dims(self, call: Call) -> Dims:
        """Labels b h s t d e, s and t being positions of queries and of keys; key heads follow those of the query."""
        q, k, v = call.find("query", "q"), call.find("key", "k"), call.find("value", "v")
        if q < 0 or k < 0 or v < 0 or not 3 <= len(call.inputs[q]) <= 4:
            return unknown(call)
        names = ("b", "h", "s", "t", "d", "e")
        b, h, s, t, d, e = range(6)
        rows: list[Row] = [(b, h, s, d), (b, h, t, d), (b, h, t, e)]
        if call.name.startswith(_POSITIONS_FIRST):
            rows = [(b, s, h, d), (b, t, h, d), (b, t, h, e)]
        lost = 4 - len(call.inputs[q])  # heads alone, or batch and heads in one
        query, key, value = (row[lost:] for row in rows)
        result: Row = tuple(e if l == d else l for l in query)
        reads: dict[int, Row] = {q: query, k: key, v: value}
        reads |= {call.find(role): result for role in (*GRADIENT_ROLES, "out", "output")}
        reads[call.find("logsumexp")] = (b, h, s)[lost:]
        for role in ("attn_bias", "attn_mask"):
            at = call.find(role)
            if at >= 0:
                reads[at] = (b, h, s, t)[max(4 - len(call.inputs[at]), 0) :]
        if call.backward:
            ins, outs = bounded(call, reads, dict(enumerate((query, key, value))))
            made = tuple(map(Output, outs))
            return Dims(tuple(ins), made, frozenset((d, e)), linear=in_gradient(call), names=names)
        beside = {3: (b, h, s)[lost:], 4: (b, h, s, t)}  # sums of exponentials, or the weights themselves
        second = beside.get(len(call.outputs[1])) if len(call.outputs) > 1 else None
        ins, outs = bounded(call, reads, {0: result} if second is None else {0: result, 1: second})
        made = tuple(Output(row, None if at < 2 and row.count(-1) < len(row) else ()) for at, row in enumerate(outs))
        return Dims(tuple(ins), made, frozenset((t, d, e)), linear=in_each(v), names=names)


def _kernel(call: Call) -> int:
    """What runs the call, as an index into :data:`ATTENTION_KERNELS`: what ``kernel`` among its arguments says, else
    what its name does."""
    asked = call.args.get("kernel")
    if asked in ATTENTION_KERNELS:
        return ATTENTION_KERNELS.index(asked)
    if "cudnn" in call.name:
        return ATTENTION_KERNELS.index("cudnn")
    flash = call.name.startswith(_TORCH) and "for_cpu" not in call.name
    return ATTENTION_KERNELS.index("torch") if flash else 0


def _pairs(work: AttentionWork) -> float:
    """Pairs of a query and a key that are multiplied; of causal attention those that mask and window leave.

    Of n tokens one after another the first w see 1, 2, ... w and the others w each: w (w + 1) / 2 + (n - w) w.
    """
    each = work.batch * work.heads
    if not work.causal or not work.keys:
        return each * work.queries * (min(work.keys, work.window) if work.window else work.keys)
    seen = min(work.keys, work.window) if work.window else work.keys
    return each * (seen * (seen + 1) / 2 + (work.keys - seen) * seen)
