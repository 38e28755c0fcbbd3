"""The networks that a validation runs: decoders of several sizes, written so that every mode can divide them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from triosim.validate.sizes import DecoderSize


class Block(nn.Module):
    """A decoder block.

    Queries, keys and values of a head lie together in the rows of one projection, so that cutting it by rows cuts
    between heads.
    """

    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and a two-layer perceptron, each around a residual connection."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, -1, 3 * self.head).transpose(1, 2).chunk(3, dim=-1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, -1))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class StageDecoder(nn.Module):
    """Embedding, blocks, norm and head; a pipeline stage has only some of them.

    Args:
        size: of the whole.
        first, last: blocks ``first .. last - 1`` are here; the embedding with the first, norm and head with the last.
    """

    def __init__(self, size: DecoderSize, first: int = 0, last: int | None = None) -> None:
        super().__init__()
        last = size.layers if last is None else last
        self.embed = nn.Embedding(size.vocabulary, size.width) if first == 0 else None
        self.blocks = nn.ModuleList(Block(size.width, size.width // size.heads) for _ in range(first, last))
        self.norm = nn.LayerNorm(size.width) if last == size.layers else None
        self.head = nn.Linear(size.width, size.vocabulary, bias=False) if last == size.layers else None

    def forward(self, x: Tensor) -> Tensor:
        """Logits of token ids (or what lies between, for a stage)."""
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def batch(size: DecoderSize, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and labels of one step, always the same."""
    generator = torch.Generator().manual_seed(1)
    shape = (size.batch, size.length)
    tokens, labels = (torch.randint(size.vocabulary, shape, generator=generator) for _ in range(2))
    return tokens.to(device), labels.to(device)
