"""What an operator is: its canonical name, its kind, and the work it does, from its name and shapes.

Sources name the same operator in many ways: ``aten::conv2d`` (what the user called), ``aten::convolution``
(what was dispatched), ``autograd::engine::evaluate_function: ConvolutionBackward0`` (what autograd ran).
:func:`canonical` brings them to one name and tells backward from forward; :func:`kind` groups names into
the classes that operator models and sharding rules are written for.
"""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from triosim.workload import experts

if TYPE_CHECKING:
    from triosim.workload.trace import Trace

KINDS = (
    "linear", "matmul", "experts", "convolution", "attention", "embedding", "normalization", "softmax", "pooling",
    "loss", "elementwise", "reduction", "copy", "view", "create", "index", "optimizer", "host", "other",
)  # fmt: skip
"""Classes of operators.  ``linear`` is a matrix product that may have a weight, ``matmul`` a batched one, ``experts``
the products of a mixture of experts (:mod:`triosim.workload.experts`)."""

_NAMES: dict[str, str] = {
    "linear": "linear addmm mm _addmm_activation linear_gelu _scaled_mm",
    "matmul": "bmm baddbmm matmul einsum dot mv addmv addbmm",
    "experts": "grouped_mm _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 scaled_grouped_mm",
    "convolution": """conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution
        cudnn_convolution miopen_convolution mkldnn_convolution thnn_conv2d _slow_conv2d conv_depthwise2d
        cudnn_convolution_transpose _conv_depthwise2d convolution_overrideable""",
    "attention": """scaled_dot_product_attention _scaled_dot_product_flash_attention
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math
        _scaled_dot_product_fused_attention_overrideable _flash_attention _efficient_attention
        _scaled_dot_product_attention_math_for_mps _native_multi_head_attention""",
    "embedding": "embedding embedding_dense _embedding_bag _embedding_bag_dense embedding_bag embedding_sparse",
    "normalization": """layer_norm native_layer_norm batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm
        _batch_norm_impl_index _native_batch_norm_legit _native_batch_norm_legit_functional
        _native_batch_norm_legit_no_training _batch_norm_with_update group_norm native_group_norm instance_norm
        rms_norm _fused_rms_norm batch_norm_stats batch_norm_elemt sync_batch_norm local_response_norm""",
    "softmax": "softmax _softmax log_softmax _log_softmax _safe_softmax masked_softmax",
    "pooling": """max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool1d_with_indices avg_pool1d avg_pool2d
        avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d adaptive_max_pool2d
        mkldnn_max_pool2d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d
        _upsample_bilinear2d_aa""",
    "loss": """cross_entropy_loss nll_loss nll_loss_nd nll_loss2d nll_loss_forward nll_loss2d_forward mse_loss l1_loss
        smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div cosine_embedding_loss
        soft_margin_loss ctc_loss _ctc_loss cross_entropy linear_cross_entropy""",
    "elementwise": """add sub rsub mul div neg exp log sqrt rsqrt pow abs sign reciprocal sin cos tanh sigmoid relu
        relu6 leaky_relu gelu silu mish elu selu celu hardswish hardsigmoid hardtanh softplus threshold clamp clamp_min
        clamp_max where masked_fill dropout native_dropout fused_dropout _fused_dropout bernoulli addcmul addcdiv lerp
        eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not bitwise_xor maximum
        minimum fmod remainder floor ceil round trunc isnan isinf isfinite erf log1p expm1 square prelu glu logsigmoid
        log_sigmoid_forward fill zero dropout1d dropout2d feature_dropout alpha_dropout bitwise_left_shift
        bitwise_right_shift floor_divide true_divide log2 exp2 atan2 nan_to_num polar complex real imag
        view_as_real_copy _weight_norm softshrink hardshrink tril triu isneginf isposinf logit erfinv digamma
        masked_scatter __and__ __or__ __xor__ __lshift__ __rshift__ swiglu fused_rope""",
    "reduction": """sum mean var std var_mean std_mean max min amax amin argmax argmin prod norm linalg_vector_norm
        logsumexp cumsum cumprod any all count_nonzero
        norm_except_dim nansum aminmax median""",
    "copy": """copy clone contiguous _to_copy to cat stack _cat repeat repeat_interleave pad constant_pad_nd
        reflection_pad1d reflection_pad2d roll flip pin_memory _pin_memory hstack vstack im2col col2im split_copy
        split_with_sizes_copy expand_copy view_copy _reshape_copy tile pixel_shuffle pixel_unshuffle channel_shuffle
        cross_entropy_copy copy_slices fake_quantize resolve_conj resolve_neg""",
    "view": """view reshape _unsafe_view _reshape_alias flatten unflatten t transpose permute unsqueeze squeeze expand
        expand_as view_as detach alias slice select split split_with_sizes chunk unbind narrow unfold as_strided
        swapaxes movedim real_view view_as_real view_as_complex numpy_t lift_fresh lift diagonal unsafe_chunk
        unsafe_split unsafe_split_with_sizes set_ positive adjoint mt h mh tensor_split""",
    "create": """empty empty_like zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full new_empty
        arange range linspace eye rand randn randint randperm normal uniform random rand_like randn_like empty_strided
        new_empty_strided scalar_tensor empty_permuted tril_indices triu_indices one_hot_create exponential
        random_from log_normal lift_fresh_copy""",
    "index": """index index_select gather scatter scatter_add index_add index_copy index_put index_put_
        _index_put_impl take take_along_dim masked_select nonzero topk sort argsort one_hot searchsorted bucketize
        bincount unique _unique2 multinomial select_scatter slice_scatter index_fill embedding_renorm isin
        _unsafe_index _unsafe_index_put scatter_reduce histc""",
    "optimizer": "",
    "host": "item _local_scalar_dense is_nonzero equal allclose is_same_size",
}
_KIND_OF = {name: kind for kind, names in _NAMES.items() for name in names.split()}

