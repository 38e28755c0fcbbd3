"""Tensor parallelism on models by name: what Megatron-LM transfers, and what one rank keeps."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import triosim
from tests.partition.divided import divided, mesh_of
from tests.traces import chain
from triosim import Plan, PlanError
from triosim.operators import kind
from triosim.partition.partition import partition
from triosim.partition.resolve import rules_of
from triosim.schedule.program import COLLECTIVES
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import Category, Meta, Phase, check


def _exchanged(step) -> Counter:
    phase = step.trace.operators.phase
    columns = (step.transfers.after.tolist(), step.transfers.what.tolist(), step.transfers.bytes.tolist())
    return Counter(
        (Phase(phase[after]).name.lower(), COLLECTIVES[what], size) for after, what, size in zip(*columns, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "options"),
    [
        ("gpt2", "n_layer", 768, {}),
        ("llama-3-8b", "num_hidden_layers", 4096, {}),
        ("llama-2-70b", "num_hidden_layers", 8192, {}),
        ("bert-base", "num_hidden_layers", 768, {}),
        ("llama-3-8b", "num_hidden_layers", 4096, {"fused": True}),
    ],
)
@pytest.mark.parametrize("size", [2, 4])
def test_a_transformer_transfers_twice_forward_and_twice_backward_per_layer(
    name, layers, hidden, options, size
) -> None:
    """Megatron-LM (Shoeybi et al. 2019, section 3): f and g of the attention and of the feed-forward block."""
    count = 3
    trace = triosim.model(name, batch_size=2, sequence_length=128, configuration={layers: count}, **options)
    step = divided(trace, size)
    check(step.trace)
    activation = 2 * 128 * hidden * 2
    assert _exchanged(step) == {
        ("forward", "all_reduce", activation): 2 * count,
        ("backward", "all_reduce", activation): 2 * count,
    }


def test_along_the_vocabulary_the_loss_is_computed_on_the_parts() -> None:
    trace = triosim.model("llama-3-8b", batch_size=2, sequence_length=128, configuration={"num_hidden_layers": 2})
    step = divided(trace, 8, vocabulary=True)
    activation, rows = 2 * 128 * 4096 * 2, 2 * 128 * 4
    assert _exchanged(step) == {
        ("forward", "all_reduce", activation): 2 * 2 + 1,  # and the embedding
        ("forward", "all_reduce", rows): 3,  # maximum, sum of exponentials, score of the target
        ("backward", "all_reduce", activation): 2 * 2 + 1,  # and the output layer
    }


@pytest.mark.parametrize("more", [(), ("sequence",)])
def test_without_a_loss_the_parts_of_the_logits_are_gathered(more: tuple[str, ...]) -> None:
    """A rank multiplies by its part of the output layer, as with colwise_rep of Transformers' plans."""
    trace = triosim.model(
        "llama-3-8b", batch_size=2, sequence_length=128, training=False, configuration={"num_hidden_layers": 2}
    )
    step = partition(trace, mesh_of(tp=8), rules_of(Plan(tp=8, parallelism=more), True))
    weights, logits = trace.weights(), 2 * 128 * 128_256 * 2
    assert _exchanged(step)["forward", "all_gather", logits] == 1
    head = next(w for w in weights if trace.values.name[w] == "lm_head.weight")
    assert step.trace.values.elements()[head] * 8 == trace.values.elements()[head] == 128_256 * 4096


@pytest.mark.parametrize("size", [2, 4, 8])
def test_work_and_weights_of_divided_layers_are_divided_exactly(size: int) -> None:
    trace = triosim.model("llama-3-8b", batch_size=1, sequence_length=256, configuration={"num_hidden_layers": 2})
    step = divided(trace, size, vocabulary=True)
    products = np.array([kind(n) in ("linear", "attention") for n in trace.operators.name])
    assert np.array_equal(step.trace.operators.flop[products] * size, trace.operators.flop[products])
    weights = trace.weights()
    whole = [trace.values.name[w] for w in weights if step.trace.values.elements()[w] == trace.values.elements()[w]]
    assert all("norm" in name for name in whole)
    matrices = [w for w in weights.tolist() if "norm" not in trace.values.name[w]]
    assert all(step.trace.values.elements()[w] * size == trace.values.elements()[w] for w in matrices)


def test_gradients_and_states_are_divided_as_their_weights() -> None:
    trace = triosim.model("gpt2", batch_size=1, sequence_length=64, configuration={"n_layer": 2})
    local = divided(trace, 4).trace.values
    elements = local.elements()
    for value in np.flatnonzero(trace.values.of >= 0).tolist():
        owner = int(trace.values.of[value])
        if trace.values.shape[value].tolist() == trace.values.shape[owner].tolist():
            assert elements[value] == elements[owner], trace.values.name[owner]


