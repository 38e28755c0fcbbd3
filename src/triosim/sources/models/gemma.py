"""Gemma, the first generation (Gemma Team, arXiv:2403.08295)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._gemma import GemmaLike


@registered
@dataclass(frozen=True)
class Gemma(GemmaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("Gemma")
    model_types: ClassVar = ("gemma",)
    fixed: ClassVar = {"attention_bias": False}
