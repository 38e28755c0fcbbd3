"""What differs from the recording."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.example import DEVICE, OTHER, step
from triosim.core.columns import Ragged
from triosim.core.dtypes import DTYPE_CODE
from triosim.core.errors import InputError
from triosim.hardware.accelerator import UNNAMED
from triosim.kernels.changes import changed, growth, same_device, undecided, work_ratio
from triosim.trace.tables import UNDECIDED, Trace
from triosim.transform.rescale import rescale


def test_only_what_follows_the_batch_changes():
    recorded = step()
    assert not changed(recorded, recorded).any()
    assert not changed(step(), recorded).any()
    assert changed(rescale(recorded, 16), recorded).tolist() == [True, True, True, False]


def test_another_precision_is_a_change():
    recorded = step()
    values = recorded.values
    half = replace(values, dtype=np.full(len(values), DTYPE_CODE["bfloat16"], np.int8))
    assert changed(replace(recorded, values=half), recorded).all()


def test_values_may_be_numbered_differently():
    recorded = step()
    values, operators = recorded.values, recorded.operators
    order = np.arange(len(values))[::-1]
    place = np.argsort(order)

    def renumbered(ids: Ragged) -> Ragged:
        return Ragged(place[ids.values].astype(np.int32), ids.offsets)

    moved = replace(
        values, shape=values.shape.take(order), symbols=values.symbols.take(order), dtype=values.dtype[order],
        storage=values.storage[order],
    )  # fmt: skip
    trace = replace(
        recorded,
        values=moved,
        operators=replace(operators, inputs=renumbered(operators.inputs), outputs=renumbered(operators.outputs)),
    )
    assert not changed(trace, recorded).any()


def test_another_number_of_inputs_is_a_change():
    recorded = step()
    operators = recorded.operators
    fewer = [row if at else row[:1] for at, row in enumerate(operators.inputs.lists())]
    trace = replace(recorded, operators=replace(operators, inputs=Ragged.of(fewer, np.int32)))
    assert changed(trace, recorded).tolist() == [True, False, False, False]


def test_other_operators_are_refused():
    recorded = step()
    other = replace(recorded, operators=replace(recorded.operators, name=("a", "b", "c", "d")))
    with pytest.raises(InputError, match="not of the same operators"):
        changed(other, recorded)


def test_growth_and_work():
    recorded = step()
    assert growth(rescale(recorded, 32), recorded) == 4
    assert growth(recorded, recorded) == 1
    ratio = work_ratio(rescale(recorded, 32).operators, recorded.operators)
    assert ratio.tolist() == [4, 4, 1, 1], "linear by FLOP, relu by bytes, the view has none, the optimizer stays"


def marked(trace: Trace, value: int) -> Trace:
    symbols = [list(s) for s in trace.values.symbols.lists()]
    symbols[value] = [bits | UNDECIDED for bits in symbols[value]]
    return replace(trace, values=replace(trace.values, symbols=Ragged.of(symbols, np.uint8)))


def test_undecided_operators_read_or_write_an_undecided_value():
    trace = marked(step(), 3)  # what relu returns and the view reads
    assert undecided(trace).tolist() == [False, True, True, False]
    assert not undecided(replace(trace, meta=replace(trace.meta, symbols=""))).any()


def test_links_do_not_make_another_device():
    assert same_device(DEVICE, replace(DEVICE, link="NVLink9", link_bandwidth=1.0))
    assert not same_device(DEVICE, replace(DEVICE, memory_bandwidth=1.0))
    assert not same_device(DEVICE, OTHER)
    assert same_device(UNNAMED, UNNAMED)
