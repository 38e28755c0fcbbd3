"""What the arguments of an operator are called, and how PyTorch's files write element types, schemas and constants."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from triosim.workload.operators import canonical
from triosim.workload.readers._step import Shape, Tensor

_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "c10::half": "float16", "bfloat16": "bfloat16",
    "c10::bfloat16": "bfloat16", "long int": "int64", "long": "int64", "long long": "int64", "int": "int32",
    "short int": "int16", "short": "int16", "signed char": "int8", "char": "int8", "unsigned char": "uint8",
    "byte": "uint8", "bool": "bool", "c10::complex<float>": "complex64", "complexfloat": "complex64",
    "c10::complex<double>": "complex128", "complexdouble": "complex128", "c10::float8_e4m3fn": "float8_e4m3fn",
    "float8_e4m3fn": "float8_e4m3fn", "c10::float8_e4m3fnuz": "float8_e4m3fn", "float8_e4m3fnuz": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2", "float8_e5m2": "float8_e5m2", "c10::float8_e5m2fnuz": "float8_e5m2",
    "float8_e5m2fnuz": "float8_e5m2", "c10::float4_e2m1fn_x2": "uint8",
}  # fmt: skip


def dtype(text: str) -> str | None:
    """The element type that PyTorch's C++ side calls ``text`` (``"c10::Half"``), None where it is no element type."""
    return _DTYPES.get(text.strip().lower())


@dataclass(frozen=True)
class Parameter:
    """One argument of an operator's schema."""

    name: str
    written: bool


@functools.lru_cache(maxsize=8192)
def schema(text: str) -> tuple[Parameter, ...]:
    """The arguments of an operator schema such as ``aten::relu_(Tensor(a!) self) -> Tensor(a!)``; empty for ``""``."""
    start = text.find("(")
    if start < 0:
        return ()
    depth, piece, pieces = 0, "", []
    for letter in text[start:]:
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 or (depth == 1 and letter == ","):
            pieces.append(piece)
            piece = ""
            if depth == 0:
                break
        elif depth > 1 or letter != "(":
            piece += letter
    found = []
    for piece in pieces:
        declaration = piece.split("=")[0].split()
        if len(declaration) >= 2:
            found.append(Parameter(declaration[-1], "!" in piece.split("=")[0]))
    return tuple(found)


