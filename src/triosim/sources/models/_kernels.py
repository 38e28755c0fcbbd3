"""Which kernels a framework calls for the layers of a model: the same model, written otherwise."""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.errors import unknown

ATTENTIONS = ("auto", "unfused", "flash1", "flash2", "flash3", "cudnn")
"""See :attr:`LayerKernels.attention`."""
NORMS = ("one", "composed", "wide")
"""See :attr:`LayerKernels.norms`."""
LOSSES = ("", "fused", "composed", "in-place")
"""See :attr:`LayerKernels.loss`."""


@dataclass(frozen=True)
class LayerKernels:
    """Kernels of a model's layers; the default is what eager PyTorch runs.

    Attributes:
        fused: fused operators of large-model frameworks are called where there is one (rotary positions, SwiGLU, cross
            entropy, the optimizer).
        attention: kernels of attention.
        fused_softmax: of an unfused attention: scale, mask and softmax are one kernel.
        norms: how an RMS norm is run.
        loss: how cross entropy is run: by one kernel, operator by operator in float32 with a tensor for each step, or
            in steps that all write over one float32 copy of the scores; ``""`` is one kernel if ``fused``.
        fused_gate: whether SwiGLU is; None follows ``fused``.
        composed_gelu: whether the approximation of GELU by tanh that configurations call ``gelu_new`` is spelled out in
            eight operators; one otherwise.
        stored_gate: type in which one SwiGLU kernel keeps what it read for its backward; ``""`` for its own.
        added_biases: biases of linear layers are added by kernels of their own, not by the products.
        copied_heads: of an unfused attention: heads are copied to lie one after the other before its products, and so
            are their gradients afterwards.
        repeated_heads: keys and values of grouped heads are copied for each head of queries before attention.
        joined_products: queries, keys and values are made by one product, and so are gate and up, whatever the
            implementation does that a family is named after.
        one_by_one: experts are gone through one by one (Megatron-Core): the first product adds its bias itself, that
            of the second is weighed, added and joined in float32 by kernels for each expert, and limits of a gate
            (``clamped``) are kernels before its own.
        masters: the optimizer updates float32 copies of 16-bit parameters; otherwise these themselves, with states in
            their type.
    """

    fused: bool = False
    attention: str = "auto"
    fused_softmax: bool = True
    norms: str = "one"
    loss: str = ""
    fused_gate: bool | None = None
    composed_gelu: bool = False
    stored_gate: str = ""
    added_biases: bool = False
    copied_heads: bool = False
    repeated_heads: bool = False
    joined_products: bool = False
    one_by_one: bool = False
    masters: bool = True

    def check(self) -> None:
        """Refuse a kernel that nobody knows.

        Raises:
            InputError: of attention, of norms, or of the loss.
        """
        if self.attention not in ATTENTIONS:
            raise unknown("attention", self.attention, ATTENTIONS)
        if self.norms not in NORMS:
            raise unknown("norms", self.norms, NORMS)
        if self.loss not in LOSSES:
            raise unknown("loss", self.loss, LOSSES)

    @property
    def how_loss(self) -> str:
        """How cross entropy is run, one of the last three of :data:`LOSSES`."""
        return self.loss or ("fused" if self.fused else "composed")

    @property
    def one_gate(self) -> bool:
        """Whether SwiGLU is one kernel."""
        return self.fused if self.fused_gate is None else self.fused_gate
