"""Gemma 4 without embeddings of each layer, as the 31B model: five blocks with a window to one that sees all.

Blocks that see all have larger heads, fewer of keys, and take what makes keys for values too (``attention_k_eq_v``).
Values are normed without a weight, and what a block makes is multiplied by a number.  The text model; E2B and E4B have
embeddings of each layer and blocks that share keys, the 26B model experts beside each feed-forward part: those are
refused.  Source: Google DeepMind, Gemma 4 model card, 2026.
"""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._family import Count
from triosim.sources.models._gemma import AROUND, GemmaLike
from triosim.sources.models._llama_like import MostlyWindowed
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, Rotary, Rotation, SelfAttention, rotated
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

NORM = "Gemma4RMSNorm"


@dataclass(frozen=True)
class KeysForValues(SelfAttention):
    """Attention whose heads are normed, values too, which may be what makes keys."""

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        widths = self._widths
        w.linear(f"{at}.q_proj", self.width, widths["q"], bias=self.bias)
        for name in self.norms:
            Norm(self.size, NORM).weights(w, f"{at}.{name}")
        for name in self.names[1:]:
            w.linear(f"{at}.{name}", self.width, widths[name[0]], bias=self.bias)
        w.linear(f"{at}.{self.last}", self._found, self.width, bias=self.last_bias)

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """Attention of ``x`` [batch, tokens, width]; queries are turned before keys are made."""
        cos, sin = (net.unsqueeze(angle, 1) for angle in rotation or ())
        q = rotated(net, self._normed(net, "q", self._made(net, "q_proj", x)), cos, sin)
        keys = self._made(net, "k_proj", x)
        values = self._made(net, "v_proj", x) if "v_proj" in self.names else keys
        k = rotated(net, self._normed(net, "k", keys), cos, sin)
        return self.found(net, x, q, k, self._normed(net, "v", values))

    def _made(self, net: Net, name: str, x: Tensor) -> Tensor:
        return net.view(net.linear(name, x), (*x.shape[:2], self._heads_of[name[0]], self.size))

    def _normed(self, net: Net, part: str, x: Tensor) -> Tensor:
        return net.transpose(net.rms_norm(f"{part}_norm", x, NORM), 1, 2)


@registered
@dataclass(frozen=True)
class Gemma4(GemmaLike, MostlyWindowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    sliding_window: int = 512
    sliding_window_pattern: int = 6
    global_head_dim: int = 512
    num_global_key_value_heads: Count = 0
    attention_k_eq_v: bool = False
    attention_bias: bool = False

    layout: ClassVar = Layout("Gemma4Text", norms=AROUND, residual="around", model="Model")
    model_types: ClassVar = ("gemma4_text",)
    left_out: ClassVar = {"hidden_size_per_layer_input": 256}
    fixed: ClassVar = {
        "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "enable_moe_block": False,
        "hidden_activation": "gelu_pytorch_tanh", "attention_dropout": (0.0, 0), "use_bidirectional_attention": None,
    }  # fmt: skip

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, NORM)

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        sizes = (self.head_size, self.global_head_dim)
        return tuple(Rotary(size, "Gemma4TextRotaryEmbedding", f"rotary_emb_{at}") for at, size in enumerate(sizes))

    def rotary(self, layer: int) -> int:
        return int(not self.window(layer))

    def attention(self, layer: int) -> KeysForValues:
        own: dict[str, Any] = vars(super().attention(layer))
        own |= {"bias": self.attention_bias, "last_bias": self.attention_bias}
        if not self.window(layer):
            keys = self.num_global_key_value_heads if self.attention_k_eq_v else 0
            own |= {"size": self.global_head_dim, "groups": keys or self.key_value_heads}
            own |= {"names": ("q_proj", "k_proj")} if self.attention_k_eq_v else {}
        return KeysForValues(**own)

    def _block(self, net: Net, x: Tensor, i: int, rotation: Rotation | None) -> Tensor:
        return net.scaled(super()._block(net, x, i, rotation))
