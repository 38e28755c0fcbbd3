"""A model being called: its tensors by name, and which kernels stand for its layers."""

from __future__ import annotations

from collections.abc import Collection

from triosim.sources.models._lora import Lora
from triosim.sources.models._tape import Tape, Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import Category


class ModelCall(Tape):
    """A model being called.

    Args:
        weights: what the model declared.
        precision: element type of weights and activations.
        training: also record what the derivatives need.
        fused: call the fused operators of large-model frameworks where there is one.
        attention: kernels of attention, one of :data:`ATTENTIONS`.
        fused_softmax: of an unfused attention: scale, mask and softmax are one kernel.
        norms: how an RMS norm is run, one of :data:`~triosim.sources.models._norms.NORMS`.
        fused_loss: whether cross entropy is one kernel; by default with ``fused``.
        fused_gate: whether SwiGLU is; by default with ``fused``.
        stored_gate: type in which it keeps what it read, ``""`` for its own.
        added_biases: biases of linear layers are added by kernels of their own.
        copied_heads: of an unfused attention: heads are copied to lie one after the other before its products, and so
            are their gradients afterwards.
        repeated_heads: keys and values of grouped heads are copied for each head of queries before attention.
        autocast: type in which products run although weights and what they read are float32
            (:mod:`triosim.sources.models._autocast`); empty for the types of their inputs.
        lora: adapters; the model's own weights are frozen then.
        narrow: paths of linear layers whose frozen weights lie in 4 bits.
        adapters: whether the adapters are called; without them the frozen weights alone work.

    Attributes:
        kernel: the kernels of attention.
        parameters, buffers: tensors by qualified name.
        further: scores of tokens further on than the next, whose loss is added.
        looked_up: the rows that a sparse gradient is of, by the storage of its table.
        linears: paths of the linear layers that were called, where there are adapters.
        lowered_weights: weights as autocast has copied them, by the value that was copied.
    """

    def __init__(
        self,
        weights: Weights,
        precision: str,
        training: bool,
        fused: bool = False,
        attention: str = "auto",
        fused_softmax: bool = True,
        lora: Lora | None = None,
        narrow: Collection[str] = (),
        adapters: bool = True,
        norms: str = "one",
        fused_loss: bool | None = None,
        fused_gate: bool | None = None,
        added_biases: bool = False,
        copied_heads: bool = False,
        autocast: str = "",
        repeated_heads: bool = False,
        stored_gate: str = "",
    ) -> None:
        super().__init__(training)
        self.adapters = adapters
        self.lora = lora
        self.narrow = narrow
        self.linears: dict[str, None] = {}
        self.precision = precision
        self.fused = fused
        self.kernel = attention
        self.fused_softmax = fused_softmax
        self.norms = norms
        self.fused_loss = fused if fused_loss is None else fused_loss
        self.fused_gate = fused if fused_gate is None else fused_gate
        self.stored_gate = stored_gate
        self.added_biases, self.copied_heads, self.repeated_heads = added_biases, copied_heads, repeated_heads
        self.autocast = autocast
        self.lowered_weights: dict[int, Tensor] = {}
        self.parameters: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self.further: list[Tensor] = []
        self.looked_up: dict[int, Tensor] = {}
        for name, shape in weights.parameters.items():
            dtype = "float32" if name in weights.full_precision else precision
            dtype = "int4" if name.endswith(".weight") and name.removesuffix(".weight") in narrow else dtype
            trained = training and lora is None and name not in weights.frozen
            self.parameters[name] = self.tensor(shape, dtype, Category.WEIGHT, needs_grad=trained, name=name)
        for name, (shape, dtype) in weights.buffers.items():
            self.buffers[name] = self.tensor(shape, dtype, Category.BUFFER, name=name)

    def parameter(self, name: str) -> Tensor:
        """The parameter ``name`` of the module that is being called."""
        return self.parameters[f"{self.path}.{name}"]

    def optional(self, name: str) -> Tensor | None:
        """The parameter ``name`` of the module that is being called, None if it has none."""
        return self.parameters.get(f"{self.path}.{name}")

    def _like(self, x: Tensor, needs_grad: bool | None = None) -> Tensor:
        return self.tensor(x.shape, x.dtype, needs_grad=x.needs_grad if needs_grad is None else needs_grad)
