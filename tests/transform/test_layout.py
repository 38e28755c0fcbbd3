"""Images whose channels lie side by side, or apart: what changes in a step, and in its time."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import triosim
from triosim import Plan, simulate, system
from triosim.core.errors import PlanError
from triosim.trace.tables import Trace
from triosim.transform.layout import laid_out

SMALL = {"layers": [1, 1, 1, 1], "bottleneck": True}


def network(precision: str = "float16", **options: object) -> Trace:
    return triosim.model("resnet", precision=precision, configuration=SMALL, batch_size=8, **options)


def layouts(trace: Trace, what: str = "aten::convolution") -> list[str | None]:
    """What each convolution, or other operator, says of its layout."""
    rows = [row for row, name in enumerate(trace.operators.name) if name.startswith(what)]
    return [json.loads(trace.operators.args[row]).get("memory_format") for row in rows]


def test_every_convolution_and_batch_norm_forward_and_backward_changes() -> None:
    trace = network()
    assert set(layouts(trace)) == {None}
    made = laid_out(trace, "channels_last")
    assert set(layouts(made)) == {"channels_last"}
    assert len(layouts(made)) == 2 * (1 + 4 * 4)  # the first, and three of each block beside its shortcut
    assert layouts(made, "aten::native_batch_norm") == layouts(made)  # one behind each


def test_there_and_back_is_the_step_as_it_was() -> None:
    trace = network()
    back = laid_out(laid_out(trace, "channels_last"), "contiguous")
    assert back.operators.args == trace.operators.args
    assert laid_out(trace, "recorded") is trace


def test_what_was_measured_in_another_layout_has_no_time() -> None:
    trace = network()
    timed = replace(trace, operators=replace(trace.operators, device_s=np.full(len(trace), 1e-4)))
    lost = np.isnan(laid_out(timed, "channels_last").operators.device_s)
    assert {name for name, gone in zip(trace.operators.name, lost, strict=True) if gone} == {
        "aten::convolution", "aten::convolution_backward", "aten::native_batch_norm",
        "aten::native_batch_norm_backward",
    }  # fmt: skip
    assert not np.isnan(laid_out(timed, "contiguous").operators.device_s).any()


def test_matrix_units_save_turning_images_and_vector_units_do_not() -> None:
    machine = system(device="A100", devices=1)

    def seconds(precision: str, layout: str) -> float:
        plan = Plan(batch_size=64, layout=layout)
        return simulate(triosim.model("resnet50", precision=precision), machine, plan).iteration_time_s

    assert seconds("float16", "channels_last") < 0.8 * seconds("float16", "contiguous")


def by_name(device: str, precision: str, layout: str) -> dict[str, float]:
    """Seconds of all operators of a name."""
    machine, plan = system(device=device, devices=1), Plan(batch_size=16, layout=layout)
    found = simulate(triosim.model("resnet50", precision=precision), machine, plan).to_frame("operators").to_pydict()
    total: dict[str, float] = {}
    for name, seconds in zip(found["name"], found["compute_s"], strict=True):
        total[name] = total.get(name, 0.0) + seconds
    return total


def test_vector_units_see_no_channels() -> None:
    side_by_side, apart = (by_name("V100-SXM2-16GB", "float32", one) for one in ("channels_last", "contiguous"))
    changed = {name for name, seconds in apart.items() if abs(side_by_side[name] - seconds) > 0.02 * seconds}
    assert changed == {"aten::native_batch_norm", "aten::native_batch_norm_backward"}


def test_batch_norms_over_channels_that_lie_side_by_side_leave_no_unit_idle() -> None:
    side_by_side, apart = (by_name("H100-SXM5-80GB", "float16", one) for one in ("channels_last", "contiguous"))
    for name in ("aten::native_batch_norm", "aten::native_batch_norm_backward"):
        assert 0.3 < side_by_side[name] / apart[name] < 0.6


def test_a_step_without_images_says_so() -> None:
    trace = triosim.model("gpt2", sequence_length=64)
    with pytest.raises(PlanError, match="layout channels_last: 'gpt2, bfloat16' has no convolutions of images"):
        simulate(trace, system(device="A100", devices=1), Plan(layout="channels_last"))
