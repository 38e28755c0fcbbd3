"""Calls that multiply by the experts of a mixture: their sizes, their work, and what follows the tokens."""

from __future__ import annotations

import math

import pytest

from triosim.operators import NO_LABEL, Call, canonical, dims, flop, kind
from triosim.operators import work as sizes


def call(name: str, inputs: list[tuple], outputs: list[tuple], roles: list[str] | None = None, **args: object) -> Call:
    base, backward = canonical(name)
    return Call(base, backward, kind(name), tuple(roles or [""] * len(inputs)), tuple(inputs), tuple(outputs), args)


@pytest.mark.parametrize(
    "name",
    ["aten::_grouped_mm", "aten::_scaled_grouped_mm", "GroupedMmBackward0", "vllm::inplace_fused_experts",
     "vllm::moe_forward", "sglang::outplace_fused_experts", "vllm::fused_marlin_moe", "trtllm::fused_moe"],
)  # fmt: skip
def test_experts_are_told_by_name(name):
    assert kind(name) == "experts"


def test_one_product_of_sorted_rows():
    forward = call("aten::_grouped_mm", [(1000, 64), (8, 64, 96), (8,)], [(1000, 96)], ["self", "mat2", "offs"])
    assert flop(forward) == 2 * 1000 * 64 * 96
    assert sizes(forward) == (125, 96, 64, 8, 1)  # rows, columns, summed length, experts, times
    gradient = call("aten::_grouped_mm", [(64, 1000), (1000, 96), (8,)], [(8, 64, 96)])
    assert flop(gradient) == flop(forward)
    assert sizes(gradient) == (64, 96, 128, 8, 1)  # summed over 125 rows, padded to whole loads
    even = call("aten::_grouped_mm", [(8, 125, 64), (8, 64, 96)], [(8, 125, 96)])
    assert flop(even) == flop(forward)
    turned = call("aten::_grouped_mm", [(8, 96, 64), (64, 1000), (8,)], [(96, 1000)])
    assert flop(turned) == flop(forward)


def test_the_gradients_of_one_product():
    both = call("GroupedMmBackward0", [(1000, 96), (1000, 64), (8, 64, 96)], [(1000, 64), (8, 64, 96)])
    assert flop(both) == 2 * 2 * 1000 * 64 * 96


LAYER = [(1000, 64), (8, 2 * 96, 64), (8, 64, 96), (1000, 2), (1000, 2)]


def test_a_whole_layer():
    gated = call("vllm::inplace_fused_experts", LAYER, [])
    assert flop(gated) == 2 * 1000 * 2 * 3 * 64 * 96
    plain = call("vllm::outplace_fused_experts", [LAYER[0], (8, 96, 64), *LAYER[2:]], [(1000, 64)])
    assert flop(plain) == 2 * 1000 * 2 * 2 * 64 * 96
    packed = call("vllm::fused_experts", [LAYER[0], (8, 2 * 96, 32), (8, 64, 48), (1000, 2)], [(1000, 64)])
    assert sizes(packed).packed == 2
    assert flop(packed) == flop(gated)
    said = call("sglang::fused_moe", [*LAYER[:3], (1000, 8)], [(1000, 64)], topk=2)
    assert flop(said) == flop(gated)


@pytest.mark.parametrize(
    "inputs",
    [[(1000, 64)], [(1000, 64), (1000, 8)], [(1000, 64), (8, 96, 64)], [(1000, 64), (8, 192, 64), (4, 64, 96)],
     [(1000, 64), (8, 192, 64), (8, 64, 96)], [(0, 64), (8, 192, 64), (8, 64, 96), (0, 2)], []],
)  # fmt: skip
def test_shapes_that_do_not_tell_are_not_guessed(inputs):
    assert sizes(call("vllm::moe_forward", inputs, [(1000, 64)])) is None
    assert math.isnan(flop(call("vllm::moe_forward", inputs, [(1000, 64)])))


def test_tokens_keep_their_label():
    layer = dims(call("vllm::outplace_fused_experts", LAYER, [(1000, 64)]))
    assert layer.known
    assert layer.inputs == ((0, 1), (NO_LABEL,) * 3, (NO_LABEL,) * 3, (0, NO_LABEL), (0, NO_LABEL))
    assert layer.outputs[0].labels == (0, 1)
    product = dims(call("aten::_grouped_mm", [(1000, 64), (8, 64, 96), (8,)], [(1000, 96)]))
    assert product.inputs == ((0, 1), (NO_LABEL, 1, 2), (NO_LABEL,))
    assert product.outputs[0].labels == (0, 2)
    gradient = dims(call("aten::_grouped_mm", [(32, 1000), (1000, 96), (8,)], [(8, 32, 96)]))
    assert gradient.inputs[:2] == ((0, 1), (1, 2))  # the sum is over the tokens
    assert gradient.outputs[0].labels == (NO_LABEL, 0, 2)
    assert not dims(call("aten::_grouped_mm", [(32, 1000), (900, 96), (8,)], [(8, 32, 96)])).known
