"""The same step at another batch size: what grows, what does not, and what cannot be decided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.data import shared
from tests.exploring import examples
from tests.traces import chain
from triosim import Fidelity, InputError, Plan
from triosim.core.columns import Ragged
from triosim.trace.builder import TraceBuilder
from triosim.trace.symbols import Segment, propagate_symbol, relocate
from triosim.trace.tables import BATCH, SYMBOLS, Category, Meta, Phase
from triosim.transform.rescale import establish_symbols, padded_vocabulary, rescale, size_of, symbols_from, undecided

SMALL = {"gpt2": {"n_layer": 2}, "llama-3-8b": {"num_hidden_layers": 2}}


def _forget_symbols(trace):
    blank = np.zeros_like(trace.values.symbols.values)
    values = replace(trace.values, symbols=Ragged(blank, trace.values.shape.offsets))
    return replace(trace, values=values, meta=replace(trace.meta, symbols=""))


@settings(max_examples=examples(200))
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_a_segment_survives_flattening_and_back(shape: list[int], data) -> None:
    before = tuple(shape)
    dim = data.draw(st.integers(0, len(before) - 1))
    segment = Segment.whole(dim, before[dim])
    a = data.draw(st.integers(0, dim))
    b = data.draw(st.integers(dim + 1, len(before)))
    flat = (*before[:a], int(np.prod(before[a:b])), *before[b:])
    there = relocate(segment, before, flat)
    assert there is not None
    assert there.outer * there.size * there.inner == flat[there.dim]
    back = relocate(there, flat, before)
    assert back is not None
    assert (back.outer, back.size, back.inner) == (1, before[dim], 1)
    assert before[back.dim] == before[dim]


def test_the_minor_of_two_flattened_dimensions_is_found_again() -> None:
    """Sequence-first models flatten (S, B, D) to (S * B, D); the batch is the inner part of the rows."""
    there = relocate(Segment.whole(1, 4), (7, 4, 3), (28, 3))
    assert there == Segment(0, 7, 4, 1)
    assert relocate(there, (28, 3), (7, 4, 3)) == Segment.whole(1, 4)


def test_a_torn_segment_is_not_decided() -> None:
    assert relocate(Segment(0, 3, 4, 1), (12,), (2, 6)) is None


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "resnet18", "vgg11", "densenet121"])
def test_walking_the_batch_finds_what_the_model_knows(name: str, batch: int) -> None:
    """Models by name know which dimensions follow the batch; the walk from the inputs must find exactly those.

    A batch of one is found like any other: dimensions are those of the operators, not of their extents.
    """
    small = SMALL.get(name)
    trace = triosim.model(name, batch_size=batch, configuration=small)
    walked = establish_symbols(_forget_symbols(trace))
    known = (trace.values.symbols.values & BATCH) != 0
    found = (walked.values.symbols.values & BATCH) != 0
    rows = trace.values.shape.rows()
    wrong = np.unique(rows[known != found])
    optimizer = trace.operators.outputs.values[
        np.isin(trace.operators.outputs.rows(), np.flatnonzero(trace.operators.phase == Phase.OPTIMIZER))
    ]
    assert set(wrong.tolist()) <= set(optimizer.tolist()), [trace.values.shape[int(v)] for v in wrong[:5]]
    assert not len(undecided(walked))


def test_weights_gradients_and_the_optimizer_do_not_grow() -> None:
    trace = chain(layers=4, optimizer_s=4e-3)
    larger = rescale(trace, 256)
    fixed = (trace.values.category == Category.WEIGHT) | (trace.values.of >= 0)
    assert np.array_equal(larger.values.elements()[fixed], trace.values.elements()[fixed])
    assert np.array_equal(larger.values.elements()[~fixed], 4 * trace.values.elements()[~fixed])
    optimizer = trace.operators.phase == Phase.OPTIMIZER
    assert np.array_equal(larger.operators.bytes[optimizer], trace.operators.bytes[optimizer])
    assert np.array_equal(larger.operators.flop[~optimizer], 4 * trace.operators.flop[~optimizer])
    assert rescale(larger, 64).values.elements().tolist() == trace.values.elements().tolist()


def test_an_operator_without_a_rule_is_listed_and_widens_the_interval() -> None:
    def make(name: str):
        b = TraceBuilder()
        w = b.value((8, 8), "float32", Category.WEIGHT, name="w")
        x = b.value((16, 8), "float32", Category.INPUT)
        y = b.value((16, 8), "float32", Category.TEMPORARY)
        z = b.value((4, 4, 8), "float32", Category.TEMPORARY)
        b.operator("aten::linear", [x, w], [y], roles=["input", "weight"], phase=Phase.FORWARD, device_s=1e-3)
        b.operator(name, [y], [z], roles=["self"], phase=Phase.FORWARD, device_s=1e-3)
        return b.build(Meta("test", batch_size=16, clock="gpu", workload="odd"))

    odd, plain = make("custom::rearrange"), make("aten::view")
    assert undecided(establish_symbols(odd)).tolist() == [1]
    assert not undecided(establish_symbols(plain)).tolist()
    system = triosim.system(device="A100", devices=1)
    wide, narrow = (triosim.simulate(t, system, Plan(batch_size=64)) for t in (odd, plain))
    assert any("custom::rearrange" in w for w in wide.warnings)
    assert not narrow.warnings
    width = [(r.interval_s[1] - r.interval_s[0]) / r.iteration_time_s for r in (wide, narrow)]
    assert width[0] > width[1]


def test_two_traces_of_different_batch_show_what_grows() -> None:
    a, b = chain(layers=3, batch=64), chain(layers=3, batch=32)
    compared = symbols_from(_forget_symbols(a), b)
    assert compared.meta.symbols == "two traces"
    walked = establish_symbols(_forget_symbols(a))
    used = np.unique(np.concatenate([a.operators.inputs.values, a.operators.outputs.values]))
    for value in used.tolist():
        assert compared.values.symbols[value].tolist() == walked.values.symbols[value].tolist()


@pytest.mark.parametrize(
    ("other", "words"),
    [(chain(layers=3), "different batch size"), (chain(layers=4, batch=32), "not of the same step")],
    ids=["same batch", "other model"],
)
def test_traces_that_cannot_be_compared_are_refused(other, words: str) -> None:
    with pytest.raises(InputError, match=words):
        symbols_from(chain(layers=3), other)


def test_a_trace_that_does_not_say_its_batch_is_refused() -> None:
    trace = chain(layers=2)
    blind = replace(trace, meta=replace(trace.meta, batch_size=None))
    with pytest.raises(InputError, match="does not say its batch size"):
        triosim.simulate(blind, triosim.system(devices=1), Plan(batch_size=8))
    with pytest.raises(InputError, match="no input of the step has a dimension"):
        rescale(replace(trace, meta=replace(trace.meta, batch_size=63)), 8)


def test_the_sequence_of_a_trace_that_does_not_know_it_cannot_change() -> None:
    with pytest.raises(InputError, match="which dimensions follow the sequence is not known"):
        rescale(chain(), sequence=128)


def test_a_symbol_that_does_not_exist_is_a_sentence() -> None:
    with pytest.raises(InputError, match="unknown symbol 'squence': did you mean sequence"):
        rescale(chain(), squence=128)


def test_symbols_are_taken_to_their_sizes_in_any_order() -> None:
    small = triosim.model("gpt2", batch_size=1, sequence_length=32, configuration=SMALL["gpt2"])
    vocabulary = 2 * size_of(small, "vocabulary")
    at_once = rescale(small, batch=3, sequence=64, vocabulary=vocabulary)
    one_by_one = rescale(rescale(rescale(small, vocabulary=vocabulary), sequence=64), batch=3)
    built = triosim.model(
        "gpt2", batch_size=3, sequence_length=64, configuration={**SMALL["gpt2"], "vocab_size": vocabulary}
    )
    for found in (at_once, one_by_one):
        assert found.values.shape.values.tolist() == built.values.shape.values.tolist()
        assert np.array_equal(found.operators.flop, built.operators.flop, equal_nan=True)
        assert [size_of(found, name) for name in SYMBOLS] == [3, 64, vocabulary]


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b"])
def test_rescaling_a_model_is_building_it_larger(name: str) -> None:
    small = SMALL[name]
    built = triosim.model(name, batch_size=4, sequence_length=64, configuration=small)
    scaled = rescale(triosim.model(name, batch_size=1, sequence_length=32, configuration=small), 4, 64)
    assert scaled.values.shape.values.tolist() == built.values.shape.values.tolist()
    assert np.array_equal(scaled.operators.flop, built.operators.flop, equal_nan=True)


@pytest.mark.parametrize("device", [None, "H100"])
@pytest.mark.parametrize("model", ["auto", "proportional"])
def test_batch_128_to_512_against_a_real_h100(device: str | None, model: str) -> None:
    """VGG-13's kernels at batch 512 summed to 346.344 ms on the H100 on which its batch-128 trace was taken.

    Scaling everything by 4 is 8.6 % off; leaving the optimizer alone 5.52 %.
    """
    trace = triosim.load(shared("triosim-h100", "vgg13"))
    system = triosim.system(device=device, devices=1)
    result = triosim.simulate(trace, system, Plan(batch_size=512), Fidelity(operator_times=model))
    assert result.iteration_time_s == pytest.approx(346.344e-3, rel=0.056)
    assert result.interval_s[0] <= 346.344e-3 <= result.interval_s[1]
    optimizer = sum(r.compute_s for r in result.layers if r.phase == "optimizer")
    assert optimizer == pytest.approx(3.568e-3)


def test_every_operator_of_the_real_traces_is_decided() -> None:
    for name in ("vgg13", "resnet50"):
        trace = establish_symbols(triosim.load(shared("triosim-h100", name)))
        assert not len(undecided(trace)), name


def test_the_larger_trace_has_the_shapes_of_the_real_one() -> None:
    """Rescaled to 512 the CSV's tensors are those that were recorded at 512, operator by operator."""
    scaled = rescale(triosim.load(shared("triosim-h100", "vgg13")), 512)
    real = triosim.load(shared("triosim-h100", "vgg13-bs512-raw"))

    def convolutions(trace):
        shapes = trace.values.shape
        return [
            [shapes[v].tolist() for v in trace.operators.inputs[r].tolist()[:2]]
            for r, n in enumerate(trace.operators.name)
            if n in ("aten::conv2d", "aten::convolution", "aten::linear") and trace.operators.phase[r] == Phase.FORWARD
        ]

    assert len(convolutions(scaled)) == 13
    assert convolutions(scaled) == convolutions(real)


