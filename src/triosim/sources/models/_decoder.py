"""Decoders: blocks of attention and feed-forward parts on a residual stream, scored by one last product.

A family says its sizes as Hugging Face's ``config.json`` names them, what its parts are (:meth:`Decoder.attention`,
:meth:`Decoder.feed_forward`), and where it departs from Llama's :class:`Layout`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.sources.models._family import Text
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Norm, Rotary, Rotation, SelfAttention
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@dataclass(frozen=True)
class Layout:
    """How modules of a family are called and in which order they are registered.

    Attributes:
        kind: what the names of its classes begin with.
        body, embedding, blocks, last_norm, head: names of modules; the body may have several parts (``model.decoder``);
            without a head nothing scores the vocabulary.
        attention, feed_forward: names of a block's parts; an empty one has its products in the block.
        norms: names of a block's norms, in the order in which they are used; an empty one is none.
        block, model: what the names of those classes end in.
        order: in which a block registers its norms (by name), ``attention`` and ``feed_forward``; by default the norms
            come last.
        last_norm_first: the last norm is registered before the blocks.
        residual: how a block adds up: ``pre`` x + part(norm(x)); ``post`` x + norm(part(x)); ``around`` both;
            ``parallel`` both parts of the same x; ``normed`` norm(x) + part(norm(x)), both times a number; ``single``
            as ``pre``, but a block has one part only.
        wide: the residual stream of ``single`` blocks is float32.
        scaled: what a part of a ``pre`` or ``around`` block gives is multiplied by a number before it is added.
        last_bias: whether the head has a bias.
    """

    kind: str
    body: str = "model"
    embedding: str = "embed_tokens"
    blocks: str = "layers"
    last_norm: str = "norm"
    head: str = "lm_head"
    attention: str = "self_attn"
    feed_forward: str = "mlp"
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    block: str = "DecoderLayer"
    model: str = "Model"
    order: tuple[str, ...] = ()
    last_norm_first: bool = False
    residual: str = "pre"
    scaled: bool = False
    last_bias: bool = False
    wide: bool = False


@dataclass(frozen=True)
class SizeNames:
    """How the fields of a family are called that hold the width of the residual stream, the number of blocks, and the
    positions that the model was made for."""

    width: str = "hidden_size"
    depth: str = "num_hidden_layers"
    longest: str = "max_position_embeddings"


class Decoder(Text):
    """A decoder; see the module."""

    layout: ClassVar[Layout]
    sizes: ClassVar[SizeNames] = SizeNames()
    tie_word_embeddings: bool

    # --- what a family says -------------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """Of the residual stream."""
        return int(getattr(self, self.sizes.width))

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return int(getattr(self, self.sizes.depth))

    @property
    def longest(self) -> int:
        return int(getattr(self, self.sizes.longest))

    @abstractmethod
    def attention(self, layer: int) -> Any:
        """The attention of a block, or what is in its place: a part as in :mod:`triosim.sources.models._parts`; None
        where a ``single`` block has a feed-forward part."""

    @abstractmethod
    def feed_forward(self, layer: int) -> Any:
        """The feed-forward part of a block; None where a ``single`` block has another."""

    def attention_name(self, layer: int) -> str:
        """What the attention of a block is called."""
        return self.layout_of(layer).attention

    def layout_of(self, layer: int) -> Layout:
        """The layout of a block, where blocks differ in it."""
        return self.layout

    def own_form(self) -> str:
        """What a model has beside an attention and a feed-forward part in each block, or what they read, that serving
        has no times for; ``""`` for nothing."""
        return ""

    @property
    def norm(self) -> Norm:
        """The norms of blocks and the last one."""
        return Norm(self.width, f"{self.layout.kind}RMSNorm")

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        """Kinds of rotary positions; :meth:`rotary` chooses one for a block."""
        return ()

    def rotary(self, layer: int) -> int:
        """Which of :attr:`rotaries` a block uses."""
        return 0

    def embed_weights(self, w: Weights, body: str) -> None:
        """Declare what turns tokens into the residual stream."""
        w.embedding(f"{body}.{self.layout.embedding}", self.vocabulary, self.width)

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        """Tokens as the residual stream."""
        return net.embedding(self.layout.embedding, tokens)

    def streamed(self, net: Net, x: Tensor) -> Tensor:
        """What blocks made of the residual stream, as the last norm reads it."""
        return x

    @property
    def layers(self) -> Sequence[int]:
        """Numbers of the blocks that are built; :func:`with_layers` leaves some out."""
        return range(self.depth)

    # --- what follows -------------------------------------------------------------------------------------------------

    def weights(self) -> Weights:
        w, layout = Weights(), self.layout
        self.embed_weights(w, layout.body)
        if layout.last_norm_first:
            self.norm.weights(w, f"{layout.body}.{layout.last_norm}")
        for i in self.layers:
            self.block_weights(w, i)
        if not layout.last_norm_first:
            self.norm.weights(w, f"{layout.body}.{layout.last_norm}")
        self.head_weights(w)
        for rotary in self.rotaries:
            rotary.weights(w, layout.body)
        return w

    def head_weights(self, w: Weights) -> None:
        """Declare what scores the vocabulary."""
        if self.layout.head and not self.tie_word_embeddings:
            w.linear(self.layout.head, self.width, self.vocabulary, bias=self.layout.last_bias)

    def block_weights(self, w: Weights, i: int) -> None:
        """Declare the parameters of a block."""
        at, layout = self.path(i), self.layout_of(i)
        for name in layout.order or ("attention", "feed_forward", *layout.norms):
            if name == "attention":
                _declare(w, self.attention(i), _joined(at, self.attention_name(i)))
            elif name == "feed_forward":
                _declare(w, self.feed_forward(i), _joined(at, layout.feed_forward))
            else:
                self.norm.weights(w, f"{at}.{name}")

    def forward(self, net: Net, tokens: Tensor) -> Tensor:
        layout = self.layout
        with net.module(layout.body, f"{layout.kind}{layout.model}"):
            x = self.embed(net, tokens)
            rotations = [rotary(net, tokens) for rotary in self.rotaries]
            for i in self.layers:
                with net.module(f"{layout.blocks}.{i}", f"{layout.kind}{self.layout_of(i).block}"):
                    x = self._block(net, x, i, rotations[self.rotary(i)] if rotations else None)
            x = self.norm(net, layout.last_norm, self.streamed(net, x))
        return self.score(net, x)

    def kinds(self) -> list[int]:
        """For each block a number, the same for those that have equal parts."""
        known: list[Any] = []
        found = []
        for i in range(self.depth):
            parts = self.attention(i), self.feed_forward(i), self.rotary(i), self.layout_of(i)
            if parts not in known:
                known.append(parts)
            found.append(known.index(parts))
        return found

    def path(self, layer: int) -> str:
        """Of the module that is a block."""
        return f"{self.layout.body}.{self.layout.blocks}.{layer}"

    def score(self, net: Net, x: Tensor) -> Tensor:
        """Scores of the vocabulary."""
        tied = f"{self.layout.body}.{self.layout.embedding}.weight" if self.tie_word_embeddings else ""
        return net.linear(self.layout.head, x, tied=tied)

    def attended(self, net: Net, x: Tensor, i: int, rotation: Rotation | None) -> Tensor:
        """What the attention of a block makes of ``x``."""
        part = self.attention(i)
        return _within(net, self.attention_name(i), part.kind, lambda: part(net, x, rotation))

    def fed(self, net: Net, x: Tensor, i: int) -> Tensor:
        """What the feed-forward part of a block makes of ``x``."""
        part = self.feed_forward(i)
        return _within(net, self.layout_of(i).feed_forward, part.kind, lambda: part(net, x))

    def _block(self, net: Net, x: Tensor, i: int, rotation: Rotation | None) -> Tensor:
        layout = self.layout_of(i)
        norms = layout.norms

        def attend(y: Tensor) -> Tensor:
            return self.attended(net, y, i, rotation)

        def feed(y: Tensor) -> Tensor:
            return self.fed(net, y, i)

        def add(x: Tensor, y: Tensor) -> Tensor:
            return net.add(x, net.scaled(y) if layout.scaled else y)

        if layout.residual == "single":
            x, read = (net.to(x, "float32"), net.to(x, net.precision)) if layout.wide else (x, x)
            y = self.norm(net, norms[0], read)
            return net.add(x, attend(y) if self.feed_forward(i) is None else feed(y))
        if layout.residual == "parallel":
            y = self.norm(net, norms[0], x)
            attended = attend(y)
            return net.add(net.add(attended, feed(self.norm(net, norms[1], x) if len(norms) > 1 else y)), x)
        if layout.residual == "post":
            x = net.add(x, self.norm(net, norms[0], attend(x)))
            return net.add(x, self.norm(net, norms[1], feed(x)))
        if layout.residual == "normed":
            for name, part in zip(norms, (attend, feed), strict=True):
                x = self.norm(net, name, x)
                y = part(x)
                x = net.add(net.scaled(x), net.scaled(y))
            return x
        if layout.residual == "around":
            x = add(x, self.norm(net, norms[1], attend(self.norm(net, norms[0], x))))
            return add(x, self.norm(net, norms[3], feed(self.norm(net, norms[2], x))))
        x = add(x, attend(self.norm(net, norms[0], x) if norms[0] else x))
        return add(x, feed(self.norm(net, norms[1], x)))


def with_layers(family: Decoder, layers: Sequence[int]) -> Decoder:
    """The decoder with some of its blocks alone, under their own names."""
    made: Decoder = type(type(family).__name__, (type(family),), {"layers": tuple(layers)})(**vars(family))
    return made


def joined(family: Decoder) -> Decoder:
    """The decoder with one product for queries, keys and values, and one for gate and up, where its parts allow it."""
    own = type(family)

    def attention(self: Decoder, layer: int) -> Any:
        part = own.attention(self, layer)
        return part.joined() if isinstance(part, SelfAttention) else part

    def feed_forward(self: Decoder, layer: int) -> Any:
        part = own.feed_forward(self, layer)
        return part.joined() if isinstance(part, FeedForward) else part

    made: Decoder = type(own.__name__, (own,), {"attention": attention, "feed_forward": feed_forward})(**vars(family))
    return made


def _declare(w: Weights, part: Any, at: str) -> None:
    if part is not None:
        part.weights(w, at)


def _joined(at: str, name: str) -> str:
    return f"{at}.{name}" if name else at


def _within(net: Net, name: str, kind: str, call: Callable[[], Tensor]) -> Tensor:
    if not name:
        return call()
    with net.module(name, kind):
        return call()