# Argument names in schema order, for sources that name none; one line an operator, "name: arguments".
_NAMES = """
conv1d conv2d conv3d: input weight bias stride padding dilation groups
conv_transpose1d conv_transpose2d conv_transpose3d: input weight bias stride padding output_padding groups dilation
convolution _convolution convolution_overrideable: input weight bias stride padding dilation transposed output_padding groups
cudnn_convolution: self weight padding stride dilation groups
miopen_convolution mkldnn_convolution: self weight bias padding stride dilation groups
_conv_depthwise2d: self weight kernel_size bias stride padding dilation
convolution_backward: grad_output input weight bias_sizes stride padding dilation transposed output_padding groups output_mask
cudnn_convolution_backward: input grad_output weight padding stride dilation groups
linear: input weight bias
linear_backward: self grad_output weight output_mask
addmm _addmm_activation: self mat1 mat2 beta alpha
mm: self mat2
bmm: self mat2
baddbmm: self batch1 batch2 beta alpha
addbmm: self batch1 batch2 beta alpha
mv: self vec
addmv: self mat vec beta alpha
matmul dot: self other
_scaled_mm: self mat2 scale_a scale_b bias scale_result out_dtype
einsum: equation tensors path
batch_norm: input weight bias running_mean running_var training momentum eps cudnn_enabled
native_batch_norm _batch_norm_impl_index cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit _batch_norm_with_update: input weight bias running_mean running_var training momentum eps
native_batch_norm_backward: grad_out input weight running_mean running_var save_mean save_invstd train eps output_mask
cudnn_batch_norm_backward miopen_batch_norm_backward: input grad_output weight running_mean running_var save_mean save_var epsilon reserveSpace
layer_norm rms_norm: input normalized_shape weight bias eps cudnn_enable
_fused_rms_norm: input normalized_shape weight eps
native_layer_norm: input normalized_shape weight bias eps
native_layer_norm_backward: grad_out input normalized_shape mean rstd weight bias output_mask
_fused_rms_norm_backward: grad_out input normalized_shape rstd weight output_mask
group_norm: input num_groups weight bias eps cudnn_enabled
native_group_norm: input weight bias N C HxW group eps
native_group_norm_backward: grad_out input mean rstd weight N C HxW group output_mask
instance_norm: input weight bias running_mean running_var use_input_stats momentum eps cudnn_enabled
embedding: weight indices padding_idx scale_grad_by_freq sparse
embedding_dense_backward: grad_output indices num_weights padding_idx scale_grad_by_freq
embedding_backward: grad indices num_weights padding_idx scale_grad_by_freq sparse
threshold_backward hardtanh_backward leaky_relu_backward silu_backward gelu_backward elu_backward hardswish_backward hardsigmoid_backward softplus_backward mish_backward: grad_output self threshold
sigmoid_backward tanh_backward: grad_output output
native_dropout_backward: grad_output mask scale
dropout native_dropout: input p train
_softmax_backward_data _log_softmax_backward_data: grad_output output dim input_dtype
softmax log_softmax: self dim dtype
_softmax _log_softmax: self dim half_to_float
max_pool2d max_pool1d max_pool3d max_pool2d_with_indices: self kernel_size stride padding dilation ceil_mode
max_pool2d_with_indices_backward: grad_output self kernel_size stride padding dilation ceil_mode indices
avg_pool2d: self kernel_size stride padding ceil_mode count_include_pad divisor_override
avg_pool2d_backward: grad_output self kernel_size stride padding ceil_mode count_include_pad divisor_override
adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool1d: self output_size
_adaptive_avg_pool2d_backward adaptive_avg_pool2d_backward: grad_output self
upsample_nearest2d upsample_bilinear2d: input output_size scale_factors
cross_entropy_loss: self target weight reduction ignore_index label_smoothing
nll_loss nll_loss_nd nll_loss_forward nll_loss2d nll_loss2d_forward: self target weight reduction ignore_index
nll_loss_backward nll_loss2d_backward: grad_output self target weight reduction ignore_index total_weight
mse_loss l1_loss smooth_l1_loss huber_loss: self target reduction
mse_loss_backward l1_loss_backward smooth_l1_loss_backward huber_loss_backward: grad_output self target reduction
binary_cross_entropy_with_logits: self target weight pos_weight reduction
scaled_dot_product_attention: query key value attn_mask dropout_p is_causal scale enable_gqa
_scaled_dot_product_flash_attention: query key value dropout_p is_causal return_debug_mask scale
_scaled_dot_product_efficient_attention: query key value attn_bias compute_log_sumexp dropout_p is_causal scale
_scaled_dot_product_flash_attention_for_cpu: query key value dropout_p is_causal attn_mask scale
_scaled_dot_product_flash_attention_for_cpu_backward: grad_out query key value out logsumexp dropout_p is_causal attn_mask scale
_scaled_dot_product_cudnn_attention: query key value attn_bias compute_log_sumexp dropout_p is_causal return_debug_mask scale
_scaled_dot_product_flash_attention_backward: grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal philox_seed philox_offset scale
_scaled_dot_product_efficient_attention_backward: grad_out query key value attn_bias out logsumexp philox_seed philox_offset dropout_p grad_input_mask is_causal scale
_scaled_dot_product_cudnn_attention_backward: grad_out query key value out logsumexp philox_seed philox_offset attn_bias cum_seq_q cum_seq_k max_q max_k dropout_p is_causal scale
_flash_attention_forward: query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal
_flash_attention_backward: grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal
add sub mul div true_divide rsub eq ne lt le gt ge maximum minimum pow fmod remainder: self other alpha
addcmul addcdiv: self tensor1 tensor2 value
lerp: self end weight
where: condition self other
masked_fill: self mask value
clamp clamp_min clamp_max: self min max
fill: self value
copy: self src non_blocking
to: self dtype layout device
_to_copy: self dtype layout device
view _unsafe_view: self size
reshape: self shape
transpose: self dim0 dim1
permute: self dims
expand: self size implicit
unsqueeze squeeze: self dim
flatten: self start_dim end_dim
slice: self dim start end step
select: self dim index
narrow: self dim start length
split split_with_sizes: self split_size dim
chunk: self chunks dim
unbind: self dim
as_strided: self size stride storage_offset
cat stack _cat: tensors dim
sum mean nansum: self dim keepdim dtype
var std: self dim unbiased keepdim
argmax argmin: self dim keepdim
max min amax amin: self dim keepdim
cumsum cumprod: self dim dtype
topk: self k dim largest sorted
sort argsort: self dim descending
index_select: self dim index
gather: self dim index sparse_grad
scatter scatter_add: self dim index src
index index_put: self indices values accumulate
repeat: self repeats
roll: self shifts dims
_foreach_lerp: self tensors1 weight
_foreach_addcmul _foreach_addcdiv: self tensor1 tensor2 value
_foreach_add _foreach_mul _foreach_div _foreach_sub: self other alpha
_foreach_copy: self src non_blocking
_fused_adam _fused_adamw: self grads exp_avgs exp_avg_sqs max_exp_avg_sqs state_steps
_fused_sgd: self grads momentum_buffer_list
_fused_adagrad: self grads state_sums state_steps
"""  # noqa: E501
_ARGUMENTS: dict[str, tuple[str, ...]] = {}
for _line in _NAMES.strip().splitlines():
    _operators, _, _arguments = _line.partition(":")
    for _operator in _operators.split():
        _ARGUMENTS[_operator] = tuple(_arguments.split())

