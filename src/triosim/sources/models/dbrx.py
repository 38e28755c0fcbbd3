"""DBRX: many small experts, queries, keys and values kept within limits (Mosaic Research 2024).

A file has the weights of all experts below one another in one matrix; here they are [experts, inner, width], as their
grouped products read them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Decoder, Layout, SizeNames
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._family import divides, flattened
from triosim.sources.models._parts import Norm, Rotary, SelfAttention

_PARTS = ("norm_attn_norm.norm_1", "norm_attn_norm.norm_2")


@registered
@dataclass(frozen=True)
class DBRX(Decoder):
    """Configuration, named as in Hugging Face's ``config.json``; ``clamped`` says that it has a ``clip_qkv``."""

    d_model: int
    n_layers: int
    n_heads: int
    vocab_size: int = 32000
    max_seq_len: int = 2048
    kv_n_heads: int = 1
    attn_pdrop: float = 0.0
    clamped: bool = False
    ffn_hidden_size: int = 3584
    moe_num_experts: int = 4
    moe_top_k: int = 1
    tie_word_embeddings: bool = False

    sizes: ClassVar = SizeNames(width="d_model", depth="n_layers", longest="max_seq_len")
    layout: ClassVar = Layout(
        "Dbrx", body="transformer", embedding="wte", blocks="blocks", last_norm="norm_f",
        attention="norm_attn_norm.attn", feed_forward="ffn", norms=_PARTS,
        order=(_PARTS[0], "attention", _PARTS[1], "feed_forward"), block="Block",
    )  # fmt: skip
    model_types: ClassVar = ("dbrx",)
    fixed: ClassVar = {
        "resid_pdrop": (0, 0.0), "emb_pdrop": (0, 0.0), "ffn_act_fn": ({"name": "silu"}, None),
        "moe_normalize_expert_weights": (1, 1.0),
    }  # fmt: skip

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        flat = {**flattened(table, "attn_config", "ffn_config"), "model_type": "dbrx"}
        clamped = flat.pop("clip_qkv", None) is not None
        return {**flat, "clamped": clamped}

    def problem(self) -> str:
        return divides(self, "n_heads", "d_model") or divides(self, "kv_n_heads", "n_heads") or self._router.problem()

    @property
    def norm(self) -> Norm:
        return Norm(self.d_model, "LayerNorm", bias=False)

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.d_model // self.n_heads, "DbrxRotaryEmbedding"),)

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.d_model, self.moe_num_experts, self.moe_top_k, "Linear", name="router.layer", narrow=True
        )

    def attention(self, layer: int) -> SelfAttention:
        return SelfAttention(
            self.d_model, self.n_heads, self.kv_n_heads, self.d_model // self.n_heads, "DbrxAttention", ("Wqkv",),
            "out_proj", dropout=self.attn_pdrop, clamped=self.clamped,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> Experts:
        names = ("mlp.w1", "mlp.v1", "mlp.w2")
        return Experts(self._router, self.ffn_hidden_size, "DbrxFFN", "DbrxExperts", names=names)
