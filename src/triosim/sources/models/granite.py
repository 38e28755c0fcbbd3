"""Granite 3: Llama whose embeddings, parts and scores are multiplied by numbers (IBM, Granite 3.0, October 2024)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._granite import GraniteLike
from triosim.sources.models._llama_like import Biased


@registered
@dataclass(frozen=True)
class Granite(Biased, GraniteLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("Granite", scaled=True)
    model_types: ClassVar = ("granite",)
    fixed: ClassVar = {"hidden_act": "silu"}
