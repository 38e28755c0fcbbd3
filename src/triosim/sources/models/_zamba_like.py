"""What Zamba and Zamba2 share: blocks of Mamba, before some of which a transformer runs whose weights are shared.

A shared transformer reads the stream beside the embeddings of the tokens.  What it makes is multiplied and added to
what the block's Mamba reads, not to the stream (Glorioso et al., arXiv:2405.16712, arXiv:2411.15242).
"""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.sources.models._decoder import Decoder, Layout
from triosim.sources.models._family import Kinds, divides
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, Rotation
from triosim.sources.models._shared_transformer import SharedTransformer
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

EMBEDDED = "embeddings of the tokens"


def zamba_layout(kind: str, hybrid: bool = False) -> Layout:
    """Of a family's blocks, without a shared transformer or with one."""
    inner = "mamba_decoder." if hybrid else ""
    return Layout(
        kind, last_norm="final_layernorm", attention=f"{inner}mamba", norms=(f"{inner}input_layernorm",),
        residual="single", block="HybridLayer" if hybrid else "MambaDecoderLayer",
        order=("attention", f"{inner}input_layernorm"),
    )  # fmt: skip


@dataclass(frozen=True)
class ZambaLike(Decoder):
    """Configuration, named as in Hugging Face's ``config.json``; ``layers_block_type`` says of each block whether it is
    ``hybrid``, with a shared transformer.

    Attributes:
        shared_name: of the shared transformer in a block.
        shared_first: whether it is a block's first module.
        memory_blocks: how many of them there are, which run in turn.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    layers_block_type: Kinds = ()
    intermediate_size: int = 0
    num_key_value_heads: int = 0
    max_position_embeddings: int = 4096
    mamba_expand: int = 2
    tie_word_embeddings: bool = True

    shared_name: ClassVar[str] = "shared_transformer"
    shared_first: ClassVar[bool] = False

    def problem(self) -> str:
        if len(self.layers_block_type) != self.num_hidden_layers:
            return f"layers_block_type must be a list of the {self.num_hidden_layers} blocks, one for each"
        return divides(self, "num_attention_heads", "hidden_size") or self.attention(0).problem()

    def own_form(self) -> str:
        return "has transformers that blocks share"

    def is_hybrid(self, layer: int) -> bool:
        """Whether a shared transformer runs before the block's Mamba."""
        return self.layers_block_type[layer] == "hybrid"

    @property
    def memory_blocks(self) -> int:
        """How many shared transformers there are."""
        return 1

    @property
    def hybrids(self) -> list[int]:
        """Blocks with one."""
        return [layer for layer in range(self.depth) if self.is_hybrid(layer)]

    def kinds(self) -> list[int]:
        return [layer + 1 if self.is_hybrid(layer) else 0 for layer in range(self.depth)]

    def layout_of(self, layer: int) -> Layout:
        return zamba_layout(self.layout.kind, self.is_hybrid(layer))

    def attention(self, layer: int) -> Any:
        raise NotImplementedError

    def feed_forward(self, layer: int) -> None:
        return None

    @property
    def shared(self) -> SharedTransformer:
        """A shared transformer."""
        raise NotImplementedError

    def _owner(self, turn: int) -> str:
        """Path of the module that has the weights of the transformer that runs for the ``turn``-th time."""
        return f"{self.path(self.hybrids[turn % self.memory_blocks])}.{self.shared_name}"

    def block_weights(self, w: Weights, i: int) -> None:
        if not self.is_hybrid(i):
            return super().block_weights(w, i)
        turn = self.hybrids.index(i)
        turns = range(turn, len(self.hybrids), self.memory_blocks) if turn < self.memory_blocks else ()
        if self.shared_first and turns:
            self.shared.weights(w, self._owner(turn), turns)
        w.linear(f"{self.path(i)}.linear", self.width, self.width, bias=False)
        super().block_weights(w, i)
        if turns and not self.shared_first:
            self.shared.weights(w, self._owner(turn), turns)

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        x = super().embed(net, tokens)
        net.kept[EMBEDDED] = (net.clone(x),)
        return x

    def _block(self, net: Net, x: Tensor, i: int, rotation: Rotation | None) -> Tensor:
        if not self.is_hybrid(i):
            return super()._block(net, x, i, rotation)
        turn, kind, shared = self.hybrids.index(i), self.layout.kind, f"{net.path}.{self.shared_name}"
        with (
            net.sharing(shared, self._owner(turn)),
            net.module(self.shared_name, f"{kind}AttentionDecoderLayer"),
        ):  # fmt: skip
            y = self.shared(net, net.cat((x, net.kept[EMBEDDED][0]), 2), rotation, turn)
        y = net.linear("linear", y)
        with net.module("mamba_decoder", f"{kind}MambaDecoderLayer"):
            y = self.norm(net, self.layout.norms[0], net.add(x, y))
            with net.module("mamba", f"{kind}MambaMixer"):
                return net.add(x, self.attention(i)(net, y, rotation))

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, f"{self.layout.kind}RMSNorm")
