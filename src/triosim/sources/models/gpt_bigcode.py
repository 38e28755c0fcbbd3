"""StarCoder and SantaCoder: GPT-2 with one head of keys and values for all queries (Li et al., arXiv:2305.06161)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Decoder, Layout, SizeNames
from triosim.sources.models._family import divides
from triosim.sources.models._net import Net
from triosim.sources.models._parts import GELU, FeedForward, Norm, SelfAttention
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@registered
@dataclass(frozen=True)
class GPTBigCode(Decoder):
    """Configuration, named as in Hugging Face's ``config.json``."""

    n_embd: int
    n_layer: int
    n_head: int
    vocab_size: int = 50257
    n_positions: int = 1024
    n_inner: int = 0
    activation_function: str = "gelu_pytorch_tanh"
    multi_query: bool = True
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    tie_word_embeddings: bool = True

    sizes: ClassVar = SizeNames(width="n_embd", depth="n_layer", longest="n_positions")
    layout: ClassVar = Layout(
        "GPTBigCode", body="transformer", embedding="wte", blocks="h", last_norm="ln_f", attention="attn",
        norms=("ln_1", "ln_2"), order=("ln_1", "attention", "ln_2", "feed_forward"), block="Block",
    )  # fmt: skip
    model_types: ClassVar = ("gpt_bigcode",)
    fixed: ClassVar = {"add_cross_attention": False, "activation_function": ("gelu_pytorch_tanh", *GELU)}
    bounded: ClassVar = True

    def problem(self) -> str:
        return divides(self, "n_head", "n_embd")

    @property
    def norm(self) -> Norm:
        return Norm(self.n_embd, "LayerNorm")

    def embed_weights(self, w: Weights, body: str) -> None:
        super().embed_weights(w, body)
        w.embedding(f"{body}.wpe", self.n_positions, self.n_embd)
        w.buffers[f"{body}.bias"] = ((self.n_positions, self.n_positions), "bool")  # which kernels do not read

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        positions = net.unsqueeze(net.positions(tokens), 0)
        return net.dropout(net.add(super().embed(net, tokens), net.embedding("wpe", positions)), self.embd_pdrop)

    def attention(self, layer: int) -> SelfAttention:
        groups = 1 if self.multi_query else self.n_head
        return SelfAttention(
            self.n_embd, self.n_head, groups, self.n_embd // self.n_head, "GPTBigCodeAttention", ("c_attn",), "c_proj",
            interleaved=not self.multi_query, bias=True, last_bias=True, dropout=self.attn_pdrop,
            last_dropout=self.resid_pdrop,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(
            self.n_embd, self.n_inner or 4 * self.n_embd, "GPTBigCodeMLP", self.activation_function,
            ("c_fc", "c_proj"), bias=True, dropout=self.resid_pdrop,
        )  # fmt: skip
