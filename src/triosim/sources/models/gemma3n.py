"""Gemma 3n: embeddings of each layer, several residual streams, and a narrow product beside attention (E2B, E4B).

Four blocks with a window to one that sees all; the first feed-forward parts keep the greatest of their gates (a
threshold by mean and deviation, which leaves dense products).  The product of low rank beside attention is LAuReL's
(Menghani et al., arXiv:2411.07501).  Source: Google DeepMind, Gemma 3n model card, 2025.  The text model.
"""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._altup import AltUp, deviating, gathered, spread
from triosim.sources.models._broadcast import plus
from triosim.sources.models._decoder import Layout
from triosim.sources.models._family import Blocks
from triosim.sources.models._gemma import AROUND
from triosim.sources.models._llama_like import listed_for_each
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Rotary, Rotation, activate
from triosim.sources.models._per_layer import PerLayerInputs
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@registered
@dataclass(frozen=True)
class Gemma3n(PerLayerInputs):
    """Configuration, named as in Hugging Face's ``config.json``; ``activation_sparsity_pattern`` says of each block
    whether it has the threshold."""

    sliding_window: int = 512
    sliding_window_pattern: int = 5
    altup_num_inputs: int = 4
    altup_active_idx: int = 0
    altup_correct_scale: bool = True
    clipped: bool = True
    laurel_rank: int = 64
    activation_sparsity_pattern: Blocks = ()

    layout: ClassVar = Layout("Gemma3nText", norms=AROUND, residual="around", model="Model")
    norm_kind: ClassVar = "Gemma3nRMSNorm"
    model_types: ClassVar = ("gemma3n_text",)
    left_out: ClassVar = {
        "vocab_size": 262400, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 35,
        "num_attention_heads": 8, "num_key_value_heads": 2, "num_kv_shared_layers": 15,
        "max_position_embeddings": 32768,
    }  # fmt: skip
    fixed: ClassVar = {"hidden_activation": "gelu_pytorch_tanh", "attention_dropout": (0.0, 0)}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Which blocks have a threshold, not how much it leaves out; one width of all feed-forward parts."""
        inner, sparse = table.get("intermediate_size"), table.get("activation_sparsity_pattern")
        own: dict[str, Any] = {
            "capped": table.get("final_logit_softcapping", 30.0) is not None,
            "clipped": table.get("altup_coef_clip", 120.0) is not None,
        }
        if isinstance(inner, list) and len(set(map(str, inner))) == 1:
            own["intermediate_size"] = inner[0]
        if isinstance(sparse, list):
            own["activation_sparsity_pattern"] = [int(isinstance(share, int | float) and share > 0) for share in sparse]
        return {**table, **own}

    def problem(self) -> str:
        if self.altup_active_idx >= self.altup_num_inputs:
            return f"altup_active_idx {self.altup_active_idx} is not one of {self.altup_num_inputs} streams"
        return listed_for_each(self, "activation_sparsity_pattern") or super().problem()

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return tuple(Rotary(self.head_size, "Gemma3nRotaryEmbedding", f"rotary_emb_{at}") for at in range(2))

    def rotary(self, layer: int) -> int:
        return int(not self.window(layer))

    def feed_forward(self, layer: int) -> FeedForward:
        listed = self.activation_sparsity_pattern
        sparse = listed[layer] if listed else layer < 10 < self.num_hidden_layers
        made: type[FeedForward] = Thresholded if sparse else FeedForward
        return made(self.hidden_size, self.intermediate_size, "Gemma3nTextMLP", "gelu_pytorch_tanh")

    @property
    def _altup(self) -> AltUp:
        return AltUp(
            self.hidden_size, self.altup_num_inputs, self.altup_active_idx, self.norm_kind, self.clipped,
            self.altup_correct_scale,
        )  # fmt: skip

    def weights(self) -> Weights:
        w = super().weights()
        for name in ("altup_projections", "altup_unembed_projections"):
            for n in range(self.altup_num_inputs - 1):
                w.linear(f"model.{name}.{n}", self.width, self.width, bias=False)
        return w

    def block_weights(self, w: Weights, i: int) -> None:
        super().block_weights(w, i)
        at = self.path(i)
        self._altup.weights(w, f"{at}.altup")
        w.linear(f"{at}.laurel.linear_left", self.width, self.laurel_rank, bias=False)
        w.linear(f"{at}.laurel.linear_right", self.laurel_rank, self.width, bias=False)
        self.norm.weights(w, f"{at}.laurel.post_laurel_norm")
        self.mixing_weights(w, at)

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        return spread(net, super().embed(net, tokens), self.altup_num_inputs)

    def streamed(self, net: Net, x: Tensor) -> Tensor:
        return gathered(net, x)

    def _block(self, net: Net, x: Tensor, i: int, rotation: Rotation | None) -> Tensor:
        norms, altup = self.layout.norms, self._altup
        with net.module("altup", "Gemma3nTextAltUp"):
            x = altup.predicted(net, x)
        active = net.select(x, 0, self.altup_active_idx)
        normed = self.norm(net, norms[0], active)
        with net.module("laurel", "Gemma3nTextLaurelBlock"):
            beside = net.linear("linear_right", net.linear("linear_left", normed))
            beside = net.add(normed, self.norm(net, "post_laurel_norm", beside))
        y = self.norm(net, norms[1], self.attended(net, normed, i, rotation))
        y = net.scaled(net.add(net.add(active, y), beside), "aten::div")
        y = net.add(y, self.norm(net, norms[3], self.fed(net, self.norm(net, norms[2], y), i)))
        with net.module("altup", "Gemma3nTextAltUp"):
            x = altup.corrected(net, x, y)
            y = altup.output(net, x)
        return plus(net, x, self.mixed(net, y, i))


class Thresholded(FeedForward):
    """Whose gates below a threshold are left out."""

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        gate = activate(net, deviating(net, net.linear(self.names[0], x)), self.activation)
        return net.linear(self.names[2], net.mul(gate, net.linear(self.names[1], x)))
