"""Granite with experts beside a feed-forward part that every token passes (IBM, Granite 4.0 Tiny Preview, 2025)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._family import Count
from triosim.sources.models._granite import GraniteFeedForward
from triosim.sources.models._parts import FeedForward
from triosim.sources.models.granitemoe import GraniteMoe


@registered
@dataclass(frozen=True)
class GraniteMoeShared(GraniteMoe):
    """Configuration, named as in Hugging Face's ``config.json``."""

    shared_intermediate_size: Count = 0

    layout: ClassVar = Layout(
        "GraniteMoeShared", feed_forward="", scaled=True,
        order=("attention", "input_layernorm", "post_attention_layernorm", "feed_forward"),
    )  # fmt: skip
    model_types: ClassVar = ("granitemoeshared",)

    def feed_forward(self, layer: int) -> GraniteFeedForward:
        routed, inner = super().feed_forward(layer), self.shared_intermediate_size
        names = ("input_linear", "output_linear")
        shared = FeedForward(self.hidden_size, inner, "GraniteMoeSharedMLP", names=names, packed=True)
        return GraniteFeedForward(shared if inner else None, routed)