_DEFAULT = ("self", "other")
_DEFAULT_BACKWARD = ("grad_output", "self", "other")


def argument_names(operator: str, count: int) -> tuple[str, ...]:
    """Names of the first ``count`` arguments of an operator whose schema the source does not give."""
    base, backward = canonical(operator)
    plain = operator.rpartition("::")[2].split(".")[0]
    names = _ARGUMENTS.get(plain) or _ARGUMENTS.get(plain.rstrip("_")) or (None if backward else _ARGUMENTS.get(base))
    names = names or (_DEFAULT_BACKWARD if backward else _DEFAULT)
    return (*names[:count], *("input",) * (count - len(names)))


def writes(operator: str) -> bool:
    """Whether an operator's name says that it writes to its first argument (``relu_``, ``__iadd__``)."""
    plain = operator.rpartition("::")[2].split(".")[0]
    if plain.startswith("__"):
        return plain.startswith("__i") and plain not in ("__index__", "__invert__")
    return plain.endswith("_")


def written_arguments(operator: str) -> frozenset[str]:
    """Names of the arguments that an operator without a schema writes to."""
    plain = operator.rpartition("::")[2].split(".")[0].rstrip("_")
    if not writes(operator):
        return frozenset()
    if plain in ("_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"):
        return frozenset(_ARGUMENTS[plain]) - {"grads"}
    return frozenset(("self",))


_TENSOR_TYPE = re.compile(r"Tensor\(([^()]*(?:\([^()]*\))?[^()]*)\)")
_ITEM_DTYPES = {8: "int64", 4: "float32", 2: "float16", 1: "bool"}


def tensors(value: Any, shape: Any, type_text: str) -> list[Tensor]:
    """The tensors in one value of an execution trace, lists of any depth flattened, undefined ones left out.

    A tensor is ``[tensor id, storage id, offset in elements, elements, bytes per element, device]``.
    """
    names = iter(_TENSOR_TYPE.findall(type_text))
    found = []
    for item, extents in _walk(value, shape):
        name = next(names, "")
        if item[4] == 0 or "uninitialized" in name:
            continue
        element = dtype(name) or _ITEM_DTYPES.get(item[4], "unknown")
        dims = tuple(extents) if isinstance(extents, list) and all(type(d) is int for d in extents) else ()
        if not dims and item[3] > 1:
            dims = (item[3],)
        found.append(Tensor(dims, element, item[0], item[1], item[2]))
    return found


def on_device(value: Any) -> bool:
    """Whether a value of an execution trace holds a tensor that is not on the host."""
    return any(not str(item[5]).startswith("cpu") for item, _ in _walk(value, None) if item[4])


def _walk(value: Any, shape: Any) -> Iterator[tuple[list, Any]]:
    if not isinstance(value, list):
        return
    if len(value) >= 6 and isinstance(value[5], str) and all(type(x) is int for x in value[:5]):
        yield value, shape
        return
    for i, item in enumerate(value):
        yield from _walk(item, shape[i] if isinstance(shape, list) and i < len(shape) else None)


def constant(value: Any) -> Any:
    """A non-tensor argument as JSON keeps it, None for what says nothing about the work (devices, generators, ...)."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list) and all(isinstance(v, bool | int | float) for v in value):
        return value
    if isinstance(value, str) and value and not value.startswith("<") and len(value) <= 64:
        return value
    return None


def written_constant(text: str) -> Any:
    """A constant that Kineto wrote as text (``"[1, 1]"``, ``"True"``), None for none."""
    if not text or not isinstance(text, str):
        return None
    try:
        return constant(json.loads(text.replace("True", "true").replace("False", "false")))
    except ValueError:
        return constant(text)


def dimensions(value: Any) -> Shape | None:
    """A shape from JSON, None where it is not one (a list of shapes, nothing)."""
    if isinstance(value, list) and all(type(d) is int and d >= 0 for d in value):
        return tuple(value)
    return None
