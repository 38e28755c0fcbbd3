"""Two recordings of one step, row for row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from triosim.core.errors import InputError
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import Category, Kernels, Meta, Phase, Trace
from triosim.transform.alignment import aligned, matching


def recording(names: list[str], seconds: list[float], width: int = 8) -> Trace:
    b = TraceBuilder()
    module = b.module("layer", "Layer")
    for name, device_s in zip(names, seconds, strict=True):
        x = b.value((width,), "float32", Category.ACTIVATION)
        y = b.value((width,), "float32", Category.ACTIVATION)
        b.operator(name, [x], [y], roles=["self"], phase=Phase.FORWARD, module=module, device_s=device_s)
    return b.build(Meta("test", workload="step"))


def test_the_same_operators_are_the_same_rows():
    first = recording(["aten::relu", "aten::add", "aten::relu"], [1e-6, 2e-6, 3e-6])
    other = recording(["aten::relu", "aten::add", "aten::relu"], [2e-6, 4e-6, 6e-6], width=16)
    found = aligned(first, other)
    assert found.operators.device_s.tolist() == [2e-6, 4e-6, 6e-6]
    assert found.operators.name is first.operators.name
    assert found.values.shape[int(found.operators.inputs.values[0])].tolist() == [16]


def test_in_place_operators_and_inserted_ones_do_not_matter_and_missing_ones_have_no_time():
    first = recording(["aten::relu", "aten::add", "aten::relu", "aten::gelu"], [1e-6] * 4)
    other = recording(["aten::clone", "aten::relu_", "aten::add", "aten::relu"], [9e-6, 2e-6, 3e-6, 4e-6])
    kernels = Kernels(np.array([0, 1, 3], np.int32), ("a", "b", "c"), np.full(3, 1e-6), np.zeros(3, np.int32))
    found = aligned(first, replace(other, kernels=kernels))
    assert matching(first, other).tolist() == [1, 2, 3, -1]
    assert found.operators.device_s[:3].tolist() == [2e-6, 3e-6, 4e-6]
    assert np.isnan(found.operators.device_s[3])
    assert found.kernels.operator.tolist() == [0, 2]
    assert found.kernels.name == ("b", "c")


def test_another_step_is_refused():
    first = recording(["aten::relu", "aten::add", "aten::mul"], [1e-6] * 3)
    other = recording(["aten::relu", "aten::sub", "aten::div"], [1e-6] * 3)
    with pytest.raises(InputError, match="33 % of the operators of step"):
        aligned(first, other)
    with pytest.raises(InputError, match="recordings of the same step"):
        aligned(first, recording([], []))
