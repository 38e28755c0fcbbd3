"""Roles, arguments, and what an operator reads and writes."""

from __future__ import annotations

import json
import math

import pytest

from tests.sources.record.steps import quick, torch
from triosim.sources.record.signature import arguments, plain, signature

aten = torch.ops.aten


def test_roles_are_schema_names_and_lists_are_flattened() -> None:
    look = quick(lambda x: torch.cat([x, x.exp()]), torch.randn(2, 3))
    assert look.one("cat").roles == ["tensors", "tensors"]
    assert look.one("cat").args == {}


def test_absent_tensors_are_left_out() -> None:
    look = quick(torch.nn.Conv2d(3, 4, 3, bias=False), torch.randn(2, 3, 8, 8))
    op = look.one("convolution")
    assert op.roles == ["input", "weight"]
    assert op.args["bias"] is None


def test_arguments_that_are_no_tensors_are_kept_by_name() -> None:
    look = quick(torch.nn.Conv2d(4, 4, 3, stride=2, groups=2), torch.randn(2, 4, 9, 9))
    args = look.one("convolution").args
    assert (args["stride"], args["groups"], args["transposed"]) == ([2, 2], 2, False)
    assert "memory_format" not in args
    look = quick(lambda x: x.to(torch.bfloat16).sum(1, keepdim=True), torch.randn(2, 3))
    assert look.one("_to_copy").args["dtype"] == "bfloat16"
    assert look.one("sum").args == {"dim": [1], "keepdim": True}


def test_convolutions_say_that_channels_lie_side_by_side() -> None:
    model, image = torch.nn.Conv2d(4, 4, 3), torch.randn(2, 4, 9, 9)
    for which in (model.to(memory_format=torch.channels_last), lambda x: model(x.contiguous())):
        look = quick(which, image.to(memory_format=torch.channels_last))
        assert look.one("convolution").args["memory_format"] == "channels_last"  # the weight alone decides too
    square = torch.nn.Conv2d(1, 4, 1)  # one channel, one tap: no other layout to tell it from
    assert "memory_format" not in quick(square, torch.randn(2, 1, 9, 9)).one("convolution").args


def test_a_number_in_the_place_of_a_tensor_is_an_argument() -> None:
    op = quick(lambda x: x + 2.5, torch.randn(3)).one("add")
    assert op.roles == ["self"]
    assert op.args == {"other": 2.5}


def test_where_a_tensor_is_put_is_no_argument() -> None:
    assert quick(lambda x: x + torch.zeros(3, device="cpu"), torch.randn(3)).one("zeros").args == {"size": [3]}


def test_plain_values_are_json() -> None:
    for given, wanted in (
        (torch.float16, "float16"), (torch.channels_last, "channels_last"), (torch.strided, "strided"),
        (math.inf, "inf"), ((1, [2.0, None]), [1, [2.0, None]]), (True, True), (torch.Size([2]), [2]),
        (1 + 2j, "(1+2j)"),
    ):  # fmt: skip
        assert plain(given) == wanted
        json.dumps(plain(given), allow_nan=False)


@pytest.mark.parametrize(
    ("overload", "written", "read"),
    [
        (aten.add.Tensor, set(), {"self", "other", "alpha"}),
        (aten.add_.Tensor, {"self"}, {"self", "other", "alpha"}),
        (aten.add.out, {"out"}, {"self", "other", "alpha"}),
        (aten.copy_.default, {"self"}, {"src", "non_blocking"}),
        (aten._foreach_mul_.Scalar, {"self"}, {"self", "scalar"}),
        (aten._native_batch_norm_legit.default, {"running_mean", "running_var"}, None),
    ],
)
def test_what_is_read_and_written(overload, written, read) -> None:
    known = signature(overload)
    assert {a.name for a in known.positional if a.written} == written
    if read is not None:
        assert {a.name for a in known.positional if a.read} == read


def test_views_are_known_from_the_schema() -> None:
    assert signature(aten.t.default).aliases == (0,)
    assert signature(aten.split.Tensor).aliases == (0,)
    assert signature(aten.mm.default).aliases == (-1,)
    assert signature(aten.add_.Tensor).aliases == (0,)
    assert signature(aten.t_.default).metadata_only
    assert not signature(aten.add_.Tensor).metadata_only


def test_statistics_are_only_written_in_training() -> None:
    known = signature(aten.native_batch_norm.default)
    x, w = torch.randn(2, 3), torch.randn(3)
    for training, count in ((True, 2), (False, 0)):
        assert len(arguments(known, (x, w, w, w, w, training, 0.1, 1e-5), {}).writes) == count


def test_composite_operators_are_taken_apart_where_autograd_does_not() -> None:
    with torch.inference_mode():
        names = [op.name for op in quick(torch.nn.Linear(4, 2), torch.randn(3, 4))]
    assert "addmm" in names
    assert "linear" not in names


def test_reading_a_number_is_a_wait_and_so_is_asking_for_a_size() -> None:
    look = quick(lambda x: (x.sum().item(), torch.nonzero(x > 0)), torch.randn(3))
    assert [op.name for op in look if op.sync] == ["_local_scalar_dense", "nonzero"]
    assert look.one("_local_scalar_dense").outputs == []
