"""What a family of models is: a configuration, the weights that it has, and the layers that it calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import Field
from typing import Annotated, Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.options import AtLeast, AtMost, GreaterThan
from triosim.sources.models._losses import squared_error
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Dim, Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import SEQUENCE, VOCABULARY, Category

Share = Annotated[float, GreaterThan(0), AtMost(1)]
"""A part of a whole; a field of a configuration that is a ``float`` is a probability below 1."""

Count = Annotated[int, AtLeast(0)]
"""How many, none among them; a field that is an ``int`` is at least 1 or what it is by default."""

Blocks = Annotated[tuple[int, ...], AtLeast(0)]
"""Blocks by their number from 0, or a 0 or 1 for each; may be empty."""

Kinds = tuple[str, ...]
"""What each block is, by name; empty where a family's usual order holds."""

Sizes = Annotated[tuple[int, ...], AtLeast(1)]
"""Sizes, one for each of several weights; a field that is a ``tuple[int, ...]`` counts the layers of stages."""

Stages = tuple[int, ...]
"""Layers of each stage of a model."""


def _are_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)


def _are_counts(value: Any, least: int) -> bool:
    return isinstance(value, (list, tuple)) and all(type(one) is int and one >= least for one in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_FIELDS: Mapping[Any, tuple[str, Callable[[Any, Any], bool]]] = {
    bool: ("true or false", lambda value, default: isinstance(value, bool)),
    int: (
        "a whole number of at least 1",
        lambda value, default: type(value) is int and (value > 0 or value == default),
    ),
    str: ("a text", lambda value, default: isinstance(value, str)),
    float: ("a probability below 1", lambda value, default: _is_number(value) and 0 <= value < 1),
    Share: ("a number above 0 and at most 1", lambda value, default: _is_number(value) and 0 < value <= 1),
    Count: ("a whole number of at least 0", lambda value, default: type(value) is int and value >= 0),
    Kinds: ("a list of names", lambda value, default: _are_names(value)),
    Blocks: ("a list of whole numbers of at least 0", lambda value, default: _are_counts(value, 0)),
    Sizes: ("a list of whole numbers of at least 1", lambda value, default: bool(value) and _are_counts(value, 1)),
    Stages: ("a list of whole numbers of at least 1", lambda value, default: bool(value) and _are_counts(value, 1)),
}
"""What a value of each type of field must be, for messages, and whether one is (given the field's default)."""

_NAMES = {
    "bool": bool, "int": int, "str": str, "float": float, "Share": Share, "Count": Count, "Kinds": Kinds,
    "Blocks": Blocks, "Sizes": Sizes, "tuple[int, ...]": Stages,
}  # fmt: skip
"""Types of fields as they are written; a module that does not evaluate its annotations has only that."""


def field_type(field: Field[Any]) -> Any:
    """Type of a configuration's field, one of those above.

    Raises:
        TypeError: it is none of them.
    """
    found = _NAMES.get(field.type) if isinstance(field.type, str) else field.type
    if found not in _FIELDS:
        raise TypeError(f"field {field.name} of a model family is {field.type}: it may be {', '.join(_NAMES)}")
    return found


def wrong_value(field: Field[Any], value: Any) -> str:
    """What a configuration's value must be, or ``""`` if it is."""
    says, allows = _FIELDS[field_type(field)]
    return "" if allows(value, field.default) else says


@dataclass(frozen=True)
class Family(ABC):
    """A configuration that can be built.  One subclass, a frozen dataclass, per file in ``sources/models``.

    Class attributes:
        model_types: the ``model_type`` of Hugging Face configurations that it reads.
        other_names: of keys that such configurations call otherwise, by that name.
        left_out: what such configurations mean where they leave a key out; published ones leave out what is usual.
        fixed: keys of such configurations whose one supported value (or values) it takes for granted.
        architectures: what a class that such a configuration names in its ``architectures`` changes in it.
        precision, optimizer: what is usual.
        reads: what it reads, for messages.
        sized_by: the option that says how large a sample is, ``sequence_length``, ``image_size`` or none.
        writes: whether it answers a text with a text, token by token.
    """

    model_types: ClassVar[tuple[str, ...]] = ()
    other_names: ClassVar[Mapping[str, str]] = {}
    left_out: ClassVar[Mapping[str, Any]] = {}
    fixed: ClassVar[Mapping[str, Any]] = {}
    architectures: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    precision: ClassVar[str]
    optimizer: ClassVar[str]
    reads: ClassVar[str]
    sized_by: ClassVar[str] = ""
    writes: ClassVar[bool] = False

    def problem(self) -> str:
        """What is wrong with the configuration, or ``""``."""
        return ""

    @abstractmethod
    def weights(self) -> Weights:
        """Parameters and buffers under the names of the usual implementation, in its order."""

    @abstractmethod
    def forward(self, net: Net, x: Tensor) -> Tensor:
        """Call the layers: from the input to scores [..., classes]."""

    @abstractmethod
    def inputs(self, net: Net, batch: Dim, size: int | None) -> tuple[Tensor, Tensor]:
        """The step's input and its labels; ``size`` is what was asked for by the option ``sized_by``."""

    def extent(self, x: Tensor) -> str:
        """How large the samples of the input are, for the title of a trace."""
        return ""

    def loss(self, net: Net, scores: Tensor, labels: Tensor) -> Tensor:
        """What is differentiated."""
        return net.cross_entropy(scores, labels)

    def untrained(self) -> Family:
        """The model without what is there for training alone."""
        return self

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """A configuration of Hugging Face with what stands in tables and lists of its own as plain keys."""
        return table


class Text(Family):
    """Models that read tokens [batch, sequence] and score the vocabulary at each."""

    precision = "bfloat16"
    optimizer = "adamw"
    reads = "text"
    sized_by = "sequence_length"
    writes = True
    bounded: ClassVar[bool] = False
    vocab_size: int

    @property
    @abstractmethod
    def longest(self) -> int:
        """Positions that the model was made for; with ``bounded`` it has no more."""

    @property
    def vocabulary(self) -> Dim:
        """Its size, as a dimension of weights and scores."""
        return Dim(self.vocab_size, VOCABULARY)

    def inputs(self, net: Net, batch: Dim, size: int | None) -> tuple[Tensor, Tensor]:
        length = Dim(size or min(self.longest, 8192), SEQUENCE)
        if self.bounded and length > self.longest:
            raise InputError(
                f"sequence length {int(length)} is more than the {self.longest} positions that the model has: "
                f"give at most {self.longest}"
            )
        tokens = net.tensor((batch, length), "int64", Category.INPUT)
        return tokens, net.tensor((batch, length), "int64", Category.LABEL)

    def loss(self, net: Net, scores: Tensor, labels: Tensor) -> Tensor:
        batch, length, classes = scores.shape
        rows = batch * length
        return net.cross_entropy(net.view(scores, (rows, classes)), net.view(labels, (rows,)))


class Images(Family):
    """Models that read images [batch, 3, size, size] and score classes."""

    precision = "float32"
    optimizer = "sgd"
    reads = "images"
    sized_by = "image_size"

    def extent(self, x: Tensor) -> str:
        return f"{int(x.shape[2])} pixels"

    def inputs(self, net: Net, batch: Dim, size: int | None) -> tuple[Tensor, Tensor]:
        image = net.tensor((batch, 3, size or 224, size or 224), net.precision, Category.INPUT)
        return image, net.tensor((batch,), "int64", Category.LABEL)


class Noise(Family):
    """Models that read noisy latents [batch, channels, size, size] of an image and predict what is to be taken off.

    They are trained by the squared error of that.  An image has :data:`PIXELS` times as many pixels along each side.
    """

    precision = "bfloat16"
    optimizer = "adamw"
    reads = "latents of images"
    sized_by = "image_size"
    in_channels: int
    sample_size: int

    def extent(self, x: Tensor) -> str:
        return f"{PIXELS * int(x.shape[2])} pixels"

    def inputs(self, net: Net, batch: Dim, size: int | None) -> tuple[Tensor, Tensor]:
        if size is not None and size % PIXELS:
            raise InputError(f"image_size {size} is not a multiple of {PIXELS}: give one that is")
        side = size // PIXELS if size else self.sample_size
        latents = net.tensor((batch, self.in_channels, side, side), net.precision, Category.INPUT)
        return latents, net.tensor(latents.shape, net.precision, Category.LABEL)

    def loss(self, net: Net, scores: Tensor, labels: Tensor) -> Tensor:
        return squared_error(net, scores, labels)


PIXELS = 8
"""Along each side of an image for one element of its latents (Rombach et al., arXiv:2112.10752)."""


def flattened(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A table with the keys of the tables within it that have these names; its own keys go before theirs."""
    inner = [value for name in names if isinstance(value := table.get(name), dict)]
    flat = {key: value for part in inner for key, value in part.items()}
    return {**flat, **{key: value for key, value in table.items() if key not in names}}


def divides(family: Family, parts: str, whole: str) -> str:
    """For :meth:`Family.problem`: complains unless the field ``parts`` divides the field ``whole``."""
    n, total = getattr(family, parts), getattr(family, whole)
    return f"{parts} {n} does not divide {whole} {total}" if n and total % n else ""
