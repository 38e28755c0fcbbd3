"""Multi-head latent attention: keys and values of all heads from one narrow vector (Liu et al., arXiv:2405.04434)."""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, Rotation, rotate
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@dataclass(frozen=True)
class LatentAttention:
    """As training runs it, keys and values written out.

    Attributes:
        width: of the residual stream.
        heads: how many.
        rank, query_rank: of what keys and values, and what queries are made from; 0 for queries made directly.
        size, rotated, value: of a head's query and key without positions, with positions, and of its value;
            without a rotation no part has positions.
        kind: class of the module; ``norm`` of its norms.
        scaled: queries, and what keys and values are made of, are multiplied by numbers.
    """

    width: int
    heads: int
    rank: int
    query_rank: int
    size: int
    rotated: int
    value: int
    kind: str
    norm: str
    scaled: bool = False

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        queries = self.heads * (self.size + self.rotated)
        if self.query_rank:
            w.linear(f"{at}.q_a_proj", self.width, self.query_rank, bias=False)
            Norm(self.query_rank, self.norm).weights(w, f"{at}.q_a_layernorm")
            w.linear(f"{at}.q_b_proj", self.query_rank, queries, bias=False)
        else:
            w.linear(f"{at}.q_proj", self.width, queries, bias=False)
        w.linear(f"{at}.kv_a_proj_with_mqa", self.width, self.rank + self.rotated, bias=False)
        Norm(self.rank, self.norm).weights(w, f"{at}.kv_a_layernorm")
        w.linear(f"{at}.kv_b_proj", self.rank, self.heads * (self.size + self.value), bias=False)
        w.linear(f"{at}.o_proj", self.heads * self.value, self.width, bias=False)

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """Attention of ``x`` [batch, tokens, width]."""
        shape, whole = x.shape[:2], self.size + self.rotated
        made = x
        if self.query_rank:
            made = net.rms_norm("q_a_layernorm", net.linear("q_a_proj", x), self.norm)
        q = net.linear("q_b_proj" if self.query_rank else "q_proj", made)
        q = net.transpose(net.view(q, (*shape, self.heads, whole)), 1, 2)
        q_pass, q_turn = net.split(q, [self.size, self.rotated]) if rotation is not None else (q, q)
        latent, k_turn = net.split(net.linear("kv_a_proj_with_mqa", x), [self.rank, self.rotated])
        latent = net.rms_norm("kv_a_layernorm", latent, self.norm)
        if self.scaled:
            q_pass, q_turn, latent = net.scaled(q_pass), net.scaled(q_turn), net.scaled(latent)
        k_turn = net.view(k_turn, (shape[0], 1, shape[1], self.rotated))
        if rotation is not None:
            cos, sin = (net.unsqueeze(angle, 1) for angle in rotation)
            q_turn, k_turn = rotate(net, (q_turn, k_turn), cos, sin)
            q = net.cat((q_pass, q_turn), 3)
        kv = net.linear("kv_b_proj", latent)
        kv = net.transpose(net.view(kv, (*shape, self.heads, self.size + self.value)), 1, 2)
        k_pass, v = net.split(kv, [self.size, self.value])
        k = net.cat((k_pass, net.expanded(k_turn, 1, self.heads)), 3)
        window = self.seen(net, x, made, rotation)
        y = net.transpose(net.attention(q, k, v, causal=True, window=window), 1, 2)
        return net.linear("o_proj", net.view(y, (*shape, self.heads * self.value)))

    def seen(self, net: Net, x: Tensor, latent: Tensor, rotation: Rotation | None) -> int:
        """How many tokens before it a token attends to, by what its queries are made of; 0 for all."""
        return 0
