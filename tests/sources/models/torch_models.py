"""The same architectures written in PyTorch, small, as what the builder must agree with.

Parameter names are those of Hugging Face and torchvision.  What PyTorch decomposes on the CPU but not on a CUDA device
is called as the operator that CUDA dispatches (dropout) or stood in for (RMSNorm by a layer norm without bias).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def named(**modules: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict(modules)


def drop(x: Tensor, p: float) -> Tensor:
    return torch.native_dropout(x, p, True)[0] if p else x


# --- text ------------------------------------------------------------------------------------------------------------


class Llama(nn.Module):
    def __init__(
        self, width: int, inner: int, layers: int, heads: int, groups: int, vocabulary: int, tied: bool
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads

        def linear(a: int, b: int) -> nn.Linear:
            return nn.Linear(a, b, bias=False)

        def layer() -> nn.ModuleDict:
            keys = groups * self.size
            attention = named(
                q_proj=linear(width, width), k_proj=linear(width, keys), v_proj=linear(width, keys),
                o_proj=linear(width, width),
            )  # fmt: skip
            mlp = named(gate_proj=linear(width, inner), up_proj=linear(width, inner), down_proj=linear(inner, width))
            norms = [nn.LayerNorm(width, bias=False) for _ in range(2)]
            return named(self_attn=attention, mlp=mlp, input_layernorm=norms[0], post_attention_layernorm=norms[1])

        self.model = named(
            embed_tokens=nn.Embedding(vocabulary, width), layers=nn.ModuleList(layer() for _ in range(layers)),
            norm=nn.LayerNorm(width, bias=False),
        )  # fmt: skip
        self.model.register_buffer("frequencies", torch.ones(self.size // 2, dtype=torch.float32))
        self.lm_head = linear(width, vocabulary)
        if tied:
            self.lm_head.weight = self.model["embed_tokens"].weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.model["embed_tokens"](tokens)
        positions = torch.arange(tokens.shape[1]).unsqueeze(0).unsqueeze(0).float()
        angles = torch.bmm(self.model.frequencies.unsqueeze(0).unsqueeze(2), positions).transpose(1, 2)
        angles = torch.cat((angles, angles), 2)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.model["layers"].children():
            x = x + self.attention(layer["self_attn"], layer["input_layernorm"](x), cos, sin)
            y, mlp = layer["post_attention_layernorm"](x), layer["mlp"]
            x = x + mlp["down_proj"](F.silu(mlp["gate_proj"](y)) * mlp["up_proj"](y))
        return self.lm_head(self.model["norm"](x))

    def attention(self, layer: nn.ModuleDict, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            layer[name](x).view(batch, length, -1, self.size).transpose(1, 2) for name in ("q_proj", "k_proj", "v_proj")
        )
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q, k = (x * cos + self.halves(x) * sin for x in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.groups != self.heads)
        return layer["o_proj"](y.transpose(1, 2).reshape(batch, length, width))

    def halves(self, x: Tensor) -> Tensor:
        first, second = x[..., : self.size // 2], x[..., self.size // 2 :]
        return torch.cat((-second, first), 3)


class Conv1D(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class GPT(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, positions: int, vocabulary: int, p: float) -> None:
        super().__init__()
        self.heads, self.p = heads, p

        def block() -> nn.ModuleDict:
            return named(
                ln_1=nn.LayerNorm(width), attn=named(c_attn=Conv1D(width, 3 * width), c_proj=Conv1D(width, width)),
                ln_2=nn.LayerNorm(width), mlp=named(c_fc=Conv1D(width, 4 * width), c_proj=Conv1D(4 * width, width)),
            )  # fmt: skip

        self.transformer = named(
            wte=nn.Embedding(vocabulary, width), wpe=nn.Embedding(positions, width),
            h=nn.ModuleList(block() for _ in range(layers)), ln_f=nn.LayerNorm(width),
        )  # fmt: skip
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, tokens: Tensor) -> Tensor:
        net = self.transformer
        x = net["wte"](tokens)
        x = drop(x + net["wpe"](torch.arange(tokens.shape[1])[None]), self.p)
        batch, length, width = x.shape
        for block in net["h"].children():
            parts = block["attn"]["c_attn"](block["ln_1"](x)).split(width, 2)
            q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
            x = drop(block["attn"]["c_proj"](y), self.p) + x
            y = F.gelu(block["mlp"]["c_fc"](block["ln_2"](x)), approximate="tanh")
            x = x + drop(block["mlp"]["c_proj"](y), self.p)
        return self.lm_head(net["ln_f"](x))


class BERT(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, inner: int, positions: int, vocabulary: int) -> None:
        super().__init__()
        self.heads = heads

        def layer() -> nn.ModuleDict:
            parts = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
            after = named(dense=nn.Linear(width, width), LayerNorm=nn.LayerNorm(width))
            last = named(dense=nn.Linear(inner, width), LayerNorm=nn.LayerNorm(width))
            attention = nn.ModuleDict({"self": nn.ModuleDict(parts), "output": after})
            return named(attention=attention, intermediate=named(dense=nn.Linear(width, inner)), output=last)

        embeddings = named(
            word_embeddings=nn.Embedding(vocabulary, width), position_embeddings=nn.Embedding(positions, width),
            token_type_embeddings=nn.Embedding(2, width), LayerNorm=nn.LayerNorm(width),
        )  # fmt: skip
        encoder = named(layer=nn.ModuleList(layer() for _ in range(layers)))
        self.bert = named(embeddings=embeddings, encoder=encoder)
        transform = named(dense=nn.Linear(width, width), LayerNorm=nn.LayerNorm(width))
        self.cls = named(predictions=named(transform=transform))
        self.cls["predictions"].bias = nn.Parameter(torch.empty(vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        table = self.bert["embeddings"]
        types = torch.zeros_like(tokens)
        x = table["word_embeddings"](tokens) + table["token_type_embeddings"](types)
        x = table["LayerNorm"](x + table["position_embeddings"](torch.arange(tokens.shape[1])[None]))
        batch, length, width = x.shape
        for layer in self.bert["encoder"]["layer"]:
            parts = (layer["attention"]["self"][name](x) for name in ("query", "key", "value"))
            q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
            x = self.output(layer["attention"]["output"], y, x)
            x = self.output(layer["output"], F.gelu(layer["intermediate"]["dense"](x)), x)
        transform = self.cls["predictions"]["transform"]
        x = transform["LayerNorm"](F.gelu(transform["dense"](x)))
        return F.linear(x, table["word_embeddings"].weight, self.cls["predictions"].bias)

    @staticmethod
    def output(layer: nn.ModuleDict, y: Tensor, x: Tensor) -> Tensor:
        return layer["LayerNorm"](layer["dense"](y) + x)


# --- images ----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, inputs: int, width: int, outputs: int, stride: int, bottleneck: bool, groups: int) -> None:
        super().__init__()
        self.count = 3 if bottleneck else 2
        if bottleneck:
            shapes = [(inputs, width, 1, 1, 1), (width, width, 3, stride, groups), (width, outputs, 1, 1, 1)]
        else:
            shapes = [(inputs, outputs, 3, stride, 1), (outputs, outputs, 3, 1, 1)]
        for n, (a, b, k, s, g) in enumerate(shapes, 1):
            setattr(self, f"conv{n}", nn.Conv2d(a, b, k, s, k // 2, groups=g, bias=False))
            setattr(self, f"bn{n}", nn.BatchNorm2d(b))
        self.downsample = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for n in range(1, self.count + 1):
            y = getattr(self, f"bn{n}")(getattr(self, f"conv{n}")(y))
            if n < self.count:
                y = F.relu(y, inplace=True)
        y += self.downsample(x) if self.downsample else x
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    def __init__(self, layers: tuple[int, ...], bottleneck: bool, groups: int, width_per_group: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        channels = 64
        for stage, count in enumerate(layers, 1):
            base = 32 * 2**stage
            out = base * (4 if bottleneck else 1)
            blocks = []
            for i in range(count):
                stride = 2 if stage > 1 and i == 0 else 1
                blocks.append(Block(channels, base * width_per_group // 64 * groups, out, stride, bottleneck, groups))
                channels = out
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
        self.stages = len(layers)
        self.fc = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        for stage in range(1, self.stages + 1):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class VGG(nn.Module):
    def __init__(self, layers: tuple[int, ...]) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        channels = 3
        for count, out in zip(layers, (64, 128, 256, 512, 512), strict=True):
            for _ in range(count):
                parts += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(True)]
                channels = out
            parts.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*parts)
        self.classifier = nn.ModuleDict(
            {"0": nn.Linear(512 * 49, 4096), "3": nn.Linear(4096, 4096), "6": nn.Linear(4096, 10)}
        )

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(F.adaptive_avg_pool2d(self.features(x), 7), 1)
        for name in ("0", "3"):
            x = drop(F.relu(self.classifier[name](x), inplace=True), 0.5)
        return self.classifier["6"](x)


class DenseNet(nn.Module):
    def __init__(self, blocks: tuple[int, ...], growth: int, channels: int) -> None:
        super().__init__()
        f = self.features = nn.Module()
        f.conv0, f.norm0 = nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels)
        for n, layers in enumerate(blocks, 1):
            block = nn.Module()
            for i in range(1, layers + 1):
                layer = nn.Module()
                layer.norm1, layer.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 4 * growth, 1, bias=False)
                layer.norm2 = nn.BatchNorm2d(4 * growth)
                layer.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
                setattr(block, f"denselayer{i}", layer)
                channels += growth
            setattr(f, f"denseblock{n}", block)
            if n < len(blocks):
                between = nn.Module()
                between.norm, between.conv = nn.BatchNorm2d(channels), nn.Conv2d(channels, channels // 2, 1, bias=False)
                setattr(f, f"transition{n}", between)
                channels //= 2
        f.norm5 = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        f = self.features
        x = F.max_pool2d(F.relu(f.norm0(f.conv0(x)), inplace=True), 3, 2, 1)
        blocks = [(name, part) for name, part in f.named_children() if name.startswith("denseblock")]
        for name, block in blocks:
            made = [x]
            for layer in block.children():
                y = layer.conv1(F.relu(layer.norm1(torch.cat(made, 1)), inplace=True))
                made.append(layer.conv2(F.relu(layer.norm2(y), inplace=True)))
            x = torch.cat(made, 1)
            between = getattr(f, name.replace("denseblock", "transition"), None)
            if between is not None:
                x = F.avg_pool2d(between.conv(F.relu(between.norm(x), inplace=True)), 2, 2)
        x = F.relu(f.norm5(x), inplace=True)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


# --- recommendation --------------------------------------------------------------------------------------------------


class DLRM(nn.Module):
    def __init__(
        self, tables: tuple[int, ...], width: int, dense: int, bottom: tuple, top: tuple, sparse: bool
    ) -> None:
        super().__init__()

        def perceptron(first: int, widths: tuple[int, ...], last: type[nn.Module]) -> nn.Sequential:
            parts: list[nn.Module] = []
            for at, (inputs, outputs) in enumerate(zip((first, *widths), widths, strict=False)):
                parts += [nn.Linear(inputs, outputs), last() if at + 1 == len(widths) else nn.ReLU()]
            return nn.Sequential(*parts)

        self.emb_l = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=sparse) for rows in tables)
        self.bot_l = perceptron(dense, bottom, nn.ReLU)
        self.top_l = perceptron(width + len(tables) * (len(tables) + 1) // 2, top, nn.Sigmoid)

    def forward(self, dense: Tensor, rows: list[Tensor], starts: list[Tensor]) -> Tensor:
        x = self.bot_l(dense)
        vectors = [x, *(table(r, s) for table, r, s in zip(self.emb_l, rows, starts, strict=True))]
        stacked = torch.cat(vectors, 1).view(len(x), len(vectors), -1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        i = torch.tensor([a for a in range(len(vectors)) for _ in range(a)])
        j = torch.tensor([b for a in range(len(vectors)) for b in range(a)])
        return self.top_l(torch.cat([x, products[:, i, j]], 1))
