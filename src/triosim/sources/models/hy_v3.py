"""Hunyuan 3: experts scored by a sigmoid beside a shared one, dense first blocks, normed heads (Tencent, 2026)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import SigmoidExperts, with_dense_first
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._llama_like import Biased
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, SelfAttention
from triosim.sources.models._tape import Tensor


@dataclass(frozen=True)
class ExpertsOfRows(Experts):
    """Experts beside a shared one, both of tokens as rows.

    Attributes:
        wide: whether what they make is added in float32.
    """

    wide: bool = True

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        """The part of ``x`` [batch, tokens, width]."""
        flat = net.view(x, (math.prod(x.shape[:-1]), x.shape[-1]))
        weights, numbers = self.router(net, flat)
        dtype = "float32" if self.wide else x.dtype
        with net.module("experts", self.experts_kind):
            y = net.to(self.routed(net, flat, weights, numbers), dtype)
        y = net.add(y, net.to(self._shared(net, flat), dtype))
        return net.view(net.to(y, x.dtype), x.shape)


@registered
@dataclass(frozen=True)
class HunyuanV3(Biased, SigmoidExperts):
    """Configuration, named as in Hugging Face's ``config.json``."""

    head_dim: int = 128
    n_routed_experts: int = 192
    moe_intermediate_size: int = 1536
    enable_moe_fp32_combine: bool = True

    layout: ClassVar = Layout("HYV3")
    model_types: ClassVar = ("hy_v3",)
    other_names: ClassVar = {
        "num_experts": "n_routed_experts", "num_local_experts": "n_routed_experts",
        "num_shared_experts": "n_shared_experts",
    }  # fmt: skip
    fixed: ClassVar = {"hidden_act": "silu", "attention_dropout": (0.0, 0)}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        return with_dense_first(table)

    @property
    def _router(self) -> ExpertRouter:
        return replace(super()._router, kind="HYV3TopKRouter", groups=1, best_groups=1, bounded="add")

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), norm=Norm(self.head_size, "HYV3RMSNorm"), norm_last=True)

    def feed_forward(self, layer: int) -> Any:
        own = super().feed_forward(layer)
        if not isinstance(own, Experts):
            return own
        return ExpertsOfRows(**{**vars(own), "router_first": True}, wide=self.enable_moe_fp32_combine)
