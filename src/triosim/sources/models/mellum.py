"""Mellum 2: Qwen3's attention and experts, blocks with a window as the configuration lists them (JetBrains, 2026)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import BiasedAttention, Windowed
from triosim.sources.models._parts import Norm, SelfAttention
from triosim.sources.models._qwen import QwenExperts


@registered
@dataclass(frozen=True)
class Mellum(BiasedAttention, QwenExperts, Windowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    head_dim: int = 128
    num_experts: int = 64
    moe_intermediate_size: int = 896
    norm_topk_prob: bool = True

    layout: ClassVar = Layout("Mellum")
    model_types: ClassVar = ("mellum",)
    other_names: ClassVar = {"num_local_experts": "num_experts"}
    left_out: ClassVar = {"sliding_window": 1024}
    fixed: ClassVar = {"hidden_act": "silu"}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        kinds = table.get("mlp_layer_types")
        if not isinstance(kinds, list) or not {*kinds} <= {"dense", "sparse"}:
            return table
        rest = {key: value for key, value in table.items() if key != "mlp_layer_types"}
        return {**rest, "mlp_only_layers": [at for at, kind in enumerate(kinds) if kind == "dense"]}

    def usual_window(self, layer: int) -> bool:
        return False

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), norm=Norm(self.head_size, "MellumRMSNorm"))
