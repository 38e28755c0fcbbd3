"""The layers that models are written with.

A model declares its :class:`~triosim.sources.models._weights.Weights` under the names of its usual implementation and
then calls the layers of a :class:`Net` in order.  Each layer appends the operators that PyTorch dispatches for it on a
CUDA device and leaves their derivatives on the tape; derivative formulas are those of PyTorch's ``derivatives.yaml``.

Layers lie by what they do, each file over the ones before: ``_shapes`` (views, copies), ``_pointwise``, ``_products``
(linear layers), ``_attention``, ``_lookups`` (embeddings), ``_norms``, ``_convolution`` (and pooling), ``_losses``.
"""

from __future__ import annotations

from triosim.sources.models._attention import AttentionLayers
from triosim.sources.models._convolution import ConvolutionLayers
from triosim.sources.models._lookups import LookupLayers
from triosim.sources.models._losses import LossLayers
from triosim.sources.models._norms import NormLayers


class Net(AttentionLayers, LookupLayers, NormLayers, ConvolutionLayers, LossLayers):
    """A model being called, with all layers; arguments and attributes are those of
    :class:`~triosim.sources.models._call.ModelCall`."""
