"""The layers that models are written with.

A model declares its :class:`Weights` under the names of its usual implementation and then calls the layers of a
:class:`Net` in order.  Each layer appends the operators that PyTorch dispatches for it on a CUDA device and leaves
their derivatives on the tape; derivative formulas are those of PyTorch's ``derivatives.yaml``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from triosim.core.errors import InputError
from triosim.core.limits import WEIGHT_BYTES, check_memory
from triosim.operators import CHANNELS_LAST, LAYOUT
from triosim.sources.models._lora import Lora, adapted, frozen_product, widened
from triosim.sources.models._norms import composed
from triosim.sources.models._tape import Shape, Tape, Tensor, symbols
from triosim.sources.models._unfused import unfused_attention
from triosim.trace.tables import Category

ATTENTIONS = ("auto", "unfused", "flash1", "flash2", "flash3", "cudnn")
"""Kernels of attention: what PyTorch's ``scaled_dot_product_attention`` runs on the device; scores and weights as
tensors of their own; a version of FlashAttention; cuDNN's, the vendor's best for the device."""

_CHECKED = 1000  # after so many weights each


class Weights:
    """Parameters and buffers of a model by qualified name, in the order in which its modules register them.

    Attributes:
        parameters: shape of each parameter.
        buffers: shape and element type of each buffer.
        full_precision: names that stay in float32 whatever precision the model runs in.
        frozen: names that are not trained.
    """

    def __init__(self) -> None:
        self.parameters: dict[str, tuple[int, ...]] = {}
        self.buffers: dict[str, tuple[tuple[int, ...], str]] = {}
        self.full_precision: set[str] = set()
        self.frozen: set[str] = set()

    def count(self) -> int:
        """Number of parameters; a tied weight counts once."""
        return int(sum(math.prod(shape) for shape in self.parameters.values()))

    def add(self, name: str, *shape: int) -> None:
        """One parameter.

        Raises:
            InputError: a step with so many takes more memory than there may be.
        """
        self.parameters[name] = shape
        if len(self.parameters) % _CHECKED == 0:
            check_memory(WEIGHT_BYTES * len(self.parameters), "a model of so many layers", "use fewer layers")

    def linear(self, name: str, inputs: int, outputs: int, bias: bool = True) -> None:
        """``torch.nn.Linear``: weight [outputs, inputs]."""
        self.add(f"{name}.weight", outputs, inputs)
        if bias:
            self.add(f"{name}.bias", outputs)

    def embedding(self, name: str, rows: int, width: int) -> None:
        """``torch.nn.Embedding``."""
        self.add(f"{name}.weight", rows, width)

    def norm(self, name: str, width: int, bias: bool = True) -> None:
        """``torch.nn.LayerNorm``, or without bias ``torch.nn.RMSNorm``."""
        self.add(f"{name}.weight", width)
        if bias:
            self.add(f"{name}.bias", width)

    def conv2d(self, name: str, inputs: int, outputs: int, kernel: int, groups: int = 1, bias: bool = False) -> None:
        """``torch.nn.Conv2d`` with a square window: weight [outputs, inputs / groups, kernel, kernel]."""
        self.add(f"{name}.weight", outputs, inputs // groups, kernel, kernel)
        if bias:
            self.add(f"{name}.bias", outputs)

    def batch_norm(self, name: str, channels: int) -> None:
        """``torch.nn.BatchNorm2d``; in mixed precision its weights and statistics stay in float32."""
        self.norm(name, channels)
        self.full_precision |= {f"{name}.weight", f"{name}.bias"}
        for statistic in ("running_mean", "running_var"):
            self.buffers[f"{name}.{statistic}"] = ((channels,), "float32")
        self.buffers[f"{name}.num_batches_tracked"] = ((), "int64")


class Net(Tape):
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
        added_biases: biases of linear layers are added by kernels of their own.
        copied_heads: of an unfused attention: heads are copied to lie one after the other before its products, and so
            are their gradients afterwards.
        lora: adapters; the model's own weights are frozen then.
        narrow: paths of linear layers whose frozen weights lie in 4 bits.
        adapters: whether the adapters are called; without them the frozen weights alone work.

    Attributes:
        kernel: the kernels of attention.
        parameters, buffers: tensors by qualified name.
        further: scores of tokens further on than the next, whose loss is added.
        looked_up: the rows that a sparse gradient is of, by the storage of its table.
        linears: paths of the linear layers that were called, where there are adapters.
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
        self.added_biases, self.copied_heads = added_biases, copied_heads
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

    # --- views --------------------------------------------------------------------------------------------------------

    def view(self, x: Tensor, shape: Shape, name: str = "aten::view", strided_gradient: bool = False) -> Tensor:
        """The same elements in the same order with other dimensions.

        ``strided_gradient`` says that the gradient comes in a layout that has to be copied before it is reshaped.
        """
        y = self.alias(x, shape)
        row = self.operator(name, ("self",), (x,), (y,), view=True)

        def rule(g: Tensor) -> None:
            dx = self.view(self.clone(g), x.shape, "aten::_unsafe_view") if strided_gradient else self.view(g, x.shape)
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def t(self, x: Tensor) -> Tensor:
        """A matrix transposed."""
        y = self.alias(x, x.shape[::-1])
        row = self.operator("aten::t", ("self",), (x,), (y,), view=True)
        self.derivative(row, (y,), lambda g: self.give(x, self.t(g)))
        return y

    def transpose(self, x: Tensor, dim0: int, dim1: int) -> Tensor:
        """Two dimensions exchanged."""
        shape = list(x.shape)
        shape[dim0], shape[dim1] = shape[dim1], shape[dim0]
        y = self.alias(x, tuple(shape))
        row = self.operator("aten::transpose", ("self",), (x,), (y,), {"dim0": dim0, "dim1": dim1}, view=True)
        self.derivative(row, (y,), lambda g: self.give(x, self.transpose(g, dim0, dim1)))
        return y

    def permute(self, x: Tensor, dims: Sequence[int]) -> Tensor:
        """The dimensions of ``x`` in another order."""
        y = self.alias(x, tuple(x.shape[d] for d in dims))
        row = self.operator("aten::permute", ("self",), (x,), (y,), {"dims": list(dims)}, view=True)
        back = [list(dims).index(d) for d in range(len(dims))]
        self.derivative(row, (y,), lambda g: self.give(x, self.permute(g, back)))
        return y

    def select(self, x: Tensor, dim: int, index: int) -> Tensor:
        """What is at ``index`` of one dimension."""
        y = self.alias(x, (*x.shape[:dim], *x.shape[dim + 1 :]), index * math.prod(x.shape[dim + 1 :]))
        args = {"dim": dim, "index": index}
        row = self.operator("aten::select", ("self",), (x,), (y,), args, view=True)

        def rule(g: Tensor) -> None:
            whole = self.tensor(x.shape, x.dtype)
            self.operator("aten::select_backward", ("grad_output",), (g,), (whole,), args)
            self.give(x, whole)

        self.derivative(row, (y,), rule)
        return y

    def unsqueeze(self, x: Tensor, dim: int) -> Tensor:
        """A dimension of size one put in."""
        y = self.alias(x, (*x.shape[:dim], 1, *x.shape[dim:]))
        row = self.operator("aten::unsqueeze", ("self",), (x,), (y,), {"dim": dim}, view=True)
        self.derivative(row, (y,), lambda g: self.give(x, self.squeeze(g, dim)))
        return y

    def squeeze(self, x: Tensor, dim: int) -> Tensor:
        """A dimension of size one left out; for tensors that need no gradient."""
        y = self.alias(x, (*x.shape[:dim], *x.shape[dim + 1 :]))
        self.operator("aten::squeeze", ("self",), (x,), (y,), {"dim": dim}, view=True)
        return y

    def expanded(self, x: Tensor, dim: int, size: int) -> Tensor:
        """A dimension of one repeated ``size`` times without a copy."""
        y = self.alias(x, (*x.shape[:dim], size, *x.shape[dim + 1 :]))
        row = self.operator("aten::expand", ("self",), (x,), (y,), view=True)
        self.derivative(row, (y,), lambda g: self.give(x, self._sum(g, dim, x.shape, keepdim=True)))
        return y

    def slice(self, x: Tensor, dim: int, start: int, end: int) -> Tensor:
        """Elements ``start`` to ``end`` of one dimension."""
        size = end - start if start else end  # a dimension that follows something still does
        y = self.alias(x, (*x.shape[:dim], size, *x.shape[dim + 1 :]), start * math.prod(x.shape[dim + 1 :]))
        args = {"dim": dim, "start": start, "end": end}
        row = self.operator("aten::slice", ("self",), (x,), (y,), args, view=True)

        def rule(g: Tensor) -> None:
            whole = self.tensor(x.shape, x.dtype)
            self.operator("aten::slice_backward", ("grad_output",), (g,), (whole,), args)
            self.give(x, whole)

        self.derivative(row, (y,), rule)
        return y

    def unbind(self, x: Tensor, dim: int = 0) -> list[Tensor]:
        """What is along one dimension, one by one."""
        shape, size = (*x.shape[:dim], *x.shape[dim + 1 :]), math.prod(x.shape[dim + 1 :])
        parts = [self.alias(x, shape, at * size) for at in range(x.shape[dim])]
        row = self.operator("aten::unbind", ("self",), (x,), parts, {"dim": dim}, view=True)
        self.derivative(row, parts, lambda *gradients: self.give(x, self.stack(gradients, dim)))
        return parts

    def stack(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        """Tensors of one shape put side by side along a new dimension."""
        first = parts[0]
        shape = (*first.shape[:dim], len(parts), *first.shape[dim:])
        y = self.tensor(shape, first.dtype, needs_grad=any(p.needs_grad for p in parts))
        row = self.operator("aten::stack", ("tensors",) * len(parts), parts, (y,), {"dim": dim})

        def rule(g: Tensor) -> None:
            for part, gradient in zip(parts, self.unbind(g, dim), strict=True):
                self.give(part, gradient)

        self.derivative(row, (y,), rule)
        return y

    def split(self, x: Tensor, sizes: Sequence[int], dim: int = -1) -> list[Tensor]:
        """One dimension, by default the last, cut into parts."""
        dim %= len(x.shape)
        starts = [sum(sizes[:i]) * math.prod(x.shape[dim + 1 :]) for i in range(len(sizes))]
        shapes = [(*x.shape[:dim], size, *x.shape[dim + 1 :]) for size in sizes]
        parts = [self.alias(x, shape, at) for shape, at in zip(shapes, starts, strict=True)]
        args = {"split_sizes": list(sizes), "dim": dim}
        row = self.operator("aten::split_with_sizes", ("self",), (x,), parts, args, view=True)
        self.derivative(row, parts, lambda *gradients: self.give(x, self.cat(gradients, dim)))
        return parts

    def indexed(self, x: Tensor, numbers: Tensor) -> Tensor:
        """Rows of ``x`` by their numbers, as indexing takes them."""
        y = self.tensor((*numbers.shape, *x.shape[1:]), x.dtype, needs_grad=x.needs_grad)
        row = self.operator("aten::index", ("self", "indices"), (x, numbers), (y,))

        def rule(g: Tensor) -> None:
            zeros, dx = self._like(x, False), self._like(x, False)
            self.operator("aten::new_zeros", ("self",), (g,), (zeros,))
            roles = ("self", "indices", "values")
            self.operator("aten::index_put", roles, (zeros, numbers, g), (dx,), {"accumulate": True})
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    # --- copies and elementwise ---------------------------------------------------------------------------------------

    def cat(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        """Tensors put one behind the other along one dimension, in the widest of their types."""
        parts = tuple(parts)  # the caller's list may grow before the derivative is taken
        first = parts[0]
        size = sum(p.shape[dim] for p in parts)
        shape = (*first.shape[:dim], size, *first.shape[dim + 1 :])
        dtype = "float32" if any(p.dtype == "float32" for p in parts) else first.dtype
        y = self.tensor(shape, dtype, needs_grad=any(p.needs_grad for p in parts))
        row = self.operator("aten::cat", ("tensors",) * len(parts), parts, (y,), {"dim": dim})

        def rule(g: Tensor) -> None:
            start, gradients = 0, []
            for part in parts:
                gradients.append((part, self.slice(g, dim, start, start + part.shape[dim])))
                start += part.shape[dim]
            for part, gradient in gradients:
                self.give(part, gradient)

        self.derivative(row, (y,), rule)
        return y

    def clone(self, x: Tensor) -> Tensor:
        """A contiguous copy."""
        y = self._like(x)
        row = self.operator("aten::clone", ("self",), (x,), (y,))
        self.derivative(row, (y,), lambda g: self.give(x, g))
        return y

    def to(self, x: Tensor, dtype: str) -> Tensor:
        """A copy in another element type; ``x`` itself if it has that type already."""
        if x.dtype == dtype:
            return x
        y = self.tensor(x.shape, dtype, needs_grad=x.needs_grad)
        row = self.operator("aten::_to_copy", ("self",), (x,), (y,), {"dtype": dtype})
        self.derivative(row, (y,), lambda g: self.give(x, self.to(g, x.dtype)))
        return y

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b in the type of ``a``, the wider; ``b`` may have a leading dimension of one where ``a`` has the batch.

        Its gradient is then summed over the batch, even of one, so that a step has the same operators at every batch.
        """
        y = self._like(a, a.needs_grad or b.needs_grad)
        row = self.operator("aten::add", ("self", "other"), (a, b), (y,))
        broadcast = symbols(a.shape) != symbols(b.shape)

        def rule(g: Tensor) -> None:
            self.give(a, g)
            if b.needs_grad:
                self.give(b, self._sum(g, 0, b.shape, keepdim=True) if broadcast else self.to(g, b.dtype))

        self.derivative(row, (y,), rule)
        return y

    def add_(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b, written into a."""
        y = self.overwritten(a, a.needs_grad or b.needs_grad)
        row = self.operator("aten::add_", ("self", "other"), (a, b), (y,))

        def rule(g: Tensor) -> None:
            self.give(a, g)
            self.give(b, g)

        self.derivative(row, (y,), rule)
        return y

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """a x b in the wider of their types; only ``a`` may need a gradient if the shapes differ."""
        dtype = "float32" if "float32" in (a.dtype, b.dtype) else a.dtype
        y = self.tensor(a.shape, dtype, needs_grad=a.needs_grad or b.needs_grad)
        row = self.operator("aten::mul", ("self", "other"), (a, b), (y,))

        def rule(g: Tensor) -> None:
            gradients = [(x, self.to(self.mul(g, other), x.dtype)) for x, other in ((a, b), (b, a)) if x.needs_grad]
            for x, gradient in gradients:
                self.give(x, gradient)

        self.derivative(row, (y,), rule)
        return y

    def scaled_by(self, x: Tensor, weight: Tensor) -> Tensor:
        """``x`` [..., width] times a parameter [width]."""
        y = self._like(x)
        row = self.operator("aten::mul", ("self", "other"), (weight, x), (y,))

        def rule(g: Tensor) -> None:
            dx, parts = self.mul(g, weight), self.mul(g, x)
            ones = (1,) * (len(x.shape) - 1)
            dw = self.tensor((*ones, *weight.shape), x.dtype)
            self.operator("aten::sum", ("self",), (parts,), (dw,), {"dim": list(range(len(ones))), "keepdim": True})
            self.give(weight, self.view(dw, weight.shape))
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def neg(self, x: Tensor) -> Tensor:
        """-x."""
        y = self._like(x)
        row = self.operator("aten::neg", ("self",), (x,), (y,))
        self.derivative(row, (y,), lambda g: self.give(x, self.neg(g)))
        return y

    def scaled(self, x: Tensor, name: str = "aten::mul") -> Tensor:
        """``x`` times (or over) a number."""
        y = self._like(x)
        row = self.operator(name, ("self",), (x,), (y,))
        self.derivative(row, (y,), lambda g: self.give(x, self.scaled(g, name)))
        return y

    def shifted(self, x: Tensor) -> Tensor:
        """``x`` plus a number."""
        y = self._like(x)
        row = self.operator("aten::add", ("self",), (x,), (y,))
        self.derivative(row, (y,), lambda g: self.give(x, g))
        return y

    def clamp(self, x: Tensor) -> Tensor:
        """``x`` kept within limits."""
        y = self._like(x)
        row = self.operator("aten::clamp", ("self",), (x,), (y,))

        def rule(g: Tensor) -> None:
            within, dx = self._like(x, False), self._like(x, False)
            self.operator("aten::le", ("self",), (x,), (within,))
            self.operator("aten::where", ("self", "other"), (within, g), (dx,))
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def tanh(self, x: Tensor) -> Tensor:
        """The hyperbolic tangent."""
        return self._of_result(x, "tanh")

    def sigmoid(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x))."""
        return self._of_result(x, "sigmoid")

    def _of_result(self, x: Tensor, name: str) -> Tensor:
        """A pointwise function whose derivative is one of its result."""
        y = self._like(x)
        row = self.operator(f"aten::{name}", ("self",), (x,), (y,))

        def rule(g: Tensor) -> None:
            dx = self._like(x, False)
            self.operator(f"aten::{name}_backward", ("grad_output", "output"), (g, y), (dx,))
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def unary(self, name: str, x: Tensor) -> Tensor:
        """A pointwise function of a tensor that needs no gradient (``aten::cos``)."""
        y = self._like(x, False)
        self.operator(name, ("self",), (x,), (y,))
        return y

    def gelu(self, x: Tensor, approximate: str = "none") -> Tensor:
        """Gaussian error linear unit, exact or by ``"tanh"``."""
        return self._activation(x, "gelu", {"approximate": approximate})

    def silu(self, x: Tensor) -> Tensor:
        """x * sigmoid(x)."""
        return self._activation(x, "silu", {})

    def _activation(self, x: Tensor, name: str, args: dict[str, str]) -> Tensor:
        y = self._like(x)
        row = self.operator(f"aten::{name}", ("self",), (x,), (y,), args)

        def rule(g: Tensor) -> None:
            dx = self._like(x, False)
            self.operator(f"aten::{name}_backward", ("grad_output", "self"), (g, x), (dx,), args)
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def swiglu(self, gate: Tensor, up: Tensor, weight: Tensor | None = None, clamped: bool = False) -> Tensor:
        """silu(gate) x up, and perhaps times a weight of each row [rows, 1], in one kernel; GPT-OSS's is clamped."""
        y = self._like(gate)
        name = f"transformer_engine::{'clamped_' * clamped}swiglu"
        read = (gate, up) if weight is None else (gate, up, weight)
        roles = ("gate", "up", "weight")[: len(read)]
        row = self.operator(name, roles, read, (y,))

        def rule(g: Tensor) -> None:
            gradients = [self._like(x, False) for x in read]
            self.operator(f"{name}_backward", ("grad_output", *roles), (g, *read), gradients)
            for x, gradient in zip(read, gradients, strict=True):
                self.give(x, gradient)

        self.derivative(row, (y,), rule)
        return y

    def squared_relu(self, x: Tensor, weight: Tensor) -> Tensor:
        """max(x, 0)^2 times a weight of each row [rows, 1], in one kernel."""
        y, name = self._like(x), "transformer_engine::squared_relu"
        row = self.operator(name, ("gate", "weight"), (x, weight), (y,))

        def rule(g: Tensor) -> None:
            dx, dw = self._like(x, False), self._like(weight, False)
            self.operator(f"{name}_backward", ("grad_output", "gate", "weight"), (g, x, weight), (dx, dw))
            self.give(x, dx)
            self.give(weight, dw)

        self.derivative(row, (y,), rule)
        return y

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary positions in one kernel; see :mod:`triosim.sources.models.llama` for the unfused one."""
        y = self._like(x)
        name = "transformer_engine::fused_rope"
        row = self.operator(name, ("input", "cos", "sin"), (x, cos, sin), (y,))

        def rule(g: Tensor) -> None:
            dx = self._like(x, False)
            self.operator(f"{name}_backward", ("grad_output", "cos", "sin"), (g, cos, sin), (dx,))
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def relu(self, x: Tensor) -> Tensor:
        """max(x, 0)."""
        y = self._like(x)
        row = self.operator("aten::relu", ("self",), (x,), (y,))
        self.derivative(row, (y,), lambda g: self.give(x, self._threshold(g, y)))
        return y

    def relu_(self, x: Tensor) -> Tensor:
        """max(x, 0), written into x."""
        y = self.overwritten(x)
        row = self.operator("aten::relu_", ("self",), (x,), (y,))
        self.derivative(row, (y,), lambda g: self.give(x, self._threshold(g, y)))
        return y

    def _threshold(self, g: Tensor, y: Tensor) -> Tensor:
        dx = self._like(y, False)
        self.operator("aten::threshold_backward", ("grad_output", "self"), (g, y), (dx,), {"threshold": 0})
        return dx

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Elements set to zero with probability ``p``; ``x`` itself where nothing is dropped."""
        if not self.training or p == 0:
            return x
        y, mask = self._like(x), self.tensor(x.shape, "bool")
        row = self.operator("aten::native_dropout", ("input",), (x,), (y, mask), {"p": p, "train": True})

        def rule(g: Tensor) -> None:
            dx = self._like(x, False)
            args = {"scale": 1 / (1 - p)}
            self.operator("aten::native_dropout_backward", ("grad_output", "mask"), (g, mask), (dx,), args)
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def _sum(self, x: Tensor, dim: int, shape: Shape, keepdim: bool) -> Tensor:
        y = self.tensor(shape, x.dtype)
        self.operator("aten::sum", ("self",), (x,), (y,), {"dim": [dim], "keepdim": keepdim})
        return y

    # --- matrix products ----------------------------------------------------------------------------------------------

    def linear(self, name: str, x: Tensor, tied: str = "", bias: str = "", strided_gradient: bool = False) -> Tensor:
        """``torch.nn.Linear`` over the last dimension of ``x``.

        Args:
            name: the layer's name in the module that is being called.
            x: [..., inputs].
            tied, bias: qualified names of a weight [outputs, inputs] and a bias to use instead of its own.
            strided_gradient: as of :meth:`view`.
        """
        with self.module(name, "Linear"):
            weight = self.parameters[tied] if tied else self.parameter("weight")
            added = self.parameters[bias] if bias else self.optional("bias")
            if self.path in self.narrow:
                return self._in_four_bits(x, weight, added)
            if len(x.shape) == 2:
                y = self.mm(x, self.t(weight), added, column_major=True)
                return adapted(self, x, y, lambda: weight, added)
            apart = added if self.added_biases else None
            y = self._product_of(x, weight, None if apart else added, strided_gradient)
            return adapted(self, x, self._with_bias(y, apart) if apart else y, lambda: weight, added)

    def _product_of(self, x: Tensor, weight: Tensor, bias: Tensor | None, strided_gradient: bool) -> Tensor:
        """``x`` [..., inputs] times a weight [outputs, inputs], plus a bias that the product adds."""
        flat_shape = (math.prod(x.shape[:-1]), x.shape[-1])
        if bias is None:
            transposed = self.t(weight)
            flat = self.view(x, flat_shape)
        else:
            flat = self.view(x, flat_shape)
            transposed = self.t(weight)
        y = self.mm(flat, transposed, bias, column_major=True)
        shape = (*x.shape[:-1], weight.shape[0])
        return self.view(y, shape, "aten::view" if bias else "aten::_unsafe_view", strided_gradient)

    def _with_bias(self, x: Tensor, bias: Tensor) -> Tensor:
        """A bias [outputs] added in place to what a product made."""
        y = self.overwritten(x, x.needs_grad or bias.needs_grad)
        row = self.operator("aten::add_", ("self", "other"), (x, bias), (y,))

        def rule(g: Tensor) -> None:
            if bias.needs_grad:
                flat = self.view(g, (math.prod(g.shape[:-1]), g.shape[-1]))
                self.give(bias, self.view(self._sum(flat, 0, (1, *bias.shape), keepdim=True), bias.shape))
            self.give(x, g)

        self.derivative(row, (y,), rule)
        return y

    def _in_four_bits(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A linear layer whose frozen weight lies in 4 bits, with its adapter."""
        flat = self.view(x, (math.prod(x.shape[:-1]), x.shape[-1]))
        y = frozen_product(self, flat, weight)
        y = self.view(y, (*x.shape[:-1], weight.shape[0]), "aten::_unsafe_view")
        return adapted(self, x, y if bias is None else self.add(y, bias), lambda: widened(self, weight), bias)

    def conv1d(self, name: str, x: Tensor) -> Tensor:
        """The ``Conv1D`` of GPT-2: a linear layer whose weight [inputs, outputs] is stored transposed."""
        with self.module(name, "Conv1D"):
            weight = self.parameter("weight")
            flat = self.view(x, (math.prod(x.shape[:-1]), x.shape[-1]))
            bias = self.optional("bias")
            y = self.mm(flat, weight, bias)
            return adapted(self, x, self.view(y, (*x.shape[:-1], weight.shape[1])), lambda: self.t(weight), bias)

    def mm(self, a: Tensor, b: Tensor, bias: Tensor | None = None, column_major: bool = False) -> Tensor:
        """a b (+ bias) for matrices [m, k] and [k, n]; ``column_major`` says that ``b`` is a transposed view."""
        y = self.tensor((a.shape[0], b.shape[1]), a.dtype, needs_grad=a.needs_grad or b.needs_grad)
        if bias is None:
            row = self.operator("aten::mm", ("self", "mat2"), (a, b), (y,))
        else:
            row = self.operator("aten::addmm", ("self", "mat1", "mat2"), (bias, a, b), (y,))

        def rule(g: Tensor) -> None:
            def of_a() -> Tensor | None:
                return self.mm(g, self.t(b)) if a.needs_grad else None

            def of_b() -> Tensor | None:
                if not b.needs_grad:
                    return None
                if column_major:  # comes out in the layout of b
                    return self.t(self.mm(self.t(g), a))
                return self.mm(self.t(a), g)

            if bias is None:
                db, da = of_b(), of_a()
            else:
                da, db = of_a(), of_b()
                if bias.needs_grad:
                    self.give(bias, self.view(self._sum(g, 0, (1, *bias.shape), keepdim=True), bias.shape))
            for x, gradient in ((a, da), (b, db)):
                if gradient is not None:
                    self.give(x, gradient)

        self.derivative(row, (y,), rule)
        return y

    def bmm(self, a: Tensor, b: Tensor) -> Tensor:
        """Products of pairs of matrices, [n, i, k] and [n, k, j]."""
        y = self.tensor((a.shape[0], a.shape[1], b.shape[2]), a.dtype, needs_grad=a.needs_grad or b.needs_grad)
        row = self.operator("aten::bmm", ("self", "mat2"), (a, b), (y,))

        def rule(g: Tensor) -> None:
            db = self.bmm(self.transpose(a, 1, 2), g) if b.needs_grad else None
            if a.needs_grad:
                self.give(a, self.bmm(g, self.transpose(b, 1, 2)))
            if db is not None:
                self.give(b, db)

        self.derivative(row, (y,), rule)
        return y

    # --- attention ----------------------------------------------------------------------------------------------------

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float = 0.0, window: int = 0, padded: bool = False
    ) -> Tensor:
        """``scaled_dot_product_attention`` as PyTorch's CUDA dispatch chooses it.

        16-bit types take FlashAttention, which reads grouped keys and values as they are; float32 takes the
        memory-efficient kernel, for which grouped heads are repeated first.

        Args:
            q: [batch, heads, queries, size].
            k, v: [batch, key-value heads, keys, size].
            causal: each query sees the keys up to its own.
            dropout: probability within the kernel (no mask is kept).
            window: keys that a query sees, its own among them; 0 for all.  FlashAttention skips the others.
            padded: a mask says which keys are padding; kernels that keep scores on the chip read it at no cost.

        With ``attention`` unfused scores and weights are tensors of their own instead, of which no window saves any;
        other kernels that are asked for are named in the operator's arguments.
        """
        if self.kernel == "unfused":
            k, v = (self._repeat_heads(x, q.shape[1]) if x.shape[1] != q.shape[1] else x for x in (k, v))
            mask = "causal" if causal else "padding" if padded else ""
            return self.transpose(unfused_attention(self, q, k, v, dropout, self.fused_softmax, mask), 1, 2)
        flash = q.dtype in ("float16", "bfloat16")
        if not flash and k.shape[1] != q.shape[1]:
            k, v = (self._repeat_heads(x, q.shape[1]) for x in (k, v))
        which = "flash" if flash else "efficient"
        name = f"aten::_scaled_dot_product_{which}_attention"
        args: dict[str, object] = {"dropout_p": dropout if self.training else 0.0, "is_causal": causal}
        if window and window < k.shape[2]:
            args["window_size_left"] = window - 1
        if flash and self.kernel != "auto":
            args["kernel"] = self.kernel
        y = self.tensor((*q.shape[:-1], v.shape[-1]), q.dtype, needs_grad=q.needs_grad or k.needs_grad or v.needs_grad)
        logsumexp = self.tensor(q.shape[:3], "float32")
        row = self.operator(name, ("query", "key", "value"), (q, k, v), (y, logsumexp), args)

        def rule(g: Tensor) -> None:
            gradients = [self._like(x, False) for x in (q, k, v)]
            roles = ("grad_out" if flash else "grad_out_", "query", "key", "value", "out", "logsumexp")
            self.operator(f"{name}_backward", roles, (g, q, k, v, y, logsumexp), gradients, args)
            for x, gradient in zip((q, k, v), gradients, strict=True):
                self.give(x, gradient)

        self.derivative(row, (y,), rule)
        return y

    def _repeat_heads(self, x: Tensor, heads: int) -> Tensor:
        batch, groups, length, size = x.shape
        y = self.tensor((batch, heads, length, size), x.dtype, needs_grad=x.needs_grad)
        args = {"repeats": heads // groups, "dim": 1}
        row = self.operator("aten::repeat_interleave", ("self",), (x,), (y,), args)

        def rule(g: Tensor) -> None:
            grouped = self.view(g, (batch, groups, heads // groups, length, size))
            self.give(x, self._sum(grouped, 2, x.shape, keepdim=False))

        self.derivative(row, (y,), rule)
        return y

    def positions(self, tokens: Tensor) -> Tensor:
        """0, 1, ... [sequence] for tokens [batch, sequence]."""
        y = self.tensor(tokens.shape[1:], "int64")
        self.operator("aten::arange", (), (), (y,))
        return y

    def zeros(self, tokens: Tensor) -> Tensor:
        """Zero for every token."""
        y = self._like(tokens)
        self.operator("aten::zeros", (), (), (y,))
        return y

    # --- normalization, embedding -------------------------------------------------------------------------------------

    def embedding(self, name: str, indices: Tensor, tied: str = "") -> Tensor:
        """Rows of a table, its own or the one of the qualified name ``tied``."""
        with self.module(name, "Embedding"):
            table = self.parameters[tied] if tied else self.parameter("weight")
            y = self.tensor((*indices.shape, table.shape[1]), table.dtype, needs_grad=table.needs_grad)
            row = self.operator("aten::embedding", ("weight", "indices"), (table, indices), (y,))

        def rule(g: Tensor) -> None:
            gradient = self._like(table, False)
            args = {"num_weights": table.shape[0]}
            self.operator("aten::embedding_dense_backward", ("grad_output", "indices"), (g, indices), (gradient,), args)
            self.give(table, gradient)

        self.derivative(row, (y,), rule)
        return y

    def layer_norm(self, name: str, x: Tensor) -> Tensor:
        """``torch.nn.LayerNorm`` over the last dimension; without weight and bias where the module has none."""
        with self.module(name, "LayerNorm"):
            affine = tuple(p for p in (self.optional("weight"), self.optional("bias")) if p is not None)
            roles = ("weight", "bias")[: len(affine)]
            y = self._like(x, any(p.needs_grad for p in (x, *affine)))
            mean, rstd = (self.tensor((*x.shape[:-1], 1), "float32") for _ in range(2))
            args = {"normalized_shape": [x.shape[-1]]}
            op = "transformer_engine::layer_norm" if self.fused else "aten::native_layer_norm"
            row = self.operator(op, ("input", *roles), (x, *affine), (y, mean, rstd), args)

        def rule(g: Tensor) -> None:
            wanted = [p for p in (x, *affine) if p.needs_grad]
            gradients = [self._like(p, False) for p in wanted]
            self.operator(
                f"{op}_backward", ("grad_out", "input", "mean", "rstd", *roles), (g, x, mean, rstd, *affine),
                gradients, args,
            )  # fmt: skip
            for tensor, gradient in zip(wanted, gradients, strict=True):
                self.give(tensor, gradient)

        self.derivative(row, (y,), rule)
        return y

    def rms_norm(self, name: str, x: Tensor, kind: str = "RMSNorm") -> Tensor:
        """``torch.nn.RMSNorm`` over the last dimension; without a weight where the module has none."""
        with self.module(name, kind):
            weight = self.optional("weight")
            if self.norms == "composed":
                return composed(self, x, weight)
            dtype = x.dtype
            x = self.to(x, "float32") if self.norms == "wide" else x
            read = (x,) if weight is None else (x, weight)
            roles = ("input", "weight")[: len(read)]
            y = self.tensor(x.shape, dtype, needs_grad=any(p.needs_grad for p in read))
            rstd = self.tensor((*x.shape[:-1], 1), "float32")
            args = {"normalized_shape": [x.shape[-1]]}
            op = "transformer_engine::rms_norm" if self.fused else "aten::_fused_rms_norm"
            row = self.operator(op, roles, read, (y, rstd), args)

        def rule(g: Tensor) -> None:
            wanted = [p for p in read if p.needs_grad]
            gradients = [self._like(p, False) for p in wanted]
            self.operator(
                f"{op}_backward", ("grad_out", "input", "rstd", *roles[1:]), (g, x, rstd, *read[1:]), gradients, args
            )  # fmt: skip
            for tensor, gradient in zip(wanted, gradients, strict=True):
                self.give(tensor, gradient)

        self.derivative(row, (y,), rule)
        return y

    def batch_norm(self, name: str, x: Tensor) -> Tensor:
        """``torch.nn.BatchNorm2d``; in training it also updates the running statistics."""
        with self.module(name, "BatchNorm2d"):
            weight, bias = self.parameter("weight"), self.parameter("bias")
            names = [f"{self.path}.{s}" for s in ("running_mean", "running_var", "num_batches_tracked")]
            running = [self.buffers[n] for n in names[:2]]
            if self.training:
                counter = self.buffers[names[2]]
                self.buffers[names[2]] = self.overwritten(counter)
                self.operator("aten::add_", ("self",), (counter,), (self.buffers[names[2]],), {"other": 1})
            y = self._like(x)
            statistics = [self.tensor(weight.shape if self.training else (0,), "float32") for _ in range(2)]
            after = [self.overwritten(b) for b in running] if self.training else []
            self.buffers.update(zip(names, after, strict=False))
            row = self.operator(
                "aten::native_batch_norm", ("input", "weight", "bias", "running_mean", "running_var"),
                (x, weight, bias, *running), (y, *statistics, *after), {"training": self.training},
            )  # fmt: skip

        def rule(g: Tensor) -> None:
            dx, dw, db = (self._like(p, False) for p in (x, weight, bias))
            self.operator(
                "aten::native_batch_norm_backward",
                ("grad_out", "input", "weight", "running_mean", "running_var", "save_mean", "save_invstd"),
                (g, x, weight, *after, *statistics), (dx, dw, db), {"train": True},
            )  # fmt: skip
            self.give(x, dx)
            self.give(weight, dw)
            self.give(bias, db)

        self.derivative(row, (y,), rule)
        return y

    # --- convolution, pooling -----------------------------------------------------------------------------------------

    def conv2d(
        self, name: str, x: Tensor, stride: int = 1, padding: int = 0, groups: int = 1, channels_last: bool = False
    ) -> Tensor:
        """``torch.nn.Conv2d`` on [batch, channels, height, width], or ``torch.nn.Conv1d`` on [batch, channels, length].

        ``channels_last`` says that channels of a pixel lie side by side in ``x``; so they do in the weight's gradient,
        which is copied to the layout of the weight.
        """
        sides = len(x.shape) - 2
        with self.module(name, f"Conv{sides}d"):
            weight, bias = self.parameter("weight"), self.optional("bias")
            made = tuple(self._window(s, weight.shape[2], stride, padding) for s in x.shape[2:])
            y = self.tensor((x.shape[0], weight.shape[0], *made), x.dtype, needs_grad=self.training)
            inputs = (x, weight) if bias is None else (x, weight, bias)
            args = {
                "stride": [stride] * sides, "padding": [padding] * sides, "dilation": [1] * sides, "transposed": False,
                "output_padding": [0] * sides, "groups": groups, **({LAYOUT: CHANNELS_LAST} if channels_last else {}),
            }  # fmt: skip
            row = self.operator("aten::convolution", ("input", "weight", "bias")[: len(inputs)], inputs, (y,), args)

        def rule(g: Tensor) -> None:
            wanted = [p for p in inputs if p.needs_grad]
            gradients = [self._like(p, False) for p in wanted]
            mask = [x.needs_grad, weight.needs_grad, bias is not None and bias.needs_grad]
            self.operator(
                "aten::convolution_backward", ("grad_output", "input", "weight"), (g, x, weight), gradients,
                {**args, "output_mask": mask},
            )  # fmt: skip
            for tensor, gradient in zip(wanted, gradients, strict=True):
                self.give(tensor, self._laid_out(gradient) if channels_last and tensor is weight else gradient)

        self.derivative(row, (y,), rule)
        return y

    def _laid_out(self, gradient: Tensor) -> Tensor:
        """A gradient copied to the layout of its weight, as it is accumulated."""
        empty = self._like(gradient)
        with self.undifferentiated():
            self.operator("aten::new_empty_strided", ("self",), (gradient,), (empty,))
            copied = self.overwritten(empty)
            self.operator("aten::copy_", ("self", "src"), (empty, gradient), (copied,))
        return copied

    def max_pool2d(self, name: str, x: Tensor, kernel: int, stride: int, padding: int = 0) -> Tensor:
        """``torch.nn.MaxPool2d``."""
        with self.module(name, "MaxPool2d"):
            shape = (*x.shape[:2], *(self._window(s, kernel, stride, padding) for s in x.shape[2:]))
            y, indices = self.tensor(shape, x.dtype, needs_grad=x.needs_grad), self.tensor(shape, "int64")
            args = {"kernel_size": [kernel] * 2, "stride": [stride] * 2, "padding": [padding] * 2}
            row = self.operator("aten::max_pool2d_with_indices", ("self",), (x,), (y, indices), args)

        def rule(g: Tensor) -> None:
            dx = self._like(x, False)
            roles = ("grad_output", "self", "indices")
            self.operator("aten::max_pool2d_with_indices_backward", roles, (g, x, indices), (dx,), args)
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def avg_pool2d(self, name: str, x: Tensor, kernel: int, stride: int) -> Tensor:
        """``torch.nn.AvgPool2d``."""
        with self.module(name, "AvgPool2d"):
            height, width = (self._window(s, kernel, stride, 0) for s in x.shape[2:])
            args = {"kernel_size": [kernel] * 2, "stride": [stride] * 2}
            return self._average(x, (*x.shape[:2], height, width), "aten::avg_pool2d", args)

    def adaptive_avg_pool2d(self, name: str, x: Tensor, size: int) -> Tensor:
        """``torch.nn.AdaptiveAvgPool2d`` to ``size`` x ``size``; to 1 x 1 it is a mean.  ``name`` may be empty."""
        if not name:
            return self._adaptive(x, size)
        with self.module(name, "AdaptiveAvgPool2d"):
            return self._adaptive(x, size)

    def _adaptive(self, x: Tensor, size: int) -> Tensor:
        shape = (*x.shape[:2], size, size)
        if size > 1:
            return self._average(x, shape, "aten::_adaptive_avg_pool2d", {"output_size": [size] * 2})
        return self._mean(x, shape, {"dim": [-1, -2], "keepdim": True})

    def mean_of_pixels(self, x: Tensor) -> Tensor:
        """The mean [batch, channels] of [batch, channels, height, width]."""
        return self._mean(x, x.shape[:2], {"dim": [-2, -1], "keepdim": False})

    def _mean(self, x: Tensor, shape: Shape, args: dict[str, object]) -> Tensor:
        y = self.tensor(shape, x.dtype, needs_grad=x.needs_grad)
        row = self.operator("aten::mean", ("self",), (x,), (y,), args)

        def rule(g: Tensor) -> None:  # divides what it spreads over the window
            dx = self._like(x, False)
            self.operator("aten::div", ("self",), (g,), (dx,), {"other": x.shape[2] * x.shape[3]})
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def _average(self, x: Tensor, shape: Shape, name: str, args: dict[str, list[int]]) -> Tensor:
        y = self.tensor(shape, x.dtype, needs_grad=x.needs_grad)
        row = self.operator(name, ("self",), (x,), (y,), args)

        def rule(g: Tensor) -> None:
            dx = self._like(x, False)
            self.operator(f"{name}_backward", ("grad_output", "self"), (g, x), (dx,), args)
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def _window(self, size: int, kernel: int, stride: int, padding: int) -> int:
        out = (size + 2 * padding - kernel) // stride + 1
        if out < 1:
            raise InputError(
                f"the image is too small: {self.path} slides a window of {kernel} over {size} pixels: "
                "give a larger image_size"
            )
        return out

    # --- loss ---------------------------------------------------------------------------------------------------------

    def cross_entropy(self, scores: Tensor, target: Tensor) -> Tensor:
        """Mean cross entropy of [rows, classes] against [rows], computed in float32."""
        if self.fused_loss:
            return self._fused_cross_entropy(scores, target)
        scores = self.to(scores, "float32")
        log_p = self._like(scores)
        args = {"dim": 1, "half_to_float": False}
        row = self.operator("aten::_log_softmax", ("self",), (scores,), (log_p,), args)

        def softmax_rule(g: Tensor) -> None:
            dx = self._like(scores, False)
            self.operator("aten::_log_softmax_backward_data", ("grad_output", "output"), (g, log_p), (dx,), {"dim": 1})
            self.give(scores, dx)

        self.derivative(row, (log_p,), softmax_rule)
        loss, total = self.tensor((), "float32", needs_grad=log_p.needs_grad), self.tensor((), "float32")
        loss_args = {"reduction": 1, "ignore_index": -100}
        row = self.operator("aten::nll_loss_forward", ("self", "target"), (log_p, target), (loss, total), loss_args)

        def loss_rule(g: Tensor) -> None:
            dx = self._like(log_p, False)
            roles = ("grad_output", "self", "target", "total_weight")
            self.operator("aten::nll_loss_backward", roles, (g, log_p, target, total), (dx,), loss_args)
            self.give(log_p, dx)

        self.derivative(row, (loss,), loss_rule)
        return loss

    def _fused_cross_entropy(self, scores: Tensor, target: Tensor) -> Tensor:
        """One kernel each way; the gradient takes the place of the scores."""
        name = "transformer_engine::cross_entropy"
        loss = self.tensor((), "float32", needs_grad=scores.needs_grad)
        logsumexp = self.tensor(scores.shape[:1], "float32")
        row = self.operator(name, ("input", "target"), (scores, target), (loss, logsumexp))

        def rule(g: Tensor) -> None:
            dx = self.overwritten(scores, False)
            roles = ("grad_output", "input", "target", "logsumexp")
            self.operator(f"{name}_backward", roles, (g, scores, target, logsumexp), (dx,))
            self.give(scores, dx)

        self.derivative(row, (loss,), rule)
        return loss
