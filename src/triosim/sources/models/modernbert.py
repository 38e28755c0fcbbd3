"""ModernBERT: an encoder with rotary positions, gated GELU and norms before parts (Warner et al., arXiv:2412.13663).

Two blocks of three see a window to either side.  Its authors train on sequences packed one behind the other, without
padding, as every position here is one that counts.  Names are those of Hugging Face's ``ModernBertForMaskedLM``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import SLIDING, LlamaLike
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Norm, Rotary, SelfAttention
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@registered
@dataclass(frozen=True)
class ModernBERT(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    attention_dropout: float = 0.0
    mlp_bias: bool = False
    norm_bias: bool = False
    decoder_bias: bool = True
    classifier_bias: bool = False
    global_attn_every_n_layers: int = 3
    local_attention: int = 128

    kind: ClassVar[str] = "ModernBert"
    before_scores: ClassVar[str] = "head"
    """The module between the last norm and the scores."""
    writes: ClassVar = False
    model_types: ClassVar = ("modernbert",)
    fixed: ClassVar = {
        "hidden_activation": "gelu", "classifier_activation": "gelu", "embedding_dropout": (0.0, 0),
        "mlp_dropout": (0.0, 0),
    }  # fmt: skip

    @property
    def layout(self) -> Layout:  # type: ignore[override]
        """The head may have a bias."""
        norms = ("attn_norm", "mlp_norm")
        return Layout(
            self.kind, embedding="embeddings.tok_embeddings", last_norm="final_norm", head="decoder", attention="attn",
            norms=norms, order=(norms[0], "attention", norms[1], "feed_forward"), block=self.block,
            last_bias=self.decoder_bias,
        )  # fmt: skip

    block: ClassVar[str] = "EncoderLayer"

    def layout_of(self, layer: int) -> Layout:
        """The first block has no norm before attention, as what it reads is normed."""
        own = self.layout
        return replace(own, norms=("", own.norms[1]), order=own.order[1:]) if layer == 0 else own

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "LayerNorm", bias=self.norm_bias)

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        kind = f"{self.kind}RotaryEmbedding"
        return tuple(Rotary(self.head_size, kind, f"rotary_emb_{at}", full_precision=True) for at in range(2))

    def rotary(self, layer: int) -> int:
        return int(self.windowed(layer))

    def windowed(self, layer: int) -> bool:
        """Whether a block sees a window."""
        return self.of_kind(layer, SLIDING, layer % self.global_attn_every_n_layers != 0)

    def attention(self, layer: int) -> SelfAttention:
        return replace(
            super().attention(layer), names=("Wqkv",), last="Wo", bias=self.attention_bias,
            last_bias=self.attention_bias, dropout=self.attention_dropout, last_dropout=self.attention_dropout,
            causal=False, window=self.local_attention // 2 + 1 if self.windowed(layer) else 0,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        names = ("Wi", "Wo")
        return FeedForward(
            self.hidden_size, self.intermediate_size, f"{self.kind}MLP", "gelu", names, packed=True, bias=self.mlp_bias
        )

    def embed_weights(self, w: Weights, body: str) -> None:
        super().embed_weights(w, body)
        self.norm.weights(w, f"{body}.embeddings.norm")

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        with net.module("embeddings", f"{self.kind}Embeddings"):
            return self.norm(net, "norm", net.embedding("tok_embeddings", tokens))

    def head_weights(self, w: Weights) -> None:
        w.linear(f"{self.before_scores}.dense", self.width, self.width, bias=self.classifier_bias)
        self.norm.weights(w, f"{self.before_scores}.norm")
        super().head_weights(w)
        if self.tie_word_embeddings and self.decoder_bias:
            w.add("decoder.bias", self.vocabulary)

    def score(self, net: Net, x: Tensor) -> Tensor:
        with net.module(self.before_scores, f"{self.kind}PredictionHead"):
            x = self.norm(net, "norm", net.gelu(net.linear("dense", x)))
        return super().score(net, x)