def test_follow_reports_rows_not_values() -> None:
    trace = chain(layers=2)
    result = propagate_symbol(trace, {}, 64)
    assert result.undecided == []
    assert all(not s for s in result.segments)


# --- the vocabulary ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "padded"), [(1, 50257), (2, 50432), (4, 50688), (8, 51200), (29, 50257)])
def test_the_vocabulary_is_padded_as_megatron_pads_it(ranks: int, padded: int) -> None:
    """GPT-2's 50,257 to a multiple of 128 x tp, unless it divides (by 29)."""
    trace = triosim.model("gpt2", sequence_length=16, configuration={"n_layer": 1})
    found = padded_vocabulary(trace, ranks)
    table = next(v for v, name in enumerate(found.values.name) if name == "transformer.wte.weight")
    assert found.values.shape[table].tolist() == [padded, 768]
    assert (found is trace) == (padded == 50257)
    more = found.values.elements()[found.weights()].sum() - trace.values.elements()[trace.weights()].sum()
    assert more == (padded - 50257) * 768
    if found is not trace:
        assert f"from 50,257 to {padded:,}" in found.meta.notes[-1]
        scores = 2 * 16 * 768 * (padded - 50257)
        assert np.nansum(found.operators.flop) - np.nansum(trace.operators.flop) == pytest.approx(3 * scores, rel=0.01)


