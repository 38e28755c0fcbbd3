"""OLMo, the first: Llama whose norms have no weights (Groeneveld et al., arXiv:2402.00838)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._parts import Norm, Rotary


@registered
@dataclass(frozen=True)
class OLMo(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("Olmo")
    model_types: ClassVar = ("olmo",)
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu", "clip_qkv": None}

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "OlmoLayerNorm", weight=False, full_precision=True)

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.head_size, "OlmoRotaryEmbedding", full_precision=True),)
