"""What IBM's Granite models share: embeddings, parts and scores are multiplied by numbers (Granite 3.0, 2024)."""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor


@dataclass(frozen=True)
class GraniteLike(LlamaLike):
    """A Llama with Granite's numbers; those of the parts are a matter of its layout (``scaled``)."""

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        return net.scaled(super().embed(net, tokens))

    def score(self, net: Net, x: Tensor) -> Tensor:
        return net.scaled(super().score(net, x), "aten::div")
