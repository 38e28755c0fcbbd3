"""Attention as frameworks ran it before FlashAttention: scores and probabilities are tensors of their own.

As in Megatron-LM (Shoeybi et al., arXiv:1909.08053): a batched product, one kernel that scales, masks and takes the
softmax, dropout, a batched product, and a copy that brings the heads of a token together again.  Where its fused
softmax cannot be used (it wants a multiple of four of heads times samples on a device) the scores are cast to float32,
scaled, masked and cast back by operators of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triosim.sources.models._tape import Tensor

if TYPE_CHECKING:
    from triosim.sources.models._products import ProductLayers


def unfused_attention(
    net: ProductLayers,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout: float = 0.0,
    fused_softmax: bool = True,
    mask: str = "causal",
) -> Tensor:
    """Attention of [batch, heads, tokens, size] in kernels of its own; the result is contiguous by token.

    Args:
        net: the step.
        q, k, v: alike in heads; there may be more keys than queries, and values may have another size.
        dropout: probability with which a weight is dropped.
        fused_softmax: scale, mask and softmax in one kernel.
        mask: ``causal``; ``padding``, which is added to all scores of a key; or none, and then nothing is scaled apart.
    """
    batch, heads, keys, size = v.shape
    length = q.shape[2]
    flat = (batch * heads, length, size)
    # where products want one stride from head to head, inputs are copied and gradients come in copies
    if net.kernels.copied_heads:
        q, k, v = (net.view(net.clone(x), (batch * heads, *x.shape[2:])) for x in (q, k, v))
    else:
        q, k, v = (net.view(x, (batch * heads, *x.shape[2:])) for x in (q, k, v))
    scores = _product(net, q, k, (batch * heads, length, keys), transposed=True)
    if fused_softmax or not mask:
        weights = softmax(net, scores)
    elif mask == "causal":
        weights = _spelled_out(net, scores)
    else:
        weights = softmax(net, _padded(net, net.scaled(scores, "aten::div"), (batch, heads, keys)))
    weights = net.dropout(weights, dropout)
    y = _product(net, weights, v, flat, transposed=False)
    y = net.transpose(net.view(y, (batch, heads, length, size), strided_gradient=net.kernels.copied_heads), 1, 2)
    return net.clone(y)


def _product(net: ProductLayers, a: Tensor, b: Tensor, shape: tuple[int, ...], transposed: bool) -> Tensor:
    """``a @ b``, or ``a @ b.T`` where ``transposed``, pair by pair."""
    a, b = net.lowered(a, b)
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


def softmax(net: ProductLayers, x: Tensor) -> Tensor:
    """Scale, mask and softmax over the last dimension in one kernel."""
    x = net.raised(x)
    y = net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::_softmax", ("self",), (x,), (y,), {"dim": -1, "half_to_float": False})

    def rule(g: Tensor) -> None:
        dx = net.tensor(x.shape, x.dtype)
        net.operator("aten::_softmax_backward_data", ("grad_output", "output"), (g, y), (dx,), {"dim": -1})
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y


def _spelled_out(net: ProductLayers, x: Tensor) -> Tensor:
    """Scale, mask and softmax in float32, operator by operator; under autocast the softmax alone is in float32."""
    if net.autocast:
        return softmax(net, _masked(net, net.scaled(x)))
    return net.to(softmax(net, _masked(net, net.scaled(net.to(x, "float32")))), x.dtype)


def _padded(net: ProductLayers, x: Tensor, sizes: tuple[int, int, int]) -> Tensor:
    """Scores [batch * heads, tokens, keys] with a mask of keys added, which was made once for all layers."""
    batch, heads, keys = sizes
    flat, whole = x.shape, (batch, heads, *x.shape[1:])
    x = net.view(x, whole)
    y = net.tensor(whole, x.dtype, needs_grad=x.needs_grad)
    mask = net.tensor((batch, 1, 1, keys), x.dtype)
    row = net.operator("aten::add", ("self", "other"), (x, mask), (y,))
    net.derivative(row, (y,), lambda g: net.give(x, g))
    return net.view(y, flat)


def _masked(net: ProductLayers, x: Tensor) -> Tensor:
    """Scores that no token may see set to a very low value; the mask is made anew each time."""
    length = x.shape[1:]
    mask = net.tensor(length, "bool")
    net.operator("aten::ones", (), (), (mask,))
    upper = net.tensor(length, "bool")
    net.operator("aten::triu", ("self",), (mask,), (upper,), {"diagonal": 1})
    y = net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::masked_fill", ("self", "mask"), (x, upper), (y,), {"value": -10000.0})

    def rule(g: Tensor) -> None:
        dx = net.tensor(x.shape, x.dtype)
        net.operator("aten::masked_fill", ("self", "mask"), (g, upper), (dx,), {"value": 0.0})
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y
