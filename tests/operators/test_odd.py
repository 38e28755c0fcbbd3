"""Whatever a file says of an operator's shapes and arguments, no rule raises, and no number is negative or not one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.exploring import examples
from triosim.hardware import catalog
from triosim.kernels.models.physical import PhysicalBaseModel
from triosim.operators import (
    KINDS,
    Call,
    argument_names,
    bytes_of,
    canonical,
    dims,
    flop,
    kind,
    problem,
    results,
    traffic,
    work,
)
from triosim.operators._names import _known
from triosim.trace.builder import TraceBuilder
from triosim.trace.calls import calls_of
from triosim.trace.tables import Category, Meta, Phase, Trace

NAMES = sorted(
    {f"aten::{name}" for name in _known().kind if "::" not in name}
    | {f"aten::{name}" for name in _known().arguments if name.endswith(("_backward", "_data"))}
    | {f"aten::{name}_" for name in ("add", "relu", "index_put", "_foreach_add", "_fused_adamw", "zero")}
    | {"custom::thing", "aten::_foreach_sqrt", "fbgemm::split_embedding_codegen_lookup_sgd_function"}
    | {f"{name}Backward0" for name in ("Linear", "Addmm", "Mm", "Bmm", "Convolution", "NativeLayerNorm", "Embedding",
                                       "Slice", "Cat", "GroupedMm", "ScaledDotProductFlashAttention", "Select")}
)  # fmt: skip
SHAPES = st.lists(st.sampled_from([0, 1, 1, 2, 3, 4, 8, 64]), max_size=5).map(tuple)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 9), st.floats(-2, 2), st.sampled_from(["", "abc", "ij,jk->ik", "i->"]),
    st.lists(st.integers(-2, 4), max_size=4), st.lists(st.booleans(), max_size=3), st.just([None, 1]),
)  # fmt: skip
ARGUMENTS = sorted({a for names in _known().arguments.values() for a in names} | {"topk", "window_size_left"})
DTYPES = st.sampled_from(["float32", "bfloat16", "int64", "int8", "float8_e4m3fn", "bool", "complex64", "unknown"])
A100 = catalog.accelerator("A100-SXM4-80GB")


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list, list, list, dict[str, Any]]:
    name = draw(st.sampled_from(NAMES))
    inputs = draw(st.lists(st.tuples(SHAPES, DTYPES), max_size=6))
    outputs = draw(st.lists(st.tuples(SHAPES, DTYPES), max_size=3))
    known = argument_names(name, len(inputs))
    roles = [draw(st.sampled_from([role, role, role, "input", "weight", "grad_output"])) for role in known]
    args = draw(st.dictionaries(st.sampled_from([*known, *ARGUMENTS]), VALUES, max_size=4))
    return name, inputs, outputs, roles, args


def built(many: list[tuple[str, list, list, list, dict[str, Any]]]) -> Trace:
    b = TraceBuilder()
    for name, inputs, outputs, roles, args in many:
        reads = [b.value(shape, dtype, Category.ACTIVATION) for shape, dtype in inputs]
        writes = [b.value(shape, dtype, Category.ACTIVATION) for shape, dtype in outputs]
        b.operator(name, reads, writes, roles=roles, phase=Phase.FORWARD, args=args)
    return b.build(Meta("test", batch_size=2))


@settings(max_examples=examples(200), suppress_health_check=list(HealthCheck))
@given(st.lists(calls(), min_size=1, max_size=8))
def test_odd_calls_are_described_and_priced(many: list) -> None:
    trace = built(many)
    found = calls_of(trace)
    for call in found.unique:
        check(call)
    priced = PhysicalBaseModel().predict(trace, A100)
    assert np.all(np.isfinite(priced.seconds))
    assert np.all(priced.seconds >= 0)
    assert np.all(np.isfinite(priced.spread))


def check(call: Call) -> None:
    """Every rule answers, in the range of what it answers."""
    counted = flop(call)
    assert math.isnan(counted) or 0 <= counted < math.inf
    assert 0 <= bytes_of(call) < math.inf
    moved = traffic(call)
    assert all(math.isfinite(x) and x >= 0 for x in moved[1:]), moved
    told = work(call)
    if told is not None and counted > 0:
        assert all(math.isfinite(x) and x >= 0 for x in told if not isinstance(x, str | bool | int)), told
    made = results(call)
    for result in made or ():
        assert all(type(e) is int and e >= 0 for e in result.shape), result
        assert -1 <= result.of < len(call.inputs)
        assert result.offset >= 0
    found = dims(call)
    assert [len(row) for row in found.inputs] == [len(s) for s in call.inputs]
    assert [len(o.labels) for o in found.outputs] == [len(s) for s in call.outputs]
    for output in found.outputs:
        assert all(-1 <= i < len(call.inputs) for i in output.inputs or ())
    for inputs in found.linear:
        assert inputs
        assert all(0 <= i < len(call.inputs) for i in inputs)
    found.extents(call)


def one(name: str, *shapes: tuple[int, ...], roles: str, out: tuple[int, ...] = (4, 4), **args: Any) -> Call:
    base, backward = canonical(name)
    return Call(base, backward, kind(name), tuple(roles.split()), shapes, (out,), args, name)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (one("aten::convolution", (2, 3, 8, 8), (27,), roles="input weight"), "weight"),
        (one("aten::conv2d", (2, 3, 8, 8), (4, 3, 3), roles="input weight"), "input"),
        (one("aten::mm", (4,), (4, 4), roles="self mat2"), "self"),
        (one("aten::addmm", (4,), (4, 4), (4, 4, 4), roles="self mat1 mat2"), "mat2"),
        (one("aten::bmm", (4, 4), (4, 4), roles="self mat2"), "self"),
        (one("aten::scaled_dot_product_attention", (4, 4), (4, 4), (4, 4), roles="query key value"), "query"),
        (one("aten::linear", (4, 4), roles="input"), "weight"),
    ],
)  # fmt: skip
def test_what_is_missing_or_of_the_wrong_rank_is_one_sentence(call: Call, words: str) -> None:
    told = problem(call)
    assert words in told
    assert call.full_name in told
    assert math.isnan(flop(call))
    assert not dims(call).known
    assert work(call) is None


def test_a_trace_says_so() -> None:
    trace = built([("aten::convolution", [((2, 3, 8, 8), "float32"), ((27,), "float32")],
                    [((2, 4, 6, 6), "float32")], ["input", "weight"], {})])  # fmt: skip
    assert any("aten::convolution" in note and "weight" in note for note in trace.meta.notes)


def test_a_linear_layer_of_one_output_may_have_a_vector_of_weights() -> None:
    layer = one("aten::linear", (5, 7), (7,), roles="input weight", out=(5,))
    assert flop(layer) == 2 * 5 * 7
    assert work(layer)[:3] == (5, 1, 7)
    assert dims(layer).known


def test_every_kind_is_among_the_names() -> None:
    assert {kind(name) for name in NAMES} == set(KINDS.names())
