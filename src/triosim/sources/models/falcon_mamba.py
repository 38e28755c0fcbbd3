"""Falcon Mamba: Mamba whose steps, B and C are normed without parameters (TII, arXiv:2410.05355)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._mamba import MambaMixer
from triosim.sources.models.mamba import Mamba


@registered
@dataclass(frozen=True)
class FalconMamba(Mamba):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = replace(Mamba.layout, kind="FalconMamba")
    model_types: ClassVar = ("falcon_mamba",)

    def attention(self, layer: int) -> MambaMixer:
        return replace(super().attention(layer), norm="FalconMambaWeightlessRMSNorm", weightless=True)
