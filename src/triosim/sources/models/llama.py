"""Llama and its relatives: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Module names are those of Hugging Face's ``LlamaForCausalLM``.  Sources: Touvron et al., arXiv:2302.13971 and
2307.09288; Grattafiori et al., arXiv:2407.21783.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import Biased


@registered
@dataclass(frozen=True)
class Llama(Biased):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("Llama")
    model_types: ClassVar = ("llama", "iquestcoder")
    other_names: ClassVar = {"max_sequence_length": "max_position_embeddings"}
    fixed: ClassVar = {"hidden_act": "silu"}
