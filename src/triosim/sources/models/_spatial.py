"""Transformers over the elements of an image's latents, which attend to each other and to a text."""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.sources.models._broadcast import plus
from triosim.sources.models._diffusion import group_norm
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@dataclass(frozen=True)
class SpatialTransformer:
    """Blocks of attention to all elements, attention to the text and a gated feed-forward part, on a residual stream.

    Module names are those of ``diffusers``' ``Transformer2DModel``.

    Attributes:
        width: channels.
        heads: of both attentions.
        depth: number of blocks.
        seen: width of the text's states.
        groups: of the norm before the blocks.
        linear: whether what stands before and after the blocks are linear layers; otherwise convolutions of one
            element, whose gradients reach the blocks with their channels apart.
    """

    width: int
    heads: int
    depth: int
    seen: int
    groups: int
    linear: bool = True

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        width = self.width
        w.norm(f"{at}.norm", width)
        self._project_weights(w, f"{at}.proj_in")
        for i in range(self.depth):
            block = f"{at}.transformer_blocks.{i}"
            for n, seen in ((1, width), (2, self.seen)):
                w.norm(f"{block}.norm{n}", width)
                for name, size in (("to_q", width), ("to_k", seen), ("to_v", seen)):
                    w.linear(f"{block}.attn{n}.{name}", size, width, bias=False)
                w.linear(f"{block}.attn{n}.to_out.0", width, width)
            w.norm(f"{block}.norm3", width)
            w.linear(f"{block}.ff.net.0.proj", width, 8 * width)
            w.linear(f"{block}.ff.net.2", 4 * width, width)
        self._project_weights(w, f"{at}.proj_out")

    def _project_weights(self, w: Weights, name: str) -> None:
        if self.linear:
            w.linear(name, self.width, self.width)
        else:
            w.conv2d(name, self.width, self.width, 1, bias=True)

    def __call__(self, net: Net, x: Tensor, text: Tensor) -> Tensor:
        """``x`` [batch, channels, height, width] that has seen ``text`` [batch, tokens, seen]."""
        batch, width, rows, columns = x.shape
        y = group_norm(net, "norm", x, self.groups, strided_gradient=self.linear)
        if not self.linear:
            y = net.conv2d("proj_in", y)
        y = net.view(net.permute(y, (0, 2, 3, 1)), (batch, rows * columns, width))
        if self.linear:
            y = strided_linear(net, "proj_in", y)
        for i in range(self.depth):
            with net.module(f"transformer_blocks.{i}", "BasicTransformerBlock"):
                y = self._block(net, y, text)
        if self.linear:
            y = net.linear("proj_out", y, strided_gradient=True)
        y = net.clone(net.permute(net.view(y, (batch, rows, columns, width)), (0, 3, 1, 2)))
        return net.add(y if self.linear else net.conv2d("proj_out", y), x)

    def _block(self, net: Net, x: Tensor, text: Tensor) -> Tensor:
        for n in (1, 2):
            y = net.layer_norm(f"norm{n}", x)
            with net.module(f"attn{n}", "Attention"):
                x = net.add(self._attention(net, y, text if n == 2 else y), x)
        y = net.layer_norm("norm3", x)
        with net.module("ff", "FeedForward"):
            y, gate = net.split(net.linear("net.0.proj", y), [4 * self.width] * 2)
            y = net.linear("net.2", net.mul(y, net.gelu(gate)), strided_gradient=not self.linear)
        return net.add(y, x)

    def _attention(self, net: Net, x: Tensor, seen: Tensor) -> Tensor:
        made = [net.linear(name, x if name == "to_q" else seen) for name in ("to_q", "to_k", "to_v")]
        shape = (self.heads, self.width // self.heads)
        q, k, v = (net.transpose(net.view(y, (*y.shape[:2], *shape)), 1, 2) for y in made)
        y = net.view(net.transpose(net.attention(q, k, v, causal=False), 1, 2), x.shape)
        return net.scaled(net.linear("to_out.0", y, strided_gradient=not self.linear), "aten::div")


def strided_linear(net: Net, name: str, x: Tensor) -> Tensor:
    """A linear layer of ``x`` [batch, tokens, channels] whose channels lie apart: copied, and the bias added after."""
    with net.module(name, "Linear"):
        flat = net.view(net.clone(x), (x.shape[0] * x.shape[1], x.shape[2]), "aten::_unsafe_view")
        flat, weight = net.lowered(flat, net.parameter("weight"))
        y = net.mm(flat, net.t(weight), column_major=True)
        return plus(net, net.view(y, x.shape, "aten::_unsafe_view"), net.parameter("bias"))
