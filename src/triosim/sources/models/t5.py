"""T5, T5 1.1, FLAN-T5 and mT5: an encoder, and a decoder that also attends to what it made.

Positions are numbers added to the scores, learned by distance and shared by the blocks of a stack, so that scores are
tensors of their own, whatever kernels of attention are asked for.  The decoder reads as many tokens as the encoder.
Diffusion models read what the encoder makes (``encoder_only``); trained by itself it is so by the squared error of its
states.  Module names are those of Hugging Face's ``T5ForConditionalGeneration``.  Sources: Raffel et al.,
arXiv:1910.10683; Chung et al., arXiv:2210.11416.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._experts import Experts
from triosim.sources.models._family import Text
from triosim.sources.models._losses import squared_error
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Dim, Shape, Tensor
from triosim.sources.models._unfused import softmax
from triosim.sources.models._weights import Weights
from triosim.trace.tables import Category

NORM = "T5LayerNorm"  # which is RMSNorm


@registered
@dataclass(frozen=True)
class T5(Text):
    """Configuration, named as in Hugging Face's ``config.json``."""

    d_model: int
    d_kv: int
    d_ff: int
    num_layers: int
    num_heads: int
    num_decoder_layers: int = 0
    vocab_size: int = 32128
    n_positions: int = 512
    relative_attention_num_buckets: int = 32
    feed_forward_proj: str = "relu"
    tie_word_embeddings: bool = True
    dropout_rate: float = 0.1
    encoder_only: bool = False

    inner: ClassVar = "DenseReluDense"  # what the feed-forward part of a block is called
    architectures: ClassVar = {"T5EncoderModel": {"encoder_only": True}, "MT5EncoderModel": {"encoder_only": True}}
    model_types: ClassVar[tuple[str, ...]] = ("t5", "mt5")

    @property
    def longest(self) -> int:
        return self.n_positions

    def problem(self) -> str:
        known = self.feed_forward_proj in ("relu", "gated-gelu")
        return "" if known else "feed_forward_proj must be relu or gated-gelu"

    def weights(self) -> Weights:
        w = Weights()
        w.embedding("shared", self.vocabulary, self.d_model)
        decoder = 0 if self.encoder_only else self.num_decoder_layers or self.num_layers
        for stack, depth in (("encoder", self.num_layers), ("decoder", decoder))[: 1 + bool(decoder)]:
            for i in range(depth):
                at, parts = f"{stack}.block.{i}.layer", ["SelfAttention"]
                for n, name in enumerate(parts := parts + ["EncDecAttention"] * (stack == "decoder")):
                    self._attention_weights(w, f"{at}.{n}.{name}", biased=i == n == 0)
                    w.norm(f"{at}.{n}.layer_norm", self.d_model, bias=False)
                self._feed_forward_weights(w, f"{at}.{len(parts)}", self.mixture(stack, i))
            w.norm(f"{stack}.final_layer_norm", self.d_model, bias=False)
        if decoder and not self.tie_word_embeddings:
            w.linear("lm_head", self.d_model, self.vocabulary, bias=False)
        return w

    def _attention_weights(self, w: Weights, at: str, biased: bool) -> None:
        inner = self.num_heads * self.d_kv
        for name in "qkv":
            w.linear(f"{at}.{name}", self.d_model, inner, bias=False)
        w.linear(f"{at}.o", inner, self.d_model, bias=False)
        if biased:
            w.embedding(f"{at}.relative_attention_bias", self.relative_attention_num_buckets, self.num_heads)

    def mixture(self, stack: str, layer: int) -> Experts | None:
        """The experts of a block's feed-forward part, if it has some."""
        return None

    def _feed_forward_weights(self, w: Weights, at: str, experts: Experts | None) -> None:
        if experts:
            experts.weights(w, f"{at}.{self.inner}")
        else:
            for name in ("wi",) if self.feed_forward_proj == "relu" else ("wi_0", "wi_1"):
                w.linear(f"{at}.{self.inner}.{name}", self.d_model, self.d_ff, bias=False)
            w.linear(f"{at}.{self.inner}.wo", self.d_ff, self.d_model, bias=False)
        w.norm(f"{at}.layer_norm", self.d_model, bias=False)

    def inputs(self, net: Net, batch: Dim, size: int | None) -> tuple[Tensor, Tensor]:
        tokens, labels = super().inputs(net, batch, size)
        states = (*tokens.shape, self.d_model)
        return tokens, net.tensor(states, net.precision, Category.LABEL) if self.encoder_only else labels

    def loss(self, net: Net, scores: Tensor, labels: Tensor) -> Tensor:
        return squared_error(net, scores, labels) if self.encoder_only else super().loss(net, scores, labels)

    def forward(self, net: Net, tokens: Tensor) -> Tensor:
        seen = self._stack(net, "encoder", tokens, self.num_layers, None)
        if self.encoder_only:
            return seen
        before = net.tensor(tokens.shape, "int64", Category.INPUT)
        x = self._stack(net, "decoder", before, self.num_decoder_layers or self.num_layers, seen)
        if self.tie_word_embeddings:
            return net.linear("lm_head", net.scaled(x), tied="shared.weight")
        return net.linear("lm_head", x)

    def _stack(self, net: Net, name: str, tokens: Tensor, depth: int, seen: Tensor | None) -> Tensor:
        """A stack of blocks; ``seen`` is what the decoder attends to."""
        with net.module(name, "T5Stack"):
            x = net.embedding("embed_tokens", tokens, tied="shared.weight")
            x = net.dropout(x, self.dropout_rate)
            biases: tuple[Tensor, ...] = ()
            of_seen = biases
            for i in range(depth):
                with net.module(f"block.{i}", "T5Block"):
                    with net.module("layer.0", "T5LayerSelfAttention"):
                        x, biases = self._attend(net, "SelfAttention", x, None, biases, causal=seen is not None)
                    if seen is not None:
                        with net.module("layer.1", "T5LayerCrossAttention"):
                            x, of_seen = self._attend(net, "EncDecAttention", x, seen, of_seen)
                    with net.module("layer.1" if seen is None else "layer.2", "T5LayerFF"):
                        x = self._feed_forward(net, x, self.mixture(name, i))
            return net.dropout(net.rms_norm("final_layer_norm", x, NORM), self.dropout_rate)

    def _attend(
        self, net: Net, name: str, x: Tensor, seen: Tensor | None, biases: tuple[Tensor, ...], causal: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Attention of ``x`` to itself or to ``seen``; what is added to the scores is made by a stack's first block."""
        y = net.rms_norm("layer_norm", x, NORM)
        with net.module(name, "T5Attention"):
            q, k, v = (self._heads(net, part, y if part == "q" or seen is None else seen) for part in "qkv")
            if not biases and seen is not None:  # nothing, but added all the same
                biases = (_made(net, "zeros", (1, self.num_heads, x.shape[1], seen.shape[1])),)
            elif not biases:
                biases = (self._bias(net, x, not causal), *((_mask(net, x),) if causal else ()))
            y = self._attention(net, q, k, v, biases)
        return net.add(x, net.dropout(y, self.dropout_rate)), biases

    def _heads(self, net: Net, name: str, x: Tensor) -> Tensor:
        return net.transpose(net.view(net.linear(name, x), (*x.shape[:2], self.num_heads, self.d_kv)), 1, 2)

    def _attention(self, net: Net, q: Tensor, k: Tensor, v: Tensor, biases: tuple[Tensor, ...]) -> Tensor:
        batch, heads, length, size = q.shape
        flat, scores_of = (batch * heads, length, size), (batch * heads, length, length)
        q, k, v = (net.view(part, flat) for part in (q, k, v))
        scores = net.view(net.bmm(q, net.transpose(k, 1, 2)), (batch, heads, length, length))
        for bias in biases:
            scores = net.add(scores, bias)
        weights = net.dropout(softmax(net, scores), self.dropout_rate)
        y = net.bmm(net.view(weights, scores_of), v)
        y = net.clone(net.transpose(net.view(y, (batch, heads, length, size)), 1, 2))
        return net.linear("o", net.view(y, (batch, length, heads * size)))

    def _bias(self, net: Net, x: Tensor, bidirectional: bool) -> Tensor:
        """What is added to the score of two tokens by their distance, [1, heads, tokens, tokens]."""
        length = x.shape[1]
        shape = (length, length)

        def step(name: str, dtype: str, *inputs: Tensor) -> Tensor:
            y = net.tensor(shape, dtype)
            net.operator(f"aten::{name}", ("self", "other", "third")[: len(inputs)], inputs, (y,))
            return y

        at = net.tensor((length,), "int64")
        net.operator("aten::arange", (), (), (at,))
        distance = step("sub", "int64", at, at)
        sign = step("mul", "int64", step("_to_copy", "int64", step("gt", "bool", distance))) if bidirectional else None
        distance = step("abs" if bidirectional else "minimum", "int64", distance)
        near, far = step("lt", "bool", distance), step("_to_copy", "float32", distance)
        for name in ("div", "log", "div", "mul"):
            far = step(name, "float32", far)
        far = step("minimum", "int64", step("add", "int64", step("_to_copy", "int64", far)))
        bucket = step("where", "int64", near, distance, far)
        if sign is not None:
            bucket = step("add", "int64", sign, bucket)
        y = net.permute(net.embedding("relative_attention_bias", bucket), (2, 0, 1))
        return net.view(y, (1, self.num_heads, length, length))

    def _feed_forward(self, net: Net, x: Tensor, experts: Experts | None) -> Tensor:
        y, gated = net.rms_norm("layer_norm", x, NORM), self.feed_forward_proj != "relu"
        kind = experts.kind if experts else "T5DenseGatedActDense" if gated else "T5DenseActDense"
        with net.module(self.inner, kind):
            if experts:
                return net.add(x, net.dropout(experts(net, y), self.dropout_rate))
            if gated:
                y = net.mul(net.gelu(net.linear("wi_0", y), "tanh"), net.linear("wi_1", y))
            else:
                y = net.relu(net.linear("wi", y))
            y = net.linear("wo", net.dropout(y, self.dropout_rate))
        return net.add(x, net.dropout(y, self.dropout_rate))


def _mask(net: Net, x: Tensor) -> Tensor:
    """What hides later tokens from earlier ones, added to the scores, [1, 1, tokens, tokens]."""
    whole = _made(net, "full", (1, 1, x.shape[1], x.shape[1]))
    upper = net.tensor(whole.shape, whole.dtype)
    net.operator("aten::triu", ("self",), (whole,), (upper,), {"diagonal": 1})
    return upper


def _made(net: Net, name: str, shape: Shape) -> Tensor:
    y = net.tensor(shape, net.precision)
    net.operator(f"aten::{name}", (), (), (y,))
    return y
