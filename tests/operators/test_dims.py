"""Dimensions: those of the operator, whatever their extents; what is linear; windows; reshapes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import triosim
from triosim.operators import NO_LABEL, Call, Dims, canonical, dims, kind, regrouped
from triosim.trace.calls import calls_of

MODELS = {
    "gpt2": {"n_layer": 1, "n_embd": 48, "n_head": 4, "vocab_size": 96, "n_positions": 64},
    "llama": {"num_hidden_layers": 1, "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
              "intermediate_size": 80, "vocab_size": 96},
    "bert-base": {"num_hidden_layers": 1, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 80},
    "resnet18": {}, "vgg11": {}, "densenet121": {},
}  # fmt: skip


def call(name: str, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], roles: str, **args: Any) -> Call:
    base, backward = canonical(name)
    return Call(base, backward, kind(name), tuple(roles.split()), tuple(inputs), tuple(outputs), args, name)


def labels(found: Dims) -> tuple[Any, ...]:
    return (
        found.inputs, tuple((o.labels, o.inputs) for o in found.outputs), found.whole, found.reshape, found.known,
        found.split, found.linear, found.creates, found.per_rank,
    )  # fmt: skip


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_batch_of_one_has_the_dimensions_of_any_other(name: str, precision: str) -> None:
    """What is broadcast over the batch can only be told where the batch is more than one."""
    text = {} if name in ("resnet18", "vgg11", "densenet121") else {"sequence_length": 16}
    one, two = (
        triosim.model(name, batch_size=b, configuration=MODELS[name], precision=precision, **text) for b in (1, 2)
    )
    first, second = calls_of(one), calls_of(two)
    assert one.operators.name == two.operators.name
    told_apart = 0
    for row in range(len(one)):
        if labels(first.dims(row)) != labels(second.dims(row)):
            shapes = second[row].inputs
            assert first[row].kind == "elementwise", first[row]
            assert any(1 in shape or len(shape) < max(map(len, shapes)) for shape in shapes), first[row]
            told_apart += 1
    assert told_apart < len(one) / 10


def test_a_batch_of_one_keeps_its_labels_in_views_and_products() -> None:
    assert dims(call("aten::bmm", [(1, 5, 1), (1, 1, 7)], [(1, 5, 7)], "self mat2")).inputs == ((0, 1, 2), (0, 2, 3))
    found = dims(call("aten::addmm", [(1,), (1, 3), (3, 1)], [(1, 1)], "self mat1 mat2"))
    assert found.inputs == ((2,), (0, 1), (1, 2))
    added = dims(call("aten::addmm", [(1,), (1, 3), (3, 4)], [(1, 4)], "self mat1 mat2"))
    assert added.inputs[0] == (NO_LABEL,), "broadcast over the columns"
    found = dims(call("aten::unsqueeze", [(1, 8)], [(1, 1, 8)], "self", dim=1))
    assert (found.inputs, found.outputs[0].labels) == (((0, 2),), (0, NO_LABEL, 2))


def test_one_head_of_keys_is_shared_by_all_queries() -> None:
    shapes = [(2, 8, 16, 4), (2, 1, 16, 4), (2, 1, 16, 4)]
    found = dims(call("aten::scaled_dot_product_attention", shapes, [shapes[0]], "query key value"))
    b, h, s, t, d, _ = (found.label(name) for name in "bhstde")
    assert found.inputs[0] == (b, h, s, d)
    assert found.inputs[1] == (b, NO_LABEL, t, d)
    assert t in found.whole
    assert s not in found.whole, "queries may be divided, keys are needed whole"


def test_attention_of_three_dimensions_and_of_positions_first() -> None:
    flat = dims(call("aten::_scaled_dot_product_attention_math", [(6, 9, 4)] * 3, [(6, 9, 4)], "query key value"))
    assert flat.inputs[:2] == ((1, 2, 4), (1, 3, 4))
    turned = dims(call("aten::_flash_attention_forward", [(2, 9, 6, 4)] * 3, [(2, 9, 6, 4)], "query key value"))
    assert turned.inputs[0] == (0, 2, 1, 4)


def test_gradients_of_equal_shape_are_told_apart() -> None:
    """A batch as large as the layer is wide, and as many images as filters."""
    square = call("LinearBackward0", [(8, 8)] * 3, [(8, 8), (8, 8)], "grad_output input weight")
    m, k, n = 0, 1, 2
    assert [o.labels for o in dims(square).outputs] == [(m, k), (n, k)]
    node = call("MmBackward0", [(8, 8)] * 3, [(8, 8), (8, 8)], "grad_output self mat2")
    assert [o.labels for o in dims(node).outputs] == [(m, k), (k, n)]
    shape = (4, 4, 3, 3)
    both = call("aten::convolution_backward", [shape] * 3, [shape, shape], "grad_output input weight",
                output_mask=[True, True, False])  # fmt: skip
    first, second = (o.labels for o in dims(both).outputs)
    assert first[0] == 0
    assert second[0] == 1
    weight = call("aten::convolution_backward", [shape] * 3, [shape], "grad_output input weight",
                  output_mask=[False, True, False])  # fmt: skip
    assert dims(weight).outputs[0].labels == second


@given(st.integers(1, 2), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2))
def test_windows_are_the_loops_of_a_convolution(
    rank: int, size: int, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    """The first and the last place of the window at the first and the last position lie within the padded input."""
    made = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    if size + 2 * padding < dilation * (kernel - 1) + 1:
        return
    args = {"stride": [stride] * rank, "padding": [padding] * rank, "dilation": [dilation] * rank, "groups": 1}
    one = call("aten::convolution", [(2, 3, *[size] * rank), (5, 3, *[kernel] * rank)], [(2, 5, *[made] * rank)],
               "input weight", **args)  # fmt: skip
    found = dims(one)
    extents = found.extents(one)
    assert len(found.windows) == rank
    for w in found.windows:
        last = (extents[w.result] - 1) * w.stride + (extents[w.kernel] - 1) * w.dilation - w.padding
        assert -w.padding <= last < extents[w.source] + w.padding
    o, c, b = (extents[found.label(name)] for name in "ocb")
    flop = 2 * b * o * c * math.prod(extents[w.result] * extents[w.kernel] for w in found.windows)
    assert flop == triosim.operators.flop(one)


def test_groups_share_the_label_of_their_channels() -> None:
    one = call("aten::convolution", [(2, 8, 5, 5), (16, 2, 3, 3)], [(2, 16, 3, 3)], "input weight", groups=4)
    found = dims(one)
    assert found.groups == 4
    assert found.inputs[0][1] == found.outputs[0].labels[1] == found.inputs[1][0]
    assert found.inputs[1][1] == NO_LABEL


def test_a_repeated_dimension_follows_in_proportion() -> None:
    found = dims(call("aten::repeat_interleave", [(2, 3, 5)], [(2, 12, 5)], "self", dim=1, repeats=4))
    assert found.inputs == ((0, 1, 2),)
    assert found.outputs[0].labels == (0, 1, 2)
    assert found.split == 1
    assert not dims(call("aten::pixel_shuffle", [(2, 16, 5, 5)], [(2, 4, 10, 10)], "self", upscale_factor=2)).known


def test_every_tensor_of_an_optimizer_has_labels_of_its_own() -> None:
    shapes = [(3, 4), (4,)]
    found = dims(call("aten::_foreach_addcdiv_", shapes * 3, shapes, "self self tensor1 tensor1 tensor2 tensor2"))
    assert found.inputs == ((0, 1), (2,)) * 3
    assert [o.labels for o in found.outputs] == [(0, 1), (2,)]


def test_what_reads_shapes_only_and_what_works_alone_on_each_rank() -> None:
    assert dims(call("aten::ones_like", [(2, 3)], [(2, 3)], "self")).creates
    assert dims(call("aten::new_zeros", [(2, 3)], [(7,)], "self", size=[7])).outputs[0].inputs == ()
    assert not dims(call("aten::clone", [(2, 3)], [(2, 3)], "self")).creates
    loss = call("aten::nll_loss_forward", [(6, 9), (6,)], [(), ()], "self target")
    assert dims(loss).per_rank
    shape = (2, 3, 4, 4)
    norm = call("aten::native_batch_norm", [shape, (3,), (3,)], [shape, (3,), (3,)], "input weight bias")
    assert dims(norm).per_rank
    assert not dims(call("aten::native_batch_norm", [shape, (3,)], [shape], "input weight", training=False)).per_rank
    assert not dims(call("aten::native_layer_norm", [(2, 3), (3,)], [(2, 3)], "input weight")).per_rank


@given(st.lists(st.integers(1, 4), max_size=5), st.lists(st.integers(1, 4), max_size=5))
def test_groups_of_a_reshape_hold_the_same_elements(before: list[int], after: list[int]) -> None:
    found = regrouped(tuple(before), tuple(after))
    assert (found is None) == (math.prod(before) != math.prod(after))
    if found:
        assert [d for first, _ in found for d in first] == list(range(len(before)))
        assert [d for _, last in found for d in last] == list(range(len(after)))
        for first, last in found:
            assert math.prod(before[d] for d in first) == math.prod(after[d] for d in last)
    assert regrouped(tuple(before), tuple(before)) == tuple(((d,), (d,)) for d in range(len(before)))
