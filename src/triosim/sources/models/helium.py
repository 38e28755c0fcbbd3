"""Helium: a Llama of European languages whose heads are turned in pairs of neighbours (Kyutai, helium-1, 2025)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import Biased


@registered
@dataclass(frozen=True)
class Helium(Biased):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("Helium")
    model_types: ClassVar = ("helium",)
    left_out: ClassVar = {"head_dim": 128}
    fixed: ClassVar = {"hidden_act": "silu"}
