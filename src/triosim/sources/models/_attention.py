"""Attention by the kernel that was chosen."""

from __future__ import annotations

from triosim.sources.models._products import ProductLayers
from triosim.sources.models._tape import Tensor

ATTENTIONS = ("auto", "unfused", "flash1", "flash2", "flash3", "cudnn")
"""Kernels of attention: what PyTorch's ``scaled_dot_product_attention`` runs on the device; scores and weights as
tensors of their own; a version of FlashAttention; cuDNN's, the vendor's best for the device."""


class AttentionLayers(ProductLayers):
    """Scaled dot products of queries, keys and values."""

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float = 0.0, window: int = 0, padded: bool = False
    ) -> Tensor:
        """``scaled_dot_product_attention`` as PyTorch's CUDA dispatch chooses it.

        16-bit types take FlashAttention, which reads grouped keys and values as they are, unless ``repeated_heads``
        says that they are repeated all the same; float32 takes the memory-efficient kernel, for which they must be.

        Args:
            q: [batch, heads, queries, size].
            k, v: [batch, key-value heads, keys, size].
            causal: each query sees the keys up to its own.
            dropout: probability within the kernel (no mask is kept).
            window: keys that a query sees, its own among them, to each side where it sees both; 0 for all.
                FlashAttention skips the others.
            padded: a mask says which keys are padding; kernels that keep scores on the chip read it at no cost.

        With ``attention`` unfused scores and weights are tensors of their own instead, of which no window saves any;
        other kernels that are asked for are named in the operator's arguments.
        """
        q, k, v = self.lowered(q, k, v)
        if self.kernels.attention == "unfused":
            from triosim.sources.models._unfused import unfused_attention

            k, v = (self._repeat_heads(x, q.shape[1]) if x.shape[1] != q.shape[1] else x for x in (k, v))
            mask = "causal" if causal else "padding" if padded else ""
            return self.transpose(unfused_attention(self, q, k, v, dropout, self.kernels.fused_softmax, mask), 1, 2)
        flash = q.dtype in ("float16", "bfloat16")
        if (self.kernels.repeated_heads or not flash) and k.shape[1] != q.shape[1]:
            k, v = (self._repeat_heads(x, q.shape[1]) for x in (k, v))
        which = "flash" if flash else "efficient"
        name = f"aten::_scaled_dot_product_{which}_attention"
        args: dict[str, object] = {"dropout_p": dropout if self.training else 0.0, "is_causal": causal}
        if window and window < k.shape[2]:
            args["window_size_left"] = window - 1
            if not causal:
                args["window_size_right"] = window - 1
        if flash and self.kernels.attention != "auto":
            args["kernel"] = self.kernels.attention
        y = self.tensor((*q.shape[:-1], v.shape[-1]), q.dtype, needs_grad=q.needs_grad or k.needs_grad or v.needs_grad)
        logsumexp = self.tensor(q.shape[:3], "float32")
        row = self.operator(name, ("query", "key", "value"), (q, k, v), (y, logsumexp), args)

        def rule(g: Tensor) -> None:
            gradients = [self._like(x, False) for x in (q, k, v)]
            roles = ("grad_out" if flash else "grad_out_", "query", "key", "value", "out", "logsumexp")
            self.operator(f"{name}_backward", roles, (g, q, k, v, y, logsumexp), gradients, args)
            for x, gradient in zip((q, k, v), gradients, strict=True):
                self.give(x, gradient)

        self.derivative(row, (y,), rule)
        return y

    def _repeat_heads(self, x: Tensor, heads: int) -> Tensor:
        batch, groups, length, size = x.shape
        y = self.tensor((batch, heads, length, size), x.dtype, needs_grad=x.needs_grad)
        args = {"repeats": heads // groups, "dim": 1}
        row = self.operator("aten::repeat_interleave", ("self",), (x,), (y,), args)

        def rule(g: Tensor) -> None:
            grouped = self.view(g, (batch, groups, heads // groups, length, size))
            self.give(x, self._sum(grouped, 2, x.shape, keepdim=False))

        self.derivative(row, (y,), rule)
        return y
