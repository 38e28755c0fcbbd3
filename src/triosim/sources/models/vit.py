"""Vision transformers (Dosovitskiy et al., arXiv:2010.11929): an image as a sequence of patches.

Module names are those of Hugging Face's ``ViTForImageClassification``, which scores the token put before the patches.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.sources.models._family import Images, divides
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward
from triosim.sources.models._tape import Dim, Tensor
from triosim.sources.models._weights import Weights


@registered
@dataclass(frozen=True)
class ViT(Images):
    """Configuration, named as in Hugging Face's ``config.json``; ``num_labels`` are the classes."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    patch_size: int = 16
    image_size: int = 224
    num_labels: int = 1000
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0

    optimizer: ClassVar = "adamw"
    model_types: ClassVar = ("vit",)
    fixed: ClassVar = {"hidden_act": "gelu", "qkv_bias": True, "num_channels": 3}

    def problem(self) -> str:
        return divides(self, "num_attention_heads", "hidden_size") or divides(self, "patch_size", "image_size")

    @property
    def _feed_forward(self) -> FeedForward:
        names = ("fc1", "fc2")
        return FeedForward(self.hidden_size, self.intermediate_size, "ViTMLP", "gelu", names, bias=True)

    def inputs(self, net: Net, batch: Dim, size: int | None) -> tuple[Tensor, Tensor]:
        if size not in (None, self.image_size):
            raise InputError(
                f"the model has positions for images of {self.image_size} pixels, not {size}: leave the size out, or "
                f"give image_size = {size} in its configuration"
            )
        return super().inputs(net, batch, self.image_size)

    def weights(self) -> Weights:
        w, width = Weights(), self.hidden_size
        w.add("vit.embeddings.cls_token", 1, 1, width)
        w.add("vit.embeddings.position_embeddings", 1, (self.image_size // self.patch_size) ** 2 + 1, width)
        w.conv2d("vit.embeddings.patch_embeddings.projection", 3, width, self.patch_size, bias=True)
        for i in range(self.num_hidden_layers):
            at = f"vit.layers.{i}"
            for name in "qkvo":
                w.linear(f"{at}.attention.{name}_proj", width, width)
            w.norm(f"{at}.layernorm_before", width)
            w.norm(f"{at}.layernorm_after", width)
            self._feed_forward.weights(w, f"{at}.mlp")
        w.norm("vit.layernorm", width)
        w.linear("classifier", width, self.num_labels)
        return w

    def forward(self, net: Net, x: Tensor) -> Tensor:
        with net.module("vit", "ViTModel"):
            with net.module("embeddings", "ViTEmbeddings"):
                x = self._embed(net, x)
            for i in range(self.num_hidden_layers):
                with net.module(f"layers.{i}", "ViTLayer"):
                    x = self._layer(net, x)
            x = net.layer_norm("layernorm", x)
        return net.linear("classifier", net.select(x, 1, 0))

    def _embed(self, net: Net, image: Tensor) -> Tensor:
        with net.module("patch_embeddings", "ViTPatchEmbeddings"):
            x = net.conv2d("projection", image, self.patch_size)
            batch, width, rows, columns = x.shape
            x = net.transpose(net.view(x, (batch, width, rows * columns)), 1, 2)
        x = net.cat((net.expanded(net.parameter("cls_token"), 0, batch), x), 1)
        return net.dropout(net.add(x, net.parameter("position_embeddings")), self.hidden_dropout_prob)

    def _layer(self, net: Net, x: Tensor) -> Tensor:
        y = net.layer_norm("layernorm_before", x)
        with net.module("attention", "ViTAttention"):
            y = self._attention(net, y)
        x = net.add(net.dropout(y, self.hidden_dropout_prob), x)
        y = net.layer_norm("layernorm_after", x)
        with net.module("mlp", "ViTMLP"):
            y = self._feed_forward(net, y)
        return net.add(net.dropout(y, self.hidden_dropout_prob), x)

    def _attention(self, net: Net, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.num_attention_heads, width // self.num_attention_heads)
        q, k, v = (net.transpose(net.view(net.linear(f"{name}_proj", x), shape), 1, 2) for name in "qkv")
        y = net.attention(q, k, v, causal=False, dropout=self.attention_probs_dropout_prob)
        return net.linear("o_proj", net.view(net.transpose(y, 1, 2), (batch, length, width)))