_AUTOGRAD = re.compile(r"^(?:autograd::engine::evaluate_function:\s*)?(?:autograd::)?([A-Za-z_]\w*?)Backward(\d*)$")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NAMESPACE = re.compile(
    r"^(?:aten|prims|torch|_c10d_functional|c10d|quantized|xformers|flash_attn|transformer_engine)(?:::|\.)"
)
_AUTOGRAD_ALIASES = {
    "cudnn_batch_norm": "cudnn_batch_norm", "mkl_dnnconvolution": "mkldnn_convolution", "max_pool2_dwith_indices":
    "max_pool2d_with_indices", "t": "t", "mm": "mm",
}  # fmt: skip


@functools.lru_cache(maxsize=65536)
def canonical(name: str) -> tuple[str, bool]:
    """The operator's own name without namespace, overload or in-place mark, and whether it is a backward.

    ``"autograd::engine::evaluate_function: ConvolutionBackward0"`` and ``"aten::convolution_backward"`` are both
    ``("convolution", True)``; ``"aten::relu_"`` is ``("relu", False)``.
    """
    match = _AUTOGRAD.match(name.strip())
    if match:
        return _snake(match.group(1)), True
    base = _NAMESPACE.sub("", name.strip())
    base = base.split(".")[0].split("(")[0]
    if base.endswith("_") and not base.endswith("__"):
        base = base[:-1]
    for suffix in ("_backward", "_backward_data"):
        if base.endswith(suffix):
            return base[: -len(suffix)], True
    if base.endswith("_forward") and base[: -len("_forward")] in _KIND_OF:
        base = base[: -len("_forward")]
    return base, False


def _snake(camel: str) -> str:
    camel = re.sub(r"(\d)D(?=[A-Z]|$)", r"\1d", camel)
    parts = [p.lower() for p in _CAMEL.split(camel)]
    text = "_".join(parts)
    text = re.sub(r"_(\d+d)\b", r"\1", text)
    return _AUTOGRAD_ALIASES.get(text, text)


