"""VaultGemma: Gemma 2 without norms behind its parts, trained with differential privacy (Google, arXiv:2510.15001)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models.gemma2 import Gemma2


@registered
@dataclass(frozen=True)
class VaultGemma(Gemma2):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("VaultGemma", norms=("input_layernorm", "pre_feedforward_layernorm"))
    model_types: ClassVar = ("vaultgemma",)
