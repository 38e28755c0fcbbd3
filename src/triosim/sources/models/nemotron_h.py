"""Nemotron-H and Nemotron 3: blocks of Mamba-2, attention without positions, squared ReLU, or experts of it.

Sources: NVIDIA, arXiv:2504.03624 (Nemotron-H) and arXiv:2512.20848 (Nemotron 3 Nano).
"""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.errors import quoted
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._parts import FeedForward, Norm, Rotary, SelfAttention
from triosim.sources.models._scan import Mamba2Mixer, state_type_problem

BLOCKS = {
    "M": ("mamba", "linear_attention"), "*": ("attention", "full_attention"), "-": ("mlp",), "E": ("moe",),
}  # fmt: skip
"""Letters of a pattern, and what lists of blocks call them."""


@registered
@dataclass(frozen=True)
class NemotronH(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``.

    ``hybrid_override_pattern`` has a letter for each block: ``M`` for Mamba-2, ``*`` for attention, ``-`` for a
    feed-forward part, ``E`` for experts.
    """

    hybrid_override_pattern: str = ""
    mlp_bias: bool = False
    mamba_num_heads: int = 128
    mamba_head_dim: int = 64
    ssm_state_size: int = 128
    n_groups: int = 8
    conv_kernel: int = 4
    chunk_size: int = 128
    use_bias: bool = False
    use_conv_bias: bool = True
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 7688
    moe_shared_expert_intermediate_size: int = 7688
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    mamba_ssm_cache_dtype: str = ""
    """Type in which servers keep the states, where it is said."""

    layout: ClassVar = Layout(
        "NemotronH", embedding="embeddings", last_norm="norm_f", attention="mixer", feed_forward="mixer",
        norms=("norm",), block="Block", order=("norm", "attention", "feed_forward"), residual="single",
    )  # fmt: skip
    model_types: ClassVar = ("nemotron_h",)
    other_names: ClassVar = {
        "mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel", "mamba_conv_bias": "use_conv_bias",
        "mamba_chunk_size": "chunk_size", "num_local_experts": "n_routed_experts", "attention_head_dim": "head_dim",
    }  # fmt: skip
    left_out: ClassVar = {"head_dim": 128}
    fixed: ClassVar = {
        "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "moe_latent_size": None, "num_nextn_predict_layers": 0,
        "residual_in_fp32": False, "mamba_proj_bias": False, "n_shared_experts": 1, "sliding_window": None,
        "attention_bias": False,
    }  # fmt: skip

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Blocks that newer files list by name as a pattern; the length of either is the number of blocks."""
        listed = table.get("layers_block_type", table.get("layer_types"))
        names = {name: letter for letter, known in BLOCKS.items() for name in known}
        if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
            table = {"hybrid_override_pattern": "".join(names.get(name, "?") for name in listed), **table}
        if isinstance(pattern := table.get("hybrid_override_pattern"), str):
            table = {"num_hidden_layers": len(pattern), **table}
        return {key: value for key, value in table.items() if key not in ("layers_block_type", "layer_types")}

    def problem(self) -> str:
        pattern = self.hybrid_override_pattern
        wrong = [letter for letter in pattern if letter not in BLOCKS]
        if wrong:
            return f"hybrid_override_pattern has a block {quoted(wrong[0])}, which is none of {' '.join(BLOCKS)}"
        if len(pattern) != self.num_hidden_layers:
            return f"hybrid_override_pattern has {len(pattern)} blocks, not num_hidden_layers {self.num_hidden_layers}"
        return (
            super().problem() or self._mixer.problem() or self._router.problem()
            or state_type_problem("mamba_ssm_cache_dtype", self.mamba_ssm_cache_dtype)
        )  # fmt: skip

    @property
    def state_type(self) -> str:
        """Of the states of a server; ``""``: as it does."""
        return self.mamba_ssm_cache_dtype

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "NemotronHRMSNorm")

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return ()

    @property
    def _mixer(self) -> Mamba2Mixer:
        return Mamba2Mixer(
            self.hidden_size, self.mamba_num_heads, self.mamba_head_dim, self.n_groups, self.ssm_state_size,
            self.conv_kernel, self.chunk_size, "NemotronHMamba2Mixer", "NemotronHRMSNormGated", self.use_bias,
            self.use_conv_bias,
        )  # fmt: skip

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.n_routed_experts, self.num_experts_per_tok, "NemotronHTopkRouter", score="sigmoid",
            normalised=self.norm_topk_prob, full_precision=True, groups=self.n_group, best_groups=self.topk_group,
            correction=True, scaled=True,
        )  # fmt: skip

    def attention(self, layer: int) -> Any:
        letter = self.hybrid_override_pattern[layer]
        if letter == "M":
            return self._mixer
        if letter != "*":
            return None
        return SelfAttention(
            self.hidden_size, self.num_attention_heads, self.key_value_heads, self.head_size, "NemotronHAttention",
            rotated=False,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> Any:
        letter = self.hybrid_override_pattern[layer]
        if letter == "-":
            return self._squared(self.intermediate_size)
        if letter != "E":
            return None
        return Experts(
            self._router, self.moe_intermediate_size, "NemotronHMoE", "NemotronHExperts", activation="relu2",
            shared=self._squared(self.moe_shared_expert_intermediate_size), shared_name="shared_experts",
            router_first=False, gated=False, names=("up_proj", "down_proj"),
        )  # fmt: skip

    def _squared(self, inner: int) -> FeedForward:
        names = ("up_proj", "down_proj")
        return FeedForward(self.hidden_size, inner, "NemotronHMLP", "relu2", names, bias=self.mlp_bias)
