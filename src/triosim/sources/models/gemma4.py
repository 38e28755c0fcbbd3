"""Gemma 4: five blocks with a window to one that sees all, whose heads are larger (Google DeepMind, model card, 2026).

Blocks that see all may take what makes keys for values too (``attention_k_eq_v``); values are normed without a weight,
and what a block makes is multiplied by a number.  E2B and E4B have embeddings of each layer and later blocks that share
keys, with wider feed-forward parts; the 26B model has experts beside each feed-forward part.  The text model.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._family import Count
from triosim.sources.models._gemma import AROUND
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Norm, Rotary, Rotation
from triosim.sources.models._per_layer import TAKEN, PerLayerInputs, SharedAttention
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

BESIDE = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")


@registered
@dataclass(frozen=True)
class Gemma4(PerLayerInputs):
    """Configuration, named as in Hugging Face's ``config.json``."""

    sliding_window: int = 512
    sliding_window_pattern: int = 6
    global_head_dim: int = 512
    num_global_key_value_heads: Count = 0
    attention_k_eq_v: bool = False
    use_double_wide_mlp: bool = False
    enable_moe_block: bool = False
    num_experts: Count = 0
    top_k_experts: Count = 0
    moe_intermediate_size: Count = 0

    layout: ClassVar = Layout("Gemma4Text", norms=AROUND, residual="around", model="Model")
    norm_kind: ClassVar = "Gemma4RMSNorm"
    model_types: ClassVar = ("gemma4_text",)
    fixed: ClassVar = {
        "hidden_activation": "gelu_pytorch_tanh", "attention_dropout": (0.0, 0), "use_bidirectional_attention": None,
    }  # fmt: skip

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        return {"capped": table.get("final_logit_softcapping") is not None, **table}

    def problem(self) -> str:
        if self.enable_moe_block and not (self.num_experts and self.top_k_experts and self.moe_intermediate_size):
            return "enable_moe_block also needs num_experts, top_k_experts and moe_intermediate_size"
        return super().problem() or (self._experts.router.problem() if self.enable_moe_block else "")

    def own_form(self) -> str:
        return super().own_form() or ("has experts beside feed-forward parts" if self.enable_moe_block else "")

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        sizes = (self.head_size, self.global_head_dim)
        return tuple(Rotary(size, "Gemma4TextRotaryEmbedding", f"rotary_emb_{at}") for at, size in enumerate(sizes))

    def rotary(self, layer: int) -> int:
        return int(not self.window(layer))

    def attention(self, layer: int) -> SharedAttention:
        own = replace(super().attention(layer), norms_first=True)
        if self.window(layer):
            return own
        keys = self.num_global_key_value_heads if self.attention_k_eq_v else 0
        names = ("q_proj", "k_proj") if self.attention_k_eq_v else own.names
        return replace(own, size=self.global_head_dim, groups=keys or self.key_value_heads, names=names)

    def feed_forward(self, layer: int) -> FeedForward:
        own: FeedForward = super().feed_forward(layer)
        wide = self.use_double_wide_mlp and self.sharing(layer) == TAKEN
        return replace(own, inner=2 * own.inner) if wide else own

    @property
    def _experts(self) -> Experts:
        router = ScaledRouter(self.hidden_size, self.num_experts, self.top_k_experts, "Gemma4TextRouter", name="router")
        return Experts(router, self.moe_intermediate_size, "", "Gemma4TextExperts", "gelu_pytorch_tanh")

    def block_weights(self, w: Weights, i: int) -> None:
        super().block_weights(w, i)
        if self.hidden_size_per_layer_input:
            self.mixing_weights(w, self.path(i))
        if self.enable_moe_block:
            self._experts.weights(w, self.path(i))
            for name in BESIDE:
                self.norm.weights(w, f"{self.path(i)}.{name}")

    def _block(self, net: Net, x: Tensor, i: int, rotation: Rotation | None) -> Tensor:
        norms = self.layout.norms
        y = self.attended(net, self.norm(net, norms[0], x), i, rotation)
        x = net.add(x, self.norm(net, norms[1], y))
        y = self.fed(net, self.norm(net, norms[2], x), i)
        if self.enable_moe_block:
            y = net.add(self.norm(net, BESIDE[0], y), self._beside(net, x))
        x = net.add(x, self.norm(net, norms[3], y))
        return net.scaled(net.add(x, self.mixed(net, x, i)) if self.hidden_size_per_layer_input else x)

    def _beside(self, net: Net, x: Tensor) -> Tensor:
        """What the experts add to the feed-forward part."""
        experts, flat = self._experts, net.view(x, (math.prod(x.shape[:2]), x.shape[2]))
        weights, numbers = experts.router(net, flat)
        y = self.norm(net, BESIDE[2], flat)
        with net.module("experts", experts.experts_kind):
            y = experts.routed(net, y, weights, numbers)
        return self.norm(net, BESIDE[1], net.view(y, x.shape))


class ScaledRouter(ExpertRouter):
    """Reads tokens that are normed and scaled by element; weights are scaled by a number of each expert."""

    def weights(self, w: Weights, at: str) -> None:
        w.add(f"{at}.{self.name}.scale", self.width)
        w.add(f"{at}.{self.name}.per_expert_scale", self.experts)
        w.linear(f"{at}.{self.name}.proj", self.width, self.experts, bias=False)

    def __call__(self, net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
        with net.module(self.name, self.kind):
            y = Norm(self.width, Gemma4.norm_kind, weight=False)(net, "norm", x)
            y = net.scaled(net.scaled_by(y, net.parameter("scale")))
            weights, numbers = self._scored(net, net.linear("proj", y), x)
            return net.mul(weights, net.indexed(net.parameter("per_expert_scale"), numbers)), numbers
