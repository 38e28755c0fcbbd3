"""Does a job fit, and the largest batch that does."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import triosim
from tests.asked import asked
from tests.traces import chain
from triosim import Plan
from triosim.cli.main import app
from triosim.core.errors import InputError
from triosim.prediction.largest_batch import LARGEST, last_that_fits

SMALL = {"sequence_length": 256, "precision": "float32"}


@given(st.integers(0, 3000), st.integers(1, 4000), st.floats(0.3, 3.0))
def test_the_search_finds_the_last_that_fits_whatever_the_curve(last: int, start: int, power: float) -> None:
    """Also where the number is not the line that the search takes it for; in fewer tries than there are numbers."""
    tried = []

    def beyond(number: int) -> int:
        tried.append(number)
        return int(np.ceil(1000 * (number**power - (last + 0.5) ** power)))

    assert last_that_fits(beyond, start, beyond(start)) == last
    assert len(tried) <= 45


@pytest.mark.parametrize("start", [1, LARGEST, 10**9])
@pytest.mark.parametrize("last", [0, 631, LARGEST + 5, 10**9])
def test_the_search_ends_at_the_largest_that_anybody_asks_for(start: int, last: int) -> None:
    """What was asked for is far beyond that: the answer is still one that fits."""
    found = last_that_fits(lambda number: 100 * (number - last), start, 100 * (start - last))
    assert found == (last if start > last or last <= LARGEST else max(start, LARGEST))


def test_on_a_line_few_tries_are_enough() -> None:
    tried = []

    def beyond(number: int) -> int:
        tried.append(number)
        return 100 * number - 70_050

    assert last_that_fits(beyond, 1, beyond(1)) == 700
    assert len(tried) <= 6


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    trace = triosim.model("gpt2", **SMALL)
    system = triosim.system(device="RTX-3090", devices=1)
    found = triosim.simulate(trace, system, Plan(batch_size=4), fit=True).memory
    assert found.fits is True
    largest = found.largest_batch
    assert largest is not None
    assert largest > 4
    for batch, fits in ((largest, True), (largest + 1, False)):
        assert triosim.simulate(trace, system, Plan(batch_size=batch), fit=False).memory.fits is fits


def test_an_impossible_batch_is_told_with_the_largest_that_fits_and_takes_its_full_time() -> None:
    trace = triosim.model("gpt2", **SMALL)
    system = triosim.system(device="RTX-3090", devices=1)
    largest = triosim.simulate(trace, system, Plan(batch_size=4), fit=True).memory.largest_batch
    assert largest is not None
    times = []
    for batch in (largest, 2 * largest, 8 * largest):
        result = triosim.simulate(trace, system, Plan(batch_size=batch))
        times.append(result.iteration_time_s)
        if batch > largest:
            assert result.memory.fits is False
            assert result.memory.largest_batch == largest
            assert any(f"the largest batch that does is {largest}" in w for w in result.warnings)
        else:
            assert result.memory.largest_batch is None
    assert times[1] > 1.8 * times[0]
    assert times[2] > 3.5 * times[1]


def test_what_never_fits_is_told_so() -> None:
    result = triosim.simulate(triosim.model("llama-3-8b"), triosim.system(device="RTX-3090", devices=1))
    assert result.memory.largest_batch == 0
    assert any("not even one sample does" in w for w in result.warnings)


def test_recomputation_and_sharding_let_larger_batches_fit() -> None:
    trace = triosim.model("gpt2", **SMALL)
    system = triosim.system(device="RTX-3090", devices=2, topology="switch", link="25GB/s")
    sizes = [
        triosim.simulate(trace, system, *asked(**plan), fit=True).memory.largest_batch
        for plan in ({}, {"zero": 3}, {"zero": 3, "recompute": "full"})
    ]
    assert sizes[0] < sizes[1] < sizes[2]


def test_micro_batches_are_kept() -> None:
    trace = triosim.model("gpt2", **SMALL)
    system = triosim.system(device="RTX-3090", devices=1)
    one, four = (triosim.simulate(trace, system, Plan(micro_batches=m), fit=True).memory.largest_batch for m in (1, 4))
    assert one is not None
    assert four is not None
    assert four % 4 == 0
    assert 3 * one < four < 4 * one  # one micro-batch at a time is in memory, from the second on with gradients


def test_without_a_capacity_it_cannot_be_told() -> None:
    with pytest.raises(InputError, match="without a capacity"):
        triosim.simulate(chain(), triosim.system(devices=1), fit=True)


def test_a_trace_that_cannot_be_rescaled_still_gives_its_verdict() -> None:
    trace = chain(batch=1 << 24, layers=16)
    from dataclasses import replace

    unknown = replace(trace, meta=replace(trace.meta, batch_size=None))
    result = triosim.simulate(unknown, triosim.system(device="RTX-3090", devices=1))
    assert result.memory.fits is False
    assert result.memory.largest_batch is None


def test_the_command_line_tells_it() -> None:
    arguments = ["train", "gpt2", "--seq-len", "256", "--device", "RTX-3090", "--devices", "1", "--fit", "--json", "-"]
    out = CliRunner().invoke(app, arguments)
    assert out.exit_code == 0, out.output
    memory = json.loads(out.stdout)["memory"]
    assert memory["fits"] is True
    assert memory["largest_batch"] > 1
    shown = CliRunner().invoke(app, arguments[:-2]).stdout
    assert f"Largest batch  {memory['largest_batch']}" in shown
