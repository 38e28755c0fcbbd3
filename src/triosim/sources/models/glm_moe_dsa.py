"""GLM-5: DeepSeek-V3.2's attention to chosen tokens, whose choice several blocks may share (Z.ai, arXiv:2602.15763)."""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._family import Blocks
from triosim.sources.models.deepseek_v32 import DeepSeekV32


@registered
@dataclass(frozen=True)
class GLMMoEDSA(DeepSeekV32):
    """Configuration, named as in Hugging Face's ``config.json``; ``sharing`` are blocks that take the choice of the one
    before."""

    sharing: Blocks = ()
    qk_nope_head_dim: int = 192
    v_head_dim: int = 256
    index_n_heads: int = 32

    layout: ClassVar = Layout("GlmMoeDsa")
    model_types: ClassVar = ("glm_moe_dsa",)
    left_out: ClassVar = {"q_lora_rank": 2048}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """What each block does, as a list of names, a pattern of letters, or every n-th after some."""
        table = super().reworded(table)
        listed, pattern = table.get("indexer_types"), table.get("index_topk_pattern")
        depth, every = table.get("num_hidden_layers"), table.get("index_topk_freq", 1)
        first = table.get("index_skip_topk_offset", 2)
        if isinstance(listed, list):
            table = {**table, "sharing": [at for at, name in enumerate(listed) if name == "shared"]}
        elif isinstance(pattern, (str, list)):
            table = {**table, "sharing": [at for at, name in enumerate(pattern) if name in ("S", "shared")]}
        elif isinstance(depth, int) and isinstance(every, int) and isinstance(first, int) and every > 1:
            table = {**table, "sharing": [at for at in range(depth) if max(at - first + 1, 0) % every]}
        without = ("indexer_types", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")
        return {key: value for key, value in table.items() if key not in without}

    def problem(self) -> str:
        return super().problem() or ("the first block has no choice to share" if 0 in self.sharing else "")

    def indexes(self, layer: int) -> bool:
        return layer not in self.sharing
