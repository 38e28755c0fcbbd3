"""Operators that make every element from the elements at the same place, with broadcasting."""

from __future__ import annotations

from dataclasses import replace

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import GRADIENT_ROLES, Dims, aligned, at_once, broadcast, in_each, in_gradient, none_placed
from triosim.operators._kind import Kind, gradients_of, like, promoted
from triosim.operators._work import TURNED, MovedBytes


@registered
class Elementwise(Kind):
    """``result[i...] = f(self[i...], other[i...], ...)``; shapes are broadcast, aligned at the last dimension."""

    names = """
        add sub rsub subtract: self other alpha
        mul div true_divide floor_divide multiply divide eq ne lt le gt ge greater greater_equal less less_equal
          not_equal maximum minimum fmax fmin fmod remainder logical_and logical_or logical_xor bitwise_and bitwise_or
          bitwise_xor bitwise_left_shift bitwise_right_shift atan2 arctan2 copysign hypot nextafter gcd lcm
          logaddexp logaddexp2 ldexp xlogy __and__ __or__ __xor__ __lshift__ __rshift__: self other
        pow float_power: self exponent
        heaviside: self values
        neg negative exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square abs absolute sign sgn signbit reciprocal
          sin cos tan asin acos atan sinh cosh asinh acosh atanh arcsin arccos arctan arcsinh arccosh arctanh sinc
          sigmoid relu relu6 silu mish selu hardswish hardsigmoid logsigmoid log_sigmoid_forward log_sigmoid erf erfc
          erfinv digamma lgamma floor ceil round trunc fix frac isnan isinf isfinite isneginf isposinf logical_not
          bitwise_not deg2rad rad2deg angle real imag conj_physical tril triu: self
        gelu: self approximate
        leaky_relu: self negative_slope
        elu celu: self alpha
        softplus: self beta threshold
        hardtanh: self min_val max_val
        softshrink hardshrink: self lambd
        threshold: self threshold value
        prelu _prelu_kernel: self weight
        glu: self dim
        tanh: self
        clamp clip: self min max
        clamp_min: self min
        clamp_max: self max
        where: condition self other
        masked_fill: self mask value
        masked_scatter: self mask source
        addcmul addcdiv: self tensor1 tensor2 value
        lerp: self end weight
        fill: self value
        zero: self
        nan_to_num: self nan posinf neginf
        logit: self eps
        polar: abs angle
        complex: real imag
        dropout native_dropout feature_dropout alpha_dropout feature_alpha_dropout dropout1d dropout2d dropout3d:
          input p train
        fused_dropout _fused_dropout bernoulli: self p
        _weight_norm _weight_norm_interface: v g dim
        quantize_per_tensor quantize_per_channel dequantize fake_quantize_per_tensor_affine
        fake_quantize_per_channel_affine fake_quantize_per_tensor_affine_cachemask
        view_as_real_copy
        quantize compute_amax rescale: self
        dequantize_4bit: absmax self
        swiglu clamped_swiglu: gate up weight
        squared_relu: gate weight
        softsign: self
        gdn_gate kda_gate: gate A_log dt_bias
        fused_rope: input cos sin
        silu_and_mul gelu_and_mul gelu_tanh_and_mul rotary_embedding
        """
    gradients = """
        threshold_backward: grad_output self threshold
        hardtanh_backward: grad_output self min_val max_val
        leaky_relu_backward: grad_output self negative_slope self_is_result
        elu_backward: grad_output alpha scale input_scale is_result self_or_result
        softplus_backward: grad_output self beta threshold
        gelu_backward: grad_output self approximate
        silu_backward hardswish_backward hardsigmoid_backward mish_backward: grad_output self
        sigmoid_backward tanh_backward: grad_output output
        native_dropout_backward: grad_output mask scale
        """
    words = "dropout"
    kernels = "elementwise"
    stream = "elementwise"

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        if call.backward:
            parts = (("gate",), ("up",), ("weight",), ("A_log",), ("dt_bias",))
            each = gradients_of(call, *parts) if call.find("gate") >= 0 else None
            return each or like(call, "self", "output", "result", *GRADIENT_ROLES, "input")
        if not call.inputs:
            return None
        if call.name in _LIKE_INPUT:
            return like(call, "input", "self", "gate")
        shape = broadcast(call.inputs)
        if shape is None:
            return None
        dtype = "bool" if call.name in _TRUTHS else "float32" if call.name in _GATES else promoted(call)
        made = CallResult(shape, dtype)
        return (made, CallResult(shape, "bool", saved=True)) if call.name in _MASKED else (made,)

    def reads_result(self, name: str, role: str) -> bool:
        """What is cut off at a threshold is told from the result as well, which needs no memory of its own."""
        return super().reads_result(name, role) or (name in ("threshold", "elu") and role.startswith("self"))

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        """Filling reads nothing.  A cast that writes the other way round reads twice: so does the kernel that Inductor
        makes of it, which tops out at 1.4 TB/s of bytes that need to move on an H100 where other casts do at 2.2
        (github.com/pytorch/pytorch/issues/133242)."""
        if call.args.get(TURNED):
            return counted._replace(read=2.0 * counted.read)
        return counted._replace(read=0.0) if call.name in _FILLS else counted

    def dims(self, call: Call) -> Dims:
        found = aligned(call, tolerant=True)
        known = found.known and not none_placed(call, found)
        return replace(found, known=known, linear=_linear(call), creates=call.name in _FILLS)


_FILLS = ("zero", "fill")
_GATES = ("gdn_gate", "kda_gate")
"""Decays of delta rules, in float32."""
_LIKE_INPUT = ("fused_rope", "prelu", "_prelu_kernel", "glu", "swiglu", "clamped_swiglu", "squared_relu")
_MASKED = ("native_dropout", "_fused_dropout", "fused_dropout")
_TRUTHS = frozenset((
    "eq", "ne", "lt", "le", "gt", "ge", "greater", "greater_equal", "less", "less_equal", "not_equal", "logical_and",
    "logical_or", "logical_xor", "logical_not", "isnan", "isinf", "isfinite", "isneginf", "isposinf", "signbit",
))  # fmt: skip
"""Operators whose results are true or false."""
_SUMS = ("add", "sub", "subtract", "rsub")
_PRODUCTS = ("mul", "multiply")
_QUOTIENTS = ("div", "true_divide", "divide")
_MAPS = ("neg", "negative", "real", "imag", "conj_physical", "tril", "triu", "deg2rad", "rad2deg", "fused_rope")


def _linear(call: Call) -> tuple[frozenset[int], ...]:
    """Sets of inputs in which the operator is linear at once."""
    if call.backward:
        return in_gradient(call)
    first, other = call.find("self", "input"), call.find("other")
    if call.name in _SUMS:
        return (at_once(first, other),) if first >= 0 and other >= 0 else ()  # with a number it is not linear
    if call.name in _PRODUCTS:
        return in_each(first, other)
    if call.name in (*_QUOTIENTS, *_MAPS):
        return in_each(first)
    if call.name == "where":
        return (at_once(first, other),) if first >= 0 and other >= 0 else ()
    if call.name == "masked_fill":
        return in_each(first) if call.args.get("value") == 0 else ()
    if call.name == "lerp":
        return (at_once(first, call.find("end")),)
    if call.name == "addcmul":
        return tuple(at_once(first, call.find(role)) for role in ("tensor1", "tensor2"))
    if call.name == "addcdiv":
        return (at_once(first, call.find("tensor1")),)
    return ()
