"""Models in 16 bits whose optimizer updates the parameters themselves."""

from __future__ import annotations

import numpy as np
import pytest

import triosim
from triosim import Plan, simulate, system
from triosim.core.dtypes import DTYPES
from triosim.stacks import Stack
from triosim.trace.tables import Category, Phase, Trace

SMALL = {"num_hidden_layers": 2, "vocab_size": 512}


def _step(masters: bool, precision: str = "bfloat16") -> Trace:
    return triosim.model(
        "llama-3-8b", sequence_length=128, precision=precision, optimizer="adamw", masters=masters, configuration=SMALL
    )


def _parameters(trace: Trace) -> float:
    size = trace.values.bytes()
    return sum(float(size[v]) for v in {int(trace.values.storage[v]): v for v in trace.weights().tolist()}.values()) / 2


def _state_bytes(trace: Trace) -> float:
    """Bytes of states a parameter."""
    values = trace.values
    _, first = np.unique(values.storage, return_index=True)
    states = first[values.category[first] == Category.OPTIMIZER_STATE]
    return float(values.bytes()[states].sum()) / _parameters(trace)


def test_states_have_the_type_of_the_parameters_and_nothing_is_copied_back() -> None:
    with_copies, without = _step(True), _step(False)
    assert _state_bytes(with_copies) == pytest.approx(12)
    assert _state_bytes(without) == pytest.approx(4)

    def updates(trace: Trace) -> list[str]:
        return [n for n, p in zip(trace.operators.name, trace.operators.phase, strict=True) if p == Phase.OPTIMIZER]

    assert [name for name in updates(with_copies) if name not in updates(without)] == ["aten::_foreach_copy_"]
    values = without.values
    assert {DTYPES[d] for d in values.dtype[values.category == Category.OPTIMIZER_STATE]} == {"bfloat16"}


def test_float32_has_no_copies_anyway() -> None:
    assert _step(True, "float32").operators.name == _step(False, "float32").operators.name


def test_a_stack_without_copies_takes_half_the_memory() -> None:
    """2 + 2 + 2 + 2 bytes a parameter, where 16 are."""
    with_copies, without = (
        simulate(_step(m), system("dgx-h100"), Plan(stack=Stack(masters=m))).memory.allocated_bytes
        for m in (True, False)
    )
    assert with_copies - without == pytest.approx(8 * _parameters(_step(True)), rel=0.02)
