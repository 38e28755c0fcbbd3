"""Normalization over the channels' batches (batch norm) or over the last dimensions (layer norm, RMS norm)."""

from __future__ import annotations

import math

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult, Shape
from triosim.operators._dims import GRADIENT_ROLES, NO_LABEL, Dims, Output, Row, aligned, bounded, in_gradient, number
from triosim.operators._kind import Kind
from triosim.operators._work import CHANNELS_LAST, HALF, LAYOUT, MovedBytes

_PER_CHANNEL = ("batch_norm", "group_norm", "instance_norm")
_BATCH_NORMS = ("batch_norm", "instance_norm")
WARP_ROW, ROWS_OF_BLOCK = 1024, 4
"""Elements of a row up to which one warp takes it in Transformer Engine's kernels, and rows of a block then
(``transformer_engine/common/normalization/rmsnorm/rmsnorm_fwd_cuda_kernel.cu``: ``WARPS_M``); PyTorch gives each row a
block (``aten/src/ATen/native/cuda/layer_norm_kernel.cu``)."""


@registered
class Normalization(Kind):
    """``result = (input - mean) / deviation * weight + bias``.

    Layer norms take mean and deviation of every row of the dimensions of ``normalized_shape``, batch norms of every
    channel (dimension 1), group and instance norms of every (group of) channel(s) of a sample.
    """

    names = """
        layer_norm: input normalized_shape weight bias eps cudnn_enable
        native_layer_norm: input normalized_shape weight bias eps
        rms_norm: input normalized_shape weight eps
        _fused_rms_norm: input normalized_shape weight eps
        batch_norm: input weight bias running_mean running_var training momentum eps cudnn_enabled
        native_batch_norm _batch_norm_impl_index _native_batch_norm_legit _native_batch_norm_legit_functional:
          input weight bias running_mean running_var training momentum eps
        cudnn_batch_norm miopen_batch_norm: input weight bias running_mean running_var training
          exponential_average_factor epsilon
        _batch_norm_with_update _native_batch_norm_legit_no_training _batch_norm_no_update
          _batch_norm_with_update_functional: input weight bias running_mean running_var momentum eps
        batch_norm_stats batch_norm_elemt sync_batch_norm batch_norm_gather_stats batch_norm_gather_stats_with_counts
        batch_norm_update_stats batch_norm_backward_reduce batch_norm_backward_elemt
        group_norm: input num_groups weight bias eps cudnn_enabled
        native_group_norm: input weight bias N C HxW group eps
        instance_norm: input weight bias running_mean running_var use_input_stats momentum eps cudnn_enabled
        local_response_norm
        quantized_batch_norm quantized::batch_norm1d quantized::batch_norm2d quantized::batch_norm3d
        quantized::batch_norm1d_relu quantized::batch_norm2d_relu quantized::batch_norm3d_relu
        fused_add_rms_norm
        transformer_engine::rms_norm: input normalized_shape weight eps
        transformer_engine::layer_norm: input normalized_shape weight bias eps
        """
    gradients = """
        native_batch_norm_backward: grad_out input weight running_mean running_var save_mean save_invstd train eps
          output_mask
        cudnn_batch_norm_backward: input grad_output weight running_mean running_var save_mean save_var epsilon
          reserveSpace
        miopen_batch_norm_backward: input grad_output weight running_mean running_var save_mean save_var epsilon
        native_layer_norm_backward: grad_out input normalized_shape mean rstd weight bias output_mask
        transformer_engine::layer_norm_backward: grad_out input normalized_shape mean rstd weight bias output_mask
        transformer_engine::rms_norm_backward: grad_out input normalized_shape rstd weight output_mask
        _fused_rms_norm_backward: grad_out input normalized_shape rstd weight output_mask
        native_group_norm_backward: grad_out input mean rstd weight N C HxW group output_mask
        """
    words = "batch_norm qbatch_norm layer_norm rms_norm"
    weights = ("weight", "bias", "running_mean", "running_var")
    kernels = "rowwise"

    def stream_of(self, call: Call) -> str:
        if not any(part in call.name for part in _BATCH_NORMS):
            return "register_norm" if _in_registers(call) else "layer_norm"
        given = call.args.get("training") is False or "no_training" in call.name
        if given and not call.backward:
            return "elementwise"  # nothing is summed
        if call.args.get(LAYOUT) == CHANNELS_LAST:
            return "nhwc_norm"
        return "half_batch_norm" if call.inputs and call.item(0) == HALF else "batch_norm"

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        source, weight = call.find("input", "self"), call.find("weight")
        if source < 0 or not call.inputs[source]:
            return None
        x, dtype = call.inputs[source], call.dtype(source)
        if call.backward:
            affine = 2 if weight >= 0 and (call.find("bias") >= 0 or any(p in call.name for p in _PER_CHANNEL)) else 1
            more = (CallResult(call.inputs[weight], call.dtype(weight)),) * affine if weight >= 0 else ()
            return (CallResult(x, dtype), *more)
        made = (CallResult(x, dtype),)
        if call.name in ("native_layer_norm", "_fused_rms_norm") or _in_registers(call):
            rows = len(x) - min(_normalized(call), len(x))
            row = CallResult((*x[:rows], *(1,) * (len(x) - rows)), _wide(dtype), saved=True)
            return (*made, *(row,) * (2 if "layer_norm" in call.name else 1))
        if call.name == "native_group_norm":
            row = CallResult((x[0], _groups(call, x[1])), _wide(dtype), saved=True)
            return (*made, row, row)
        if call.name in ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm"):
            training = call.args.get("training") is not False
            row = CallResult(x[1:2] if training else (0,), _wide(dtype), saved=True)
            running = [call.find(role) for role in ("running_mean", "running_var")] if training else []
            after = [CallResult(call.inputs[at], call.dtype(at), at, 0, True, True) for at in running if at >= 0]
            return (*made, row, row, *after)
        return made

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        """Rows are read twice; the gradients of weight and bias take a second kernel, which reads what the first has.

        A batch norm's row is a channel, or a pixel where its channels lie side by side.
        """
        shape = call.shape("input", "self") or (call.inputs[0] if call.inputs else ())
        size, item = float(math.prod(shape)), call.item(0)
        if counted.stream == "elementwise":
            return counted
        if counted.stream == "nhwc_norm":
            return counted.by_rows(size, shape[1], item) if len(shape) > 2 and size else counted
        if counted.stream in ("batch_norm", "half_batch_norm"):
            if len(shape) < 2:
                return counted
            rows = shape[0] * shape[1] if "instance" in call.name else shape[1]
            return counted.by_rows(size, math.prod(shape) // max(rows, 1), item) if size else counted
        weight = call.shape("weight")
        if "group_norm" in call.name and len(shape) > 1:
            length = math.prod(shape[1:]) // _groups(call, shape[1])
        else:
            length = math.prod(weight) if weight else shape[-1] if shape else 0
        found = counted.by_rows(size if shape else 0.0, length, item)
        if _in_registers(call):
            together = ROWS_OF_BLOCK if length <= WARP_ROW else 1
            return found._replace(rows=found.rows / together, kernels=2.0 if call.backward else 1.0)
        if call.backward and len(call.outputs) > 1:
            return found._replace(read=2.0 * found.read, kernels=2.0)
        return found

    def dims(self, call: Call) -> Dims:
        """Every dimension of the input is a label; statistics follow the rows, weights the dimensions normalized."""
        source = call.find("input", "self")
        if source < 0 or not call.inputs[source]:
            return aligned(call)
        x = call.inputs[source]
        full = tuple(range(len(x)))
        per_channel = any(part in call.name for part in _PER_CHANNEL)
        if per_channel:
            affine: Row = full[1:2]
            rows: Row = affine if "group" not in call.name else full[:2] if "C" in call.args else full[:1]
        else:
            affine = full[len(x) - min(_normalized(call), len(x)) :]
            rows = full[: len(x) - len(affine)]
        grad = call.find(*GRADIENT_ROLES) if call.backward else -1
        reads: dict[int, Row] = {source: full, grad: full}
        reads |= {call.find(role): affine for role in ("weight", "bias")}
        channels = x[1:2] if per_channel else ()
        for role in ("mean", "rstd", "save_mean", "save_invstd", "save_var", "running_mean", "running_var"):
            at = call.find(role)
            if at >= 0:
                reads[at] = _statistic(call.inputs[at], rows, affine, channels)
        made: dict[int, Row] = {0: full}
        for at, shape in enumerate(call.outputs[1:], 1):
            made[at] = affine if call.backward else _statistic(shape, rows, affine, channels)
        if call.backward and call.outputs and len(call.outputs[0]) != len(x):  # the input's gradient is not wanted
            made[0] = affine
        ins, outs = bounded(call, reads, made)
        given = (grad, source) if call.backward and grad >= 0 else None
        outputs = tuple(Output(row, given if made[at] is affine else None) for at, row in enumerate(outs))
        if "group_norm" in call.name:  # groups of channels are divided as their statistics are
            whole = frozenset(full[len(rows) :])
        else:
            whole = frozenset() if per_channel else frozenset(affine)
        per_rank = self.stream_of(call) in ("batch_norm", "half_batch_norm", "nhwc_norm")
        return Dims(tuple(ins), outputs, whole, linear=in_gradient(call), per_rank=per_rank)


def _statistic(shape: Shape, rows: Row, affine: Row, channels: Shape) -> Row:
    """Labels of a mean or a deviation: one for each row, with ones for what was normalized, or each channel."""
    if len(shape) == 1 and channels:
        return affine if shape in (channels, (0,)) else (NO_LABEL,)
    return (*rows, *(NO_LABEL,) * (len(shape) - len(rows)))


def _groups(call: Call, channels: int) -> int:
    """Groups of the ``channels`` that a call has, of all of which (``C``) the arguments tell the groups."""
    given, every = number(call, "num_groups", 0) or number(call, "group", 0) or 1, number(call, "C", 0) or channels
    return max(given * channels // max(every, 1), 1)


def _in_registers(call: Call) -> bool:
    """Whether its kernels read a row once and keep it in registers."""
    return call.full_name.startswith("transformer_engine::")


def _normalized(call: Call) -> int:
    """How many of the last dimensions are normalized."""
    given, weight = call.args.get("normalized_shape"), call.shape("weight")
    if isinstance(given, list):
        return len(given)
    return len(weight) if weight else 1


def _wide(dtype: str) -> str:
    """Element type of statistics."""
    return "float64" if dtype == "float64" else "float32"
