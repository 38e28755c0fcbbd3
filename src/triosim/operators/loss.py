"""Losses: scores against targets, one number in the end."""

from __future__ import annotations

import math
from dataclasses import replace

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import GRADIENT_ROLES, Dims, Output, Row, aligned, bounded, in_each, in_gradient
from triosim.operators._kind import Kind
from triosim.operators._work import INDEX, SECTOR, MovedBytes

_IN_PLACE = "vocab_parallel_cross_entropy"


@registered
class Loss(Kind):
    """Scores [rows..., classes, ...] against targets; the scores' class dimension is 1 (0 for a single row)."""

    names = """
        cross_entropy_loss: self target weight reduction ignore_index label_smoothing
        nll_loss nll_loss_nd nll_loss_forward nll_loss2d nll_loss2d_forward: self target weight reduction ignore_index
        mse_loss l1_loss: self target reduction
        smooth_l1_loss: self target reduction beta
        huber_loss: self target reduction delta
        soft_margin_loss: self target reduction
        binary_cross_entropy: self target weight reduction
        binary_cross_entropy_with_logits: self target weight pos_weight reduction
        kl_div: self target reduction log_target
        multilabel_margin_loss: self target reduction
        multi_margin_loss: self target p margin weight reduction
        poisson_nll_loss: input target log_input full eps reduction
        cosine_embedding_loss triplet_margin_loss margin_ranking_loss hinge_embedding_loss
        ctc_loss _ctc_loss _cudnn_ctc_loss miopen_ctc_loss: log_probs targets input_lengths target_lengths
        cross_entropy linear_cross_entropy vocab_parallel_cross_entropy
        """
    gradients = """
        nll_loss_backward nll_loss2d_backward: grad_output self target weight reduction ignore_index total_weight
        mse_loss_backward l1_loss_backward: grad_output self target reduction
        smooth_l1_loss_backward: grad_output self target reduction beta
        huber_loss_backward: grad_output self target reduction delta
        """
    words = "loss"
    stream = "loss"

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        source = call.find("self", "input")
        if source < 0:
            return None
        x, dtype = call.inputs[source], call.dtype(source)
        in_place = call.name.startswith(_IN_PLACE)
        fused = call.full_name.startswith("transformer_engine") or in_place
        if call.backward:  # the fused kernel puts the gradient in the place of the scores
            return (CallResult(x, dtype, source, 0, fused),) if fused else (CallResult(x, dtype),)
        by_class = "nll" in call.name or ("cross_entropy" in call.name and "binary" not in call.name)
        rows = tuple(e for d, e in enumerate(x) if d != (1 if len(x) > 1 else 0))
        shape = () if call.args.get("reduction", 1) != 0 else rows if by_class else x
        more: tuple[CallResult, ...] = ()
        if "nll_loss" in call.name and call.full_name.split(".")[0].endswith("forward"):
            more = (CallResult((), dtype, saved=True),)
        elif in_place:
            more = (CallResult(x, dtype, source, 0, True, True),)
        elif fused:
            more = (CallResult(rows, "float32", saved=True),)
        return (CallResult(shape, "float32" if fused else dtype), *more)

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        """The likelihood of a class is one element of each row; its gradient is zero everywhere else."""
        scores, made = call.shape("input", "self") or (), call.outputs[0] if call.outputs else ()
        if not scores or len(scores) < 2:
            return counted
        item = call.item(0)
        rows, size = math.prod(scores) / max(scores[1], 1), math.prod(scores) * item
        chosen = rows * (SECTOR + INDEX)
        if call.name.startswith("nll_loss"):
            if call.backward:
                written = math.prod(made) * item + rows * SECTOR
                return MovedBytes(counted.stream, rows * INDEX, written, kernels=2.0)
            return MovedBytes(counted.stream, chosen, min(counted.written, rows * item))
        if call.name.startswith(_IN_PLACE):
            if call.backward:  # the target's element of each row, then all of it times the loss's gradient
                return MovedBytes(counted.stream, size + rows * 2 * SECTOR, size, kernels=3.0)
            # maximum; minus it; exponential; sum; by it: all read, three write
            # (megatron/core/tensor_parallel/cross_entropy.py)
            return MovedBytes(counted.stream, 5 * size + chosen, 3 * size, kernels=6.0)
        if call.name.startswith("cross_entropy"):  # a logarithmic softmax, kept for the backward, and the likelihood
            if call.backward:
                return MovedBytes(counted.stream, 2 * size, 2 * size, kernels=3.0)
            return MovedBytes(counted.stream, size + chosen, size, kernels=2.0)
        return counted

    def dims(self, call: Call) -> Dims:
        source = call.find("self", "input")
        if source < 0 or not call.inputs[source]:
            return replace(aligned(call), per_rank=True)
        x = call.inputs[source]
        full = tuple(range(len(x)))
        classes = 1 if len(x) > 1 else 0
        rows = tuple(d for d in full if d != classes)
        by_class = "nll" in call.name or ("cross_entropy" in call.name and "binary" not in call.name)
        reads: dict[int, Row] = {source: full}
        target, grad = call.find("target"), call.find(*GRADIENT_ROLES) if call.backward else -1
        if target >= 0:
            reads[target] = rows if by_class and len(call.inputs[target]) == len(rows) else full
        if grad >= 0:
            reads[grad] = _reduced(call.inputs[grad], full, rows, by_class)
        lse = call.find("logsumexp")
        if lse >= 0:
            reads[lse] = rows
        if call.backward:
            made = {0: full}
        else:
            made = {at: _reduced(s, full, rows, by_class) for at, s in enumerate(call.outputs)}
        ins, outs = bounded(call, reads, made)
        linear = in_gradient(call) if call.backward or "nll" not in call.name else in_each(source)
        whole = frozenset((classes,)) if by_class else frozenset()
        return Dims(tuple(ins), tuple(map(Output, outs)), whole, linear=linear, per_rank=True)


def _reduced(shape: tuple[int, ...], full: Row, rows: Row, by_class: bool) -> Row:
    """Labels of a loss (or its gradient) that is one number, one for each row, or one for each element."""
    return rows if by_class and len(shape) == len(rows) else full if len(shape) == len(full) else ()
