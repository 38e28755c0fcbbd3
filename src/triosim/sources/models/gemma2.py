"""Gemma 2: every other block sees a window, norms around each part, capped scores (arXiv:2408.00118).

The cap of attention's scores is part of the attention kernel and takes no time of its own here.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._gemma import AROUND, GemmaLike, capped
from triosim.sources.models._llama_like import Windowed
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor


@registered
@dataclass(frozen=True)
class Gemma2(GemmaLike, Windowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    sliding_window: int = 4096

    layout: ClassVar = Layout("Gemma2", norms=AROUND, residual="around")
    model_types: ClassVar = ("gemma2",)
    fixed: ClassVar = {"attention_bias": False}

    def usual_window(self, layer: int) -> bool:
        return layer % 2 == 0

    def score(self, net: Net, x: Tensor) -> Tensor:
        return capped(net, super().score(net, x))