@functools.lru_cache(maxsize=65536)
def kind(name: str) -> str:
    """The class of an operator, one of :data:`KINDS`."""
    base, _ = canonical(name)
    if base.startswith(("_foreach", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_")):
        return "optimizer"
    found = _KIND_OF.get(base) or _KIND_OF.get(base + "_") or _KIND_OF.get(base.lstrip("_"))
    if found:
        return found
    for stem, group in (
        ("fused_experts", "experts"), ("fused_moe", "experts"), ("moe_forward", "experts"), ("marlin_moe", "experts"),
        ("moe_fused", "experts"), ("attention", "attention"), ("conv", "convolution"), ("batch_norm", "normalization"),
        ("layer_norm", "normalization"), ("rms_norm", "normalization"), ("softmax", "softmax"), ("pool", "pooling"),
        ("loss", "loss"), ("embedding", "embedding"), ("gemm", "linear"), ("matmul", "matmul"),
        ("dropout", "elementwise"), ("index", "index"), ("scatter", "index"), ("gather", "index"),
    ):  # fmt: skip
        if stem in base:
            return group
    return "other"


def is_backward(name: str) -> bool:
    """Whether the name is that of a backward operator."""
    return canonical(name)[1]


@functools.lru_cache(maxsize=8192)
def arguments(text: str) -> dict[str, Any]:
    """The arguments that are not tensors, from their JSON text.  Do not modify the result."""
    return {} if text == "{}" else json.loads(text)


@dataclass(frozen=True)
class Call:
    """One operator call with its shapes at hand, for the rules that need them.

    Attributes:
        name: canonical name.
        backward: whether it is a backward operator.
        kind: one of :data:`KINDS`.
        roles: argument name of each input.
        inputs: shape of each input.
        outputs: shape of each output.
        args: the arguments that are not tensors.
    """

    name: str
    backward: bool
    kind: str
    roles: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    args: dict[str, Any]

    def find(self, *roles: str) -> int:
        """Position of the first input with one of these roles, or -1."""
        for role in roles:
            if role in self.roles:
                return self.roles.index(role)
        return -1

    def shape(self, *roles: str) -> tuple[int, ...] | None:
        """Shape of the first input with one of these roles."""
        at = self.find(*roles)
        return self.inputs[at] if at >= 0 else None


class Calls:
    """Row access to a trace's operators as :class:`Call` objects; equal calls are one object."""

    def __init__(self, trace: Trace) -> None:
        operators = trace.operators
        self._names = operators.name
        self._args = operators.args
        self._inputs = operators.inputs.lists()
        self._outputs = operators.outputs.lists()
        roles = operators.role_names
        self._roles = [tuple(roles[c] for c in row) for row in operators.roles.lists()]
        self.shapes = [tuple(s) for s in trace.values.shape.lists()]
        self._rows: list[Call | None] = [None] * len(self._names)
        self._made: dict[tuple, Call] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, row: int) -> Call:
        call = self._rows[row]
        if call is None:
            shapes = self.shapes
            inputs = tuple([shapes[v] for v in self._inputs[row]])
            outputs = tuple([shapes[v] for v in self._outputs[row]])
            key = (self._names[row], self._args[row], self._roles[row], inputs, outputs)
            call = self._made.get(key)
            if call is None:
                call = self._made[key] = _call(*key)
            self._rows[row] = call
        return call


def _call(name: str, args: str, roles: tuple[str, ...], inputs: tuple, outputs: tuple) -> Call:
    base, backward = canonical(name)
    return Call(base, backward, kind(name), roles, inputs, outputs, arguments(args))


def flop(call: Call) -> float:
    """Floating-point operations of one call (a multiply-add counts two), NaN for kinds without such a count.

    Matrix products: 2 x output elements x length of the contraction.  Convolutions: 2 x output elements x
    weight elements per output channel; each gradient of a convolution costs as much as its forward.
    Experts: those of every pair of a token and an expert, as many as there are here.
    Attention: two products of 2 x queries x keys x head size each, five in the backward, half of that when causal.
    """
    if call.kind == "linear":
        return _linear_flop(call)
    if call.kind == "matmul":
        return _matmul_flop(call)
    if call.kind == "experts":
        found = experts.sizes(call)
        return found.flop() if found else math.nan
    if call.kind == "convolution":
        return _convolution_flop(call)
    if call.kind == "attention":
        return _attention_flop(call)
    return math.nan


def _numel(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def _linear_flop(call: Call) -> float:
    if call.backward:  # coarse autograd node: one product for each gradient of a matrix
        grad, source = call.shape("grad_output", "grad"), call.shape("input", "mat1", "self")
        weight = call.shape("weight", "mat2", "other")
        if not grad or not (source or weight):
            return math.nan
        inner = source[-1] if source else _numel(weight or ()) // max(grad[-1], 1)
        return 2.0 * _numel(grad) * inner * max(sum(1 for out in call.outputs if len(out) >= 2), 1)
    if call.name == "linear":
        source = call.shape("input", "self")
    else:
        source = call.shape("mat1", "self") if call.name != "mm" else call.shape("self", "mat1", "input")
    source = source if source is not None else (call.inputs[0] if call.inputs else None)
    if not source or not call.outputs:
        return math.nan
    return 2.0 * _numel(call.outputs[0]) * source[-1]


def _matmul_flop(call: Call) -> float:
    biased = call.name in ("baddbmm", "addbmm")
    matrices = [s for s, r in zip(call.inputs, call.roles, strict=True) if not biased or r not in ("self", "input")]
    if call.backward:
        grad = call.shape("grad_output", "grad")
        others = [s for s, r in zip(call.inputs, call.roles, strict=True) if r not in ("grad_output", "grad")]
        if grad is None or not others:
            return math.nan
        inner = _numel(others[0]) // max(_numel(grad) // grad[-1], 1) if grad else 0
        return 2.0 * _numel(grad) * inner * max(len(call.outputs), 1)
    if not matrices or not call.outputs or not matrices[0]:
        return math.nan
    if call.name == "einsum":
        return 2.0 * math.sqrt(float(_numel(call.outputs[0])) * math.prod(_numel(s) for s in call.inputs))
    return 2.0 * _numel(call.outputs[0]) * matrices[0][-1]


def _convolution_flop(call: Call) -> float:
    weight = call.shape("weight")
    if weight is None:
        return math.nan
    transposed = bool(call.args.get("transposed")) or "transpose" in call.name
    if not call.backward:
        read = call.shape("input", "self") or (call.inputs[0] if call.inputs else None)
        if not read or not call.outputs:
            return math.nan
        return 2.0 * _numel(read if transposed else call.outputs[0]) * (_numel(weight) // weight[0])
    grad, source = call.shape("grad_output", "grad"), call.shape("input", "self")
    positions = source if transposed else grad
    if positions is None:
        return math.nan
    gradients = sum(1 for out in call.outputs if len(out) > 2 and _numel(out))
    return 2.0 * _numel(positions) * (_numel(weight) // weight[0]) * gradients


def _attention_flop(call: Call) -> float:
    query, key = call.shape("query", "q"), call.shape("key", "k")
    value = call.shape("value", "v")
    if query is None or key is None or len(query) < 3 or len(key) < 3:
        return math.nan
    head_v = value[-1] if value else query[-1]
    pairs = float(_numel(query[:-1])) * key[-2]
    if call.args.get("is_causal") and query[-2] == key[-2]:
        pairs *= (key[-2] + 1) / (2 * key[-2])
    if call.backward:  # S = QK' again, then dV, dP, dQ, dK
        return pairs * (2 * query[-1] * 3 + 2 * head_v * 2)
    return pairs * (2 * query[-1] + 2 * head_v)


def count_flop(trace: Trace) -> NDArray[np.float64]:
    """FLOP of every operator of a trace, NaN where the kind has no such count."""
    calls = Calls(trace)
    counted = {"linear", "matmul", "experts", "convolution", "attention"}
    return np.array(
        [flop(calls[row]) if kind(name) in counted else math.nan for row, name in enumerate(trace.operators.name)],
        np.float64,
    ).reshape(len(calls))


def count_bytes(trace: Trace) -> NDArray[np.float64]:
    """Bytes that every operator reads and writes, each value once; views move nothing.

    Gathering operators (embedding, index) read only the rows they return.
    """
    operators, size = trace.operators, trace.values.bytes().tolist()
    inputs, outputs, view = operators.inputs.lists(), operators.outputs.lists(), operators.view.tolist()
    roles, names = operators.roles.lists(), operators.role_names
    out = np.zeros(len(operators))
    for row, name in enumerate(operators.name):
        if view[row]:
            continue
        written = sum(size[v] for v in set(outputs[row]))
        group = kind(name)
        if group in ("embedding", "index") and not is_backward(name):
            table = {"weight", "self", "input"}
            read = sum(size[v] for v, r in zip(inputs[row], roles[row], strict=True) if names[r] not in table)
            out[row] = read + 2 * written
        elif group == "create":
            out[row] = written
        else:
            out[row] = written + sum(size[v] for v in set(inputs[row]))
    return out
