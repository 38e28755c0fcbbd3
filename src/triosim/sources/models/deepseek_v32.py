"""DeepSeek-V3.2: V3 with attention to tokens that an indexer chooses (DeepSeek-AI, arXiv:2512.02556)."""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import SigmoidExperts
from triosim.sources.models._family import Count
from triosim.sources.models._indexer import IndexedLlama


@registered
@dataclass(frozen=True)
class DeepSeekV32(IndexedLlama, SigmoidExperts):
    """Configuration, named as in Hugging Face's ``config.json``."""

    first_k_dense_replace: Count = 3

    layout: ClassVar = Layout("DeepseekV32")
    model_types: ClassVar = ("deepseek_v32",)
    other_names: ClassVar = {"num_local_experts": "n_routed_experts"}
    left_out: ClassVar = {"n_group": 8, "topk_group": 4}
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu", "mlp_bias": False}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Kinds of feed-forward parts as the number of dense ones, which come first; all attention is of one kind."""
        kinds = table.get("mlp_layer_types")
        if isinstance(kinds, list) and "sparse" in kinds and "dense" not in kinds[kinds.index("sparse") :]:
            table = {**table, "first_k_dense_replace": kinds.index("sparse")}
        return {key: value for key, value in table.items() if key not in ("mlp_layer_types", "layer_types")}
