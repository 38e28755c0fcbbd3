"""A model being called: its tensors by name, and which kernels stand for its layers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from triosim.sources.models._kernels import LayerKernels
from triosim.sources.models._lora import Lora
from triosim.sources.models._tape import Tape, Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import Category

KEPT = "float8_e4m3fn"
"""Type of frozen weights that lie as products multiply them, before it is known how these do."""


class ModelCall(Tape):
    """A model being called.

    Args:
        weights: what the model declared.
        precision: element type of weights and activations.
        training: also record what the derivatives need.
        kernels: which a framework calls for the model's layers.
        autocast: type in which products run although weights and what they read are float32
            (:mod:`triosim.sources.models._autocast`); empty for the types of their inputs.
        lora: adapters; the model's own weights are frozen then.
        narrow: paths of linear layers whose frozen weights lie in 4 bits.
        adapters: whether the adapters are called; without them the frozen weights alone work.

    Attributes:
        parameters, buffers: tensors by qualified name.
        further: scores of tokens further on than the next, whose loss is added.
        kept: what blocks leave for later ones, by name.
        looked_up: the rows that a sparse gradient is of, by the storage of its table.
        linears: paths of the linear layers that were called, where there are adapters.
        lowered_weights: weights as autocast has copied them, by the value that was copied.
    """

    def __init__(
        self,
        weights: Weights,
        precision: str,
        training: bool,
        kernels: LayerKernels,
        lora: Lora | None = None,
        narrow: Collection[str] = (),
        adapters: bool = True,
        autocast: str = "",
    ) -> None:
        super().__init__(training)
        self.adapters = adapters
        self.lora = lora
        self.narrow = narrow
        self.linears: dict[str, None] = {}
        self.precision = precision
        self.kernels = kernels
        self.autocast = autocast
        self.lowered_weights: dict[int, Tensor] = {}
        self.parameters: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self.further: list[Tensor] = []
        self.kept: dict[str, tuple[Tensor, ...]] = {}
        self.looked_up: dict[int, Tensor] = {}
        for name, shape in weights.parameters.items():
            dtype = "float32" if name in weights.full_precision else precision
            dtype = "int4" if name.endswith(".weight") and name.removesuffix(".weight") in narrow else dtype
            dtype = KEPT if lora is not None and lora.keeps(name, len(shape)) else dtype
            trained = training and lora is None and name not in weights.frozen
            self.parameters[name] = self.tensor(shape, dtype, Category.WEIGHT, needs_grad=trained, name=name)
        for name, (shape, dtype) in weights.buffers.items():
            self.buffers[name] = self.tensor(shape, dtype, Category.BUFFER, name=name)

    def parameter(self, name: str) -> Tensor:
        """The parameter ``name`` of the module that is being called."""
        return self.parameters[f"{self.path}.{name}"]

    @contextmanager
    def sharing(self, path: str, owner: str) -> Iterator[None]:
        """What is called inside finds the parameters of the module ``owner`` under ``path`` too."""
        before = f"{owner}."
        named = {
            f"{path}.{name.removeprefix(before)}": tensor
            for name, tensor in self.parameters.items()
            if name.startswith(before) and path != owner
        }
        self.parameters.update(named)
        yield
        for name in named:
            del self.parameters[name]

    def optional(self, name: str) -> Tensor | None:
        """The parameter ``name`` of the module that is being called, None if it has none."""
        return self.parameters.get(f"{self.path}.{name}")

    def _like(self, x: Tensor, needs_grad: bool | None = None) -> Tensor:
        return self.tensor(x.shape, x.dtype, needs_grad=x.needs_grad if needs_grad is None else needs_grad)
