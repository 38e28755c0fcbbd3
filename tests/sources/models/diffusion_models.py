"""Diffusion models written out in PyTorch after their reference implementations, as oracles."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.sources.models.torch_models import named


def waves(at: Tensor, size: int) -> Tensor:
    """Cosines and sines of times."""
    half = size // 2
    frequencies = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)
    angles = at[:, None].float() * frequencies[None]
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DiT(nn.Module):
    """Names and calls of facebookresearch/DiT; half of what it makes is how sure it is."""

    def __init__(self, width: int, depth: int, heads: int, patch: int, side: int, classes: int) -> None:
        super().__init__()
        self.heads, self.patch, self.side, self.classes = heads, patch, side, classes

        def modulation(parts: int) -> nn.Sequential:
            return nn.Sequential(nn.SiLU(), nn.Linear(width, parts * width))

        def block() -> nn.ModuleDict:
            return named(
                attn=named(qkv=nn.Linear(width, 3 * width), proj=nn.Linear(width, width)),
                mlp=named(fc1=nn.Linear(width, 4 * width), fc2=nn.Linear(4 * width, width)),
                adaLN_modulation=modulation(6),
            )  # fmt: skip

        self.x_embedder = named(proj=nn.Conv2d(4, width, patch, patch))
        self.t_embedder = named(mlp=nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width)))
        self.y_embedder = named(embedding_table=nn.Embedding(classes + 1, width))
        self.register_buffer("pos_embed", torch.zeros(1, (side // patch) ** 2, width, dtype=torch.float32))
        self.blocks = nn.ModuleList(block() for _ in range(depth))
        self.final_layer = named(linear=nn.Linear(width, patch * patch * 8), adaLN_modulation=modulation(2))

    def forward(self, x: Tensor, at: Tensor, labels: Tensor) -> Tensor:
        x = self.x_embedder["proj"](x).flatten(2).transpose(1, 2)
        x = x + self.pos_embed.to(x.dtype)
        condition = self.t_embedder["mlp"](waves(at, 256).to(x.dtype))
        labels = torch.where(torch.rand(labels.shape[0]) < 0.1, self.classes, labels)
        condition = condition + self.y_embedder["embedding_table"](labels)
        for block in self.blocks:
            shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = block["adaLN_modulation"](condition).chunk(6, dim=1)
            y = self.attention(block["attn"], modulate(self.norm(x), shift, scale))
            x = x + gate.unsqueeze(1) * y
            y = modulate(self.norm(x), mlp_shift, mlp_scale)
            y = block["mlp"]["fc2"](F.gelu(block["mlp"]["fc1"](y), approximate="tanh"))
            x = x + mlp_gate.unsqueeze(1) * y
        shift, scale = self.final_layer["adaLN_modulation"](condition).chunk(2, dim=1)
        x = self.final_layer["linear"](modulate(self.norm(x), shift, scale))
        rows = self.side // self.patch
        x = x.reshape(len(x), rows, rows, self.patch, self.patch, 8)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(len(x), 8, self.side, self.side)[:, :4]

    def norm(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), eps=1e-6)

    def attention(self, layer: nn.ModuleDict, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        packed = layer["qkv"](x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*packed.unbind(0))
        return layer["proj"](y.transpose(1, 2).reshape(batch, length, width))
