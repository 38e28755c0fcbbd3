"""GLM-4 9B: half of each head turned as neighbours, gate and up in one product (GLM team, arXiv:2406.12793)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models.glm4 import GLM4


@registered
@dataclass(frozen=True)
class GLM(GLM4):
    """Configuration, named as in Hugging Face's ``config.json``: that of GLM-4-0414 without norms behind the parts."""

    layout: ClassVar = Layout("Glm")
    model_types: ClassVar = ("glm",)
