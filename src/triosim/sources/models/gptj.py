"""GPT-J: both parts of the same normed input, part of each head rotated (Wang and Komatsuzaki 2021)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Decoder, Layout, SizeNames
from triosim.sources.models._family import divides
from triosim.sources.models._parts import FeedForward, Norm, Rotary, SelfAttention


@registered
@dataclass(frozen=True)
class GPTJ(Decoder):
    """Configuration, named as in Hugging Face's ``config.json``."""

    n_embd: int
    n_layer: int
    n_head: int
    vocab_size: int = 50400
    n_positions: int = 2048
    n_inner: int = 0
    rotary_dim: int = 64
    attn_pdrop: float = 0.0
    resid_pdrop: float = 0.0
    tie_word_embeddings: bool = False

    sizes: ClassVar = SizeNames(width="n_embd", depth="n_layer", longest="n_positions")
    layout: ClassVar = Layout(
        "GPTJ", body="transformer", embedding="wte", blocks="h", last_norm="ln_f", attention="attn", norms=("ln_1",),
        order=("ln_1", "attention", "feed_forward"), block="Block", residual="parallel", last_bias=True,
    )  # fmt: skip
    model_types: ClassVar = ("gptj",)
    fixed: ClassVar = {"activation_function": ("gelu_new", "gelu_pytorch_tanh"), "embd_pdrop": 0.0}

    def problem(self) -> str:
        return divides(self, "n_head", "n_embd")

    @property
    def norm(self) -> Norm:
        return Norm(self.n_embd, "LayerNorm")

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.rotary_dim, "GPTJRotaryEmbedding"),)

    def attention(self, layer: int) -> SelfAttention:
        return SelfAttention(
            self.n_embd, self.n_head, self.n_head, self.n_embd // self.n_head, "GPTJAttention",
            ("k_proj", "v_proj", "q_proj"), "out_proj", dropout=self.attn_pdrop, last_dropout=self.resid_pdrop,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(
            self.n_embd, self.n_inner or 4 * self.n_embd, "GPTJMLP", "gelu_new", ("fc_in", "fc_out"),
            bias=True, dropout=self.resid_pdrop,
        )  # fmt: skip
