"""GPT-Neo: every other block sees the last tokens alone (Black et al. 2021, EleutherAI).

Attention is written out as in Hugging Face's ``GPTNeoForCausalLM``, scores in float32 and those of tokens out of sight
too; a kernel of attention that is asked for skips them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Decoder, Layout, SizeNames
from triosim.sources.models._eager import EagerAttention, make_mask
from triosim.sources.models._family import divides
from triosim.sources.models._net import Net
from triosim.sources.models._parts import GELU, FeedForward, Norm
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@registered
@dataclass(frozen=True)
class GPTNeo(Decoder):
    """Configuration, named as in Hugging Face's ``config.json``."""

    hidden_size: int
    num_layers: int
    num_heads: int
    vocab_size: int = 50257
    max_position_embeddings: int = 2048
    intermediate_size: int = 0
    window_size: int = 256
    activation_function: str = "gelu_new"
    attention_dropout: float = 0.0
    resid_dropout: float = 0.0
    embed_dropout: float = 0.0
    tie_word_embeddings: bool = True

    sizes: ClassVar = SizeNames(depth="num_layers")
    layout: ClassVar = Layout(
        "GPTNeo", body="transformer", embedding="wte", blocks="h", last_norm="ln_f", attention="attn.attention",
        norms=("ln_1", "ln_2"), order=("ln_1", "attention", "ln_2", "feed_forward"), block="Block",
    )  # fmt: skip
    model_types: ClassVar = ("gpt_neo",)
    fixed: ClassVar = {"activation_function": ("gelu_new", *GELU)}
    bounded: ClassVar = True

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        table, found = dict(table), table.get("attention_layers")
        if isinstance(runs := table.pop("attention_types", None), list) and all(map(_is_run, runs)):
            found = [kind for kinds, times in runs for kind in kinds * times]
        if isinstance(found, list):
            table.pop("attention_layers", None)
            table["layer_types"] = [_KINDS.get(str(kind), kind) for kind in found]
        return table

    def problem(self) -> str:
        return divides(self, "num_heads", "hidden_size")

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "LayerNorm")

    def embed_weights(self, w: Weights, body: str) -> None:
        super().embed_weights(w, body)
        w.embedding(f"{body}.wpe", self.max_position_embeddings, self.hidden_size)

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        make_mask(net, tokens, net.precision)
        positions = net.unsqueeze(net.positions(tokens), 0)
        return net.dropout(net.add(super().embed(net, tokens), net.embedding("wpe", positions)), self.embed_dropout)

    def attention(self, layer: int) -> EagerAttention:
        return EagerAttention(
            self.hidden_size, self.num_heads, self.num_heads, self.hidden_size // self.num_heads,
            "GPTNeoSelfAttention", ("k_proj", "v_proj", "q_proj"), "out_proj", last_bias=True, rotated=False,
            window=self.window_size if layer % 2 else 0, dropout=self.attention_dropout,
            last_dropout=self.resid_dropout, positions=self.max_position_embeddings,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(
            self.hidden_size, self.intermediate_size or 4 * self.hidden_size, "GPTNeoMLP", self.activation_function,
            ("c_fc", "c_proj"), bias=True, dropout=self.resid_dropout,
        )  # fmt: skip


_KINDS = {"global": "full_attention", "local": "sliding_attention"}


def _is_run(run: Any) -> bool:
    """Whether it is a list of kinds of attention, and how often it comes one after the other."""
    return isinstance(run, list) and len(run) == 2 and isinstance(run[0], list) and type(run[1]) is int
