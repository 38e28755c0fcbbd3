"""FlexOlmo: OLMo 2 with experts that were trained apart, each on data of its own (Ai2, arXiv:2507.07024)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models.olmo2 import OLMo2
from triosim.sources.models.olmoe import OLMoE


@registered
@dataclass(frozen=True)
class FlexOlmo(OLMoE, OLMo2):
    """Configuration, named as in Hugging Face's ``config.json``."""

    num_experts: int = 7
    num_experts_per_tok: int = 5

    layout: ClassVar = Layout(
        "FlexOlmo", norms=("post_attention_layernorm", "post_feedforward_layernorm"), residual="post"
    )
    model_types: ClassVar = ("flex_olmo",)
    other_names: ClassVar = {"num_local_experts": "num_experts"}
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu"}
