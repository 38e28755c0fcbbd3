"""Which operators a runtime runs as one, found by measuring.

Operators in a chain count as run as one where all of them together take less than one after another by more than 0.3 of
all but the longest: for two operators the rule of nn-Meter, ``t(AB) < t(A) + t(B) - 0.3 min`` (Zhang et al., "nn-Meter:
Towards Accurate Latency Prediction of Deep-Learning Model Inference on Diverse Edge Devices", MobiSys 2021, section 3).
The same holds where they take longer by as much: what a runtime puts in their place may be slower than they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.sources.readers._graph import NetworkGraph
from triosim.sources.readers._onnx_operators import forward_trace
from triosim.sources.runtimes.graphs import GraphDraft, WrittenGraph
from triosim.sources.runtimes.rules import Fusion
from triosim.trace.tables import Meta

CHANGED = 0.3
"""Part of the time of all but the longest operator by which running them as one changes it at least."""


@dataclass(frozen=True)
class FusionChain:
    """A chain that a runtime may fuse, at one size.

    Attributes:
        graph: the chain, and what stands before it.
        first: the chain's first operator; it reaches to the end.
    """

    graph: WrittenGraph
    first: int

    @property
    def operators(self) -> tuple[str, ...]:
        """Names as traces have them."""
        trace = forward_trace(self.graph.network, Meta(made_by="triosim", workload="chain"), "chain")
        views = trace.operators.view.tolist()
        names = [name for name, view in zip(trace.operators.name, views, strict=True) if not view]
        return tuple(names[self.first :])

    def part(self, *rows: int) -> WrittenGraph:
        """Some of the operators by themselves; what they read of others is given."""
        network = self.graph.network
        nodes = [network.operators[row] for row in rows]
        made = {name for node in nodes for name in node.outputs}
        read = dict.fromkeys(name for node in nodes for name in node.inputs if name)
        given = [name for name in read if name not in made and not network.tensors[name].constant]
        results = [name for name in made if name not in read]
        tensors = {name: network.tensors[name] for name in (*read, *made)}
        values = {name: value for name, value in self.graph.values.items() if name in read}
        return WrittenGraph(NetworkGraph(nodes, tensors, given, results), values)


def fusion(chains: Sequence[FusionChain], seconds: Callable[[WrittenGraph], float]) -> Fusion | None:
    """Whether the same chain at several sizes is fused.

    Args:
        chains: sizes of one chain.
        seconds: of a network.
    """
    parts, whole = np.zeros((len(chains), len(chains[0].operators))), np.zeros(len(chains))
    for size, chain in enumerate(chains):
        rows = range(chain.first, len(chain.graph.network.operators))
        parts[size] = [seconds(chain.part(row)) for row in rows]  # (sizes, operators)
        before = seconds(chain.part(*range(chain.first))) if chain.first else 0.0
        whole[size] = seconds(chain.graph) - before
    alone, longest = parts.sum(axis=1), parts.max(axis=1)
    if not abs(np.median((alone - whole) / (alone - longest))) > CHANGED:
        return None
    main = int(parts.sum(axis=0).argmax())
    share = max(float(np.median((whole - parts[:, main]) / (alone - parts[:, main]))), 0.0)
    return Fusion(chains[0].operators, main, share)


def chains() -> Iterator[list[FusionChain]]:
    """Chains that exporters write, each at three sizes."""
    for write in _OF_IMAGES:
        yield [_chain(write, 1, channels, side, side) for channels, side in _IMAGES]
    for write in _OF_TOKENS:
        yield [_chain(write, 1, rows, width) for rows, width in _TOKENS]
    for write in _OF_HEADS:
        yield [_attention_chain(write, rows, width // 4) for rows, width in _TOKENS]


_IMAGES = ((16, 112), (32, 56), (96, 28))
"""Channels and sides."""
_TOKENS = ((64, 128), (128, 256), (256, 384))
"""Tokens and widths; heads are four."""

Write = Callable[[GraphDraft, str, str], str]
"""Writes a chain that reads a tensor, and perhaps another of equal size, for a residual."""


def _chain(write: Write, *shape: int) -> FusionChain:
    """A residual comes from a convolution or a product, as in networks, and not from outside: a runtime that lays
    results out in a way of its own then does so with both."""
    net = GraphDraft()
    x = net.input("x", *shape)
    alone = GraphDraft()
    write(alone, alone.input("x", *shape), alone.input("other", *shape))
    reads_other = any("other" in node.inputs for node in alone.operators)
    other = ""
    if reads_other and len(shape) == 4:  # what is pooled is laid out as a convolution's result, and fuses with nothing
        other = net.pool(_conv(net, x), "MaxPool", 3, 1)
    elif reads_other:
        other = net.linear(x, shape[-1], bias=False)
    first = len(net.operators)
    return FusionChain(net.graph(write(net, x, other)), first)


def _attention_chain(write: Write, rows: int, head: int) -> FusionChain:
    """One that begins with the scores of four heads."""
    net = GraphDraft()
    query, key = net.input("x", 1, 4, rows, head), net.input("other", 1, 4, head, rows)
    return FusionChain(net.graph(write(net, query, key)), 0)


def _conv(net: GraphDraft, x: str) -> str:
    """One that takes little, so that what follows is seen."""
    return net.convolution(x, net.shape(x)[1])


def _wide(net: GraphDraft, x: str) -> str:
    return net.linear(x, net.shape(x)[-1])


def _scores(net: GraphDraft, query: str, key: str) -> str:
    return net.same("Div", net.product(query, key), net.constant(8.0, dtype="float32", shape=()))


_OF_IMAGES: tuple[Write, ...] = (
    *(lambda net, x, _, type_=type_: net.same(type_, _conv(net, x))
      for type_ in ("Relu", "Sigmoid", "HardSwish", "HardSigmoid", "LeakyRelu")),
    lambda net, x, _: net.clip(_conv(net, x)),
    lambda net, x, _: net.batch_norm(_conv(net, x)),
    lambda net, x, _: net.relu(net.batch_norm(_conv(net, x))),
    lambda net, x, _: net.clip(net.batch_norm(_conv(net, x))),
    lambda net, x, other: net.same("Add", _conv(net, x), other),
    lambda net, x, other: net.relu(net.same("Add", _conv(net, x), other)),
    lambda net, x, other: net.same("Add", net.batch_norm(_conv(net, x)), other),
    lambda net, x, other: net.relu(net.same("Add", net.batch_norm(_conv(net, x)), other)),
    lambda net, _, other: net.relu(net.batch_norm(other)),
    lambda net, x, other: net.relu(net.same("Add", x, other)),
    lambda net, x, _: net.same("Mul", net.same("Sigmoid", x), x),
)  # fmt: skip
_OF_TOKENS: tuple[Write, ...] = (
    lambda net, x, _: _wide(net, x),
    lambda net, x, _: net.relu(_wide(net, x)),
    lambda net, x, _: net.gelu(x),
    lambda net, x, _: net.gelu(_wide(net, x)),
    lambda net, x, other: net.layer_norm(net.same("Add", x, other)),
)
_OF_HEADS: tuple[Write, ...] = (
    _scores,
    lambda net, query, key: net.same("Softmax", _scores(net, query, key), axis=-1),
)
