"""GPT-OSS: experts with biases, every other block sees a window, a sink in each head (OpenAI, arXiv:2508.10925).

The sink is one more score of each head's softmax and takes no time of its own in the attention kernel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._llama_like import Windowed
from triosim.sources.models._parts import SelfAttention


@registered
@dataclass(frozen=True)
class GptOss(Windowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    head_dim: int = 64
    num_local_experts: int = 128
    num_experts_per_tok: int = 4
    sliding_window: int = 128

    layout: ClassVar = Layout("GptOss")
    model_types: ClassVar = ("gpt_oss",)
    fixed: ClassVar = {"attention_bias": True}

    def problem(self) -> str:
        return super().problem() or self._router.problem()

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.num_local_experts, self.num_experts_per_tok, "GptOssTopKRouter", name="router",
            score="chosen", bias=True, narrow=True,
        )  # fmt: skip

    def usual_window(self, layer: int) -> bool:
        return layer % 2 == 0

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), bias=True, last_bias=True, sinks=True)

    def feed_forward(self, layer: int) -> Experts:
        return Experts(
            self._router, self.intermediate_size, "GptOssMLP", "GptOssExperts", "clamped", bias=True, inputs_first=True
        )
