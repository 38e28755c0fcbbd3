"""Decoders that give one number for each token, a value or a reward, instead of scores of the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triosim.core.errors import InputError, quoted
from triosim.sources.models._decoder import Decoder
from triosim.sources.models._losses import squared_error
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import Category

if TYPE_CHECKING:
    from triosim.sources.models._family import Family

HEAD = "score"
"""Name of the last product, as Hugging Face's ``...ForTokenClassification`` has it."""


class _WithValueHead:
    """A decoder before which this stands: its last product has one output, and it is trained by the squared error."""

    def weights(self: Any) -> Weights:
        """Of the decoder, with another last product."""
        w: Weights = super().weights()  # type: ignore[misc]
        for name in [name for name in w.parameters if name.rpartition(".")[0] == self.layout.head]:
            del w.parameters[name]
        w.linear(HEAD, self.width, 1, bias=False)
        return w

    def score(self, net: Net, x: Tensor) -> Tensor:
        """[batch, sequence, 1]."""
        return net.linear(HEAD, x)

    def loss(self, net: Net, scores: Tensor, labels: Tensor) -> Tensor:
        """The squared error to the returns [batch, sequence]."""
        returns = net.tensor(labels.shape, "float32", Category.LABEL)
        return squared_error(net, net.view(scores, labels.shape), returns)


def valued(family: Family, title: str) -> Family:
    """The decoder with one number for each token.

    Raises:
        InputError: the model is no decoder.
    """
    if not isinstance(family, Decoder):
        raise InputError(f"model {quoted(title)} is no decoder, so it cannot score answers: name one that is")
    base = type(family.untrained())
    made: Family = type(base.__name__, (_WithValueHead, base), {})(**vars(family.untrained()))
    return made
