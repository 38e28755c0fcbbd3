"""Which class, engine and element type an operator is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.example import DEVICE, one, step
from triosim.core.dtypes import DTYPES
from triosim.hardware import catalog
from triosim.kernels.classes import ENGINES, GROUPS, classify
from triosim.kernels.model import PricingJob
from triosim.kernels.pricing import price

LINEAR = ([(8, 64), (32, 64)], (8, 32), ["input", "weight"])


MANY_TYPES = catalog.accelerator("B200")


def found(trace, device=DEVICE) -> tuple[str, str, str]:
    c = classify(trace, device)
    dtype = int(c.dtype[0])
    return GROUPS[int(c.group[0])], ENGINES[int(c.engine[0])], DTYPES[dtype] if dtype >= 0 else ""


@pytest.mark.parametrize(
    ("dtype", "engine"),
    [("float32", "simt"), ("float64", "simt"), ("tfloat32", "tensor"), ("bfloat16", "tensor"), ("float16", "tensor"),
     ("float8_e4m3fn", "narrow"), ("float4_e2m1", "narrow"), ("int8", "narrow")],
)  # fmt: skip
def test_the_engine_follows_the_element_type(dtype, engine):
    shapes, out, roles = LINEAR
    assert found(one("aten::linear", shapes, out, dtype, roles), MANY_TYPES) == ("matrix", engine, dtype)


def test_the_engine_is_that_of_what_multiplies_on_the_device():
    """bfloat16 is emulated on a V100, and what nothing multiplies is no class of its own."""
    shapes, out, roles = LINEAR
    trace = one("aten::linear", shapes, out, "bfloat16", roles)
    assert found(trace, catalog.accelerator("V100")) == ("matrix", "simt", "bfloat16")
    assert found(trace, catalog.accelerator("RTX-3090")) == ("matrix", "tensor", "bfloat16")


def test_float32_convolutions_run_in_tf32_where_the_device_has_it_and_products_do_not():
    convolution = one("aten::conv2d", [(2, 3, 8, 8), (4, 3, 3, 3)], (2, 4, 8, 8), "float32", ["input", "weight"])
    assert found(convolution) == ("convolution", "tensor", "tfloat32")
    shapes, out, roles = LINEAR
    assert found(one("aten::linear", shapes, out, "float32", roles)) == ("matrix", "simt", "float32")
    volta = replace(DEVICE, peak_flops={"float32": 1e13, "float16": 1e14})
    assert found(convolution, volta) == ("convolution", "simt", "float32")
    assert found(convolution, replace(DEVICE, vendor="AMD")) == ("convolution", "simt", "float32")


def test_the_widest_operand_counts_but_not_biases_and_scales():
    shapes, out = [(8, 64), (32, 64), (32,)], (8, 32)
    weight_only = one("aten::linear", shapes, out, ["bfloat16", "int8", "float32"], ["input", "weight", "bias"])
    assert found(weight_only)[2] == "bfloat16"
    shapes = [(8, 64), (64, 32), (8, 1)]
    scaled = one(
        "aten::_scaled_mm", shapes, out, ["float8_e4m3fn", "float8_e4m3fn", "float32"], ["self", "mat2", "scale_a"],
        out_dtype="bfloat16",
    )  # fmt: skip
    assert found(scaled, MANY_TYPES)[1:] == ("narrow", "float8_e4m3fn")
    shapes, types = [(32,), (8, 64), (64, 32)], ["bfloat16", "float8_e4m3fn", "float8_e4m3fn"]
    added = one("aten::addmm", shapes, out, types, ["self", "mat1", "mat2"], out_dtype="bfloat16")
    assert found(added, MANY_TYPES)[1:] == ("narrow", "float8_e4m3fn")


def test_autocast_shows_in_the_result():
    shapes, out, roles = LINEAR
    trace = one("aten::linear", shapes, out, "float32", roles, out_dtype="bfloat16")
    assert found(trace) == ("matrix", "tensor", "bfloat16")


@pytest.mark.parametrize(
    ("name", "group"),
    [("aten::empty", "nothing"), ("aten::new_empty_strided", "nothing"), ("aten::item", "nothing"),
     ("aten::zeros", "other"), ("aten::relu_", "elementwise"), ("aten::layer_norm", "rowwise"),
     ("aten::_softmax", "rowwise"), ("aten::max_pool2d", "other"), ("aten::_foreach_add_", "other"),
     ("something::new", "other")],
)  # fmt: skip
def test_classes_that_only_move_bytes(name, group):
    assert found(one(name, [(8, 8)], (8, 8))) == (group, "", "")


def test_backward_classes():
    shapes, roles = [(2, 4, 8, 8), (2, 3, 8, 8), (4, 3, 3, 3)], ["grad_output", "input", "weight"]
    trace = one("aten::convolution_backward", shapes, (2, 3, 8, 8), "float32", roles)
    assert found(trace)[0] == "convolution_backward"


def test_an_uncounted_product_is_moved_by_its_bytes():
    assert found(one("aten::linear", [], (8, 32), [], out_dtype="bfloat16")) == ("other", "", "")


def test_views_are_nothing():
    c = classify(step(), DEVICE)
    assert [GROUPS[g] for g in c.group] == ["matrix", "elementwise", "nothing", "other"]
    assert np.array_equal(c.dtype >= 0, [True, False, False, False])


LAYER = [(1000, 64), (8, 192, 64), (8, 64, 96), (1000, 2), (1000, 2)]


def test_experts_are_multiplied_in_the_type_of_the_tokens():
    types = ["bfloat16", "bfloat16", "bfloat16", "float32", "int32"]
    assert found(one("vllm::outplace_fused_experts", LAYER, (1000, 64), types)) == ("experts", "tensor", "bfloat16")
    product = one("aten::_grouped_mm", [(1000, 64), (8, 64, 96)], (1000, 96), "bfloat16", ["self", "mat2"])
    assert found(product) == ("matrix", "tensor", "bfloat16")
    unknown = one("vllm::moe_forward", [(1000, 64), (1000, 8)], (1000, 64))
    assert found(unknown)[0] == "other"  # without weights the work cannot be counted


@pytest.mark.parametrize("model", ["physical", "roofline"])
def test_experts_take_about_the_time_of_their_products(model):
    """Eight experts of 128 rows each: between a product that does the same work and thrice that."""
    b200 = catalog.accelerator("B200-SXM-180GB")
    sizes = [(1024, 4096), (8, 4096, 4096)], (1024, 4096)
    experts = one("aten::_grouped_mm", *sizes, "bfloat16", ["self", "mat2"])
    product = one("aten::bmm", [(8, 128, 4096), (8, 4096, 4096)], (8, 128, 4096), "bfloat16", ["self", "mat2"])
    many, alike = (price(PricingJob(trace, b200, trace, None), model) for trace in (experts, product))
    assert 0.9 * alike.seconds[0] < many.seconds[0] < 3 * alike.seconds[0]
    assert many.spread[0] > 0
