"""Mamba-2: blocks of a state-space model alone, on a residual stream in float32 (Dao & Gu, arXiv:2405.21060)."""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Decoder, Layout
from triosim.sources.models._net import Net
from triosim.sources.models._scan import Mamba2Mixer
from triosim.sources.models._tape import Tensor


@registered
@dataclass(frozen=True)
class Mamba2(Decoder):
    """Configuration, named as in Hugging Face's ``config.json``."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    num_heads: int
    head_dim: int = 64
    state_size: int = 128
    n_groups: int = 8
    conv_kernel: int = 4
    chunk_size: int = 256
    use_bias: bool = False
    use_conv_bias: bool = True
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 2048
    """Tokens that it was trained with; it has no positions."""

    layout: ClassVar = Layout(
        "Mamba2", body="backbone", embedding="embeddings", last_norm="norm_f", attention="mixer", feed_forward="mixer",
        norms=("norm",), block="Block", order=("norm", "attention"), residual="single", wide=True,
    )  # fmt: skip
    model_types: ClassVar = ("mamba2",)
    left_out: ClassVar = {"num_heads": 128}
    fixed: ClassVar = {"hidden_act": "silu", "residual_in_fp32": True}

    def problem(self) -> str:
        return self.attention(0).problem()

    def attention(self, layer: int) -> Mamba2Mixer:
        return Mamba2Mixer(
            self.hidden_size, self.num_heads, self.head_dim, self.n_groups, self.state_size, self.conv_kernel,
            self.chunk_size, "Mamba2Mixer", "MambaRMSNormGated", self.use_bias, self.use_conv_bias,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> Any:
        return None

    def score(self, net: Net, x: Tensor) -> Tensor:
        return super().score(net, net.to(x, net.precision))
