"""Phi-3.5-MoE: LayerNorm, biases, and experts that are drawn, not the best ones taken (Abdin et al., arXiv:2404.14219).

SparseMixer (Liu et al., arXiv:2409.12136) draws one expert, hides it, and draws the second; its derivative is its own.
A model that is not trained takes the best instead.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._llama_like import BiasedAttention, Windowed
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm
from triosim.sources.models._tape import Shape, Tensor
from triosim.sources.models._unfused import softmax


@registered
@dataclass(frozen=True)
class PhiMoE(BiasedAttention, Windowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    num_local_experts: int = 16
    lm_head_bias: bool = False

    model_types: ClassVar = ("phimoe",)
    fixed: ClassVar = {
        "hidden_act": "silu", "num_experts_per_tok": 2, "input_jitter_noise": (0.0, 0), "attention_dropout": (0.0, 0),
        "hidden_dropout": (0.0, 0),
    }  # fmt: skip

    @property
    def layout(self) -> Layout:  # type: ignore[override]
        """The head may have a bias."""
        return Layout("Phimoe", last_bias=self.lm_head_bias)

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "LayerNorm")

    def feed_forward(self, layer: int) -> Experts:
        router = SparseMixer(self.hidden_size, self.num_local_experts, 2, "PhimoeTopKRouter", name="router")
        return Experts(router, self.intermediate_size, "PhimoeSparseMoeBlock", "PhimoeExperts")


class SparseMixer(ExpertRouter):
    """Draws two experts of each token, one after the other."""

    def _scored(self, net: Net, logits: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        first, number = self._drawn(net, logits, logits)
        hidden = _step(net, "scatter", logits.shape, logits.dtype, logits, number)
        second, next_number = self._drawn(net, hidden, logits)
        return net.cat((first, second), 1), net.cat((number, next_number), 1)

    def _drawn(self, net: Net, scores: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Weight and number of one expert of each token, [tokens, 1] each."""
        row, dtype = (logits.shape[0], 1), logits.dtype
        best, number = _maximum(net, scores)
        factor = _step(net, "clamp", logits.shape, dtype, _step(net, "abs", logits.shape, dtype, logits), best)
        below = _step(net, "div", logits.shape, dtype, _step(net, "sub", logits.shape, dtype, best, logits), factor)
        far = _step(net, "gt", logits.shape, "bool", below)
        gates = _step(net, "masked_fill", logits.shape, dtype, scores, far)
        if net.training:
            noise = _step(net, "log", logits.shape, dtype, _step(net, "exponential", logits.shape, dtype, gates))
            number = _maximum(net, _step(net, "sub", logits.shape, dtype, gates, noise), keepdim=False)[1]
            number = net.unsqueeze(number, 1)
        gates = softmax(net, gates)
        weight = _step(net, "gather", row, dtype, gates, number)
        if not net.training:
            return weight, number
        same = _step(net, "eq", row, "bool", number, _maximum(net, gates)[1])
        drawn = _step(net, "rand_like", row, dtype, weight)
        if scores is not logits:
            drawn = _step(net, "uniform", row, dtype, drawn)
        drawn = _step(net, "gt", row, "bool", drawn)
        share = _step(net, "add", row, dtype, _step(net, "logical_or", row, "bool", same, drawn))
        y = net.tensor(row, dtype, needs_grad=logits.needs_grad)
        at = net.operator("aten::mul", ("self", "other"), (weight, share), (y,))

        def rule(g: Tensor) -> None:
            g = _step(net, "mul", row, dtype, g, weight)
            spread = _step(net, "mul", logits.shape, dtype, gates, _step(net, "mul", row, dtype, g))
            net.give(logits, _step(net, "scatter_add_", logits.shape, dtype, spread, number, g))

        net.derivative(at, (y,), rule)
        return y, number


def _maximum(net: Net, x: Tensor, keepdim: bool = True) -> tuple[Tensor, Tensor]:
    """The greatest of each row and its place."""
    shape = (x.shape[0], 1)[: 1 + keepdim]
    y, at = net.tensor(shape, x.dtype), net.tensor(shape, "int64")
    net.operator("aten::max", ("self",), (x,), (y, at), {"dim": -1, "keepdim": keepdim})
    return y, at


def _step(net: Net, name: str, shape: Shape, dtype: str, *inputs: Tensor) -> Tensor:
    """An operator whose derivative nobody takes."""
    y = net.tensor(shape, dtype)
    roles = ("self", "index", "src") if name in ("gather", "scatter", "scatter_add_") else ("self", "other")
    net.operator(f"aten::{name}", roles[: len(inputs)], inputs, (y,))
    return y
