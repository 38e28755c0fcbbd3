"""LongCat-Flash: two latent attentions and dense parts in a block, and experts beside the second of them
(Meituan LongCat Team, arXiv:2509.01322).

Experts read what the first dense part reads and are added at the end of the block (shortcut-connected mixture of
experts), so that their exchange may run beside the second half.  Some experts give a token back as it is (zero-
computation experts); of a token's choices so many are taken to fall to them as if all experts were taken equally often.
Weights are those of the experts that compute; the class in ``transformers`` has room for the others in one of its two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import LatentLlama
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._family import Count
from triosim.sources.models._latent import LatentAttention
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Rotation
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

NORMS = ("input_layernorm", "post_attention_layernorm")


@registered
@dataclass(frozen=True)
class LongCatFlash(LatentLlama):
    """Configuration, named as in Hugging Face's ``config.json``."""

    q_lora_rank: int = 1536
    n_routed_experts: int = 512
    zero_expert_num: Count = 256
    moe_topk: int = 12
    expert_ffn_hidden_size: int = 2048

    layout: ClassVar = Layout("LongcatFlash")
    model_types: ClassVar = ("longcat_flash",)
    other_names: ClassVar = {
        "ffn_hidden_size": "intermediate_size", "num_layers": "num_hidden_layers", "num_experts_per_tok": "moe_topk",
        "moe_intermediate_size": "expert_ffn_hidden_size",
    }  # fmt: skip
    fixed: ClassVar = {
        "attention_bias": False, "hidden_act": "silu", "router_bias": False, "zero_expert_type": "identity",
        "attention_method": "MLA", "attention_dropout": (0.0, 0),
    }  # fmt: skip

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Without ``num_hidden_layers``, which counts attentions where ``num_layers`` counts blocks."""
        without = ("num_hidden_layers",) if "num_layers" in table else ()
        return {key: value for key, value in table.items() if key not in without}

    def problem(self) -> str:
        return super().problem() or self._experts.router.problem()

    def own_form(self) -> str:
        return "has two attentions in a block"

    def attention(self, layer: int) -> LatentAttention:
        return replace(super().attention(layer), kind="LongcatFlashMLA", scaled=True)

    @property
    def _experts(self) -> Experts:
        router = ExpertRouter(
            self.hidden_size, self.n_routed_experts + self.zero_expert_num, self.moe_topk, "LongcatFlashTopkRouter",
            name="router.classifier", normalised=False, full_precision=True, correction=True, scaled=True,
        )  # fmt: skip
        return Experts(
            router, self.expert_ffn_hidden_size, "LongcatFlashMoE", "LongcatFlashExperts", router_first=False,
            idle=self.zero_expert_num,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(self.hidden_size, self.intermediate_size, "LongcatFlashMLP")

    def block_weights(self, w: Weights, i: int) -> None:
        at = self.path(i)
        self._experts.weights(w, f"{at}.mlp")
        for name, part in (("self_attn", self.attention(i)), ("mlps", self.feed_forward(i))):
            for half in range(2):
                part.weights(w, f"{at}.{name}.{half}")
        for name in NORMS:
            for half in range(2):
                self.norm.weights(w, f"{at}.{name}.{half}")

    def _block(self, net: Net, x: Tensor, i: int, rotation: Rotation | None) -> Tensor:
        attention, dense, beside = self.attention(i), self.feed_forward(i), self._experts
        shortcut: Tensor | None = None
        for half in range(2):
            y = self.norm(net, f"{NORMS[0]}.{half}", x)
            with net.module(f"self_attn.{half}", attention.kind):
                x = net.add(x, attention(net, y, rotation))
            y = self.norm(net, f"{NORMS[1]}.{half}", x)
            if shortcut is None:
                with net.module("mlp", beside.kind):
                    shortcut = beside(net, y)
            with net.module(f"mlps.{half}", dense.kind):
                x = net.add(x, dense(net, y))
        assert shortcut is not None
        return net.add(x, shortcut)
