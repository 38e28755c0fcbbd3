"""Eight small networks for this machine's processor, written down operator by operator as exporters write them.

Shapes are those of the published networks (normalization after a convolution is folded into it, as PyTorch's exporter
does): ResNet-18 and 50 (He et al. 2016), MobileNetV2 (Sandler et al. 2018), SqueezeNet 1.1 (Iandola et al. 2016),
DenseNet-121 (Huang et al. 2017), MobileNetV3-Small (Howard et al. 2019), BERT-Mini (Turc et al. 2019; 128 tokens),
ViT-Tiny (Touvron et al. 2021).  The batch is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from triosim.sources.readers._graph import GraphOperator
from triosim.sources.runtimes.graphs import GraphDraft, WrittenGraph
from triosim.sources.runtimes.onnx_file import inputs


def _image(side: int = 224) -> tuple[GraphDraft, str]:
    net = GraphDraft()
    return net, net.input("image", 1, 3, side, side)


def _classes(net: GraphDraft, x: str, *hidden: int) -> WrittenGraph:
    x = net.reshape(net.global_pool(x), 1, net.shape(x)[1])
    for width in hidden:
        x = net.same("HardSwish", net.linear(x, width))
    return net.graph(net.linear(x, 1000))


def resnet(layers: tuple[int, ...], bottleneck: bool) -> WrittenGraph:
    net, x = _image()
    x = net.pool(net.relu(net.convolution(x, 64, 7, 2)), "MaxPool", 3, 2)
    for stage, count in enumerate(layers):
        width = 64 << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            if bottleneck:
                y = net.relu(net.convolution(x, width))
                y = net.relu(net.convolution(y, width, 3, stride))
                y = net.convolution(y, 4 * width)
            else:
                y = net.convolution(net.relu(net.convolution(x, width, 3, stride)), width, 3)
            same = net.shape(x) == net.shape(y)
            x = net.relu(net.same("Add", y, x if same else net.convolution(x, net.shape(y)[1], 1, stride)))
    return _classes(net, x)


def mobilenet_v2() -> WrittenGraph:
    net, x = _image()
    x = net.clip(net.convolution(x, 32, 3, 2))
    for grow, wide, count, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for block in range(count):
            stride, deep = (1 if block else first), net.shape(x)[1]
            y = x if grow == 1 else net.clip(net.convolution(x, grow * deep))
            y = net.clip(net.convolution(y, grow * deep, 3, stride, grow * deep))
            y = net.convolution(y, wide)
            x = net.same("Add", x, y) if net.shape(x) == net.shape(y) else y
    return _classes(net, net.clip(net.convolution(x, 1280)))


def mobilenet_v3_small() -> WrittenGraph:
    net, x = _image()
    x = net.same("HardSwish", net.convolution(x, 16, 3, 2))
    for taps, inner, wide, squeeze, act, stride in (
        (3, 16, 16, True, "Relu", 2), (3, 72, 24, False, "Relu", 2), (3, 88, 24, False, "Relu", 1),
        (5, 96, 40, True, "HardSwish", 2), (5, 240, 40, True, "HardSwish", 1), (5, 240, 40, True, "HardSwish", 1),
        (5, 120, 48, True, "HardSwish", 1), (5, 144, 48, True, "HardSwish", 1), (5, 288, 96, True, "HardSwish", 2),
        (5, 576, 96, True, "HardSwish", 1), (5, 576, 96, True, "HardSwish", 1),
    ):  # fmt: skip
        y = x if inner == net.shape(x)[1] else net.same(act, net.convolution(x, inner))
        y = net.same(act, net.convolution(y, inner, taps, stride, inner))
        if squeeze:
            gate = net.relu(net.convolution(net.global_pool(y), max(round(inner / 32) * 8, 8)))
            y = net.same("Mul", y, net.same("HardSigmoid", net.convolution(gate, inner)))
        y = net.convolution(y, wide)
        x = net.same("Add", x, y) if net.shape(x) == net.shape(y) else y
    return _classes(net, net.same("HardSwish", net.convolution(x, 576)), 1024)


def squeezenet() -> WrittenGraph:
    net, x = _image()
    x = net.pool(net.relu(net.convolution(x, 64, 3, 2)), "MaxPool", 3, 2)
    for at, (narrow, wide) in enumerate(
        ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    ):
        if at in (2, 4):
            x = net.pool(x, "MaxPool", 3, 2)
        y = net.relu(net.convolution(x, narrow))
        x = net.concat(1, net.relu(net.convolution(y, wide)), net.relu(net.convolution(y, wide, 3)))
    x = net.relu(net.convolution(x, 1000))
    return net.graph(net.reshape(net.global_pool(x), 1, 1000))


def densenet() -> WrittenGraph:
    net, x = _image()
    x = net.pool(net.relu(net.convolution(x, 64, 7, 2)), "MaxPool", 3, 2)
    for stage, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            y = net.relu(net.convolution(net.relu(net.batch_norm(x)), 128))
            x = net.concat(1, x, net.convolution(y, 32, 3))
        x = net.relu(net.batch_norm(x))
        if stage < 3:
            x = net.pool(net.convolution(x, net.shape(x)[1] // 2), "AveragePool", 2, 2, 0)
    return _classes(net, x)


def _attention(net: GraphDraft, x: str, heads: int) -> str:
    _, rows, width = net.shape(x)
    query, key, value = (
        net.transpose(net.reshape(net.linear(x, width), 1, rows, heads, width // heads), *order)
        for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    )
    scores = net.same("Div", net.product(query, key), net.constant(8.0, dtype="float32", shape=()))
    y = net.transpose(net.product(net.same("Softmax", scores, axis=-1), value), 0, 2, 1, 3)
    return net.linear(net.reshape(y, 1, rows, width), width)


def bert_mini() -> WrittenGraph:
    net = GraphDraft()
    x = net.gather(30522, 256, net.input("tokens", 1, 128, dtype="int64"))
    x = net.layer_norm(net.same("Add", x, net.weight(1, 128, 256)))
    for _ in range(4):
        x = net.layer_norm(net.same("Add", _attention(net, x, 4), x))
        x = net.layer_norm(net.same("Add", net.linear(net.gelu(net.linear(x, 1024)), 256), x))
    return net.graph(net.linear(x, 2))


def vit_tiny() -> WrittenGraph:
    net, x = _image()
    x = net.patches(x, 192, 16)
    x = net.transpose(net.reshape(x, 1, 192, 196), 0, 2, 1)
    x = net.same("Add", x, net.weight(1, 196, 192))
    for _ in range(12):
        x = net.same("Add", x, _attention(net, net.layer_norm(x), 3))
        x = net.same("Add", x, net.linear(net.gelu(net.linear(net.layer_norm(x), 768)), 192))
    x = net.mean(net.layer_norm(x), 1)
    return net.graph(net.linear(x, 1000))


NETWORKS: dict[str, Callable[[], WrittenGraph]] = {
    "resnet-18": lambda: resnet((2, 2, 2, 2), False), "resnet-50": lambda: resnet((3, 4, 6, 3), True),
    "mobilenet-v2": mobilenet_v2, "mobilenet-v3-small": mobilenet_v3_small, "squeezenet": squeezenet,
    "densenet-121": densenet, "bert-mini": bert_mini, "vit-tiny": vit_tiny,
}  # fmt: skip


# In PyTorch -----------------------------------------------------------------------------------------------------------


def torch_step(graph: WrittenGraph) -> Callable[[], Any]:
    """The network in eager PyTorch: called, it runs once, and lets go of what nobody reads any more."""
    import torch

    random = np.random.default_rng(0)
    known: dict[str, Any] = {name: torch.from_numpy(value) for name, value in inputs(graph).items()}
    for name, tensor in graph.network.tensors.items():
        if tensor.constant and name not in graph.values:
            drawn = 0.05 * random.standard_normal(tuple(int(side) for side in tensor.shape), np.float32)
            known[name] = torch.from_numpy(np.asarray(abs(drawn) + 0.05 if drawn.ndim == 1 else drawn, np.float32))
        elif tensor.constant and tensor.dtype == "float32":
            known[name] = float(graph.values[name][0])
    kept = {*known, *graph.network.outputs}
    last = {name: at for at, node in enumerate(graph.network.operators) for name in node.inputs if name not in kept}
    steps = [
        (_FUNCTIONS[node.type](node, graph.values), node, [name for name in node.inputs if last.get(name) == at])
        for at, node in enumerate(graph.network.operators)
    ]

    def run() -> Any:
        made = dict(known)
        for function, node, read in steps:
            made[node.outputs[0]] = function(*(made[name] for name in node.inputs if name in made))
            for name in read:
                made.pop(name, None)  # sizes are read too, and are no tensors
        return made[graph.network.outputs[0]]

    return run


Values = Mapping[str, Any]


def _convolved(node: GraphOperator, values: Values) -> Callable[..., Any]:
    import torch.nn.functional as f

    given = node.attributes
    options = {"stride": given["strides"], "padding": given["pads"][:2], "groups": given["group"]}
    return lambda x, weight, bias=None: f.conv2d(x, weight, bias, **options)


def _pooled(node: GraphOperator, values: Values) -> Callable[..., Any]:
    import torch.nn.functional as f

    given = node.attributes
    pool = f.max_pool2d if node.type == "MaxPool" else f.avg_pool2d
    return lambda x: pool(x, given["kernel_shape"], given["strides"], given["pads"][:2])


def _named(name: str, **options: Any) -> Callable[[GraphOperator, Values], Callable[..., Any]]:
    def made(node: GraphOperator, values: Values) -> Callable[..., Any]:
        import torch.nn.functional as f

        function = getattr(f, name)
        return lambda *given: function(*given, **options)

    return made


def _method(name: str) -> Callable[[GraphOperator, Values], Callable[..., Any]]:
    return lambda node, values: lambda x, *others: getattr(x, name)(*others)


def _linear(node: GraphOperator, values: Values) -> Callable[..., Any]:
    import torch.nn.functional as f

    return f.linear


def _clipped(node: GraphOperator, values: Values) -> Callable[..., Any]:
    low, high = (float(values[name][0]) for name in node.inputs[1:])
    return lambda x, *_: x.clamp(low, high)


def _normalized(node: GraphOperator, values: Values) -> Callable[..., Any]:
    import torch.nn.functional as f

    return lambda x, weight, bias: f.layer_norm(x, x.shape[-1:], weight, bias)


def _batch_normalized(node: GraphOperator, values: Values) -> Callable[..., Any]:
    import torch.nn.functional as f

    return lambda x, weight, bias, mean, variance: f.batch_norm(x, mean, variance, weight, bias)


def _concatenated(node: GraphOperator, values: Values) -> Callable[..., Any]:
    import torch

    return lambda *parts: torch.cat(parts, node.attributes["axis"])


_FUNCTIONS: dict[str, Callable[[GraphOperator, Values], Callable[..., Any]]] = {
    "Conv": _convolved, "MaxPool": _pooled, "AveragePool": _pooled, "Gemm": _linear, "Relu": _named("relu"),
    "HardSwish": _named("hardswish"), "HardSigmoid": _named("hardsigmoid"), "Clip": _clipped, "Add": _method("add"),
    "Mul": _method("mul"), "Div": _method("div"), "Erf": _method("erf"), "MatMul": _method("matmul"),
    "LayerNormalization": _normalized, "BatchNormalization": _batch_normalized, "Concat": _concatenated,
    "GlobalAveragePool": lambda node, values: lambda x: x.mean((2, 3), keepdim=True),
    "ReduceMean": lambda node, values: lambda x: x.mean(node.attributes["axes"]),
    "Softmax": lambda node, values: lambda x: x.softmax(node.attributes["axis"]),
    "Reshape": lambda node, values: lambda x: x.reshape([int(side) for side in values[node.inputs[1]]]),
    "Transpose": lambda node, values: lambda x: x.permute(node.attributes["perm"]),
    "Gather": lambda node, values: lambda table, indices: table[indices],
}  # fmt: skip
