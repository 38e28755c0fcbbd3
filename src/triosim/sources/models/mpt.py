"""MPT: attention with linear biases (ALiBi), no positions and no biases of layers (MosaicML, 2023).

Module names and operators are those of Hugging Face's ``MptForCausalLM``, which writes attention out; kernels that know
such biases, as MosaicML trained it with, are asked for by name.
"""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Decoder, Layout, SizeNames
from triosim.sources.models._eager import EagerAttention, make_mask
from triosim.sources.models._family import divides, flattened
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Norm
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

BIASES = "transformer.alibi"
"""Made anew in each step there, once for all blocks."""


@registered
@dataclass(frozen=True)
class MPT(Decoder):
    """Configuration, named as in Hugging Face's ``config.json``; ``clamped`` says that it has a ``clip_qkv``."""

    d_model: int
    n_layers: int
    n_heads: int
    vocab_size: int = 50368
    max_seq_len: int = 2048
    attn_pdrop: float = 0.0
    clamped: bool = False
    tie_word_embeddings: bool = True

    sizes: ClassVar = SizeNames(width="d_model", depth="n_layers", longest="max_seq_len")
    layout: ClassVar = Layout(
        "Mpt", body="transformer", embedding="wte", blocks="blocks", last_norm="norm_f", attention="attn",
        feed_forward="ffn", norms=("norm_1", "norm_2"), order=("norm_1", "attention", "norm_2", "feed_forward"),
        block="Block",
    )  # fmt: skip
    model_types: ClassVar = ("mpt",)
    fixed: ClassVar = {
        "expansion_ratio": 4, "no_bias": True, "alibi": True, "qk_ln": False, "prefix_lm": False, "logit_scale": None,
        "attn_type": "multihead_attention", "emb_pdrop": (0, 0.0), "resid_pdrop": (0, 0.0),
    }  # fmt: skip

    bounded: ClassVar = True

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        flat = flattened(table, "attn_config")
        clamped = flat.pop("clip_qkv", None) is not None
        return {**flat, "clamped": clamped}

    def problem(self) -> str:
        return divides(self, "n_heads", "d_model")

    @property
    def norm(self) -> Norm:
        return Norm(self.d_model, "LayerNorm", bias=False)

    def embed_weights(self, w: Weights, body: str) -> None:
        super().embed_weights(w, body)
        w.buffers[BIASES] = ((self.n_heads, 1, self.max_seq_len), "float32")

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        make_mask(net, tokens, "bool")
        return super().embed(net, tokens)

    def attention(self, layer: int) -> EagerAttention:
        return EagerAttention(
            self.d_model, self.n_heads, self.n_heads, self.d_model // self.n_heads, "MptAttention", ("Wqkv",),
            "out_proj", rotated=False, dropout=self.attn_pdrop, last_dropout=self.attn_pdrop, clamped=self.clamped,
            unfused=True, biases=BIASES,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        names = ("up_proj", "down_proj")
        return FeedForward(self.d_model, 4 * self.d_model, "MptMLP", "gelu", names, dropout=self.attn_pdrop)
