"""Hunyuan with experts (A13B): a shared one beside those chosen, heads normed when rotated (Tencent 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models.hunyuan_v1_dense import HunYuanV1


@registered
@dataclass(frozen=True)
class HunYuanV1MoE(HunYuanV1):
    """Configuration, named as in Hugging Face's ``config.json``; experts are as wide as ``intermediate_size``."""

    num_experts: int = 64
    moe_topk: int = 8

    layout: ClassVar = Layout("HunYuanMoEV1")
    model_types: ClassVar = ("hunyuan_v1_moe",)
    fixed: ClassVar = {"hidden_act": "silu"}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Lists that say the same of every block as one number."""
        same = {key: table[key] for key in ("moe_topk", "num_experts") if isinstance(table.get(key), list)}
        return {**table, **{key: own[0] for key, own in same.items() if own and own == [own[0]] * len(own)}}

    def problem(self) -> str:
        return super().problem() or self._router.problem()

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.num_experts, self.moe_topk, "HunYuanMoEV1Gate", name="gate.wg",
            full_precision=True,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> Experts:
        return Experts(
            self._router, self.intermediate_size, "HunYuanMoEV1Moe", "HunYuanMoEV1Experts",
            shared=replace(super().feed_forward(layer), kind="HunYuanMoEV1MLP"), shared_name="shared_mlp",
            shared_first=True,
        )  # fmt: skip