@pytest.mark.parametrize(
    ("name", "ranks", "size"), [("gpt2", 8, 51200), ("bert-base", 4, 30720), ("llama-2-7b", 3, 32256)]
)
def test_padding_is_building_anew(name: str, ranks: int, size: int) -> None:
    small = {"sequence_length": 16, "batch_size": 2}
    one = {"n_layer" if name == "gpt2" else "num_hidden_layers": 1}
    found = padded_vocabulary(triosim.model(name, **small, configuration=one), ranks)
    built = triosim.model(name, **small, configuration={**one, "vocab_size": size})
    assert np.array_equal(found.values.shape.values, built.values.shape.values)
    assert np.array_equal(found.operators.flop, built.operators.flop, equal_nan=True)
    assert np.array_equal(found.operators.bytes, built.operators.bytes)


def test_a_trace_that_does_not_know_its_vocabulary_is_left_alone() -> None:
    unknown = _forget_symbols(triosim.model("gpt2", sequence_length=16, configuration={"n_layer": 1}))
    for trace in (unknown, chain()):
        assert padded_vocabulary(trace, 8) is trace


def test_padding_shows_in_parameters_memory_and_transfers() -> None:
    """A model by name divides its vocabulary; a recording of it keeps its weights, and says what stays whole."""
    options = {"sequence_length": 64, "configuration": {"n_layer": 2, "n_head": 16}}
    trace = triosim.model("gpt2", **options)
    system, plan = triosim.system("dgx-a100"), Plan(tp=8, dp=1)
    named = triosim.simulate(trace, system, plan, fit=False)
    recorded = replace(trace, meta=replace(trace.meta, made_by="triosim.record"))
    whole = triosim.simulate(recorded, system, plan, fit=False)
    assert named.workload.parameters - whole.workload.parameters == (51200 - 50257) * 768
    assert any("padded from 50,257 to 51,200" in source for source in named.sources)
    assert not any("left whole" in warning for warning in named.warnings)
    assert any("has 50257, which does not divide by 8" in warning for warning in whole.warnings)
    assert not any("padded" in source for source in whole.sources)
    # weights, gradients, master copies and states: the table is the most of this model
    assert named.memory.allocated_bytes < 0.5 * whole.memory.allocated_bytes
    # gradients between two replicas of eight ranks
    two = triosim.system("dgx-a100", 2)
    sent = [sum(r["bytes"] * r["count"] for r in triosim.simulate(t, two, Plan(tp=8, dp=2), fit=False)
                .to_dict()["collectives"] if r["axis"] == "dp") for t in (trace, recorded)]  # fmt: skip
    table = 2 * 768
    assert sent[1] - sent[0] == (50257 - 51200 / 8) * table


def test_what_is_left_whole_is_said() -> None:
    """Twelve heads do not divide among eight ranks: attention is computed whole on each."""
    trace = triosim.model("gpt2", sequence_length=16, configuration={"n_layer": 2})
    result = triosim.simulate(trace, triosim.system("dgx-a100"), Plan(tp=8), fit=False)
    (told,) = [w for w in result.warnings if "left whole" in w]
    assert "transformer.h.*.attn.c_attn, transformer.h.*.attn.c_proj" in told
    result = triosim.simulate(trace, triosim.system("dgx-a100"), Plan(tp=4), fit=False)
    assert not any("left whole" in w for w in result.warnings)
