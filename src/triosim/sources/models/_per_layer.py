"""What the small models of Gemma 3n and Gemma 4 share: embeddings of each layer, and keys that later blocks read.

Every token has a row of ``hidden_size_per_layer_input`` numbers for each block beside its embedding; a product of the
embedding is added, and each block mixes its own part in.  The last ``num_kv_shared_layers`` blocks make no keys and
values: they read those of the last block before them that sees as many tokens.
"""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.sources.models._family import Count
from triosim.sources.models._gemma import GemmaLike, capped
from triosim.sources.models._llama_like import MostlyWindowed
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, Rotation, SelfAttention, rotated
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

KEPT, TAKEN = "kept", "taken"
PER_LAYER = "per_layer_inputs"


@dataclass(frozen=True)
class SharedAttention(SelfAttention):
    """Attention whose heads are normed, values too, which may be what makes keys (no ``v_proj`` among ``names``).

    Attributes:
        norm_kind: class of the norms.
        norms_first: those of queries and keys are registered before the products of keys and values.
        shared: keys and values are ``kept`` for later blocks, or ``taken`` from an earlier one.
    """

    norm_kind: str = ""
    norms_first: bool = False
    shared: str = ""

    @property
    def _home(self) -> str:
        """Under which name keys and values of blocks that see as many tokens are kept."""
        return f"keys of {self.window}"

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        widths, norm = self._widths, Norm(self.size, self.norm_kind)
        w.linear(f"{at}.q_proj", self.width, widths["q"], bias=self.bias)
        norm.weights(w, f"{at}.q_norm")
        if self.shared != TAKEN:
            if self.norms_first:
                norm.weights(w, f"{at}.k_norm")
            for name in self.names[1:]:
                w.linear(f"{at}.{name}", self.width, widths[name[0]], bias=self.bias)
            if not self.norms_first:
                norm.weights(w, f"{at}.k_norm")
        w.linear(f"{at}.{self.last}", self._found, self.width, bias=self.last_bias)

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """Attention of ``x`` [batch, tokens, width]; queries are turned before keys are made."""
        cos, sin = (net.unsqueeze(angle, 1) for angle in rotation or ())
        q = rotated(net, self._normed(net, "q", self._made(net, "q_proj", x)), cos, sin)
        if self.shared == TAKEN:
            return self.found(net, x, q, *net.kept[self._home])
        keys = self._made(net, "k_proj", x)
        values = self._made(net, "v_proj", x) if "v_proj" in self.names else keys
        k, v = rotated(net, self._normed(net, "k", keys), cos, sin), self._normed(net, "v", values)
        if self.shared == KEPT:
            net.kept[self._home] = (k, v)
        return self.found(net, x, q, k, v)

    def _made(self, net: Net, name: str, x: Tensor) -> Tensor:
        return net.view(net.linear(name, x), (*x.shape[:2], self._heads_of[name[0]], self.size))

    def _normed(self, net: Net, part: str, x: Tensor) -> Tensor:
        return net.transpose(net.rms_norm(f"{part}_norm", x, self.norm_kind), 1, 2)


@dataclass(frozen=True)
class PerLayerInputs(GemmaLike, MostlyWindowed):
    """Configuration of both; without a ``hidden_size_per_layer_input`` there are no embeddings of each layer.

    ``capped`` says that scores are kept within limits, which files say by a ``final_logit_softcapping``.
    """

    hidden_size_per_layer_input: Count = 256
    vocab_size_per_layer_input: int = 262144
    num_kv_shared_layers: Count = 0
    attention_bias: bool = False
    capped: bool = False

    norm_kind: ClassVar[str]

    def problem(self) -> str:
        first = max(self.num_hidden_layers - self.num_kv_shared_layers, 0)
        before = {self.window(layer) for layer in range(first)}
        lacking = [layer for layer in range(first, self.num_hidden_layers) if self.window(layer) not in before]
        if lacking:
            return f"num_kv_shared_layers {self.num_kv_shared_layers} leaves no block that makes keys for {lacking[0]}"
        return super().problem()

    def own_form(self) -> str:
        shared = "has layers that read the keys of others" if self.num_kv_shared_layers else ""
        return "has embeddings of each layer" if self.hidden_size_per_layer_input else shared

    def kinds(self) -> list[int]:
        own = self.hidden_size_per_layer_input or self.num_kv_shared_layers  # of which each block has another part
        return list(range(self.depth)) if own else super().kinds()

    def sharing(self, layer: int) -> str:
        """Whether keys and values of a block are ``kept`` for later ones, ``taken`` from an earlier one, or neither."""
        first = self.num_hidden_layers - self.num_kv_shared_layers
        if layer >= first or first == self.num_hidden_layers:
            return TAKEN if layer >= first else ""
        return "" if self.window(layer) in {self.window(later) for later in range(layer + 1, first)} else KEPT

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, self.norm_kind)

    def attention(self, layer: int) -> SharedAttention:
        own: dict[str, Any] = {**vars(super().attention(layer)), "bias": self.attention_bias}
        return SharedAttention(
            **{**own, "last_bias": self.attention_bias, "norm_kind": self.norm_kind, "shared": self.sharing(layer)}
        )

    def weights(self) -> Weights:
        w, body, each = super().weights(), self.layout.body, self.hidden_size_per_layer_input
        if each:
            w.embedding(f"{body}.embed_tokens_per_layer", self.vocab_size_per_layer_input, self.depth * each)
            w.linear(f"{body}.per_layer_model_projection", self.width, self.depth * each, bias=False)
            Norm(each, self.norm_kind).weights(w, f"{body}.per_layer_projection_norm")
        return w

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        x, each = super().embed(net, tokens), self.hidden_size_per_layer_input
        if each:
            shape = (*tokens.shape, self.depth, each)
            rows = net.view(net.scaled(net.embedding("embed_tokens_per_layer", tokens)), shape)
            made = net.view(net.scaled(net.linear("per_layer_model_projection", x)), shape)
            made = net.rms_norm("per_layer_projection_norm", made, self.norm_kind)
            net.kept[PER_LAYER] = (net.scaled(net.add(made, rows)),)
        return x

    def mixing_weights(self, w: Weights, at: str) -> None:
        """Declare what mixes a block's own part in."""
        w.linear(f"{at}.per_layer_input_gate", self.width, self.hidden_size_per_layer_input, bias=False)
        w.linear(f"{at}.per_layer_projection", self.hidden_size_per_layer_input, self.width, bias=False)
        self.norm.weights(w, f"{at}.post_per_layer_input_norm")

    def mixed(self, net: Net, x: Tensor, i: int) -> Tensor:
        """What the part of block ``i`` of the embeddings of each layer adds, chosen by ``x``."""
        gate = net.gelu(net.linear("per_layer_input_gate", x), "tanh")
        y = net.linear("per_layer_projection", net.mul(gate, net.select(net.kept[PER_LAYER][0], 2, i)))
        return self.norm(net, "post_per_layer_input_norm", y)

    def score(self, net: Net, x: Tensor) -> Tensor:
        y = super().score(net, x)
        return capped(net, y) if self.capped else y
