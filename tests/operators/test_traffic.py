"""What the kernels of a call move, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from triosim.operators import Call, MovedBytes, canonical, kind, kind_named, traffic


def call(
    name: str, *inputs: tuple[int, ...], out: tuple[int, ...] | list[tuple[int, ...]] = (), roles: str = "",
    args: dict[str, Any] | None = None,
) -> Call:  # fmt: skip
    """A call as traces have it; backward if its name says so."""
    outputs = tuple(out) if isinstance(out, list) else (out,)
    base, backward = canonical(name)
    given = tuple(roles.split()) or ("input",) * len(inputs)
    return Call(base, backward, kind(name), given, inputs, outputs, args or {}, name)


def moves(one: Call, read: float = 0.0, written: float = 0.0) -> MovedBytes:
    """What a call moves whose tensors have so many bytes."""
    rules = kind_named(one.kind)
    return rules.traffic(one, MovedBytes(rules.stream_of(one), read, written))


def moved(*numbers: float, kernels: float = 1.0) -> tuple[float, ...]:
    """What is expected of :class:`MovedBytes` after its first field."""
    defaults = (0.0, 0.0, 1.0, 0.0, kernels)
    return (*numbers, *defaults[len(numbers) :])


def test_rows_of_calls_by_hand() -> None:
    softmax = call("aten::_softmax", (8, 16, 128, 512), out=(8, 16, 128, 512), args={"dim": 2})
    found = moves(softmax)
    assert (found.rows, found.row_bytes) == (8 * 16 * 512, 4 * 128)
    norm = call("aten::layer_norm", (4, 9, 768), (768,), out=(4, 9, 768), roles="input weight")
    found = moves(norm)
    assert (found.rows, found.row_bytes) == (36, 4 * 768)
    batch = call("aten::batch_norm", (128, 64, 56, 56), out=(128, 64, 56, 56))
    found = moves(batch)
    assert (found.rows, found.row_bytes) == (64, 4 * 128 * 56 * 56)
    assert moves(replace(batch, inputs=((0, 64),))).row_bytes == 0.0
    instance = call("aten::instance_norm", (4, 8, 10, 10), out=(4, 8, 10, 10))
    assert moves(instance).rows == 32
    group = call("aten::native_group_norm", (4, 8, 10, 10), (8,), out=(4, 8, 10, 10), roles="input weight",
                 args={"group": 2})  # fmt: skip
    found = moves(group)
    assert (found.rows, found.row_bytes) == (8, 4 * 4 * 100)


def test_given_statistics_are_not_summed() -> None:
    name = "aten::native_batch_norm"
    one = call(name, (8, 64, 9, 9), out=(8, 64, 9, 9), args={"training": False})
    assert moves(one).row_bytes == 0.0
    assert traffic(one).stream == "elementwise"
    assert traffic(replace(one, args={"training": True})).stream == "batch_norm"


def test_the_gradients_of_a_norm_are_read_twice() -> None:
    name, shape = "aten::native_layer_norm_backward", (4, 9, 768)
    both = call(name, shape, shape, (768,), out=[shape, (768,), (768,)], roles="grad_out input weight")
    assert moves(both, 1e6, 5e5)[1:] == moved(2e6, 5e5, 36, 4 * 768, 2.0)
    alone = replace(both, outputs=(shape,))
    assert moves(alone, 1e6, 5e5).read == 1e6


def test_a_loss_in_place_goes_over_the_scores_step_by_step() -> None:
    """Maximum, minus it, exponential, sum, by it: five read all, three write it; the backward multiplies once.  A row's
    target is an element of it, read in a sector of 32 bytes, and its number has 8."""
    name, scores = "megatron::vocab_parallel_cross_entropy", (64, 1000)
    size, rows = 4 * 64 * 1000, 64
    one = call(name, scores, (64,), out=[(), scores], roles="input target")
    assert moves(one)[1:] == moved(5 * size + 40 * rows, 3 * size, kernels=6.0)
    back = call(f"{name}_backward", (), scores, (64,), out=scores, roles="grad_output input target")
    assert moves(back)[1:] == moved(size + 64 * rows, size, kernels=3.0)


def test_pooling_by_hand() -> None:
    """Indices of 8 bytes are written and read; the backward does not read the input."""
    wide, narrow = (2, 3, 8, 8), (2, 3, 4, 4)
    name = "aten::max_pool2d"
    one = call(name, wide, out=narrow)
    assert moves(one, 1536, 384)[1:] == moved(1536, 384 + 8 * 96, 96, 4)
    listed = replace(one, outputs=(narrow, narrow))
    assert moves(listed, 1536, 384 + 768).written == 384 + 768
    name = "aten::max_pool2d_with_indices_backward"
    back = call(name, narrow, wide, narrow, out=wide, roles="grad_output self indices")
    assert moves(back, 9e9, 9e9)[1:] == moved(96 * 12, 1536, 384, 4)
    name = "aten::avg_pool2d_backward"
    back = call(name, narrow, wide, out=wide, roles="grad_output self")
    assert moves(back, 9e9, 9e9)[1:] == moved(96 * 4, 1536, 384, 4)
    name = "aten::adaptive_avg_pool2d"
    assert moves(call(name, wide, out=(2, 3, 1, 1)), 1536, 24).row_bytes == 0.0, "a sum"


def test_gradient_of_a_table_by_hand() -> None:
    """Zeros everywhere, then 12 rows are read and written; sorting 12 indices by one byte."""
    name = "aten::embedding_dense_backward"
    one = call(name, (3, 4, 16), (3, 4), out=(100, 16), roles="grad_output indices")
    sort = 12 * 2 * 8
    assert moves(one)[1:] == moved(2 * 12 * 64 + sort, 100 * 64 + 12 * 64 + sort, kernels=4.0)
    forward = call("aten::embedding", (100, 16), (3, 4), out=(3, 4, 16))
    assert moves(forward, 7.0, 5.0)[1:] == moved(7.0, 5.0)


def test_losses_by_hand() -> None:
    """One element of each row, 32 bytes of memory; the gradient is filled with zeros."""
    scores, target = (10, 1000), (10,)
    name = "aten::nll_loss_forward"
    one = call(name, scores, target, out=[(), ()], roles="self target")
    assert moves(one, 40080, 8)[1:] == moved(10 * 40, 8)
    name = "aten::nll_loss_backward"
    back = call(name, (), scores, target, out=scores, roles="grad_output self target")
    assert moves(back, 40000, 40000)[1:] == moved(80, 40000 + 320, kernels=2.0)
    name = "aten::cross_entropy_loss"
    one = call(name, scores, target, out=[()], roles="input target")
    assert moves(one, 40080, 4)[1:] == moved(40000 + 400, 40000, kernels=2.0), "log-probabilities are kept"
    one = call("aten::mse_loss", scores, scores, out=())
    assert moves(one, 80000, 4)[1:] == moved(80000, 4)


def test_an_optimizer_takes_as_many_kernels_as_its_arguments_need() -> None:
    small, large = (10,), (65536 * 320 * 3,)
    assert moves(call("aten::_foreach_sqrt", *[small] * 111, out=[small] * 111)).kernels == 2
    assert moves(call("aten::_foreach_add_", large, large, out=[large])).kernels == 3
    fused = call("aten::_fused_adamw_", *[small] * 4 * 37, out=[small] * 3 * 37)
    found = moves(fused, 7.0, 5.0)
    assert (found.read, found.written, found.kernels) == (7.0, 5.0, 2)


def test_filling_reads_nothing_and_an_empty_tensor_costs_nothing() -> None:
    assert moves(call("aten::zero_", (8,), out=(8,)), 32, 32)[1:] == moved(0, 32)
    assert moves(call("aten::empty_like", (8,), out=(8,)), 0, 32)[1:] == moved(0, 0, kernels=0)
    assert moves(call("aten::zeros", out=(8,)), 0, 32)[1:] == moved(0, 32)


def test_scattering_in_place_touches_what_it_writes() -> None:
    name, table, rows = "aten::index_add_", (1000, 16), (10, 16)
    one = call(name, table, (10,), rows, out=table, roles="self index source")
    assert moves(one, 9e9, 9e9)[1:] == moved(2 * 640 + 80, 640)
    copied = moves(replace(one, full_name="aten::index_add"), 9e9, 9e9)
    assert copied[1:] == moved(64000 + 2 * 640 + 80, 64000 + 640, kernels=2.0)


def test_sorting_passes_over_every_byte_of_a_key() -> None:
    assert moves(call("aten::sort", (100,), out=[(100,), (100,)])).read == 4 * 100 * 12
    assert moves(call("aten::topk", (100,), out=[(5,), (5,)]), 400, 60)[1:] == moved(2000, 60, 1, 0, 2)
    assert moves(call("aten::multinomial", (100,), out=(1,)), 400, 8).written == 408


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("aten::native_layer_norm", "layer_norm"), ("aten::rms_norm", "layer_norm"),
        ("autograd::engine::evaluate_function: CudnnBatchNormBackward0", "batch_norm"),
        ("aten::embedding", "embedding"),
        ("aten::max_pool2d_with_indices", "pooling"), ("aten::_foreach_add_", "optimizer"),
        ("aten::cross_entropy_loss", "loss"), ("aten::gelu", "elementwise"), ("aten::mm", "other"),
    ],
)  # fmt: skip
def test_classes_of_kernels_that_move_bytes(name: str, found: str) -> None:
    assert traffic(call(name, (4, 8, 8, 8), out=(4, 8, 8, 8))).stream == found
