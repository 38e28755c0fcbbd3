"""What IBM's Granite models share: embeddings, parts and scores are multiplied by numbers (Granite 3.0, 2024)."""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.sources.models._experts import Experts
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@dataclass(frozen=True)
class GraniteLike(LlamaLike):
    """A Llama with Granite's numbers; those of the parts are a matter of its layout (``scaled``)."""

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        return net.scaled(super().embed(net, tokens))

    def score(self, net: Net, x: Tensor) -> Tensor:
        return net.scaled(super().score(net, x), "aten::div")


@dataclass(frozen=True)
class GraniteFeedForward:
    """Experts and what every token passes, both if there are both: two modules of the block."""

    shared: FeedForward | None
    experts: Experts | None = None
    kind: str = ""

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        if self.experts:
            self.experts.weights(w, f"{at}.block_sparse_moe")
        if self.shared:
            self.shared.weights(w, f"{at}.shared_mlp")

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        """The part of ``x`` [batch, tokens, width]."""
        made = []
        for name, part in (("block_sparse_moe", self.experts), ("shared_mlp", self.shared)):
            if part:
                with net.module(name, part.kind):
                    made.append(part(net, x))
        return made[0] if len(made) == 1 else net.add(*made)
