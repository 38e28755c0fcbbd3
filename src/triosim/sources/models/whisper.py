"""Whisper: an encoder of speech, and a decoder of text that attends to what it made (Radford et al., arXiv:2212.04356).

The encoder reads the spectrogram of 30 seconds, whatever was said in them; its positions are not trained.  The decoder
reads as many tokens as a step is asked for.  Module names are those of Hugging Face's
``WhisperForConditionalGeneration``.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._family import Text, divides
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import Category

HOP = 2
"""Frames of the spectrogram for one position of the encoder, whose second convolution has that stride."""


@registered
@dataclass(frozen=True)
class Whisper(Text):
    """Configuration, named as in Hugging Face's ``config.json``."""

    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_layers: int
    decoder_attention_heads: int
    decoder_ffn_dim: int
    vocab_size: int = 51865
    num_mel_bins: int = 80
    max_source_positions: int = 1500
    max_target_positions: int = 448
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0

    model_types: ClassVar = ("whisper",)
    fixed: ClassVar = {
        "activation_function": "gelu", "scale_embedding": False, "apply_spec_augment": False,
        "encoder_layerdrop": (0.0, 0), "decoder_layerdrop": (0.0, 0), "tie_word_embeddings": True,
    }  # fmt: skip
    reads: ClassVar = "speech"
    bounded: ClassVar = True
    writes: ClassVar = False

    @property
    def longest(self) -> int:
        return self.max_target_positions

    def problem(self) -> str:
        return divides(self, "encoder_attention_heads", "d_model") or divides(
            self, "decoder_attention_heads", "d_model"
        )

    def weights(self) -> Weights:
        w, width = Weights(), self.d_model
        for name, channels in (("conv1", self.num_mel_bins), ("conv2", width)):
            w.add(f"model.encoder.{name}.weight", width, channels, 3)
            w.add(f"model.encoder.{name}.bias", width)
        w.embedding("model.encoder.embed_positions", self.max_source_positions, width)
        w.frozen.add("model.encoder.embed_positions.weight")
        self._stack_weights(w, "model.encoder", self.encoder_layers, self.encoder_ffn_dim, ("self_attn",))
        w.embedding("model.decoder.embed_tokens", self.vocabulary, width)
        w.embedding("model.decoder.embed_positions", self.max_target_positions, width)
        both = ("self_attn", "encoder_attn")
        self._stack_weights(w, "model.decoder", self.decoder_layers, self.decoder_ffn_dim, both)
        return w

    def _stack_weights(self, w: Weights, at: str, depth: int, inner: int, attentions: tuple[str, ...]) -> None:
        width = self.d_model
        for i in range(depth):
            layer = f"{at}.layers.{i}"
            for name in attentions:
                for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
                    w.linear(f"{layer}.{name}.{part}", width, width, bias=part != "k_proj")
                w.norm(f"{layer}.{name}_layer_norm", width)
            w.linear(f"{layer}.fc1", width, inner)
            w.linear(f"{layer}.fc2", inner, width)
            w.norm(f"{layer}.final_layer_norm", width)
        w.norm(f"{at}.layer_norm", width)

    def forward(self, net: Net, tokens: Tensor) -> Tensor:
        with net.module("model", "WhisperModel"):
            with net.module("encoder", "WhisperEncoder"):
                seen = self._encode(net, tokens.shape[0])
            with net.module("decoder", "WhisperDecoder"):
                x = self._decode(net, tokens, seen)
        return net.linear("proj_out", x, tied="model.decoder.embed_tokens.weight")

    def _encode(self, net: Net, batch: int) -> Tensor:
        frames = HOP * self.max_source_positions
        x = net.tensor((batch, self.num_mel_bins, frames), net.precision, Category.INPUT)
        x = net.gelu(net.conv2d("conv1", x, 1, 1))
        x = net.permute(net.gelu(net.conv2d("conv2", x, HOP, 1)), (0, 2, 1))
        places = net.tensor((self.max_source_positions,), "int64")
        net.operator("aten::arange", (), (), (places,))
        x = net.dropout(net.add(x, net.embedding("embed_positions", places)), self.dropout)
        for i in range(self.encoder_layers):
            with net.module(f"layers.{i}", "WhisperEncoderLayer"):
                x = self._attend(net, "self_attn", x, None, self.encoder_attention_heads)
                x = self._feed_forward(net, x)
                x = net.clamp(x) if x.dtype == "float16" else x
        return net.layer_norm("layer_norm", x)

    def _decode(self, net: Net, tokens: Tensor, seen: Tensor) -> Tensor:
        x = net.embedding("embed_tokens", tokens)
        places = net.unsqueeze(net.shifted(net.positions(tokens)), 0)
        each = net.tensor(tokens.shape, "int64")
        net.operator("aten::repeat", ("self",), (places,), (each,))
        with net.module("embed_positions", "WhisperPositionalEmbedding"):
            places = net.indexed(net.parameter("weight"), each)
        x = net.dropout(net.add(x, places), self.dropout)
        for i in range(self.decoder_layers):
            with net.module(f"layers.{i}", "WhisperDecoderLayer"):
                x = self._attend(net, "self_attn", x, None, self.decoder_attention_heads, causal=True)
                x = self._attend(net, "encoder_attn", x, seen, self.decoder_attention_heads)
                x = self._feed_forward(net, x)
        return net.layer_norm("layer_norm", x)

    def _attend(self, net: Net, name: str, x: Tensor, seen: Tensor | None, heads: int, causal: bool = False) -> Tensor:
        """``x`` and attention of it to itself or to ``seen``."""
        y = net.layer_norm(f"{name}_layer_norm", x)
        with net.module(name, "WhisperAttention"):
            size = self.d_model // heads

            def split(y: Tensor) -> Tensor:
                y = net.view(y, (*y.shape[:2], heads, size), strided_gradient=True)
                return net.clone(net.transpose(y, 1, 2))

            read = y if seen is None else seen
            q = split(net.scaled(net.linear("q_proj", y)))
            k, v = (split(net.linear(part, read)) for part in ("k_proj", "v_proj"))
            y = net.attention(q, k, v, causal=causal, dropout=self.attention_dropout)
            y = net.clone(net.transpose(y, 1, 2))  # which comes by head, as queries do
            y = net.linear("out_proj", net.view(y, x.shape))
        return net.add(x, net.dropout(y, self.dropout))

    def _feed_forward(self, net: Net, x: Tensor) -> Tensor:
        y = net.gelu(net.linear("fc1", net.layer_norm("final_layer_norm", x)))
        y = net.linear("fc2", net.dropout(y, self.activation_dropout))
        return net.add(x, net.dropout(y, self.dropout))
