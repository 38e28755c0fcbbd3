"""Convolutions of any number of dimensions, transposed ones, and their gradients in one call."""

from __future__ import annotations

import math

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult, Shape
from triosim.operators._dims import (
    GRADIENT_ROLES,
    NO_LABEL,
    Dims,
    Output,
    Row,
    Window,
    at_once,
    bounded,
    given_sizes,
    in_gradient,
    number,
    positions,
    sizes,
    unknown,
)
from triosim.operators._kind import Kind, Need, unmet
from triosim.operators._work import CHANNELS_LAST, LAYOUT, ConvolutionWork


@registered
class Convolution(Kind):
    """``result[b, o, p...] = sum over c, r... of input[b, c, p * stride + r * dilation - padding] weight[o, c, r...]``.

    With groups an output channel reads the input channels of its group only.  A transposed convolution is the gradient
    of the input of the convolution that has its output as input: weight [c, o, r...].
    """

    names = """
        conv1d conv2d conv3d: input weight bias stride padding dilation groups
        conv_transpose1d conv_transpose2d conv_transpose3d: input weight bias stride padding output_padding groups
          dilation
        convolution _convolution convolution_overrideable: input weight bias stride padding dilation transposed
          output_padding groups
        cudnn_convolution: self weight padding stride dilation groups
        cudnn_convolution_transpose: self weight padding output_padding stride dilation groups
        miopen_convolution_transpose: self weight bias padding output_padding stride dilation groups
        cudnn_convolution_relu: self weight bias stride padding dilation groups
        cudnn_convolution_add_relu: self weight z alpha bias stride padding dilation groups
        miopen_convolution mkldnn_convolution miopen_depthwise_convolution: self weight bias padding stride dilation
          groups
        _conv_depthwise2d conv_depthwise3d: self weight kernel_size bias stride padding dilation
        _convolution_mode: input weight bias stride padding dilation groups
        thnn_conv2d slow_conv3d: self weight kernel_size bias stride padding
        _slow_conv2d slow_conv2d conv_depthwise2d slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d
        slow_conv_transpose3d mps_convolution _mps_convolution mkldnn::_convolution_pointwise
        quantized::conv1d_relu quantized::conv2d_relu quantized::conv3d_relu quantized::conv1d_dynamic
        quantized::conv2d_dynamic quantized::conv3d_dynamic onednn::qconv2d_pointwise onednn::qconv_pointwise
        """
    gradients = """
        convolution_backward: grad_output input weight bias_sizes stride padding dilation transposed output_padding
          groups output_mask
        cudnn_convolution_backward: input grad_output weight padding stride dilation groups
        """
    words = "conv qconv convolution"
    weights = ("weight", "bias")
    kernels = "convolution"

    def problem(self, call: Call) -> str:
        if not call.inputs:
            return ""
        found = unmet(call, Need(("weight",), 3, 5))
        if found:
            return found
        rank = len(call.shape("weight") or ())
        if call.backward:
            return unmet(call, Need(GRADIENT_ROLES, rank, rank, False), Need(("input", "self"), rank, rank, False))
        found = unmet(call, Need(("input", "self"), rank - 1, rank))
        read = call.shape("input", "self") or ()
        if not found and call.outputs and len(call.outputs[0]) != len(read):
            shapes = f"{list(call.outputs[0])} and {list(read)}"
            return (
                f"{call.full_name or call.name}: result and input have the shapes {shapes}, not of as many dimensions"
            )
        return found

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        source, weight = call.find("input", "self"), call.find("weight")
        if call.backward:
            x, w = call.shape("input", "self"), call.shape("weight")
            if x is None or w is None:
                return None
            mask = call.args.get("output_mask")
            wanted = mask if isinstance(mask, list | tuple) and len(mask) == 3 else (True, True, False)
            made = zip((x, w, (w[0],)), (source, weight, weight), wanted, strict=True)
            return tuple(CallResult(shape, call.dtype(at)) for shape, at, there in made if there)
        if source < 0 or weight < 0:
            return None
        x, w = call.inputs[source], call.inputs[weight]
        n = len(w) - 2
        stride, padding = given_sizes(call, "stride", n), given_sizes(call, "padding", n)
        if stride is None or padding is None:
            return None
        dilation = sizes(call, "dilation", n, 1)
        read = x[len(x) - n :]
        if _transposed(call):
            extra, groups = sizes(call, "output_padding", n, 0), number(call, "groups", 1)
            made_space = tuple(
                (read[d] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (w[2 + d] - 1) + extra[d] + 1
                for d in range(n)
            )
            channels = w[1] * (groups or 1)
        else:
            made_space, channels = positions(read, w[2:], stride, padding, dilation), w[0]
        if min(made_space, default=1) < 1:
            return None
        return (CallResult((*x[: len(x) - n - 1], channels, *made_space), call.dtype(source)),)

    def flop(self, call: Call) -> float:
        weight = call.shape("weight")
        if weight is None:
            return math.nan
        if not call.backward:
            read = call.shape("input", "self")
            if not read or not call.outputs:
                return math.nan
            return 2.0 * math.prod(read if _transposed(call) else call.outputs[0]) * math.prod(weight[1:])
        grad, source = call.shape(*GRADIENT_ROLES), call.shape("input", "self")
        positions = source if _transposed(call) else grad
        if positions is None:
            return math.nan
        gradients = len([out for out in call.outputs if len(out) > 2 and math.prod(out) > 0])
        return 2.0 * math.prod(positions) * math.prod(weight[1:]) * gradients

    def work(self, call: Call) -> ConvolutionWork:
        weight = call.shape("weight") or ()
        source = call.shape("input", "self") or ()
        if call.backward:
            result = call.shape(*GRADIENT_ROLES) or ()
            shapes = [out for out in call.outputs if math.prod(out)]
            passes = (False, source in shapes, weight in shapes, any(len(out) == 1 for out in shapes),
                      "accumulate" in call.roles)  # fmt: skip
        else:
            result = call.outputs[0] if call.outputs else ()
            passes = (True, False, False, False, False)
        if len(source) < len(weight):  # a single image
            source, result = (1, *source), (1, *result)
        if not weight or len(source) != len(weight) or len(result) != len(weight):
            return ConvolutionWork.cube(self.flop(call))
        if _transposed(call):
            source, result = result, source
            forward, data, *rest = passes
            passes = (data, forward, rest[0], rest[1], rest[2])
        groups = max(source[1] // max(weight[1], 1), 1)
        positions = [(math.prod(shape[2:-1]), shape[-1] if len(shape) > 2 else 1) for shape in (source, result)]
        kernel = (math.prod(weight[2:-1]), weight[-1] if len(weight) > 2 else 1)
        return ConvolutionWork(
            source[0], weight[1], max(weight[0] // groups, 1), groups, *positions[0], *positions[1], *kernel,
            _stride(source, result, weight), *passes, call.args.get(LAYOUT) == CHANNELS_LAST,
        )  # fmt: skip

    def dims(self, call: Call) -> Dims:
        """Labels b o c, positions that are read, places in the window, positions that are made.

        With groups channels of input and output share the label o: a group's outputs belong to its inputs.
        """
        weight = call.find("weight")
        source, bias = call.find("input", "self"), call.find("bias")
        grad = call.find(*GRADIENT_ROLES) if call.backward else -1
        if weight < 0 or len(call.inputs[weight]) < 3:
            return unknown(call)
        n = len(call.inputs[weight]) - 2
        groups, transposed = _groups(call, source, weight), _transposed(call)
        b, o = 0, 1
        c = 1 if groups > 1 else 2
        read, window, made = (tuple(range(3 + i * n, 3 + (i + 1) * n)) for i in range(3))
        x, y = (b, c, *read), (b, o, *made)
        w = (c, o, *window) if transposed else (o, c, *window)
        if groups > 1:  # the part of the channels that one of the other side meets follows nothing
            w = (w[0], NO_LABEL, *w[2:])
        names = ("b", "o", "c", *(f"{what}{d}" for what in ("x", "r", "p") for d in range(n)))
        stride, padding = sizes(call, "stride", n, 1), sizes(call, "padding", n, 0)
        dilation = sizes(call, "dilation", n, 1)
        wide, narrow = (made, read) if transposed else (read, made)  # of what is told over, and of the steps
        windows = tuple(
            Window(wide[d], narrow[d], window[d], call.inputs[weight][2 + d], stride[d], dilation[d], padding[d])
            for d in range(n)
        )
        reads: dict[int, Row] = {source: x, weight: w, bias: (o,), grad: y}
        whole = frozenset((*read, *made))
        if not call.backward:
            ins, outs = bounded(call, reads, {0: y})
            linear = (at_once(source, bias), at_once(weight, bias))
            return Dims(
                tuple(ins), tuple(map(Output, outs)), whole, linear=linear, windows=windows, groups=groups, names=names
            )
        wanted, from_inputs = _gradients(call, source, weight), (grad, weight)
        rows: dict[str, Row] = {"input": x, "weight": w, "bias": (o,)}
        origins = {"input": from_inputs, "weight": (grad, source), "bias": (grad,)}
        ins, outs = bounded(call, reads, {at: rows[role] for at, role in wanted.items()})
        outputs = [
            Output(row, tuple(i for i in origins[wanted[at]] if i >= 0) if at in wanted else ())
            for at, row in enumerate(outs)
        ]
        return Dims(
            tuple(ins), tuple(outputs), whole, linear=in_gradient(call), windows=windows, groups=groups, names=names
        )


def _groups(call: Call, source: int, weight: int) -> int:
    """Groups of channels: an argument, else what the channels of input and weight say."""
    given = call.args.get("groups")
    if type(given) is int and given > 0:
        return given
    w, x = call.inputs[weight], call.inputs[source] if source >= 0 else ()
    if _transposed(call) or len(x) != len(w):
        return 1
    return max(x[1] // max(w[1], 1), 1)


def _gradients(call: Call, source: int, weight: int) -> dict[int, str]:
    """Which gradient each output of a backward is: by the mask of those that are wanted, else by shape."""
    mask = call.args.get("output_mask")
    if isinstance(mask, list) and len(mask) == 3:
        roles = [role for role, there in zip(("input", "weight", "bias"), mask, strict=True) if there]
        if len(roles) == len(call.outputs):
            return dict(enumerate(roles))
    found: dict[int, str] = {}
    for at, shape in enumerate(call.outputs):
        if source >= 0 and shape == call.inputs[source] and "input" not in found.values():
            found[at] = "input"
        elif shape == call.inputs[weight]:
            found[at] = "weight"
        elif len(shape) == 1 and shape[0] > 0:
            found[at] = "bias"
    return found


def _transposed(call: Call) -> bool:
    return bool(call.args.get("transposed")) or "transpose" in call.name


def _stride(source: Shape, result: Shape, weight: Shape) -> float:
    """Product of the strides, from the sizes alone: padding can make up for the kernel, not for a stride."""
    factor = 1.0
    for wide, narrow, kernel in zip(source[2:], result[2:], weight[2:], strict=False):
        if narrow < wide - kernel + 1:
            factor *= max(round(wide / max(narrow, 1)), 1)
    return factor
