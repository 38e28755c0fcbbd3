"""Zamba2: blocks of Mamba-2, before some of which one or two transformers run whose weights they share.

A shared transformer reads the stream beside the embeddings of the tokens; each time that it runs it has adapters of low
rank of its own.  What it makes is multiplied and added to what the block's Mamba-2 reads, not to the stream (Glorioso
et al., arXiv:2411.15242).
"""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Decoder, Layout
from triosim.sources.models._family import Kinds, divides
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, Rotary, Rotation
from triosim.sources.models._scan import Mamba2Mixer
from triosim.sources.models._shared_transformer import SharedTransformer
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

EMBEDDED = "embeddings of the tokens"
SHARED = "shared_transformer"


@registered
@dataclass(frozen=True)
class Zamba2(Decoder):
    """Configuration, named as in Hugging Face's ``config.json``; ``layers_block_type`` says of each block whether it is
    ``hybrid``, with a shared transformer."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    layers_block_type: Kinds = ()
    intermediate_size: int = 0
    num_key_value_heads: int = 0
    max_position_embeddings: int = 4096
    mamba_d_state: int = 64
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_ngroups: int = 1
    n_mamba_heads: int = 8
    chunk_size: int = 256
    add_bias_linear: bool = False
    num_mem_blocks: int = 1
    use_shared_attention_adapter: bool = False
    adapter_rank: int = 128
    use_mem_rope: bool = False
    tie_word_embeddings: bool = True

    layout: ClassVar = Layout(
        "Zamba2", last_norm="final_layernorm", attention="mamba", norms=("input_layernorm",), residual="single",
        block="MambaDecoderLayer", order=("attention", "input_layernorm"),
    )  # fmt: skip
    model_types: ClassVar = ("zamba2",)
    fixed: ClassVar = {"hidden_act": "gelu", "attention_dropout": (0.0, 0)}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """The list of blocks under one name; the usual one where it is not said."""
        listed = table.get("layers_block_type", table.get("layer_types"))
        if not isinstance(listed, list) and table.get("num_hidden_layers", 54) == 54:
            hybrid = (*range(6, 43, 6), 47, 51)
            listed = ["hybrid" if at in hybrid else "mamba" for at in range(54)]
        return {**{key: value for key, value in table.items() if key != "layer_types"}, "layers_block_type": listed}

    def problem(self) -> str:
        if len(self.layers_block_type) != self.num_hidden_layers:
            return f"layers_block_type must be a list of the {self.num_hidden_layers} blocks, one for each"
        if self.mamba_expand * self.hidden_size % self.n_mamba_heads:
            return (
                f"{self.n_mamba_heads} heads do not divide {self.mamba_expand * self.hidden_size} channels of Mamba-2"
            )
        return divides(self, "num_attention_heads", "hidden_size") or self.attention(0).problem()

    def own_form(self) -> str:
        return "has transformers that blocks share"

    def is_hybrid(self, layer: int) -> bool:
        """Whether a shared transformer runs before the block's Mamba-2."""
        return self.layers_block_type[layer] == "hybrid"

    @property
    def _hybrids(self) -> list[int]:
        return [layer for layer in range(self.depth) if self.is_hybrid(layer)]

    def kinds(self) -> list[int]:
        return [layer + 1 if self.is_hybrid(layer) else 0 for layer in range(self.depth)]

    def layout_of(self, layer: int) -> Layout:
        return HYBRID if self.is_hybrid(layer) else self.layout

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        size = 2 * self.hidden_size // self.num_attention_heads
        return (Rotary(size, "Zamba2RotaryEmbedding"),) if self.use_mem_rope else ()

    def attention(self, layer: int) -> Mamba2Mixer:
        return Mamba2Mixer(
            self.hidden_size, self.n_mamba_heads, self.mamba_expand * self.hidden_size // self.n_mamba_heads,
            self.mamba_ngroups, self.mamba_d_state, self.mamba_d_conv, self.chunk_size, "Zamba2MambaMixer",
            "Zamba2RMSNormGated", self.add_bias_linear,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> None:
        return None

    @property
    def _shared(self) -> SharedTransformer:
        rank = self.adapter_rank
        return SharedTransformer(
            self.hidden_size, self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads,
            self.intermediate_size or 4 * self.hidden_size, rank if self.use_shared_attention_adapter else 0, rank,
            self.add_bias_linear,
        )  # fmt: skip

    def _owner(self, turn: int) -> str:
        """Path of the module that has the weights of the transformer that runs for the ``turn``-th time."""
        return f"{self.path(self._hybrids[turn % self.num_mem_blocks])}.{SHARED}"

    def block_weights(self, w: Weights, i: int) -> None:
        if self.is_hybrid(i):
            w.linear(f"{self.path(i)}.linear", self.width, self.width, bias=False)
        super().block_weights(w, i)
        turn = self._hybrids.index(i) if self.is_hybrid(i) else self.num_mem_blocks
        if turn < self.num_mem_blocks:
            self._shared.weights(w, self._owner(turn), range(turn, len(self._hybrids), self.num_mem_blocks))

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        x = super().embed(net, tokens)
        net.kept[EMBEDDED] = (net.clone(x),)
        return x

    def _block(self, net: Net, x: Tensor, i: int, rotation: Rotation | None) -> Tensor:
        if not self.is_hybrid(i):
            return super()._block(net, x, i, rotation)
        turn = self._hybrids.index(i)
        with net.sharing(f"{net.path}.{SHARED}", self._owner(turn)), net.module(SHARED, "Zamba2AttentionDecoderLayer"):
            y = self._shared(net, net.cat((x, net.kept[EMBEDDED][0]), 2), rotation, turn)
        y = net.linear("linear", y)
        with net.module("mamba_decoder", "Zamba2MambaDecoderLayer"):
            y = self.norm(net, self.layout.norms[0], net.add(x, y))
            with net.module("mamba", "Zamba2MambaMixer"):
                return net.add(x, self.attention(i)(net, y, rotation))

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "Zamba2RMSNorm")


HYBRID = Layout(
    "Zamba2", attention="mamba_decoder.mamba", norms=("mamba_decoder.input_layernorm",), residual="single",
    block="HybridLayer", order=("attention", "mamba_decoder.input_layernorm"),
)  # fmt: skip