def test_convolutions_are_paired_by_channels_and_norms_follow() -> None:
    trace = triosim.model("resnet50", batch_size=4)
    step = divided(trace, 2)
    check(step.trace)
    found = _exchanged(step)
    assert {kind_ for phase, kind_, _ in found if phase == "forward"} == {"all_reduce"}
    names = {trace.values.name[w]: w for w in trace.weights().tolist()}
    shape = step.trace.values.shape
    assert shape[names["layer2.1.conv1.weight"]].tolist() == [64, 512, 1, 1]
    assert shape[names["layer2.1.bn1.weight"]].tolist() == [64]
    assert shape[names["layer2.1.conv2.weight"]].tolist() == [128, 64, 3, 3]


def test_gather_divides_every_layer_and_nothing_else() -> None:
    trace = triosim.model("vgg11", batch_size=8)
    step = divided(trace, 4, style="gather")
    check(step.trace)
    found = _exchanged(step)
    layers = [w for w in trace.weights().tolist() if len(trace.values.shape[w]) > 1]
    gathers = sum(n for (phase, kind_, _), n in found.items() if (phase, kind_) == ("forward", "all_gather"))
    reduces = sum(n for (phase, kind_, _), n in found.items() if (phase, kind_) == ("backward", "all_reduce"))
    assert gathers == len(layers)
    assert reduces == len(layers) - 1  # the first layer's input has no gradient
    assert not any(phase == "forward" and kind_ == "all_reduce" for phase, kind_, _ in found)
    products = np.array([kind(n) in ("linear", "convolution") for n in trace.operators.name])
    assert np.array_equal(step.trace.operators.flop[products] * 4, trace.operators.flop[products])


def test_heads_that_do_not_divide_are_left_whole_and_said() -> None:
    trace = triosim.model("gpt2", batch_size=1, sequence_length=64, configuration={"n_layer": 2})  # 12 heads
    step = divided(trace, 8)
    found = _exchanged(step)
    assert sum(n for (phase, _, _), n in found.items() if phase == "forward") == 2  # the feed-forward blocks only


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"layer9": "colwise"}, "no layer with a weight matches 'layer9'"),
        ({"layer0": "colwise"}, "does not divide by 3"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(plan: dict, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        divided(chain(), 3, plan=plan)


def test_what_cannot_be_divided_at_all_is_refused() -> None:
    with pytest.raises(PlanError, match="tp 3 cannot divide any layer"):
        divided(chain(), 3)


def test_experts_that_no_rule_divides_are_named_with_their_share() -> None:
    """Two pairs of layers around experts in one kernel, which Megatron's pairs know nothing of."""
    hidden, inner, experts, tokens = 64, 256, 8, 32
    b = TraceBuilder()
    x = b.value((tokens, hidden), "bfloat16", Category.INPUT)

    def layer(source: int, width: int, name: str) -> int:
        before = hidden if width != hidden else inner
        weight = b.value((width, before), "bfloat16", Category.WEIGHT, name=f"{name}.weight")
        made = b.value((tokens, width), "bfloat16", Category.ACTIVATION)
        b.operator("aten::linear", [source, weight], [made], roles=["input", "weight"], phase=Phase.FORWARD,
                   module=b.module(name, "Linear"))  # fmt: skip
        return made

    for block in range(2):
        x = layer(layer(x, inner, f"layers.{block}.up"), hidden, f"layers.{block}.down")
        w1, w2 = (
            b.value(shape, "bfloat16", Category.WEIGHT, name=f"layers.{block}.moe.experts.{name}")
            for name, shape in (("w1", (experts, 2 * inner, hidden)), ("w2", (experts, hidden, inner)))
        )
        chosen = b.value((tokens, 2), "int64", Category.ACTIVATION)
        made = b.value((tokens, hidden), "bfloat16", Category.ACTIVATION)
        b.operator("vllm::fused_experts", [x, w1, w2, chosen], [made], phase=Phase.FORWARD,
                   roles=["hidden_states", "w1", "w2", "topk_ids"],
                   module=b.module(f"layers.{block}.moe", "MoE"))  # fmt: skip
        x = made
    (note,) = divided(b.build(Meta(made_by="test")), 4).notes
    whole, everything = experts * 3 * inner * hidden, experts * 3 * inner * hidden + 2 * inner * hidden
    assert f"{100 * whole / everything:.0f} % of the parameters" in note
    assert note.endswith("layers.*.moe.experts.w1, layers.*.moe.experts.w2")


def test_one_rank_is_the_step_itself() -> None:
    trace = chain()
    assert divided(trace, 1).trace is trace


def test_optimizer_states_shrink_with_the_weights_in_memory() -> None:
    trace = triosim.model("gpt2", batch_size=1, sequence_length=64, configuration={"n_layer": 2})
    size = trace.values.storage_bytes()
    local = divided(trace, 2).trace.values
    state = np.unique(trace.values.storage[trace.values.category == Category.OPTIMIZER_STATE])
    assert local.storage_bytes()[state].sum() < size[state].sum()
