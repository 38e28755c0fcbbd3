"""Mistral: Llama with attention to a window of the tokens before (Jiang et al., arXiv:2310.06825)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import Windowed


@registered
@dataclass(frozen=True)
class Mistral(Windowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("Mistral")
    model_types: ClassVar = ("mistral", "ministral")
    fixed: ClassVar = {"hidden_act": "silu"}
