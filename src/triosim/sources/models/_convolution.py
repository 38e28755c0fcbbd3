"""Convolutions and pooling over images and sequences."""

from __future__ import annotations

from triosim.core.errors import InputError
from triosim.operators import CHANNELS_LAST, LAYOUT
from triosim.sources.models._pointwise import PointwiseLayers
from triosim.sources.models._tape import Shape, Tensor


class ConvolutionLayers(PointwiseLayers):
    """What slides a window over pixels."""

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
            x, weight, bias = self.operands(x, weight, bias)
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
