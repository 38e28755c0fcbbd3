"""Low-rank adapters beside the products of a model whose own weights are frozen.

A linear layer ``y = x W^T`` becomes ``y = x W^T + s (x A^T) B^T`` with A of ``rank x inputs`` and B of ``outputs x
rank`` (Hu et al., LoRA, arXiv:2106.09685, section 4.1), called in the order of Hugging Face's ``peft``.  The model's
own weights need no gradient: they have none, no optimizer state and no float32 copy, and the backward ends at the first
adapter.  Adapters have the model's element type.

With ``base=nf4`` the frozen weights of the adapted layers lie in memory in 4 bits with a scale of 8 bits for every 64
(Dettmers et al., QLoRA, arXiv:2305.14314, section 3: blocks of 64, double quantization), and are brought back to the
model's element type before each product, in the forward and again in the backward (``bitsandbytes``: ``MatMul4Bit``).

With ``base=quantized`` the frozen matrices of the blocks lie in memory as products multiply them
(:mod:`triosim.transform.quantization`), so that nothing casts them: Transformer Engine's ``fp8_model_init``, which NeMo
calls ``fp8_params``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.options import AtLeast, configured
from triosim.sources.models._tape import Tensor
from triosim.trace.tables import Category

if TYPE_CHECKING:
    from collections.abc import Callable

    from triosim.sources.models._products import ProductLayers

BLOCK = 64
"""Weights that share a scale (QLoRA, section 3)."""
NAMES_TOLD = 12
"""Of linear layers, where no target is found."""


@dataclass(frozen=True)
class Lora:
    """What is adapted, and how.

    Attributes:
        rank: of the adapters.
        targets: ``all`` linear layers of the repeated blocks, those of ``attention``, or names joined by ``+``.
        base: element type in which the frozen weights of adapted layers lie: the model's, or ``nf4``; ``quantized`` is
            that in which all products of the blocks multiply.
        dora: whether each output of an adapted layer has a magnitude of its own.
    """

    rank: Annotated[int, AtLeast(1)]
    targets: str = "all"
    base: Literal["same", "nf4", "quantized"] = "same"
    dora: bool = False

    def keeps(self, name: str, dimensions: int) -> bool:
        """Whether a frozen parameter lies in memory as products multiply it."""
        inside = any(part.isdecimal() for part in name.split("."))
        return self.base == "quantized" and inside and dimensions == 2 and name.endswith(".weight")

    def meets(self, path: str) -> bool:
        """Whether the linear layer of a path is adapted."""
        from triosim.sources.models._dora import MAGNITUDE

        parts = path.split(".")
        inside = next((at for at, part in enumerate(parts) if part.isdecimal()), None)
        if inside is None or parts[-1] in ("lora_A", "lora_B", MAGNITUDE):
            return False
        within = parts[inside + 1 :]
        if self.targets == "all":
            return True
        if self.targets == "attention":
            return any("attn" in part.lower() or "attention" in part.lower() for part in within[:-1])
        return within[-1] in self.targets.split("+")


def lora(text: str) -> Lora:
    """Adapters as they are typed: ``16`` or ``16,targets=q_proj+v_proj,base=nf4``.

    Raises:
        InputError: there is no such option or value.
    """
    rank, *options = text.split(",")
    given = {"rank": rank.strip(), **dict(one.partition("=")[::2] for one in options)}
    return configured(Lora, given, f"lora {text}")


def adapted(net: ProductLayers, x: Tensor, y: Tensor, weight: Callable[[], Tensor], bias: Tensor | None) -> Tensor:
    """``y``, what the linear layer that is being called makes of ``x``, with its adapter added where it has one.

    Args:
        net: the model.
        x: [..., inputs].
        y: [..., outputs].
        weight: gives the frozen weight [outputs, inputs] in the model's element type.
        bias: of the layer, None for none.
    """
    if net.lora is None:
        return y
    net.linears[net.path] = None
    if not (net.adapters and net.lora.meets(net.path)):
        return y
    for name, shape in (("lora_A", (net.lora.rank, x.shape[-1])), ("lora_B", (y.shape[-1], net.lora.rank))):
        whole = f"{net.path}.{name}.weight"
        if whole not in net.parameters:
            net.parameters[whole] = net.tensor(
                tuple(int(size) for size in shape), net.precision, Category.WEIGHT, needs_grad=net.training, name=whole
            )

    def adapter(x: Tensor) -> Tensor:
        return net.linear("lora_B", net.linear("lora_A", x))

    if net.lora.dora:
        from triosim.sources.models._dora import with_magnitude

        return with_magnitude(net, x, y, weight, bias, adapter)
    return net.add(y, net.scaled(adapter(x)))


def frozen_product(net: ProductLayers, x: Tensor, weight: Tensor) -> Tensor:
    """``x`` [m, inputs] times a weight in 4 bits [outputs, inputs], transposed."""
    path = net.path
    y = net.tensor((x.shape[0], weight.shape[0]), x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::mm", ("self", "mat2"), (x, net.t(widened(net, weight))), (y,))

    def rule(g: Tensor) -> None:
        net.give(x, net.mm(g, widened(net, weight, path)))

    net.derivative(row, (y,), rule)
    return y


def widened(net: ProductLayers, weight: Tensor, path: str = "") -> Tensor:
    """A weight in 4 bits of the layer of a path, by default of that being called, in the model's element type."""
    name, shape = f"{path or net.path}.absmax", (weight.shape[0], math.ceil(weight.shape[1] / BLOCK))
    if name not in net.buffers:
        net.buffers[name] = net.tensor(shape, "uint8", Category.BUFFER, name=name)
    made = net.tensor(weight.shape, net.autocast or net.precision)
    net.operator("bitsandbytes::dequantize_4bit", ("absmax", "self"), (net.buffers[name], weight), (made,))
    return made


def checked(net: ProductLayers, title: str) -> None:
    """Refuse adapters of which there are none.

    Raises:
        InputError: no layer was adapted.
    """
    if net.lora is not None and net.adapters and not any(name.endswith("lora_A.weight") for name in net.parameters):
        names = dict.fromkeys(path.rpartition(".")[2] for path in net.linears)
        known = ", ".join(list(names)[:NAMES_TOLD]) or "none"
        raise InputError(
            f"lora: model {quoted(title)} has no linear layer {quoted(net.lora.targets)} in its blocks: say all, "
            f"attention, or of its linear layers: {known}"
        )
