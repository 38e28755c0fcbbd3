"""GPT-2, GPT-3 and what follows them: learned positions, layer norm before each part, GELU.

Module names are those of Hugging Face's ``GPT2LMHeadModel``.  Sources: Radford et al. 2019 (GPT-2); Brown et al.,
arXiv:2005.14165 (GPT-3; its locally banded sparse attention in every other layer is taken as full attention).  GELU by
tanh is one operator; Hugging Face's ``gelu_new`` spells the same function out in eight.  ``unfused_attention`` keeps
scores and probabilities as tensors of their own, as frameworks did before FlashAttention; without ``fused_softmax``
scaling and masking are operators of their own too.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._family import Text, divides
from triosim.sources.models._net import Net
from triosim.sources.models._parts import activate
from triosim.sources.models._tape import Tensor
from triosim.sources.models._unfused import unfused_attention
from triosim.sources.models._weights import Weights


@registered
@dataclass(frozen=True)
class GPT(Text):
    """Configuration, named as in Hugging Face's ``config.json``."""

    n_embd: int
    n_layer: int
    n_head: int
    n_positions: int = 1024
    vocab_size: int = 50257
    n_inner: int = 0
    resid_pdrop: float = 0.0
    embd_pdrop: float = 0.0
    attn_pdrop: float = 0.0
    tie_word_embeddings: bool = True
    unfused_attention: bool = False
    fused_softmax: bool = True

    model_types: ClassVar = ("gpt2",)
    fixed: ClassVar = {"add_cross_attention": False, "activation_function": ("gelu_new", "gelu_pytorch_tanh")}

    @property
    def longest(self) -> int:
        return self.n_positions

    bounded: ClassVar = True

    @property
    def inner(self) -> int:
        """Width of the feed-forward part; four times the model's unless the configuration says otherwise."""
        return self.n_inner or 4 * self.n_embd

    def problem(self) -> str:
        return divides(self, "n_head", "n_embd")

    def weights(self) -> Weights:
        w = Weights()
        width = self.n_embd

        def conv1d(name: str, inputs: int, outputs: int) -> None:
            w.add(f"{name}.weight", inputs, outputs)
            w.add(f"{name}.bias", outputs)

        w.embedding("transformer.wte", self.vocabulary, width)
        w.embedding("transformer.wpe", self.n_positions, width)
        for i in range(self.n_layer):
            at = f"transformer.h.{i}"
            w.norm(f"{at}.ln_1", width)
            conv1d(f"{at}.attn.c_attn", width, 3 * width)
            conv1d(f"{at}.attn.c_proj", width, width)
            w.norm(f"{at}.ln_2", width)
            conv1d(f"{at}.mlp.c_fc", width, self.inner)
            conv1d(f"{at}.mlp.c_proj", self.inner, width)
        w.norm("transformer.ln_f", width)
        if not self.tie_word_embeddings:
            w.linear("lm_head", width, self.vocabulary, bias=False)
        return w

    def forward(self, net: Net, tokens: Tensor) -> Tensor:
        with net.module("transformer", "GPT2Model"):
            x = net.embedding("wte", tokens)
            x = net.add(x, net.embedding("wpe", net.unsqueeze(net.positions(tokens), 0)))
            x = net.dropout(x, self.embd_pdrop)
            for i in range(self.n_layer):
                with net.module(f"h.{i}", "GPT2Block"):
                    y = net.layer_norm("ln_1", x)
                    with net.module("attn", "GPT2Attention"):
                        y = self._attention(net, y)
                    x = net.add(y, x)
                    y = net.layer_norm("ln_2", x)
                    with net.module("mlp", "GPT2MLP"):
                        y = activate(net, net.conv1d("c_fc", y), "gelu_new")
                        y = net.dropout(net.conv1d("c_proj", y), self.resid_pdrop)
                    x = net.add(x, y)
            x = net.layer_norm("ln_f", x)
        return net.linear("lm_head", x, tied="transformer.wte.weight" if self.tie_word_embeddings else "")

    def _attention(self, net: Net, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.n_head, width // self.n_head)
        q, k, v = (
            net.transpose(net.view(part, shape), 1, 2) for part in net.split(net.conv1d("c_attn", x), [width] * 3)
        )
        if self.unfused_attention and net.kernels.attention in ("auto", "unfused"):
            fused = self.fused_softmax and net.kernels.fused_softmax
            y = unfused_attention(net, q, k, v, self.attn_pdrop, fused)
        else:
            y = net.transpose(net.attention(q, k, v, causal=True, dropout=self.attn_pdrop), 1, 2)
        return net.dropout(net.conv1d("c_proj", net.view(y, (batch, length, width))), self.resid_pdrop)
