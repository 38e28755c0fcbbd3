"""Attention as frameworks ran it before FlashAttention: scores and probabilities are tensors of their own.

As in Megatron-LM (Shoeybi et al., arXiv:1909.08053): a batched product, one kernel that scales, masks and takes the
softmax, dropout, a batched product, and a copy that brings the heads of a token together again.
"""

from __future__ import annotations

from triosim.workload.models._net import Net
from triosim.workload.models._tape import Tensor


def unfused_attention(net: Net, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """Causal attention of [batch, heads, tokens, size] in five kernels; the result is contiguous by token.

    Args:
        net: the step.
        q, k, v: alike in shape.
        dropout: probability with which a weight is dropped.
    """
    batch, heads, length, size = q.shape
    flat = (batch * heads, length, size)
    q, k, v = (net.view(x, flat) for x in (q, k, v))
    scores = _product(net, q, k, (batch * heads, length, length), transposed=True)
    weights = net.dropout(_softmax(net, scores), dropout)
    y = _product(net, weights, v, flat, transposed=False)
    y = net.transpose(net.view(y, (batch, heads, length, size)), 1, 2)
    return net.clone(y)


def _product(net: Net, a: Tensor, b: Tensor, shape: tuple[int, ...], transposed: bool) -> Tensor:
    """``a @ b``, or ``a @ b.T`` where ``transposed``, pair by pair."""
    y = net.tensor(shape, a.dtype, needs_grad=a.needs_grad or b.needs_grad)
    row = net.operator("aten::bmm", ("self", "mat2"), (a, net.transpose(b, 1, 2) if transposed else b), (y,))

    def rule(g: Tensor) -> None:
        if a.needs_grad:
            net.give(a, net.bmm(g, b if transposed else net.transpose(b, 1, 2)))
        if b.needs_grad:
            first, second = (g, a) if transposed else (a, g)
            net.give(b, net.bmm(net.transpose(first, 1, 2), second))

    net.derivative(row, (y,), rule)
    return y


def _softmax(net: Net, x: Tensor) -> Tensor:
    """Scale, mask and softmax over the last dimension in one kernel."""
    y = net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::_softmax", ("self",), (x,), (y,), {"dim": -1, "half_to_float": False})

    def rule(g: Tensor) -> None:
        dx = net.tensor(x.shape, x.dtype)
        net.operator("aten::_softmax_backward_data", ("grad_output", "output"), (g, y), (dx,), {"dim": -1})
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y
