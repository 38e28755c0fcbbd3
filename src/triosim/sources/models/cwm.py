"""CWM, a model of code: a Llama of which every fourth block sees all tokens, the others a window (arXiv:2510.02387)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import Windowed


@registered
@dataclass(frozen=True)
class CWM(Windowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    sliding_window: int = 8192

    layout: ClassVar = Layout("Cwm")
    model_types: ClassVar = ("cwm",)
    left_out: ClassVar = {"head_dim": 128}
    fixed: ClassVar = {"hidden_act": "silu", "mlp_bias": False}

    def usual_window(self, layer: int) -> bool:
        return layer % 4 != 0
