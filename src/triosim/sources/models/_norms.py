"""Layer norms, RMS norms and batch norms; RMS norms also spelled out, or of a float32 copy.

``composed`` is what PyTorch runs for ``torch.nn.RMSNorm`` before its 2.9 (``rms_norm_composite`` in
``aten/src/ATen/native/layer_norm.cpp``), and for a module that spells out the formula, as torchtitan's of 2024 did: a
copy in float32, its squares, their mean, the root, and the products.  ``wide`` is one kernel that reads a float32 copy
and writes the weights' type, as InternLM's blocks call Apex's (``self.norm1(residual.float())``).
"""

from __future__ import annotations

from triosim.sources.models._pointwise import PointwiseLayers
from triosim.sources.models._tape import Tensor


class NormLayers(PointwiseLayers):
    """Norms over the last dimension, and over a batch."""

    def layer_norm(self, name: str, x: Tensor) -> Tensor:
        """``torch.nn.LayerNorm`` over the last dimension; without weight and bias where the module has none."""
        with self.module(name, "LayerNorm"):
            x = self.raised(x)
            affine = tuple(p for p in (self.optional("weight"), self.optional("bias")) if p is not None)
            roles = ("weight", "bias")[: len(affine)]
            y = self.tensor(x.shape, self.normed(x.dtype), needs_grad=any(p.needs_grad for p in (x, *affine)))
            mean, rstd = (self.tensor((*x.shape[:-1], 1), "float32") for _ in range(2))
            args = {"normalized_shape": [x.shape[-1]]}
            op = "transformer_engine::layer_norm" if self.kernels.fused else "aten::native_layer_norm"
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
            if self.kernels.norms == "composed":
                return composed(self, x, weight)
            x = self.raised(x)
            dtype = self.normed(x.dtype)
            x = self.to(x, "float32") if self.kernels.norms == "wide" else x
            read = (x,) if weight is None else (x, weight)
            roles = ("input", "weight")[: len(read)]
            y = self.tensor(x.shape, dtype, needs_grad=any(p.needs_grad for p in read))
            rstd = self.tensor((*x.shape[:-1], 1), "float32")
            args = {"normalized_shape": [x.shape[-1]]}
            op = "transformer_engine::rms_norm" if self.kernels.fused else "aten::_fused_rms_norm"
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


def composed(net: PointwiseLayers, x: Tensor, weight: Tensor | None) -> Tensor:
    """The norm of the last dimension of ``x``, operator by operator."""
    wide = net.to(x, "float32")
    root = _reciprocal_root(net, net.shifted(mean(net, net.squared(wide))))
    y = net.to(_times_rows(net, wide, root), x.dtype)
    return y if weight is None else net.scaled_by(y, weight)


def mean(net: PointwiseLayers, x: Tensor, dim: int = -1) -> Tensor:
    """Over a dimension, by default the last, which is kept."""
    dim %= len(x.shape)
    y = net.tensor((*x.shape[:dim], 1, *x.shape[dim + 1 :]), x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::mean", ("self",), (x,), (y,), {"dim": [dim - len(x.shape)], "keepdim": True})

    def rule(g: Tensor) -> None:
        dx = net.tensor(x.shape, x.dtype)
        net.operator("aten::div", ("self",), (net.expanded(g, dim, int(x.shape[dim])),), (dx,))
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y


def _reciprocal_root(net: PointwiseLayers, x: Tensor) -> Tensor:
    y = net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::rsqrt", ("self",), (x,), (y,))

    def rule(g: Tensor) -> None:  # -0.5 * g * y ** 3
        cube = net.tensor(y.shape, y.dtype)
        net.operator("aten::pow", ("self",), (y,), (cube,), {"exponent": 3})
        net.give(x, net.mul(net.scaled(g), cube))

    net.derivative(row, (y,), rule)
    return y


def _times_rows(net: PointwiseLayers, x: Tensor, scale: Tensor) -> Tensor:
    """``x`` [..., width] times [..., 1]."""
    y = net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::mul", ("self", "other"), (x, scale), (y,))

    def rule(g: Tensor) -> None:
        parts, total = net.mul(g, x), net.tensor(scale.shape, scale.dtype)
        net.operator("aten::sum", ("self",), (parts,), (total,), {"dim": [-1], "keepdim": True})
        net.give(x, net.mul(g, scale))
        net.give(scale, total)

    net.derivative(row, (y,), rule)
    return y
