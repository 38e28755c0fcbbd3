"""Falcon-H1: blocks of Mamba-2 and attention side by side, each part between numbers (TII, arXiv:2507.22448)."""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Rotation, SelfAttention, activate
from triosim.sources.models._scan import Mamba2Mixer
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@dataclass(frozen=True)
class FalconAttention(SelfAttention):
    """Attention whose keys are multiplied by a number."""

    def _heads(self, net: Net, name: str, x: Tensor) -> Tensor:
        y = super()._heads(net, name, x)
        return net.scaled(y) if name == "k_proj" else y


@dataclass(frozen=True)
class FalconFeedForward(FeedForward):
    """A gated part whose gate and result are multiplied by numbers."""

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        """The part of ``x`` [..., width]."""
        gate, up, down = self.names
        if net.kernels.one_gate:
            y = net.swiglu(net.scaled(net.linear(gate, x)), net.linear(up, x))
        else:
            raised = net.linear(up, x)
            y = net.mul(raised, activate(net, net.scaled(net.linear(gate, x)), self.activation))
        return net.scaled(net.linear(down, y))


@dataclass(frozen=True)
class SideBySide:
    """Mamba-2 and attention of the same, each multiplied by a number, added up: two modules of the block."""

    mamba: Mamba2Mixer
    attention: FalconAttention
    kind: str = ""

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        self.mamba.weights(w, f"{at}.mamba")
        self.attention.weights(w, f"{at}.self_attn")

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """The part of ``x`` [batch, tokens, width]."""
        with net.module("mamba", self.mamba.kind):
            scanned = net.scaled(self.mamba(net, x, rotation))
        read = net.scaled(x)
        with net.module("self_attn", self.attention.kind):
            attended = self.attention(net, read, rotation)
        return net.add(scanned, net.scaled(attended))


@registered
@dataclass(frozen=True)
class FalconH1(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    mamba_d_ssm: int = 0  # for none, mamba_expand times the width
    mamba_expand: int = 2
    mamba_n_heads: int = 128
    mamba_d_head: int = 0  # for none, what the channels leave for each
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_conv: int = 4
    mamba_chunk_size: int = 256
    mamba_conv_bias: bool = True
    mamba_rms_norm: bool = False

    layout: ClassVar = Layout(
        "FalconH1", attention="", feed_forward="feed_forward", last_norm="final_layernorm",
        norms=("input_layernorm", "pre_ff_layernorm"),
        order=("feed_forward", "attention", "input_layernorm", "pre_ff_layernorm"),
    )  # fmt: skip
    model_types: ClassVar = ("falcon_h1",)
    fixed: ClassVar = {
        "attention_bias": False, "mlp_bias": False, "projectors_bias": False, "mamba_proj_bias": False,
        "hidden_act": "silu",
    }  # fmt: skip

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        if "mamba_d_ssm" not in table:
            table = {**table, "mamba_d_ssm": 1024}
        if table.get("mamba_d_head") == "auto":
            table = {key: value for key, value in table.items() if key != "mamba_d_head"}
        return table

    @property
    def inner(self) -> int:
        """Channels of Mamba-2."""
        return self.mamba_d_ssm or self.mamba_expand * self.hidden_size

    def problem(self) -> str:
        if self.inner != self.mamba_n_heads * (self.mamba_d_head or self.inner // self.mamba_n_heads):
            of = f" of {self.mamba_d_head}" if self.mamba_d_head else ""
            return f"{self.mamba_n_heads} heads{of} do not make {self.inner} channels of Mamba-2"
        return super().problem() or self.attention(0).mamba.problem()

    def attention(self, layer: int) -> SideBySide:
        mamba = Mamba2Mixer(
            self.hidden_size, self.mamba_n_heads, self.inner // self.mamba_n_heads, self.mamba_n_groups,
            self.mamba_d_state, self.mamba_d_conv, self.mamba_chunk_size, "FalconH1Mixer", "FalconH1RMSNormGated",
            conv_bias=self.mamba_conv_bias, normed=self.mamba_rms_norm, scaled=True,
        )  # fmt: skip
        attention = FalconAttention(
            self.hidden_size, self.num_attention_heads, self.key_value_heads, self.head_size, "FalconH1Attention"
        )
        return SideBySide(mamba, attention)

    def feed_forward(self, layer: int) -> FalconFeedForward:
        return FalconFeedForward(self.hidden_size, self.intermediate_size, "FalconH1MLP")

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        return net.scaled(super().embed(net, tokens))

    def score(self, net: Net, x: Tensor) -> Tensor:
        return net.scaled(super().score(net, x))
