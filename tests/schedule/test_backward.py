"""What a backward splits into."""

from __future__ import annotations

import numpy as np
import pytest

import triosim
from tests.traces import chain
from triosim.schedule.backward import split_backward
from triosim.schedule.stages import split
from triosim.trace.tables import Phase


def _halves(trace, parts: int, part: int):
    seconds = np.nan_to_num(trace.operators.flop) + 1e6
    stages = split(trace, seconds, parts)
    inside = (stages.of == part) & np.isin(trace.operators.phase, (Phase.BACKWARD, Phase.RECOMPUTE))
    rows = np.flatnonzero(inside).tolist()
    return rows, split_backward(trace, rows)


def test_the_products_of_a_linear_layer_are_told_apart() -> None:
    trace = chain(layers=4, weight_s=1e-3)
    rows, halves = _halves(trace, 2, 1)
    assert list(halves.input_gradient) == rows[0::2]
    assert list(halves.weight_gradient) == rows[1::2]
    assert not halves.fused


def test_the_first_part_sends_nothing_back_and_is_not_split() -> None:
    rows, halves = _halves(chain(layers=4, weight_s=1e-3), 2, 0)
    assert list(halves.input_gradient) == rows
    assert not halves.weight_gradient


def test_a_coarse_backward_cannot_be_split() -> None:
    rows, halves = _halves(chain(layers=4), 2, 1)
    assert list(halves.input_gradient) == rows == list(halves.fused)


@pytest.mark.parametrize("name", ["gpt2", "bert-base"])
def test_halves_of_a_transformer(name: str) -> None:
    """Weight products cost what the forward products cost; attention has none (Qi et al. 2024, Table 1)."""
    trace = triosim.model(name, sequence_length=512)
    flop = np.nan_to_num(trace.operators.flop)
    seconds = flop + 1e6
    stages = split(trace, seconds, 4)
    forward = np.flatnonzero((stages.of == 2) & (trace.operators.phase == Phase.FORWARD))
    products = [row for row in forward.tolist() if trace.operators.name[row] in ("aten::addmm", "aten::mm")]
    rows, halves = _halves(trace, 4, 2)
    assert flop[list(halves.weight_gradient)].sum() == flop[products].sum()
    assert flop[list(halves.input_gradient)].sum() == flop[rows].sum() - flop[products].sum()
    kinds = {trace.operators.name[row] for row in halves.weight_gradient}
    assert kinds == {"aten::t", "aten::mm", "aten::sum"}


def test_the_head_of_a_tied_model_is_split_too() -> None:
    """Its weight gradient is added to that of the embedding on another stage."""
    trace = triosim.model("gpt2", sequence_length=512)
    flop = np.nan_to_num(trace.operators.flop)
    _, halves = _halves(trace, 4, 3)
    assert flop[list(halves.weight_gradient)].sum() == flop[list(halves.input_gradient)].sum()
