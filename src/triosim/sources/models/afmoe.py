"""Trinity (AFMoE): gated attention, three blocks in four with a window, small experts (Arcee AI, model card, 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import SigmoidExperts
from triosim.sources.models._experts import ExpertRouter
from triosim.sources.models._family import Count
from triosim.sources.models._gated_attention import OutputGatedAttention
from triosim.sources.models._llama_like import MostlyWindowed
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, SelfAttention
from triosim.sources.models._tape import Tensor


@registered
@dataclass(frozen=True)
class AFMoE(MostlyWindowed, SigmoidExperts):
    """Configuration, named as in Hugging Face's ``config.json``."""

    n_routed_experts: int = 64
    n_shared_experts: int = 2
    num_experts_per_tok: int = 6
    moe_intermediate_size: int = 1408
    first_k_dense_replace: Count = 1
    mup_enabled: bool = False

    layout: ClassVar = Layout(
        "Afmoe", residual="around",
        norms=("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"),
        order=(
            "attention", "input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm",
            "feed_forward",
        ),
    )  # fmt: skip
    model_types: ClassVar = ("afmoe",)
    other_names: ClassVar = {
        "num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts",
        "num_dense_layers": "first_k_dense_replace", "global_attn_every_n_layers": "sliding_window_pattern",
    }  # fmt: skip
    left_out: ClassVar = {"head_dim": 128, "sliding_window": 1024}
    fixed: ClassVar = {"attention_bias": False, "attention_dropout": (0.0, 0), "hidden_act": "silu"}

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        x = super().embed(net, tokens)
        return net.scaled(x) if self.mup_enabled else x

    def attention(self, layer: int) -> SelfAttention:
        own: SelfAttention = super().attention(layer)
        return OutputGatedAttention(**{
            **vars(own), "norm": Norm(self.head_size, "AfmoeRMSNorm"), "norm_last": True, "rotated": own.window > 0,
        })  # fmt: skip

    @property
    def _router(self) -> ExpertRouter:
        return replace(
            super()._router, kind="AfmoeTokenChoiceRouter", name="router.gate", full_precision=False, bounded="add"
        )

    def feed_forward(self, layer: int) -> Any:
        own = super().feed_forward(layer)
        if layer < self.first_k_dense_replace:
            return own
        return replace(own, kind="AfmoeSparseMoeBlock", router_first=True, shared_first=True, experts_last=True)
