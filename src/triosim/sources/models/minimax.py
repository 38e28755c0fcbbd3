"""MiniMax-01 and M1: seven blocks of lightning attention to one of softmax attention, experts (arXiv:2501.08313).

Lightning attention is linear attention whose heads decay by constants (Qin et al., arXiv:2405.17381), stated as
``fla.ops.lightning_attn`` runs it; what ``transformers`` has in its place is a loop of small products.
"""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import FULL, LINEAR
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Rotation
from triosim.sources.models._scan import DELTA_CHUNK
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights
from triosim.sources.models.mixtral import Mixtral


@dataclass(frozen=True)
class LightningAttention:
    """Linear attention of queries, keys and values that an activation has passed, normed and gated afterwards."""

    width: int
    heads: int
    size: int
    kind: str = "MiniMaxLightningAttention"

    linear: ClassVar[bool] = True

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        inner = self.heads * self.size
        w.norm(f"{at}.norm", inner, bias=False)
        w.linear(f"{at}.qkv_proj", self.width, 3 * inner, bias=False)
        w.linear(f"{at}.out_proj", inner, self.width, bias=False)
        w.linear(f"{at}.output_gate", self.width, inner, bias=False)

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """The part of ``x`` [batch, tokens, width]."""
        made = net.view(net.silu(net.linear("qkv_proj", x)), (*x.shape[:2], self.heads, 3 * self.size))
        y = _lightning(net, *net.split(made, [self.size] * 3))
        y = net.rms_norm("norm", net.view(y, (*x.shape[:2], self.heads * self.size)), "MiniMaxRMSNorm")
        return net.linear("out_proj", net.mul(net.sigmoid(net.linear("output_gate", x)), y))


@registered
@dataclass(frozen=True)
class MiniMax(Mixtral):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout(
        "MiniMax", residual="normed",
        order=("attention", "input_layernorm", "post_attention_layernorm", "feed_forward"),
    )  # fmt: skip
    model_types: ClassVar = ("minimax", "minimax_text_01", "minimax_m1")
    other_names: ClassVar = {"num_experts": "num_local_experts"}
    fixed: ClassVar = {
        "hidden_act": "silu", "attention_dropout": (0.0, 0), "router_jitter_noise": (0.0, 0), "postnorm": True,
        "shared_intermediate_size": 0,
    }  # fmt: skip

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """The first files number the kinds of attention."""
        listed = table.get("attn_type_list")
        if isinstance(listed, list):
            table = {**table, "layer_types": [FULL if kind else LINEAR for kind in listed]}
        return {key: value for key, value in table.items() if key != "attn_type_list"}

    def problem(self) -> str:
        found = next((kind for kind in self.layer_types if kind not in (FULL, LINEAR)), "")
        return f"layer_types has {found}, which none of its blocks is" if found else super().problem()

    def attention(self, layer: int) -> Any:
        if self.of_kind(layer, FULL, layer % 2 == 0):
            return super().attention(layer)
        return LightningAttention(self.hidden_size, self.num_attention_heads, self.head_size)


def _lightning(net: Net, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Linear attention of [batch, tokens, heads, size]; the decays of heads are constants."""
    read, roles, name = (q, k, v), ("query", "key", "value"), "fla::chunk_lightning_attn"
    args = {"chunk_size": DELTA_CHUNK}
    y = net.tensor(v.shape, v.dtype, needs_grad=True)
    row = net.operator(name, roles, read, (y,), args)

    def rule(g: Tensor) -> None:
        gradients = [net.tensor(t.shape, t.dtype) for t in read]
        net.operator(f"{name}_backward", ("grad_output", *roles), (g, *read), gradients, args)
        for t, gradient in zip(read, gradients, strict=True):
            net.give(t, gradient)

    net.derivative(row, (y,), rule)
    return y
