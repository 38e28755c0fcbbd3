"""What Mamba and Mamba-2 share: blocks of one part alone, on a residual stream in float32; and hybrids of Mamba-2."""

from __future__ import annotations

from typing import Any

from triosim.core.dataclass import dataclass
from triosim.sources.models._decoder import Decoder, Layout
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._net import Net
from triosim.sources.models._scan import Mamba2Mixer
from triosim.sources.models._tape import Tensor


def mamba_layout(kind: str) -> Layout:
    """Of a family whose classes' names begin so."""
    return Layout(
        kind, body="backbone", embedding="embeddings", last_norm="norm_f", attention="mixer", feed_forward="mixer",
        norms=("norm",), block="Block", order=("norm", "attention"), residual="single", wide=True,
    )  # fmt: skip


@dataclass(frozen=True)
class MambaLike(Decoder):
    """A decoder of such blocks."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    conv_kernel: int = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    max_position_embeddings: int = 2048
    """Tokens that it was trained with; it has no positions."""

    def feed_forward(self, layer: int) -> Any:
        return None

    def score(self, net: Net, x: Tensor) -> Tensor:
        return super().score(net, net.to(x, net.precision))


@dataclass(frozen=True)
class Mamba2Blocks(LlamaLike):
    """A Llama of whose blocks many have Mamba-2 in place of attention, under the keys of Bamba and Granite 4."""

    mamba_n_heads: int = 128
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_conv: int = 4
    mamba_chunk_size: int = 256
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False

    def mixer(self, head: int, kind: str) -> Mamba2Mixer:
        """Mamba-2 with heads of that size, of a class whose name ends so."""
        own = self.layout.kind
        return Mamba2Mixer(
            self.hidden_size, self.mamba_n_heads, head, self.mamba_n_groups, self.mamba_d_state, self.mamba_d_conv,
            self.mamba_chunk_size, f"{own}{kind}", f"{own}RMSNormGated", self.mamba_proj_bias, self.mamba_conv_bias,
        )  # fmt: skip
