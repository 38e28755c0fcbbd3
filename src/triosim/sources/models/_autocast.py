"""PyTorch's automatic mixed precision: which type an operator runs in where parameters are float32.

``torch.autocast`` runs products in 16 bits and norms, softmax and losses in float32, and leaves all else in the wider
of the types that it is given; what has another type is copied first (``aten/src/ATen/autocast_mode.h``, lists
``AT_FORALL_LOWER_PRECISION_FP`` and ``AT_FORALL_FP32``).  A parameter's copy is kept until the region of autocast ends
(``cached_cast`` in ``autocast_mode.cpp``), any other is made for each operator that reads it.  Parameters, their
gradients and the optimizer's states stay in float32; the backward runs in the types of the forward, and a gradient is
copied back where its tensor was copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from triosim.core.errors import InputError
from triosim.operators import kind
from triosim.sources.models._shapes import ShapeLayers
from triosim.sources.models._tape import Tensor
from triosim.trace.tables import Category, Phase

PRODUCTS = ("linear", "matmul", "attention", "convolution")
"""Kinds of operators that autocast runs in 16 bits."""
OF_LIBRARIES = ("experts", "scan", "selective-scan")
"""Kinds of operators on which autocast has no rule; what libraries do about it differs from release to release."""


class AutocastLayers(ShapeLayers):
    """The copies that autocast makes; nothing is copied without it, nor in the backward."""

    def operator(
        self,
        name: str,
        roles: Sequence[str],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        args: Mapping[str, Any] | None = None,
        *,
        view: bool = False,
    ) -> int:
        """As of :class:`Tape`.

        Raises:
            InputError: it is not known what autocast makes of the operator.
        """
        if self._casts and not view:
            what = kind(name)
            if what in OF_LIBRARIES or (what in PRODUCTS and outputs[0].dtype == "float32"):
                raise InputError(
                    f"--precision autocast-{self.autocast}: what autocast makes of {name} in "
                    f"{self.path or 'this model'} is not known: give --precision {self.autocast}, or record the step "
                    "(triosim trace record --fake)"
                )
        return super().operator(name, roles, inputs, outputs, args, view=view)

    def lowered(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Inputs of a product in 16 bits, copied from the last to the first, as the dispatcher's arguments are."""
        if not self._casts:
            return tensors
        return tuple(reversed([self._lowered(x) for x in reversed(tensors)]))

    def operands(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, bias_first: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What a layer multiplies and adds, as :meth:`lowered`; ``bias_first`` as the operator takes it."""
        if bias is None:
            x, weight = self.lowered(x, weight)
            return x, weight, None
        if bias_first:
            bias, x, weight = self.lowered(bias, x, weight)
            return x, weight, bias
        x, weight, bias = self.lowered(x, weight, bias)
        return x, weight, bias

    def raised(self, x: Tensor) -> Tensor:
        """An input in float32; a fused kernel reads what there is and computes in float32 by itself."""
        return self.to(x, "float32") if self._casts and not self.kernels.fused else x

    def normed(self, dtype: str) -> str:
        """Type of what a norm of float32 gives: a fused kernel writes what the product that reads it takes."""
        return self.autocast if self._casts and self.kernels.fused else dtype

    def cat(self, parts: Sequence[Tensor], dim: int, size: int | None = None) -> Tensor:
        """As of :class:`ShapeLayers`; parts of several types are copied to the widest first."""
        if self._casts and len({part.dtype for part in parts}) > 1:
            parts = [self.to(part, "float32") for part in parts]
        return super().cat(parts, dim, size)

    def give(self, tensor: Tensor, gradient: Tensor) -> None:
        """As of :class:`Tape`; autograd copies a gradient to the type of its tensor (``validate_outputs``)."""
        super().give(tensor, self.to(gradient, tensor.dtype) if self.autocast and tensor.needs_grad else gradient)

    @contextmanager
    def without_autocast(self) -> Iterator[None]:
        """What is called inside runs in the types that it is given (``torch.autocast(enabled=False)``)."""
        held, self.autocast = self.autocast, ""
        yield
        self.autocast = held

    @property
    def _casts(self) -> bool:
        return bool(self.autocast) and self.phase == Phase.FORWARD

    def _lowered(self, x: Tensor) -> Tensor:
        if x.dtype != "float32":
            return x
        if x.category != Category.WEIGHT or not x.needs_grad:
            return self.to(x, self.autocast)
        if x.value not in self.lowered_weights:
            self.lowered_weights[x.value] = self.to(x, self.autocast)
        return self.lowered_weights[x.value]
