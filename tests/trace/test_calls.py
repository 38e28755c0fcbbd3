"""Equal calls are found, and nothing is taken for equal that is not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from triosim.trace.builder import TraceBuilder
from triosim.trace.calls import calls_of, unique_calls
from triosim.trace.tables import Category, Meta, Phase, Trace

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
CALLS = st.tuples(
    st.sampled_from(["aten::add", "aten::mul"]),
    st.lists(
        st.tuples(SHAPES, st.sampled_from(["float32", "bfloat16"]), st.sampled_from(["self", "other"])), max_size=3
    ),
    st.lists(SHAPES, max_size=2),
    st.booleans(),
)


def trace(calls: list) -> Trace:
    b = TraceBuilder()
    for name, reads, writes, view in calls:
        inputs = [b.value(shape, dtype, Category.ACTIVATION) for shape, dtype, _ in reads]
        outputs = [b.value(shape, "float32", Category.ACTIVATION) for shape in writes]
        roles = [role for _, _, role in reads]
        b.operator(name, inputs, outputs, roles=roles, phase=Phase.FORWARD, view=view)
    return b.build(Meta("test"))


def described(trace: Trace) -> list[tuple]:
    calls, values, operators = calls_of(trace), trace.values, trace.operators
    return [
        (operators.name[row], operators.args[row], calls[row].roles, calls[row].inputs, calls[row].outputs,
         tuple(values.dtype[operators.inputs[row]].tolist()), bool(operators.view[row]), float(operators.bytes[row]))
        for row in range(len(trace))
    ]  # fmt: skip


@given(st.lists(CALLS, max_size=12))
def test_calls_are_one_exactly_where_everything_about_them_is_equal(calls):
    whole = trace(calls)
    few, row = unique_calls(whole)
    told, kept = described(whole), described(few)
    assert len(row) == len(whole)
    assert [kept[r] for r in row.tolist()] == told
    assert len(few) == len(set(told))


def test_other_columns_tell_calls_apart():
    whole = trace([("aten::add", [((4,), "float32", "self")], [(4,)], False)] * 3)
    few, row = unique_calls(whole, np.array([1.0, 2.0, 1.0]))
    assert len(few) == 2
    assert row[0] == row[2] != row[1]


def test_values_that_nothing_refers_to_are_left_out():
    whole = trace([("aten::add", [((4, i % 2), "float32", "self")], [(4,)], False) for i in range(100)])
    few, _ = unique_calls(whole)
    assert len(few.values) == 4
    assert not len(few.kernels)
