"""HyperCLOVA X SEED: Granite's numbers and a norm behind each part (NAVER, HyperCLOVAX-SEED-Think-14B, 2025)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._granite import GraniteLike
from triosim.sources.models._llama_like import Biased
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor


@registered
@dataclass(frozen=True)
class HyperCLOVAX(Biased, GraniteLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout(
        "HyperCLOVAX", scaled=True, residual="around",
        norms=("input_layernorm", "post_norm1", "post_attention_layernorm", "post_norm2"),
        order=("attention", "feed_forward", "input_layernorm", "post_attention_layernorm", "post_norm1", "post_norm2"),
    )  # fmt: skip
    model_types: ClassVar = ("hyperclovax",)
    fixed: ClassVar = {"hidden_act": "silu", "use_post_norm": True}

    def score(self, net: Net, x: Tensor) -> Tensor:
        return net.scaled(super(GraniteLike, self).score(net, x))
