"""Mixtral: Mistral with experts (Jiang et al., arXiv:2401.04088)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._llama_like import Windowed


@registered
@dataclass(frozen=True)
class Mixtral(Windowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    num_local_experts: int = 8
    num_experts_per_tok: int = 2

    layout: ClassVar = Layout("Mixtral")
    model_types: ClassVar[tuple[str, ...]] = ("mixtral",)
    fixed: ClassVar = {"hidden_act": "silu"}

    def problem(self) -> str:
        return super().problem() or self._router.problem()

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.num_local_experts, self.num_experts_per_tok, f"{self.layout.kind}TopKRouter"
        )

    def feed_forward(self, layer: int) -> Experts:
        kind = self.layout.kind
        return Experts(self._router, self.intermediate_size, f"{kind}SparseMoeBlock", f"{kind}Experts")
